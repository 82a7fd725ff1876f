-- Runs that somebody wants. A claim is an UPDATE that one claimer wins; EPOCH counts claims, and every write of an owner
-- carries it with the condition that his lease (AVAILABLE_AT) has not passed: who slept past it changes nothing.

-- name: add
-- 200001: there is one with this idempotency key.
INSERT INTO RUN_QUEUE (
    QUEUE_ID, IDEMPOTENCY_KEY, NAME, SCENARIO, FILES, CONNECTION, TARGET, REQUIRES, PRIORITY, STATUS, AVAILABLE_AT,
    EPOCH, ATTEMPTS, MAX_ATTEMPTS, CREATED_AT, UPDATED_AT)
SELECT ?, ?, ?, ?, ?, ?, ?, ?, ?, 'QUEUED', COALESCE(TO_TIMESTAMP_NTZ(?), SYSDATE()), 0, 0, ?, SYSDATE(), SYSDATE();

-- name: find_key
SELECT QUEUE_ID FROM RUN_QUEUE WHERE IDEMPOTENCY_KEY = ?;

-- name: read
SELECT QUEUE_ID, IDEMPOTENCY_KEY, NAME, CONNECTION, TARGET, REQUIRES, PRIORITY, STATUS, AVAILABLE_AT, OWNER, EPOCH,
       ATTEMPTS, MAX_ATTEMPTS, RUN_ID, EXIT_CODE, REASON, CREATED_AT, ENDED_AT, UPDATED_AT,
       DATEDIFF(millisecond, SYSDATE(), AVAILABLE_AT) AS AVAILABLE_IN_MS
FROM RUN_QUEUE WHERE QUEUE_ID = ?;

-- name: read_files
SELECT FILES FROM RUN_QUEUE WHERE QUEUE_ID = ?;

-- name: newest
SELECT QUEUE_ID, IDEMPOTENCY_KEY, NAME, CONNECTION, TARGET, REQUIRES, PRIORITY, STATUS, AVAILABLE_AT, OWNER, EPOCH,
       ATTEMPTS, MAX_ATTEMPTS, RUN_ID, EXIT_CODE, REASON, CREATED_AT, ENDED_AT, UPDATED_AT,
       DATEDIFF(millisecond, SYSDATE(), AVAILABLE_AT) AS AVAILABLE_IN_MS
FROM RUN_QUEUE WHERE STATUS = COALESCE(?, STATUS) ORDER BY CREATED_AT DESC, QUEUE_ID DESC LIMIT {limit};

-- name: waiting
-- What could begin now, if there were a runner for it.
SELECT QUEUE_ID, NAME, REQUIRES, DATEDIFF(second, AVAILABLE_AT, SYSDATE()) AS WAITED_S FROM RUN_QUEUE
WHERE STATUS = 'QUEUED' AND AVAILABLE_AT <= SYSDATE() AND ATTEMPTS < MAX_ATTEMPTS
ORDER BY PRIORITY DESC, CREATED_AT, QUEUE_ID LIMIT 100;

-- name: note
-- Why it waits. 0 rows: that is known, or it does not wait.
UPDATE RUN_QUEUE SET REASON = ?, UPDATED_AT = SYSDATE()
WHERE QUEUE_ID = ? AND STATUS = 'QUEUED' AND (REASON IS NULL OR REASON <> ?);

-- name: scenario
SELECT SCENARIO FROM RUN_QUEUE WHERE QUEUE_ID = ?;

-- name: beginning_with
SELECT QUEUE_ID FROM RUN_QUEUE WHERE STARTSWITH(QUEUE_ID, ?) ORDER BY QUEUE_ID LIMIT {limit};

-- name: cancel
-- A user's wish. What waits is cancelled at once; what runs is its owner's to end. 0 rows: it has ended, or is asked
-- already.
UPDATE RUN_QUEUE SET
    STATUS = IFF(STATUS = 'QUEUED', 'CANCELLED', 'CANCEL_REQUESTED'), REASON = ?,
    ENDED_AT = IFF(STATUS = 'QUEUED', SYSDATE(), NULL), UPDATED_AT = SYSDATE()
WHERE QUEUE_ID = ? AND (STATUS = 'QUEUED' OR STATUS = 'RUNNING');

-- name: retry
-- A user's wish: all attempts again. The epoch goes on. 0 rows: it has not ended, or it was done.
UPDATE RUN_QUEUE SET
    STATUS = 'QUEUED', AVAILABLE_AT = SYSDATE(), OWNER = NULL, ATTEMPTS = 0, RUN_ID = NULL, EXIT_CODE = NULL,
    REASON = ?, ENDED_AT = NULL, UPDATED_AT = SYSDATE()
