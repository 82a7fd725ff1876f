"""What Snowflake accepts and loadgen's users write, the embedded server runs, with Snowflake's results."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from snowflake.connector.errors import Error, ProgrammingError

from tests.embedded_server import EmbeddedServer

pytestmark = pytest.mark.any_driver

PACIFIC = ZoneInfo("America/Los_Angeles")
SECOND = timedelta(seconds=1)
PRIMARY_KEY = 200001

RUN_STATUS = """
CREATE HYBRID TABLE IF NOT EXISTS RUN_STATUS (
    RUN_ID           VARCHAR(36)   NOT NULL,
    STATUS           VARCHAR(20)   NOT NULL,
    PHASE            VARCHAR(20)   NOT NULL,
    SCENARIO_CONFIG  VARCHAR       NOT NULL,      -- JSON text
    WORKER_TARGETS   VARCHAR,                     -- JSON text, always rewritten whole
    FIND_MAX_STATE   VARCHAR,                     -- JSON text
    START_TIME       TIMESTAMP_NTZ,
    WARMUP_END_TIME  TIMESTAMP_NTZ,
    END_TIME         TIMESTAMP_NTZ,
    UPDATED_AT       TIMESTAMP_NTZ NOT NULL,
    PRIMARY KEY (RUN_ID)
);
"""
RUN_LEASES = """
CREATE HYBRID TABLE IF NOT EXISTS RUN_LEASES (    -- one row per term of office
    RUN_ID      VARCHAR(36)   NOT NULL,
    EPOCH       NUMBER(38,0)  NOT NULL,
    OWNER       VARCHAR(100)  NOT NULL,
    EXPIRES_AT  TIMESTAMP_NTZ NOT NULL,
    PRIMARY KEY (RUN_ID, EPOCH)
);
"""
RUN_CONTROL_EVENTS = """
CREATE HYBRID TABLE IF NOT EXISTS RUN_CONTROL_EVENTS (
    RUN_ID       VARCHAR(36)   NOT NULL,
    SEQUENCE_ID  NUMBER(38,0)  NOT NULL,
    EVENT_ID     VARCHAR(36)   NOT NULL,
    EVENT_TYPE   VARCHAR(50)   NOT NULL,
    EVENT_DATA   VARCHAR       NOT NULL,          -- JSON text
    CREATED_AT   TIMESTAMP_NTZ NOT NULL,
    PRIMARY KEY (RUN_ID, SEQUENCE_ID),            -- the poll's access path; needs no CREATE INDEX
    UNIQUE (EVENT_ID)                             -- makes a blind resend harmless
);
"""
WORKER_HEARTBEATS = """
CREATE HYBRID TABLE IF NOT EXISTS WORKER_HEARTBEATS (
    RUN_ID              VARCHAR(36)   NOT NULL,
    WORKER_ID           VARCHAR(100)  NOT NULL,
    WORKER_GROUP_ID     NUMBER(38,0)  NOT NULL,
    STATUS              VARCHAR(20)   NOT NULL,
    PHASE               VARCHAR(20),
    LAST_HEARTBEAT      TIMESTAMP_NTZ NOT NULL,
    HEARTBEAT_COUNT     NUMBER(38,0)  NOT NULL,
    ACTIVE_CONNECTIONS  NUMBER(38,0)  NOT NULL,
    TARGET_CONNECTIONS  NUMBER(38,0)  NOT NULL,
    LAST_ERROR          VARCHAR,
    ERROR_COUNT         NUMBER(38,0)  NOT NULL,
    PRIMARY KEY (RUN_ID, WORKER_ID)
);
"""
CONTROL_TABLES = {
    "RUN_STATUS": RUN_STATUS,
    "RUN_LEASES": RUN_LEASES,
    "RUN_CONTROL_EVENTS": RUN_CONTROL_EVENTS,
    "WORKER_HEARTBEATS": WORKER_HEARTBEATS,
}


class Sql:
    """Short forms of what every test does with one session."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.cursor = connection.cursor()

    def __call__(self, statement: str, *binds: Any) -> list[tuple[Any, ...]]:
        self.cursor.execute(statement, binds) if binds else self.cursor.execute(statement)
        rows: list[tuple[Any, ...]] = self.cursor.fetchall()
        return rows

    def value(self, statement: str, *binds: Any) -> Any:
        ((value,),) = self(statement, *binds)
        return value

    def count(self, statement: str, *binds: Any) -> int:
        """How many rows a change has changed."""
        self(statement, *binds)
        return int(self.cursor.rowcount)

    def dicts(self, statement: str, *binds: Any) -> list[dict[str, Any]]:
        rows = self(statement, *binds)
        names = [column[0] for column in self.cursor.description]
        return [dict(zip(names, row, strict=True)) for row in rows]

    def names(self, statement: str) -> list[str]:
        self(statement)
        return [column[0] for column in self.cursor.description]

    def many(self, statement: str, rows: list[tuple[Any, ...]]) -> int:
        self.cursor.executemany(statement, rows)
        return int(self.cursor.rowcount)


@pytest.fixture
def sql(connection: Any) -> Sql:
    return Sql(connection)


@pytest.fixture
def utc(connect: Callable[..., Any]) -> Sql:
    """A session as loadgen opens it: times are UTC."""
    return Sql(connect(session_parameters={"TIMEZONE": "UTC"}))


@pytest.fixture
def control(utc: Sql) -> Sql:
    """A session with the control tables."""
    for statement in CONTROL_TABLES.values():
        utc(statement)
    return utc


@pytest.fixture
def numbers(sql: Sql) -> Sql:
    make_numbers(sql)
    return sql


@pytest.fixture(scope="module")
def shared(server: EmbeddedServer) -> Iterator[Sql]:
    """One session for all tests that leave nothing behind which another could mind."""
    connection = server.connect(database="ACCEPTED", schema="PUBLIC")
    sql = Sql(connection)
    make_numbers(sql)
    sql("CREATE OR REPLACE TABLE DOCUMENT (V VARIANT)")
    sql("INSERT INTO DOCUMENT SELECT PARSE_JSON(?)", json.dumps(DOCUMENT))
    yield sql
    connection.close()


def make_numbers(sql: Sql) -> None:
    """A table N of the numbers 1 to 10, each with its word and a group."""
    words = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
    sql("CREATE OR REPLACE TABLE N (I NUMBER, WORD VARCHAR, G VARCHAR)")
    sql.many("INSERT INTO N VALUES (?, ?, ?)", [(i, w, "odd" if i % 2 else "even") for i, w in enumerate(words, 1)])


def ntz(text: str) -> datetime:
    """A TIMESTAMP_NTZ: wall time without a zone."""
    return datetime.fromisoformat(text)


def an_id() -> str:
    return str(uuid.uuid4())


# --- valid statements of the specification ----------------------------------------------------------------------------


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


# --- time zones -------------------------------------------------------------------------------------------------------


def pacific_seconds() -> float:
    """By how many seconds Pacific wall time is behind UTC now."""
    offset = datetime.now(PACIFIC).utcoffset()
    assert offset is not None
    return -offset.total_seconds()


def test_row_20_current_timestamp_in_an_ntz_column_is_pacific_wall_time_by_default(sql: Sql) -> None:
    sql("CREATE HYBRID TABLE B (ID NUMBER PRIMARY KEY, T TIMESTAMP_NTZ DEFAULT CURRENT_TIMESTAMP(), U TIMESTAMP_NTZ)")
    sql("INSERT INTO B (ID, U) VALUES (1, SYSDATE())")
    sql("INSERT INTO B (ID, T, U) SELECT 2, CURRENT_TIMESTAMP(), SYSDATE()")

    gaps = sql("SELECT DATEDIFF(second, T, U) FROM B")

    assert all(abs(gap - pacific_seconds()) <= 60 for (gap,) in gaps)


def test_sysdate_is_utc_whatever_the_session_says(connect: Callable[..., Any]) -> None:
    for zone in ("America/Los_Angeles", "UTC", "Asia/Kolkata"):
        sql = Sql(connect(session_parameters={"TIMEZONE": zone}))

        before = datetime.now(UTC)
        now = sql.value("SELECT SYSDATE()")

        assert now.tzinfo is None
        assert before - SECOND <= now.replace(tzinfo=UTC) <= datetime.now(UTC) + SECOND


def test_two_sessions_with_different_time_zones_disagree_about_current_timestamp(connect: Callable[..., Any]) -> None:
    east, west = (Sql(connect(session_parameters={"TIMEZONE": z})) for z in ("Asia/Tokyo", "America/New_York"))
    east("CREATE TABLE X (WHO VARCHAR, T TIMESTAMP_NTZ, L TIMESTAMP_LTZ)")
    for who, session in (("east", east), ("west", west)):
        session("INSERT INTO X SELECT ?, CURRENT_TIMESTAMP(), CURRENT_TIMESTAMP()", who)

    hours = east.value(
        "SELECT ROUND(DATEDIFF(minute, W.T, E.T) / 60) FROM X E, X W WHERE E.WHO = 'east' AND W.WHO = 'west'"
    )
    instants = {session.value("SELECT MAX(L) FROM X") for session in (east, west)}

    assert hours in (13, 14)  # with and without daylight saving time in New York
    assert len(instants) == 1


def test_the_session_time_zone_can_be_changed_and_shown(sql: Sql) -> None:
    assert sql.dicts("SHOW PARAMETERS LIKE 'TIMEZONE'")[0]["value"] == "America/Los_Angeles"

    sql("ALTER SESSION SET TIMEZONE = 'Europe/Berlin'")

    assert sql.value("SELECT '2026-07-01 12:00:00'::TIMESTAMP_LTZ::VARCHAR") == "2026-07-01 12:00:00.000 +0200"
    assert sql.value("SELECT CURRENT_TIMESTAMP()").utcoffset() == datetime.now(ZoneInfo("Europe/Berlin")).utcoffset()
    sql("ALTER SESSION UNSET TIMEZONE")
    assert sql.dicts("SHOW PARAMETERS LIKE 'TIMEZONE'")[0]["value"] == "America/Los_Angeles"


