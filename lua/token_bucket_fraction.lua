-- A token bucket whose permits refill in a fraction of a microsecond more than a whole number.
-- ARGV: permit and capacity in ticks, and scale: how many ticks make a microsecond.
-- Value: as of the whole fragment, with the ticks past that microsecond: "microseconds:ticks".

--@ params
local permit, capacity, scale = ARGV[1] + 0, ARGV[2] + 0, ARGV[3] + 0
--@ load
local micros, ticks = string.match(value, '^(%d+):(%d+)$')
local at = tonumber(micros or value)
debt = ((at or 0) - 1000 - now) * scale + (tonumber(ticks) or 0)
--@ save
local text = format('%d', now + math.floor(debt / scale) + 1000)
local saved = pcall('SET', key, format('%s:%d', text, debt % scale), 'PXAT', sub(text, 1, -4), 'GET')
