-- A term of office over a run. Correctness rests on the enforced key (RUN_ID, EPOCH) and on two conditions that leave a
-- gap between one holder and the next: a renewal needs a term that has not expired, a successor one that expired 10 s
-- ago. A statement of the holder that began in time has ended by then: the server ends it after 8 s.

-- name: newest
-- The current term and how long it still lasts, by the server's clock; negative: since when it has been over.
SELECT EPOCH, OWNER, DATEDIFF(millisecond, SYSDATE(), EXPIRES_AT) AS REMAINING_MS
FROM RUN_LEASES WHERE RUN_ID = ? ORDER BY EPOCH DESC LIMIT 1;

-- name: claim_first
-- 200001: somebody was faster.
INSERT INTO RUN_LEASES (RUN_ID, EPOCH, OWNER, EXPIRES_AT)
SELECT ?, 1, ?, DATEADD(millisecond, ?, SYSDATE());

-- name: claim_next
-- 0 rows: the term was renewed since it was read. 200001: somebody was faster.
INSERT INTO RUN_LEASES (RUN_ID, EPOCH, OWNER, EXPIRES_AT)
SELECT RUN_ID, EPOCH + 1, ?, DATEADD(millisecond, ?, SYSDATE())
FROM RUN_LEASES WHERE RUN_ID = ? AND EPOCH = ? AND EXPIRES_AT < DATEADD(millisecond, ?, SYSDATE());

-- name: join
-- A term beside those that live, for whoever does not want to be alone. 200001: somebody was faster.
INSERT INTO RUN_LEASES (RUN_ID, EPOCH, OWNER, EXPIRES_AT)
SELECT ?, ?, ?, DATEADD(millisecond, ?, SYSDATE());

-- name: living
-- Of the terms that are not over, the one that lasts longest.
SELECT EPOCH, OWNER, DATEDIFF(millisecond, SYSDATE(), EXPIRES_AT) AS REMAINING_MS
FROM RUN_LEASES WHERE RUN_ID = ? AND EXPIRES_AT > SYSDATE() ORDER BY EXPIRES_AT DESC LIMIT 1;

-- name: renew
-- 0 rows: the term is over, whether or not there is a successor.
UPDATE RUN_LEASES SET EXPIRES_AT = DATEADD(millisecond, ?, SYSDATE())
WHERE RUN_ID = ? AND EPOCH = ? AND OWNER = ? AND EXPIRES_AT > SYSDATE();

-- name: release
-- Expired for longer than a successor has to wait: the holder has stopped, and says so.
UPDATE RUN_LEASES SET EXPIRES_AT = DATEADD(millisecond, ?, SYSDATE())
WHERE RUN_ID = ? AND EPOCH = ? AND OWNER = ? AND EXPIRES_AT > SYSDATE();

-- name: expire
-- The holder's process is gone: nothing begins under its term from now on. What began before has ended after the margin
-- that a successor waits for anyway.
UPDATE RUN_LEASES SET EXPIRES_AT = SYSDATE()
WHERE RUN_ID = ? AND EPOCH = ? AND OWNER = ? AND EXPIRES_AT > SYSDATE();

-- name: bury
-- As release, for a holder whose process is gone, also when its term has just expired. Nothing comes back to life by it.
UPDATE RUN_LEASES SET EXPIRES_AT = DATEADD(millisecond, ?, SYSDATE())
WHERE RUN_ID = ? AND EPOCH = ? AND OWNER = ?;
