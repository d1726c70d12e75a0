-- A token bucket at any other rate. A tick is a microsecond or a fraction of one.
--
-- ARGV    the rate: the refill time of a permit in ticks, and the ticks in a microsecond, as
--         ":permit:scale"; and the refill time of the whole bucket.
-- Value   "time:ticks:permit:scale": the time as in token_bucket.lua, the ticks after it, and the
--         rate.

--@ params
local rate, capacity = arguments[1], arguments[2] + 0
local permit, scale = string.match(rate, '(%d+):(%d+)')
permit, scale = permit + 0, scale + 0
--@ load
local micros, ticks, written = string.match(value, '^(%d+):(%d+)(:%d+:%d+)$')
if written == rate then
  at = tonumber(micros)
  debt = (at - 1000 - now) * scale + ticks
else
  --@ other
end
--@ save
local ticks = debt % scale
local micros = format('%d', now + (debt - ticks) / scale + 1000)
local text = format('%s:%d%s', micros, ticks, rate)
local saved = pcall('SET', key, text, 'PXAT', sub(micros, 1, -4), 'GET')
