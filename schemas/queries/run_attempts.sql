-- One row per claim of a queued run. It is written before the attempt does anything; where its owner did not come to
-- that, by whoever finds the lease expired. So each epoch of a queued run has one.

-- name: begin
-- 200001: it is there. STARTED_AT is the moment of the claim.
INSERT INTO RUN_ATTEMPTS (QUEUE_ID, EPOCH, OWNER, STATUS, REASON, STARTED_AT, ENDED_AT)
SELECT QUEUE_ID, EPOCH, OWNER, ?, ?, UPDATED_AT, IFF(? = 1, SYSDATE(), NULL)
FROM RUN_QUEUE WHERE QUEUE_ID = ? AND EPOCH = ? AND OWNER = ?;

-- name: set_run
UPDATE RUN_ATTEMPTS SET RUN_ID = ? WHERE QUEUE_ID = ? AND EPOCH = ?;

-- name: end
-- Once: how an attempt ended is not rewritten.
UPDATE RUN_ATTEMPTS SET STATUS = ?, RUN_ID = COALESCE(?, RUN_ID), EXIT_CODE = ?, REASON = ?, ENDED_AT = SYSDATE()
WHERE QUEUE_ID = ? AND EPOCH = ? AND STATUS = 'RUNNING';

-- name: read
SELECT EPOCH, OWNER, RUN_ID, STATUS, EXIT_CODE, REASON, STARTED_AT, ENDED_AT
FROM RUN_ATTEMPTS WHERE QUEUE_ID = ? ORDER BY EPOCH;

-- name: unsettled
-- Attempts that seem to run while the queue has gone on without them: their owner ended between two statements.
SELECT A.QUEUE_ID, A.EPOCH, Q.EPOCH, Q.STATUS, Q.RUN_ID, Q.EXIT_CODE, Q.REASON
FROM RUN_ATTEMPTS A JOIN RUN_QUEUE Q ON Q.QUEUE_ID = A.QUEUE_ID
WHERE A.STATUS = 'RUNNING' AND Q.UPDATED_AT < DATEADD(second, -10, SYSDATE())
  AND (Q.EPOCH > A.EPOCH OR (Q.STATUS <> 'RUNNING' AND Q.STATUS <> 'CANCEL_REQUESTED'))
ORDER BY A.QUEUE_ID, A.EPOCH LIMIT 100;
