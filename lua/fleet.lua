-- The instances that divide limits while Redis fails, and the plan by which they divide them.
--
-- KEYS[1]  a JSON object: `instances` has the time of the last registration of each, its weight, and the
--          number of the latest plan that it knows; `plan` and `agreed` have the weights by instance;
--          `number` and `agreed_number` are their numbers; `created` and `planned` are the times of the
--          object and the plan
-- ARGV     the instance, its weight (0: it leaves), the number of the latest plan that it knows, and
--          the milliseconds after which an instance of a small fleet counts as gone
-- Returns  the two numbers, and both plans as lists of instances and weights.
--
-- A plan is agreed once all instances know it.

local id, weight, known, gone_after = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function is_whole(value, least, most)
  return type(value) == 'number' and value % 1 == 0 and value >= least and value <= most
end
local function are_weights(plan)
  for other, planned in pairs(plan) do
    if not string.match(other, '^%d+$') or not is_whole(planned, 1, 1e9) then
      return false
    end
  end
  return true
end
local function is_valid(fleet)
  for _, name in ipairs({'number', 'agreed_number', 'created', 'planned'}) do
    if not is_whole(fleet[name], 0, 2^53) then
      return false
    end
  end
  local weights = {}
  for other, entry in pairs(fleet.instances) do
    if not is_whole(entry[1], 0, 2^53) or not is_whole(entry[3], 0, 2^53) then
      return false
    end
    weights[other] = entry[2] or 0
  end
  return are_weights(weights) and are_weights(fleet.plan) and are_weights(fleet.agreed)
end

local ok, fleet = pcall(function()
  local found = cjson.decode(redis.call('GET', KEYS[1]))
  return is_valid(found) and found
end)
if not ok or not fleet then
  -- An instance may know a plan of a fleet that Redis has forgotten.
  fleet = {instances = {}, plan = {}, agreed = {}, number = known, agreed_number = known}
  fleet.created, fleet.planned = now, now
end

-- Large fleets register less often.
local count = 0
for _ in pairs(fleet.instances) do
  count = count + 1
end
gone_after = math.max(gone_after, 100 * count)

for other, entry in pairs(fleet.instances) do
  -- A time in the future is of a clock that has been set back since.
  if math.abs(now - entry[1]) > gone_after then
    fleet.instances[other] = nil
  end
end
if weight > 0 then
  fleet.instances[id] = {now, weight, known}
else
  fleet.instances[id] = nil
end

-- A replica that was promoted may not have had the latest plans, which instances know.
local changes = known > fleet.number
fleet.number = math.max(fleet.number, known)

-- Demand is worth a new plan only if it has changed much, and not before the last one is agreed.
local may_move = fleet.number == fleet.agreed_number and math.abs(now - fleet.planned) > gone_after
for other, entry in pairs(fleet.instances) do
  local planned = fleet.plan[other]
  local moves = planned and math.abs(entry[2] - planned) > math.max(entry[2], planned) / 4
  changes = changes or not planned or (may_move and moves)
end
for other in pairs(fleet.plan) do
  changes = changes or not fleet.instances[other]
end
if changes then
  fleet.number, fleet.planned, fleet.plan = fleet.number + 1, now, {}
  for other, entry in pairs(fleet.instances) do
    fleet.plan[other] = entry[2]
  end
end

-- If Redis has forgotten the fleet, the others need some time to return.
local all_know = math.abs(now - fleet.created) > gone_after / 2
for _, entry in pairs(fleet.instances) do
  all_know = all_know and entry[3] == fleet.number
end
if all_know then
  fleet.agreed, fleet.agreed_number = fleet.plan, fleet.number
end

redis.call('SET', KEYS[1], cjson.encode(fleet), 'PX', gone_after * 2)

local function list(plan)
  local text = {}
  for other, planned in pairs(plan) do
    text[#text + 1] = other .. ' ' .. string.format('%d', planned)
  end
  return table.concat(text, ' ')
end
return {fleet.number, fleet.agreed_number, list(fleet.plan), list(fleet.agreed)}
