-- A limit on permits that are held at a time. Its level is the number of permits that all instances hold.
--
-- Numbers  the permits; for how many microseconds they are held if they are not renewed; the number of the instance
--          that calls, which is not 0; and the bytes of the ring.
-- Entry    no numbers; in the cells the time at which nothing is held any more; and then for each instance that
--          holds permits its number, when they end, its latest call, and how many (4 bytes). The instance that
--          changed the value last comes first, also if it holds nothing, so that the ring is never empty.
--
-- A call has a number, and first reports how many permits its instance holds. While the instance holds any, a call that
-- arrives after a later one does not change that. So a lost reply leaves nothing behind, and a server that has lost its
-- data gets it again.

--@ numbers@
capacity@, lifetime@, instance@, size@
--@ cells@
last@
--@ ring@
ring@
--@ ring_bytes@
size@
--@ valid@
level@ <= 2^34
--@ above@
level@ > capacity@
--@ price@

--@ prepare@
-- The head of the entry says how many instances there are.
size@ = #value > SIZE_AT and read('>I2', value, SIZE_AT) - 8 or 0
  --@ resize@
--@ resize@
if size@ < 28 or size@ % 28 ~= 0 then size@ = 28 end
header = sub(header, 1, SIZE_AT - 1) .. pack('>I2', 8 + size@) .. sub(header, SIZE_AT + 2)
own_format, cell_format, cell_bytes = OWN_FORMAT, CELL_FORMAT, CELL_BYTES
--@ fresh@
level@, last@, ring@ = 0, now, ''
--@ empty@
level@, last@, ring@ = capacity@, now + lifetime@, pack('>dddI4', 0, now + lifetime@, 0, capacity@)
--@ read_ring@
-- If nothing follows it, it is read only when it is needed.
ring@ = ring@ or sub(value, -size@)
--@ level@
  --@ read_ring@
  --@ count_live@
--@ count_live@
do
  local sum, rest, ended = 0, '', false
  for n = 1, #ring@, 28 do
    local instance, ends, call, permits = read('>dddI4', ring@, n)
    if ends > now then sum = sum + permits else ended = true end
    -- Written so that NaN fails the test.
    if not (
      instance >= 0 and ends >= 0 and call >= 0
      and instance % 1 + ends % 1 + call % 1 == 0
      and math.max(instance, ends, call) <= 2 * MAX_TICKS
    ) or permits > 0 and ends - now > MAX_TICKS then
      found = '-'
    end
  end
  if ended then
    for n = 1, #ring@, 28 do
      if read('>d', ring@, n + 8) > now then rest = rest .. sub(ring@, n, n + 27) end
    end
    ring@ = rest
  end
  level@ = sum
end
--@ count_own@
-- How many permits the instance holds, with those that it has taken in this call.
local held, latest, others = level@, 0, ''
for n = 1, #ring@, 28 do
  local instance, _, call, permits = read('>dddI4', ring@, n)
  if instance ~= instance@ then
    held, others = held - permits, others .. sub(ring@, n, n + 27)
  else
    latest = call
  end
end
--@ hold@
do
  --@ count_own@
  if count >= latest then
    level@, ring@ = level@ - held + cost@, pack('>dddI4', instance@, now, count, cost@) .. others
  end
end
--@ back@
  --@ read_ring@
do
  local ring = ''
  for n = 1, #ring@, 28 do
    local instance, ends, call, permits = read('>dddI4', ring@, n)
    ring = ring .. pack('>dddI4', instance, math.max(0, ends - back), call, permits)
  end
  ring@, last@ = ring, math.max(0, last@ - back)
end
--@ store@
do
  --@ count_own@
  local ends = held > 0 and now + lifetime@ or now
  ring@, last@ = pack('>dddI4', instance@, ends, latest, held) .. others, ends
  for n = 29, #ring@, 28 do last@ = math.max(last@, (read('>d', ring@, n + 8))) end
  if #ring@ ~= size@ then
    own, size@ = nil, #ring@
    --@ resize@
  end
end
--@ adopt@
if #numbers == 0 and #cells >= 36 and #cells % 28 == 8 then
  last@, ring@ = read('>d', cells), sub(cells, 9)
  --@ count_live@
else
  found = '-'
end
