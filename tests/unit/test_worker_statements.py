"""Compiled statements: how rows are counted, and how a transaction ends after every failure."""

from collections.abc import Sequence
from typing import Any, cast

import pytest

from loadgen.model.workload import Query, Statement, StatementKind
from loadgen.snowflake.driver import Cursor
from loadgen.worker.sessions import FETCH_ROWS, CheckFailed, RollbackFailed, compile_statement
from loadgen.workload.draw import Row

READ, WRITE = "SELECT A FROM T WHERE B = ?", "UPDATE T SET A = ?"


class Refused(Exception):
    pass


class Tape:
    """A cursor that records statements, and rejects the scripted ones."""

    def __init__(self, *, rows: int = 0, rowcount: int | None = 1, refuse: Sequence[str] = ()) -> None:
        self.asked: list[tuple[str, Any]] = []
        self.fetches: list[int] = []
        self.rowcount = rowcount
        self._rows, self._left, self._refuse = rows, 0, refuse

    def execute(self, command: str, params: Sequence[Any] | None = None, /) -> None:
        self.asked.append((command, params))
        self._left = self._rows
        if command in self._refuse:
            raise Refused(command)

    def fetchmany(self, size: int, /) -> list[tuple[int]]:
        count = min(size, self._left)
        self._left -= count
        self.fetches.append(count)
        return [(1,)] * count

    @property
    def texts(self) -> list[str]:
        return [text for text, _ in self.asked]


def run(statement: Statement, tape: Tape, row: Row) -> int:
    return compile_statement(statement)(cast(Cursor, tape), row)


def single(sql: str, *, expected: int | None = None) -> Statement:
    return Statement(name="s", kind=StatementKind.READ, weight=1, queries=(Query(sql=sql),), expected_rows=expected)


def transaction(*texts: str, expected: int | None = None) -> Statement:
    return Statement(
        name="t",
        kind=StatementKind.WRITE,
        weight=1,
        queries=tuple(Query(sql=text) for text in texts),
        transaction=True,
        expected_rows=expected,
    )


@pytest.mark.parametrize("rows", [0, 1, FETCH_ROWS - 1, FETCH_ROWS, FETCH_ROWS + 1, 2 * FETCH_ROWS, 2 * FETCH_ROWS + 1])
def test_every_row_of_a_result_is_fetched_and_counted_a_thousand_at_a_time(rows):
    tape = Tape(rows=rows)

    assert run(single(READ), tape, ((5,),)) == rows

    assert tape.asked == [(READ, (5,))]
    assert sum(tape.fetches) == rows
    assert max(tape.fetches) <= FETCH_ROWS
    assert len(tape.fetches) == rows // FETCH_ROWS + 1  # the last one shows that there are no more


@pytest.mark.parametrize(
    "sql", ["WITH X AS (SELECT 1) SELECT * FROM X", "(SELECT 1) UNION (SELECT 2)", "/* c */ select 1"]
)
def test_every_result_with_rows_is_fetched(sql):
    tape = Tape(rows=3)

    assert run(single(sql), tape, ((),)) == 3
    assert tape.fetches == [3]


@pytest.mark.parametrize(("rowcount", "rows"), [(None, 0), (0, 0), (1, 1), (12_345, 12_345)])
def test_a_change_counts_the_rows_it_touched_and_fetches_nothing(rowcount, rows):
    tape = Tape(rows=7, rowcount=rowcount)

    assert run(single(WRITE), tape, (("x",),)) == rows
    assert tape.fetches == []


def test_an_error_of_a_statement_reaches_the_caller():
    tape = Tape(refuse=[READ])

    with pytest.raises(Refused):
        run(single(READ), tape, ((),))

    assert tape.texts == [READ]


def test_a_transaction_sends_its_queries_in_order_between_begin_and_commit():
    tape = Tape(rows=2, rowcount=5)

    rows = run(transaction(WRITE, READ), tape, (("a",), ("b",)))

    assert rows == 7
    assert tape.asked == [("BEGIN", None), (WRITE, ("a",)), (READ, ("b",)), ("COMMIT", None)]


@pytest.mark.parametrize("refused", ["BEGIN", WRITE, READ, "COMMIT"])
def test_after_any_failure_a_transaction_is_rolled_back_once_and_the_first_error_is_reported(refused):
    tape = Tape(refuse=[refused])

    with pytest.raises(Refused, match=refused.split()[0]):
        run(transaction(WRITE, READ), tape, ((), ()))

    order = ["BEGIN", WRITE, READ, "COMMIT"]
    assert tape.texts == [*order[: order.index(refused) + 1], "ROLLBACK"]


@pytest.mark.parametrize("refused", ["BEGIN", WRITE, "COMMIT"])
def test_a_failed_rollback_is_reported_separately_and_the_first_error_is_not_lost(refused):
    tape = Tape(refuse=[refused, "ROLLBACK"])

    with pytest.raises(RollbackFailed) as caught:
        run(transaction(WRITE), tape, ((),))

    assert isinstance(caught.value.failed, Refused)
    assert str(caught.value.failed) == refused
    assert str(caught.value.__cause__) == "ROLLBACK"


def test_too_few_parameters_undo_the_transaction():
    tape = Tape()

    with pytest.raises(ValueError, match="shorter"):
        run(transaction(WRITE, WRITE), tape, (("a",),))

    assert tape.texts[-1] == "ROLLBACK"


@pytest.mark.parametrize(("expected", "rows"), [(1, 0), (1, 2), (0, 1), (1_000, 999)])
def test_an_unexpected_number_of_rows_is_a_failure_with_both_numbers(expected, rows):
    with pytest.raises(CheckFailed, match=rf"{rows} rows.*{expected}"):
        run(single(READ, expected=expected), Tape(rows=rows), ((),))


@pytest.mark.parametrize("rows", [0, 1, FETCH_ROWS])
def test_the_expected_number_of_rows_is_no_failure(rows):
    assert run(single(READ, expected=rows), Tape(rows=rows), ((),)) == rows


def test_a_transaction_is_checked_after_it_has_been_committed():
    tape = Tape(rowcount=2)

    with pytest.raises(CheckFailed):
        run(transaction(WRITE, WRITE, expected=3), tape, ((), ()))

    assert tape.texts[-1] == "COMMIT"
