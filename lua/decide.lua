-- Decides the checks of a key in order. Each is charged to all quotas, or to none.

--@ decide
local cost = not checks and 1 or tonumber(checks)
if cost then
  if cost > 0 and FITS then
    changed = true
    --@ charge@
  end
else
  for count, COSTS in string.gmatch(checks, 'PATTERN') do
    count = count + 0
    --@ count@
    if count > 0 and (ANY_COST) then
      changed = true
      --@ charge_run@
    end
  end
end
--@ fits@
level@ + cost PRICE <= capacity@
--@ charge@
level@ = level@ + cost PRICE
--@ count@
cost@ = cost@ PRICE + 0
if cost@ > 0 then count = math.min(count, math.floor((capacity@ - level@) / cost@)) end
--@ charge_run@
level@ = level@ + count * cost@
