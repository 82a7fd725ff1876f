"""Locks and transactions from many real connections at once: nothing is lost, nothing waits that need not."""

from __future__ import annotations

import itertools
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from snowflake.connector.errors import Error, ProgrammingError

from tests.embedded_server import EmbeddedServer
from tests.processes import PATIENCE_S, wait_until

pytestmark = pytest.mark.any_driver

PRIMARY_KEY, LOCKED, TIMED_OUT, CANCELED = 200001, 625, 630, 604
# A statement that ought not to wait is given this long before it fails, instead of hanging the test.
IMPATIENT = {"STATEMENT_TIMEOUT_IN_SECONDS": 60}

_numbers = itertools.count(1)


class Sql:
    """One session."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.cursor = connection.cursor()
        self.plain = False

    def __call__(self, statement: str, *binds: Any) -> list[tuple[Any, ...]]:
        self.cursor.execute(statement, binds) if binds else self.cursor.execute(statement)
        rows: list[tuple[Any, ...]] = self.cursor.fetchall()
        return rows

    def value(self, statement: str, *binds: Any) -> Any:
        ((value,),) = self(statement, *binds)
        return value

    def count(self, statement: str, *binds: Any) -> int:
        self(statement, *binds)
        return int(self.cursor.rowcount)


class Sessions:
    """Connections of the whole file: opening one costs more than most tests. One with settings of its own is new."""

    def __init__(self, server: EmbeddedServer) -> None:
        self._server = server
        self._free: list[Sql] = []
        self.used: list[Sql] = []

    def take(self, warehouse: str | None, parameters: dict[str, Any]) -> Sql:
        plain = warehouse is None and not parameters
        if plain and self._free:
            sql = self._free.pop()
        else:
            sql = Sql(
                self._server.connect(
                    database="LOCKS",
                    schema="PUBLIC",
                    warehouse=warehouse or "COMPUTE_WH",
                    session_parameters=IMPATIENT | parameters,
                )
            )
            sql.plain = plain
        self.used.append(sql)
        return sql

    def give_back(self, *, reusable: bool) -> None:
        used, self.used = self.used, []
        for sql in used:
            if reusable and sql.plain and not sql.connection.is_closed():
                sql("ROLLBACK")
                self._free.append(sql)
            else:
                sql.connection.close()

    def close(self) -> None:
        self.give_back(reusable=False)
        for sql in self._free:
            sql.connection.close()


class Crowd:
    """Sessions, threads to use them in, and a look at who waits for a lock."""

    def __init__(self, sessions: Sessions, threads: ThreadPoolExecutor) -> None:
        self._sessions = sessions
        self._threads = threads
        self._works: list[Future[Any]] = []

    def session(self, *, warehouse: str | None = None, **parameters: Any) -> Sql:
        return self._sessions.take(warehouse, parameters)

    def sessions(self, count: int, *, warehouse: str | None = None, **parameters: Any) -> list[Sql]:
        return [self.session(warehouse=warehouse, **parameters) for _ in range(count)]

    def start(self, work: Callable[..., Any], *arguments: Any) -> Future[Any]:
        future = self._threads.submit(work, *arguments)
        self._works.append(future)
        return future

    def all(self, work: Callable[[Sql], Any], sessions: list[Sql]) -> list[Any]:
        """The results of the same work in all the sessions at once."""
        return [future.result(PATIENCE_S) for future in [self.start(work, sql) for sql in sessions]]

    def wait_blocked(self, text: str, waiting: Future[Any] | list[Future[Any]]) -> None:
        """Returns when as many statements that begin with this text wait for a lock as there are works that do."""
        works = waiting if isinstance(waiting, list) else [waiting]
        watcher = self.session()

        def blocked() -> bool:
            for work in works:
                assert not work.done(), f"did not wait: {outcome(work)}"
            return bool(watcher.value(BLOCKED, text) == len(works))

        wait_until(blocked, f"{len(works)} × {text!r} blocked")

    def settled(self) -> bool:
        return all(work.done() for work in self._works)


BLOCKED = (
    "SELECT COUNT(*) FROM TABLE(INFORMATION_SCHEMA.QUERY_HISTORY(RESULT_LIMIT => 1000))"
    " WHERE EXECUTION_STATUS = 'blocked' AND DATABASE_NAME = 'LOCKS' AND STARTSWITH(QUERY_TEXT, ?)"
)


def outcome(work: Future[Any]) -> Any:
    """What the work returned, or the number of the error it met."""
    try:
        return work.result(PATIENCE_S)
    except Error as error:
        return error.errno


@pytest.fixture(scope="module")
def all_sessions(server: EmbeddedServer) -> Iterator[Sessions]:
    sessions = Sessions(server)
    sessions.take(None, {})("CREATE OR REPLACE DATABASE LOCKS")
    yield sessions
    sessions.close()


@pytest.fixture
def crowd(all_sessions: Sessions) -> Iterator[Crowd]:
    with ThreadPoolExecutor(max_workers=40) as threads:
        crowd = Crowd(all_sessions, threads)
        yield crowd
        settled = crowd.settled()
        all_sessions.give_back(reusable=settled)


def make_table(crowd: Crowd, kind: str) -> str:
    """A table of the test's own with the rows 1, 2, 3."""
    sql, name = crowd.session(), f"{kind[0]}_{next(_numbers)}"
    sql(f"CREATE {kind} {name} (ID NUMBER PRIMARY KEY, N NUMBER)")
    sql(f"INSERT INTO {name} VALUES (1, 0), (2, 0), (3, 0)")
    return name


