"""The workers as their leader sees them: who is alive, who is not, and the sentence about it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.control.tables.worker_heartbeats import HeartbeatRow
from loadgen.model.run import Phase, ProcessEnd, WorkerStatus
from loadgen.results.run_snapshot import WorkerDisplayState, WorkerHealth, WorkerSnapshot
from orchestrator.worker_health import LiveMetricsReader, LivenessTracker, ReplacementTracker, assess_workers
from tests.unit.orchestrator_builders import end, live_text, row, view, window

STALE_S, DEAD_S, GAP_S = 30.0, 60.0, 2.0
S = WorkerStatus


def views_of(
    *rows: HeartbeatRow, ends: tuple[ProcessEnd, ...] = (), silent_s: dict[str, float] | None = None, expected: int = 1
) -> tuple[WorkerSnapshot, ...]:
    names = [f"worker-{number}" for number in range(expected)]
    return assess_workers(names, rows, ends, silent_s or {}, stale_s=STALE_S, dead_s=DEAD_S)


# --- silence ---------------------------------------------------------------------------------------------------------


def test_silence_is_counted_in_seconds_that_were_polled() -> None:
    liveness = LivenessTracker(longest_gap_s=GAP_S)
    beats = {"worker-0": 7}
    assert liveness.observe(beats, 100.0) == {"worker-0": 0.0}
    assert liveness.observe(beats, 101.0) == {"worker-0": 1.0}
    assert liveness.observe(beats, 102.5) == {"worker-0": 2.5}
    assert liveness.observe({"worker-0": 8}, 103.5) == {"worker-0": 0.0}


@pytest.mark.parametrize("away_s", [59.0, 61.0, 3_600.0, 1e6])
def test_neither_an_outage_nor_a_pause_of_the_leader_makes_a_worker_lost(away_s: float) -> None:
    """While nothing could be seen, a worker may have beaten all the time; its count has only not been read."""
    liveness = LivenessTracker(longest_gap_s=GAP_S)
    liveness.observe({"worker-0": 7}, 0.0)
    silent_s = liveness.observe({"worker-0": 7}, away_s)
    assert silent_s["worker-0"] <= GAP_S
    (worker,) = views_of(row(count=7), silent_s=dict(silent_s))
    assert worker.health is WorkerHealth.ALIVE


def test_a_worker_that_is_silent_while_it_is_polled_becomes_stale_and_then_dead() -> None:
    liveness = LivenessTracker(longest_gap_s=GAP_S)
    seen = []
    for second in range(63):
        silent_s = liveness.observe({"worker-0": 7}, float(second))
        seen.append(views_of(row(count=7), silent_s=dict(silent_s))[0].health)
    assert seen == [WorkerHealth.ALIVE] * 31 + [WorkerHealth.STALE] * 30 + [WorkerHealth.DEAD] * 2


def test_a_replacement_that_begins_to_count_again_is_alive() -> None:
    liveness = LivenessTracker(longest_gap_s=GAP_S)
    for second in range(59):
        liveness.observe({"worker-0": 7}, float(second))
    assert liveness.observe({"worker-0": 1}, 60.0) == {"worker-0": 0.0}


@given(st.lists(st.tuples(st.floats(0, 1e5), st.booleans()), max_size=50))
def test_silence_never_exceeds_the_polls_since_the_last_heartbeat(looks: list[tuple[float, bool]]) -> None:
    liveness, now_s, count, quiet_looks = LivenessTracker(longest_gap_s=GAP_S), 0.0, 1, 0
    liveness.observe({"worker-0": count}, now_s)
    for gap_s, beaten in looks:
        now_s, count = now_s + gap_s, count + beaten
        quiet_looks = 0 if beaten else quiet_looks + 1
        assert 0.0 <= liveness.observe({"worker-0": count}, now_s)["worker-0"] <= quiet_looks * GAP_S


# --- replacements ----------------------------------------------------------------------------------------------------


def row_of(pid: int, count: int, phase: Phase | None, worker_id: str = "worker-0") -> HeartbeatRow:
    there = row(worker_id, count=count)
    return replace(there, identity=replace(there.identity, pid=pid), beat=replace(there.beat, phase=phase))


@pytest.mark.parametrize(
    ("before", "after", "replaced"),
    [
        (row_of(7, 5, Phase.MEASUREMENT), row_of(7, 6, Phase.MEASUREMENT), False),
        (row_of(7, 5, Phase.MEASUREMENT), row_of(8, 1, None), True),
        (row_of(1, 5, Phase.MEASUREMENT), row_of(1, 1, None), True),  # the first process of a container, again
        (row_of(7, 5, Phase.WARMUP), row_of(8, 1, None), False),
    ],
)
def test_replacements_during_the_measurement_are_reported(
    before: HeartbeatRow, after: HeartbeatRow, replaced: bool
) -> None:
    replacements = ReplacementTracker()
    for rows in ([before], [before], [after], [after]):
        replacements.observe(rows)
    told = [f"worker-0 was replaced: the last measurements of process {before.identity.pid} on h are not counted"]
    assert replacements.warnings == (told if replaced else [])


def test_a_worker_that_died_in_the_warmup_and_is_replaced_in_the_measurement_was_missing_too() -> None:
    replacements = ReplacementTracker()
    replacements.observe([row_of(7, 5, Phase.WARMUP), row_of(9, 5, Phase.WARMUP, "worker-1")])
    replacements.observe([row_of(7, 5, Phase.WARMUP), row_of(9, 8, Phase.MEASUREMENT, "worker-1")])
    replacements.observe([row_of(8, 1, None), row_of(9, 9, Phase.MEASUREMENT, "worker-1")])
    assert len(replacements.warnings) == 1


# --- health ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "ended", "silent_s", "health", "ready", "over"),
    [
        (None, False, 0.0, WorkerHealth.MISSING, False, False),
        (None, True, 0.0, WorkerHealth.DEAD, False, True),
        (S.STARTING, False, 0.0, WorkerHealth.ALIVE, False, False),
        (S.WAITING, False, 0.0, WorkerHealth.ALIVE, True, False),
        (S.WAITING, False, 31.0, WorkerHealth.STALE, True, False),
        (S.WAITING, False, 61.0, WorkerHealth.DEAD, False, True),
        (S.WAITING, True, 0.0, WorkerHealth.DEAD, False, True),
        (S.RUNNING, False, 0.0, WorkerHealth.ALIVE, True, False),
        (S.RUNNING, True, 0.0, WorkerHealth.DEAD, False, True),
        (S.DRAINING, False, 0.0, WorkerHealth.ALIVE, False, False),
        (S.DRAINING, False, 61.0, WorkerHealth.DEAD, False, True),
        (S.COMPLETED, False, 999.0, WorkerHealth.DONE, False, True),  # a completed worker need not send heartbeats
        (S.COMPLETED, True, 0.0, WorkerHealth.DONE, False, True),
        (S.DEAD, False, 0.0, WorkerHealth.DEAD, False, True),
    ],
)
def test_health(
    status: WorkerStatus | None, ended: bool, silent_s: float, health: WorkerHealth, ready: bool, over: bool
) -> None:
    rows = () if status is None else (row(status=status),)
    (worker,) = views_of(*rows, ends=(end(),) if ended else (), silent_s={"worker-0": silent_s})
    assert (worker.health, worker.is_ready, worker.is_over) == (health, ready, over)


@pytest.mark.parametrize("status", [None, *S])
@pytest.mark.parametrize("ended", [None, end(code=0), end(code=4), end()])
@pytest.mark.parametrize("has_result", [True, False])
def test_a_worker_whose_result_is_stored_needs_no_last_heartbeat(
    status: WorkerStatus | None, ended: ProcessEnd | None, has_result: bool
) -> None:
    """Windows are stored before the result. Without it, exit code 0 is no proof that they are stored."""
    rows, ends = () if status is None else (row(status=status),), () if ended is None else (ended,)
    (worker,) = assess_workers(
        ["worker-0"],
        rows,
        ends,
        {"worker-0": DEAD_S + 1},
        stale_s=STALE_S,
        dead_s=DEAD_S,
        with_result=["worker-0"] if has_result else [],
    )
    is_complete = has_result and status not in (None, S.DEAD) and (ended is None or ended.code == 0)
    done = status is S.COMPLETED or is_complete
    assert worker.health is (WorkerHealth.DONE if done else WorkerHealth.DEAD)
    assert worker.is_over


def test_all_expected_workers_are_listed_in_order_and_unknown_ones_are_not() -> None:
    views = views_of(row("worker-2"), row("worker-7"), row("worker-0"), expected=3)
    assert [(worker.worker_id, worker.health) for worker in views] == [
        ("worker-0", WorkerHealth.ALIVE),
        ("worker-1", WorkerHealth.MISSING),
        ("worker-2", WorkerHealth.ALIVE),
    ]


# --- sentences -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("worker", "sentence"),
    [
        (view(WorkerHealth.MISSING, None), "worker-0 never registered"),
        (view(WorkerHealth.DEAD, ended=end()), "worker-0 was killed by signal 9"),
        (view(WorkerHealth.DEAD, ended=end(), last_error="division by zero"), "worker-0 was killed by signal 9"),
        (view(WorkerHealth.DEAD, ended=end("worker-0", 4, "a", "b")), "worker-0 exited with code 4: b"),
        (
            view(WorkerHealth.DEAD, S.DEAD, ended=end("worker-0", 1, "tail"), last_error="no table ORDERS"),
            "worker-0 exited with code 1: no table ORDERS",
        ),
        (
            view(
                WorkerHealth.DEAD,
                ended=end("worker-0", 2, "error: worker-0: no answer", "hint: Check it", "kept"),
                last_error="x",
            ),
            "worker-0 exited with code 2: no answer",
        ),
        (
            view(
                WorkerHealth.DEAD, S.DEAD, ended=end("worker-0", 2, "error: worker-0: first"), last_error="in the end"
            ),
            "worker-0 exited with code 2: in the end",
        ),
        (
            view(WorkerHealth.DEAD, ended=end("worker-0", 4, "a line"), last_error="login"),
            "worker-0 exited with code 4: login",
        ),
        (view(WorkerHealth.DEAD, ended=end("worker-0", -9, "event command=x")), "worker-0 was killed by signal 9"),
        (
            view(
                WorkerHealth.DEAD, ended=end("worker-0", -11, "Fatal Python error: Segmentation fault", "", "Thread 1:")
            ),
            "worker-0 was killed by signal 11: Fatal Python error: Segmentation fault",
        ),
        (view(WorkerHealth.DEAD, S.DEAD, last_error="no table ORDERS"), "worker-0 ended: no table ORDERS"),
        (view(WorkerHealth.DEAD, S.DEAD), "worker-0 ended: no reason was reported"),
        (view(WorkerHealth.DEAD, silent_s=61.4), "worker-0 has been silent for 61 s"),
        (view(WorkerHealth.ALIVE, S.STARTING), "worker-0 is STARTING"),
        (view(WorkerHealth.ALIVE, S.STARTING, last_error="login refused"), "worker-0 is STARTING: login refused"),
    ],
)
def test_the_outcome_of_a_worker(worker: WorkerSnapshot, sentence: str) -> None:
    assert worker.why == sentence


# --- the content of heartbeats ---------------------------------------------------------------------------------------


def test_a_heartbeat_is_read() -> None:
    (worker,) = views_of(row(live_metrics=live_text(window())))
    assert worker.live is not None
    assert worker.live.windows[0].counts.succeeded == 100


@pytest.mark.parametrize("text", ["", "{}", "nonsense", '{"version": 99}', "[1]", "null", "\x00", "{" * 5_000])
def test_an_unreadable_heartbeat_counts_as_none_and_never_as_zero(text: str) -> None:
    (worker,) = views_of(row(live_metrics=text))
    assert worker.live is None
    assert worker.health is WorkerHealth.ALIVE


def test_an_unchanged_heartbeat_is_read_once() -> None:
    reader, text, later = LiveMetricsReader(), live_text(window(seconds=3.0)), live_text(window(seconds=4.0))

    first, again = reader.read(row(live_metrics=text)), reader.read(row(live_metrics=text))
    changed, damaged, none = (
        reader.read(row(live_metrics=later)),
        reader.read(row(live_metrics="{")),
        reader.read(row(live_metrics=None)),
    )

    assert first is again is not None
    assert changed is not None
    assert changed != first
    assert (damaged, none) == (None, None)
    assert reader.read(row(live_metrics=text)) == first


@pytest.mark.parametrize(
    ("health", "status", "state"),
    [
        (WorkerHealth.ALIVE, WorkerStatus.STARTING, WorkerDisplayState.STARTING),
        (WorkerHealth.ALIVE, WorkerStatus.DRAINING, WorkerDisplayState.DRAINING),
        (WorkerHealth.STALE, WorkerStatus.RUNNING, WorkerDisplayState.STALE),
        (WorkerHealth.DEAD, WorkerStatus.RUNNING, WorkerDisplayState.DEAD),
        (WorkerHealth.DONE, WorkerStatus.COMPLETED, WorkerDisplayState.DONE),
        (WorkerHealth.MISSING, None, WorkerDisplayState.MISSING),
    ],
)
def test_the_leaders_view_of_a_worker_has_priority_over_its_report(health, status, state):
    assert view(health, status).state is state
