-- The time after the last heartbeat at which a runner counts as OFFLINE; NULL: 30 s. An idle runner sends few
-- heartbeats, so that the warehouse can suspend.
ALTER TABLE POOL_WORKERS ADD COLUMN IF NOT EXISTS STALE_SECONDS NUMBER(38,0);
