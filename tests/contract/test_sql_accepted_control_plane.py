"""The statements of a control plane, as Snowflake accepts them: the embedded server runs them with its results."""

from __future__ import annotations

import json
from datetime import date, timedelta

import pytest
from snowflake.connector.errors import ProgrammingError

from tests.contract.accepted_builders import (
    CONTROL_TABLES,
    PRIMARY_KEY,
    RUN_CONTROL_EVENTS,
    an_id,
    ntz,
)
from tests.contract.sql import Sql

pytestmark = pytest.mark.any_driver


# --- valid statements of the specification ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", CONTROL_TABLES)
def test_a_control_table_is_made_as_written_and_again_without_harm(sql: Sql, name: str) -> None:
    made = sql.value(CONTROL_TABLES[name])
    again = sql.value(CONTROL_TABLES[name])

    assert made == f"Table {name} successfully created."
    assert again == f"{name} already exists, statement succeeded."
    (listed,) = sql.dicts(f"SHOW TABLES LIKE '{name}'")
    assert listed["is_hybrid"] == "Y"


def test_row_10_a_hybrid_table_may_have_a_variant_that_is_in_no_index(sql: Sql) -> None:
    sql(
        "CREATE HYBRID TABLE RUN_CONTROL_EVENTS (EVENT_ID VARCHAR(36) NOT NULL, RUN_ID VARCHAR(36) NOT NULL,"
        " EVENT_TYPE VARCHAR(50) NOT NULL, EVENT_DATA VARIANT NOT NULL, SEQUENCE_ID INTEGER NOT NULL,"
        " CREATED_AT TIMESTAMP_NTZ NOT NULL DEFAULT CURRENT_TIMESTAMP(), PRIMARY KEY (EVENT_ID))"
    )

    sql(
        "INSERT INTO RUN_CONTROL_EVENTS (EVENT_ID, RUN_ID, EVENT_TYPE, EVENT_DATA, SEQUENCE_ID)"
        " SELECT ?, 'r', 'START', PARSE_JSON(?), 1",
        "e",
        '{"target": {"w1": 5}}',
    )

    assert sql("SELECT EVENT_DATA:target.w1::NUMBER, TYPEOF(EVENT_DATA) FROM RUN_CONTROL_EVENTS") == [(5, "OBJECT")]


def test_row_11_an_index_can_be_added_to_a_hybrid_table_and_is_active(sql: Sql) -> None:
    sql(RUN_CONTROL_EVENTS)

    for _ in range(2):
        sql("CREATE INDEX IF NOT EXISTS IDX_EVENTS ON RUN_CONTROL_EVENTS (RUN_ID, EVENT_TYPE) INCLUDE (EVENT_DATA)")

    indexes = {index["name"]: index for index in sql.dicts("SHOW INDEXES IN TABLE RUN_CONTROL_EVENTS")}
    assert indexes["IDX_EVENTS"]["status"] == "ACTIVE"
    assert indexes["IDX_EVENTS"]["columns"] == "[RUN_ID, EVENT_TYPE]"
    assert indexes["IDX_EVENTS"]["included_columns"] == "[EVENT_DATA]"
    assert indexes["IDX_EVENTS"]["is_unique"] == "N"
    with pytest.raises(ProgrammingError) as caught:
        sql("CREATE INDEX IDX_EVENTS ON RUN_CONTROL_EVENTS (RUN_ID)")
    assert caught.value.errno == 2002


MERGE_HEARTBEAT = """
MERGE INTO WORKER_HEARTBEATS AS target
USING (SELECT ? AS RUN_ID, ? AS WORKER_ID, ? AS STATUS) AS source
ON target.RUN_ID = source.RUN_ID AND target.WORKER_ID = source.WORKER_ID
WHEN MATCHED THEN UPDATE SET STATUS = source.STATUS, LAST_HEARTBEAT = SYSDATE(),
    HEARTBEAT_COUNT = target.HEARTBEAT_COUNT + 1
WHEN NOT MATCHED THEN INSERT (RUN_ID, WORKER_ID, WORKER_GROUP_ID, STATUS, LAST_HEARTBEAT, HEARTBEAT_COUNT,
    ACTIVE_CONNECTIONS, TARGET_CONNECTIONS, ERROR_COUNT)
    VALUES (source.RUN_ID, source.WORKER_ID, 0, source.STATUS, SYSDATE(), 1, 0, 0, 0)
"""


