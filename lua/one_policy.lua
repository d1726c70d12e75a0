-- All keys belong to one policy.
--
-- ARGV    the numbers of the quota (see the fragment of the algorithm), then for each key its
--         checks. If these are left out, each key has one check of cost 1.

--@ once
  --@ params
--@ checks
local checks = arguments[PARAMS + i]
