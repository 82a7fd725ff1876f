-- The turns of a queued run, numbered by EPOCH. The enforced key (QUEUE_ID, EPOCH) decides which process inserts the
-- next turn. A turn is an attempt or, without an OWNER, a request of a user: CANCELLED or RETRIED. The end of an attempt
-- is a row of RUN_ATTEMPT_ENDS, whose key decides between its owner and a process that finds its lease expired.

-- name: claim
-- 200001: the turn exists. 0 rows: the runner is not ONLINE, or executes as many runs as its CAPACITY allows (possibly
-- without knowing of them), or another run measures the target (empty: unknown). The last condition does not separate
-- two claims at the same time; the lease on the warehouse does, and the second run returns its claim.
INSERT INTO RUN_ATTEMPTS (QUEUE_ID, EPOCH, OWNER, STATUS, ATTEMPTS, STARTED_AT, EXPIRES_AT)
SELECT ?, ?, WORKER_ID, 'RUNNING', ?, SYSDATE(), DATEADD(millisecond, ?, SYSDATE())
FROM POOL_WORKERS
WHERE WORKER_ID = ? AND STATUS = 'ONLINE' AND LAST_BEAT_AT > DATEADD(second, -30, SYSDATE())
  AND NOT EXISTS (SELECT 1 FROM STOP_REQUESTS WHERE KIND = 'RUNNER' AND ID = ?)
  AND CAPACITY > (
      SELECT COUNT(*) FROM RUN_ATTEMPTS H
      WHERE H.OWNER = ? AND H.EXPIRES_AT > SYSDATE()
        AND NOT EXISTS (SELECT 1 FROM RUN_ATTEMPT_ENDS E WHERE E.QUEUE_ID = H.QUEUE_ID AND E.EPOCH = H.EPOCH))
  AND NOT EXISTS (
      SELECT 1 FROM RUN_QUEUE B JOIN RUN_ATTEMPTS L ON L.QUEUE_ID = B.QUEUE_ID AND L.EPOCH = B.EPOCH
      WHERE B.TARGET = ? AND B.TARGET > '' AND B.STATUS IN ('RUNNING', 'CANCEL_REQUESTED')
        AND L.EXPIRES_AT > SYSDATE());

-- name: owner
-- The owner of a turn, after a lost answer.
SELECT OWNER FROM RUN_ATTEMPTS WHERE QUEUE_ID = ? AND EPOCH = ?;

-- name: request
-- The turn of a user. 200001: the turn exists.
INSERT INTO RUN_ATTEMPTS (QUEUE_ID, EPOCH, OWNER, STATUS, REASON, ATTEMPTS, STARTED_AT, ENDED_AT)
SELECT ?, ?, '', ?, ?, 0, SYSDATE(), SYSDATE();

-- name: extend
-- By the owner, counted from now. 0 rows: the lease has expired, or the attempt has ended.
UPDATE RUN_ATTEMPTS SET EXPIRES_AT = DATEADD(millisecond, ?, SYSDATE()), RUN_ID = COALESCE(?, RUN_ID)
WHERE QUEUE_ID = ? AND EPOCH = ? AND OWNER = ? AND EXPIRES_AT > SYSDATE()
  AND NOT EXISTS (SELECT 1 FROM RUN_ATTEMPT_ENDS WHERE QUEUE_ID = ? AND EPOCH = ?);

-- name: set_run
UPDATE RUN_ATTEMPTS SET RUN_ID = ?
WHERE QUEUE_ID = ? AND EPOCH = ? AND OWNER = ? AND EXPIRES_AT > SYSDATE()
  AND NOT EXISTS (SELECT 1 FROM RUN_ATTEMPT_ENDS WHERE QUEUE_ID = ? AND EPOCH = ?);

-- name: read_state
-- Whether a user has requested the end. No row: the lease has expired.
SELECT (SELECT COUNT(*) FROM RUN_ATTEMPTS WHERE QUEUE_ID = ? AND EPOCH = ? AND STATUS = 'CANCELLED') AS CANCELS
FROM RUN_ATTEMPTS
WHERE QUEUE_ID = ? AND EPOCH = ? AND OWNER = ? AND EXPIRES_AT > SYSDATE()
  AND NOT EXISTS (SELECT 1 FROM RUN_ATTEMPT_ENDS WHERE QUEUE_ID = ? AND EPOCH = ?);

-- name: wanted
-- The content of the run, and the number of the attempt as in `read`.
SELECT Q.NAME, Q.SCENARIO, Q.FILES, Q.CONNECTION, A.ATTEMPTS,
       (SELECT COUNT(*) FROM RUN_ATTEMPTS WHERE QUEUE_ID = ? AND OWNER > '' AND EPOCH <= ?) AS NUMBER_OF_ALL
