-- A token bucket in which a permit does not take a whole number of microseconds to refill. A tick is
-- a fraction of a microsecond.
--
-- ARGV    the refill time of a permit and of the whole bucket, in ticks; the ticks in a microsecond.
-- Value   "microseconds:ticks": the microseconds as in token_bucket.lua, and the ticks after them.

--@ params
local permit, capacity, scale = ARGV[1] + 0, ARGV[2] + 0, ARGV[3] + 0
--@ load
local micros, ticks = string.match(value, '^(%d+):(%d+)$')
local at = tonumber(micros or value)
debt = ((at or 0) - 1000 - now) * scale + (tonumber(ticks) or 0)
--@ save
local text = format('%d', now + math.floor(debt / scale) + 1000)
local saved = pcall('SET', key, format('%s:%d', text, debt % scale), 'PXAT', sub(text, 1, -4), 'GET')