@pytest.fixture
def hybrid(crowd: Crowd) -> str:
    return make_table(crowd, "HYBRID TABLE")


@pytest.fixture
def standard(crowd: Crowd) -> str:
    return make_table(crowd, "TABLE")


@pytest.fixture(params=["hybrid", "standard"])
def table(request: pytest.FixtureRequest) -> str:
    """Each kind of table in turn."""
    name: str = request.getfixturevalue(request.param)
    return name


def add(table: str, row: int) -> str:
    return f"UPDATE {table} SET N = N + 1 WHERE ID = {row}"


# --- races ------------------------------------------------------------------------------------------------------------


def test_sixteen_writers_allocate_numbers_without_a_gap_or_a_double(crowd: Crowd) -> None:
    writers, each = 16, 10
    sessions = crowd.sessions(writers)
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
    holder = crowd.session()
    holder("BEGIN")
    holder("INSERT INTO EVENTS VALUES ('r', 1, 'none', -1)")
    works = [crowd.start(allocate, writer) for writer in range(writers)]
    crowd.wait_blocked("INSERT INTO EVENTS", works)
    holder("ROLLBACK")
    results = [work.result(PATIENCE_S) for work in works]

    numbers = [number for (number,) in sessions[0]("SELECT SEQUENCE_ID FROM EVENTS ORDER BY SEQUENCE_ID")]
    owners = dict(sessions[0]("SELECT WRITER, COUNT(*) FROM EVENTS GROUP BY WRITER"))
    assert numbers == list(range(1, writers * each + 1))
    assert owners == dict.fromkeys(range(writers), each)
    assert sum(result["lost"] for result in results) >= writers - 1


def test_one_of_many_wins_each_epoch_of_a_lease(crowd: Crowd) -> None:
    sessions = crowd.sessions(12)
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

    won = [epoch for work in [crowd.start(claim, owner) for owner in range(12)] for epoch in work.result(PATIENCE_S)]

    assert sorted(won) == list(range(1, 9))


def test_compare_and_set_from_32_connections_loses_no_update(crowd: Crowd, hybrid: str) -> None:
    sessions = crowd.sessions(32)
    all_have_seen = threading.Barrier(32)

    def compete(sql: Sql) -> int:
        won = 0
        for turn in range(8):
            seen = sql.value(f"SELECT N FROM {hybrid} WHERE ID = 1")
            if turn == 0:
                all_have_seen.wait(PATIENCE_S)
            won += sql.count(f"UPDATE {hybrid} SET N = ? WHERE ID = 1 AND N = ?", seen + 1, seen)
        return won

    won = crowd.all(compete, sessions)

    assert sessions[0].value(f"SELECT N FROM {hybrid} WHERE ID = 1") == sum(won)
    assert 0 < sum(won) <= 1 + 32 * 7  # of the first turn one has won


def test_increments_from_many_connections_all_arrive(crowd: Crowd, table: str) -> None:
    # 16, because more than 20 waiters are too many for a standard table
    sessions = crowd.sessions(16)

    def increment(sql: Sql) -> int:
        return sum(sql.count(add(table, 1)) for _ in range(8))

    changed = crowd.all(increment, sessions)

    assert sum(changed) == 16 * 8
    assert sessions[0].value(f"SELECT N FROM {table} WHERE ID = 1") == 16 * 8


