-- The due times (fires) of schedules. The enforced key (SCHEDULE_ID, FIRE_AT) decides between schedulers.

-- name: record
-- 0 rows: the schedule was disabled, removed or settled past this fire in the meantime. 200001: another process was
-- faster.
INSERT INTO SCHEDULE_FIRES (SCHEDULE_ID, FIRE_AT, OUTCOME, CREATED_AT)
SELECT S.SCHEDULE_ID, TO_TIMESTAMP_NTZ(?), ?, SYSDATE()
FROM SCHEDULES S LEFT JOIN SCHEDULE_PROGRESS P ON P.SCHEDULE_ID = S.SCHEDULE_ID
WHERE S.SCHEDULE_ID = ? AND S.ENABLED = TRUE
  AND GREATEST(S.LAST_FIRE_AT, COALESCE(P.LAST_FIRE_AT, S.LAST_FIRE_AT)) < TO_TIMESTAMP_NTZ(?);

-- name: recorded
-- After a lost answer.
SELECT OUTCOME FROM SCHEDULE_FIRES WHERE SCHEDULE_ID = ? AND FIRE_AT = TO_TIMESTAMP_NTZ(?);

-- name: due
-- Fires that are recorded and not known to be queued: a scheduler is queuing the run, or has ended before. NAME is
-- NULL if the schedule was removed. A few per schedule: one that always fails must not block others.
SELECT F.SCHEDULE_ID, F.FIRE_AT, S.NAME
FROM SCHEDULE_FIRES F LEFT JOIN SCHEDULES S ON S.SCHEDULE_ID = F.SCHEDULE_ID
WHERE F.OUTCOME = 'DUE'
QUALIFY ROW_NUMBER() OVER (PARTITION BY F.SCHEDULE_ID ORDER BY F.FIRE_AT DESC) <= 20
ORDER BY F.FIRE_AT DESC, F.SCHEDULE_ID LIMIT {limit};

-- name: queued
UPDATE SCHEDULE_FIRES SET OUTCOME = 'QUEUED', QUEUE_ID = ? WHERE SCHEDULE_ID = ? AND FIRE_AT = TO_TIMESTAMP_NTZ(?)
  AND OUTCOME = 'DUE';

-- name: last_run
-- The state of the run of the last fire with a run. NULL: it is not queued yet, or was deleted since.
SELECT F.OUTCOME, Q.STATUS
FROM SCHEDULE_FIRES F LEFT JOIN RUN_QUEUE Q ON Q.QUEUE_ID = F.QUEUE_ID
WHERE F.SCHEDULE_ID = ? AND (F.OUTCOME = 'DUE' OR F.OUTCOME = 'QUEUED')
ORDER BY F.FIRE_AT DESC LIMIT 1;

-- name: newest
SELECT F.FIRE_AT, F.OUTCOME, F.QUEUE_ID, Q.STATUS, Q.RUN_ID, Q.EXIT_CODE
FROM SCHEDULE_FIRES F LEFT JOIN RUN_QUEUE Q ON Q.QUEUE_ID = F.QUEUE_ID
WHERE F.SCHEDULE_ID = ? ORDER BY F.FIRE_AT DESC LIMIT {limit};

-- name: delete_old
-- Their outcome is final, so they are never recorded again.
DELETE FROM SCHEDULE_FIRES
WHERE SCHEDULE_ID = ? AND FIRE_AT < DATEADD(day, ?, SYSDATE()) AND OUTCOME <> 'DUE';

-- name: remove
DELETE FROM SCHEDULE_FIRES WHERE SCHEDULE_ID = ?;