def test_row_12_a_heartbeat_can_be_merged(control: Sql) -> None:
    counts = [control.count(MERGE_HEARTBEAT, "r", "worker-0", status) for status in ("STARTING", "READY", "READY")]

    assert counts == [1, 1, 1]
    assert control("SELECT STATUS, HEARTBEAT_COUNT FROM WORKER_HEARTBEATS") == [("READY", 3)]


def test_row_13_type_names_are_no_reserved_words(sql: Sql) -> None:
    sql(
        "CREATE TABLE TEST_LOGS (LOG_ID VARCHAR PRIMARY KEY, TIMESTAMP TIMESTAMP_NTZ, DATE DATE,"
        " TEXT TEXT, NUMBER NUMBER)"
    )
    sql(
        "INSERT INTO TEST_LOGS (LOG_ID, TIMESTAMP, DATE, TEXT, NUMBER) VALUES ('l', '2026-01-02"
        " 03:04:05', '2026-01-02', 'x', 1)"
    )

    rows = sql("SELECT TIMESTAMP, T.DATE, \"TEXT\", NUMBER FROM TEST_LOGS AS T WHERE TIMESTAMP > '2026-01-01'")

    assert rows == [(ntz("2026-01-02 03:04:05"), date(2026, 1, 2), "x", 1)]


def test_rows_14_and_15_a_test_result_is_inserted_and_updated(sql: Sql) -> None:
    sql("CREATE TABLE TEST_RESULTS (TEST_ID VARCHAR, STATUS VARCHAR, P95 FLOAT, CREATED_AT TIMESTAMP_NTZ)")

    inserted = sql.count("INSERT INTO TEST_RESULTS VALUES (?, ?, ?, CURRENT_TIMESTAMP())", "t", "RUNNING", 1.5)
    updated = sql.count("UPDATE TEST_RESULTS SET STATUS = ?, P95 = P95 * 2 WHERE TEST_ID = ?", "COMPLETED", "t")
    missed = sql.count("UPDATE TEST_RESULTS SET STATUS = ? WHERE TEST_ID = ?", "COMPLETED", "other")

    assert (inserted, updated, missed) == (1, 1, 0)
    assert sql("SELECT STATUS, P95 FROM TEST_RESULTS") == [("COMPLETED", 3.0)]


def test_row_16_events_are_polled_in_order(control: Sql) -> None:
    control.many(
        "INSERT INTO RUN_CONTROL_EVENTS VALUES (?, ?, ?, 'X', '{}', '2026-01-01')",
        [("r", n, an_id()) for n in range(120, 0, -1)] + [("other", 5, an_id())],
    )

    rows = control(
        "SELECT SEQUENCE_ID FROM RUN_CONTROL_EVENTS WHERE RUN_ID = ? AND SEQUENCE_ID > ? ORDER"
        " BY SEQUENCE_ID LIMIT 100",
        "r",
        10,
    )

    assert rows == [(n,) for n in range(11, 111)]


def test_row_17_a_variant_arrives_as_json_text(sql: Sql) -> None:
    sql("CREATE TABLE R (SCENARIO_CONFIG VARIANT, WORKER_TARGETS OBJECT, TAGS ARRAY)")
    sql("INSERT INTO R SELECT PARSE_JSON('{\"a\": [1, 2.50, null, true]}'), OBJECT_CONSTRUCT('w', 5), [1, 'x']")

    ((config, targets, tags),) = sql("SELECT SCENARIO_CONFIG, WORKER_TARGETS, TAGS FROM R")

    assert all(isinstance(text, str) for text in (config, targets, tags))
    assert json.loads(config) == {"a": [1, 2.5, None, True]}
    assert json.loads(targets) == {"w": 5}
    assert json.loads(tags) == [1, "x"]


