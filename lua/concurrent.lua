-- A limit on permits that are held at a time. Its level is the number of permits that all instances hold. An instance is
-- a process, or a hold of fleetlimit-server.
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
--
-- From the time that the ring has been read until it is stored, `ring@` is that of the other instances, and `others@`
-- how many permits they hold. So each call looks at an entry once.

--@ numbers@
capacity@, lifetime@, instance@, size@
--@ cells@
last@
--@ locals@
others@, call@
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
level@, last@, ring@, others@, call@ = 0, now, '', 0, 0
--@ empty@
level@, last@, others@, call@ = capacity@, now + lifetime@, capacity@, 0
ring@ = pack('>dddI4', 0, last@, 0, others@)
--@ read_ring@
-- If nothing follows it, it is read only when it is needed.
ring@ = ring@ or sub(value, -size@)
--@ level@
  --@ read_ring@
  --@ count_live@
--@ count_live@
do
  local kept, first, held = {}, 1, 0
  others@, call@, last@ = 0, 0, 0
  for n = 1, #ring@, 28 do
    local instance, ends, call, permits = read('>dddI4', ring@, n)
    -- Written so that NaN fails the test.
    if not (
      instance >= 0 and ends >= 0 and call >= 0
      and instance % 1 + ends % 1 + call % 1 == 0
      and math.max(instance, ends, call) <= 2 * MAX_TICKS
    ) or permits > 0 and ends - now > MAX_TICKS then
      found = '-'
    end
    if ends > now and instance ~= instance@ then
      others@ = others@ + permits
      if ends > last@ then last@ = ends end
    else
      if ends > now then held, call@ = permits, call end
      kept[#kept + 1], first = sub(ring@, first, n - 1), n + 28
    end
  end
  if first > 1 then ring@ = table.concat(kept) .. sub(ring@, first) end
  level@ = others@ + held
end
--@ hold@
-- If there are as many others as the size of a value allows, one that comes back has to wait.
if count >= call@ and (cost@ == 0 or #ring@ <= 28 * 2338) then level@, call@ = others@ + cost@, count end
--@ count@
if cost@ > 0 then
  count = math.min(count, math.floor((capacity@ - level@) / cost@))
elseif later and level@ + 1 > capacity@ then
  count = 0
end
-- There are so many others that no more can hold permits.
if (cost@ > 0 or later) and level@ == others@ and #ring@ >= 28 * 1024 then count = 0 end
--@ back@
do
  local parts = {}
  for n = 1, #ring@, 28 do
    local instance, ends, call, permits = read('>dddI4', ring@, n)
    parts[#parts + 1] = pack('>dddI4', instance, math.max(0, ends - back), call, permits)
  end
  ring@, last@ = table.concat(parts), math.max(0, last@ - back)
end
--@ store@
do
  local held = level@ - others@
  local ends = held > 0 and now + lifetime@ or now
  ring@, last@ = pack('>dddI4', instance@, ends, call@, held) .. ring@, math.max(last@, ends)
  if #ring@ ~= size@ then
    own, size@ = nil, #ring@
    --@ resize@
  end
end
--@ adopt@
if #numbers == 0 and #cells >= 36 and #cells % 28 == 8 then
  ring@ = sub(cells, 9)
  --@ count_live@
else
  found = '-'
end
