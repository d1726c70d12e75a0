-- A fixed window. Its level is the number of permits used in the window.
--
-- Numbers  the permits per window; the length of a window in microseconds; and the start of any
--          window in microseconds since 1970, or -1 if a window starts with the first check.
-- Entry    no numbers; in the cells the end of the window, the permits used, and its start.

--@ numbers@
capacity@, span@, start@
--@ cells@
ends@, used@, begin@
--@ valid@
level@ >= 0 and level@ % 1 == 0 and level@ <= MAX_TICKS and ends@ - now <= MAX_TICKS and begin@ <= ends@
--@ above@
level@ > capacity@
--@ price@

--@ credit@
level@ = math.max(0, level@ + count * cost@)
if level@ == 0 then
  --@ fresh@
end
--@ fresh@
begin@, level@ = now, 0
if start@ >= 0 then begin@ = now - (now - start@) % span@ end
ends@ = begin@ + span@
--@ empty@
  --@ fresh@
level@ = capacity@
--@ level@
level@ = used@
if ends@ <= now or level@ == 0 then
  --@ fresh@
end
--@ back@
if level@ == 0 then
  --@ fresh@
else
  begin@, ends@ = math.max(0, begin@ - back), math.max(0, ends@ - back)
end
--@ store@
-- Another revision may have started a shorter window.
if level@ == 0 then
  ends@ = 0
elseif start@ >= 0 then
  ends@ = math.max(ends@, now - (now - start@) % span@ + span@)
else
  ends@ = math.max(ends@, begin@ + span@)
end
used@ = level@
--@ adopt@
if #numbers == 0 and #cells == 24 then
  ends@, used@, begin@ = read('>ddd', cells)
  --@ level@
else
  found = '-'
end
