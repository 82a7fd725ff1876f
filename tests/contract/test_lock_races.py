"""Races and deadlocks from many real connections at once: nothing is lost, and one is the victim."""

from __future__ import annotations

import threading
import uuid
from collections import Counter

import pytest
from snowflake.connector.errors import ProgrammingError

from tests.contract.lock_builders import (
    LOCKED,
    PRIMARY_KEY,
    ConcurrentSessions,
    add,
    make_table,
    outcome,
)
from tests.contract.sql import Sql
from tests.embedded_server import EmbeddedServer
from tests.processes import PATIENCE_S

pytestmark = pytest.mark.any_driver


@pytest.fixture(scope="module")
def server(lenient: EmbeddedServer) -> EmbeddedServer:
    """Rows are locked and read again as in PostgreSQL."""
    return lenient


# --- races -----------------------------------------------------------------------------------------------------------


def test_sixteen_writers_allocate_numbers_without_a_gap_or_a_double(concurrent: ConcurrentSessions) -> None:
    writers, each = 16, 10
    sessions = concurrent.sessions(writers)
    sessions[0](
        "CREATE OR REPLACE HYBRID TABLE EVENTS (RUN_ID VARCHAR(36), SEQUENCE_ID NUMBER, EVENT_ID"
        " VARCHAR(36), WRITER NUMBER,"
        " PRIMARY KEY (RUN_ID, SEQUENCE_ID), UNIQUE (EVENT_ID))"
    )

    def allocate(writer: int) -> Counter[str]:
        counts: Counter[str] = Counter()
        while counts["won"] < each:
            try:
                counts["won"] += sessions[writer].count(
                    "INSERT INTO EVENTS (RUN_ID, SEQUENCE_ID, EVENT_ID, WRITER)"
                    " SELECT ?, COALESCE(MAX(SEQUENCE_ID), 0) + 1, ?, ? FROM EVENTS WHERE RUN_ID = ?",
                    "r", str(uuid.uuid4()), writer, "r",
                )  # fmt: skip
            except ProgrammingError as error:
                if error.errno != PRIMARY_KEY:
                    raise
                counts["lost"] += 1
        return counts

    # All of them want the first number, and wait for one who takes it and gives it back: they have met.
    holder = concurrent.session()
    holder("BEGIN")
    holder("INSERT INTO EVENTS VALUES ('r', 1, 'none', -1)")
    works = [concurrent.start(allocate, writer) for writer in range(writers)]
    concurrent.wait_blocked("INSERT INTO EVENTS", works)
    holder("ROLLBACK")
    results = [work.result(PATIENCE_S) for work in works]

    numbers = [number for (number,) in sessions[0]("SELECT SEQUENCE_ID FROM EVENTS ORDER BY SEQUENCE_ID")]
    owners = dict(sessions[0]("SELECT WRITER, COUNT(*) FROM EVENTS GROUP BY WRITER"))
    assert numbers == list(range(1, writers * each + 1))
    assert owners == dict.fromkeys(range(writers), each)
    assert sum(result["lost"] for result in results) >= writers - 1


def test_one_of_many_wins_each_epoch_of_a_lease(concurrent: ConcurrentSessions) -> None:
    sessions = concurrent.sessions(12)
    sessions[0](
        "CREATE OR REPLACE HYBRID TABLE LEASES (RUN_ID VARCHAR, EPOCH NUMBER, OWNER NUMBER,"
        " PRIMARY KEY (RUN_ID, EPOCH))"
    )

    def claim(owner: int) -> list[int]:
        won = []
        for epoch in range(1, 9):
            try:
                sessions[owner]("INSERT INTO LEASES (RUN_ID, EPOCH, OWNER) SELECT 'r', ?, ?", epoch, owner)
                won.append(epoch)
            except ProgrammingError as error:
                if error.errno != PRIMARY_KEY:
                    raise
        return won

    won = [
        epoch for work in [concurrent.start(claim, owner) for owner in range(12)] for epoch in work.result(PATIENCE_S)
    ]

    assert sorted(won) == list(range(1, 9))


