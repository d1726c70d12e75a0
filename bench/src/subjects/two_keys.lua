-- A token bucket in two keys. The commands and the arithmetic are those of Spring Cloud Gateway's
-- request_rate_limiter.lua: TIME, two reads, two writes, and a resolution of one second.
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
local remaining, allowed_flag = filled, 0
if allowed then
  remaining = filled - requested
  allowed_flag = 1
end
if ttl > 0 then
  redis.call('SETEX', KEYS[1], ttl, remaining)
  redis.call('SETEX', KEYS[2], ttl, now)
end
return { allowed_flag, remaining }