# --- waiting ----------------------------------------------------------------------------------------------------------


def test_a_change_waits_for_the_transaction_that_holds_its_row_and_sees_the_result(crowd: Crowd, table: str) -> None:
    holder, waiter = crowd.sessions(2)
    holder("BEGIN")
    holder(f"UPDATE {table} SET N = 100 WHERE ID = 1")

    waiting = crowd.start(waiter.count, add(table, 1))
    crowd.wait_blocked(f"UPDATE {table} SET N = N + 1", waiting)
    holder("COMMIT")

    assert outcome(waiting) == 1
    assert holder.value(f"SELECT N FROM {table} WHERE ID = 1") == 101


def test_rows_of_a_hybrid_table_are_locked_one_by_one(crowd: Crowd, hybrid: str) -> None:
    holder, other = crowd.sessions(2)
    holder("BEGIN")
    holder(add(hybrid, 1))

    assert other.count(add(hybrid, 2)) == 1
    assert other.count(f"DELETE FROM {hybrid} WHERE ID = 3") == 1
    assert other.count(f"INSERT INTO {hybrid} VALUES (4, 0)") == 1
    holder("ROLLBACK")


def test_a_standard_table_is_locked_as_a_whole(crowd: Crowd, standard: str) -> None:
    holder, other = crowd.sessions(2)
    holder("BEGIN")
    holder(add(standard, 1))

    waiting = crowd.start(other.count, f"DELETE FROM {standard} WHERE ID = 3")
    crowd.wait_blocked("DELETE", waiting)
    holder("COMMIT")

    assert outcome(waiting) == 1


def test_inserts_into_a_standard_table_do_not_wait_for_its_changes(crowd: Crowd, standard: str) -> None:
    holder, other = crowd.sessions(2)
    holder("BEGIN")
    holder(add(standard, 1))

    assert other.count(f"INSERT INTO {standard} VALUES (10, 10)") == 1
    assert other.count(f"INSERT INTO {standard} SELECT ID + 10, N FROM {standard}") == 4
    holder("COMMIT")
    assert other.value(f"SELECT COUNT(*) FROM {standard}") == 8


def test_readers_never_wait_and_see_what_was_committed(crowd: Crowd, table: str) -> None:
    holder, reader = crowd.sessions(2)
    reader("BEGIN")
    holder("BEGIN")
    holder(f"UPDATE {table} SET N = 7")
    holder(f"DELETE FROM {table} WHERE ID = 3")
    holder(f"INSERT INTO {table} VALUES (4, 4)")

    assert reader(f"SELECT ID, N FROM {table} ORDER BY ID") == [(1, 0), (2, 0), (3, 0)]
    assert holder(f"SELECT ID, N FROM {table} ORDER BY ID") == [(1, 7), (2, 7), (4, 4)]
    holder("COMMIT")
    assert reader(f"SELECT ID, N FROM {table} ORDER BY ID") == [(1, 7), (2, 7), (4, 4)]


def test_two_inserts_of_one_key_the_second_waits_for_the_first_transaction(crowd: Crowd, hybrid: str) -> None:
    holder, other = crowd.sessions(2)
    for end, expected in (("ROLLBACK", 1), ("COMMIT", PRIMARY_KEY)):
        holder("BEGIN")
        holder(f"INSERT INTO {hybrid} VALUES (9, 1)")

        waiting = crowd.start(other.count, f"INSERT INTO {hybrid} VALUES (9, 2)")
        crowd.wait_blocked("INSERT", waiting)
        holder(end)

        assert outcome(waiting) == expected
        holder(f"DELETE FROM {hybrid} WHERE ID = 9")


def test_a_row_held_by_another_transaction_times_out(crowd: Crowd, hybrid: str) -> None:
    holder = crowd.session()
    other = crowd.session(HYBRID_TABLE_LOCK_TIMEOUT=1)
    holder("BEGIN")
    holder(add(hybrid, 1))

    with pytest.raises(ProgrammingError) as caught:
        other(add(hybrid, 1))

    assert (caught.value.errno, caught.value.sqlstate) == (LOCKED, "57014")
    assert other.count(add(hybrid, 2)) == 1
    holder("COMMIT")
    assert other.count(add(hybrid, 1)) == 1


