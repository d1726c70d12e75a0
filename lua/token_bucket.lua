-- A token bucket in which each permit takes a whole number of microseconds to refill. A tick is a
-- microsecond.
--
-- ARGV    the refill time of a permit and of the whole bucket, in ticks.
-- Value   the time at which the bucket is full, plus one millisecond, in microseconds. Without its
--         last three digits it is the time in milliseconds at which the key expires, which is never
--         before the bucket is full.

--@ params
local permit, capacity = ARGV[1] + 0, ARGV[2] + 0
--@ load
local at = tonumber(value)
if not at then
  -- Written by token_bucket_fraction.lua before the quota was changed: round up.
  at = tonumber(string.match(value, '^(%d+):%d+$') or '')
  at = at and at + 1
end
debt = (at or 0) - 1000 - now
--@ save
local text = format('%d', now + debt + 1000)
local saved = pcall('SET', key, text, 'PXAT', sub(text, 1, -4), 'GET')
