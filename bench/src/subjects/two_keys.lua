-- A token bucket in two keys, with the commands and the arithmetic of Spring Cloud Gateway's
-- request_rate_limiter.lua: the clock, two reads, two writes, whole seconds.
local rate, capacity, requested = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[4])
local now = tonumber(ARGV[3])
if now == nil then
  now = redis.call('TIME')[1]
end
local ttl = math.floor(capacity / rate * 2)

local tokens = tonumber(redis.call('GET', KEYS[1]))
if tokens == nil then
  tokens = capacity
end
local refreshed = tonumber(redis.call('GET', KEYS[2]))
if refreshed == nil then
  refreshed = 0
end

local filled = math.min(capacity, tokens + math.max(0, now - refreshed) * rate)
local allowed = filled >= requested
local left, verdict = filled, 0
if allowed then
  left = filled - requested
  verdict = 1
end
if ttl > 0 then
  redis.call('SETEX', KEYS[1], ttl, left)
  redis.call('SETEX', KEYS[2], ttl, now)
end
return { verdict, left }
