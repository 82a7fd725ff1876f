-- The state of runs.

-- part: runs
RUN_STATUS S LEFT JOIN STOP_REQUESTS R ON R.KIND = 'RUN' AND R.ID = S.RUN_ID

-- part: seen_status
-- A run with a request to stop is CANCELLING, also before its leader has stored that.
IFF(R.ID IS NOT NULL AND S.STATUS IN ('PREPARED', 'STARTING', 'RUNNING'), 'CANCELLING', S.STATUS)

-- part: seen_verdict
-- Empty: the run has not ended, or has no verdict. One that ended without a result has that of its status.
IFF(S.STATUS IN ('COMPLETED', 'FAILED', 'CANCELLED'), COALESCE(S.VERDICT, IFF(S.STATUS = 'FAILED', 'error',
    IFF(S.STATUS = 'CANCELLED', 'cancelled', ''))), '')

-- part: run
-- The columns of `Run`.
S.RUN_ID, S.TEMPLATE_ID, S.TEST_NAME, {seen_status} AS SEEN_STATUS,
       S.PHASE, S.START_TIME, S.WARMUP_START_TIME, S.WARMUP_END_TIME, S.END_TIME, S.TOTAL_WORKERS_EXPECTED,
       S.WORKERS_REGISTERED, S.WORKERS_ACTIVE, S.WORKERS_COMPLETED, S.TOTAL_OPS, S.ERROR_COUNT, S.CURRENT_QPS,
       S.FIND_MAX_STATE, S.WORKER_TARGETS, S.NEXT_SEQUENCE_ID, S.LEASE_EPOCH,
       IFF(R.ID IS NOT NULL AND S.STATUS IN ('PREPARED', 'STARTING', 'RUNNING'), R.REASON, S.REASON) AS SEEN_REASON,
       S.VERDICT, S.ENRICHMENT_STATUS, S.CREATED_AT, S.UPDATED_AT, S.STATUS AS STORED_STATUS

-- name: create
INSERT INTO RUN_STATUS (
    RUN_ID, TEST_ID, TEMPLATE_ID, TEST_NAME, SCENARIO_CONFIG, STATUS, PHASE, TOTAL_WORKERS_EXPECTED,
    WORKERS_REGISTERED, WORKERS_ACTIVE, WORKERS_COMPLETED, TOTAL_OPS, ERROR_COUNT, CURRENT_QPS, NEXT_SEQUENCE_ID,
    LEASE_EPOCH, CREATED_AT, UPDATED_AT)
SELECT ?, ?, ?, ?, ?, 'PREPARED', 'PREPARING', ?, 0, 0, 0, 0, 0, 0, 1, 0, SYSDATE(), SYSDATE();

-- name: created
-- Whether the row is ours, after a lost answer.
SELECT COUNT(*) FROM RUN_STATUS WHERE RUN_ID = ? AND TEMPLATE_ID = ? AND SCENARIO_CONFIG = ? AND LEASE_EPOCH = 0;

-- name: read
-- With the time of the server, and the time at which an event was inserted: some commands take effect after that time.
SELECT {run},
       SYSDATE() AS SERVER_TIME,
       (SELECT MAX(CREATED_AT) FROM RUN_CONTROL_EVENTS WHERE RUN_ID = ? AND SEQUENCE_ID = ?) AS EVENT_AT
FROM {runs} WHERE S.RUN_ID = ?;

-- name: newest
SELECT {run}
FROM {runs}
ORDER BY S.CREATED_AT DESC, S.RUN_ID DESC LIMIT {limit};

-- name: listed
-- As newest, with the figures of the result if there is one. Filtered by ranges of status, verdict and name, which may
-- include everything, and by age. One row per run: see loadgen.control.session.
SELECT {run},
       T.TOTAL_OPERATIONS, T.FAILED_OPERATIONS, T.SUMMARY:totals.qps::VARCHAR AS QPS, T.P95_LATENCY_MS,
       T.SUMMARY:latency_ms.at_least::VARCHAR AS AT_LEAST
FROM {runs}
    LEFT JOIN TEST_RESULTS T ON T.TEST_ID = S.RUN_ID AND T.RUN_ID = S.RUN_ID
WHERE {seen_status} BETWEEN ? AND ?
  AND {seen_verdict} BETWEEN ? AND ?
  AND S.TEST_NAME BETWEEN ? AND ? AND S.CREATED_AT >= DATEADD(second, ?, SYSDATE())
QUALIFY ROW_NUMBER() OVER (PARTITION BY S.RUN_ID ORDER BY T.END_TIME) = 1
ORDER BY S.CREATED_AT DESC, S.RUN_ID DESC LIMIT {limit};

-- name: scenarios
SELECT DISTINCT TEST_NAME FROM RUN_STATUS ORDER BY TEST_NAME LIMIT {limit};

-- name: beginning_with
-- The exact id first: it is the shortest.
SELECT RUN_ID FROM RUN_STATUS WHERE STARTSWITH(RUN_ID, ?) ORDER BY RUN_ID LIMIT {limit};

