-- KEYS[1]: the key. ARGV: tokens per second, the burst, and the cost.
local rate, burst, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local saved = redis.call('HMGET', KEYS[1], 'tokens', 'at')
local tokens, at = tonumber(saved[1]) or burst, tonumber(saved[2]) or now
tokens = math.min(burst, tokens + (now - at) * rate)
local allowed = tokens >= cost
if allowed then
    tokens = tokens - cost
end
redis.call('HSET', KEYS[1], 'tokens', tokens, 'at', now)
redis.call('EXPIRE', KEYS[1], math.ceil(burst / rate))
return allowed and 1 or 0