WHERE QUEUE_ID = ? AND (STATUS = 'FAILED' OR STATUS = 'CANCELLED' OR STATUS = 'EXHAUSTED');

-- name: candidates
-- What may be taken now by someone who offers these capabilities, the most urgent first, then the oldest. A run waits
-- while another one measures the same target: two at once would measure each other; the second bind is 1 for someone
-- who shares targets. A row whose REQUIRES makes no sense or is too long is never taken, and keeps nobody from the
-- others.
SELECT QUEUE_ID, EPOCH, STATUS, OWNER, TARGET FROM RUN_QUEUE Q
WHERE (STATUS = 'QUEUED' OR STATUS = 'RUNNING') AND AVAILABLE_AT <= SYSDATE() AND ATTEMPTS < MAX_ATTEMPTS
  AND ARRAY_SIZE(ARRAY_EXCEPT(TO_ARRAY(TRY_PARSE_JSON(IFF(LENGTH(REQUIRES) <= 16000, REQUIRES, NULL))), TO_ARRAY(PARSE_JSON(?)))) = 0
  AND NOT EXISTS (
      SELECT 1 FROM RUN_QUEUE B
      WHERE ? = 0 AND B.TARGET = Q.TARGET AND B.TARGET <> '' AND (B.STATUS = 'RUNNING' OR B.STATUS = 'CANCEL_REQUESTED')
        AND B.AVAILABLE_AT > SYSDATE())
ORDER BY PRIORITY DESC, CREATED_AT, QUEUE_ID LIMIT {limit};

-- name: depth
-- How many runs could begin now, if there were runners with these capabilities: of those with one target only one,
-- unless targets are shared (1).
SELECT COUNT(DISTINCT IFF(TARGET = '' OR ? = 1, QUEUE_ID, TARGET)) FROM RUN_QUEUE Q
WHERE (STATUS = 'QUEUED' OR STATUS = 'RUNNING') AND AVAILABLE_AT <= SYSDATE() AND ATTEMPTS < MAX_ATTEMPTS
  AND ARRAY_SIZE(ARRAY_EXCEPT(TO_ARRAY(TRY_PARSE_JSON(IFF(LENGTH(REQUIRES) <= 16000, REQUIRES, NULL))), TO_ARRAY(PARSE_JSON(?)))) = 0
  AND NOT EXISTS (
      SELECT 1 FROM RUN_QUEUE B
      WHERE ? = 0 AND B.TARGET = Q.TARGET AND B.TARGET <> '' AND (B.STATUS = 'RUNNING' OR B.STATUS = 'CANCEL_REQUESTED')
        AND B.AVAILABLE_AT > SYSDATE());

-- name: claim
-- 0 rows: another was faster, the target (empty: of no matter) is being measured, or the claimer is not ONLINE. The last condition does not
-- keep two claims of one instant apart; the lease on the warehouse does, and the second run gives its claim back.
UPDATE RUN_QUEUE SET
    STATUS = 'RUNNING', OWNER = ?, EPOCH = EPOCH + 1, ATTEMPTS = ATTEMPTS + 1,
    AVAILABLE_AT = DATEADD(millisecond, ?, SYSDATE()), RUN_ID = NULL, EXIT_CODE = NULL, REASON = NULL,
    UPDATED_AT = SYSDATE()
WHERE QUEUE_ID = ? AND EPOCH = ? AND (STATUS = 'QUEUED' OR STATUS = 'RUNNING') AND AVAILABLE_AT <= SYSDATE()
  AND ATTEMPTS < MAX_ATTEMPTS
  AND EXISTS (
      SELECT 1 FROM POOL_WORKERS
      WHERE WORKER_ID = ? AND STATUS = 'ONLINE' AND LAST_BEAT_AT > DATEADD(second, -30, SYSDATE()))
  AND NOT EXISTS (
      SELECT 1 FROM RUN_QUEUE
      WHERE TARGET = ? AND TARGET <> '' AND (STATUS = 'RUNNING' OR STATUS = 'CANCEL_REQUESTED')
        AND AVAILABLE_AT > SYSDATE());

-- name: refuse
-- One that no claim can succeed on.
UPDATE RUN_QUEUE SET STATUS = 'FAILED', REASON = ?, ENDED_AT = SYSDATE(), UPDATED_AT = SYSDATE()
WHERE QUEUE_ID = ? AND EPOCH = ? AND (STATUS = 'QUEUED' OR STATUS = 'RUNNING') AND AVAILABLE_AT <= SYSDATE();

-- name: claimed
SELECT NAME, SCENARIO, FILES, CONNECTION, ATTEMPTS FROM RUN_QUEUE WHERE QUEUE_ID = ? AND EPOCH = ? AND OWNER = ?;

