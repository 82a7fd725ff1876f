"""Transactions: what others see of them, what a failure leaves of them, and definitions beside them."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from snowflake.connector.errors import Error, ProgrammingError

from tests.contract.lock_builders import (
    PRIMARY_KEY,
    TIMED_OUT,
    ConcurrentSessions,
    add,
    make_table,
    outcome,
)
from tests.contract.sql import Sql
from tests.processes import wait_until

pytestmark = pytest.mark.any_driver


# --- transactions ----------------------------------------------------------------------------------------------------


def test_uncommitted_changes_are_invisible_to_others_and_a_rollback_undoes_them(
    concurrent: ConcurrentSessions, table: str
) -> None:
    mine, other = concurrent.sessions(2)

    mine("BEGIN TRANSACTION")
    mine(f"INSERT INTO {table} VALUES (10, 10)")
    mine(f"UPDATE {table} SET N = 99 WHERE ID = 1")
    mine(f"DELETE FROM {table} WHERE ID = 2")

    assert mine(f"SELECT ID, N FROM {table} ORDER BY ID") == [(1, 99), (3, 0), (10, 10)]
    assert other(f"SELECT ID, N FROM {table} ORDER BY ID") == [(1, 0), (2, 0), (3, 0)]
    mine("ROLLBACK")
    assert mine(f"SELECT ID, N FROM {table} ORDER BY ID") == [(1, 0), (2, 0), (3, 0)]


@pytest.mark.parametrize(
    ("begin", "commit"),
    [("BEGIN", "COMMIT"), ("BEGIN WORK", "COMMIT WORK"), ("START TRANSACTION", "COMMIT"), ("BEGIN NAME T1", "COMMIT")],
)
def test_a_transaction_has_more_than_one_spelling(
    concurrent: ConcurrentSessions, hybrid: str, begin: str, commit: str
) -> None:
    mine, other = concurrent.sessions(2)

    mine(begin)
    mine(add(hybrid, 1))
    before = other.value(f"SELECT N FROM {hybrid} WHERE ID = 1")
    mine(commit)

    assert (before, other.value(f"SELECT N FROM {hybrid} WHERE ID = 1")) == (0, 1)


FAILURES = [
    "INSERT INTO {table} VALUES (1, 'not a number')",
    "SELECT 1 / 0 FROM {table}",
    "UPDATE {table} SET N = 'x'",
    "SELECT NO_SUCH FROM {table}",
    "SELECT * FROM NO_SUCH",
    "SELEKT",
    "INSERT INTO {table} (ID) VALUES (NULL)",
]


@pytest.mark.parametrize("failing", FAILURES)
def test_a_failed_statement_leaves_its_transaction_open_and_committable(
    concurrent: ConcurrentSessions, table: str, failing: str
) -> None:
    mine, other = concurrent.sessions(2)
    mine("BEGIN")
    mine(f"INSERT INTO {table} VALUES (10, 1)")

    with pytest.raises(Error):
        mine(failing.format(table=table))
    mine(f"INSERT INTO {table} VALUES (11, 2)")
    unseen = other.value(f"SELECT COUNT(*) FROM {table} WHERE ID >= 10")
    mine("COMMIT")

    assert unseen == 0
    assert other(f"SELECT ID, N FROM {table} WHERE ID >= 10 ORDER BY ID") == [(10, 1), (11, 2)]


def test_a_duplicate_key_inside_a_transaction_undoes_its_statement_only(
    concurrent: ConcurrentSessions, hybrid: str
) -> None:
    mine = concurrent.session()
    mine("BEGIN")
    mine(f"INSERT INTO {hybrid} VALUES (10, 1)")

    with pytest.raises(ProgrammingError) as caught:
        mine(f"INSERT INTO {hybrid} VALUES (20, 0), (10, 0)")
    mine("COMMIT")

    assert caught.value.errno == PRIMARY_KEY
    assert mine(f"SELECT ID FROM {hybrid} WHERE ID >= 10") == [(10,)]


@pytest.mark.parametrize("failing", ["SELECT 1 / 0 FROM {table}", "SELECT * FROM NO_SUCH"])
def test_with_transaction_abort_on_error_nothing_goes_until_the_transaction_is_ended(
    concurrent: ConcurrentSessions, table: str, failing: str
) -> None:
    mine = concurrent.session(TRANSACTION_ABORT_ON_ERROR=True)
    mine("BEGIN")
    mine(f"INSERT INTO {table} VALUES (10, 1)")

    with pytest.raises(Error):
        mine(failing.format(table=table))
    with pytest.raises(Error):
        mine(f"INSERT INTO {table} VALUES (11, 2)")
    mine("ROLLBACK")
    mine(f"INSERT INTO {table} VALUES (12, 3)")

    assert mine(f"SELECT ID FROM {table} WHERE ID >= 10") == [(12,)]


def test_a_second_begin_is_ignored(concurrent: ConcurrentSessions, hybrid: str) -> None:
    mine = concurrent.session()

    mine("BEGIN")
    first = mine.value("SELECT CURRENT_TRANSACTION()")
    mine(add(hybrid, 1))
    mine("BEGIN TRANSACTION")
    second = mine.value("SELECT CURRENT_TRANSACTION()")
    mine("ROLLBACK")

    assert first is not None
    assert first == second
    assert mine.value(f"SELECT N FROM {hybrid} WHERE ID = 1") == 0
    assert mine.value("SELECT CURRENT_TRANSACTION()") is None
    mine("COMMIT")
    mine("ROLLBACK")


DEFINITIONS = [
    "CREATE OR REPLACE TABLE NEW_TABLE (A NUMBER)",
    "CREATE OR REPLACE TABLE NEW_TABLE AS SELECT 1 AS A",
    "CREATE OR REPLACE VIEW NEW_VIEW AS SELECT 1 AS A",
    "DROP TABLE IF EXISTS NO_SUCH",
    "ALTER TABLE {other} ADD COLUMN B NUMBER",
]


@pytest.mark.parametrize("definition", DEFINITIONS)
def test_a_definition_commits_the_open_transaction(
    concurrent: ConcurrentSessions, hybrid: str, definition: str
) -> None:
    mine, reader = concurrent.sessions(2)
    other = make_table(concurrent, "TABLE")
    mine("BEGIN")
    mine(f"INSERT INTO {hybrid} VALUES (10, 1)")

    mine(definition.format(other=other))

    assert reader.value(f"SELECT COUNT(*) FROM {hybrid} WHERE ID = 10") == 1
    mine("ROLLBACK")
    assert mine.value(f"SELECT COUNT(*) FROM {hybrid} WHERE ID = 10") == 1


def test_a_truncate_is_a_change_and_can_be_rolled_back(concurrent: ConcurrentSessions, standard: str) -> None:
    mine, other = concurrent.sessions(2)
    mine("BEGIN")
    mine(f"TRUNCATE TABLE {standard}")

    assert mine.value(f"SELECT COUNT(*) FROM {standard}") == 0
    assert other.value(f"SELECT COUNT(*) FROM {standard}") == 3
    mine("ROLLBACK")
    assert mine.value(f"SELECT COUNT(*) FROM {standard}") == 3


def test_without_autocommit_the_first_change_opens_a_transaction(concurrent: ConcurrentSessions, table: str) -> None:
    mine, other = concurrent.session(QUERY_TAG="no autocommit"), concurrent.session()
    mine.connection.autocommit(False)

    mine(f"INSERT INTO {table} VALUES (10, 1)")
    unseen = other.value(f"SELECT COUNT(*) FROM {table} WHERE ID = 10")
    mine.connection.commit()
    seen = other.value(f"SELECT COUNT(*) FROM {table} WHERE ID = 10")
    mine(f"DELETE FROM {table}")
    mine.connection.rollback()

    assert (unseen, seen) == (0, 1)
    assert other.value(f"SELECT COUNT(*) FROM {table}") == 4


def test_setting_autocommit_commits_what_is_open(concurrent: ConcurrentSessions, hybrid: str) -> None:
    mine, other = concurrent.session(AUTOCOMMIT=False), concurrent.session()
    for row, value in ((10, "FALSE"), (11, "TRUE")):
        mine(f"INSERT INTO {hybrid} VALUES ({row}, 0)")
        unseen = other.value(f"SELECT COUNT(*) FROM {hybrid} WHERE ID = {row}")

        mine(f"ALTER SESSION SET AUTOCOMMIT = {value}")

        assert (unseen, other.value(f"SELECT COUNT(*) FROM {hybrid} WHERE ID = {row}")) == (0, 1)
    mine(f"INSERT INTO {hybrid} VALUES (12, 0)")
    assert other.value(f"SELECT COUNT(*) FROM {hybrid} WHERE ID = 12") == 1


def test_show_transactions_lists_the_open_ones(concurrent: ConcurrentSessions, hybrid: str) -> None:
    mine, other = concurrent.sessions(2)

    def mine_shown() -> list[tuple[Any, ...]]:
        names = [column[0] for column in other.cursor.execute("SHOW TRANSACTIONS").description]
        shown = [dict(zip(names, row, strict=True)) for row in other.cursor.fetchall()]
        return [
            (row["id"], row["name"], row["state"])
            for row in shown
            if int(row["session"]) == int(mine.connection.session_id)
        ]

    assert mine_shown() == []
    mine("BEGIN NAME BUSY")
    mine(add(hybrid, 1))
    number = mine.value("SELECT CURRENT_TRANSACTION()")
    assert mine_shown() == [(int(number), "BUSY", "running")]
    mine("COMMIT")
    assert mine_shown() == []
    assert mine.value("SELECT LAST_TRANSACTION()") == number


def test_closing_a_connection_ends_its_transaction_and_frees_its_locks(
    concurrent: ConcurrentSessions, table: str
) -> None:
    holder, waiter = concurrent.sessions(2)
    holder("BEGIN")
    holder(add(table, 1))
    holder(f"INSERT INTO {table} VALUES (10, 0)")
    waiting = concurrent.start(waiter.count, f"UPDATE {table} SET N = N + 10 WHERE ID = 1")
    concurrent.wait_blocked(f"UPDATE {table} SET N = N + 10", waiting)

    holder.connection.close()

    assert outcome(waiting) == 1
    assert waiter(f"SELECT ID, N FROM {table} ORDER BY ID") == [(1, 10), (2, 0), (3, 0)]


def test_each_statement_of_a_transaction_sees_what_was_committed_before_it(
    concurrent: ConcurrentSessions, table: str
) -> None:
    mine, other = concurrent.sessions(2)
    query = f"SELECT N FROM {table} WHERE ID = 1"
    mine("BEGIN")

    first = mine.value(query)
    other(add(table, 1))
    second = mine.value(query)

    assert (first, second) == (0, 1)


def test_a_transaction_may_span_hybrid_and_standard_tables(
    concurrent: ConcurrentSessions, hybrid: str, standard: str
) -> None:
    mine, other = concurrent.sessions(2)
    for end, expected in (("ROLLBACK", (0, 0)), ("COMMIT", (1, 1))):
        mine("BEGIN")
        mine(add(hybrid, 1))
        mine(add(standard, 1))

        mine(end)

        assert tuple(other.value(f"SELECT N FROM {t} WHERE ID = 1") for t in (hybrid, standard)) == expected


def test_a_query_that_is_new_to_the_server_runs_inside_a_transaction(
    concurrent: ConcurrentSessions, table: str
) -> None:
    mine = concurrent.session()
    mine("BEGIN")
    mine(add(table, 1))

    alias = f"A{uuid.uuid4().hex}"

    assert mine(f"SELECT SUM(N) AS {alias}, COUNT(*) FROM {table}") == [(1, 3)]
    mine("COMMIT")
    assert mine.value(f"SELECT N FROM {table} WHERE ID = 1") == 1


# --- definitions beside transactions ---------------------------------------------------------------------------------


def test_a_transaction_that_only_reads_does_not_hold_up_definitions(concurrent: ConcurrentSessions, table: str) -> None:
    reader, other = concurrent.sessions(2)
    query = f"SELECT COUNT(*) FROM {table}"
    reader(query)
    reader("BEGIN")
    reader(query)

    other(f"ALTER TABLE {table} ADD COLUMN EXTRA NUMBER")
    other(f"CREATE OR REPLACE TABLE {table} (ID NUMBER, N NUMBER)")

    assert reader(query) == [(0,)]


def test_a_definition_that_waits_does_not_block_others(concurrent: ConcurrentSessions, table: str) -> None:
    holder, defining, other = concurrent.sessions(3)
    other(f"SELECT COUNT(*) FROM {table}")
    holder("BEGIN")
    holder(add(table, 1))
    waiting = concurrent.start(defining, f"ALTER TABLE {table} ADD COLUMN EXTRA NUMBER")
    wait_until(lambda: waiting.done() or sessions_are_defining(other, table), "the definition is under way")

    assert outcome(concurrent.start(other, f"SELECT COUNT(*) FROM {table}")) == [(3,)]
    assert outcome(concurrent.start(other, "CREATE TABLE SOMETHING_ELSE (A NUMBER)")) != TIMED_OUT
    holder("COMMIT")
    outcome(waiting)


def sessions_are_defining(sql: Sql, table: str) -> bool:
    running = sql.value(
        "SELECT COUNT(*) FROM TABLE(INFORMATION_SCHEMA.QUERY_HISTORY())"
        " WHERE EXECUTION_STATUS IN ('running', 'blocked') AND STARTSWITH(QUERY_TEXT, ?)",
        f"ALTER TABLE {table}",
    )
    return bool(running)
