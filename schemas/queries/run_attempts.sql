-- The turns of a queued run, numbered by EPOCH. The enforced key (QUEUE_ID, EPOCH) decides who has the next turn. A turn
-- is an attempt, or, without an OWNER, a wish of a user: CANCELLED or RETRIED. The end of an attempt is a row of
-- RUN_ATTEMPT_ENDS, whose key decides between its owner and the process that finds its lease expired.

-- name: claim
-- 200001: the turn is taken. 0 rows: the claimer is not ONLINE or does as many runs as its CAPACITY says, perhaps without
-- knowing of them, or the target (empty: of no matter) is being measured. The last condition does not keep two claims of one instant apart; the lease on the warehouse does, and the second run
-- gives its claim back.
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
-- Whose turn it is, after an answer was lost.
SELECT OWNER FROM RUN_ATTEMPTS WHERE QUEUE_ID = ? AND EPOCH = ?;

-- name: wish
-- A user's turn. 200001: the turn is taken.
INSERT INTO RUN_ATTEMPTS (QUEUE_ID, EPOCH, OWNER, STATUS, REASON, ATTEMPTS, STARTED_AT, ENDED_AT)
SELECT ?, ?, '', ?, ?, 0, SYSDATE(), SYSDATE();

-- name: extend
-- By the owner, from now. 0 rows: the lease has expired, or the attempt was ended.
UPDATE RUN_ATTEMPTS SET EXPIRES_AT = DATEADD(millisecond, ?, SYSDATE()), RUN_ID = COALESCE(?, RUN_ID)
WHERE QUEUE_ID = ? AND EPOCH = ? AND OWNER = ? AND EXPIRES_AT > SYSDATE()
  AND NOT EXISTS (SELECT 1 FROM RUN_ATTEMPT_ENDS WHERE QUEUE_ID = ? AND EPOCH = ?);

-- name: set_run
UPDATE RUN_ATTEMPTS SET RUN_ID = ?
WHERE QUEUE_ID = ? AND EPOCH = ? AND OWNER = ? AND EXPIRES_AT > SYSDATE()
  AND NOT EXISTS (SELECT 1 FROM RUN_ATTEMPT_ENDS WHERE QUEUE_ID = ? AND EPOCH = ?);

-- name: look
-- Whether a user wants its end. No row: the lease is over.
SELECT (SELECT COUNT(*) FROM RUN_ATTEMPTS WHERE QUEUE_ID = ? AND EPOCH = ? AND STATUS = 'CANCELLED') AS CANCELS
FROM RUN_ATTEMPTS
WHERE QUEUE_ID = ? AND EPOCH = ? AND OWNER = ? AND EXPIRES_AT > SYSDATE()
  AND NOT EXISTS (SELECT 1 FROM RUN_ATTEMPT_ENDS WHERE QUEUE_ID = ? AND EPOCH = ?);

-- name: wanted
-- What its run is made of, and the number of the attempt as `read` has it.
SELECT Q.NAME, Q.SCENARIO, Q.FILES, Q.CONNECTION, A.ATTEMPTS,
       (SELECT COUNT(*) FROM RUN_ATTEMPTS WHERE QUEUE_ID = ? AND OWNER > '' AND EPOCH <= ?) AS NUMBER_OF_ALL
FROM RUN_ATTEMPTS A JOIN RUN_QUEUE Q ON Q.QUEUE_ID = A.QUEUE_ID
WHERE A.QUEUE_ID = ? AND A.EPOCH = ? AND A.OWNER = ?;

-- name: end
-- By the owner. 200001: it has its end. 0 rows: the lease is over. Without a QUEUE_STATUS it is tried again, if attempts
-- are left; the binds after it are what is taken off their count: 1 when this one does not count.
INSERT INTO RUN_ATTEMPT_ENDS (
    QUEUE_ID, EPOCH, STATUS, QUEUE_STATUS, RUN_ID, EXIT_CODE, REASON, ATTEMPTS, AVAILABLE_AT, ENDED_AT)