def test_a_time_zone_changed_inside_a_transaction_outlives_its_rollback(connect: Callable[..., Any]) -> None:
    wall_time = "SELECT '2026-07-01 12:00:00'::TIMESTAMP_LTZ::VARCHAR"
    sql = Sql(connect())
    sql(wall_time)
    sql("CREATE TABLE X (A NUMBER)")
    sql("BEGIN")
    sql("INSERT INTO X VALUES (1)")
    sql("ALTER SESSION SET TIMEZONE = 'Asia/Tokyo'")
    sql("INSERT INTO X VALUES (2)")
    sql("ROLLBACK")

    mine = sql.value(wall_time)
    others = Sql(connect(session_parameters={"TIMEZONE": "Asia/Tokyo"})).value(wall_time)

    assert mine == others == "2026-07-01 12:00:00.000 +0900"


# --- numbers, leases, heartbeats --------------------------------------------------------------------------------------

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


def test_a_blind_resend_of_an_event_is_told_apart_from_a_taken_number(control: Sql) -> None:
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


def test_a_guarded_update_says_by_its_row_count_whether_it_won(control: Sql) -> None:
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


# --- semi-structured values and many rows -----------------------------------------------------------------------------


@pytest.fixture
def logs(sql: Sql) -> Sql:
    sql(
        "CREATE TABLE TEST_LOGS (LOG_ID VARCHAR, RUN_ID VARCHAR, LEVEL VARCHAR, DETAILS VARIANT,"
        ' "TIMESTAMP" TIMESTAMP_NTZ)'
    )
    return sql


def test_one_row_with_a_variant_is_inserted_by_select(logs: Sql) -> None:
    statement = 'INSERT INTO TEST_LOGS (LOG_ID, LEVEL, DETAILS, "TIMESTAMP") SELECT ?, ?, PARSE_JSON(?), SYSDATE()'

    assert logs.count(statement, "l1", "INFO", '{"a": {"b": [10, 20]}}') == 1
    assert logs.count(statement, "l2", "INFO", None) == 1

    assert logs("SELECT DETAILS:a.b[1]::NUMBER, DETAILS IS NULL FROM TEST_LOGS ORDER BY LOG_ID") == [
        (20, False),
        (None, True),
    ]


def test_many_rows_with_a_variant_are_inserted_by_one_array_bind(logs: Sql, server: EmbeddedServer) -> None:
    tag = an_id()
    logs(f"ALTER SESSION SET QUERY_TAG = '{tag}'")

    count = logs.many(
        "INSERT INTO TEST_LOGS (LOG_ID, DETAILS) SELECT column1, PARSE_JSON(column2) FROM VALUES (?, ?)",
        [(f"l{n}", json.dumps({"n": n}) if n % 3 else None) for n in range(100)],
    )

    assert count == 100
    assert logs.value("SELECT SUM(DETAILS:n::NUMBER) FROM TEST_LOGS") == sum(n for n in range(100) if n % 3)
    inserts = [
        e for e in server.ask(f"/__loadgen/history?tag={tag}") if e["sql_text"].startswith("INSERT") and e["rows"]
    ]
    assert [e["rows"] for e in inserts] == [100]


def test_a_variant_is_set_and_changed_by_update(logs: Sql) -> None:
    logs("INSERT INTO TEST_LOGS (LOG_ID) VALUES ('l')")
    insert_key = (
        "UPDATE TEST_LOGS SET DETAILS = OBJECT_INSERT(COALESCE(DETAILS, OBJECT_CONSTRUCT()), ?, PARSE_JSON(?), TRUE)"
    )

    logs(insert_key, "w1", '{"target": 1}')
    logs(insert_key, "w2", "2")
    logs(insert_key, "w1", '{"target": 3}')
    merged = json.loads(logs.value("SELECT DETAILS FROM TEST_LOGS"))
    logs("UPDATE TEST_LOGS SET DETAILS = PARSE_JSON(?) WHERE LOG_ID = ?", "[1, 2]", "l")

    assert merged == {"w1": {"target": 3}, "w2": 2}
    assert logs.value("SELECT ARRAY_SIZE(DETAILS) FROM TEST_LOGS") == 2


def test_object_insert_of_an_existing_key_needs_the_update_flag(sql: Sql) -> None:
    with pytest.raises(ProgrammingError):
        sql("SELECT OBJECT_INSERT(OBJECT_CONSTRUCT('a', 1), 'a', 2)")

    assert json.loads(sql.value("SELECT OBJECT_INSERT(OBJECT_CONSTRUCT('a', 1), 'a', 2, TRUE)")) == {"a": 2}
    assert json.loads(sql.value("SELECT OBJECT_INSERT(OBJECT_CONSTRUCT('a', 1), 'b', NULL)")) == {"a": 1}


DOCUMENT = {
    "name": "Ann", "address": {"city": "Bern", "zip code": 3000}, "tags": ["a", "b"], "price": 1.5, "flag": True,
    "big": 12345678901234567890123456789, "at": "2026-01-02T03:04:05", "nothing": None,
}  # fmt: skip
PATHS = [
    ("V:name::VARCHAR", "Ann"),
    ("V:name", '"Ann"'),
    ("V['name']::STRING", "Ann"),
    ("V:address.city::VARCHAR", "Bern"),
    ("V:address['zip code']::NUMBER", 3000),
    ('V:address."zip code"::NUMBER', 3000),
    ("V:tags[0]::VARCHAR", "a"),
    ("V:tags[9]", None),
    ("V:none.of.it", None),
    ("V:NAME", None),
    ("V:big::NUMBER(38, 0)", 12345678901234567890123456789),
    ("V:price::NUMBER(10, 2)", Decimal("1.50")),
    ("V:flag::BOOLEAN", True),
    ("V:at::TIMESTAMP_NTZ", ntz("2026-01-02 03:04:05")),
    ("ARRAY_SIZE(V:tags)", 2),
    ("TYPEOF(V:tags)", "ARRAY"),
    ("GET(V, 'name')::VARCHAR", "Ann"),
    ("GET_PATH(V, 'address.city')::VARCHAR", "Bern"),
    ("OBJECT_KEYS(V:address)::VARCHAR", '["city","zip code"]'),
    ("V:nothing", "null"),
    ("IS_NULL_VALUE(V:nothing)", True),
    ("V:nothing IS NULL", False),
    ("V:nothing::VARCHAR IS NULL", True),
    ("V:name || '!'", "Ann!"),
    ("UPPER(V:name)", "ANN"),
    ("V:tags[0] = 'a'", True),
    ("V:price + 1", 2.5),
    ("NVL(V:none::VARCHAR, 'x')", "x"),
]


@pytest.mark.parametrize(("expression", "value"), PATHS, ids=[path for path, _ in PATHS])
def test_a_path_reaches_into_a_variant(shared: Sql, expression: str, value: Any) -> None:
    got = shared.value(f"SELECT {expression} FROM DOCUMENT")

    assert got == value or (isinstance(value, float) and float(got) == value)


def test_executemany_binds_columns_of_every_type(sql: Sql) -> None:
    sql(
        "CREATE TABLE X (I NUMBER, D NUMBER(10, 2), F FLOAT, S VARCHAR, B BOOLEAN, DT DATE, TM"
        " TIME, TS TIMESTAMP_NTZ, BI BINARY)"
    )
    landing = ntz("1969-07-20 20:17:40.123456")
    rows: list[tuple[Any, ...]] = [
        (1, Decimal("1.25"), 0.5, "a'b", True, date(2026, 1, 2), time(3, 4, 5), ntz("2026-01-02 03:04:05"), b"\0\xff"),
        (-(10**30), Decimal("-0.01"), 1e300, "", False, date(1969, 12, 31), time(23, 59, 59), landing, b""),
        (None, None, None, None, None, date(2000, 2, 29), time(0, 0), ntz("9999-12-31 23:59:59"), None),
    ]  # fmt: skip

    assert sql.many("INSERT INTO X VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", rows) == 3

    got = sql("SELECT * FROM X ORDER BY I NULLS LAST")
    assert [tuple(bytes(v) if isinstance(v, bytearray) else v for v in row) for row in got] == [
        rows[1],
        rows[0],
        rows[2],
    ]


def test_executemany_of_a_thousand_rows_is_one_statement(sql: Sql, server: EmbeddedServer) -> None:
    tag = an_id()
    sql("CREATE HYBRID TABLE X (ID NUMBER PRIMARY KEY, S VARCHAR)")
    sql(f"ALTER SESSION SET QUERY_TAG = '{tag}'")

    assert sql.many("INSERT INTO X (ID, S) VALUES (?, ?)", [(n, f"s{n}") for n in range(1000)]) == 1000

    assert sql("SELECT COUNT(*), SUM(ID), MIN(S) FROM X") == [(1000, 499500, "s0")]
    inserts = [
        e for e in server.ask(f"/__loadgen/history?tag={tag}") if e["sql_text"].startswith("INSERT") and e["rows"]
    ]
    assert [e["rows"] for e in inserts] == [1000]


def test_executemany_is_all_or_nothing(sql: Sql) -> None:
    sql("CREATE HYBRID TABLE X (ID NUMBER PRIMARY KEY)")
    sql("INSERT INTO X VALUES (3)")

    with pytest.raises(ProgrammingError) as caught:
        sql.many("INSERT INTO X VALUES (?)", [(1,), (2,), (3,), (4,)])

    assert caught.value.errno == PRIMARY_KEY
    assert sql("SELECT ID FROM X") == [(3,)]


def test_executemany_of_an_update_runs_for_every_row(sql: Sql) -> None:
    sql("CREATE HYBRID TABLE X (ID NUMBER PRIMARY KEY, S VARCHAR)")
    sql("INSERT INTO X VALUES (1, 'a'), (2, 'b'), (3, 'c')")

    sql.cursor.executemany("UPDATE X SET S = ? WHERE ID = ?", [("x", 1), ("y", 2)])

    assert sql("SELECT S FROM X ORDER BY ID") == [("x",), ("y",), ("c",)]


def test_a_values_list_of_several_rows_of_binds_is_a_fixed_insert(sql: Sql) -> None:
    sql("CREATE TABLE X (I NUMBER, S VARCHAR)")

    assert sql.count("INSERT INTO X (S, I) VALUES (?, ?), (?, ?), ('c', DEFAULT)", "a", 1, "b", 2) == 3

    assert sql("SELECT I, S FROM X ORDER BY S") == [(1, "a"), (2, "b"), (None, "c")]


def test_numeric_binds_may_be_used_twice(connect: Callable[..., Any]) -> None:
    sql = Sql(connect(paramstyle="numeric"))

    assert sql("SELECT :2, :1, :2", "a", 5) == [(5, "a", 5)]


