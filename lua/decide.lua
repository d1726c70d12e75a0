-- Decides the checks of a key in order. Each is charged to all quotas, or to none.

--@ decide
local cost = not checks and 1 or tonumber(checks)
if cost then
  cost = cost + 0.0
  if cost > 0 and FITS then
    changed = true
    --@ charge@
  end
else
  local is_last, most
  for kind, count, COSTS, patience in string.gmatch(checks, 'PATTERN') do
    count = count + 0.0
    --@ cost@
    local waits, later
    if kind ~= '' then
      -- These may need the time.
      level = nil
      waits, later = sub(kind, 1, 1) == '~', sub(kind, -1) == '!'
    end
    if kind == '+' or kind == '-' and is_last then
      -- A key that was never used has nothing to give back.
      if value or changed or ANY_COST then
        changed = true
        --@ adjust@
      end
    elseif kind == '#' then
      changed = true
      --@ hold@
    elseif kind == '*' then
      most = { COSTS }
    elseif kind == '<' then
      is_last = now <= count
    elseif kind == '=' then
      is_last = true
      --@ compare@
    elseif kind ~= '-' then
      patience = waits and patience + 0.0
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
cost@ = cost@ + 0.0
--@ count@
if cost@ > 0 then
  count = math.min(count, math.floor(((waits and WAITING or capacity@) - level@) / (cost@ PRICE)))
elseif later and level@ + 1 PRICE > capacity@ then
  count = 0
end
--@ compare@
if cost@ > 0 and cost@ ~= END then is_last = false end
--@ waiting@
capacity@
--@ end@
cost@
--@ charge_run@
level@ = level@ + count * cost@ PRICE
--@ adjust@
if cost@ > 0 then
  local room = math.max(0, math.floor((most[@] PRICE - level@) / (1 PRICE)))
  level@ = level@ + math.min(count * cost@, room) PRICE
elseif cost@ < 0 then
  --@ credit@
end
--@ credit@
level@ = math.max(0, level@ + count * cost@)
