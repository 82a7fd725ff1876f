"""Statements of other users on the warehouse under test: conclusions from its polls."""

from __future__ import annotations

import json
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.control.tables.run_measurements import StepRecord, WarehousePoll
from loadgen.metrics.connections import LoginCounts, ReconnectReason
from loadgen.model.run import WorkerStatus
from loadgen.results.run_snapshot import WorkerHealth
from loadgen.snowflake.profile_lookup import find_profile
from orchestrator.query_history import HistoryFailed, HistorySlice, QueryHistory, WarehouseUse
from orchestrator.run_environment import (
    OwnLoad,
    OwnUse,
    dropped_warnings,
    foreign_statements,
    foreign_use,
    judge_foreign_load,
    lost_connections,
    own_load_of_steps,
    unobserved_load,
    workers_started_twice,
)
from tests.control_plane import result_row
from tests.unit.orchestrator_builders import view

ZERO = datetime.fromisoformat("2026-11-15T02:00:00")
OWN = [OwnLoad(begin=ZERO + timedelta(seconds=10), end=ZERO + timedelta(seconds=40), statements=8)]
SEEN = "other statements ran on warehouse WH: up to {} at once, this run has at most 8"


def polls(*seen: tuple[float, int, int]) -> list[WarehousePoll]:
    """A poll at this second: running, queued."""
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
        ([(15, 8, 0), (20, 13, 0), (25, 8, 0), (30, 13, 0)], None),  # not in a row
        ([(5, 13, 0), (15, 13, 0), (45, 13, 0)], None),  # one in the measurement
        ([(15, 8, 0), (20, 14, 0), (25, 8, 0)], SEEN.format(14)),  # one, with half as many again
        ([(15, 10, 0), (20, 4, 12)], SEEN.format(16)),
        ([(20, 12, 0), (15, 4, 8), (30, 99, 0), (35, 1, 0)], SEEN.format(99)),
    ],
)
def test_two_polls_in_a_row_with_more_than_the_run_can_have_are_foreign_load(seen, told):
    assert foreign_statements("WH", polls(*seen), OWN) == told


@given(st.dictionaries(st.sampled_from(ReconnectReason), st.integers(0, 10**6)))
def test_planned_reconnects_raise_no_limit_of_foreign_load(reopened: dict[ReconnectReason, int]) -> None:
    """One that is replaced as planned has no statement under way; that of a lost one may still execute."""
    shown = LoginCounts(reopened=reopened).counts()["reopened"]

    lost = lost_connections(shown)

    assert lost == sum(reopened.get(reason, 0) for reason in (ReconnectReason.SESSION_LOST, ReconnectReason.ERROR))
    assert lost == LoginCounts(reopened=reopened).lost


def test_a_search_is_held_against_its_highest_level_so_far():
    own = own_load_of_steps([step(1, 5, 0, 10), step(2, 15, 12, 22), step(3, 10, 24, 34)], again=2)

    assert [one.statements for one in own] == [7, 17, 17]
    assert foreign_statements("WH", polls((4, 7, 0), (9, 8, 0), (14, 18, 0), (30, 18, 0)), own) is None
    assert foreign_statements("WH", polls((4, 9, 0), (9, 12, 0), (14, 17, 0)), own) == (
        "other statements ran on warehouse WH: up to 12 at once, this run has at most 7"
    )


# --- polls that are missing ------------------------------------------------------------------------------------------


def unobserved(*polled_s: float, own: list[OwnLoad] = OWN, period_s: float = 2.0) -> str | None:
    return unobserved_load([ZERO + timedelta(seconds=at_s) for at_s in polled_s], own, period_s)


NOT_RULED_OUT = "the warehouse could not be observed for {} of {} s: foreign load is not ruled out"


@pytest.mark.parametrize(
    ("polled_s", "told"),
    [
        (range(0, 60, 2), None),
        (range(8, 43, 4), None),  # every second poll failed
        ((), NOT_RULED_OUT.format(30, 30)),
        ((2, 5, 50), NOT_RULED_OUT.format(30, 30)),  # before and after the measurement
        (range(0, 20, 2), NOT_RULED_OUT.format(20, 30)),  # none from second 18 on
        (range(30, 60, 2), NOT_RULED_OUT.format(18, 30)),  # none before second 30
        ((38, 18, 12, 14, 16, 36, 34), NOT_RULED_OUT.format(12, 30)),  # a pause from 18 to 34, in any order
        ((*range(10, 20, 2), *range(28, 42, 2)), None),  # 6 s: three periods
        ((*range(10, 20, 2), *range(29, 42, 2)), NOT_RULED_OUT.format(7, 30)),
    ],
)
def test_polls_cover_the_measurement_or_the_result_reports_the_gap(polled_s, told):
    assert unobserved(*polled_s) == told


def test_a_tenth_of_a_long_measurement_may_be_unobserved():
    hour = [OwnLoad(begin=ZERO, end=ZERO + timedelta(seconds=3_600), statements=8)]
    rest = range(364, 3_601, 4)

    assert unobserved(*rest, own=hour) == NOT_RULED_OUT.format(362, 3_600)
    assert unobserved(*range(362, 3_601, 4), own=hour) is None


def test_a_measurement_of_three_poll_periods_is_too_short_to_judge():
    assert unobserved(period_s=10.0) is None
    assert unobserved(period_s=9.9) == NOT_RULED_OUT.format(30, 30)


def test_the_steps_of_a_search_are_covered_together():
    own = own_load_of_steps([step(1, 5, 0, 10), step(2, 15, 12, 22), step(3, 10, 24, 34)], again=0)

    assert unobserved(*range(0, 36, 2), own=own) is None
    assert unobserved(*range(0, 14, 2), own=own) == NOT_RULED_OUT.format(18, 30)
    assert unobserved(own=[]) is None, "no step was measured"