def test_a_standard_table_held_by_another_transaction_times_out(crowd: Crowd, standard: str) -> None:
    holder = crowd.session()
    other = crowd.session(LOCK_TIMEOUT=1)
    holder("BEGIN")
    holder(add(standard, 1))

    with pytest.raises(ProgrammingError) as caught:
        other(add(standard, 2))

    assert (caught.value.errno, caught.value.sqlstate) == (LOCKED, "57014")
    holder("COMMIT")
    assert other.count(add(standard, 2)) == 1


def test_the_lock_timeout_counts_for_every_statement_of_a_transaction(crowd: Crowd, hybrid: str) -> None:
    holder, other = crowd.sessions(2, QUERY_TAG="its lock timeout changes")
    holder("BEGIN")
    holder(add(hybrid, 1))
    other("BEGIN")
    other(add(hybrid, 2))
    other("ALTER SESSION SET HYBRID_TABLE_LOCK_TIMEOUT = 1")

    errors = [outcome(crowd.start(other, add(hybrid, 1))) for _ in range(2)]
    other("ROLLBACK")
    errors.append(outcome(crowd.start(other, add(hybrid, 1))))

    assert errors == [LOCKED, LOCKED, LOCKED]


def test_a_lock_timeout_of_zero_means_not_to_wait(crowd: Crowd, table: str) -> None:
    holder = crowd.session()
    other = crowd.session(HYBRID_TABLE_LOCK_TIMEOUT=0, LOCK_TIMEOUT=0)
    holder("BEGIN")
    holder(add(table, 1))

    assert outcome(crowd.start(other, add(table, 1))) == LOCKED


def test_a_waiting_statement_obeys_the_statement_timeout_and_its_transaction_goes_on(crowd: Crowd, table: str) -> None:
    holder, other = crowd.sessions(2)
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


def test_a_waiting_statement_can_be_cancelled(crowd: Crowd, table: str) -> None:
    holder, waiter, killer = crowd.sessions(3)
    holder("BEGIN")
    holder(add(table, 1))
    waiting = crowd.start(waiter.count, add(table, 1))
    crowd.wait_blocked(f"UPDATE {table}", waiting)
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


def test_of_25_waiters_for_a_standard_table_five_are_too_many_and_the_rest_succeed(crowd: Crowd, standard: str) -> None:
    holder, *waiters = crowd.sessions(26)
    holder("BEGIN")
    holder(add(standard, 1))

    works = [crowd.start(waiter.count, add(standard, 1)) for waiter in waiters]
    wait_until(lambda: sum(work.done() for work in works) == 5, "five refused")
    refused = [work for work in works if work.done()]
    crowd.wait_blocked(f"UPDATE {standard}", [work for work in works if work not in refused])
    errors = [work.exception() for work in refused]
    holder("COMMIT")
    outcomes = Counter(outcome(work) for work in works)

    assert outcomes == {1: 20, LOCKED: 5}
    assert all(isinstance(error, ProgrammingError) and error.sqlstate == "57014" for error in errors)
    assert all("the number of waiters for this lock exceeds the 20 statements limit" in str(error) for error in errors)
    assert holder.value(f"SELECT N FROM {standard} WHERE ID = 1") == 21


def test_a_hybrid_table_has_no_limit_of_waiters(crowd: Crowd, hybrid: str) -> None:
    holder, *waiters = crowd.sessions(26)
    holder("BEGIN")
    holder(add(hybrid, 1))

    works = [crowd.start(waiter.count, add(hybrid, 1)) for waiter in waiters]
    crowd.wait_blocked(f"UPDATE {hybrid}", works)
    holder("COMMIT")

    assert Counter(outcome(work) for work in works) == {1: 25}
    assert holder.value(f"SELECT N FROM {hybrid} WHERE ID = 1") == 26


