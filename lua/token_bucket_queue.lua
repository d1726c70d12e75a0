-- A token bucket with a queue: the sections that differ from those of token_bucket.lua.
--
-- Numbers  as there, and the refill time of the whole bucket plus the longest wait in the queue.

--@ numbers@
permit@, scale@, capacity@, ceiling@
--@ above@
level@ > ceiling@ or doubted
--@ waiting@
ceiling@