# --- dropped rows ----------------------------------------------------------------------------------------------------


def test_rows_that_workers_dropped_are_reported_by_worker_and_kind():
    other = json.dumps({"dropped": {"log_lines": 7, "query_log_unwritten": 194}})
    told = json.dumps({"dropped": {"query_log_rows": 1_234, "log_lines": 0, "unknown": 5, "snapshots": 2}})
    rows = [
        result_row("r", worker_id="worker-0", summary=told),
        result_row("r", worker_id="worker-1", summary=other),
        result_row("r", worker_id="worker-2", summary=json.dumps({"dropped": "many"})),
        result_row("r", worker_id="worker-3", summary=None),
        result_row("r", worker_id=None, summary=told),
    ]

    unheard = view(WorkerHealth.DONE, WorkerStatus.RUNNING, number=4)
    workers = [view(WorkerHealth.DONE, WorkerStatus.COMPLETED), view(WorkerHealth.DEAD, number=3), unheard]

    assert dropped_warnings(rows, workers) == [
        "the last heartbeat of worker-4 did not arrive: rows that it could not store may not be listed",
        "worker-0 dropped 1,234 rows of its query log (query_log.max_rows)",
        "worker-0 dropped 2 seconds of its snapshots, while the control plane did not accept them",
        "worker-1 dropped 7 lines of its log, while the control plane did not accept them",
        "worker-1 dropped 194 rows of its query log, which could not be written (such as on a full disk)",
    ]


def test_a_leader_that_took_over_knows_replaced_workers_by_their_rows() -> None:
    rows = [
        result_row("r", test_id=f"t{number}", worker_id=worker_id)
        for number, worker_id in enumerate([None, "worker-0", "worker-1", "worker-0"])
    ]

    assert workers_started_twice(rows) == [
        "worker-0 was replaced: 2 processes have begun with its id, some before the run was taken over"
    ]
    assert workers_started_twice(rows[:3]) == []


def use(own: int, own_ms: float, others_ms: float) -> WarehouseUse:
    return WarehouseUse(own=own, own_ms=own_ms, others=3, others_ms=others_ms)


@pytest.mark.parametrize(
    ("own_ms", "others_ms", "told"),
    [
        (0, 0, None),
        (9_800, 200, None),
        (9_799, 201, "3 of them executed for 0.2 s, those of this run for 9.8 s"),
        (0, 1, "3 of them executed for 0.0 s, those of this run for 0.0 s"),
    ],
)
def test_others_may_use_two_percent_of_the_time_that_statements_executed(own_ms, others_ms, told):
    """The client saw ten times as much, nearly all of it queued: what executed counts."""
    found = foreign_use("W\x1bH", use(90, own_ms, others_ms), OwnUse(statements=100, service_ms=10 * own_ms), 1.0)

    assert found == (None if told is None else f"other statements ran on warehouse W␛H: {told}")


@pytest.mark.parametrize(
    ("own", "others_ms", "shown", "told"),
    [
        (0, 200, 1.0, None),
        (89, 3_061, 1.0, None),
        (89, 3_062, 1.0, "3 of them executed for 3.1 s, those of this run for 150.0 s"),
        (0, 300, 0.1, None),  # a tenth of the measurement is shown
        (0, 307, 0.1, "3 of them executed for 0.3 s, those of this run for 15.0 s"),
    ],
)
def test_a_run_that_the_history_does_not_show_counts_as_it_was_measured(own, others_ms, shown, told):
    """Short statements on hybrid tables are left out there."""
    found = foreign_use("WH", use(own, 0.0, others_ms), OwnUse(statements=100, service_ms=150_000), shown)

    assert found == (None if told is None else f"other statements ran on warehouse WH: {told}")


@pytest.mark.parametrize(
    "answer", [[], [()], [(1, 2)], [("x", 1, 1, 1.0, 0)], [(1, 1.0, None, 1.0, 0)], [(1, 2, 3, 4, 5)] * 2]
)
def test_a_history_in_another_form_is_no_reason_against_a_run(answer, monkeypatch):
    history = QueryHistory(find_profile("embedded", environ={"LOADGEN_EMBEDDED_ADDRESS": "127.0.0.1:1"}), "run")
    monkeypatch.setattr(history, "rows", lambda *_: answer)

    with pytest.raises(HistoryFailed, match="has an unknown form"):
        history.use("WH", HistorySlice(start_ms=0, end_ms=1))


def test_what_the_history_shows_of_others_is_proof_everywhere_and_polls_are_on_the_embedded_server_only() -> None:
    polled_only = {"used": None, "unread": None, "polled": "polled", "unobserved": "unobserved"}

    elsewhere = judge_foreign_load(**{**polled_only, "used": "used"}, is_exact=False)
    assert (elsewhere.disturbances, elsewhere.warnings) == (("used",), ("unobserved",))
    elsewhere = judge_foreign_load(**polled_only, is_exact=False)
    assert (elsewhere.disturbances, elsewhere.warnings) == ((), ("polled", "unobserved"))
    embedded = judge_foreign_load(**polled_only, is_exact=True)
    assert (embedded.disturbances, embedded.warnings) == (("polled", "unobserved"), ())


@pytest.mark.parametrize("is_exact", [True, False])
def test_a_history_that_could_not_be_read_is_a_warning(is_exact: bool) -> None:
    found = judge_foreign_load(used=None, unread="unread", polled=None, unobserved=None, is_exact=is_exact)

    assert (found.disturbances, found.warnings) == ((), ("unread",))
