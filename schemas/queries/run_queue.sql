-- Queued runs. The keys of RUN_ATTEMPTS and RUN_ATTEMPT_ENDS decide their state. The columns STATUS, AVAILABLE_AT,
-- OWNER, EPOCH, ATTEMPTS, RUN_ID, EXIT_CODE, REASON and ENDED_AT repeat it, so that one index finds what is to be done.
-- A process that has inserted a turn or an end settles these columns, and checks them afterwards.

-- part: queue
RUN_QUEUE Q LEFT JOIN RUN_ATTEMPTS A ON A.QUEUE_ID = Q.QUEUE_ID AND A.EPOCH = Q.EPOCH

-- part: due_at
-- When the run may be claimed. Of a running one: when its lease expires.
IFF(Q.STATUS IN ('RUNNING', 'CANCEL_REQUESTED'), COALESCE(A.EXPIRES_AT, Q.AVAILABLE_AT), Q.AVAILABLE_AT)

-- part: queued_run
-- The columns of `QueuedRun`.
Q.QUEUE_ID, Q.IDEMPOTENCY_KEY, Q.NAME, Q.CONNECTION, Q.TARGET, Q.REQUIRES, Q.PRIORITY, Q.STATUS, {due_at},
       Q.OWNER, Q.EPOCH, Q.ATTEMPTS, Q.MAX_ATTEMPTS, COALESCE(Q.RUN_ID, A.RUN_ID), Q.EXIT_CODE, Q.REASON, Q.CREATED_AT,
       Q.ENDED_AT, Q.UPDATED_AT, DATEDIFF(millisecond, SYSDATE(), {due_at})

-- part: claimable
-- A runner with these capabilities may claim the run now, or when its target is free. A row whose REQUIRES is invalid or
-- too long is never claimed, and does not delay others.
Q.STATUS IN ('QUEUED', 'RUNNING') AND Q.ATTEMPTS < Q.MAX_ATTEMPTS
  AND (Q.STATUS = 'QUEUED' AND Q.AVAILABLE_AT <= SYSDATE()
       OR Q.STATUS = 'RUNNING' AND COALESCE(A.EXPIRES_AT, Q.AVAILABLE_AT) < DATEADD(second, -10, SYSDATE()))
  AND ARRAY_SIZE(ARRAY_EXCEPT(TO_ARRAY(TRY_PARSE_JSON(IFF(LENGTH(Q.REQUIRES) <= 16000, Q.REQUIRES, NULL))), TO_ARRAY(PARSE_JSON(?)))) = 0

-- name: add
-- 200001: a run with this idempotency key exists.
INSERT INTO RUN_QUEUE (
    QUEUE_ID, IDEMPOTENCY_KEY, NAME, SCENARIO, FILES, CONNECTION, TARGET, REQUIRES, PRIORITY, STATUS, AVAILABLE_AT,
    EPOCH, ATTEMPTS, MAX_ATTEMPTS, CREATED_AT, UPDATED_AT)
SELECT ?, ?, ?, ?, ?, ?, ?, ?, ?, 'QUEUED', COALESCE(TO_TIMESTAMP_NTZ(?), SYSDATE()), 0, 0, ?, SYSDATE(), SYSDATE();

-- name: find_key
SELECT QUEUE_ID, SCENARIO, FILES, CONNECTION, REQUIRES, PRIORITY FROM RUN_QUEUE WHERE IDEMPOTENCY_KEY = ?;

-- name: read
-- With the lease and the run id of a running one.
SELECT {queued_run}
FROM {queue}
WHERE Q.QUEUE_ID = ?;

-- name: read_files
SELECT FILES FROM RUN_QUEUE WHERE QUEUE_ID = ?;

-- name: newest
SELECT {queued_run}
FROM {queue}
ORDER BY Q.CREATED_AT DESC, Q.QUEUE_ID DESC LIMIT {limit};

-- name: newest_in
SELECT {queued_run}
FROM {queue}
WHERE Q.STATUS = ? ORDER BY Q.CREATED_AT DESC, Q.QUEUE_ID DESC LIMIT {limit};