# --- types ------------------------------------------------------------------------------------------------------------

IMPLICIT = [
    ("NUMBER", "'5'", 5),
    ("NUMBER(5, 2)", "'1.255'", Decimal("1.26")),
    ("NUMBER(5, 1)", "2.25", Decimal("2.3")),
    ("NUMBER", "1.5", 2),
    ("FLOAT", "'1e3'", 1000.0),
    ("VARCHAR", "5", "5"),
    ("VARCHAR", "1.50", "1.50"),
    ("VARCHAR", "TRUE", "true"),
    ("VARCHAR", "'2026-01-02'::DATE", "2026-01-02"),
    ("BOOLEAN", "'true'", True),
    ("BOOLEAN", "1", True),
    ("BOOLEAN", "'no'", False),
    ("DATE", "'2026-01-02'", date(2026, 1, 2)),
    ("DATE", "'2026-01-02 03:04:05'::TIMESTAMP_NTZ", date(2026, 1, 2)),
    ("TIME", "'03:04:05'", time(3, 4, 5)),
    ("TIMESTAMP_NTZ", "'2026-01-02 03:04:05.678'", ntz("2026-01-02 03:04:05.678000")),
    ("TIMESTAMP_NTZ", "'2026-01-02T03:04:05'", ntz("2026-01-02 03:04:05")),
    ("TIMESTAMP_NTZ", "'2026-01-02'", ntz("2026-01-02 00:00:00")),
    ("TIMESTAMP_NTZ", "'2026-01-02'::DATE", ntz("2026-01-02 00:00:00")),
]


@pytest.mark.parametrize(
    ("kind", "literal", "value"), IMPLICIT, ids=[f"{kind}-{literal}" for kind, literal, _ in IMPLICIT]
)
def test_a_value_is_converted_to_the_type_of_its_column(shared: Sql, kind: str, literal: str, value: Any) -> None:
    shared(f"CREATE OR REPLACE TABLE CONVERTED (A {kind})")

    shared(f"INSERT INTO CONVERTED VALUES ({literal})")
    shared(f"INSERT INTO CONVERTED SELECT {literal}")
    shared(f"UPDATE CONVERTED SET A = {literal}")

    assert shared("SELECT A FROM CONVERTED") == [(value,), (value,)]


def test_a_text_bind_fits_every_column(sql: Sql) -> None:
    sql("CREATE TABLE X (N NUMBER, D DATE, T TIMESTAMP_NTZ, B BOOLEAN, F FLOAT)")

    sql("INSERT INTO X VALUES (?, ?, ?, ?, ?)", "7", "2026-01-02", "2026-01-02 03:04:05", "false", "1.5")

    assert sql("SELECT * FROM X WHERE N = ? AND D >= ? AND T < ?", "7", "2026-01-01", "2027-01-01") == [
        (7, date(2026, 1, 2), ntz("2026-01-02 03:04:05"), False, 1.5)
    ]


EXPRESSIONS = [
    ("1 / 3", Decimal("0.333333")),
    ("10 / 4", Decimal("2.500000")),
    ("7 % 3", 1),
    ("-7 % 3", -1),
    ("1 + 1.5", Decimal("2.5")),
    ("2 * 1.25", Decimal("2.50")),
    ("ROUND(2.5)", 3),
    ("ROUND(-2.5)", -3),
    ("TRUNC(2.789, 1)", Decimal("2.7")),
    ("DIV0(1, 0)", Decimal("0.000000")),
    ("NULLIF(1, 1)", None),
    ("IFF(1 > 0, 'yes', 'no')", "yes"),
    ("CASE 2 WHEN 1 THEN 'a' WHEN 2 THEN 'b' END", "b"),
    ("DECODE(NULL, 1, 'a', NULL, 'n', 'x')", "n"),
    ("COALESCE(NULL, NULL, 3)", 3),
    ("ZEROIFNULL(NULL)", 0),
    ("GREATEST(1, 5, 3)", 5),
    ("'a' || 'b' || NULL", None),
    ("CONCAT('a', 'b')", "ab"),
    ("UPPER('aé')", "AÉ"),
    ("SUBSTR('hello', 2, 3)", "ell"),
    ("SUBSTRING('hello', -3, 2)", "ll"),
    ("LEFT('hello', 2) || RIGHT('hello', 2)", "helo"),
    ("LPAD('7', 3, '0')", "007"),
    ("SPLIT_PART('a-b-c', '-', 2)", "b"),
    ("REPLACE('banana', 'an', 'o')", "booa"),
    ("TRIM('  x ')", "x"),
    ("POSITION('l' IN 'hello')", 3),
    ("CHARINDEX('l', 'hello')", 3),
    ("LENGTH('😀é')", 2),
    ("'abc' LIKE 'a%'", True),
    ("'a_c' LIKE 'a\\\\_c' ESCAPE '\\\\'", True),
    ("'ABC' ILIKE 'a%'", True),
    ("'abc' LIKE ANY ('x%', '%c')", True),
    ("'abc' RLIKE 'a.c'", True),
    ("'xabcx' RLIKE 'a.c'", False),
    ("REGEXP_REPLACE('a1b2', '[0-9]', '#')", "a#b#"),
    ("REGEXP_SUBSTR('ab12', '[0-9]+')", "12"),
    ("CONTAINS('hello', 'ell')", True),
    ("STARTSWITH('hello', 'he')", True),
    ("MD5('a')", "0cc175b9c0f1b6a831c399e269772661"),
    ("SHA2('a')", "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb"),
    ("LENGTH(UUID_STRING())", 36),
    ("TO_VARCHAR(1234.5)", "1234.5"),
    ("TO_CHAR('2026-01-02 03:04:05'::TIMESTAMP_NTZ, 'YYYY/MM/DD HH24:MI')", "2026/01/02 03:04"),
    ("TO_DATE('02.01.2026', 'DD.MM.YYYY')", date(2026, 1, 2)),
    ("TO_TIMESTAMP_NTZ(1767322800)", ntz("2026-01-02 03:00:00")),
    ("TRY_CAST('x' AS NUMBER)", None),
    ("TRY_TO_NUMBER('12')", 12),
    ("DATEADD(month, 1, '2026-01-31'::DATE)", date(2026, 2, 28)),
    ("DATEADD('day', -1, '2026-01-01'::TIMESTAMP_NTZ)", ntz("2025-12-31 00:00:00")),
    ("DATEDIFF(day, '2026-01-01', '2026-03-01')", 59),
    ("DATE_TRUNC('month', '2026-05-17'::DATE)", date(2026, 5, 1)),
    ("DATE_PART(epoch_second, '2026-01-02 03:00:00'::TIMESTAMP_NTZ)", 1767322800),
    ("EXTRACT(year FROM '2026-01-02'::DATE)", 2026),
    ("YEAR('2026-01-02'::DATE) + MONTH('2026-01-02'::DATE)", 2027),
    ("LAST_DAY('2026-02-03'::DATE)", date(2026, 2, 28)),
    ("'2026-01-02'::DATE + 1", date(2026, 1, 3)),
    ("'2026-03-01'::DATE - '2026-02-01'::DATE", 28),
    ("1 IN (1, 2) AND 3 NOT IN (1, 2)", True),
    ("5 BETWEEN 1 AND 5", True),
    ("NULL = NULL", None),
    ("EQUAL_NULL(NULL, NULL)", True),
    ("1 IS DISTINCT FROM NULL", True),
    ("TRUE AND NULL", None),
    ("1 = 1.0", True),
    ("'1' = 1", True),
    ("X'00FF'::VARCHAR", "00FF"),
    ("HASH('a') = HASH('a')", True),
    ("BITAND(6, 3)", 2),
    ("POWER(2, 10)", 1024.0),
    ("WIDTH_BUCKET(5, 0, 10, 5)", 3),
]


@pytest.mark.parametrize(("expression", "value"), EXPRESSIONS, ids=[expression for expression, _ in EXPRESSIONS])
def test_an_expression_has_snowflakes_value(shared: Sql, expression: str, value: Any) -> None:
    got = shared.value(f"SELECT {expression}")

    assert got == value
    assert type(got) is type(value) or isinstance(value, float | int)


def test_result_columns_are_named_as_snowflake_names_them(numbers: Sql) -> None:
    assert numbers.names("SELECT I, i + 1, COUNT(*), max(n.i), 'x', I AS \"mixed Case\" FROM N GROUP BY I") == [
        "I", "I + 1", "COUNT(*)", "MAX(N.I)", "'X'", "mixed Case",
    ]  # fmt: skip


# --- definitions ------------------------------------------------------------------------------------------------------


def test_a_table_can_be_replaced_kept_and_dropped(sql: Sql) -> None:
    sql("CREATE TABLE X (A NUMBER)")
    sql("INSERT INTO X VALUES (1)")
    sql("CREATE TABLE IF NOT EXISTS X (B NUMBER)")
    assert sql("SELECT A FROM X") == [(1,)]

    sql("CREATE OR REPLACE TABLE X (B NUMBER)")
    assert sql("SELECT B FROM X") == []
    sql("CREATE OR REPLACE HYBRID TABLE X (C NUMBER PRIMARY KEY)")
    assert sql.names("SELECT * FROM X") == ["C"]
    sql("DROP TABLE X")
    sql("DROP TABLE IF EXISTS X")

    with pytest.raises(ProgrammingError) as caught:
        sql("SELECT * FROM X")
    assert caught.value.errno == 2003


def test_columns_can_be_added_dropped_and_renamed(sql: Sql) -> None:
    sql("CREATE TABLE X (A NUMBER, B VARCHAR)")
    sql("INSERT INTO X VALUES (1, 'b')")

    sql("ALTER TABLE X ADD COLUMN C NUMBER DEFAULT 7")
    sql("ALTER TABLE X ADD D VARCHAR, E FLOAT")
    sql("ALTER TABLE X ADD COLUMN IF NOT EXISTS C NUMBER")
    sql("ALTER TABLE X RENAME COLUMN B TO BB")
    sql("ALTER TABLE X DROP COLUMN A, E")
    sql("ALTER TABLE IF EXISTS NO_SUCH ADD COLUMN Z NUMBER")

    assert sql.dicts("SELECT * FROM X") == [{"BB": "b", "C": 7, "D": None}]
    sql("INSERT INTO X (BB) VALUES ('c')")
    assert sql("SELECT C FROM X WHERE BB = 'c'") == [(7,)]


