-- The value of a single token bucket whose rate fits in three digits: a permit takes a number of
-- microseconds with up to two digits and then up to nine zeros, or 864 and then zeros, as in the
-- microseconds of a day. A tick is a microsecond.
--
-- ARGV    the identity of the quota as 8 hexadecimal digits, the refill time of a permit, and the
--         three digits of the rate; and the refill time of the whole bucket. Separate arguments would
--         cost more.
-- Value   the time at which the bucket is full, plus one millisecond, in microseconds, and the rate
--         at which it refills until then: the two digits, 00 for 864, and the number of zeros. It
--         takes Redis the least memory, because it is an integer below 2^63: as little as without the
--         rate. For Lua it is too large to be one number, so the text is split, and own values, which are
--         nearly all, are recognized by their end. The rate costs 7% of a single check and of a call
--         with 128 keys (`redis-benchmark -P 32`). There is no room for the identity of the quota: see
--         other.lua. A key that was used with other quotas keeps the packed form. A debt above the
--         capacity has that form too, because it says when it was written.
-- Expiry  one second after the bucket is full. So it is not before the end of that second, and checks
--         that leave the bucket to be full in the same second need not change it: INCRBY takes the server
--         less than half as long as SET, and saves a quarter of the script where keys are busy. It follows
--         from the value alone, so processes with different quotas or clocks agree about it. The time in
--         the value is a millisecond late, so that an expiry, which Redis counts in milliseconds, is never
--         early. An expiry at the end of that second was tried: many keys were then deleted at once, and
--         the p99 at half the capacity was 35 ms. If INCRBY fails, because the user may not call it or the
--         value is not written as an integer, SET is used.

--@ params
local permit1, rate = sub(arguments[1], 9, -4) + 0.0, sub(arguments[1], -3)
local capacity1 = arguments[2] + 0.0
--@ load
full1 = tonumber(sub(value, 1, -4))
if full1 and sub(value, -3) == rate and full1 - 1e3 - now <= capacity1 then
  own, full1 = full1, full1 - 1e3
  till, level1 = full1, full1 - now
  if level1 < 0 then level1 = 0 end
else
  --@ other
end
--@ level
-- Not at another rate: the wait after a denial is at the rate of the value.
level = (own or not value) and level1
--@ id@
  --@ first_id
--@ first_id
local id1 = tonumber(sub(arguments[1], 1, 8), 16)
--@ save
if more or level1 > capacity1 then
  --@ more
  local pack = struct.pack
  local header = '\1\1\0' .. pack('>I4BBI2dd', 0, 1, 16, 8, permit1, 1)
  local granule, cell_format = 1000000, CELL_FORMAT
  --@ store@
  --@ save_more
else
  local full = now + level1 + 1000
  -- INCRBY takes the server less than half as long as SET, but it keeps the expiry.
  if not (
    own and found ~= '-'
    and own - own % 1000000 == full - full % 1000000
    and tonumber(pcall('INCRBY', key, format('%d000', full - own)))
  ) then
    local expiry = format('%d', (full - full % 1000) / 1000 + 1000)
    saved = pcall('SET', key, format('%d%s', full, rate), 'PXAT', expiry, 'GET')
  end
end
