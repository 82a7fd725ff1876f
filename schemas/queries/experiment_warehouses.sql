-- Settings of warehouses that experiments change. A row is written before the first change, another after the settings
-- were restored; neither is rewritten.

-- name: record
-- 200001: they were recorded before.
INSERT INTO EXPERIMENT_WAREHOUSES (EXPERIMENT_ID, EPOCH, WAREHOUSE_KEY, WAREHOUSE, CONNECTION, SETTINGS, CREATED_AT)
SELECT ?, ?, ?, ?, ?, ?, SYSDATE();

-- name: recorded
SELECT COUNT(*) FROM EXPERIMENT_WAREHOUSES WHERE EXPERIMENT_ID = ? AND EPOCH = ? AND WAREHOUSE_KEY = ?;

-- name: restored
-- 200001: it was said before.
INSERT INTO EXPERIMENT_WAREHOUSE_RESTORES (EXPERIMENT_ID, EPOCH, WAREHOUSE_KEY, CREATED_AT) SELECT ?, ?, ?, SYSDATE();

-- name: changed
-- Warehouses whose settings may still be those of an experiment.
SELECT W.EXPERIMENT_ID, W.EPOCH, W.WAREHOUSE_KEY, W.WAREHOUSE, W.CONNECTION, W.SETTINGS
FROM EXPERIMENT_WAREHOUSES W LEFT JOIN EXPERIMENT_WAREHOUSE_RESTORES R
    ON R.EXPERIMENT_ID = W.EXPERIMENT_ID AND R.EPOCH = W.EPOCH AND R.WAREHOUSE_KEY = W.WAREHOUSE_KEY
WHERE R.EXPERIMENT_ID IS NULL ORDER BY W.CREATED_AT;