def test_columns_can_be_made_wider_and_nullable(sql: Sql) -> None:
    sql("CREATE TABLE X (A VARCHAR(2) NOT NULL, B NUMBER(3, 0))")

    sql("ALTER TABLE X ALTER COLUMN A SET DATA TYPE VARCHAR(5)")
    sql("ALTER TABLE X MODIFY COLUMN A DROP NOT NULL")
    sql("ALTER TABLE X ALTER B TYPE NUMBER(10, 0)")
    sql("INSERT INTO X VALUES ('abcde', 1234567890), (NULL, NULL)")

    assert [(row["type"], row["null?"]) for row in sql.dicts("DESCRIBE TABLE X")] == [
        ("VARCHAR(5)", "Y"),
        ("NUMBER(10,0)", "Y"),
    ]
    with pytest.raises(ProgrammingError) as caught:
        sql("INSERT INTO X (A) VALUES ('abcdef')")
    assert caught.value.errno == 100078


def test_a_renamed_table_leaves_its_name_free_for_another(sql: Sql) -> None:
    for kind in ("TABLE", "HYBRID TABLE"):
        definition = f"CREATE {kind} X (ID NUMBER AUTOINCREMENT PRIMARY KEY, A NUMBER UNIQUE)"
        sql(definition)
        sql("INSERT INTO X (A) VALUES (10)")

        sql("ALTER TABLE X RENAME TO Y")
        sql(definition)
        sql("INSERT INTO X (A) VALUES (20)")
        sql("INSERT INTO Y (A) VALUES (30)")

        assert sql("SELECT ID, A FROM X") == [(1, 20)]
        assert sql("SELECT ID, A FROM Y ORDER BY A") == [(1, 10), (2, 30)]
        sql("DROP TABLE X")
        sql("INSERT INTO Y (A) VALUES (40)")
        assert sql.value("SELECT MAX(ID) FROM Y") == 3
        sql("DROP TABLE Y")


def test_an_index_can_be_dropped_also_after_its_table_was_renamed(sql: Sql) -> None:
    sql("CREATE HYBRID TABLE X (ID NUMBER PRIMARY KEY, A NUMBER, B NUMBER, INDEX I1 (A), INDEX I2 (B) INCLUDE (A))")
    sql("DROP INDEX X.I1")
    sql("ALTER TABLE X RENAME TO Y")
    sql("CREATE HYBRID TABLE X (ID NUMBER PRIMARY KEY, A NUMBER, INDEX I2 (A))")

    sql("DROP INDEX Y.I2")

    assert [index["name"] for index in sql.dicts("SHOW INDEXES IN TABLE Y") if index["is_unique"] == "N"] == []
    assert [index["name"] for index in sql.dicts("SHOW INDEXES IN TABLE X") if index["is_unique"] == "N"] == ["I2"]


def test_a_table_is_made_from_a_query(sql: Sql) -> None:
    assert sql.value(
        "CREATE TABLE X AS SELECT SEQ4() AS ID, 'a' AS S, 1.5 AS D FROM TABLE(GENERATOR(ROWCOUNT => 3))"
    ) == ("Table X successfully created.")
    sql("CREATE TABLE Y (I NUMBER(10, 0), T VARCHAR(5)) AS SELECT ID, S FROM X WHERE ID > 0")
    sql("CREATE HYBRID TABLE Z (ID NUMBER PRIMARY KEY, S VARCHAR) AS SELECT ID, S FROM X")

    assert sql("SELECT * FROM X ORDER BY ID") == [(n, "a", Decimal("1.5")) for n in range(3)]
    assert sql("SELECT * FROM Y ORDER BY I") == [(1, "a"), (2, "a")]
    assert [row["type"] for row in sql.dicts("DESCRIBE TABLE Y")] == ["NUMBER(10,0)", "VARCHAR(5)"]
    with pytest.raises(ProgrammingError) as caught:
        sql("INSERT INTO Z VALUES (1, 'again')")
    assert caught.value.errno == PRIMARY_KEY


def test_a_view_shows_what_its_query_would(numbers: Sql) -> None:
    numbers("CREATE VIEW ODD (NUMBER_OF, NAME) AS SELECT I, WORD FROM N WHERE G = 'odd'")
    numbers("CREATE OR REPLACE VIEW SMALL AS SELECT * FROM ODD WHERE NUMBER_OF < 4")
    numbers("CREATE VIEW IF NOT EXISTS SMALL AS SELECT 1 AS A")

    assert numbers("SELECT NAME FROM SMALL ORDER BY NUMBER_OF") == [("one",), ("three",)]
    assert [view["name"] for view in numbers.dicts("SHOW VIEWS")] == ["ODD", "SMALL"]
    numbers("DROP VIEW SMALL")
    assert [view["name"] for view in numbers.dicts("SHOW VIEWS")] == ["ODD"]


def test_a_view_outlives_the_replacement_of_what_it_reads(sql: Sql) -> None:
    sql("CREATE TABLE X (A NUMBER)")
    sql("CREATE VIEW V1 AS SELECT A FROM X")
    sql("CREATE VIEW V2 AS SELECT A + 1 AS B FROM V1")

    sql("CREATE OR REPLACE TABLE X (A NUMBER, NEW VARCHAR)")
    sql("INSERT INTO X (A) VALUES (5)")
    after_table = sql("SELECT B FROM V2")
    sql("CREATE OR REPLACE VIEW V1 AS SELECT A * 10 AS A FROM X")

    assert after_table == [(6,)]
    assert sql("SELECT B FROM V2") == [(51,)]


def test_a_view_does_not_stop_changes_of_its_table(sql: Sql) -> None:
    sql("CREATE TABLE X (A NUMBER, B VARCHAR(5), C NUMBER)")
    sql("CREATE VIEW V AS SELECT A, B, C FROM X")

    sql("ALTER TABLE X ALTER COLUMN B SET DATA TYPE VARCHAR(10)")
    sql("ALTER TABLE X ADD COLUMN D NUMBER")
    sql("ALTER TABLE X DROP COLUMN C")
    sql("INSERT INTO X (A, B) VALUES (1, 'longer')")

    assert sql("SELECT A, B FROM X") == [(1, "longer")]


@pytest.mark.parametrize("kind", ["TABLE", "HYBRID TABLE"])
def test_truncate_empties_a_table(sql: Sql, kind: str) -> None:
    sql(f"CREATE {kind} X (A NUMBER PRIMARY KEY)")
    sql("INSERT INTO X VALUES (1), (2)")

    sql("TRUNCATE TABLE X")
    sql("TRUNCATE TABLE IF EXISTS NO_SUCH")

    assert sql("SELECT * FROM X") == []
    sql("INSERT INTO X VALUES (1)")


def test_comments_are_kept_and_shown(sql: Sql) -> None:
    sql("CREATE TABLE X (A NUMBER COMMENT 'the a') COMMENT = 'the x'")
    assert sql.dicts("SHOW TABLES LIKE 'x'")[0]["comment"] == "the x"
    assert sql.dicts("DESCRIBE TABLE X")[0]["comment"] == "the a"

    sql("COMMENT ON TABLE X IS 'it''s new'")
    sql("ALTER TABLE X ALTER COLUMN A COMMENT 'newer'")

    assert sql.value("SELECT COMMENT FROM INFORMATION_SCHEMA.TABLES WHERE TABLE_NAME = 'X'") == "it's new"
    assert sql.value("SELECT COMMENT FROM INFORMATION_SCHEMA.COLUMNS WHERE TABLE_NAME = 'X'") == "newer"


def test_defaults_fill_what_an_insert_leaves_out(sql: Sql) -> None:
    sql(
        "CREATE TABLE X (A NUMBER, B NUMBER DEFAULT 1 + 1, C VARCHAR DEFAULT 'it''s, ok', D"
        " BOOLEAN DEFAULT FALSE NOT NULL,"
        " E TIMESTAMP_NTZ DEFAULT SYSDATE(), F VARCHAR DEFAULT UUID_STRING(), G DATE DEFAULT CURRENT_DATE())"
    )
    sql("INSERT INTO X (A) VALUES (1)")
    sql("INSERT INTO X (A, B, C) VALUES (2, DEFAULT, NULL)")

    rows = sql("SELECT A, B, C, D, E IS NOT NULL, LENGTH(F), G IS NOT NULL FROM X ORDER BY A")

    assert rows == [(1, 2, "it's, ok", False, True, 36, True), (2, 2, None, False, True, 36, True)]
    assert sql.value("SELECT COUNT(DISTINCT F) FROM X") == 2


@pytest.mark.parametrize("kind", ["TABLE", "HYBRID TABLE"])
def test_autoincrement_counts_from_its_start_by_its_step(sql: Sql, kind: str) -> None:
    sql(f"CREATE {kind} X (ID NUMBER AUTOINCREMENT START 100 INCREMENT 10 PRIMARY KEY, A VARCHAR)")

    sql("INSERT INTO X (A) VALUES ('a'), ('b')")
    sql("INSERT INTO X (A) SELECT 'c'")
    sql("INSERT INTO X VALUES (5, 'mine')")

    assert sql("SELECT ID FROM X ORDER BY A") == [(100,), (110,), (120,), (5,)]


@pytest.mark.parametrize(
    "option",
    [
        "AUTOINCREMENT",
        "IDENTITY",
        "IDENTITY(1, 1)",
        "AUTOINCREMENT ORDER",
        "AUTOINCREMENT NOORDER",
    ],
)
def test_identity_is_another_word_for_autoincrement(sql: Sql, option: str) -> None:
    sql(f"CREATE TABLE X (ID NUMBER {option}, A NUMBER)")
    sql("INSERT INTO X (A) VALUES (0)")

    assert sql("SELECT ID FROM X") == [(1,)]


def test_a_column_added_later_has_what_its_definition_says(sql: Sql) -> None:
    sql("CREATE HYBRID TABLE X (ID NUMBER PRIMARY KEY)")
    for definition, check in (
        ("U VARCHAR UNIQUE", lambda: sql("INSERT INTO X (ID, U) VALUES (1, 'same'), (2, 'same')")),
        ("R NUMBER REFERENCES X (ID)", lambda: sql("INSERT INTO X (ID, R) VALUES (3, 99)")),
        ("P NUMBER PRIMARY KEY", None),
    ):
        try:
            sql(f"ALTER TABLE X ADD COLUMN {definition}")
        except ProgrammingError:
            continue  # refusing it is fine; taking it and forgetting the key is not
        assert check is not None
        with pytest.raises(ProgrammingError):
            check()


