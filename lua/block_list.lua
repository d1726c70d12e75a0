-- The keys that are blocked for a time, in all processes.
--
-- KEYS[1]  a sorted set: each key by the time at which its block ends, in milliseconds since 1970
-- ARGV     `block`, a key, for how many milliseconds, and the largest number of keys;
--          or `unblock` and a key; or `list`
-- Returns  the keys that are blocked now, each followed by the milliseconds that remain
-- Errors   FLEETLIMIT_FULL: there are that many keys already

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local removed = redis.pcall('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now))
if type(removed) == 'table' then
  if not string.match(removed.err, '^WRONGTYPE') then
    return removed
  end
  -- Otherwise nobody could block a key. There is no list in it.
  redis.call('DEL', KEYS[1])
end
if ARGV[1] == 'block' then
  local is_new = not redis.call('ZSCORE', KEYS[1], ARGV[2])
  if is_new and redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[4]) then
    return redis.error_reply('FLEETLIMIT_FULL too many keys are blocked')
  end
  redis.call('ZADD', KEYS[1], string.format('%.0f', now + ARGV[3]), ARGV[2])
elseif ARGV[1] == 'unblock' then
  redis.call('ZREM', KEYS[1], ARGV[2])
end

local list = redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')
if ARGV[1] ~= 'list' and #list > 0 then
  -- Redis writes some whole numbers with an exponent.
  redis.call('PEXPIREAT', KEYS[1], string.format('%.0f', list[#list]))
end
for i = 2, #list, 2 do
  list[i] = string.format('%.0f', list[i] - now)
end
return list
