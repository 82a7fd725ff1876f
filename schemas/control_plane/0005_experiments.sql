-- Definitions of experiments, inserted once. CONFIG is JSON; FINGERPRINT shows whether a file still describes the
-- experiment.
CREATE HYBRID TABLE IF NOT EXISTS EXPERIMENTS (
    EXPERIMENT_ID  VARCHAR(36)   NOT NULL,
    NAME           VARCHAR(255)  NOT NULL,
    CONFIG         VARCHAR       NOT NULL,
    FINGERPRINT    VARCHAR(64)   NOT NULL,
    CREATED_AT     TIMESTAMP_NTZ NOT NULL,
    PRIMARY KEY (EXPERIMENT_ID),
    INDEX IDX_EXPERIMENTS_CREATED (CREATED_AT)
);

-- Blocks that have begun. The key lets one process begin a block. An incomplete block is never continued.
CREATE HYBRID TABLE IF NOT EXISTS EXPERIMENT_BLOCKS (
    EXPERIMENT_ID  VARCHAR(36)   NOT NULL,
    BLOCK          NUMBER(38,0)  NOT NULL,
    EPOCH          NUMBER(38,0)  NOT NULL,
    CREATED_AT     TIMESTAMP_NTZ NOT NULL,
    PRIMARY KEY (EXPERIMENT_ID, BLOCK)
);

-- Measurements that ended. The key lets each count once. OUTCOME: OK INVALID FAILED. FIGURES is JSON, of those that
-- are OK; SECONDS and BILLED (credits, estimated) count against the budget in any case.
CREATE HYBRID TABLE IF NOT EXISTS EXPERIMENT_MEASUREMENTS (
    EXPERIMENT_ID  VARCHAR(36)   NOT NULL,
    BLOCK          NUMBER(38,0)  NOT NULL,
    ARM            VARCHAR(40)   NOT NULL,
    ATTEMPT        NUMBER(38,0)  NOT NULL,
    RUN_ID         VARCHAR(36),
    OUTCOME        VARCHAR(20)   NOT NULL,
    SECONDS        FLOAT         NOT NULL,
    BILLED         FLOAT,
    REASON         VARCHAR(2000) NOT NULL,
    FIGURES        VARCHAR,
    CREATED_AT     TIMESTAMP_NTZ NOT NULL,
    PRIMARY KEY (EXPERIMENT_ID, BLOCK, ARM, ATTEMPT)
);

-- The result of an experiment after each process that led it; the newest epoch counts. RESULT is experiment.json.
CREATE HYBRID TABLE IF NOT EXISTS EXPERIMENT_ENDS (
    EXPERIMENT_ID  VARCHAR(36)   NOT NULL,
    EPOCH          NUMBER(38,0)  NOT NULL,
    VERDICT        VARCHAR(20)   NOT NULL,
    EXIT_CODE      NUMBER(38,0)  NOT NULL,
    RESULT         VARCHAR       NOT NULL,
    ENDED_AT       TIMESTAMP_NTZ NOT NULL,
    PRIMARY KEY (EXPERIMENT_ID, EPOCH)
);
