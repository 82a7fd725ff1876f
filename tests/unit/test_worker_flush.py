"""What waits to be written: nothing of it is lost while it is written, when that fails, or when it is uploaded."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from loadgen.control.session import ControlFailed, NamedQuery
from loadgen.control.tables import query_executions
from loadgen.model.counts import ErrorCategory
from loadgen.snowflake.failure import Failure
from loadgen.snowflake.session import RetryPolicy
from loadgen.units import NS_PER_S
from loadgen.worker.arguments import WorkerArguments
from loadgen.worker.flush import (
    SNAPSHOTS_MAX,
    WRITERS_PER_S,
    ResultFlusher,
    UnsentRows,
    contents,
    spool_rows,
    started_row,
    upload,
)
from loadgen.worker.query_log import RECORD_BYTES, RECORDS
from loadgen.worker.worker_state import WorkerSharedState
from tests.fake_clock import FakeClock
from tests.unit.query_log_builders import entry, write
from tests.unit.worker_builders import ME, snapshot

AWAY = ControlFailed("away", Failure(category=ErrorCategory.SNOWFLAKE_ERROR))


class Session:
    """Tables that rows are appended to, by the first column's name."""

    def __init__(self) -> None:
        self.rows: dict[str, list[Sequence[Any]]] = {"snapshots": [], "logs": []}
        self.meanwhile: Callable[[], None] = lambda: None  # happens while a statement is under way
        self.fails = False

    def append(self, query: NamedQuery, rows: Sequence[Sequence[Any]]) -> int:
        self.meanwhile()
        if self.fails:
            raise AWAY
        self._table(query).extend(rows)
        return len(rows)

    def fetch(self, query: NamedQuery, *binds: Any) -> list[tuple[Any, ...]]:
        return [(row[0],) for row in self._table(query)]

    def _table(self, query: NamedQuery) -> list[Sequence[Any]]:
        return self.rows["logs" if "TEST_LOGS" in query.sql else "snapshots"]


class FlushHarness:
    def __init__(self, me: WorkerArguments = ME) -> None:
        self.clock, self.session = FakeClock(), Session()
        self.worker_state = WorkerSharedState(clock=self.clock)
        self.flush = ResultFlusher(self.session, me, "test", self.worker_state, self.clock, period_s=5.0)  # type: ignore[arg-type]
        self.retries = RetryPolicy(stop=threading.Event(), clock=self.clock)

    def put(self, *numbers: int) -> None:
        for number in numbers:
            self.flush.put_snapshot(snapshot(number))

    def step(self) -> bool:
        return self.flush.step(self.retries, everything=True)

    @property
    def stored(self) -> list[str]:
        return [row[0] for row in self.session.rows["snapshots"]]


@pytest.fixture
def harness() -> FlushHarness:
    return FlushHarness()


def test_seconds_that_come_while_a_full_queue_is_written_are_not_lost(harness: FlushHarness) -> None:
    harness.put(*range(SNAPSHOTS_MAX))
    late = iter(((SNAPSHOTS_MAX, SNAPSHOTS_MAX + 1, SNAPSHOTS_MAX + 2),))
    harness.session.meanwhile = lambda: harness.put(*next(late, ()))

    harness.step()
    harness.step()

    assert harness.stored == [str(number) for number in range(SNAPSHOTS_MAX + 3)]
    assert harness.flush.dropped_snapshots == 0


def test_when_the_control_plane_stays_unreachable_only_the_oldest_seconds_are_dropped(harness: FlushHarness) -> None:
    harness.session.fails = True
    harness.put(*range(SNAPSHOTS_MAX + 5))
    assert not harness.step()

    assert [row.snapshot_id for row in harness.flush.unsent().snapshots] == [
        str(number) for number in range(5, SNAPSHOTS_MAX + 5)
    ]
    assert harness.flush.dropped_snapshots == 5


def test_a_line_that_is_being_written_is_still_available_to_the_spool(harness: FlushHarness) -> None:
    harness.worker_state.say("WARNING", "one")
    seen: list[str] = []
    harness.session.meanwhile = lambda: seen.extend(row.message for row in harness.flush.unsent().logs)

    harness.step()

    assert seen == ["one"]
    assert not harness.flush.unsent().logs


