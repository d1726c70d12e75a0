-- The value of several quotas, or of one for which short.lua has no form. All numbers are big-endian.
--
-- ARGV    the start of the value, which has the same bytes for all keys: everything before the cells;
--         and the numbers of each quota in order and the granule of the expiry in microseconds, as
--         doubles, and then the identities of the quotas (4 bytes each).
-- Value   1; the number of entries; and the logarithm of the granule in seconds (a byte each). Then
--         for each entry the identity of its quota (4 bytes; 0 for a token bucket that is the only
--         quota of its policy, see other.lua), the tag of its algorithm (1 byte), the bytes of its numbers (1 byte)
--         and of its cells (2 bytes), and the numbers that tell another revision how to read its
--         cells. Then the time in microseconds at which the value was written, and the cells of all
--         entries. Numbers and cells are doubles, except that a ring of bytes may follow the cells. The
--         first cell is the time in microseconds at which the quota is as if it had never been used.
-- Expiry  the end of the granule in which the last quota becomes so. A key that keeps its expiry is
--         changed in place (SETRANGE), which takes the server about half as long as SET. The granule is
--         a power of two in seconds, up to 1/16 of the time in which the slowest quota refills: with a
--         daily quota, each check would move the expiry by minutes. It is part of the value, so that
--         revisions with other granules do not overestimate how long the key lives. Three token buckets
--         in a key take the server about 1.2 times the CPU of one; with SET alone it was 1.47 times.

--@ params
local pack, read = struct.pack, struct.unpack
local header = arguments[1]
local NUMBERS, granule = read('NUMBER_FORMAT', arguments[2])
local cell_format, own_format, cell_bytes = CELL_FORMAT, OWN_FORMAT, CELL_BYTES
--@ load
  --@ prepare@
if #value == #header + cell_bytes and sub(value, 1, #header) == header then
  own, binary = true, true
  local written
  written, OWN_CELLS = read(own_format, value, #header + 1)
  till = TILL
  --@ rewind
  --@ level@
else
  --@ other
end
--@ id@
local id@ = read('>I4', arguments[2], IDENTITY)
--@ first_id
local id1 = read('>I4', arguments[2], FIRST_NAME)
--@ save
  --@ store@
if more then
  --@ save_more
else
  local last = TILL
  local expiry = last - last % granule + granule
  if not (
    own and found ~= '-'
    and till - till % granule + granule == expiry
    and tonumber(pcall('SETRANGE', key, #header, CHANGED))
  ) then
    --@ read_ring@
    local cells = pack(cell_format, now, CELLS)
    saved = pcall('SET', key, header .. cells, 'PXAT', format('%d', expiry / 1000), 'GET')
  end
end
