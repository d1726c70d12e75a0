-- Reads and writes the values of keys that revisions of the policy with other quotas use, or with another
-- rate. Entries of other quotas are kept until their time is over. So quotas can be added and removed while
-- several revisions are in use. If an algorithm changes, each revision keeps its own entry, and starts
-- full.
--
-- If the clock has stepped back since a packed value was written, the times in it move too: the levels are those
-- at which it was written. It is written again, also by a denied check, because otherwise each check would find
-- the same. Quotas that only other revisions have are dropped then.
--
-- A token bucket that is the only quota of its policy is stored without its identity: in the short form,
-- or with identity 0. It gets the identity of its owner, the first token bucket of the same rate or, if
-- there is none, the first token bucket of the reader. If the owner has an entry already, nobody reads the
-- other. A reader without a token bucket keeps it as it is.

--@ other
local pack, read = struct.pack, struct.unpack
local entries, by_id, mine = {}, {}, {}
local form, count, first = string.byte(value, 1, 2)
till = 0
if form == 1 and count then
  binary = true
  first = 4
  for n = 1, count do
    if first + 7 > #value then break end
    local id, tag, size, cells = read('>I4BBI2', value, first)
    local last = first + 7 + size
    local numbers = sub(value, first + 8, last)
    entries[n] = { id = id, tag = tag, head = sub(value, first, last), numbers = numbers, cells = cells }
    first = last + 1
  end
  if first + 7 <= #value then
    local written = read('>d', value, first)
    --@ rewind
  end
  first = first + 8
  for _, entry in ipairs(entries) do
    local last = first + entry.cells - 1
    entry.cells = sub(value, first, last)
    first = last + 1
  end
  if #entries < count or first ~= #value + 1 then found = '-' end
else
  local micros, digits, zeros = string.match(value, '^(%d+)(%d%d)(%d)$')
  if micros then
    local numbers = pack('>dd', (digits == '00' and 864 or digits) * 10 ^ zeros, 1)
    local head = pack('>I4BBI2', 0, 1, 16, 8) .. numbers
    local cells = pack('>d', micros - 1e3)
    entries[1] = { id = 0, tag = 1, head = head, numbers = numbers, cells = cells }
    -- It does not say when it was written: see doubt.lua.
    head, cells = pack('>I4BBI2', 0, 6, 0, 24), cells .. pack('>dd', now, 0)
    entries[2] = { id = 0, tag = 6, head = head, cells = cells }
  else
    found = '-'
  end
end
for n = #entries, 1, -1 do
  local entry = entries[n]
  entry.id = entry.id * 256 + entry.tag
  by_id[entry.id] = entry
end
local owner, has_rate
  --@ owner@
if owner and not by_id[owner] then by_id[owner] = by_id[1] end
  --@ entry@
if found ~= '-' then
  --@ more
  local has_identities = false
  for _, entry in ipairs(entries) do
    local last = #entry.cells >= 8 and read('>d', entry.cells) or 0
    -- A bucket may have ticks after its last microsecond.
    local has_ticks = entry.tag == 1 and #entry.cells == 16 and read('>d', entry.cells, 9) > 0
    local is_live = last > now or last == now and has_ticks
    -- A value that is only left because its key has not expired yet is as good as none.
    has_identities = has_identities or entry.id >= 256 and is_live
    if not mine[entry.id] and not back and is_live and last <= 2 * MAX_TICKS and more.count + 2 * QUOTAS < 254 then
      more.count, more.till = more.count + 1, math.max(more.till, last)
      more.heads, more.cells = more.heads .. entry.head, more.cells .. entry.cells
    end
  end
  if has_identities or more.count > 0 then more.id = nil else more = nil end
end
--@ rewind
-- A time that no script has written must not become that of the other keys.
if not (written >= 0 and written % 1 == 0 and written <= 2 * MAX_TICKS) then
  found = '-'
elseif written > now then
  back, now = written - now, written
end
--@ more
-- The entries of other quotas, and the identity that is written for a token bucket if it is not its own.
more = more or { id = UNNAMED, count = 0, heads = '', cells = '', till = 0 }
--@ entry@
-- Entries are found by identity and algorithm, so that a revision with another algorithm keeps its own.
do
  --@ id@
  local entry = by_id[id@ * 256 + TAG]
  mine[id@ * 256 + TAG] = true
  if entry then
    local numbers, cells = entry.numbers, entry.cells
    --@ adopt@
    if found ~= '-' then till = math.max(till, read('>d', cells)) end
  else
    --@ fresh@
  end
end
--@ save_more
  --@ first_id
local heads = '\1' .. string.char(QUOTAS + more.count) .. sub(header, 3, 3)
heads = heads .. pack('>I4', more.id or id1) .. sub(header, 8) .. more.heads
local last = math.max(TILL, more.till)
local expiry = format('%d', (last - last % granule + granule) / 1000)
saved = pcall('SET', key, heads .. pack(cell_format, now, CELLS) .. more.cells, 'PXAT', expiry, 'GET')
