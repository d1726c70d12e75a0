-- A token bucket that lends permits: the sections that differ from those of token_bucket.lua.
--
-- Numbers  as there, and the refill time of the whole bucket and of all permits that it lends.

--@ numbers@
permit@, scale@, capacity@, ceiling@
--@ above@
level@ > ceiling@
--@ fits@
level@ <= capacity@ - permit@ and level@ + cost * permit@ <= ceiling@
--@ count@
cost@ = cost@ * permit@
if cost@ > 0 then
  -- All but the last check leave a permit.
  local before_last = math.floor((capacity@ - permit@ - level@) / cost@)
  count = math.min(count, before_last + 1, math.floor((ceiling@ - level@) / cost@))
end
