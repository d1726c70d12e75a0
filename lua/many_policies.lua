-- Each key may be of another policy.
--
-- ARGV    for each key the numbers of its quota (see the fragment of the algorithm), then its checks.

--@ each
  local first = (i - 1) * (PARAMS + 1)
  local arguments = { unpack(arguments, first + 1, first + PARAMS + 1) }
  --@ params
--@ checks
local checks = arguments[PARAMS + 1]
