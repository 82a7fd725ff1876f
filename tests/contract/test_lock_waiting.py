"""Who waits for a lock, for how long, and what ends it."""

from __future__ import annotations

from collections import Counter

import pytest
from snowflake.connector.errors import ProgrammingError

from tests.contract.lock_builders import (
    CANCELED,
    LOCKED,
    PRIMARY_KEY,
    TIMED_OUT,
    ConcurrentSessions,
    add,
    outcome,
)
from tests.embedded_server import EmbeddedServer
from tests.processes import wait_until

pytestmark = pytest.mark.any_driver


@pytest.fixture(scope="module")
def server(lenient: EmbeddedServer) -> EmbeddedServer:
    """Rows are locked and read again as in PostgreSQL."""
    return lenient


# --- waiting ---------------------------------------------------------------------------------------------------------


def test_a_change_waits_for_the_transaction_that_holds_its_row_and_sees_the_result(
    concurrent: ConcurrentSessions, table: str
) -> None:
    holder, waiter = concurrent.sessions(2)
    holder("BEGIN")
    holder(f"UPDATE {table} SET N = 100 WHERE ID = 1")

    waiting = concurrent.start(waiter.count, add(table, 1))
    concurrent.wait_blocked(f"UPDATE {table} SET N = N + 1", waiting)
    holder("COMMIT")

    assert outcome(waiting) == 1
    assert holder.value(f"SELECT N FROM {table} WHERE ID = 1") == 101


def test_rows_of_a_hybrid_table_are_locked_one_by_one(concurrent: ConcurrentSessions, hybrid: str) -> None:
    holder, other = concurrent.sessions(2)
    holder("BEGIN")
    holder(add(hybrid, 1))

    assert other.count(add(hybrid, 2)) == 1
    assert other.count(f"DELETE FROM {hybrid} WHERE ID = 3") == 1
    assert other.count(f"INSERT INTO {hybrid} VALUES (4, 0)") == 1
    holder("ROLLBACK")


def test_a_standard_table_is_locked_as_a_whole(concurrent: ConcurrentSessions, standard: str) -> None:
    holder, other = concurrent.sessions(2)
    holder("BEGIN")
    holder(add(standard, 1))

    waiting = concurrent.start(other.count, f"DELETE FROM {standard} WHERE ID = 3")
    concurrent.wait_blocked("DELETE", waiting)
    holder("COMMIT")

    assert outcome(waiting) == 1


def test_inserts_into_a_standard_table_do_not_wait_for_its_changes(
    concurrent: ConcurrentSessions, standard: str
) -> None:
    holder, other = concurrent.sessions(2)
    holder("BEGIN")
    holder(add(standard, 1))

    assert other.count(f"INSERT INTO {standard} VALUES (10, 10)") == 1
    assert other.count(f"INSERT INTO {standard} SELECT ID + 10, N FROM {standard}") == 4
    holder("COMMIT")
    assert other.value(f"SELECT COUNT(*) FROM {standard}") == 8


def test_readers_never_wait_and_see_what_was_committed(concurrent: ConcurrentSessions, table: str) -> None:
    holder, reader = concurrent.sessions(2)
    reader("BEGIN")
    holder("BEGIN")
    holder(f"UPDATE {table} SET N = 7")
    holder(f"DELETE FROM {table} WHERE ID = 3")
    holder(f"INSERT INTO {table} VALUES (4, 4)")

    assert reader(f"SELECT ID, N FROM {table} ORDER BY ID") == [(1, 0), (2, 0), (3, 0)]
    assert holder(f"SELECT ID, N FROM {table} ORDER BY ID") == [(1, 7), (2, 7), (4, 4)]
    holder("COMMIT")
    assert reader(f"SELECT ID, N FROM {table} ORDER BY ID") == [(1, 7), (2, 7), (4, 4)]