-- name: waiting
-- Runs that could begin now if a runner were available.
SELECT QUEUE_ID, NAME, REQUIRES, DATEDIFF(second, AVAILABLE_AT, SYSDATE()) AS WAITED_S FROM RUN_QUEUE
WHERE STATUS = 'QUEUED' AND AVAILABLE_AT <= SYSDATE() AND ATTEMPTS < MAX_ATTEMPTS
ORDER BY PRIORITY DESC, CREATED_AT, QUEUE_ID LIMIT 100;

-- name: note
-- The reason why a run waits. 0 rows: the same reason is stored, or the run does not wait.
UPDATE RUN_QUEUE SET REASON = ?, UPDATED_AT = SYSDATE()
WHERE QUEUE_ID = ? AND STATUS = 'QUEUED' AND (REASON IS NULL OR REASON <> ?);

-- name: scenario
SELECT SCENARIO FROM RUN_QUEUE WHERE QUEUE_ID = ?;

-- name: beginning_with
SELECT QUEUE_ID FROM RUN_QUEUE WHERE STARTSWITH(QUEUE_ID, ?) ORDER BY QUEUE_ID LIMIT {limit};

-- name: candidates
-- Runs that a runner with these capabilities may claim now, by priority, then by age. A run waits while another run
-- measures the same target: two at once would affect each other. It also waits while a run of its target is postponed
-- because a run outside of the queue has the target (SKIPPED): otherwise a runner would try one after the other, and
-- runs on other targets would wait. The last two binds are 1 for a runner that shares targets.
SELECT Q.QUEUE_ID, Q.EPOCH, Q.STATUS, Q.ATTEMPTS, Q.TARGET
FROM {queue}
WHERE {claimable}
  AND NOT EXISTS (
      SELECT 1 FROM RUN_QUEUE B JOIN RUN_ATTEMPTS L ON L.QUEUE_ID = B.QUEUE_ID AND L.EPOCH = B.EPOCH
      WHERE ? = 0 AND B.TARGET = Q.TARGET AND B.TARGET > '' AND B.STATUS IN ('RUNNING', 'CANCEL_REQUESTED')
        AND L.EXPIRES_AT > SYSDATE())
  AND NOT EXISTS (
      SELECT 1 FROM RUN_QUEUE B JOIN RUN_ATTEMPT_ENDS S ON S.QUEUE_ID = B.QUEUE_ID AND S.EPOCH = B.EPOCH
      WHERE ? = 0 AND B.TARGET = Q.TARGET AND B.TARGET > '' AND B.STATUS = 'QUEUED' AND B.AVAILABLE_AT > SYSDATE()
        AND S.STATUS = 'SKIPPED')
ORDER BY Q.PRIORITY DESC, Q.CREATED_AT, Q.QUEUE_ID LIMIT {limit};

-- name: open_runs
-- For a pool: the number of running runs and of rows to reject; the number of all runs that have not ended; and the
-- milliseconds until the next run for its capabilities is due (0 or less: it is due). Runs that need other capabilities
-- do not count: their pool may be stopped for days.
SELECT SUM(IFF(STATUS IN ('RUNNING', 'CANCEL_REQUESTED') OR LENGTH(REQUIRES) > 16000, 1, 0)),
       COUNT(*),
       MIN(IFF(
           STATUS = 'QUEUED'
           AND ARRAY_SIZE(ARRAY_EXCEPT(TO_ARRAY(TRY_PARSE_JSON(IFF(LENGTH(REQUIRES) <= 16000, REQUIRES, NULL))), TO_ARRAY(PARSE_JSON(?)))) = 0,
           DATEDIFF(millisecond, SYSDATE(), AVAILABLE_AT), NULL))
FROM RUN_QUEUE WHERE STATUS IN ('QUEUED', 'RUNNING', 'CANCEL_REQUESTED');

