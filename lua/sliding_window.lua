-- A sliding window whose permits are counted in segments. Its level is the number of permits used in
-- the segments of a window and in the one before.
--
-- Numbers  the length of a segment in microseconds, the segments in a window, and the permits per
--          window.
-- Entry    the first two of the numbers; in the cells the time at which nothing counts any more, the
--          number of the newest segment, counted from 1970, the permits used in all segments, and those
--          used in the newest; and then those used in each of the others, the newest first (4 bytes
--          each).

--@ numbers@
width@, segments@, capacity@
--@ cells@
last@, newest@, used@, head@
--@ ring@
ring@
--@ ring_bytes@
4 * segments@
--@ valid@
level@ % 1 == 0 and level@ <= 2^34 and head@ >= 0 and head@ <= used@ and newest@ >= 0 and newest@ % 1 == 0 and newest@ * width@ - now <= MAX_TICKS
--@ above@
level@ > capacity@
--@ price@

--@ credit@
  --@ store@
do
  local left = math.min(-count * cost@, used@)
  local of_segment = math.min(left, head@)
  used@, head@, left = used@ - left, head@ - of_segment, left - of_segment
  if left > 0 then
    --@ read_ring@
    local ring = {}
    for n = 1, segments@ do
      local used = read('>I4', ring@, 4 * n - 3)
      of_segment = math.min(left, used)
      ring[n], left = pack('>I4', used - of_segment), left - of_segment
    end
    ring@ = table.concat(ring)
  end
  level@ = used@
  if used@ == 0 then
    --@ fresh@
  end
end
--@ fresh@
level@, last@, newest@, used@, head@ = 0, now, math.floor(now / width@), 0, 0
ring@ = string.rep('\0', 4 * segments@)
--@ empty@
  --@ fresh@
level@ = capacity@
--@ level@
do
  local width, segments = width@, segments@
  --@ turn@
end
--@ turn@
local turns = math.floor(now / width - newest@)
if turns > segments then
  used@ = 0
elseif turns > 0 then
  --@ read_ring@
  for n = segments + 1 - turns, segments do
    used@ = used@ - read('>I4', ring@, 4 * n - 3)
  end
  ring@ = string.rep('\0', 4 * turns - 4) .. pack('>I4', head@) .. sub(ring@, 1, -4 * turns - 1)
  newest@, head@ = newest@ + turns, 0
end
level@ = used@
if used@ == 0 then
  --@ fresh@
end
--@ read_ring@
-- If nothing follows it, it is read only when it is needed.
ring@ = ring@ or sub(value, -4 * segments@)
--@ back@
do
  local turns = math.floor((now + back) / width@) - math.floor(now / width@)
  newest@, last@ = newest@ - turns, math.max(now, last@ - turns * width@)
end
--@ store@
if level@ > used@ then
  last@ = (newest@ + segments@ + 1) * width@
  head@, used@ = head@ + level@ - used@, level@
end
--@ adopt@
local width, segments = 0, 0
if #numbers == 16 and #cells >= 32 then
  width, segments = read('>dd', numbers)
  last@, newest@, used@, head@ = read('>dddd', cells)
  ring@ = sub(cells, 33)
end
if width >= 1 and segments >= 1 and #ring@ == 4 * segments then
  --@ turn@
  if level@ > 0 and (width ~= width@ or segments ~= segments@) then
    local used = level@
    --@ fresh@
    level@ = used
  end
else
  found = '-'
end
