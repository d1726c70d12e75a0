-- What a key with a single token bucket needs in addition, whose checks leave at most its capacity.
--
-- A debt above the capacity may be one, or that of a revision with a larger capacity. Or the clock has
-- stepped back, and the value, which may not say when it was written, looks the same. So a debt is
-- written with the time at which the bucket was without a permit, or will be. If that time is missing,
-- it is now, for all revisions with a smaller capacity than the debt: from then on they have what
-- refills, and the whole debt counts for others.
--
-- Entry    of identity 0 and tag 6: no numbers; in the cells the time at which the bucket is full, and
--          the one at which it was without a permit, or will be.

--@ locals
local doubted, empty, is_other, is_doubted
--@ adopted@
local since = by_id[6]
is_other = numbers ~= RATE
if since and #since.cells == 16 and not is_other then empty = read('>d', since.cells, 9) end
--@ believe@
if empty and not (empty >= 0 and empty % 1 == 0) then empty = nil end
if empty and back then empty = empty - back end
if empty and empty - now > MAX_TICKS then empty = nil end
if found ~= '-' and not is_other and level@ <= MAX_TICKS and (empty or level@ > capacity@) then
  is_doubted = not empty
  local believed = math.max(0, math.min(level@, capacity@ - (now - (empty or now)) SCALE))
  doubted, level@ = level@ - believed, believed
end
--@ beyond@
if found == '-' then doubted = nil end
if level@ > capacity@ or doubted and doubted > 0 then
  local since = now + math.ceil((level@ - capacity@) / (1 SCALE))
  level@ = math.min(level@ + (doubted or 0), MAX_TICKS)
  local last = now + math.ceil(level@ / (1 SCALE))
  more = more or { id = 0, count = 0, heads = '', cells = '', till = 0 }
  more.count, more.till = more.count + 1, math.max(more.till, last)
  more.heads = more.heads .. struct.pack('>I4BBI2', 0, 6, 0, 16)
  more.cells = more.cells .. struct.pack('>dd', last, since)
end