# --- deadlocks --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["ROLLBACK", "COMMIT"])
def test_of_a_deadlock_the_newest_statement_is_the_only_victim(crowd: Crowd, hybrid: str, end: str) -> None:
    older, newer = crowd.sessions(2)
    for sql, row in ((older, 1), (newer, 2)):
        sql("BEGIN")
        sql(add(hybrid, row))
    waiting = crowd.start(older.count, f"UPDATE {hybrid} SET N = N + 10 WHERE ID = 2")
    crowd.wait_blocked(f"UPDATE {hybrid} SET N = N + 10", waiting)

    with pytest.raises(ProgrammingError) as victim:
        newer(f"UPDATE {hybrid} SET N = N + 100 WHERE ID = 1")
    assert not waiting.done(), "the victim's transaction is over, but only its statement should be"
    newer(end)

    assert (victim.value.errno, victim.value.sqlstate) == (LOCKED, "57014")
    assert outcome(waiting) == 1
    older("COMMIT")
    kept = 1 if end == "COMMIT" else 0
    assert older(f"SELECT N FROM {hybrid} ORDER BY ID") == [(1,), (10 + kept,), (0,)]


def test_a_deadlock_over_two_standard_tables_has_one_victim_too(crowd: Crowd, standard: str) -> None:
    older, newer = crowd.sessions(2)
    second = make_table(crowd, "TABLE")
    for sql, table in ((older, standard), (newer, second)):
        sql("BEGIN")
        sql(add(table, 1))
    waiting = crowd.start(older.count, add(second, 2))
    crowd.wait_blocked(f"UPDATE {second}", waiting)

    with pytest.raises(ProgrammingError) as victim:
        newer(add(standard, 2))
    newer("ROLLBACK")

    assert victim.value.errno == LOCKED
    assert outcome(waiting) == 1
    older("COMMIT")
    assert older(f"SELECT N FROM {standard} ORDER BY ID") == [(1,), (0,), (0,)]
    assert older(f"SELECT N FROM {second} ORDER BY ID") == [(0,), (1,), (0,)]


def test_deadlocks_in_a_crowd_lose_and_double_nothing(crowd: Crowd, hybrid: str) -> None:
    sessions = crowd.sessions(6)

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

    done = sum(work.result(PATIENCE_S) for work in [crowd.start(swap, index) for index in range(6)])

    assert sessions[0](f"SELECT N FROM {hybrid} ORDER BY ID") == [(done,), (done,), (0,)]


# --- FOR UPDATE -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["FOR UPDATE", "FOR UPDATE NOWAIT", "FOR UPDATE WAIT 1", "FOR UPDATE WAIT 0"])
def test_for_update_of_a_held_row_fails_at_once_or_after_its_wait(crowd: Crowd, hybrid: str, form: str) -> None:
    holder, other = crowd.sessions(2)
    holder("BEGIN")
    holder(add(hybrid, 1))
    other("BEGIN")

    first = outcome(crowd.start(other, f"SELECT * FROM {hybrid} WHERE ID = 1 {form}"))
    free = other(f"SELECT ID FROM {hybrid} WHERE ID = 2 {form}")
    holder("COMMIT")
    after = other(f"SELECT N FROM {hybrid} WHERE ID = 1 {form}")

    assert (first, free, after) == (LOCKED, [(2,)], [(1,)])


def test_for_update_with_a_wait_gets_the_row_when_it_is_free(crowd: Crowd, hybrid: str) -> None:
    holder, other = crowd.sessions(2)
    holder("BEGIN")
    holder(f"UPDATE {hybrid} SET N = 5 WHERE ID = 1")
    other("BEGIN")

    waiting = crowd.start(other, f"SELECT N FROM {hybrid} WHERE ID = 1 FOR UPDATE WAIT 120")
    crowd.wait_blocked("SELECT N", waiting)
    holder("COMMIT")

    assert outcome(waiting) == [(5,)]


def test_rows_selected_for_update_can_be_read_but_not_changed_by_others(crowd: Crowd, hybrid: str) -> None:
    holder, other = crowd.sessions(2)
    holder("BEGIN")
    holder(f"SELECT * FROM {hybrid} WHERE ID < 3 FOR UPDATE")

    waiting = crowd.start(other.count, add(hybrid, 1))
    crowd.wait_blocked(f"UPDATE {hybrid}", waiting)

    assert crowd.session()(f"SELECT N FROM {hybrid} WHERE ID = 1") == [(0,)]
    assert crowd.session().count(add(hybrid, 3)) == 1
    holder("ROLLBACK")
    assert outcome(waiting) == 1


# --- transactions -----------------------------------------------------------------------------------------------------


