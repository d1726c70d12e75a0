-- A token bucket that gains permits at the end of each interval. Its level is the number of permits
-- that are missing.
--
-- Numbers  the permits per interval, the length of an interval in microseconds, and the permits that
--          the bucket holds.
-- Entry    the first two of the numbers; in the cells the time at which the bucket is full, the
--          permits that are missing, and the time of the next refill.

--@ numbers@
permits@, interval@, capacity@
--@ cells@
full@, missing@, refill@
--@ valid@
level@ >= 0 and level@ % 1 == 0 and level@ <= MAX_TICKS and refill@ >= 0 and full@ - now <= MAX_TICKS and refill@ - now <= MAX_TICKS
--@ above@
level@ > capacity@
--@ price@

--@ credit@
level@ = math.max(0, level@ + count * cost@)
if level@ == 0 then refill@ = now + interval@ end
--@ fresh@
full@, level@, refill@ = now, 0, now + interval@
--@ empty@
level@, refill@ = capacity@, now + interval@
--@ level@
do
  local permits, interval = permits@, interval@
  --@ refill@
end
--@ refill@
level@ = missing@
if refill@ <= now then
  local refills = math.floor((now - refill@) / interval) + 1
  level@, refill@ = math.max(0, level@ - refills * permits), refill@ + refills * interval
end
if level@ == 0 then refill@ = now + interval@ end
--@ back@
refill@ = refill@ - back
--@ store@
missing@ = level@
full@ = level@ == 0 and now or refill@ + (math.ceil(level@ / permits@) - 1) * interval@
--@ adopt@
local permits, interval = 0, 0
if #numbers == 16 and #cells == 24 then
  permits, interval = read('>dd', numbers)
  full@, missing@, refill@ = read('>ddd', cells)
end
if permits >= 1 and interval >= 1 then
  --@ refill@
  -- What refills later than that is as good as any other debt.
  level@ = math.min(level@, permits@ * math.floor(MAX_TICKS / interval@), MAX_TICKS)
  -- The bucket has gained as much of the next refill as before, but not more than one refill.
  if level@ > 0 and (interval ~= interval@ or permits ~= permits@) then
    local elapsed = math.max(0, interval - (refill@ - now)) * (permits / permits@ * (interval@ / interval))
    refill@ = now + math.max(math.ceil(interval@ - elapsed), 1)
  end
else
  found = '-'
end
