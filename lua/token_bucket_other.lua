-- Reads a value that another revision of the quota wrote at another rate. Used permits stay used:
-- the debt is the same number of permits, rounded up to a tick.

--@ params
-- The other rate that was read last, and the prices of a permit at the two rates in lowest terms.
local other, other_permit, other_scale, theirs, ours
--@ other
local micros, ticks, suffix = string.match(value, '^(%d+):(%d+)(:%d+:%d+)$')
if not micros then
  micros, suffix = string.match(value, '^(%d+)(%d%d%d)$')
end
if suffix and suffix ~= other then
  other, theirs = suffix, nil
  other_permit, other_scale = string.match(suffix, '(%d+):(%d+)')
  if not other_permit then
    local digits, zeros = sub(suffix, 1, 2), sub(suffix, 3)
    other_permit, other_scale = (digits == '00' and '864' or digits) .. 'e' .. zeros, 1
  end
  other_permit, other_scale = other_permit + 0, other_scale + 0
  if math.min(other_permit, other_scale) >= 1 and math.max(other_permit, other_scale) <= MAX_TICKS then
    local divisor, rest = permit, other_permit
    while rest > 0 do
      divisor, rest = rest, divisor % rest
    end
    theirs, ours = other_permit / divisor, permit / divisor
  end
end
at = theirs and tonumber(micros)
local left = at and (at - 1000 - now) * other_scale + (ticks or 0)
if not left or left > MAX_TICKS then
  at = nil
elseif left > 0 then
  local rest = left % theirs
  local part, more = 0, rest * ours
  if more < 2 * MAX_TICKS then
    part = math.ceil(more / theirs)
  else
    -- The product is not exact: multiplies and divides bit by bit.
    local bit = MAX_TICKS
    more = 0
    while bit >= 1 do
      part, more = part * 2, more * 2
      if more >= theirs then part, more = part + 1, more - theirs end
      if ours % (bit * 2) >= bit then more = more + rest end
      if more >= theirs then part, more = part + 1, more - theirs end
      bit = bit / 2
    end
    if more > 0 then part = part + 1 end
  end
  -- A debt above the capacity is as good as any other.
  debt = math.min((left - rest) / theirs * ours + part, MAX_TICKS)
end
