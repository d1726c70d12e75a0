-- What a token bucket does when it finds a value in the short form above its capacity: sections besides
-- those of token_bucket.lua.
--
-- Such a value does not say when it was written. It may be what a revision with a larger burst has used.
-- Or the clock has stepped back, and it is hardly more than was used before. So the bucket is taken to
-- be empty now, and the rest is doubted. It still counts for a revision with a larger burst, and it is
-- written down when the bucket was empty, so that the same is known later, and to all revisions.
--
-- It is written at once, also by a denied check. From then on every revision takes the bucket to have been empty
-- at that time, whatever its rate, its capacity and its other quotas, unless one whose capacity is above the debt
-- takes permits: that one has no doubt. All permits that are taken add to the debt too, so a larger burst still
-- sees all that was used, and what all revisions admit is within the largest quota. A revision without a token
-- bucket keeps the two entries, the second one with the time at which it found the value. The memory store, whose
-- clock does not step back, believes every debt. See tests/it/clock_steps.rs and exact.rs.
--
-- Entry    of the same identity as the bucket, whose time includes what is doubted, and tag 6: no numbers;
--          in the cells the time at which the bucket is full, the time at which a bucket of any capacity
--          was empty, or will be, in whole microseconds, and the ticks after it.

--@ doubt@
local since, empty, rest = by_id[entry.id + 5]
if since and #since.cells == 24 then empty, rest = read('>dd', since.cells, 9) end
if empty and empty >= 0 and empty % 1 == 0 and empty - now <= MAX_TICKS and rest >= 0 and rest % 1 == 0 and level@ <= MAX_TICKS then
  -- In ticks of the value, because until the next charge the bucket refills at that rate.
  local most = math.max(0, capacity@ / (1 PRICE) * theirs + (empty - now) * scale + rest)
  if level@ > most then
    doubted = doubted or {}
    doubted[@], level@ = at_own_rate(level@) - at_own_rate(most), most
    if form ~= 1 then doubted.found = entries end
  end
end
--@ keep_doubt@
if doubted and doubted[@] and found ~= '-' then
  --@ id@
  local rest = (level@ - capacity@) % (1 SCALE)
  local empty = now + (level@ - capacity@ - rest) / (1 SCALE)
  level@ = math.min(level@ + doubted[@], MAX_TICKS)
  local last = now + math.ceil(level@ / (1 SCALE))
  --@ more
  more.count, more.till = more.count + 1, math.max(more.till, last)
  more.heads = more.heads .. struct.pack('>I4BBI2', more.id or id@, 6, 0, 24)
  -- Early in 1970 there is no such time.
  more.cells = more.cells .. struct.pack('>ddd', last, math.max(0, empty), rest)
end
--@ note_doubt@
if doubted and doubted[@] and doubted.found then
  local bucket, since = doubted.found[1], doubted.found[2]
  local value = '\1\2\0' .. bucket.head .. since.head .. struct.pack('>d', now) .. bucket.cells .. since.cells
  saved = pcall('SET', key, value, 'KEEPTTL', 'GET')
end
