-- name: emit
-- With the number after the last one that the leader knows, and only with a valid lease. 1 row: done. 0 rows: the lease
-- has expired. 200001: another writer has used the number, or this event exists already (EVENT_ID): look it up, then
-- retry.
INSERT INTO RUN_CONTROL_EVENTS (RUN_ID, SEQUENCE_ID, EVENT_ID, EPOCH, EVENT_TYPE, EVENT_DATA, CREATED_AT)
SELECT RUN_ID, ?, ?, EPOCH, ?, ?, SYSDATE()
FROM RUN_LEASES WHERE RUN_ID = ? AND EPOCH = ? AND OWNER = ? AND EXPIRES_AT > SYSDATE();

-- name: find
-- The number of an event, after a lost answer.
SELECT SEQUENCE_ID FROM RUN_CONTROL_EVENTS WHERE EVENT_ID = ?;

-- name: last
-- The number of the newest event, after another writer was faster. NULL: there is none.
SELECT MAX(SEQUENCE_ID) FROM RUN_CONTROL_EVENTS WHERE RUN_ID = ?;

-- name: poll
-- The next events in order, each with its age by the clock of the server, and the time until its `effective_at`. A time
-- relative to the insertion (`lead_ms`) follows from the age. Both are relative to SERVER_TIME.
SELECT SEQUENCE_ID, EVENT_ID, EPOCH, EVENT_TYPE, EVENT_DATA, DATEDIFF(millisecond, CREATED_AT, SYSDATE()) AS AGE_MS,
       DATEDIFF(millisecond, SYSDATE(), TRY_TO_TIMESTAMP_NTZ(TRY_PARSE_JSON(EVENT_DATA):effective_at::VARCHAR)) AS DUE_IN_MS,
       SYSDATE() AS SERVER_TIME
FROM RUN_CONTROL_EVENTS WHERE RUN_ID = ? AND SEQUENCE_ID > ? ORDER BY SEQUENCE_ID LIMIT 100;

-- name: history
-- All events of a run with the times of their insertion: for reports, after the run.
SELECT SEQUENCE_ID, EVENT_TYPE, EVENT_DATA, CREATED_AT FROM RUN_CONTROL_EVENTS WHERE RUN_ID = ? ORDER BY SEQUENCE_ID;