def test_what_is_not_committed_is_invisible_to_others_and_a_rollback_undoes_it(crowd: Crowd, table: str) -> None:
    mine, other = crowd.sessions(2)

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
def test_a_transaction_has_more_than_one_spelling(crowd: Crowd, hybrid: str, begin: str, commit: str) -> None:
    mine, other = crowd.sessions(2)

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
def test_a_failed_statement_leaves_its_transaction_open_and_committable(crowd: Crowd, table: str, failing: str) -> None:
    mine, other = crowd.sessions(2)
    mine("BEGIN")
    mine(f"INSERT INTO {table} VALUES (10, 1)")

    with pytest.raises(Error):
        mine(failing.format(table=table))
    mine(f"INSERT INTO {table} VALUES (11, 2)")
    unseen = other.value(f"SELECT COUNT(*) FROM {table} WHERE ID >= 10")
    mine("COMMIT")

    assert unseen == 0
    assert other(f"SELECT ID, N FROM {table} WHERE ID >= 10 ORDER BY ID") == [(10, 1), (11, 2)]


def test_a_duplicate_key_inside_a_transaction_undoes_its_statement_only(crowd: Crowd, hybrid: str) -> None:
    mine = crowd.session()
    mine("BEGIN")
    mine(f"INSERT INTO {hybrid} VALUES (10, 1)")

    with pytest.raises(ProgrammingError) as caught:
        mine(f"INSERT INTO {hybrid} VALUES (20, 0), (10, 0)")
    mine("COMMIT")

    assert caught.value.errno == PRIMARY_KEY
    assert mine(f"SELECT ID FROM {hybrid} WHERE ID >= 10") == [(10,)]


@pytest.mark.parametrize("failing", ["SELECT 1 / 0 FROM {table}", "SELECT * FROM NO_SUCH"])
def test_with_transaction_abort_on_error_nothing_goes_until_the_transaction_is_ended(
    crowd: Crowd, table: str, failing: str
) -> None:
    mine = crowd.session(TRANSACTION_ABORT_ON_ERROR=True)
    mine("BEGIN")
    mine(f"INSERT INTO {table} VALUES (10, 1)")

    with pytest.raises(Error):
        mine(failing.format(table=table))
    with pytest.raises(Error):
        mine(f"INSERT INTO {table} VALUES (11, 2)")
    mine("ROLLBACK")
    mine(f"INSERT INTO {table} VALUES (12, 3)")

    assert mine(f"SELECT ID FROM {table} WHERE ID >= 10") == [(12,)]


def test_a_second_begin_is_ignored(crowd: Crowd, hybrid: str) -> None:
    mine = crowd.session()

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
def test_a_definition_commits_the_open_transaction(crowd: Crowd, hybrid: str, definition: str) -> None:
    mine, reader = crowd.sessions(2)
    other = make_table(crowd, "TABLE")
    mine("BEGIN")
    mine(f"INSERT INTO {hybrid} VALUES (10, 1)")

    mine(definition.format(other=other))

    assert reader.value(f"SELECT COUNT(*) FROM {hybrid} WHERE ID = 10") == 1
    mine("ROLLBACK")
    assert mine.value(f"SELECT COUNT(*) FROM {hybrid} WHERE ID = 10") == 1


def test_a_truncate_is_a_change_and_can_be_rolled_back(crowd: Crowd, standard: str) -> None:
    mine, other = crowd.sessions(2)
    mine("BEGIN")
    mine(f"TRUNCATE TABLE {standard}")

    assert mine.value(f"SELECT COUNT(*) FROM {standard}") == 0
    assert other.value(f"SELECT COUNT(*) FROM {standard}") == 3
    mine("ROLLBACK")
    assert mine.value(f"SELECT COUNT(*) FROM {standard}") == 3


def test_without_autocommit_the_first_change_opens_a_transaction(crowd: Crowd, table: str) -> None:
    mine, other = crowd.session(QUERY_TAG="no autocommit"), crowd.session()
    mine.connection.autocommit(False)

    mine(f"INSERT INTO {table} VALUES (10, 1)")
    unseen = other.value(f"SELECT COUNT(*) FROM {table} WHERE ID = 10")
    mine.connection.commit()
    seen = other.value(f"SELECT COUNT(*) FROM {table} WHERE ID = 10")
    mine(f"DELETE FROM {table}")
    mine.connection.rollback()

    assert (unseen, seen) == (0, 1)
    assert other.value(f"SELECT COUNT(*) FROM {table}") == 4