def test_two_inserts_of_one_key_the_second_waits_for_the_first_transaction(
    concurrent: ConcurrentSessions, hybrid: str
) -> None:
    holder, other = concurrent.sessions(2)
    for end, expected in (("ROLLBACK", 1), ("COMMIT", PRIMARY_KEY)):
        holder("BEGIN")
        holder(f"INSERT INTO {hybrid} VALUES (9, 1)")

        waiting = concurrent.start(other.count, f"INSERT INTO {hybrid} VALUES (9, 2)")
        concurrent.wait_blocked("INSERT", waiting)
        holder(end)

        assert outcome(waiting) == expected
        holder(f"DELETE FROM {hybrid} WHERE ID = 9")


def test_a_row_held_by_another_transaction_times_out(concurrent: ConcurrentSessions, hybrid: str) -> None:
    holder = concurrent.session()
    other = concurrent.session(HYBRID_TABLE_LOCK_TIMEOUT=1)
    holder("BEGIN")
    holder(add(hybrid, 1))

    with pytest.raises(ProgrammingError) as caught:
        other(add(hybrid, 1))

    assert (caught.value.errno, caught.value.sqlstate) == (LOCKED, "57014")
    assert other.count(add(hybrid, 2)) == 1
    holder("COMMIT")
    assert other.count(add(hybrid, 1)) == 1


def test_a_standard_table_held_by_another_transaction_times_out(concurrent: ConcurrentSessions, standard: str) -> None:
    holder = concurrent.session()
    other = concurrent.session(LOCK_TIMEOUT=1)
    holder("BEGIN")
    holder(add(standard, 1))

    with pytest.raises(ProgrammingError) as caught:
        other(add(standard, 2))

    assert (caught.value.errno, caught.value.sqlstate) == (LOCKED, "57014")
    holder("COMMIT")
    assert other.count(add(standard, 2)) == 1


def test_the_lock_timeout_counts_for_every_statement_of_a_transaction(
    concurrent: ConcurrentSessions, hybrid: str
) -> None:
    holder, other = concurrent.sessions(2, QUERY_TAG="its lock timeout changes")
    holder("BEGIN")
    holder(add(hybrid, 1))
    other("BEGIN")
    other(add(hybrid, 2))
    other("ALTER SESSION SET HYBRID_TABLE_LOCK_TIMEOUT = 1")

    errors = [outcome(concurrent.start(other, add(hybrid, 1))) for _ in range(2)]
    other("ROLLBACK")
    errors.append(outcome(concurrent.start(other, add(hybrid, 1))))

    assert errors == [LOCKED, LOCKED, LOCKED]


def test_a_lock_timeout_of_zero_means_not_to_wait(concurrent: ConcurrentSessions, table: str) -> None:
    holder = concurrent.session()
    other = concurrent.session(HYBRID_TABLE_LOCK_TIMEOUT=0, LOCK_TIMEOUT=0)
    holder("BEGIN")
    holder(add(table, 1))

    assert outcome(concurrent.start(other, add(table, 1))) == LOCKED


def test_a_waiting_statement_obeys_the_statement_timeout_and_its_transaction_goes_on(
    concurrent: ConcurrentSessions, table: str
) -> None:
    holder, other = concurrent.sessions(2)
    holder("BEGIN")
    holder(add(table, 1))
    other("BEGIN")
    other(f"INSERT INTO {table} VALUES (20, 20)")

    with pytest.raises(ProgrammingError) as caught:
        other.cursor.execute(add(table, 1), _statement_params={"STATEMENT_TIMEOUT_IN_SECONDS": 1})
    other("COMMIT")
    holder("COMMIT")

    assert (caught.value.errno, caught.value.sqlstate) == (TIMED_OUT, "57014")
    assert holder.value(f"SELECT COUNT(*) FROM {table} WHERE ID = 20") == 1


def test_a_waiting_statement_can_be_cancelled(concurrent: ConcurrentSessions, table: str) -> None:
    holder, waiter, killer = concurrent.sessions(3)
    holder("BEGIN")
    holder(add(table, 1))
    waiting = concurrent.start(waiter.count, add(table, 1))
    concurrent.wait_blocked(f"UPDATE {table}", waiting)
    query_id = killer.value(
        "SELECT QUERY_ID FROM TABLE(INFORMATION_SCHEMA.QUERY_HISTORY()) WHERE EXECUTION_STATUS = 'blocked'"
        " AND QUERY_TEXT = ?",
        add(table, 1),
    )

    killer("SELECT SYSTEM$CANCEL_QUERY(?)", query_id)

    assert outcome(waiting) == CANCELED
    holder("COMMIT")
    assert waiter.count(add(table, 1)) == 1
    assert killer.value(f"SELECT N FROM {table} WHERE ID = 1") == 2


