-- A sliding window that is estimated from two counters. Its level is the number of permits used in the
-- current window, and the share of those used in the one before that still counts.
--
-- Numbers  the length of a window in microseconds; a unit of the share in microseconds, and the units
--          in a window; and the permits per window.
-- Entry    the first of the numbers; in the cells the time at which nothing counts any more, the start
--          of the current window, and the permits used in this window and in the one before.

--@ numbers@
span@, unit@, units@, capacity@
--@ cells@
last@, start@, current@, previous@
--@ valid@
current@ >= 0 and previous@ >= 0 and level@ % 1 == 0 and level@ <= 2^34 and previous@ <= 2^33 and start@ - now <= MAX_TICKS
--@ above@
level@ > capacity@
--@ price@

--@ credit@
  --@ store@
do
  local permits = -count * cost@
  local of_current = math.min(permits, current@)
  current@, previous@ = current@ - of_current, math.max(0, previous@ - (permits - of_current))
  local span, unit, units = span@, unit@, units@
  --@ level_of_counters@
end
--@ fresh@
level@, last@, start@, current@, previous@ = 0, now, now - now % span@, 0, 0
--@ empty@
  --@ fresh@
level@ = capacity@
--@ level@
do
  local span, unit, units = span@, unit@, units@
  --@ slide@
end
--@ slide@
local windows = math.floor((now - start@) / span)
if windows == 1 then
  start@, current@, previous@ = start@ + span, 0, current@
elseif windows > 1 then
  current@, previous@ = 0, 0
end
  --@ level_of_counters@
--@ level_of_counters@
if current@ == 0 and previous@ == 0 then
  start@, span = now - now % span@, span@
end
local left = math.min(math.ceil((start@ + span - now) / unit), units)
level@ = current@ + math.floor(previous@ * left / units)
--@ back@
if start@ and (current@ > 0 or previous@ > 0) then
  start@ = math.max(0, start@ - back)
else
  start@ = now - now % span@
end
--@ store@
current@ = level@
if previous@ > 0 then
  local left = math.min(math.ceil((start@ + span@ - now) / unit@), units@)
  current@ = level@ - math.floor(previous@ * left / units@)
end
last@ = current@ > 0 and start@ + 2 * span@ or previous@ > 0 and start@ + span@ or now
--@ adopt@
local span = 0
if #numbers == 8 and #cells == 32 then
  span = read('>d', numbers)
  last@, start@, current@, previous@ = read('>dddd', cells)
end
if span >= 1 and span <= MAX_TICKS then
  local theirs, unit = span, math.ceil(span / 2^20)
  local units = math.ceil(span / unit)
  --@ slide@
  -- A window of another length starts anew. If the clock has stepped back, its start is not known yet.
  if theirs ~= span@ then start@, previous@ = not back and now - now % span@, 0 end
else
  found = '-'
end