def test_setting_autocommit_commits_what_is_open(crowd: Crowd, hybrid: str) -> None:
    mine, other = crowd.session(AUTOCOMMIT=False), crowd.session()
    for row, value in ((10, "FALSE"), (11, "TRUE")):
        mine(f"INSERT INTO {hybrid} VALUES ({row}, 0)")
        unseen = other.value(f"SELECT COUNT(*) FROM {hybrid} WHERE ID = {row}")

        mine(f"ALTER SESSION SET AUTOCOMMIT = {value}")

        assert (unseen, other.value(f"SELECT COUNT(*) FROM {hybrid} WHERE ID = {row}")) == (0, 1)
    mine(f"INSERT INTO {hybrid} VALUES (12, 0)")
    assert other.value(f"SELECT COUNT(*) FROM {hybrid} WHERE ID = 12") == 1


def test_show_transactions_lists_the_open_ones(crowd: Crowd, hybrid: str) -> None:
    mine, other = crowd.sessions(2)

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


def test_closing_a_connection_ends_its_transaction_and_frees_its_locks(crowd: Crowd, table: str) -> None:
    holder, waiter = crowd.sessions(2)
    holder("BEGIN")
    holder(add(table, 1))
    holder(f"INSERT INTO {table} VALUES (10, 0)")
    waiting = crowd.start(waiter.count, f"UPDATE {table} SET N = N + 10 WHERE ID = 1")
    crowd.wait_blocked(f"UPDATE {table} SET N = N + 10", waiting)

    holder.connection.close()

    assert outcome(waiting) == 1
    assert waiter(f"SELECT ID, N FROM {table} ORDER BY ID") == [(1, 10), (2, 0), (3, 0)]


def test_each_statement_of_a_transaction_sees_what_was_committed_before_it(crowd: Crowd, table: str) -> None:
    mine, other = crowd.sessions(2)
    query = f"SELECT N FROM {table} WHERE ID = 1"
    mine("BEGIN")

    first = mine.value(query)
    other(add(table, 1))
    second = mine.value(query)

    assert (first, second) == (0, 1)


def test_a_transaction_may_span_hybrid_and_standard_tables(crowd: Crowd, hybrid: str, standard: str) -> None:
    mine, other = crowd.sessions(2)
    for end, expected in (("ROLLBACK", (0, 0)), ("COMMIT", (1, 1))):
        mine("BEGIN")
        mine(add(hybrid, 1))
        mine(add(standard, 1))

        mine(end)

        assert tuple(other.value(f"SELECT N FROM {t} WHERE ID = 1") for t in (hybrid, standard)) == expected


def test_a_query_that_is_new_to_the_server_runs_inside_a_transaction(crowd: Crowd, table: str) -> None:
    mine = crowd.session()
    mine("BEGIN")
    mine(add(table, 1))

    alias = f"A{uuid.uuid4().hex}"

    assert mine(f"SELECT SUM(N) AS {alias}, COUNT(*) FROM {table}") == [(1, 3)]
    mine("COMMIT")
    assert mine.value(f"SELECT N FROM {table} WHERE ID = 1") == 1


# --- definitions beside transactions ----------------------------------------------------------------------------------


def test_a_transaction_that_only_reads_does_not_hold_up_definitions(crowd: Crowd, table: str) -> None:
    reader, other = crowd.sessions(2)
    query = f"SELECT COUNT(*) FROM {table}"
    reader(query)
    reader("BEGIN")
    reader(query)

    other(f"ALTER TABLE {table} ADD COLUMN EXTRA NUMBER")
    other(f"CREATE OR REPLACE TABLE {table} (ID NUMBER, N NUMBER)")

    assert reader(query) == [(0,)]


def test_a_definition_that_waits_holds_up_nobody_else(crowd: Crowd, table: str) -> None:
    holder, defining, other = crowd.sessions(3)
    other(f"SELECT COUNT(*) FROM {table}")
    holder("BEGIN")
    holder(add(table, 1))
    waiting = crowd.start(defining, f"ALTER TABLE {table} ADD COLUMN EXTRA NUMBER")
    wait_until(lambda: waiting.done() or crowd_is_defining(other, table), "the definition is under way")

    assert outcome(crowd.start(other, f"SELECT COUNT(*) FROM {table}")) == [(3,)]
    assert outcome(crowd.start(other, "CREATE TABLE SOMETHING_ELSE (A NUMBER)")) != TIMED_OUT
    holder("COMMIT")
    outcome(waiting)


