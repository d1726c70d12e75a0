-- A token bucket whose permits refill in a whole number of microseconds.
-- ARGV: permit and capacity in ticks, a tick being a microsecond.
-- Value: when the bucket is full, in microseconds. SET gets the number as it is, which some
-- servers write as 2e+15; tonumber reads both. A value of the fraction piece, from before a change
-- of the quota, is rounded up.

--@ numbers
local permit, capacity, scale = tonumber(ARGV[1]), tonumber(ARGV[2]), 1
--@ load
local at = tonumber(value)
if not at then
  at = tonumber(match(value, '^(%d+):%d+$') or '')
  at = at and at + 1
end
debt = (at or 0) - now
--@ save
value = now + debt
