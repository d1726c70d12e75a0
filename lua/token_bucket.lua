-- A token bucket whose permits refill in a whole number of microseconds, which are its ticks.
-- ARGV: permit and capacity in ticks.
-- Value: a millisecond after the bucket is full, in microseconds. Without its last three digits
-- that is the time in milliseconds at which the key expires: never before the bucket is full.

--@ params
local permit, capacity = ARGV[1] + 0, ARGV[2] + 0
--@ load
local at = tonumber(value)
if not at then
  -- Of the fraction fragment, from before a change of the quota: rounded up.
  at = tonumber(string.match(value, '^(%d+):%d+$') or '')
  at = at and at + 1
end
debt = (at or 0) - 1000 - now
--@ save
local text = format('%d', now + debt + 1000)
local saved = pcall('SET', key, text, 'PXAT', sub(text, 1, -4), 'GET')
