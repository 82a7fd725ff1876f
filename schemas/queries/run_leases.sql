-- Leases. Correctness depends on the enforced key (RUN_ID, EPOCH), and on two conditions that leave a gap between two
-- holders: a renewal requires a lease that has not expired, a successor requires one that expired 10 s ago. By then,
-- every statement that the holder sent in time has ended: the server ends it after 8 s.

-- name: newest
-- The newest lease and its remaining time, by the clock of the server; negative: the time since it expired.
SELECT EPOCH, OWNER, DATEDIFF(millisecond, SYSDATE(), EXPIRES_AT) AS REMAINING_MS
FROM RUN_LEASES WHERE RUN_ID = ? ORDER BY EPOCH DESC LIMIT 1;

-- name: claim_first
-- 200001: another process was faster.
INSERT INTO RUN_LEASES (RUN_ID, EPOCH, OWNER, EXPIRES_AT)
SELECT ?, 1, ?, DATEADD(millisecond, ?, SYSDATE());

-- name: claim_next
-- 0 rows: the lease was renewed since it was read. 200001: another process was faster.
INSERT INTO RUN_LEASES (RUN_ID, EPOCH, OWNER, EXPIRES_AT)
SELECT RUN_ID, EPOCH + 1, ?, DATEADD(millisecond, ?, SYSDATE())
FROM RUN_LEASES WHERE RUN_ID = ? AND EPOCH = ? AND EXPIRES_AT < DATEADD(millisecond, ?, SYSDATE());

-- name: join
-- A lease in addition to valid ones, for shared use. 200001: another process was faster.
INSERT INTO RUN_LEASES (RUN_ID, EPOCH, OWNER, EXPIRES_AT)
SELECT ?, ?, ?, DATEADD(millisecond, ?, SYSDATE());

-- name: unexpired
-- The valid lease with the longest remaining time.
SELECT EPOCH, OWNER, DATEDIFF(millisecond, SYSDATE(), EXPIRES_AT) AS REMAINING_MS
FROM RUN_LEASES WHERE RUN_ID = ? AND EXPIRES_AT > SYSDATE() ORDER BY EXPIRES_AT DESC LIMIT 1;

-- name: every
-- All leases of a key, in order of their epochs.
SELECT EPOCH, OWNER, EXPIRES_AT FROM RUN_LEASES WHERE RUN_ID = ? ORDER BY EPOCH;

-- name: renew
-- 0 rows: the lease has expired, with or without a successor.
UPDATE RUN_LEASES SET EXPIRES_AT = DATEADD(millisecond, ?, SYSDATE())
WHERE RUN_ID = ? AND EPOCH = ? AND OWNER = ? AND EXPIRES_AT > SYSDATE();

-- name: release
-- Set to expired for longer than the takeover margin: the holder has stopped.
UPDATE RUN_LEASES SET EXPIRES_AT = DATEADD(millisecond, ?, SYSDATE())
WHERE RUN_ID = ? AND EPOCH = ? AND OWNER = ? AND EXPIRES_AT > SYSDATE();

-- name: expire
-- The process of the holder has ended, so it sends no more statements. Earlier ones have ended after the takeover
-- margin, for which a successor waits.
UPDATE RUN_LEASES SET EXPIRES_AT = SYSDATE()
WHERE RUN_ID = ? AND EPOCH = ? AND OWNER = ? AND EXPIRES_AT > SYSDATE();

-- name: release_of_dead
-- As release, for a holder whose process has ended, also if its lease has just expired. It never extends a lease.
UPDATE RUN_LEASES SET EXPIRES_AT = DATEADD(millisecond, ?, SYSDATE())
WHERE RUN_ID = ? AND EPOCH = ? AND OWNER = ?;
