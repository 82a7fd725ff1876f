-- name: emit
-- The number after the last one that the leader knows, and only in the name of a living term. 1 row: it is done, and
-- nothing is left to ask. 0 rows: the term is over. 200001: another writer took the number, or this event is there
-- already (EVENT_ID): look, then try again.
INSERT INTO RUN_CONTROL_EVENTS (RUN_ID, SEQUENCE_ID, EVENT_ID, EPOCH, EVENT_TYPE, EVENT_DATA, CREATED_AT)
SELECT RUN_ID, ?, ?, EPOCH, ?, ?, SYSDATE()
FROM RUN_LEASES WHERE RUN_ID = ? AND EPOCH = ? AND OWNER = ? AND EXPIRES_AT > SYSDATE();

-- name: find
-- The number that an event has got: its answer was lost.
SELECT SEQUENCE_ID FROM RUN_CONTROL_EVENTS WHERE EVENT_ID = ?;

-- name: last
-- The number of the newest event: another writer was faster. NULL: there is none.
SELECT MAX(SEQUENCE_ID) FROM RUN_CONTROL_EVENTS WHERE RUN_ID = ?;

-- name: poll
-- The next events in order, each with its age by the server's clock, and how far away its `effective_at` is. A moment
-- that counts from the insertion (`lead_ms`) is as far away as the age says. SERVER_TIME is what both are counted from.
SELECT SEQUENCE_ID, EVENT_ID, EPOCH, EVENT_TYPE, EVENT_DATA, DATEDIFF(millisecond, CREATED_AT, SYSDATE()) AS AGE_MS,
       DATEDIFF(millisecond, SYSDATE(), TRY_TO_TIMESTAMP_NTZ(TRY_PARSE_JSON(EVENT_DATA):effective_at::VARCHAR)) AS DUE_IN_MS,
       SYSDATE() AS SERVER_TIME
FROM RUN_CONTROL_EVENTS WHERE RUN_ID = ? AND SEQUENCE_ID > ? ORDER BY SEQUENCE_ID LIMIT 100;

-- name: history
-- All events of a run with the moments they were written: for reports, after the run.
SELECT SEQUENCE_ID, EVENT_TYPE, EVENT_DATA, CREATED_AT FROM RUN_CONTROL_EVENTS WHERE RUN_ID = ? ORDER BY SEQUENCE_ID;