FROM RUN_ATTEMPTS A JOIN RUN_QUEUE Q ON Q.QUEUE_ID = A.QUEUE_ID
WHERE A.QUEUE_ID = ? AND A.EPOCH = ? AND A.OWNER = ?;

-- name: end
-- By the owner. 200001: the attempt has an end. 0 rows: the lease has expired. Without a QUEUE_STATUS the run is
-- retried if attempts are left. The following binds are subtracted from the number of attempts: 1 if this one does not
-- count.
INSERT INTO RUN_ATTEMPT_ENDS (
    QUEUE_ID, EPOCH, STATUS, QUEUE_STATUS, RUN_ID, EXIT_CODE, REASON, ATTEMPTS, AVAILABLE_AT, ENDED_AT)
SELECT A.QUEUE_ID, A.EPOCH, ?, COALESCE(?, IFF(A.ATTEMPTS - ? >= Q.MAX_ATTEMPTS, 'EXHAUSTED', 'QUEUED')),
       COALESCE(?, A.RUN_ID), ?, ?, A.ATTEMPTS - ?, DATEADD(millisecond, ?, SYSDATE()), SYSDATE()
FROM RUN_ATTEMPTS A JOIN RUN_QUEUE Q ON Q.QUEUE_ID = A.QUEUE_ID
WHERE A.QUEUE_ID = ? AND A.EPOCH = ? AND A.OWNER = ? AND A.EXPIRES_AT > SYSDATE();

-- name: mark_lost
-- By any process. 200001: the attempt has an end. 0 rows: the lease is valid for longer than the last bind.
INSERT INTO RUN_ATTEMPT_ENDS (
    QUEUE_ID, EPOCH, STATUS, QUEUE_STATUS, RUN_ID, REASON, ATTEMPTS, AVAILABLE_AT, ENDED_AT)
SELECT A.QUEUE_ID, A.EPOCH, 'LOST', IFF(A.ATTEMPTS >= Q.MAX_ATTEMPTS, 'EXHAUSTED', 'QUEUED'), A.RUN_ID, ?, A.ATTEMPTS,
       SYSDATE(), SYSDATE()
FROM RUN_ATTEMPTS A JOIN RUN_QUEUE Q ON Q.QUEUE_ID = A.QUEUE_ID
WHERE A.QUEUE_ID = ? AND A.EPOCH = ? AND A.OWNER > '' AND A.EXPIRES_AT < DATEADD(millisecond, ?, SYSDATE());

-- name: ended
-- The stored end, after a lost answer.
SELECT STATUS FROM RUN_ATTEMPT_ENDS WHERE QUEUE_ID = ? AND EPOCH = ?;

-- name: open_of
-- Attempts of an owner that have no end.
SELECT A.QUEUE_ID, A.EPOCH FROM RUN_ATTEMPTS A
WHERE A.OWNER = ?
  AND NOT EXISTS (SELECT 1 FROM RUN_ATTEMPT_ENDS E WHERE E.QUEUE_ID = A.QUEUE_ID AND E.EPOCH = A.EPOCH)
ORDER BY A.QUEUE_ID, A.EPOCH LIMIT 100;

-- name: facts
-- The last two turns with their ends, and the state in RUN_QUEUE.
SELECT Q.STATUS, Q.EPOCH, Q.OWNER, Q.ATTEMPTS, Q.RUN_ID, Q.EXIT_CODE, Q.REASON, Q.AVAILABLE_AT, Q.ENDED_AT,
       A.EPOCH, A.OWNER, A.STATUS, A.RUN_ID, A.REASON, A.ATTEMPTS, A.STARTED_AT,
       E.QUEUE_STATUS, E.RUN_ID, E.EXIT_CODE, E.REASON, E.ATTEMPTS, E.AVAILABLE_AT, E.ENDED_AT
FROM RUN_QUEUE Q LEFT JOIN RUN_ATTEMPTS A ON A.QUEUE_ID = Q.QUEUE_ID
    LEFT JOIN RUN_ATTEMPT_ENDS E ON E.QUEUE_ID = A.QUEUE_ID AND E.EPOCH = A.EPOCH
WHERE Q.QUEUE_ID = ? ORDER BY A.EPOCH DESC LIMIT 2;

-- name: read
SELECT ROW_NUMBER() OVER (ORDER BY A.EPOCH), A.EPOCH, A.OWNER, COALESCE(E.RUN_ID, A.RUN_ID), COALESCE(E.STATUS, A.STATUS),
       COALESCE(E.EXIT_CODE, A.EXIT_CODE), COALESCE(E.REASON, A.REASON), A.STARTED_AT, COALESCE(E.ENDED_AT, A.ENDED_AT)
FROM RUN_ATTEMPTS A LEFT JOIN RUN_ATTEMPT_ENDS E ON E.QUEUE_ID = A.QUEUE_ID AND E.EPOCH = A.EPOCH
WHERE A.QUEUE_ID = ? AND A.OWNER > '' ORDER BY A.EPOCH;