def test_autoincrement_of_a_column_added_to_an_empty_table_counts(sql: Sql) -> None:
    sql("CREATE TABLE X (A NUMBER)")
    sql("ALTER TABLE X ADD COLUMN ID NUMBER AUTOINCREMENT")
    sql("INSERT INTO X (A) VALUES (0)")

    assert sql("SELECT ID FROM X") == [(1,)]


def test_databases_and_schemas_come_and_go(sql: Sql, database: str) -> None:
    sql("CREATE SCHEMA S1 COMMENT = 'one'")
    assert sql("SELECT CURRENT_DATABASE(), CURRENT_SCHEMA()") == [(database, "S1")]
    sql("CREATE TABLE X AS SELECT 1 AS A")
    sql(f"CREATE DATABASE {database}_TWO")
    sql("CREATE TABLE X AS SELECT 2 AS A")
    sql(f"USE SCHEMA {database}.PUBLIC")

    assert sql(f"SELECT A FROM S1.X UNION ALL SELECT A FROM {database}_TWO.PUBLIC.X ORDER BY 1") == [(1,), (2,)]
    assert {row["name"] for row in sql.dicts(f"SHOW SCHEMAS IN DATABASE {database}")} >= {
        "S1",
        "PUBLIC",
        "INFORMATION_SCHEMA",
    }
    assert [row["name"] for row in sql.dicts(f"SHOW DATABASES LIKE '{database}\\\\_TWO'")] == [f"{database}_TWO"]
    sql(f"USE DATABASE {database}_TWO")
    assert sql("SELECT CURRENT_SCHEMA()") == [("PUBLIC",)]
    sql(f"DROP DATABASE {database}_TWO")
    assert sql("SELECT CURRENT_DATABASE()") == [(None,)]
    with pytest.raises(ProgrammingError) as caught:
        sql("SELECT * FROM X")
    assert (caught.value.errno, caught.value.sqlstate) == (90105, "22000")


# --- SHOW, DESCRIBE, INFORMATION_SCHEMA -------------------------------------------------------------------------------


def test_describe_table_tells_types_nulls_defaults_and_keys(control: Sql) -> None:
    control(
        "CREATE TABLE X (A NUMBER(10, 2) DEFAULT 5 NOT NULL, B TIMESTAMP_LTZ(3), C VARIANT, D"
        " BINARY, E TIME, F BOOLEAN)"
    )

    described = {row["name"]: row for row in control.dicts("DESC TABLE X")}
    events = {row["name"]: row for row in control.dicts("DESCRIBE TABLE RUN_CONTROL_EVENTS")}

    assert [row["type"] for row in described.values()] == [
        "NUMBER(10,2)", "TIMESTAMP_LTZ(3)", "VARIANT", "BINARY(8388608)", "TIME(9)", "BOOLEAN",
    ]  # fmt: skip
    assert (described["A"]["null?"], described["A"]["default"]) == ("N", "5")
    assert [name for name, row in events.items() if row["primary key"] == "Y"] == ["RUN_ID", "SEQUENCE_ID"]
    assert [name for name, row in events.items() if row["unique key"] == "Y"] == ["EVENT_ID"]


def test_show_tables_lists_filters_and_counts(numbers: Sql, database: str) -> None:
    numbers("CREATE HYBRID TABLE HYB (ID NUMBER PRIMARY KEY)")
    numbers("CREATE SCHEMA OTHER")
    numbers("CREATE TABLE ELSEWHERE (A NUMBER)")
    numbers("USE SCHEMA PUBLIC")

    tables = {row["name"]: row for row in numbers.dicts("SHOW TABLES")}

    assert list(tables) == ["HYB", "N"]
    assert (tables["N"]["rows"], tables["N"]["kind"], tables["N"]["is_hybrid"]) == (10, "TABLE", "N")
    assert [row["name"] for row in numbers.dicts("SHOW HYBRID TABLES")] == ["HYB"]
    assert [row["name"] for row in numbers.dicts("SHOW TABLES LIKE 'h_b'")] == ["HYB"]
    assert [row["name"] for row in numbers.dicts("SHOW TABLES IN SCHEMA OTHER")] == ["ELSEWHERE"]
    assert [row["name"] for row in numbers.dicts(f"SHOW TABLES IN {database}.OTHER")] == ["ELSEWHERE"]
    assert len(numbers(f"SHOW TABLES IN DATABASE {database}")) == 3
    assert [row["name"] for row in numbers.dicts("SHOW TABLES STARTS WITH 'N'")] == ["N"]
    assert len(numbers("SHOW TABLES LIMIT 1")) == 1
    assert [row["column_name"] for row in numbers.dicts("SHOW COLUMNS IN TABLE N")] == ["I", "WORD", "G"]


def test_show_indexes_lists_the_keys_of_hybrid_tables(control: Sql) -> None:
    indexes = control.dicts("SHOW INDEXES IN TABLE RUN_CONTROL_EVENTS")

    assert [(row["is_unique"], row["columns"], row["status"]) for row in indexes] == [
        ("Y", "[RUN_ID, SEQUENCE_ID]", "ACTIVE"),
        ("Y", "[EVENT_ID]", "ACTIVE"),
    ]
    assert len(control("SHOW INDEXES")) == 5
    keys = control.dicts("SHOW PRIMARY KEYS IN TABLE RUN_LEASES")
    assert [(row["key_sequence"], row["column_name"]) for row in keys] == [(1, "RUN_ID"), (2, "EPOCH")]


def test_information_schema_knows_tables_columns_and_schemas(control: Sql, database: str) -> None:
    control("CREATE VIEW V AS SELECT RUN_ID FROM RUN_STATUS")

    tables = control("SELECT TABLE_NAME, TABLE_TYPE, IS_HYBRID FROM INFORMATION_SCHEMA.TABLES ORDER BY TABLE_NAME")
    columns = control(
        f"SELECT COLUMN_NAME, DATA_TYPE, IS_NULLABLE, CHARACTER_MAXIMUM_LENGTH, NUMERIC_PRECISION"
        f" FROM {database}.INFORMATION_SCHEMA.COLUMNS"
        " WHERE TABLE_SCHEMA = 'PUBLIC' AND TABLE_NAME = ? ORDER BY ORDINAL_POSITION",
        "RUN_LEASES",
    )

    assert ("V", "VIEW", "NO") in tables
    assert ("RUN_STATUS", "BASE TABLE", "YES") in tables
    assert columns == [
        ("RUN_ID", "TEXT", "NO", 36, None),
        ("EPOCH", "NUMBER", "NO", None, 38),
        ("OWNER", "TEXT", "NO", 100, None),
        ("EXPIRES_AT", "TIMESTAMP_NTZ", "NO", None, None),
    ]
    assert control.value("SELECT COUNT(*) FROM INFORMATION_SCHEMA.SCHEMATA WHERE SCHEMA_NAME = 'PUBLIC'") == 1
    assert control.value("SELECT COUNT(*) FROM INFORMATION_SCHEMA.DATABASES WHERE DATABASE_NAME = ?", database) == 1
    assert control.value("SELECT TABLE_NAME FROM INFORMATION_SCHEMA.VIEWS") == "V"


def test_show_parameters_tells_value_default_and_level(sql: Sql) -> None:
    sql("ALTER SESSION SET HYBRID_TABLE_LOCK_TIMEOUT = 5, QUERY_TAG = 'it''s a tag'")

    (timeout,) = sql.dicts("SHOW PARAMETERS LIKE 'HYBRID_TABLE_LOCK_TIMEOUT'")
    (autocommit,) = sql.dicts("SHOW PARAMETERS LIKE 'autocommit' IN SESSION")

    assert (timeout["value"], timeout["default"], timeout["level"], timeout["type"]) == (
        "5",
        "3600",
        "SESSION",
        "NUMBER",
    )
    assert (autocommit["value"], autocommit["default"]) == ("true", "true")
    assert sql.dicts("SHOW PARAMETERS LIKE 'QUERY_TAG'")[0]["value"] == "it's a tag"
    assert len(sql("SHOW PARAMETERS")) > 30


# --- constraints ------------------------------------------------------------------------------------------------------


@pytest.fixture
def orders(sql: Sql) -> Sql:
    sql("CREATE HYBRID TABLE CUSTOMERS (ID NUMBER PRIMARY KEY, EMAIL VARCHAR(100) UNIQUE)")
    sql(
        "CREATE HYBRID TABLE ORDERS (ID NUMBER NOT NULL, CUSTOMER_ID NUMBER NOT NULL, NOTE"
        " VARCHAR(5), PRIMARY KEY (ID),"
        " FOREIGN KEY (CUSTOMER_ID) REFERENCES CUSTOMERS (ID), INDEX BY_CUSTOMER (CUSTOMER_ID))"
    )
    sql("INSERT INTO CUSTOMERS VALUES (1, 'a@x'), (2, NULL), (3, NULL)")
    sql("INSERT INTO ORDERS VALUES (10, 1, 'n')")
    return sql


VIOLATIONS = [
    ("INSERT INTO CUSTOMERS VALUES (1, 'b@x')", 200001, "22000", "Primary key already exists"),
    ("INSERT INTO CUSTOMERS VALUES (7, 'c@x'), (7, 'd@x')", 200001, "22000", "Primary key already exists"),
    ("UPDATE CUSTOMERS SET ID = 2 WHERE ID = 3", 200001, "22000", "Primary key already exists"),
    (
        "INSERT INTO CUSTOMERS VALUES (4, 'a@x')",
        None,
        "22000",
        'Duplicate key value violates unique constraint "SYS_INDEX_',
    ),
    (
        "UPDATE CUSTOMERS SET EMAIL = 'a@x' WHERE ID = 2",
        None,
        "22000",
        "Duplicate key value violates unique constraint",
    ),
    ("INSERT INTO CUSTOMERS VALUES (NULL, 'x')", 100072, "22000", "NULL result in a non-nullable column"),
    ("INSERT INTO ORDERS (ID) VALUES (11)", 100072, "22000", "NULL result in a non-nullable column"),
    ("UPDATE ORDERS SET CUSTOMER_ID = NULL", 100072, "22000", "NULL result in a non-nullable column"),
    ("INSERT INTO ORDERS VALUES (11, 99, NULL)", 200009, "22000", "Foreign key constraint"),
    ("DELETE FROM CUSTOMERS WHERE ID = 1", 200009, "22000", "Foreign key constraint"),
    ("UPDATE CUSTOMERS SET ID = 50 WHERE ID = 1", 200009, "22000", "Foreign key constraint"),
    ("INSERT INTO ORDERS VALUES (11, 1, 'too long')", 100078, "22000", "is too long and would be truncated"),
]


