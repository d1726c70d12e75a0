-- The instances that divide limits while Redis fails, and the plan by which they divide them.
--
-- KEYS[1]  a hash. Each instance has a field: the time of its last registration, its weight, and the
--          number of the latest plan that it knows. `plan` and `agreed` list instances and weights.
--          `state` has their numbers, and the times of the first registration (or of the first after
--          nobody could register), of the last plan that followed the demand, and of the last scan of all
--          instances.
-- ARGV     the instance, its weight (0: it leaves), the number of the latest plan that it knows, and
--          the milliseconds after which an instance of a small fleet counts as gone
-- Returns  the numbers of the latest and the agreed plan, and both plans
-- Errors   FLEETLIMIT_FULL: there are more instances than a plan may have
--
-- A plan is agreed once all instances know it. Until then each uses the least of what the latest and the
-- agreed one say. So a plan that follows the demand moves at most a quarter of the limits, and one for
-- other instances moves nothing among the rest. Scanning a large fleet takes a while, so not every call
-- scans it.

local STATE, ENTRY = '^(%d+) (%d+) (%d+) (%d+) (%d+)$', '^(%d+) (%d+) (%d+)$'
local MOST_INSTANCES, LONGEST = 10000, 300000
-- In place of a plan that would be too large.
local FULL = 'FLEETLIMIT_FULL more than ' .. MOST_INSTANCES .. ' instances share the limits'

local id, weight, known, gone_after = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function parse_numbers(text, pattern)
  local found = {string.match(text or '', pattern)}
  for index = 1, #found do
    found[index] = tonumber(found[index])
    if found[index] > 2^53 then
      return nil
    end
  end
  return (table.unpack or unpack)(found)
end
local function is_weight(number)
  return number and number >= 1 and number <= 1e9
end
local function is_id(text)
  return string.match(text, '^%d+$') and #text < 20
end
local function parse(plan)
  local weights, is_valid = {}, true
  local rest = string.gsub(plan == '' and '' or plan .. ' ', '(%d+) (%d+) ', function(other, planned)
    weights[other] = tonumber(planned)
    is_valid = is_valid and is_id(other) and is_weight(weights[other])
    return ''
  end)
  return is_valid and rest == '' and weights or nil
end
local function list(ids, weights)
  local text = {}
  for n, other in ipairs(ids) do
    text[n] = other .. ' ' .. string.format('%d', weights[other])
  end
  return table.concat(text, ' ')
end

local found = redis.pcall('HMGET', KEYS[1], 'state', 'plan', 'agreed', id)
if found.err and not string.match(found.err, '^WRONGTYPE') then
  return found
end
local number, agreed_number, created, planned_at, scanned_at = parse_numbers(found[1], STATE)
local plan, agreed = found[2] or '', found[3] or ''
if not scanned_at then
  -- An instance may know a plan of a fleet that Redis has forgotten. Above 2^52 it is none that a fleet made.
  redis.call('DEL', KEYS[1])
  known = known <= 2^52 and known or 0
  number, agreed_number, created, planned_at, plan, agreed = known, known, now, now, '', ''
end
-- It may know the plans that a promoted replica has missed, but not a million. Otherwise one wrong reply to one
-- instance could raise the number beyond what Lua can count.
if known > number + 1e6 then
  known = 0
end
if weight > 0 then
  redis.call('HSET', KEYS[1], id, string.format('%.0f %.0f %.0f', now, weight, known))
else
  redis.call('HDEL', KEYS[1], id)
end
-- A time in the future means that the clock has been set back since.
local scan_interval = plan == FULL and 10000 or math.min(#plan / 50, 250)
local is_due = not scanned_at or math.abs(now - scanned_at) >= scan_interval
if not is_due and weight > 0 and found[4] and known <= number then
  return plan == FULL and redis.error_reply(FULL) or {number, agreed_number, plan, agreed}
end

local instances, registered, stale_fields = {}, {}, {}
local fields = redis.call('HGETALL', KEYS[1])
for index = 1, #fields, 2 do
  local name, entry = fields[index], {parse_numbers(fields[index + 1], ENTRY)}
  if is_id(name) and is_weight(entry[2]) then
    instances[name], registered[#registered + 1] = entry, name
  elseif name ~= 'state' and name ~= 'plan' and name ~= 'agreed' then
    stale_fields[#stale_fields + 1] = name
  end
end
-- Large fleets register less often, but not without limit.
gone_after = math.min(math.max(gone_after, 100 * #registered), LONGEST)
-- The order of `pairs` differs between servers, and that of fields between copies of a hash.
table.sort(registered)
local ids = {}
for _, other in ipairs(registered) do
  if math.abs(now - instances[other][1]) > gone_after then
    instances[other] = nil
    stale_fields[#stale_fields + 1] = other
  else
    ids[#ids + 1] = other
  end
end
for _, name in ipairs(stale_fields) do
  redis.call('HDEL', KEYS[1], name)
end

-- A replica that was promoted may not have had the latest plans, which instances know.
local weights = parse(plan)
local changes = known > number or not weights
number, weights = math.max(number, known), weights or {}

-- Demand is worth a new plan only if it has changed much, and not before the last one is agreed.
local may_move = number == agreed_number and math.abs(now - planned_at) > gone_after
local moves, planned, remaining, demand, distance = false, 0, 0, 0, 0
for other, weight in pairs(weights) do
  if instances[other] then
    planned, remaining = planned + weight, remaining + 1
  else
    weights[other], changes = nil, true
  end
end
for _, other in ipairs(ids) do
  local entry = instances[other]
  if not weights[other] then
    -- Nobody knows its demand yet.
    weights[other] = remaining > 0 and math.floor(planned / remaining + 0.5) or entry[2]
    changes = true
  end
  moves = moves or may_move and math.abs(entry[2] - weights[other]) > math.max(entry[2], weights[other]) / 4
  demand = demand + entry[2]
end
if moves and not changes then
  planned_at = now
  for _, other in ipairs(ids) do
    distance = distance + math.abs(weights[other] / planned - instances[other][2] / demand) / 2
  end
  for _, other in ipairs(ids) do
    local share = weights[other] / planned
    share = share + (instances[other][2] / demand - share) * math.min(1, 0.25 / distance)
    weights[other] = math.min(math.max(1, math.floor(share * demand + 0.5)), 1e9)
  end
end
if #ids > MOST_INSTANCES then
  plan = FULL
elseif changes or moves then
  number, plan = number + 1, list(ids, weights)
end

-- If Redis has forgotten the fleet, or nobody could register, the others need some time to return.
if scanned_at and math.abs(now - scanned_at) > gone_after / 2 then
  created = now
end
local all_know = plan ~= FULL and math.abs(now - created) > gone_after / 2
for _, entry in pairs(instances) do
  all_know = all_know and entry[3] == number
end
if all_know then
  agreed, agreed_number = plan, number
elseif not parse(agreed) then
  agreed = ''
end

local state = string.format('%.0f %.0f %.0f %.0f %.0f', number, agreed_number, created, planned_at, now)
redis.call('HSET', KEYS[1], 'state', state, 'plan', plan, 'agreed', agreed)
redis.call('PEXPIRE', KEYS[1], gone_after * 2)
return plan == FULL and redis.error_reply(FULL) or {number, agreed_number, plan, agreed}
