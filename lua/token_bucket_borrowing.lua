-- A token bucket that lends permits: the sections that differ from those of token_bucket.lua.
--
-- Numbers  as there, and the refill time of the whole bucket and of all permits that it lends.

--@ numbers@
permit@, scale@, capacity@, ceiling@
--@ above@
level@ > ceiling@ or doubted
--@ fits@
level@ <= capacity@ - permit@ and level@ + cost * permit@ <= ceiling@
--@ count@
if cost@ > 0 then
  local price = cost@ * permit@
  -- All but the last check leave a permit.
  local before_last = math.floor((capacity@ - permit@ - level@) / price)
  count = math.min(count, before_last + 1, math.floor((ceiling@ - level@) / price))
elseif later and level@ > capacity@ - permit@ then
  count = 0
end
--@ end@
cost@