@pytest.mark.parametrize(("statement", "errno", "sqlstate", "wording"), VIOLATIONS, ids=[v[0] for v in VIOLATIONS])
def test_a_hybrid_table_enforces_its_constraints(
    orders: Sql, statement: str, errno: int | None, sqlstate: str, wording: str
) -> None:
    before = (orders("SELECT * FROM CUSTOMERS ORDER BY ID"), orders("SELECT * FROM ORDERS"))

    with pytest.raises(Error) as caught:
        orders(statement)

    assert errno in (None, caught.value.errno)
    assert caught.value.sqlstate == sqlstate
    assert wording in str(caught.value)
    assert (orders("SELECT * FROM CUSTOMERS ORDER BY ID"), orders("SELECT * FROM ORDERS")) == before


def test_a_unique_column_may_be_null_many_times(orders: Sql) -> None:
    assert orders.value("SELECT COUNT(*) FROM CUSTOMERS WHERE EMAIL IS NULL") == 2


def test_a_standard_table_accepts_keys_and_does_not_enforce_them(sql: Sql) -> None:
    sql("CREATE TABLE P (ID NUMBER PRIMARY KEY, U VARCHAR UNIQUE)")
    sql("CREATE TABLE C (ID NUMBER, P_ID NUMBER REFERENCES P (ID), CONSTRAINT UQ UNIQUE (P_ID) NOT ENFORCED)")

    sql("INSERT INTO P VALUES (1, 'x'), (1, 'x')")
    sql("INSERT INTO C VALUES (1, 99), (2, 99)")

    assert sql.value("SELECT COUNT(*) FROM P WHERE ID = 1") == 2
    with pytest.raises(Error) as caught:
        sql("INSERT INTO P VALUES (NULL, 'y')")
    assert caught.value.errno == 100072


def test_a_unique_key_added_later_is_enforced(orders: Sql) -> None:
    orders("ALTER TABLE ORDERS ADD CONSTRAINT ONE_NOTE UNIQUE (NOTE)")

    with pytest.raises(ProgrammingError) as caught:
        orders("INSERT INTO ORDERS VALUES (11, 1, 'n')")
    assert "Duplicate key value violates unique constraint" in str(caught.value)


# --- changes ----------------------------------------------------------------------------------------------------------


def test_merge_updates_deletes_and_inserts_as_its_clauses_say(numbers: Sql) -> None:
    numbers("CREATE TABLE S AS SELECT * FROM VALUES (1, 'uno'), (2, NULL), (11, 'once') AS S(I, WORD)")

    counted = numbers.count(
        "MERGE INTO N USING S ON N.I = S.I"
        " WHEN MATCHED AND S.WORD IS NULL THEN DELETE"
        " WHEN MATCHED THEN UPDATE SET WORD = S.WORD, N.G = 'new'"
        " WHEN NOT MATCHED THEN INSERT (I, WORD) VALUES (S.I, S.WORD)"
    )

    assert counted == 3
    assert numbers("SELECT I, WORD, G FROM N WHERE I IN (1, 2, 11) ORDER BY I") == [
        (1, "uno", "new"),
        (11, "once", None),
    ]


def test_an_update_counts_the_rows_that_several_source_rows_met(numbers: Sql) -> None:
    counts = numbers(
        "UPDATE N SET G = S.W FROM (SELECT 1 AS K, 'x' AS W UNION ALL SELECT 1, 'x' UNION ALL"
        " SELECT 2, 'y') AS S WHERE N.I = S.K"
    )

    assert counts == [(2, 1)]


def test_merge_refuses_two_source_rows_for_one_target_row(numbers: Sql) -> None:
    with pytest.raises(ProgrammingError) as caught:
        numbers(
            "MERGE INTO N USING (SELECT 1 AS I, 'a' AS W UNION ALL SELECT 1, 'b') AS S ON N.I = S.I"
            " WHEN MATCHED THEN UPDATE SET WORD = S.W"
        )

    assert (caught.value.errno, caught.value.sqlstate) == (100090, "42P18")
    assert "Duplicate row detected during DML action" in str(caught.value)
    assert numbers.value("SELECT WORD FROM N WHERE I = 1") == "one"


def test_update_and_delete_can_look_at_other_tables(numbers: Sql) -> None:
    numbers("CREATE TABLE S AS SELECT * FROM VALUES (1, 'uno'), (3, 'tres') AS S(K, W)")

    updated = numbers.count("UPDATE N SET WORD = S.W, G = UPPER(N.G) FROM S WHERE N.I = S.K")
    deleted = numbers.count("DELETE FROM N USING S AS T WHERE N.I = T.K AND T.W = 'tres'")
    also = numbers.count("DELETE FROM N WHERE I IN (SELECT K + 1 FROM S)")

    assert (updated, deleted, also) == (2, 1, 2)
    assert numbers("SELECT I, WORD, G FROM N WHERE I <= 5 ORDER BY I") == [(1, "uno", "ODD"), (5, "five", "odd")]


def test_insert_takes_a_query_with_a_cte_and_leaves_columns_to_their_defaults(numbers: Sql) -> None:
    numbers("CREATE TABLE X (A NUMBER, B VARCHAR DEFAULT 'd')")

    count = numbers.count("INSERT INTO X (A) WITH C AS (SELECT I FROM N WHERE I > 8) SELECT I * 10 FROM C")

    assert count == 2
    assert numbers("SELECT * FROM X ORDER BY A") == [(90, "d"), (100, "d")]


# --- queries ----------------------------------------------------------------------------------------------------------