-- name: depth
-- The number of runs that wait for a runner with these capabilities, and of those that could begin now: one per target,
-- and none while the target is measured or postponed (see candidates), unless targets are shared (1).
SELECT COUNT(*) AS WAITING,
       COUNT(DISTINCT IFF(? = 1, Q.QUEUE_ID, IFF(B.TARGET IS NULL, IFF(Q.TARGET = '', Q.QUEUE_ID, Q.TARGET), NULL)))
           AS STARTABLE
FROM {queue}
    LEFT JOIN (
        SELECT DISTINCT H.TARGET
        FROM RUN_QUEUE H LEFT JOIN RUN_ATTEMPTS L ON L.QUEUE_ID = H.QUEUE_ID AND L.EPOCH = H.EPOCH
            LEFT JOIN RUN_ATTEMPT_ENDS S ON S.QUEUE_ID = H.QUEUE_ID AND S.EPOCH = H.EPOCH
        WHERE H.TARGET > '' AND H.STATUS IN ('QUEUED', 'RUNNING', 'CANCEL_REQUESTED')
          AND (H.STATUS IN ('RUNNING', 'CANCEL_REQUESTED') AND L.EXPIRES_AT > SYSDATE()
               OR H.STATUS = 'QUEUED' AND H.AVAILABLE_AT > SYSDATE() AND S.STATUS = 'SKIPPED')
    ) B ON B.TARGET = Q.TARGET
WHERE {claimable};

-- name: refuse
-- A row that cannot be claimed: another program wrote it.
UPDATE RUN_QUEUE SET STATUS = 'FAILED', REASON = ?, ENDED_AT = SYSDATE(), UPDATED_AT = SYSDATE()
WHERE QUEUE_ID = ? AND EPOCH = ? AND STATUS IN ('QUEUED', 'RUNNING');

-- name: refuse_long
-- Rows that `candidates` never returns: another program wrote them.
UPDATE RUN_QUEUE SET STATUS = 'FAILED', REASON = ?, ENDED_AT = SYSDATE(), UPDATED_AT = SYSDATE()
WHERE STATUS = 'QUEUED' AND LENGTH(REQUIRES) > 16000;

-- name: owners
-- The owners of running runs.
SELECT DISTINCT OWNER FROM RUN_QUEUE WHERE STATUS IN ('RUNNING', 'CANCEL_REQUESTED') ORDER BY OWNER LIMIT 10000;

-- name: settle
-- The state of the turns. The UPDATE may have waited and be outdated, so it is checked afterwards.
UPDATE RUN_QUEUE SET
    STATUS = ?, EPOCH = ?, OWNER = ?, ATTEMPTS = ?, RUN_ID = ?, EXIT_CODE = ?, REASON = ?, AVAILABLE_AT = ?, ENDED_AT = ?,
    UPDATED_AT = SYSDATE()
WHERE QUEUE_ID = ?;

-- name: unsettled
-- Runs whose lease has expired, or with newer turns: a process ended before it settled the row.
SELECT Q.QUEUE_ID, Q.EPOCH
FROM {queue}
    LEFT JOIN RUN_ATTEMPT_ENDS E ON E.QUEUE_ID = Q.QUEUE_ID AND E.EPOCH = Q.EPOCH
    LEFT JOIN RUN_ATTEMPTS N ON N.QUEUE_ID = Q.QUEUE_ID AND N.EPOCH = Q.EPOCH + 1
WHERE Q.STATUS IN ('QUEUED', 'RUNNING', 'CANCEL_REQUESTED')
  AND (Q.STATUS IN ('RUNNING', 'CANCEL_REQUESTED') AND E.QUEUE_ID = Q.QUEUE_ID
       OR Q.STATUS IN ('RUNNING', 'CANCEL_REQUESTED') AND A.EXPIRES_AT < DATEADD(second, -10, SYSDATE())
       OR Q.STATUS IN ('QUEUED', 'RUNNING') AND N.QUEUE_ID = Q.QUEUE_ID)
ORDER BY Q.QUEUE_ID LIMIT 100;
