-- A fixed window. Its level is the number of permits used in the window.
--
-- Numbers  the permits per window; the length of a window in microseconds; and the start of any
--          window in microseconds since 1970, or -1 if a window starts with the first check.
-- Entry    no numbers; in the cells the end of the window, and the permits used.

--@ numbers@
capacity@, span@, start@
--@ cells@
ends@, used@
--@ valid@
level@ >= 0 and level@ % 1 == 0 and level@ <= MAX_TICKS and ends@ - now <= MAX_TICKS
--@ above@
level@ > capacity@
--@ price@

--@ fresh@
ends@, level@ = now + span@, 0
if start@ >= 0 then ends@ = ends@ - (now - start@) % span@ end
--@ empty@
  --@ fresh@
level@ = capacity@
--@ level@
level@ = used@
if ends@ <= now or level@ == 0 then
  --@ fresh@
end
--@ store@
if level@ == 0 then ends@ = 0 end
used@ = level@
--@ adopt@
if #numbers == 0 and #cells == 16 then
  ends@, used@ = read('>dd', cells)
  --@ level@
else
  found = '-'
end