def test_of_25_waiters_for_a_standard_table_five_are_too_many_and_the_rest_succeed(
    concurrent: ConcurrentSessions, standard: str
) -> None:
    holder, *waiters = concurrent.sessions(26)
    holder("BEGIN")
    holder(add(standard, 1))

    works = [concurrent.start(waiter.count, add(standard, 1)) for waiter in waiters]
    wait_until(lambda: sum(work.done() for work in works) == 5, "five refused")
    refused = [work for work in works if work.done()]
    concurrent.wait_blocked(f"UPDATE {standard}", [work for work in works if work not in refused])
    errors = [work.exception() for work in refused]
    holder("COMMIT")
    outcomes = Counter(outcome(work) for work in works)

    assert outcomes == {1: 20, LOCKED: 5}
    assert all(isinstance(error, ProgrammingError) and error.sqlstate == "57014" for error in errors)
    assert all("the number of waiters for this lock exceeds the 20 statements limit" in str(error) for error in errors)
    assert holder.value(f"SELECT N FROM {standard} WHERE ID = 1") == 21


def test_a_hybrid_table_has_no_limit_of_waiters(concurrent: ConcurrentSessions, hybrid: str) -> None:
    holder, *waiters = concurrent.sessions(26)
    holder("BEGIN")
    holder(add(hybrid, 1))

    works = [concurrent.start(waiter.count, add(hybrid, 1)) for waiter in waiters]
    concurrent.wait_blocked(f"UPDATE {hybrid}", works)
    holder("COMMIT")

    assert Counter(outcome(work) for work in works) == {1: 25}
    assert holder.value(f"SELECT N FROM {hybrid} WHERE ID = 1") == 26


# --- FOR UPDATE ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["FOR UPDATE", "FOR UPDATE NOWAIT", "FOR UPDATE WAIT 1", "FOR UPDATE WAIT 0"])
def test_for_update_of_a_held_row_fails_at_once_or_after_its_wait(
    concurrent: ConcurrentSessions, hybrid: str, form: str
) -> None:
    holder, other = concurrent.sessions(2)
    holder("BEGIN")
    holder(add(hybrid, 1))
    other("BEGIN")

    first = outcome(concurrent.start(other, f"SELECT * FROM {hybrid} WHERE ID = 1 {form}"))
    free = other(f"SELECT ID FROM {hybrid} WHERE ID = 2 {form}")
    holder("COMMIT")
    after = other(f"SELECT N FROM {hybrid} WHERE ID = 1 {form}")

    assert (first, free, after) == (LOCKED, [(2,)], [(1,)])


def test_for_update_with_a_wait_gets_the_row_when_it_is_free(concurrent: ConcurrentSessions, hybrid: str) -> None:
    holder, other = concurrent.sessions(2)
    holder("BEGIN")
    holder(f"UPDATE {hybrid} SET N = 5 WHERE ID = 1")
    other("BEGIN")

    waiting = concurrent.start(other, f"SELECT N FROM {hybrid} WHERE ID = 1 FOR UPDATE WAIT 120")
    concurrent.wait_blocked("SELECT N", waiting)
    holder("COMMIT")

    assert outcome(waiting) == [(5,)]


def test_rows_selected_for_update_can_be_read_but_not_changed_by_others(
    concurrent: ConcurrentSessions, hybrid: str
) -> None:
    holder, other = concurrent.sessions(2)
    holder("BEGIN")
    holder(f"SELECT * FROM {hybrid} WHERE ID < 3 FOR UPDATE")

    waiting = concurrent.start(other.count, add(hybrid, 1))
    concurrent.wait_blocked(f"UPDATE {hybrid}", waiting)

    assert concurrent.session()(f"SELECT N FROM {hybrid} WHERE ID = 1") == [(0,)]
    assert concurrent.session().count(add(hybrid, 3)) == 1
    holder("ROLLBACK")
    assert outcome(waiting) == 1
