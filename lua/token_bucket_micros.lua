-- A token bucket whose ticks are microseconds, as most are: the sections that differ from those of
-- token_bucket.lua.
--
-- Entry    as there, without the ticks.

--@ cells@
full@
--@ scale@

--@ rate@
struct.pack('>dd', permit@, 1)
--@ waiting@
math.min(capacity@ + patience, MAX_TICKS)
--@ end@
now + level@
--@ fresh@
full@, level@ = now, 0
--@ level@
level@ = full@ - now
if level@ < 0 then level@ = 0 end
--@ store@
full@ = now + level@