-- name: config
SELECT SCENARIO_CONFIG FROM RUN_STATUS WHERE RUN_ID = ?;

-- name: poll
-- Read by every worker every second: the state, and the time since the lease expired (negative: it is valid).
SELECT {seen_status} AS SEEN_STATUS,
       S.PHASE, S.NEXT_SEQUENCE_ID, S.LEASE_EPOCH, S.WORKER_TARGETS, SYSDATE() AS SERVER_TIME,
       (SELECT DATEDIFF(millisecond, MAX(EXPIRES_AT), SYSDATE()) FROM RUN_LEASES WHERE RUN_ID = ?) AS LEASE_OVER_MS
FROM {runs} WHERE S.RUN_ID = ?;

-- name: server_time
SELECT SYSDATE();

-- name: move
-- A change of status and phase, by the holder of a valid lease. Times are written only once, and a finished run does
-- not change. A run starts at the zero of its plan, which START has announced. 0 rows: the run has another status or
-- phase, or the lease has expired.
UPDATE RUN_STATUS SET
    STATUS = ?, PHASE = ?, REASON = COALESCE(?, REASON), VERDICT = COALESCE(?, VERDICT), LEASE_EPOCH = ?,
    START_TIME = COALESCE(START_TIME, IFF(? = 1, COALESCE(TO_TIMESTAMP_NTZ(?), SYSDATE()), NULL)),
    WARMUP_START_TIME = COALESCE(WARMUP_START_TIME, IFF(? = 1, COALESCE(TO_TIMESTAMP_NTZ(?), SYSDATE()), NULL)),
    WARMUP_END_TIME = COALESCE(WARMUP_END_TIME, IFF(? = 1, SYSDATE(), NULL)),
    END_TIME = COALESCE(END_TIME, IFF(? = 1, SYSDATE(), NULL)),
    UPDATED_AT = SYSDATE()
WHERE RUN_ID = ? AND (STATUS = ? OR ? = 'CANCELLING' AND STATUS IN ('PREPARED', 'STARTING', 'RUNNING')) AND PHASE = ?
  AND END_TIME IS NULL
  AND EXISTS (SELECT 1 FROM RUN_LEASES WHERE RUN_ID = ? AND EPOCH = ? AND OWNER = ? AND EXPIRES_AT > SYSDATE());

-- name: publish
-- Totals and targets, by the holder of a valid lease. A finished run does not change.
UPDATE RUN_STATUS SET
    WORKERS_REGISTERED = ?, WORKERS_ACTIVE = ?, WORKERS_COMPLETED = ?, TOTAL_OPS = ?, ERROR_COUNT = ?,
    CURRENT_QPS = ?, FIND_MAX_STATE = ?, WORKER_TARGETS = ?, NEXT_SEQUENCE_ID = GREATEST(NEXT_SEQUENCE_ID, ?),
    LEASE_EPOCH = ?, UPDATED_AT = SYSDATE()
WHERE RUN_ID = ? AND STATUS IN ('PREPARED', 'STARTING', 'RUNNING', 'STOPPING', 'CANCELLING')
  AND EXISTS (SELECT 1 FROM RUN_LEASES WHERE RUN_ID = ? AND EPOCH = ? AND OWNER = ? AND EXPIRES_AT > SYSDATE());

-- name: cancel
-- The request of a user, in a separate row, so that it never conflicts with a write of the leader. 0 rows: the run has
-- ended, or is ending. 200001: requested before.
INSERT INTO STOP_REQUESTS (KIND, ID, REASON, REQUESTED_AT)
SELECT 'RUN', RUN_ID, ?, SYSDATE() FROM RUN_STATUS
WHERE RUN_ID = ? AND (STATUS = 'PREPARED' OR STATUS = 'STARTING' OR STATUS = 'RUNNING');

-- name: set_enrichment
-- The only column that changes after the end of a run.
UPDATE RUN_STATUS SET ENRICHMENT_STATUS = ?, UPDATED_AT = SYSDATE() WHERE RUN_ID = ?;

-- name: unfinished
-- Runs that need a leader: the time since the lease expired, and the age of the last heartbeat of their workers.
SELECT S.RUN_ID,
       DATEDIFF(millisecond, MAX(L.EXPIRES_AT), SYSDATE()) AS LEASE_OVER_MS,
       DATEDIFF(millisecond, MAX(H.LAST_HEARTBEAT), SYSDATE()) AS BEAT_AGE_MS,
       DATEDIFF(millisecond, MAX(S.UPDATED_AT), SYSDATE()) AS UPDATE_AGE_MS
FROM RUN_STATUS S LEFT JOIN RUN_LEASES L ON L.RUN_ID = S.RUN_ID LEFT JOIN WORKER_HEARTBEATS H ON H.RUN_ID = S.RUN_ID
WHERE S.STATUS IN ('PREPARED', 'STARTING', 'RUNNING', 'STOPPING', 'CANCELLING')
GROUP BY S.RUN_ID ORDER BY S.RUN_ID;
