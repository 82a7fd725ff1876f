-- How long after its last heartbeat a runner counts as gone; NULL: 30 s. An idle runner beats rarely, so that the
-- warehouse suspends itself.
ALTER TABLE POOL_WORKERS ADD COLUMN IF NOT EXISTS STALE_SECONDS NUMBER(38,0);
