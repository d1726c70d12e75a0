-- A token bucket whose rate fits in three digits: a permit takes a number of microseconds with up to
-- two digits and then up to nine zeros, or 864 and then zeros, as in the microseconds of a day. A
-- tick is a microsecond.
--
-- ARGV    the refill time of a permit, followed by the three digits of the rate; and the refill time
--         of the whole bucket. A separate argument for the digits would cost more than they do.
-- Value   the time at which the bucket is full, plus one millisecond, in microseconds, and the rate
--         at which it refills until then: the two digits, 00 for 864, and the number of zeros. It
--         takes Redis the least memory, because it is an integer below 2^63. For Lua it is too large
--         to be one number.
-- Expiry  one second after the bucket is full. So it is not before the end of that second, and checks
--         that leave the bucket to be full in the same second need not change it.

--@ params
local permit, rate = sub(arguments[1], 1, -4) + 0, sub(arguments[1], -3)
local capacity = arguments[2] + 0
--@ load
local written = sub(value, -3)
at = tonumber(sub(value, 1, -4))
if written == rate and at then
  debt = at - 1000 - now
else
  --@ other
end
--@ save
local full, saved = now + debt + 1000
-- INCRBY takes the server less than half as long as SET, but it keeps the expiry.
if not (
  at and at - at % 1000000 == full - full % 1000000 and found ~= '-' and sub(value, -3) == rate
  and type(pcall('INCRBY', key, format('%d000', full - at))) == 'number'
) then
  local expiry = format('%d', full / 1000 + 1000)
  saved = pcall('SET', key, format('%d%s', full, rate), 'PXAT', expiry, 'GET')
end
