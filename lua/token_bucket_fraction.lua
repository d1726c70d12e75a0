-- A token bucket whose permits refill in a fraction of a microsecond more than a whole number.
-- ARGV: permit and capacity in ticks, and scale: how many ticks make a microsecond.
-- Value: when the bucket is full, as "microseconds:ticks".

--@ numbers
local permit, capacity, scale = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
--@ load
local whole, ticks = match(value, '^(%d+):(%d+)$')
local at = tonumber(whole or value)
debt = ((at or 0) - now) * scale + (tonumber(ticks) or 0)
--@ save
value = format('%.0f:%.0f', now + floor(debt / scale), debt % scale)