def test_row_18_timestampdiff_counts_boundaries(utc: Sql) -> None:
    row = utc(
        "SELECT TIMESTAMPDIFF('second', '2026-01-01 00:00:00.999'::TIMESTAMP_NTZ, '2026-01-01"
        " 00:00:01.001'::TIMESTAMP_NTZ),"
        " TIMESTAMPDIFF('second', DATEADD(second, -121, SYSDATE()), CURRENT_TIMESTAMP()) BETWEEN 120 AND 180,"
        " DATEDIFF(year, '2025-12-31'::DATE, '2026-01-01'::DATE)"
    )

    assert row == [(1, True, 1)]


def test_row_19_text_integer_and_float_are_column_types(sql: Sql) -> None:
    sql(
        "CREATE TABLE X (A TEXT, B INTEGER, C FLOAT, D STRING, E BIGINT, F DOUBLE PRECISION, G"
        " NUMBER, H DECIMAL(10, 2))"
    )

    types = [row["type"] for row in sql.dicts("DESCRIBE TABLE X")]

    assert types == ["VARCHAR(16777216)", "NUMBER(38,0)", "FLOAT", "VARCHAR(16777216)", "NUMBER(38,0)", "FLOAT",
                     "NUMBER(38,0)", "NUMBER(10,2)"]  # fmt: skip


# --- numbers, leases, heartbeats -------------------------------------------------------------------------------------


ALLOCATE = """
INSERT INTO RUN_CONTROL_EVENTS (RUN_ID, SEQUENCE_ID, EVENT_ID, EVENT_TYPE, EVENT_DATA, CREATED_AT)
SELECT ?, COALESCE(MAX(SEQUENCE_ID), 0) + 1, ?, ?, ?, SYSDATE()
FROM RUN_CONTROL_EVENTS WHERE RUN_ID = ?;
"""
EMIT = """
INSERT INTO RUN_CONTROL_EVENTS (RUN_ID, SEQUENCE_ID, EVENT_ID, EVENT_TYPE, EVENT_DATA, CREATED_AT)
SELECT ?, ?, ?, ?, ?, SYSDATE()
"""


def insert_run(sql: Sql, run_id: str = "r", status: str = "PREPARED") -> None:
    sql(
        "INSERT INTO RUN_STATUS (RUN_ID, STATUS, PHASE, SCENARIO_CONFIG, UPDATED_AT) VALUES (?,"
        " ?, 'PREPARING', '{}', SYSDATE())",
        run_id,
        status,
    )


def test_an_event_takes_the_next_number_of_its_run(control: Sql) -> None:
    events = [an_id() for _ in range(3)]

    for event in events:
        assert control.count(ALLOCATE, "r", event, "X", "{}", "r") == 1
    control(ALLOCATE, "other", an_id(), "X", "{}", "other")

    assert [control.value("SELECT SEQUENCE_ID FROM RUN_CONTROL_EVENTS WHERE EVENT_ID = ?", e) for e in events] == [
        1,
        2,
        3,
    ]
    assert control.value("SELECT SEQUENCE_ID FROM RUN_CONTROL_EVENTS WHERE RUN_ID = 'other'") == 1


def test_a_repeated_insert_of_an_event_is_distinguished_from_a_used_number(control: Sql) -> None:
    event = an_id()
    control(ALLOCATE, "r", event, "X", "{}", "r")

    with pytest.raises(ProgrammingError) as resent:
        control(ALLOCATE, "r", event, "X", "{}", "r")
    with pytest.raises(ProgrammingError) as taken:
        control(EMIT, "r", 1, an_id(), "X", "{}")

    assert "Duplicate key value violates unique constraint" in str(resent.value)
    assert (taken.value.errno, taken.value.sqlstate) == (PRIMARY_KEY, "22000")
    assert "Primary key already exists" in str(taken.value)
    assert control.value("SELECT COUNT(*) FROM RUN_CONTROL_EVENTS") == 1


