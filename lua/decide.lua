-- Decides the checks of a key in order. Each is charged to all quotas, or to none.

--@ decide
local cost = not checks and 1 or tonumber(checks)
if cost then
  if cost > 0 and FITS then
    changed = true
    --@ charge@
  end
else
  for kind, count, COSTS in string.gmatch(checks, 'PATTERN') do
    count = count + 0
    --@ cost@
    if kind == '+' then
      -- A key that was never used has nothing to give back.
      if value or changed or ANY_COST then
        changed = true
        --@ adjust@
      end
    else
      --@ count@
      if count > 0 and (ANY_COST) then
        changed = true
        --@ charge_run@
      end
    end
  end
end
--@ fits@
level@ + cost PRICE <= capacity@
--@ charge@
level@ = level@ + cost PRICE
--@ cost@
cost@ = cost@ + 0
--@ count@
if cost@ > 0 then
  count = math.min(count, math.floor((capacity@ - level@) / (cost@ PRICE)))
elseif kind == '!' and level@ + 1 PRICE > capacity@ then
  count = 0
end
--@ charge_run@
level@ = level@ + count * cost@ PRICE
--@ adjust@
if cost@ > 0 then
  local room = math.max(0, math.floor((CEILING - level@) / (1 PRICE)))
  level@ = level@ + math.min(count * cost@, room) PRICE
elseif cost@ < 0 then
  --@ credit@
end
--@ credit@
level@ = math.max(0, level@ + count * cost@ PRICE)
--@ ceiling@
math.min(2 * capacity@, MAX_TICKS)