def test_lines_have_the_same_id_at_every_attempt(harness: FlushHarness) -> None:
    harness.worker_state.say("WARNING", "one")
    harness.session.fails = True
    first = [row.log_id for row in harness.flush.unsent().logs]
    assert not harness.step()
    harness.session.fails = False
    assert harness.step()

    assert [row[0] for row in harness.session.rows["logs"]] == first


def test_spooled_rows_are_uploaded_once_whatever_part_had_been_stored(harness: FlushHarness, tmp_path: Path) -> None:
    folder = tmp_path / "run" / "worker-0-1"
    harness.worker_state.say("INFO", "kept")
    harness.put(*range(7))
    unsent = harness.flush.unsent()
    spool_rows(folder, "run", unsent)
    assert contents(folder) == {"snapshot": 7, "log_line": 1}
    harness.session.rows["snapshots"] = [("2",), ("3",)]  # the answer to these was lost

    done = upload(harness.session, harness.retries, folder)  # type: ignore[arg-type]

    assert done == ({"log_line": 1, "snapshot": 7}, 0)
    assert sorted(harness.stored) == [str(number) for number in range(7)]
    assert all(isinstance(row[6], datetime) for row in harness.session.rows["snapshots"][2:])
    assert not folder.exists()


def test_damaged_records_of_a_query_log_are_counted_by_its_upload(
    harness: FlushHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, stored = tmp_path / "run" / "worker-0-1", []
    write(folder, [entry(rows=1), entry(rows=2), entry(rows=3)])
    data = bytearray((folder / RECORDS).read_bytes())
    data[RECORD_BYTES + 3] ^= 1
    (folder / RECORDS).write_bytes(data[:-1])
    monkeypatch.setattr(query_executions, "append", lambda session, retries, rows: stored.extend(rows))

    done = upload(harness.session, harness.retries, folder)  # type: ignore[arg-type]

    assert done == ({"execution": 1}, 2)
    assert [row.rows_affected for row in stored] == [1]


def test_simultaneous_writes_of_all_workers_are_spread_over_a_while() -> None:
    workers, written_s = 1_000, []
    for number in range(20):
        me = WorkerArguments(run_id="run", worker_id="w", worker_group_id=number, worker_group_count=workers)
        harness, stopping = FlushHarness(me), threading.Event()
        harness.session.meanwhile = stopping.set
        harness.worker_state.say("WARNING", "all workers say this at the same moment")
        harness.flush.run(stopping, harness.retries)
        assert [row[5] for row in harness.session.rows["logs"]] == ["all workers say this at the same moment"]
        written_s.append(harness.clock.now_ns / NS_PER_S)

    assert max(written_s) <= workers / WRITERS_PER_S == 20.0
    assert max(written_s) - min(written_s) > 5.0, "of 20 random moments"


def test_the_row_of_a_worker_that_starts_waits_for_the_next_batch(harness: FlushHarness) -> None:
    """All workers start together, and what they write then would delay those that have not read START yet."""
    begun = started_row(ME, test_id="test", template_id="", created_at=harness.clock.utc_now().replace(tzinfo=None))
    harness.flush.put_start(begun)

    assert not harness.worker_state.urgent.is_set()


def test_a_worker_that_ends_does_not_wait_for_its_turn(harness: FlushHarness) -> None:
    """What is left is written by finish()."""
    stopping = threading.Event()
    harness.worker_state.say("WARNING", "one")
    stopping.set()

    harness.flush.run(stopping, harness.retries)

    assert harness.clock.now_ns == 0
    assert [row.message for row in harness.flush.unsent().logs] == ["one"]


@pytest.mark.parametrize(
    ("category", "code", "message"),
    [
        (ErrorCategory.CHECK, None, "look: CHECK: 0 rows, and the scenario expects 1"),
        (ErrorCategory.SNOWFLAKE_ERROR, 2003, "look: SNOWFLAKE_ERROR 2003: 0 rows, and the scenario expects 1"),
    ],
)
def test_a_failed_statement_is_logged_with_its_category_and_the_code_if_it_has_one(
    harness: FlushHarness, category: ErrorCategory, code: int | None, message: str
) -> None:
    harness.worker_state.failed("look", category, code, "0 rows, and the scenario expects 1")

    assert [line.message for line in harness.worker_state.lines] == [message]


def test_an_empty_spool_is_reported(tmp_path: Path) -> None:
    spool_rows(tmp_path / "worker", "run", UnsentRows())

    assert contents(tmp_path / "worker") == contents(tmp_path) == {}
