"""What a capture does not hold: other databases, failed statements, what the history lacks, and a lost connection."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import pairwise

import pytest

from loadgen.capture import history as history_module
from loadgen.capture.history import HistoryRow, HistoryUnreadable, WarehouseHistory
from loadgen.capture.recorder import CaptureFilter
from loadgen.model.capture import CaptureManifest
from loadgen.model.counts import ErrorCategory
from loadgen.snowflake.failure import Failure
from loadgen.snowflake.profile_lookup import EMBEDDED_ADDRESS, find_profile
from loadgen.snowflake.session import RetryPolicy
from tests.unit.test_capture import START, captured, recorder, row
from tests.unit.test_replay import dealt, recorded

LOST = Failure(category=ErrorCategory.CONNECTION, retryable=True, session_lost=True)


def test_statements_of_other_databases_have_a_reason(tmp_path):
    rows = [row(database="A"), row(database="B"), row(database=None), row(database="B", user="OTHER")]

    manifest = captured(tmp_path, rows, filters=CaptureFilter(database="a"))

    assert (manifest.statements, manifest.left_out["other_database"], manifest.left_out["filtered"]) == (1, 3, 0)
    both = captured(tmp_path / "both", rows, filters=CaptureFilter(database="a", user="other"))
    assert (both.statements, both.left_out["other_database"], both.left_out["filtered"]) == (0, 1, 3)


def test_failed_statements_are_counted_with_their_template(tmp_path):
    rows = [row(f"SELECT a FROM t WHERE b = {number}", number, succeeded=number > 1) for number in range(5)]
    recorded(tmp_path, [*rows, row("SELEC nonsense", 9, succeeded=False)])

    scenario, _ = dealt(tmp_path)

    assert scenario.load.replay is not None
    (times,) = scenario.load.replay.recorded
    assert (times.count, times.failed) == (3, 2)
    coverage = scenario.load.replay.coverage
    assert coverage is not None
    assert (coverage.statements, coverage.left_out, coverage.total) == (3, {"failed": 3}, 6)


def test_failures_of_an_interrupted_capture_are_not_forgotten(tmp_path):
    first = recorder(tmp_path)
    first.add([row("SELECT 1 FROM t", succeeded=False), row("SELECT 1 FROM t", 2)])
    first.save(START)

    manifest = recorder(tmp_path).finish()

    assert [one.failed for one in manifest.templates] == [1]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((), "hybrid tables that the history lacks: not counted"),
        ((None, "not granted"), "hybrid tables that the history lacks: not counted (not granted)"),
        ((1_234, ""), "not in the history, most of them short statements on hybrid tables: 1,234"),
    ],
)
def test_what_the_history_lacks_is_told(tmp_path, given, said):
    work = recorder(tmp_path)
    work.add([row()])

    manifest = work.finish(*given)

    assert said in (tmp_path / "README.md").read_text("utf-8")
    assert CaptureManifest.of_text((tmp_path / "capture.json").read_text("utf-8")) == manifest
    assert manifest.coverage.unrecorded == (given[0] if given else None)


class LosingHistory(WarehouseHistory):
    """A day of ACCOUNT_USAGE with several rows at each moment; the connection is lost after each second batch."""

    def __init__(self) -> None:
        profile = find_profile("embedded", environ={EMBEDDED_ADDRESS: "127.0.0.1:9"}, overrides={"database": "D"})
        super().__init__(profile, "WH", RetryPolicy(stop=threading.Event(), first_pause_s=0.0))
        self.all = [row(f"SELECT {number}", number // 3, rows=number) for number in range(100)]
        self.read = 0

    def now(self) -> datetime:
        return START + timedelta(days=100)

    def _sql(self, template: str, start: datetime, end: datetime) -> str:
        return f"{start.isoformat()} {end.isoformat()}"

    def _batches(self, sql: str) -> Iterator[list[HistoryRow]]:
        start, end = map(datetime.fromisoformat, sql.split())
        found = sorted((one for one in self.all if start <= one.end < end), key=lambda one: one.end, reverse=True)
        for first in range(0, len(found), history_module.PAGE_ROWS):
            self.read += 1
            if self.read % 3 == 0:
                raise HistoryUnreadable("the connection was lost", LOST)
            yield found[first : first + history_module.PAGE_ROWS]


def test_a_connection_lost_inside_a_day_loses_and_repeats_nothing(monkeypatch):
    monkeypatch.setattr(history_module, "PAGE_ROWS", 8)
    history = LosingHistory()

    parts = list(history.parts(START, START + timedelta(hours=10)))

    assert sorted(one.rows or 0 for part in parts for one in part.rows) == list(range(100))
    assert history.read > 100 // 8 + 1
    for part, after in pairwise(parts):  # what was read is complete down to where it goes on
        assert part.left_until is not None
        assert all(one.end >= part.left_until for one in part.rows)
        assert all(one.end < part.left_until for one in after.rows)
