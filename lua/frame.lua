-- Decides checks of many callers under one policy, each exactly as if it had come alone.
--
-- KEYS    the callers' buckets: one key each, no two the same.
-- ARGV    the quota's numbers (see the fragment), then for each key its checks in their order: a
--         cost, or runs of equal costs as "count:cost,count:cost,...". None at all means a check
--         of cost 1 for each key.
-- Returns for each key the debt in ticks that its checks met: 0 for a full bucket; -1 for a value
--         that no run of this policy could have left, or that had no TTL (its checks met an empty
--         bucket, which is written back); or the text of an error, which is that key's alone.
--         One key's comes by itself, without a table, which the server takes longer to send.
--
-- A tick is what the fragment counts in; a bucket's debt is the ticks until it is full. All numbers
-- are whole and below 2^53, where Lua's are exact. They are made into text by %d, never by
-- tostring or `..`, which keep 14 digits.
local pcall, tonumber, format, sub = redis.pcall, tonumber, string.format, string.sub
local keys, arguments = KEYS, ARGV
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
--@ params
-- MGET does not tell a key of the wrong type, or one that may not be read, from one that is not
-- there; and it may not be allowed itself, of which the error has no values.
local values = #keys > 1 and pcall('MGET', unpack(keys))
for i = 1, #keys do
  local key = keys[i]
  local value = values and values[i] or pcall('GET', key)
  local found, debt = 0, 0
  -- A string has no `err` either.
  if value and value.err then
    found = value.err
  else
    if value then
      --@ load
      -- Put so that a NaN fails it too.
      if not (at and at >= 0 and at % 1 == 0 and debt <= capacity) then
        found, debt = -1, capacity
      elseif debt > 0 then
        found = debt
      else
        debt = 0
      end
    end
    local before = debt
    local checks = arguments[PARAMS + i]
    local cost = not checks and 1 or tonumber(checks)
    if cost then
      local after = debt + cost * permit
      if after <= capacity then debt = after end
    else
      for count, each in string.gmatch(checks, '(%d+):(%d+)') do
        each = each * permit
        if each > 0 then
          debt = debt + math.min(count, math.floor((capacity - debt) / each)) * each
        end
      end
    end
    if value and debt == before and found >= 0 and pcall('PTTL', key) == -1 then
      found, debt = -1, capacity
    end
    if debt > before or found == -1 then
      -- With GET it answers the string that it replaces: a status would be a table.
      --@ save
      if saved and saved.err then found = saved.err end
    end
  end
  -- A key gives way to its reply, which spares a table.
  keys[i] = found
end
return #keys > 1 and keys or keys[1]