def test_a_single_writer_brings_its_own_number(control: Sql) -> None:
    for number in (1, 2, 3):
        assert control.count(EMIT, "r", number, an_id(), "X", "{}") == 1

    assert control("SELECT SEQUENCE_ID FROM RUN_CONTROL_EVENTS ORDER BY 1") == [(1,), (2,), (3,)]


def test_numbers_kept_in_run_status_are_allocated_in_a_transaction(control: Sql) -> None:
    control("ALTER TABLE RUN_STATUS ADD COLUMN NEXT_SEQUENCE_ID NUMBER(38,0) DEFAULT 1")
    insert_run(control)

    for _ in range(3):
        control("BEGIN TRANSACTION")
        control(
            "UPDATE RUN_STATUS SET NEXT_SEQUENCE_ID = NEXT_SEQUENCE_ID + 1, UPDATED_AT = SYSDATE() WHERE RUN_ID = ?",
            "r",
        )
        number = control.value("SELECT NEXT_SEQUENCE_ID - 1 FROM RUN_STATUS WHERE RUN_ID = ?", "r")
        control(EMIT, "r", number, an_id(), "X", "{}")
        control("COMMIT")

    assert control("SELECT SEQUENCE_ID FROM RUN_CONTROL_EVENTS ORDER BY SEQUENCE_ID") == [(1,), (2,), (3,)]
    assert control.value("SELECT NEXT_SEQUENCE_ID FROM RUN_STATUS") == 4


@pytest.mark.parametrize("form", ["FOR UPDATE", "FOR UPDATE NOWAIT", "FOR UPDATE WAIT 5"])
def test_rows_can_be_locked_for_update_in_a_transaction(control: Sql, form: str) -> None:
    insert_run(control)

    control("BEGIN TRANSACTION")
    assert control(f"SELECT STATUS FROM RUN_STATUS WHERE RUN_ID = ? {form}", "r") == [("PREPARED",)]
    control("UPDATE RUN_STATUS SET STATUS = 'STARTING' WHERE RUN_ID = ?", "r")
    control("COMMIT")

    assert control.value("SELECT STATUS FROM RUN_STATUS") == "STARTING"


def test_a_lease_is_claimed_renewed_released_and_claimed_again(control: Sql) -> None:
    newest = (
        "SELECT EPOCH, OWNER, EXPIRES_AT, SYSDATE() AS NOW_UTC FROM RUN_LEASES WHERE RUN_ID = ?"
        " ORDER BY EPOCH DESC LIMIT 1"
    )
    claim = "INSERT INTO RUN_LEASES (RUN_ID, EPOCH, OWNER, EXPIRES_AT) SELECT ?, ?, ?, DATEADD(minute, 5, SYSDATE())"
    renew = (
        "UPDATE RUN_LEASES SET EXPIRES_AT = DATEADD(minute, 5, SYSDATE()) WHERE RUN_ID = ? AND EPOCH = ? AND OWNER = ?"
        " AND EXPIRES_AT > SYSDATE()"
    )

    assert control(newest, "r") == []
    assert control.count(claim, "r", 1, "me") == 1
    with pytest.raises(ProgrammingError) as lost:
        control(claim, "r", 1, "you")
    assert lost.value.errno == PRIMARY_KEY
    ((epoch, owner, expires_at, now),) = control(newest, "r")
    assert (epoch, owner) == (1, "me")
    assert timedelta(seconds=0) < expires_at - now <= timedelta(minutes=5)
    assert control.count(renew, "r", 1, "me") == 1
    assert control.count(renew, "r", 1, "you") == 0
    assert control.count("UPDATE RUN_LEASES SET EXPIRES_AT = SYSDATE() WHERE RUN_ID = ? AND EPOCH = ?", "r", 1) == 1
    assert control.count(renew, "r", 1, "me") == 0, "an expired lease was revived"
    assert control.count(claim, "r", 2, "you") == 1
    assert control(newest, "r")[0][:2] == (2, "you")


