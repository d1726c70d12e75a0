-- A sliding window that is counted in blocks. Its level is the number of permits used in the blocks of
-- a window and in the one before.
--
-- Numbers  the length of a block in microseconds, the blocks in a window, and the permits per window.
-- Entry    the first two of the numbers; in the cells the time at which nothing counts any more, the
--          number of the newest block, counted from 1970, the permits used in all blocks, and those
--          used in the newest; and then those used in each of the others, the newest first (4 bytes
--          each).

--@ numbers@
width@, blocks@, capacity@
--@ cells@
last@, newest@, used@, head@
--@ ring@
ring@
--@ ring_bytes@
4 * blocks@
--@ valid@
level@ % 1 == 0 and level@ <= 2^34 and head@ >= 0 and head@ <= used@ and newest@ >= 0 and newest@ % 1 == 0 and newest@ * width@ - now <= MAX_TICKS
--@ above@
level@ > capacity@
--@ price@

--@ credit@
  --@ store@
do
  local left = math.min(-count * cost@, used@)
  local of_block = math.min(left, head@)
  used@, head@, left = used@ - left, head@ - of_block, left - of_block
  if left > 0 then
    --@ read_ring@
    local ring = {}
    for n = 1, blocks@ do
      local used = read('>I4', ring@, 4 * n - 3)
      of_block = math.min(left, used)
      ring[n], left = pack('>I4', used - of_block), left - of_block
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
ring@ = string.rep('\0', 4 * blocks@)
--@ empty@
  --@ fresh@
level@ = capacity@
--@ level@
do
  local width, blocks = width@, blocks@
  --@ turn@
end
--@ turn@
local turns = math.floor(now / width - newest@)
if turns > blocks then
  used@ = 0
elseif turns > 0 then
  --@ read_ring@
  for n = blocks + 1 - turns, blocks do
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
ring@ = ring@ or sub(value, -4 * blocks@)
--@ back@
do
  local turns = math.floor((now + back) / width@) - math.floor(now / width@)
  newest@, last@ = newest@ - turns, math.max(now, last@ - turns * width@)
end
--@ store@
if level@ > used@ then
  last@ = (newest@ + blocks@ + 1) * width@
  head@, used@ = head@ + level@ - used@, level@
end
--@ adopt@
local width, blocks = 0, 0
if #numbers == 16 and #cells >= 32 then
  width, blocks = read('>dd', numbers)
  last@, newest@, used@, head@ = read('>dddd', cells)
  ring@ = sub(cells, 33)
end
if width >= 1 and blocks >= 1 and #ring@ == 4 * blocks then
  --@ turn@
  if level@ > 0 and (width ~= width@ or blocks ~= blocks@) then
    local used = level@
    --@ fresh@
    level@ = used
  end
else
  found = '-'
end