-- name: extend
-- All leases of an owner at once, from now. One that has passed stays passed: there may be a successor.
UPDATE RUN_QUEUE SET AVAILABLE_AT = DATEADD(millisecond, ?, SYSDATE())
WHERE OWNER = ? AND (STATUS = 'RUNNING' OR STATUS = 'CANCEL_REQUESTED') AND AVAILABLE_AT > SYSDATE();

-- name: expire
-- The owner is gone, says whoever knows: its runs need not wait for the end of their leases.
UPDATE RUN_QUEUE SET AVAILABLE_AT = SYSDATE(), UPDATED_AT = SYSDATE()
WHERE OWNER = ? AND (STATUS = 'RUNNING' OR STATUS = 'CANCEL_REQUESTED') AND AVAILABLE_AT > SYSDATE();

-- name: owners
-- Who holds a lease now.
SELECT DISTINCT OWNER FROM RUN_QUEUE
WHERE (STATUS = 'RUNNING' OR STATUS = 'CANCEL_REQUESTED') AND AVAILABLE_AT > SYSDATE() ORDER BY OWNER LIMIT 10000;

-- name: look
-- No row: the lease is over.
SELECT STATUS FROM RUN_QUEUE
WHERE QUEUE_ID = ? AND EPOCH = ? AND OWNER = ? AND (STATUS = 'RUNNING' OR STATUS = 'CANCEL_REQUESTED')
  AND AVAILABLE_AT > SYSDATE();

-- name: set_run
UPDATE RUN_QUEUE SET RUN_ID = ?, UPDATED_AT = SYSDATE()
WHERE QUEUE_ID = ? AND EPOCH = ? AND OWNER = ? AND (STATUS = 'RUNNING' OR STATUS = 'CANCEL_REQUESTED')
  AND AVAILABLE_AT > SYSDATE();

-- name: finish
UPDATE RUN_QUEUE SET
    STATUS = ?, RUN_ID = COALESCE(?, RUN_ID), EXIT_CODE = ?, REASON = COALESCE(?, REASON), ENDED_AT = SYSDATE(),
    UPDATED_AT = SYSDATE()
WHERE QUEUE_ID = ? AND EPOCH = ? AND OWNER = ? AND (STATUS = 'RUNNING' OR STATUS = 'CANCEL_REQUESTED')
  AND AVAILABLE_AT > SYSDATE();

-- name: give_back
-- Into the queue again after a pause, unless it was the last attempt or somebody wants its end. The first bind is what
-- is taken off the count of attempts: 1 when this one does not count.
UPDATE RUN_QUEUE SET
    ATTEMPTS = ATTEMPTS - ?,
    STATUS = IFF(STATUS = 'CANCEL_REQUESTED', 'CANCELLED', IFF(ATTEMPTS - ? >= MAX_ATTEMPTS, 'EXHAUSTED', 'QUEUED')),
    ENDED_AT = IFF(STATUS = 'CANCEL_REQUESTED' OR ATTEMPTS - ? >= MAX_ATTEMPTS, SYSDATE(), NULL),
    AVAILABLE_AT = DATEADD(millisecond, ?, SYSDATE()), RUN_ID = COALESCE(?, RUN_ID), EXIT_CODE = ?,
    REASON = COALESCE(?, REASON), UPDATED_AT = SYSDATE()
WHERE QUEUE_ID = ? AND EPOCH = ? AND OWNER = ? AND (STATUS = 'RUNNING' OR STATUS = 'CANCEL_REQUESTED')
  AND AVAILABLE_AT > SYSDATE();

-- name: abandoned
-- Runs whose owner let the lease expire and that nobody may take: they were the last attempt, or are to be cancelled.
SELECT QUEUE_ID, EPOCH, OWNER FROM RUN_QUEUE
WHERE AVAILABLE_AT <= SYSDATE() AND (STATUS = 'CANCEL_REQUESTED' OR (STATUS = 'RUNNING' AND ATTEMPTS >= MAX_ATTEMPTS))
ORDER BY QUEUE_ID LIMIT 100;

-- name: end_abandoned
UPDATE RUN_QUEUE SET
    STATUS = IFF(STATUS = 'CANCEL_REQUESTED', 'CANCELLED', 'EXHAUSTED'), REASON = COALESCE(REASON, ?),
    ENDED_AT = SYSDATE(), UPDATED_AT = SYSDATE()
WHERE QUEUE_ID = ? AND EPOCH = ? AND AVAILABLE_AT <= SYSDATE()
  AND (STATUS = 'CANCEL_REQUESTED' OR (STATUS = 'RUNNING' AND ATTEMPTS >= MAX_ATTEMPTS));
