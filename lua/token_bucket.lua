-- A token bucket whose rate fits in three digits: a permit takes a number of microseconds with up to
-- two digits and then up to nine zeros, or 864 and then zeros, as in the microseconds of a day. A
-- tick is a microsecond.
--
-- ARGV    the refill time of a permit, followed by the three digits of the rate; and the refill time
--         of the whole bucket. A separate argument for the digits would cost more than they do.
-- Value   the time at which the bucket is full, plus one millisecond, in microseconds, and the rate
--         at which it refills until then: the two digits, 00 for 864, and the number of zeros.
--         Without its last six digits it is the time in milliseconds at which the key expires, which
--         is never before the bucket is full. It takes Redis the least memory, because it is an
--         integer below 2^63. For Lua it is too large to be one number.

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
local text = format('%d%s', now + debt + 1000, rate)
local saved = pcall('SET', key, text, 'PXAT', sub(text, 1, -7), 'GET')
