-- KEYS[1]: the key. ARGV: the limit, and the window in milliseconds.
local count = redis.call('INCR', KEYS[1])
if count == 1 then
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return count <= tonumber(ARGV[1]) and 1 or 0
