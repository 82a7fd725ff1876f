"""Statements of others on the warehouse under test: what polls of it say about them."""

from __future__ import annotations

import json
from datetime import datetime, timedelta

import pytest

from loadgen.control.tables.find_max_step_history import StepRecord
from loadgen.control.tables.warehouse_poll_snapshots import WarehousePoll
from orchestrator.run_environment import OwnLoad, dropped_warnings, foreign_statements, own_load_of_steps
from tests.control_plane import result_row

ZERO = datetime.fromisoformat("2026-11-15T02:00:00")
OWN = [OwnLoad(begin=ZERO + timedelta(seconds=10), end=ZERO + timedelta(seconds=40), statements=8)]
SEEN = "other statements ran on warehouse WH: up to {} at once, this run has at most 8"


def polls(*seen: tuple[float, int, int]) -> list[WarehousePoll]:
    """At so many seconds: running, queued."""
    return [
        WarehousePoll(
            run_id="r",
            timestamp=ZERO + timedelta(seconds=at_s),
            running=running,
            queued=queued,
            started_clusters=1,
            size=None,
            raw=None,
        )
        for at_s, running, queued in seen
    ]


def step(number: int, target: int, begin_s: float, end_s: float) -> StepRecord:
    fields = dict.fromkeys(StepRecord.__slots__) | {"run_id": "r", "step_number": number, "outcome": "STABLE"}
    moments = {
        "window_start_time": ZERO + timedelta(seconds=begin_s),
        "window_end_time": ZERO + timedelta(seconds=end_s),
    }
    return StepRecord(**(fields | moments | {"target_connections": target}))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("seen", "told"),
    [
        ([(15, 8, 0), (20, 8, 0)], None),
        ([(15, 9, 0), (20, 4, 5)], None),  # the margin: a statement that has ended for its client alone
        ([(15, 8, 0), (20, 16, 0), (25, 8, 0), (30, 16, 0)], None),  # not in a row
        ([(5, 16, 0), (15, 16, 0), (45, 16, 0)], None),  # one in the measurement
        ([(15, 10, 0), (20, 4, 12)], SEEN.format(16)),
        ([(20, 12, 0), (15, 4, 8), (30, 99, 0), (35, 1, 0)], SEEN.format(99)),
    ],
)
def test_two_polls_in_a_row_with_more_than_the_run_can_have_are_foreign_load(seen, told):
    assert foreign_statements("WH", polls(*seen), OWN) == told


def test_a_search_is_held_against_its_highest_level_so_far():
    own = own_load_of_steps([step(1, 5, 0, 10), step(2, 15, 12, 22), step(3, 10, 24, 34)], again=2)

    assert [one.statements for one in own] == [7, 17, 17]
    assert foreign_statements("WH", polls((4, 7, 0), (9, 8, 0), (14, 18, 0), (30, 18, 0)), own) is None
    assert foreign_statements("WH", polls((4, 9, 0), (9, 12, 0), (14, 17, 0)), own) == (
        "other statements ran on warehouse WH: up to 12 at once, this run has at most 7"
    )


# --- dropped rows ----------------------------------------------------------------------------------------------------


def test_rows_that_workers_dropped_are_reported_by_worker_and_kind():
    told = json.dumps({"dropped": {"query_log_rows": 1_234, "log_lines": 0, "unknown": 5}})
    rows = [
        result_row("r", worker_id="worker-0", summary=told),
        result_row("r", worker_id="worker-1", summary=json.dumps({"dropped": {"log_lines": 7}})),
        result_row("r", worker_id="worker-2", summary=json.dumps({"dropped": "many"})),
        result_row("r", worker_id="worker-3", summary=None),
        result_row("r", worker_id=None, summary=told),
    ]

    assert dropped_warnings(rows) == [
        "worker-0 dropped 1,234 rows of its query log (query_log.max_rows)",
        "worker-1 dropped 7 lines of its log, while the control plane did not accept them",
    ]
