-- A fixed window of a calendar: the sections that differ from those of fixed_window.lua.
--
-- Numbers  the permits per window; and the starts of four windows in microseconds since 1970, the second of
--          which was the current one for the process. Before the first and after the last, windows
--          are as long as the nearest known one.

--@ numbers@
capacity@, first@, second@, third@, fourth@
--@ window@
local from, to = second@, third@
if now >= fourth@ then
  to = now - (now - fourth@) % (fourth@ - third@) + fourth@ - third@
  from = to - (fourth@ - third@)
elseif now >= third@ then
  from, to = third@, fourth@
elseif now < first@ then
  from = now - (now - first@) % (second@ - first@)
  to = from + second@ - first@
elseif now < second@ then
  from, to = first@, second@
end
--@ fresh@
do
  --@ window@
  begin@, level@, ends@ = from, 0, to
end
--@ store@
if level@ == 0 then
  ends@ = 0
else
  --@ window@
  ends@ = math.max(ends@, to)
end
used@ = level@
