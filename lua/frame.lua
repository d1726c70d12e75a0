-- Decides checks of many keys, each exactly as if it had been sent alone.
--
-- KEYS    the names of the buckets, without duplicates.
-- ARGV    the numbers of the quotas (see one_policy.lua and many_policies.lua), and for each key its
--         checks in order: a cost, or runs of equal costs as "count:cost,count:cost,...".
-- Returns for each key what its checks found: the value; "" if there was none; "-" if it was corrupt,
--         that is a value that no revision could have left, or a key without an expiry (its checks
--         found an empty bucket, which is written back); or "!" and the text of an error, which
--         affects only that key. The last element is the time, as "seconds microseconds ". From the
--         value and the time the client computes the decisions. For a single key the reply is not a
--         table, which would take the server longer to send: it is the time and what was found in
--         one string, or the error.
--
-- The fragment defines the length of a tick. A bucket's debt is the number of ticks until it is
-- full. It exceeds the capacity if a revision with a larger one wrote it. All numbers are integers
-- below 2^53, where Lua's numbers are exact. They are formatted with %d, because tostring and `..`
-- keep only 14 digits.
local pcall, tonumber, format, sub = redis.pcall, tonumber, string.format, string.sub
local keys, arguments = KEYS, ARGV
local time = redis.call('TIME')
local now, failed = time[1] * 1000000 + time[2]
--@ once
-- MGET does not distinguish a missing key from one of the wrong type or without permission, so GET
-- reads these again. If MGET itself is not permitted, `values` is an error table without values.
local values = #keys > 1 and pcall('MGET', unpack(keys))
for i = 1, #keys do
  local key = keys[i]
  --@ each
  local value = values and values[i] or pcall('GET', key)
  local found, debt, at = value or '', 0
  -- Indexing a string is allowed: its `err` is nil.
  if value and value.err then
    found, failed = '!' .. value.err, true
  else
    if value then
      --@ load
      -- Written so that NaN fails the test.
      if not (at and at >= 0 and at % 1 == 0 and debt <= MAX_TICKS) then
        found, debt = '-', capacity
      elseif debt < 0 then
        debt = 0
      end
    end
    local before = debt
    --@ checks
    local cost = not checks and 1 or tonumber(checks)
    if cost then
      local after = debt + cost * permit
      if after <= capacity then debt = after end
    else
      for count, each in string.gmatch(checks, '(%d+):(%d+)') do
        each = each * permit
        if each > 0 and debt < capacity then
          debt = debt + math.min(count, math.floor((capacity - debt) / each)) * each
        end
      end
    end
    if value and debt == before and found ~= '-' then
      local ttl = pcall('PTTL', key)
      -- A debt above the capacity is only believed if the expiry agrees with it, to two seconds:
      -- the key may exist for a second longer than needed, and on some servers the clock of expiries
      -- differs slightly from the script's.
      if ttl == -1 or debt > capacity and tonumber(ttl) and math.abs(at - now - ttl * 1000) > 2000000 then
        found, debt = '-', capacity
      end
    end
    if debt > before or found == '-' then
      -- The option GET makes SET reply with a string. A status reply would be a table.
      --@ save
      if saved and saved.err then found, failed = '!' .. saved.err, true end
    end
  end
  -- Reuses the table of the keys for the results, because tables are expensive.
  keys[i] = found
end
if #keys == 1 then return failed and keys[1] or time[1] .. ' ' .. time[2] .. ' ' .. keys[1] end
keys[#keys + 1] = time[1] .. ' ' .. time[2] .. ' '
return keys