def test_compare_and_set_from_32_connections_loses_no_update(concurrent: ConcurrentSessions, hybrid: str) -> None:
    sessions = concurrent.sessions(32)
    all_have_seen = threading.Barrier(32)

    def compete(sql: Sql) -> int:
        won = 0
        for turn in range(8):
            seen = sql.value(f"SELECT N FROM {hybrid} WHERE ID = 1")
            if turn == 0:
                all_have_seen.wait(PATIENCE_S)
            won += sql.count(f"UPDATE {hybrid} SET N = ? WHERE ID = 1 AND N = ?", seen + 1, seen)
        return won

    won = concurrent.all(compete, sessions)

    assert sessions[0].value(f"SELECT N FROM {hybrid} WHERE ID = 1") == sum(won)
    assert 0 < sum(won) <= 1 + 32 * 7  # of the first turn one has won


def test_increments_from_many_connections_all_arrive(concurrent: ConcurrentSessions, table: str) -> None:
    # 16, because more than 20 waiters are too many for a standard table
    sessions = concurrent.sessions(16)

    def increment(sql: Sql) -> int:
        return sum(sql.count(add(table, 1)) for _ in range(8))

    changed = concurrent.all(increment, sessions)

    assert sum(changed) == 16 * 8
    assert sessions[0].value(f"SELECT N FROM {table} WHERE ID = 1") == 16 * 8


# --- deadlocks -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["ROLLBACK", "COMMIT"])
def test_of_a_deadlock_the_newest_statement_is_the_only_victim(
    concurrent: ConcurrentSessions, hybrid: str, end: str
) -> None:
    older, newer = concurrent.sessions(2)
    for sql, row in ((older, 1), (newer, 2)):
        sql("BEGIN")
        sql(add(hybrid, row))
    waiting = concurrent.start(older.count, f"UPDATE {hybrid} SET N = N + 10 WHERE ID = 2")
    concurrent.wait_blocked(f"UPDATE {hybrid} SET N = N + 10", waiting)

    with pytest.raises(ProgrammingError) as victim:
        newer(f"UPDATE {hybrid} SET N = N + 100 WHERE ID = 1")
    assert not waiting.done(), "the victim's transaction is over, but only its statement should be"
    newer(end)

    assert (victim.value.errno, victim.value.sqlstate) == (LOCKED, "57014")
    assert outcome(waiting) == 1
    older("COMMIT")
    kept = 1 if end == "COMMIT" else 0
    assert older(f"SELECT N FROM {hybrid} ORDER BY ID") == [(1,), (10 + kept,), (0,)]


def test_a_deadlock_over_two_standard_tables_has_one_victim_too(concurrent: ConcurrentSessions, standard: str) -> None:
    older, newer = concurrent.sessions(2)
    second = make_table(concurrent, "TABLE")
    for sql, table in ((older, standard), (newer, second)):
        sql("BEGIN")
        sql(add(table, 1))
    waiting = concurrent.start(older.count, add(second, 2))
    concurrent.wait_blocked(f"UPDATE {second}", waiting)

    with pytest.raises(ProgrammingError) as victim:
        newer(add(standard, 2))
    newer("ROLLBACK")

    assert victim.value.errno == LOCKED
    assert outcome(waiting) == 1
    older("COMMIT")
    assert older(f"SELECT N FROM {standard} ORDER BY ID") == [(1,), (0,), (0,)]
    assert older(f"SELECT N FROM {second} ORDER BY ID") == [(0,), (1,), (0,)]


def test_deadlocks_in_a_concurrent_sessions_lose_and_double_nothing(
    concurrent: ConcurrentSessions, hybrid: str
) -> None:
    sessions = concurrent.sessions(6)

    def swap(index: int) -> int:
        sql, done = sessions[index], 0
        while done < 4:
            rows = (1, 2) if index % 2 else (2, 1)
            sql("BEGIN")
            try:
                for row in rows:
                    sql(add(hybrid, row))
            except ProgrammingError as error:
                if error.errno != LOCKED:
                    raise
                sql("ROLLBACK")
            else:
                sql("COMMIT")
                done += 1
        return done

    done = sum(work.result(PATIENCE_S) for work in [concurrent.start(swap, index) for index in range(6)])

    assert sessions[0](f"SELECT N FROM {hybrid} ORDER BY ID") == [(done,), (done,), (0,)]