def test_the_row_count_of_a_guarded_update_shows_whether_it_won(control: Sql) -> None:
    insert_run(control)
    advance = "UPDATE RUN_STATUS SET STATUS = ?, UPDATED_AT = SYSDATE() WHERE RUN_ID = ? AND STATUS = ?"

    won = control.count(advance, "STARTING", "r", "PREPARED")
    lost = control.count(advance, "CANCELLED", "r", "PREPARED")

    assert (won, lost) == (1, 0)
    assert control(advance, "RUNNING", "r", "STARTING") == [(1, 0)]
    assert [c[0] for c in control.cursor.description] == [
        "number of rows updated",
        "number of multi-joined rows updated",
    ]
    assert control.value("SELECT STATUS FROM RUN_STATUS") == "RUNNING"


def test_a_heartbeat_updates_and_inserts_the_first_time(control: Sql) -> None:
    beat = (
        "UPDATE WORKER_HEARTBEATS SET STATUS = ?, PHASE = ?, LAST_HEARTBEAT = SYSDATE(),"
        " HEARTBEAT_COUNT = HEARTBEAT_COUNT + 1"
        " WHERE RUN_ID = ? AND WORKER_ID = ?"
    )
    first = (
        "INSERT INTO WORKER_HEARTBEATS (RUN_ID, WORKER_ID, WORKER_GROUP_ID, STATUS, PHASE,"
        " LAST_HEARTBEAT, HEARTBEAT_COUNT,"
        " ACTIVE_CONNECTIONS, TARGET_CONNECTIONS, LAST_ERROR, ERROR_COUNT) SELECT ?, ?, ?, ?, ?,"
        " SYSDATE(), 1, 0, 0, ?, 0"
    )

    assert control.count(beat, "WAITING", None, "r", "worker-0") == 0
    assert control.count(first, "r", "worker-0", 0, "WAITING", None, None) == 1
    with pytest.raises(ProgrammingError) as twice:
        control(first, "r", "worker-0", 0, "WAITING", None, None)
    assert twice.value.errno == PRIMARY_KEY
    assert control.count(beat, "RUNNING", "WARMUP", "r", "worker-0") == 1
    assert control("SELECT STATUS, PHASE, HEARTBEAT_COUNT, LAST_ERROR FROM WORKER_HEARTBEATS") == [
        ("RUNNING", "WARMUP", 2, None)
    ]


def test_stale_workers_and_orphaned_runs_are_found_by_the_servers_clock(control: Sql) -> None:
    began = control.value("SELECT SYSDATE()")
    for worker, age_s in (("fresh", 0), ("stale", 90)):
        control(
            "INSERT INTO WORKER_HEARTBEATS SELECT 'r', ?, 0, 'RUNNING', NULL, DATEADD(second, ?,"
            " SYSDATE()), 1, 0, 0, NULL, 0",
            worker,
            -age_s,
        )
    insert_run(control, "young", "RUNNING")
    insert_run(control, "old", "RUNNING")
    insert_run(control, "old but done", "COMPLETED")
    control("UPDATE RUN_STATUS SET UPDATED_AT = DATEADD(hour, -2, SYSDATE()) WHERE RUN_ID LIKE 'old%'")

    ages = dict(
        control(
            "SELECT WORKER_ID, DATEDIFF(millisecond, LAST_HEARTBEAT, SYSDATE()) AS AGE_MS FROM"
            " WORKER_HEARTBEATS WHERE RUN_ID = ?",
            "r",
        )
    )
    orphans = control(
        "SELECT RUN_ID FROM RUN_STATUS WHERE STATUS = 'RUNNING' AND UPDATED_AT < DATEADD(second, -3600, SYSDATE())"
    )
    passed_ms = (control.value("SELECT SYSDATE()") - began) / timedelta(milliseconds=1) + 1

    assert 0 <= ages["fresh"] <= passed_ms
    assert 90_000 <= ages["stale"] <= 90_000 + passed_ms
    assert orphans == [("old",)]
