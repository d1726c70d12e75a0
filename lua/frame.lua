-- Decides checks of many keys, each exactly as if it had been sent alone.
--
-- KEYS    the names of the keys, without duplicates.
-- ARGV    the numbers of the quotas (see one_policy.lua and many_policies.lua), and for each key its
--         checks in order: a cost, or runs of equal costs as "count:cost,count:cost,...". With
--         several quotas a run has a cost for each of them: "count:cost:cost,...". A run starts with
--         ! if it also needs a permit of each quota that it does not charge;
--         ~ if its checks may wait, with ; and how long at the end, in microseconds: so long for a token
--           bucket without a queue, and for its own longest wait with one;
--         + if it is charged without a check or, where costs are negative, given back: of token buckets
--           in ticks;
--         # if its numbers are the permits that the instance holds (0 of quotas whose permits are not held), and its
--           count is the number of the call;
--         * if its numbers are the most permits that may be in use after the charges that follow;
--         = if its numbers are the times at which the buckets are full, or 0, if nobody queues behind a
--           check. Then a run that starts with - gives back what that has taken;
--         < if its count is a time. Until then a run that starts with - gives back, and later not.
-- Returns for each key what its checks found: the value; "" if there was none; "-" if it was corrupt,
--         that is a value that no revision could have left, or a key without an expiry of which no
--         check is charged (the checks find that all quotas are used up, which is written back); or
--         "!" and the text of an error, which affects only that key. If the key holds another type, a
--         corrupt value replaces it. They are one string, because a table takes the client longer: the
--         time as "seconds microseconds ", and then what was found, separated by commas. If a
--         value is binary or a key failed, the reply is a table instead, of what was found and then the
--         time. From the value and the time the client computes the decisions. For a single key the
--         reply is never a table. In the short form it is an integer, which takes both sides less time,
--         if the level that the checks found is enough: if the value has the rate of the quota, or is
--         missing, and no run starts with a mark.
--
-- At the time of the call each quota is a level between 0 and its capacity. It exceeds the capacity
-- if a revision with a larger one wrote it. The form of the value (short.lua, packed.lua) reads and
-- writes the levels, with a fragment for the algorithm of each quota. In a fragment, @ is the number
-- of the quota. Words in capital letters are filled in when the script is assembled.
--
-- If a value was written later than now, the clock has stepped back. Then the levels are those at which it
-- was written, and it is written again, also if all checks are denied.
--
-- A fragment has these sections: the names of its numbers, which are the parameters of the quota, and of its
-- cells, which are the state of the quota in a value (numbers@, cells@, and maybe ring@); the level of an unused
-- and of a used up quota (fresh@, empty@); the level of own cells, and of those of another revision (level@,
-- adopt@); the cells of a level (store@); how these move with a clock that has stepped back (back@); what is
-- impossible (valid@), and what only another revision can have left (above@); what a permit adds to the level
-- (price@); what a # run changes (hold@); and in the packed form, what has to happen before a value is read
-- (prepare@). If this is not enough, it replaces sections of decide.lua, such as fits@ and count@.
--
-- A denied check does not change a valid key. It reads its expiry (PTTL), because a key without one would deny
-- forever. An allowed check sets the expiry in any case, and cached denials make other denied checks rare.
--
-- The expiry is a time (PXAT), not a duration (PX), which would count from the server's own reading of the
-- clock: that differs from the one that the script decided by. A time cannot disagree with the value.
--
-- All numbers are integers below 2^53, where Lua's numbers are exact. They are formatted with %d,
-- because tostring and `..` keep only 14 digits. Some servers have Lua 5.4, which distinguishes integers
-- from floats: integers overflow, floats print as 3.0, and %d refuses fractions. So what is read from a
-- text becomes a float (1e6, + 0.0), and nothing is rounded by a format. tests/it/lua_versions.rs runs each script
-- under Lua 5.1 to 5.4.

local tonumber, pcall, format, sub, time = tonumber
do
  -- A global takes longer to look up than a local. Here they do not count towards Lua's limit of 200.
  local redis, string = redis, string
  pcall, format, sub = redis.pcall, string.format, string.sub
  time = redis.call('TIME')
end
local keys, arguments = KEYS, ARGV
local now, failed, binary, level = time[1] * 1e6 + time[2]
--@ once
-- MGET does not distinguish a missing key from one of the wrong type or without permission, so GET
-- reads these again. If MGET itself is not permitted, `values` is an error table without values.
local unpack = #keys > 1 and (table.unpack or unpack)
local values = unpack and pcall('MGET', unpack(keys))
for i = 1, #keys do
  local key = keys[i]
  --@ each
  local value = values and values[i] or pcall('GET', key)
  local found, changed, own, till, more, back, doubted = value or ''
  local LEVELS
  local CELLS
  -- Indexing a string is allowed: its `err` is nil.
  if value and value.err then
    found, failed = '!' .. value.err, true
    -- Otherwise all checks of the key would fail. The next one finds a corrupt value.
    if sub(found, 2, 10) == 'WRONGTYPE' then pcall('SET', key, '', 'PX', '60000') end
  else
    if value then
      --@ load
      if back then
        -- The levels are those of the time at which the value was written.
        now = time[1] * 1e6 + time[2]
        if found ~= '-' then
          --@ back@
        end
      end
      -- Written so that NaN fails the test.
      if found == '-' or not (VALID) then
        found = '-'
        --@ empty@
      end
    else
      --@ fresh@
    end
    --@ checks
    --@ level
    --@ decide
    if value and not changed and found ~= '-' then
      local ttl = pcall('PTTL', key)
      -- A level above the capacity is only believed if the key exists until it has fallen. On some
      -- servers the clock of expiries differs slightly from the script's, so up to two seconds are
      -- allowed.
      if ttl == -1 or (ABOVE) and tonumber(ttl) and till - now > ttl * 1e3 + 2e6 then
        found = '-'
        --@ empty@
      end
    end
    -- What SET replies. Its option GET makes that a string: a status reply would be a table.
    local saved
    if changed or found == '-' or back then
      --@ keep_doubt@
      --@ save
    else
      --@ note_doubt@
    end
    if saved and saved.err then found, failed = '!' .. saved.err, true end
  end
  -- Reuses the table of the keys for the results, because tables are expensive.
  keys[i] = found
end
-- A single concatenation creates one string. With `clock` there would be two.
if #keys == 1 then
  local found = keys[1]
  return failed and found or found ~= '-' and level or time[1] .. ' ' .. time[2] .. ' ' .. found
end
local clock = time[1] .. ' ' .. time[2] .. ' '
if not (failed or binary) then
  local text = table.concat(keys, ',')
  -- tonumber ignores what follows a NUL, so a corrupt value that passed for valid may have commas there.
  if not string.find(text, '\0', 1, true) then return clock .. text end
end
keys[#keys + 1] = clock
return keys
