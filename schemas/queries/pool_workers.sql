-- Runners. A runner without a heartbeat for STALE_SECONDS, which each heartbeat sets, is OFFLINE for all readers,
-- whether or not that is stored. A request to drain is a row of STOP_REQUESTS, so it never conflicts with a heartbeat.

-- part: runners
POOL_WORKERS W LEFT JOIN STOP_REQUESTS R ON R.KIND = 'RUNNER' AND R.ID = W.WORKER_ID

-- part: requested_status
IFF(R.ID IS NOT NULL AND W.STATUS = 'ONLINE', 'DRAINING', W.STATUS)

-- part: seen_status
IFF(W.LAST_BEAT_AT <= DATEADD(second, - COALESCE(W.STALE_SECONDS, 30), SYSDATE()), 'OFFLINE', {requested_status})

-- part: runner
-- The columns of `PoolWorker`.
W.WORKER_ID, W.HOSTNAME, W.PID, W.VERSION, W.TASK_QUEUE, W.LABELS, W.CAPABILITIES, W.CAPACITY,
       {seen_status} AS SEEN_STATUS, W.CURRENT_RUN, W.TOTAL_COMPLETED, W.TOTAL_FAILED, W.REGISTERED_AT, W.LAST_BEAT_AT,
       W.DEREGISTERED_AT

-- part: has_labels
ARRAY_SIZE(ARRAY_EXCEPT(TO_ARRAY(PARSE_JSON(?)), TO_ARRAY(COALESCE(TRY_PARSE_JSON(W.LABELS), PARSE_JSON('[]'))))) = 0

-- name: register
-- 200001: the runner has a row, and continues with it.
INSERT INTO POOL_WORKERS (
    WORKER_ID, HOSTNAME, PID, VERSION, TASK_QUEUE, LABELS, CAPABILITIES, CAPACITY, STATUS, TOTAL_COMPLETED,
    TOTAL_FAILED, REGISTERED_AT, LAST_BEAT_AT)
SELECT ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, 0, SYSDATE(), SYSDATE();

-- name: come_back
UPDATE POOL_WORKERS SET STATUS = ?, DEREGISTERED_AT = NULL, LAST_BEAT_AT = SYSDATE() WHERE WORKER_ID = ?;

-- name: retire
-- Only one process has a process id at a time, so an earlier runner with the same id has ended. Ids of runners begin
-- with host, process id, and the place in which that is unique, so containers with the same name and process id are
-- distinct.
UPDATE POOL_WORKERS SET STATUS = 'OFFLINE', DEREGISTERED_AT = SYSDATE()
WHERE STARTSWITH(WORKER_ID, ?) AND WORKER_ID <> ? AND STATUS IN ('ONLINE', 'DRAINING');

-- name: beat
-- 0 rows: the runner was set OFFLINE or deleted and must register again, or it should drain. It reads which.
UPDATE POOL_WORKERS SET LAST_BEAT_AT = SYSDATE(), STALE_SECONDS = ?, CURRENT_RUN = ?, TOTAL_COMPLETED = ?, TOTAL_FAILED = ?
WHERE WORKER_ID = ? AND STATUS = 'ONLINE' AND NOT EXISTS (SELECT 1 FROM STOP_REQUESTS WHERE KIND = 'RUNNER' AND ID = ?);

-- name: beat_draining
-- For a runner that knows that it should drain.
UPDATE POOL_WORKERS SET LAST_BEAT_AT = SYSDATE(), STALE_SECONDS = ?, CURRENT_RUN = ?, TOTAL_COMPLETED = ?, TOTAL_FAILED = ?
WHERE WORKER_ID = ? AND STATUS IN ('ONLINE', 'DRAINING');

-- name: status
SELECT {requested_status} AS SEEN_STATUS
FROM {runners} WHERE W.WORKER_ID = ?;

-- name: drain
-- 0 rows: it is not ONLINE. 200001: requested before.
INSERT INTO STOP_REQUESTS (KIND, ID, REQUESTED_AT)
SELECT 'RUNNER', WORKER_ID, SYSDATE() FROM POOL_WORKERS WHERE WORKER_ID = ? AND STATUS = 'ONLINE';

-- name: offline
UPDATE POOL_WORKERS SET STATUS = 'OFFLINE', CURRENT_RUN = NULL, DEREGISTERED_AT = SYSDATE()
WHERE WORKER_ID = ? AND STATUS IN ('ONLINE', 'DRAINING');

-- name: silent_offline
-- A runner that should drain stays so: its next heartbeat must return the request.
UPDATE POOL_WORKERS SET STATUS = 'OFFLINE', DEREGISTERED_AT = SYSDATE()
WHERE STATUS = 'ONLINE' AND LAST_BEAT_AT <= DATEADD(second, - COALESCE(STALE_SECONDS, 30), SYSDATE());

-- name: prune
DELETE FROM POOL_WORKERS WHERE LAST_BEAT_AT < DATEADD(day, -7, SYSDATE());

-- name: page
-- The next runners after an id, with a status ('': any).
SELECT WORKER_ID, HOSTNAME, PID, VERSION, TASK_QUEUE, LABELS, CAPABILITIES, CAPACITY, SEEN_STATUS, CURRENT_RUN,
       TOTAL_COMPLETED, TOTAL_FAILED, REGISTERED_AT, LAST_BEAT_AT, DEREGISTERED_AT
FROM (
    SELECT {runner}
    FROM {runners}
    WHERE W.WORKER_ID > ? AND {has_labels}
) WHERE SEEN_STATUS = ? OR ? = '' ORDER BY WORKER_ID LIMIT {limit};

-- name: count
SELECT COUNT(*) FROM (
    SELECT {seen_status} AS SEEN_STATUS
    FROM {runners}
    WHERE {has_labels}
) WHERE SEEN_STATUS = ? OR ? = '';

-- name: read
SELECT {runner}
FROM {runners}
WHERE W.WORKER_ID = ?;

-- name: beginning_with
SELECT WORKER_ID FROM POOL_WORKERS WHERE STARTSWITH(WORKER_ID, ?) ORDER BY WORKER_ID LIMIT {limit};

-- name: offers
SELECT W.CAPABILITIES FROM POOL_WORKERS W
WHERE W.STATUS = 'ONLINE' AND W.LAST_BEAT_AT > DATEADD(second, - COALESCE(W.STALE_SECONDS, 30), SYSDATE())
  AND NOT EXISTS (SELECT 1 FROM STOP_REQUESTS R WHERE R.KIND = 'RUNNER' AND R.ID = W.WORKER_ID)
ORDER BY W.WORKER_ID LIMIT 10000;

-- name: totals
-- Over all stored runners.
SELECT COALESCE(SUM(TOTAL_COMPLETED), 0), COALESCE(SUM(TOTAL_FAILED), 0) FROM POOL_WORKERS;
