-- Decides checks of many callers under one policy, each exactly as if it had come alone.
--
-- KEYS    the callers' buckets: one key each.
-- ARGV    the quota's numbers (see the piece), then for each key its checks in their order:
--         a cost, or runs of equal costs as "count:cost,count:cost,...".
-- Returns { now, found, found, ... }: the time in microseconds, and for each key the debt in ticks
--         that its checks met: 0 for a full bucket, -1 for a value that no run of this policy
--         could have left (its checks met an empty bucket, which is written back), or the text of
--         an error, which is that key's alone.
-- Numbers are whole and below 2^53, where Lua's are exact. They are never made into text by
-- tostring or `..`, which keep 14 digits.
local pcall, type, tonumber, floor, ceil, min = redis.pcall, type, tonumber, math.floor, math.ceil, math.min
local format, match, gmatch = string.format, string.match, string.gmatch
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local reply = { now }
--@ numbers
for i = 1, #KEYS do
  local key = KEYS[i]
  local value = pcall('GET', key)
  local debt, broken, failed = 0, false, nil
  if type(value) == 'table' then
    failed = value.err
  elseif value then
    --@ load
    -- Written so that a NaN fails it too.
    if not (at and at >= 0 and at % 1 == 0 and debt <= capacity) then
      broken, debt = true, capacity
    elseif debt < 0 then
      debt = 0
    end
  end
  if not failed then
    local found = debt
    local checks = ARGV[NUMBERS + i]
    local cost = tonumber(checks)
    if cost then
      cost = cost * permit
      if debt + cost <= capacity then debt = debt + cost end
    else
      for count, each in gmatch(checks, '(%d+):(%d+)') do
        each = each * permit
        if each > 0 then debt = debt + min(tonumber(count), floor((capacity - debt) / each)) * each end
      end
    end
    if value and debt == found and not broken and pcall('PTTL', key) == -1 then
      broken, debt = true, capacity
    end
    if broken or debt > found then
      --@ save
      local saved = pcall('SET', key, value, 'PXAT', format('%.0f', ceil((now + debt / scale) / 1000)))
      failed = saved.err
    end
    reply[i + 1] = failed or (broken and -1 or found)
  else
    reply[i + 1] = failed
  end
end
return reply
