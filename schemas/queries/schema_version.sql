-- name: create
-- The only table that no migration creates: it contains the applied migrations.
CREATE TABLE IF NOT EXISTS SCHEMA_VERSION (
    VERSION     NUMBER(38,0)  NOT NULL,
    NAME        VARCHAR(255)  NOT NULL,
    DIGEST      VARCHAR(64)   NOT NULL,
    APPLIED_AT  TIMESTAMP_NTZ NOT NULL,
    APPLIED_BY  VARCHAR(255)  NOT NULL,
    PRIMARY KEY (VERSION)
);

-- name: applied
-- The applied migrations. Two setups at the same time may both have inserted a row.
SELECT VERSION, NAME, DIGEST FROM SCHEMA_VERSION ORDER BY VERSION, APPLIED_AT;

-- name: record
INSERT INTO SCHEMA_VERSION (VERSION, NAME, DIGEST, APPLIED_AT, APPLIED_BY)
SELECT ?, ?, ?, SYSDATE(), CURRENT_USER()
WHERE NOT EXISTS (SELECT 1 FROM SCHEMA_VERSION WHERE VERSION = ?);
