-- The keys may belong to different policies.
--
-- ARGV    for each key the numbers of its quota (see the fragment of the algorithm), and then its
--         checks.

--@ each
  local first = (i - 1) * (PARAMS + 1)
  local arguments = { unpack(arguments, first + 1, first + PARAMS + 1) }
  --@ params
--@ checks
local checks = arguments[PARAMS + 1]