QUERIES = [
    ("a name with its schema", "SELECT PUBLIC.N.I FROM PUBLIC.N WHERE PUBLIC.N.I = 1", [(1,)]),
    ("an alias in WHERE", "SELECT I * 2 AS D FROM N WHERE D > 18", [(20,)]),
    (
        "an alias in GROUP BY and HAVING",
        "SELECT UPPER(G) AS U, COUNT(*) AS C FROM N GROUP BY U HAVING C = 5 ORDER BY U",
        [("EVEN", 5), ("ODD", 5)],
    ),
    ("an alias in the next column", "SELECT I AS A, A + 1 AS B, B * 2 FROM N WHERE I = 1", [(1, 2, 4)]),
    ("an alias in an ORDER BY expression", "SELECT I AS X FROM N WHERE I < 3 ORDER BY X * -1", [(2,), (1,)]),
    ("an alias over a subquery", "SELECT A AS X FROM (SELECT I AS A FROM N) WHERE X = 3", [(3,)]),
    ("GROUP BY ALL", "SELECT G, SUM(I) FROM N GROUP BY ALL ORDER BY G", [("even", 30), ("odd", 25)]),
    ("GROUP BY position", "SELECT G, MAX(WORD) FROM N GROUP BY 1 ORDER BY 2", [("odd", "three"), ("even", "two")]),
    ("LISTAGG", "SELECT LISTAGG(WORD, '-') WITHIN GROUP (ORDER BY I DESC) FROM N WHERE I < 4", [("three-two-one",)]),
    ("ARRAY_AGG", "SELECT ARRAY_AGG(I) WITHIN GROUP (ORDER BY I)::VARCHAR FROM N WHERE I < 4", [("[1,2,3]",)]),
    (
        "MEDIAN and percentiles",
        "SELECT MEDIAN(I), PERCENTILE_CONT(0.95) WITHIN GROUP (ORDER BY I) FROM N",
        [(Decimal("5.5"), Decimal("9.55"))],
    ),
    (
        "COUNT DISTINCT and COUNT_IF",
        "SELECT COUNT(DISTINCT G), COUNT_IF(I > 7), COUNT(NULLIF(G, 'odd')) FROM N",
        [(2, 3, 5)],
    ),
    ("averages", "SELECT AVG(I), AVG(I)::NUMBER(5, 1) FROM N", [(Decimal("5.500000"), Decimal("5.5"))]),
    ("an aggregate over nothing", "SELECT COUNT(*), SUM(I), MAX(WORD) FROM N WHERE I > 99", [(0, None, None)]),
    ("DISTINCT", "SELECT DISTINCT G FROM N ORDER BY G", [("even",), ("odd",)]),
    ("LIMIT and OFFSET", "SELECT I FROM N ORDER BY I LIMIT 2 OFFSET 3", [(4,), (5,)]),
    ("LIMIT NULL", "SELECT COUNT(*) FROM (SELECT I FROM N LIMIT NULL)", [(10,)]),
    ("an empty LIMIT", "SELECT COUNT(*) FROM (SELECT I FROM N LIMIT '')", [(10,)]),
    ("TOP", "SELECT TOP 2 I FROM N ORDER BY I DESC", [(10,), (9,)]),
    (
        "nulls first and last",
        "SELECT NULLIF(I, 2) AS X FROM N WHERE I < 4 ORDER BY X DESC NULLS LAST",
        [(3,), (1,), (None,)],
    ),
    ("nulls are the largest", "SELECT NULLIF(I, 2) AS X FROM N WHERE I < 4 ORDER BY X", [(1,), (3,), (None,)]),
    ("a scalar subquery", "SELECT I FROM N WHERE I = (SELECT MAX(I) FROM N)", [(10,)]),
    ("IN with a subquery", "SELECT COUNT(*) FROM N WHERE I IN (SELECT I + 1 FROM N)", [(9,)]),
    ("NOT IN with a subquery", "SELECT I FROM N WHERE I NOT IN (SELECT I + 1 FROM N)", [(1,)]),
    (
        "a correlated EXISTS",
        "SELECT I FROM N AS A WHERE NOT EXISTS (SELECT 1 FROM N AS B WHERE B.I = A.I + 1)",
        [(10,)],
    ),
    ("a pair in a list", "SELECT I FROM N WHERE (I, G) IN ((1, 'odd'), (2, 'odd'))", [(1,)]),
    (
        "a correlated scalar subquery",
        "SELECT I, (SELECT COUNT(*) FROM N AS B WHERE B.I < A.I) FROM N AS A WHERE I = 4",
        [(4, 3)],
    ),
    (
        "a join",
        "SELECT A.WORD, B.WORD FROM N AS A JOIN N AS B ON B.I = A.I * 5 ORDER BY A.I",
        [("one", "five"), ("two", "ten")],
    ),
    (
        "a left join",
        "SELECT A.I, B.I FROM N AS A LEFT JOIN N AS B ON B.I = A.I + 9 WHERE A.I < 3 ORDER BY 1",
        [(1, 10), (2, None)],
    ),
    ("a full join", "SELECT COUNT(*) FROM N AS A FULL OUTER JOIN N AS B ON B.I = A.I + 5", [(15,)]),
    ("a join USING", "SELECT COUNT(*), MAX(I) FROM N JOIN N AS B USING (I)", [(10, 10)]),
    ("a natural join", "SELECT COUNT(*) FROM N NATURAL JOIN (SELECT I FROM N WHERE I < 4) AS B", [(3,)]),
    ("a cross join", "SELECT COUNT(*) FROM N CROSS JOIN N AS B", [(100,)]),
    ("a comma join", "SELECT COUNT(*) FROM N, N AS B WHERE N.I = B.I", [(10,)]),
    (
        "a lateral subquery",
        "SELECT A.I, L.S FROM N AS A, LATERAL (SELECT SUM(I) AS S FROM N WHERE N.I <= A.I) AS L WHERE A.I = 4",
        [(4, 10)],
    ),
    (
        "a CTE",
        "WITH A AS (SELECT I FROM N WHERE I < 3), B(J) AS (SELECT I + 1 FROM A) SELECT J FROM B ORDER BY J",
        [(2,), (3,)],
    ),
    (
        "a recursive CTE",
        "WITH RECURSIVE R(X) AS (SELECT 1 UNION ALL SELECT X + 1 FROM R WHERE X < 5) SELECT SUM(X) FROM R",
        [(15,)],
    ),
    (
        "a recursive CTE without the word",
        "WITH R AS (SELECT 1 AS X UNION ALL SELECT X + 1 FROM R WHERE X < 5) SELECT SUM(X) FROM R",
        [(15,)],
    ),
    ("UNION", "SELECT G FROM N UNION SELECT 'x' ORDER BY 1", [("even",), ("odd",), ("x",)]),
    ("UNION ALL", "SELECT 1 AS A UNION ALL SELECT 1 UNION ALL SELECT 2 ORDER BY A", [(1,), (1,), (2,)]),
    ("EXCEPT and MINUS", "(SELECT I FROM N EXCEPT SELECT I FROM N WHERE I > 2) MINUS SELECT 1", [(2,)]),
    ("INTERSECT", "SELECT I FROM N WHERE I < 4 INTERSECT SELECT I FROM N WHERE I > 2", [(3,)]),
    (
        "parentheses around queries",
        "(SELECT 1 AS A) UNION ALL (SELECT I FROM N ORDER BY I DESC LIMIT 1) ORDER BY A",
        [(1,), (10,)],
    ),
    ("VALUES as a table", "SELECT COLUMN1 + COLUMN2 FROM VALUES (1, 2), (3, 4) ORDER BY 1", [(3,), (7,)]),
    ("VALUES with names", "SELECT T.B FROM (VALUES (1, 'x'), (2, 'y')) AS T(A, B) WHERE T.A = 2", [("y",)]),
    (
        "ROW_NUMBER",
        "SELECT I FROM (SELECT I, ROW_NUMBER() OVER (PARTITION BY G ORDER BY I) AS R FROM N) WHERE R = 2 ORDER BY I",
        [(3,), (4,)],
    ),
    (
        "RANK and DENSE_RANK",
        "SELECT I, RANK() OVER (ORDER BY G), DENSE_RANK() OVER (ORDER BY G) FROM N WHERE I IN (1, 2, 4) ORDER BY I",
        [(1, 3, 2), (2, 1, 1), (4, 1, 1)],
    ),
    (
        "LAG and LEAD",
        "SELECT I, LAG(I) OVER (ORDER BY I), LEAD(I, 2, -1) OVER (ORDER BY I) FROM N ORDER BY I DESC LIMIT 2",
        [(10, 9, -1), (9, 8, -1)],
    ),
    (
        "a running sum",
        "SELECT I, SUM(I) OVER (ORDER BY I ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) FROM N ORDER BY I LIMIT 3",
        [(1, 1), (2, 3), (3, 6)],
    ),
    (
        "a moving average",
        "SELECT AVG(I) OVER (ORDER BY I ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING)::NUMBER(5, 1)"
        " FROM N ORDER BY I LIMIT 2",
        [(Decimal("1.5"),), (Decimal("2.0"),)],
    ),
    (
        "FIRST_VALUE and NTILE",
        "SELECT FIRST_VALUE(WORD) OVER (PARTITION BY G ORDER BY I), NTILE(2) OVER (ORDER BY I)"
        " FROM N WHERE I > 8 ORDER BY I",
        [("nine", 1), ("ten", 2)],
    ),
    (
        "a share of the whole",
        "SELECT (I / SUM(I) OVER ())::NUMBER(5, 2) FROM N WHERE I IN (1, 3) ORDER BY I",
        [(Decimal("0.25"),), (Decimal("0.75"),)],
    ),
    (
        "QUALIFY",
        "SELECT I, G FROM N QUALIFY ROW_NUMBER() OVER (PARTITION BY G ORDER BY I DESC) = 1 ORDER BY I",
        [(9, "odd"), (10, "even")],
    ),
    (
        "QUALIFY with an alias",
        "SELECT I, RANK() OVER (ORDER BY I DESC) AS R FROM N QUALIFY R <= 2 ORDER BY R",
        [(10, 1), (9, 2)],
    ),
    ("QUALIFY with a star", "SELECT * FROM N QUALIFY ROW_NUMBER() OVER (ORDER BY I) = 1", [(1, "one", "odd")]),
    (
        "QUALIFY with a table's star",
        "SELECT A.* FROM N AS A QUALIFY ROW_NUMBER() OVER (ORDER BY I) = 1",
        [(1, "one", "odd")],
    ),
    (
        "QUALIFY with a star over a CTE",
        "WITH C AS (SELECT I, G FROM N) SELECT * FROM C QUALIFY ROW_NUMBER() OVER (ORDER BY I) = 2",
        [(2, "even")],
    ),
    (
        "QUALIFY after GROUP BY",
        "SELECT G, SUM(I) AS S FROM N GROUP BY G QUALIFY RANK() OVER (ORDER BY S DESC) = 1",
        [("even", 30)],
    ),
    (
        "QUALIFY, ORDER BY and LIMIT",
        "SELECT I FROM N QUALIFY ROW_NUMBER() OVER (ORDER BY I) > 3 ORDER BY I DESC LIMIT 2",
        [(10,), (9,)],
    ),
    ("a star beside a column", "SELECT N.*, I + 1 AS J FROM N WHERE I = 1", [(1, "one", "odd", 2)]),
    (
        "a CASE in an aggregate",
        "SELECT SUM(CASE WHEN G = 'odd' THEN I ELSE 0 END), SUM(IFF(G = 'odd', 0, I)) FROM N",
        [(25, 30)],
    ),
    (
        "positional ORDER BY of an expression",
        "SELECT I % 3, I FROM N WHERE I < 4 ORDER BY 1 DESC, 2",
        [(2, 2), (1, 1), (0, 3)],
    ),
]


@pytest.mark.parametrize(("query", "rows"), [row[1:] for row in QUERIES], ids=[row[0] for row in QUERIES])
def test_a_query_has_snowflakes_answer(shared: Sql, query: str, rows: list[tuple[Any, ...]]) -> None:
    assert shared(query) == rows


# --- FLATTEN, GENERATOR -----------------------------------------------------------------------------------------------


def test_flatten_makes_rows_of_elements(sql: Sql) -> None:
    sql("CREATE TABLE X (ID NUMBER, V VARIANT)")
    sql(
        'INSERT INTO X SELECT 1, PARSE_JSON(\'{"items": [{"n": "a"}, {"n": "b"}]}\') UNION ALL'
        " SELECT 2, PARSE_JSON('{}')"
    )

    inner = sql(
        "SELECT X.ID, F.INDEX, F.VALUE:n::VARCHAR FROM X, LATERAL FLATTEN(INPUT => X.V:items) AS F ORDER BY F.INDEX"
    )
    outer = sql(
        "SELECT X.ID, F.VALUE:n::VARCHAR FROM X, LATERAL FLATTEN(INPUT => V:items, OUTER => TRUE) F ORDER BY 1, 2"
    )
    table = sql('SELECT KEY, VALUE::NUMBER FROM TABLE(FLATTEN(PARSE_JSON(\'{"a": 1, "b": 2}\'))) ORDER BY KEY')
    joined = sql("SELECT COUNT(*) FROM X JOIN LATERAL FLATTEN(X.V:items) AS F")

    assert inner == [(1, 0, "a"), (1, 1, "b")]
    assert outer == [(1, "a"), (1, "b"), (2, None)]
    assert table == [("a", 1), ("b", 2)]
    assert joined == [(2,)]


def test_flatten_knows_paths_and_recursion(sql: Sql) -> None:
    document = '{"a": {"b": [1, 2]}, "c": 3}'

    paths = sql("SELECT PATH FROM TABLE(FLATTEN(INPUT => PARSE_JSON(?), RECURSIVE => TRUE)) ORDER BY PATH", document)
    below = sql(
        "SELECT PATH, VALUE::NUMBER FROM TABLE(FLATTEN(INPUT => PARSE_JSON(?), PATH => 'a.b')) ORDER BY 2", document
    )

    assert [path for (path,) in paths] == ["a", "a.b", "a.b[0]", "a.b[1]", "c"]
    assert below == [("a.b[0]", 1), ("a.b[1]", 2)]


