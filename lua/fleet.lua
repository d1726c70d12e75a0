-- The instances that divide limits while Redis fails, and the plan by which they divide them.
--
-- KEYS[1]  a JSON object: `instances` has the time at which each was seen last, its weight, and the
--          number of the latest plan that it knows; `plan` and `agreed` have the weights by instance;
--          `number` and `agreed_number` are their numbers
-- ARGV     the instance, its weight (0: it leaves), the number of the latest plan that it knows, and
--          the milliseconds after which an instance counts as gone
-- Returns  the two numbers, and both plans as lists of instances and weights.
--
-- A plan is agreed once all instances know it.

local id, weight, known, gone_after = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local ok, fleet = pcall(function() return cjson.decode(redis.call('GET', KEYS[1])) end)
if not ok or type(fleet) ~= 'table' or type(fleet.instances) ~= 'table' or type(fleet.plan) ~= 'table'
  or type(fleet.agreed) ~= 'table' or type(fleet.number) ~= 'number'
  or type(fleet.agreed_number) ~= 'number' then
  -- An instance may know a plan of a fleet that Redis has forgotten.
  fleet = {instances = {}, plan = {}, agreed = {}, number = known, agreed_number = known}
end

local function are_numbers(...)
  for _, value in ipairs({...}) do
    if type(value) ~= 'number' then
      return false
    end
  end
  return true
end
for other, seen in pairs(fleet.instances) do
  -- A time in the future is of a clock that has been set back since.
  if type(seen) ~= 'table' or #seen ~= 3 or not are_numbers(unpack(seen))
    or math.abs(now - seen[1]) > gone_after then
    fleet.instances[other] = nil
  end
end
for _, plan in ipairs({fleet.plan, fleet.agreed}) do
  for other, planned in pairs(plan) do
    if not are_numbers(planned) then
      plan[other] = nil
    end
  end
end
if weight > 0 then
  fleet.instances[id] = {now, weight, known}
else
  fleet.instances[id] = nil
end

local changes = false
for other, seen in pairs(fleet.instances) do
  local planned = fleet.plan[other]
  -- Small changes of the demand are not worth a plan.
  changes = changes or not planned or math.abs(seen[2] - planned) > math.max(seen[2], planned) / 4
end
for other in pairs(fleet.plan) do
  changes = changes or not fleet.instances[other]
end
if changes then
  fleet.number = fleet.number + 1
  fleet.plan = {}
  for other, seen in pairs(fleet.instances) do
    fleet.plan[other] = seen[2]
  end
end

local all_know = true
for _, seen in pairs(fleet.instances) do
  all_know = all_know and seen[3] == fleet.number
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
