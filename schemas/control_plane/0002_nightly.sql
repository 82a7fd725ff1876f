-- Unattended runs: a queue of runs, the runners that execute them, and schedules that fill the queue.

-- One row per queued run. AVAILABLE_AT has three meanings: the earliest start (QUEUED), the end of the pause before a
-- retry (QUEUED), the end of the lease of the owner (RUNNING, CANCEL_REQUESTED). After this time a runner may claim the
-- row. STATUS: QUEUED RUNNING COMPLETED FAILED CANCEL_REQUESTED CANCELLED EXHAUSTED. EPOCH counts claims: the fencing
-- token.
CREATE HYBRID TABLE IF NOT EXISTS RUN_QUEUE (
    QUEUE_ID         VARCHAR(36)   NOT NULL,
    IDEMPOTENCY_KEY  VARCHAR(200)  NOT NULL,
    NAME             VARCHAR(255)  NOT NULL,
    SCENARIO         VARCHAR       NOT NULL,
    FILES            VARCHAR       NOT NULL,
    CONNECTION       VARCHAR(255),
    TARGET           VARCHAR(200)  NOT NULL,
    REQUIRES         VARCHAR       NOT NULL,
    PRIORITY         NUMBER(38,0)  NOT NULL,
    STATUS           VARCHAR(20)   NOT NULL,
    AVAILABLE_AT     TIMESTAMP_NTZ NOT NULL,
    OWNER            VARCHAR(100),
    EPOCH            NUMBER(38,0)  NOT NULL,
    ATTEMPTS         NUMBER(38,0)  NOT NULL,
    MAX_ATTEMPTS     NUMBER(38,0)  NOT NULL,
    RUN_ID           VARCHAR(36),
    EXIT_CODE        NUMBER(38,0),
    REASON           VARCHAR(2000),
    CREATED_AT       TIMESTAMP_NTZ NOT NULL,
    ENDED_AT         TIMESTAMP_NTZ,
    UPDATED_AT       TIMESTAMP_NTZ NOT NULL,
    PRIMARY KEY (QUEUE_ID),
    UNIQUE (IDEMPOTENCY_KEY),
    INDEX IDX_RUN_QUEUE_STATUS (STATUS)
);

-- One row per claim: each attempt is a separate run. STATUS: RUNNING COMPLETED FAILED CANCELLED SKIPPED INTERRUPTED
-- LOST.
CREATE HYBRID TABLE IF NOT EXISTS RUN_ATTEMPTS (
    QUEUE_ID    VARCHAR(36)   NOT NULL,
    EPOCH       NUMBER(38,0)  NOT NULL,
    OWNER       VARCHAR(100)  NOT NULL,
    RUN_ID      VARCHAR(36),
    STATUS      VARCHAR(20)   NOT NULL,
    EXIT_CODE   NUMBER(38,0),
    REASON      VARCHAR(2000),
    STARTED_AT  TIMESTAMP_NTZ NOT NULL,
    ENDED_AT    TIMESTAMP_NTZ,
    PRIMARY KEY (QUEUE_ID, EPOCH),
    INDEX IDX_RUN_ATTEMPTS_STATUS (STATUS)
);

-- One row per runner, a process that executes queued runs. STATUS: ONLINE DRAINING OFFLINE. TASK_QUEUE is the location
-- of its queue (database and schema). LABELS and CAPABILITIES are JSON lists of key=value.
CREATE HYBRID TABLE IF NOT EXISTS POOL_WORKERS (
    WORKER_ID        VARCHAR(100)  NOT NULL,
    HOSTNAME         VARCHAR(255)  NOT NULL,
    PID              NUMBER(38,0)  NOT NULL,
    VERSION          VARCHAR(50)   NOT NULL,
    TASK_QUEUE       VARCHAR(100)  NOT NULL,
    LABELS           VARCHAR       NOT NULL,
    CAPABILITIES     VARCHAR       NOT NULL,
    CAPACITY         NUMBER(38,0)  NOT NULL,
    STATUS           VARCHAR(20)   NOT NULL,
    CURRENT_RUN      VARCHAR(36),
    TOTAL_COMPLETED  NUMBER(38,0)  NOT NULL,
    TOTAL_FAILED     NUMBER(38,0)  NOT NULL,
    REGISTERED_AT    TIMESTAMP_NTZ NOT NULL,
    LAST_BEAT_AT     TIMESTAMP_NTZ NOT NULL,
    DEREGISTERED_AT  TIMESTAMP_NTZ,
    PRIMARY KEY (WORKER_ID),
    INDEX IDX_POOL_WORKERS_STATUS (STATUS)
);

-- One row per schedule. Fires up to LAST_FIRE_AT are settled: queued, skipped, or missed. A new or re-enabled schedule
-- begins at that time. REASON: why it cannot fire at present. OVERLAP: skip queue.
CREATE HYBRID TABLE IF NOT EXISTS SCHEDULES (
    SCHEDULE_ID    VARCHAR(36)   NOT NULL,
    NAME           VARCHAR(100)  NOT NULL,
    CRON           VARCHAR(200)  NOT NULL,
    TIMEZONE       VARCHAR(100)  NOT NULL,
    SCENARIO_NAME  VARCHAR(255)  NOT NULL,
    SCENARIO       VARCHAR       NOT NULL,
    FILES          VARCHAR       NOT NULL,
    CONNECTION     VARCHAR(255),
    TARGET         VARCHAR(200)  NOT NULL,
    REQUIRES       VARCHAR       NOT NULL,
    PRIORITY       NUMBER(38,0)  NOT NULL,
    ENABLED        BOOLEAN       NOT NULL,
    MAX_CATCHUP    NUMBER(38,0)  NOT NULL,
    OVERLAP        VARCHAR(10)   NOT NULL,
    LAST_FIRE_AT   TIMESTAMP_NTZ NOT NULL,
    REASON         VARCHAR(2000),
    CREATED_AT     TIMESTAMP_NTZ NOT NULL,
    UPDATED_AT     TIMESTAMP_NTZ NOT NULL,
    PRIMARY KEY (SCHEDULE_ID),
    UNIQUE (NAME)
);

-- One row per due time of a schedule. The enforced key makes a fire happen once, with any number of schedulers.
-- OUTCOME: DUE QUEUED SKIPPED MISSED. DUE is stored before the run is queued, and becomes QUEUED afterwards. A
-- scheduler that finds DUE queues the run; the idempotency key of the queue prevents a second run. QUEUE_ID is set from
-- QUEUED on.
CREATE HYBRID TABLE IF NOT EXISTS SCHEDULE_FIRES (
    SCHEDULE_ID  VARCHAR(36)   NOT NULL,
    FIRE_AT      TIMESTAMP_NTZ NOT NULL,
    OUTCOME      VARCHAR(20)   NOT NULL,
    QUEUE_ID     VARCHAR(36),
    CREATED_AT   TIMESTAMP_NTZ NOT NULL,
    PRIMARY KEY (SCHEDULE_ID, FIRE_AT),
    INDEX IDX_SCHEDULE_FIRES_OUTCOME (OUTCOME)
);