def test_generator_makes_benchmark_data(sql: Sql) -> None:
    sql(
        "CREATE TABLE X AS SELECT SEQ4() AS ID, UNIFORM(1, 10, RANDOM()) AS U, RANDSTR(8, RANDOM()) AS R,"
        " UNIFORM(0::FLOAT, 1::FLOAT, RANDOM()) AS F, DATEADD(second, SEQ4(),"
        " '2026-01-01'::TIMESTAMP_NTZ) AS T, RANDOM() AS X"
        " FROM TABLE(GENERATOR(ROWCOUNT => 2000))"
    )

    ((count, ids, first, last),) = sql("SELECT COUNT(*), COUNT(DISTINCT ID), MIN(ID), MAX(ID) FROM X")
    ((low, high, different),) = sql("SELECT MIN(U), MAX(U), COUNT(DISTINCT U) FROM X")
    ((shortest, longest, texts),) = sql("SELECT MIN(LENGTH(R)), MAX(LENGTH(R)), COUNT(DISTINCT R) FROM X")

    assert (count, ids, first, last) == (2000, 2000, 0, 1999)
    assert (low, high, different) == (1, 10, 10)
    assert (shortest, longest, texts) == (8, 8, 2000)
    assert sql("SELECT COUNT_IF(F < 0 OR F >= 1), COUNT(DISTINCT X), MAX(T) FROM X") == [
        (0, 2000, ntz("2026-01-01 00:33:19"))
    ]
    assert sql.value("SELECT COUNT(*) FROM X WHERE R REGEXP '[0-9A-Za-z]{8}'") == 2000


def test_random_numbers_with_a_seed_are_the_same_each_time(sql: Sql) -> None:
    query = "SELECT RANDOM(42), UNIFORM(1, 1000000, RANDOM(7)) FROM TABLE(GENERATOR(ROWCOUNT => 5)) ORDER BY SEQ4()"

    assert sql(query) == sql(query)


# --- warehouses -------------------------------------------------------------------------------------------------------


@pytest.fixture
def warehouse(sql: Sql, database: str) -> Iterator[str]:
    """A warehouse of the test's own, current in its session."""
    name = f"WH_{database}"
    sql(f"CREATE WAREHOUSE {name} WITH WAREHOUSE_SIZE = XSMALL AUTO_SUSPEND = 60 AUTO_RESUME = TRUE COMMENT = 'mine'")
    yield name
    sql("USE WAREHOUSE COMPUTE_WH")
    sql(f"DROP WAREHOUSE IF EXISTS {name}")


def test_a_warehouse_is_an_object_with_settings(sql: Sql, warehouse: str) -> None:
    (made,) = sql.dicts(f"SHOW WAREHOUSES LIKE '{warehouse}'")

    assert sql.value("SELECT CURRENT_WAREHOUSE()") == warehouse
    assert (made["size"], made["state"], made["auto_suspend"], made["comment"]) == ("X-Small", "STARTED", 60, "mine")
    assert (made["running"], made["queued"], made["started_clusters"], made["is_current"]) == (0, 0, 1, "Y")

    sql(f"ALTER WAREHOUSE {warehouse} SET WAREHOUSE_SIZE = 'LARGE', MAX_CONCURRENCY_LEVEL = 3 MAX_CLUSTER_COUNT = 2")

    (altered,) = sql.dicts(f"SHOW WAREHOUSES LIKE '{warehouse}'")
    (level,) = sql.dicts(f"SHOW PARAMETERS LIKE 'MAX_CONCURRENCY_LEVEL' IN WAREHOUSE {warehouse}")
    assert (altered["size"], altered["max_cluster_count"]) == ("Large", 2)
    assert (level["value"], level["default"]) == ("3", "8")
    assert "already exists" in sql.value(f"CREATE WAREHOUSE IF NOT EXISTS {warehouse}")
    with pytest.raises(ProgrammingError) as caught:
        sql(f"CREATE WAREHOUSE {warehouse}")
    assert caught.value.errno == 2002


def test_a_suspended_warehouse_resumes_for_a_query_unless_it_may_not(sql: Sql, warehouse: str) -> None:
    sql(f"ALTER WAREHOUSE {warehouse} SUSPEND")
    assert sql.dicts(f"SHOW WAREHOUSES LIKE '{warehouse}'")[0]["state"] == "SUSPENDED"
    assert sql.value("SELECT COUNT(*) FROM INFORMATION_SCHEMA.TABLES") == 0
    assert sql.dicts(f"SHOW WAREHOUSES LIKE '{warehouse}'")[0]["state"] == "STARTED"

    sql(f"ALTER WAREHOUSE {warehouse} SET AUTO_RESUME = FALSE")
    sql(f"ALTER WAREHOUSE {warehouse} SUSPEND")
    with pytest.raises(ProgrammingError) as caught:
        sql("SELECT COUNT(*) FROM INFORMATION_SCHEMA.TABLES")
    sql(f"ALTER WAREHOUSE {warehouse} RESUME IF SUSPENDED")

    assert (caught.value.errno, caught.value.sqlstate) == (606, "57P03")
    assert sql.value("SELECT COUNT(*) FROM INFORMATION_SCHEMA.TABLES") == 0


def test_without_a_warehouse_a_query_is_606_and_commands_go_on(sql: Sql, warehouse: str) -> None:
    sql("CREATE TABLE X (A NUMBER)")
    sql(f"DROP WAREHOUSE {warehouse}")

    with pytest.raises(ProgrammingError) as caught:
        sql("SELECT A FROM X")

    assert (caught.value.errno, caught.value.sqlstate) == (606, "57P03")
    assert "No active warehouse selected in the current session." in str(caught.value)
    assert sql(f"SHOW WAREHOUSES LIKE '{warehouse}'") == []
    assert sql.dicts("SHOW TABLES")[0]["name"] == "X"
    sql("USE WAREHOUSE COMPUTE_WH")
    assert sql("SELECT A FROM X") == []


def test_a_warehouse_that_is_dropped_or_altered_twice_says_so(sql: Sql, warehouse: str) -> None:
    sql(f"ALTER WAREHOUSE {warehouse} SUSPEND")
    for statement, errno in (
        (f"ALTER WAREHOUSE {warehouse} SUSPEND", 90064),
        ("ALTER WAREHOUSE NO_SUCH_WH RESUME", 2043),
        ("DROP WAREHOUSE NO_SUCH_WH", 2003),
        ("USE WAREHOUSE NO_SUCH_WH", 2043),
    ):
        with pytest.raises(ProgrammingError) as caught:
            sql(statement)
        assert caught.value.errno == errno, statement
    sql("DROP WAREHOUSE IF EXISTS NO_SUCH_WH")
    sql("ALTER WAREHOUSE IF EXISTS NO_SUCH_WH SUSPEND")
    sql(f"ALTER WAREHOUSE {warehouse} RESUME")
    with pytest.raises(ProgrammingError) as caught:
        sql(f"ALTER WAREHOUSE {warehouse} RESUME")
    assert caught.value.errno == 90063


# --- the session ------------------------------------------------------------------------------------------------------


def test_the_session_knows_where_it_is(sql: Sql, database: str) -> None:
    row = sql("SELECT CURRENT_DATABASE(), CURRENT_SCHEMA(), CURRENT_USER(), CURRENT_ROLE(), CURRENT_WAREHOUSE()")

    assert row == [(database, "PUBLIC", "TESTER", "ACCOUNTADMIN", "COMPUTE_WH")]
    assert sql.value("SELECT CURRENT_SESSION()") == str(sql.connection.session_id)
    first = sql.cursor.execute("SELECT 1").sfqid
    assert sql.value("SELECT LAST_QUERY_ID()") == first


def test_a_context_function_may_stand_anywhere_in_a_statement(sql: Sql, database: str) -> None:
    sql("CREATE TABLE X (A VARCHAR DEFAULT 'x', B VARCHAR)")

    sql("INSERT INTO X (B) SELECT CURRENT_DATABASE() || '.' || CURRENT_SCHEMA()")
    sql("INSERT INTO X VALUES (?, CURRENT_USER())", "bound")
    sql("UPDATE X SET A = CURRENT_ROLE() WHERE B LIKE CURRENT_DATABASE() || '%' AND A = ?", "x")

    assert sql("SELECT A, B FROM X ORDER BY A") == [("ACCOUNTADMIN", f"{database}.PUBLIC"), ("bound", "TESTER")]


def test_a_view_and_a_made_table_may_use_context_functions(sql: Sql, database: str) -> None:
    sql("CREATE TABLE X AS SELECT CURRENT_DATABASE() AS D, CURRENT_TIMESTAMP() AS T")
    sql("CREATE VIEW V AS SELECT CURRENT_SCHEMA() AS S")

    assert sql("SELECT D FROM X") == [(database,)]
    assert sql("SELECT S FROM V") == [("PUBLIC",)]


def test_a_statement_may_end_with_semicolons_and_hold_comments(sql: Sql) -> None:
    assert sql("SELECT 1;") == [(1,)]
    assert sql("-- first\nSELECT /* in */ 1 // last\n;") == [(1,)]


def test_query_history_tells_what_the_session_did(sql: Sql, database: str) -> None:
    tag = an_id()
    sql("CREATE TABLE X (A NUMBER)")
    sql(f"ALTER SESSION SET QUERY_TAG = '{tag}'")
    sql("INSERT INTO X VALUES (1), (2)")
    query_id = sql.cursor.sfqid
    with pytest.raises(ProgrammingError):
        sql("SELECT 1 / 0 FROM X")

    rows = sql.dicts(
        "SELECT QUERY_ID, QUERY_TYPE, EXECUTION_STATUS, ERROR_CODE, ROWS_INSERTED,"
        " DATABASE_NAME, WAREHOUSE_NAME, TOTAL_ELAPSED_TIME"
        " FROM TABLE(INFORMATION_SCHEMA.QUERY_HISTORY_BY_SESSION(RESULT_LIMIT => 10)) WHERE QUERY_TAG = ? AND"
        " EXECUTION_STATUS <> 'running' AND QUERY_TYPE IN ('INSERT', 'SELECT') ORDER BY START_TIME",
        tag,
    )

    assert [row["EXECUTION_STATUS"] for row in rows] == ["success", "failed_with_error"]
    assert (rows[0]["QUERY_ID"], rows[0]["QUERY_TYPE"], rows[0]["ROWS_INSERTED"]) == (query_id, "INSERT", 2)
    assert (rows[0]["DATABASE_NAME"], rows[0]["WAREHOUSE_NAME"]) == (database, "COMPUTE_WH")
    assert int(rows[1]["ERROR_CODE"]) == 100051
