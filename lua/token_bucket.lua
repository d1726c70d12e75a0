-- A token bucket. Its level is its debt: the ticks until it is full.
--
-- Numbers  the refill time of a permit in ticks, the ticks in a microsecond, and the refill time of
--          the whole bucket in ticks.
-- Entry    the first two of the numbers; in the cells the time at which the bucket is full, in whole
--          microseconds, and the ticks after it, which may be missing if there are none.

--@ numbers@
permit@, scale@, capacity@
--@ cells@
full@, ticks@
--@ valid@
full@ >= 0 and level@ % 1 == 0 and level@ <= MAX_TICKS
--@ above@
level@ > capacity@ or doubted
--@ price@
* permit@
--@ scale@
* scale@
--@ rate@
struct.pack('>dd', permit@, scale@)
--@ waiting@
math.min(capacity@ + patience * scale@, MAX_TICKS)
--@ end@
now + math.floor(level@ / scale@)
--@ fresh@
full@, ticks@, level@ = now, 0, 0
--@ empty@
level@ = capacity@
--@ level@
level@ = (full@ - now) * scale@ + ticks@
if level@ < 0 then level@ = 0 end
if not (ticks@ >= 0 and ticks@ < scale@) then found = '-' end
--@ store@
ticks@ = level@ % scale@
full@ = now + (level@ - ticks@) / scale@
--@ owner@
do
  --@ id@
  -- Without an identity, and when the bucket of either was empty: see doubt.lua.
  mine[1], mine[6], mine[id@ * 256 + 6] = true, true, true
  if by_id[1] and not has_rate then
    has_rate = by_id[1].numbers == RATE
    if has_rate or not owner then owner = id@ * 256 + 1 end
  end
end
--@ adopt@
-- Used permits stay used: the debt is the same number of permits at the own rate, rounded up to a
-- tick. Products of two numbers below 2^53 are not exact. The divisor leaves small numbers for all but
-- contrived quotas.
local theirs, scale, ticks = 0, 0, 0
if #numbers == 16 and (#cells == 16 or #cells == 8) then
  theirs, scale = read('>dd', numbers)
  full@ = read('>d', cells)
  if #cells == 16 then ticks = read('>d', cells, 9) end
end
if not (theirs >= 1 and scale >= 1 and theirs <= MAX_TICKS and scale <= MAX_TICKS and ticks >= 0 and ticks < scale and ticks % 1 == 0 and full@ % 1 == 0) then
  found = '-'
else
  local function at_own_rate(level)
    if level == 0 or level > MAX_TICKS or theirs == permit@ then return level end
    local divisor, rest = theirs, permit@
    while rest > 0 do
      divisor, rest = rest, divisor % rest
    end
    local theirs, ours = theirs / divisor, permit@ / divisor
    rest = level % theirs
    local part, over = 0, rest * ours
    if over < 2 * MAX_TICKS then
      part = math.ceil(over / theirs)
    else
      -- The product is not exact: multiplies and divides bit by bit.
      local bit = MAX_TICKS
      over = 0
      while bit >= 1 do
        part, over = part * 2, over * 2
        if over >= theirs then part, over = part + 1, over - theirs end
        if ours % (bit * 2) >= bit then over = over + rest end
        if over >= theirs then part, over = part + 1, over - theirs end
        bit = bit / 2
      end
      if over > 0 then part = part + 1 end
    end
    -- A debt above the capacity is as good as any other.
    return math.min((level - rest) / theirs * ours + part, MAX_TICKS)
  end
  level@ = (full@ - now) * scale + ticks
  if level@ < 0 then level@ = 0 end
  --@ doubt@
  level@ = at_own_rate(level@)
end