def crowd_is_defining(sql: Sql, table: str) -> bool:
    running = sql.value(
        "SELECT COUNT(*) FROM TABLE(INFORMATION_SCHEMA.QUERY_HISTORY())"
        " WHERE EXECUTION_STATUS IN ('running', 'blocked') AND STARTSWITH(QUERY_TEXT, ?)",
        f"ALTER TABLE {table}",
    )
    return bool(running)


# --- slots ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def narrow(crowd: Crowd) -> Iterator[str]:
    """A warehouse that runs one statement at a time."""
    sql, name = crowd.session(), f"NARROW_{next(_numbers)}"
    sql(f"CREATE WAREHOUSE {name} MAX_CONCURRENCY_LEVEL = 1")
    sql("USE WAREHOUSE COMPUTE_WH")
    yield name
    sql(f"DROP WAREHOUSE {name}")


def test_a_statement_that_waits_for_a_lock_holds_no_slot_and_its_wait_is_on_record(
    crowd: Crowd, server: EmbeddedServer, table: str, narrow: str
) -> None:
    tag = str(uuid.uuid4())
    holder = crowd.session()
    waiter = crowd.session(warehouse=narrow, QUERY_TAG=tag)
    reader = crowd.session(warehouse=narrow)
    holder("BEGIN")
    holder(add(table, 1))

    waiting = crowd.start(waiter.count, add(table, 1))
    crowd.wait_blocked(f"UPDATE {table}", waiting)
    running = server.ask("/__loadgen/stats")["warehouses"][narrow]["running"]
    read = reader.value(f"SELECT N FROM {table} WHERE ID = 1")
    waited_ms = server.let_pass(500)  # long enough for a hybrid statement to be recorded
    holder("COMMIT")

    assert outcome(waiting) == 1
    assert (running, read) == (0, 0)
    ((blocked_ms, execution_ms, elapsed_ms),) = holder(
        "SELECT TRANSACTION_BLOCKED_TIME, EXECUTION_TIME, TOTAL_ELAPSED_TIME FROM"
        " TABLE(INFORMATION_SCHEMA.QUERY_HISTORY())"
        " WHERE QUERY_TAG = ? AND QUERY_TYPE = 'UPDATE'",
        tag,
    )
    assert waited_ms - 1 <= blocked_ms <= elapsed_ms
    assert execution_ms <= elapsed_ms - blocked_ms + 1
    (entry,) = [
        entry for entry in server.ask(f"/__loadgen/history?tag={tag}") if entry["sql_text"].startswith("UPDATE")
    ]
    assert entry["total_ms"] - entry["execution_ms"] - entry["queued_ms"] >= waited_ms


def test_commit_and_rollback_need_no_slot(crowd: Crowd, table: str, narrow: str) -> None:
    mine, hog = crowd.session(warehouse=narrow), crowd.session(warehouse=narrow)
    watcher = crowd.session()
    mine("BEGIN")
    mine(add(table, 1))
    sleeping = crowd.start(hog, "SELECT SYSTEM$WAIT(60)")
    wait_until(lambda: watcher(f"SHOW WAREHOUSES LIKE '{narrow}'")[0][7] == 1, "the slot is taken")

    mine("COMMIT")

    assert not sleeping.done()
    assert watcher.value(f"SELECT N FROM {table} WHERE ID = 1") == 1
    watcher(f"ALTER WAREHOUSE {narrow} ABORT ALL QUERIES")
    assert outcome(sleeping) == CANCELED


def test_many_waiters_leave_the_warehouse_free_for_others(crowd: Crowd, table: str, narrow: str) -> None:
    holder = crowd.session()
    waiters = crowd.sessions(12, warehouse=narrow)
    reader = crowd.session(warehouse=narrow)
    holder("BEGIN")
    holder(add(table, 1))

    works = [crowd.start(waiter.count, add(table, 1)) for waiter in waiters]
    crowd.wait_blocked(f"UPDATE {table}", works)
    read = reader.value(f"SELECT N FROM {table} WHERE ID = 1")
    holder("COMMIT")

    assert read == 0
    assert [outcome(work) for work in works] == [1] * 12
    assert reader.value(f"SELECT N FROM {table} WHERE ID = 1") == 13
