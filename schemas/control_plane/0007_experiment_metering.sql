-- Credits of an experiment's warehouses as Snowflake metered them, read after its end; of several, the newest counts.
-- METERING is JSON.
CREATE HYBRID TABLE IF NOT EXISTS EXPERIMENT_METERINGS (
    EXPERIMENT_ID  VARCHAR(36)   NOT NULL,
    METERING_ID    VARCHAR(36)   NOT NULL,
    METERING       VARCHAR       NOT NULL,
    CREATED_AT     TIMESTAMP_NTZ NOT NULL,
    PRIMARY KEY (EXPERIMENT_ID, METERING_ID)
);