SELECT A.QUEUE_ID, A.EPOCH, ?, COALESCE(?, IFF(A.ATTEMPTS - ? >= Q.MAX_ATTEMPTS, 'EXHAUSTED', 'QUEUED')),
       COALESCE(?, A.RUN_ID), ?, ?, A.ATTEMPTS - ?, DATEADD(millisecond, ?, SYSDATE()), SYSDATE()
FROM RUN_ATTEMPTS A JOIN RUN_QUEUE Q ON Q.QUEUE_ID = A.QUEUE_ID
WHERE A.QUEUE_ID = ? AND A.EPOCH = ? AND A.OWNER = ? AND A.EXPIRES_AT > SYSDATE();

-- name: mark_lost
-- By any process. 200001: it has its end. 0 rows: the lease lasts longer than the last bind says.
INSERT INTO RUN_ATTEMPT_ENDS (
    QUEUE_ID, EPOCH, STATUS, QUEUE_STATUS, RUN_ID, REASON, ATTEMPTS, AVAILABLE_AT, ENDED_AT)
SELECT A.QUEUE_ID, A.EPOCH, 'LOST', IFF(A.ATTEMPTS >= Q.MAX_ATTEMPTS, 'EXHAUSTED', 'QUEUED'), A.RUN_ID, ?, A.ATTEMPTS,
       SYSDATE(), SYSDATE()
FROM RUN_ATTEMPTS A JOIN RUN_QUEUE Q ON Q.QUEUE_ID = A.QUEUE_ID
WHERE A.QUEUE_ID = ? AND A.EPOCH = ? AND A.OWNER > '' AND A.EXPIRES_AT < DATEADD(millisecond, ?, SYSDATE());

-- name: ended
-- Whose word counts, after an answer was lost.
SELECT STATUS FROM RUN_ATTEMPT_ENDS WHERE QUEUE_ID = ? AND EPOCH = ?;

-- name: open_of
-- Attempts of an owner that have no end.
SELECT A.QUEUE_ID, A.EPOCH FROM RUN_ATTEMPTS A
WHERE A.OWNER = ?
  AND NOT EXISTS (SELECT 1 FROM RUN_ATTEMPT_ENDS E WHERE E.QUEUE_ID = A.QUEUE_ID AND E.EPOCH = A.EPOCH)
ORDER BY A.QUEUE_ID, A.EPOCH LIMIT 100;

-- name: facts
-- The last two turns with their ends, and what RUN_QUEUE repeats of them.
SELECT Q.STATUS, Q.EPOCH, Q.OWNER, Q.ATTEMPTS, Q.RUN_ID, Q.EXIT_CODE, Q.REASON, Q.AVAILABLE_AT, Q.ENDED_AT,
       A.EPOCH, A.OWNER, A.STATUS, A.RUN_ID, A.REASON, A.ATTEMPTS, A.STARTED_AT, A.EXPIRES_AT,
       E.QUEUE_STATUS, E.RUN_ID, E.EXIT_CODE, E.REASON, E.ATTEMPTS, E.AVAILABLE_AT, E.ENDED_AT
FROM RUN_QUEUE Q LEFT JOIN RUN_ATTEMPTS A ON A.QUEUE_ID = Q.QUEUE_ID
    LEFT JOIN RUN_ATTEMPT_ENDS E ON E.QUEUE_ID = A.QUEUE_ID AND E.EPOCH = A.EPOCH
WHERE Q.QUEUE_ID = ? ORDER BY A.EPOCH DESC LIMIT 2;

-- name: read
SELECT ROW_NUMBER() OVER (ORDER BY A.EPOCH), A.EPOCH, A.OWNER, COALESCE(E.RUN_ID, A.RUN_ID), COALESCE(E.STATUS, A.STATUS),
       COALESCE(E.EXIT_CODE, A.EXIT_CODE), COALESCE(E.REASON, A.REASON), A.STARTED_AT, COALESCE(E.ENDED_AT, A.ENDED_AT)
FROM RUN_ATTEMPTS A LEFT JOIN RUN_ATTEMPT_ENDS E ON E.QUEUE_ID = A.QUEUE_ID AND E.EPOCH = A.EPOCH
WHERE A.QUEUE_ID = ? AND A.OWNER > '' ORDER BY A.EPOCH;
