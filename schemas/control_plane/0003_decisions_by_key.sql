-- Who wins is decided by the first INSERT of a key, never by the row count of an UPDATE: Snowflake does not document
-- what an UPDATE does that has waited for a row.

-- The end of an attempt, once: by its owner while its lease lasts, or LOST by a process that found the lease expired.
-- QUEUE_STATUS is what becomes of the queued run: QUEUED again from AVAILABLE_AT on, or an end. ATTEMPTS: that count.
CREATE HYBRID TABLE IF NOT EXISTS RUN_ATTEMPT_ENDS (
    QUEUE_ID      VARCHAR(36)   NOT NULL,
    EPOCH         NUMBER(38,0)  NOT NULL,
    STATUS        VARCHAR(20)   NOT NULL,
    QUEUE_STATUS  VARCHAR(20)   NOT NULL,
    RUN_ID        VARCHAR(36),
    EXIT_CODE     NUMBER(38,0),
    REASON        VARCHAR(2000),
    ATTEMPTS      NUMBER(38,0)  NOT NULL,
    AVAILABLE_AT  TIMESTAMP_NTZ NOT NULL,
    ENDED_AT      TIMESTAMP_NTZ NOT NULL,
    PRIMARY KEY (QUEUE_ID, EPOCH)
);

-- What users ask for: the end of a run (KIND RUN), or that a runner takes nothing new (RUNNER). The process that is
-- asked acts on it; no other writes to its row.
CREATE HYBRID TABLE IF NOT EXISTS STOP_REQUESTS (
    KIND          VARCHAR(10)   NOT NULL,
    ID            VARCHAR(100)  NOT NULL,
    REASON        VARCHAR(2000),
    REQUESTED_AT  TIMESTAMP_NTZ NOT NULL,
    PRIMARY KEY (KIND, ID)
);

-- Up to when the fires of a schedule are settled, and why it could not be fired. Written by schedulers only; the row in
-- SCHEDULES is written by users only.
CREATE HYBRID TABLE IF NOT EXISTS SCHEDULE_PROGRESS (
    SCHEDULE_ID   VARCHAR(36)   NOT NULL,
    LAST_FIRE_AT  TIMESTAMP_NTZ NOT NULL,
    REASON        VARCHAR(2000),
    UPDATED_AT    TIMESTAMP_NTZ NOT NULL,
    PRIMARY KEY (SCHEDULE_ID)
);

-- The lease of an attempt, extended by its owner, and how many attempts count with it.
ALTER TABLE RUN_ATTEMPTS ADD COLUMN IF NOT EXISTS EXPIRES_AT TIMESTAMP_NTZ;
ALTER TABLE RUN_ATTEMPTS ADD COLUMN IF NOT EXISTS ATTEMPTS NUMBER(38,0);

-- Predicates of polls: a state first, then what orders or narrows it. One of each table: Snowflake builds one at a time.
CREATE INDEX IF NOT EXISTS IDX_RUN_ATTEMPTS_OWNER ON RUN_ATTEMPTS (OWNER, QUEUE_ID);
CREATE INDEX IF NOT EXISTS IDX_RUN_QUEUE_POLL ON RUN_QUEUE (STATUS, AVAILABLE_AT, PRIORITY);
CREATE INDEX IF NOT EXISTS IDX_POOL_WORKERS_POLL ON POOL_WORKERS (STATUS, LAST_BEAT_AT);
CREATE INDEX IF NOT EXISTS IDX_SCHEDULE_FIRES_POLL ON SCHEDULE_FIRES (OUTCOME, FIRE_AT);

-- Attempts from before: how they ended, and the leases of those that have not.
UPDATE RUN_ATTEMPTS SET EXPIRES_AT = Q.AVAILABLE_AT, ATTEMPTS = Q.ATTEMPTS
FROM RUN_QUEUE Q WHERE Q.QUEUE_ID = RUN_ATTEMPTS.QUEUE_ID AND RUN_ATTEMPTS.EXPIRES_AT IS NULL AND RUN_ATTEMPTS.OWNER > '';
INSERT INTO RUN_ATTEMPT_ENDS (
    QUEUE_ID, EPOCH, STATUS, QUEUE_STATUS, RUN_ID, EXIT_CODE, REASON, ATTEMPTS, AVAILABLE_AT, ENDED_AT)
SELECT A.QUEUE_ID, A.EPOCH, IFF(A.STATUS = 'RUNNING', 'LOST', A.STATUS), IFF(Q.EPOCH > A.EPOCH, 'QUEUED', Q.STATUS),
       A.RUN_ID, A.EXIT_CODE, A.REASON, Q.ATTEMPTS, Q.AVAILABLE_AT, COALESCE(A.ENDED_AT, Q.UPDATED_AT)
FROM RUN_ATTEMPTS A JOIN RUN_QUEUE Q ON Q.QUEUE_ID = A.QUEUE_ID
    LEFT JOIN RUN_ATTEMPT_ENDS E ON E.QUEUE_ID = A.QUEUE_ID AND E.EPOCH = A.EPOCH
WHERE E.QUEUE_ID IS NULL AND A.OWNER > ''
  AND (Q.EPOCH > A.EPOCH OR (Q.EPOCH = A.EPOCH AND Q.STATUS <> 'RUNNING' AND Q.STATUS <> 'CANCEL_REQUESTED'));
