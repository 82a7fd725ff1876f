"""The views of the golden screens. That of a search is made by the presenter, from the snapshots of one search."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import cache
from statistics import NormalDist
from typing import Any

from loadgen.control.tables.run_measurements import StepRecord, WarehousePoll
from loadgen.metrics.interval import MeasuredCounts
from loadgen.metrics.live_metrics import LiveSecond
from loadgen.metrics.window import WindowResult, merge
from loadgen.model.run import Phase, RunStatus
from loadgen.model.threshold import parse_threshold
from loadgen.model.workload import Query, Statement, StatementKind, Workload
from loadgen.results.run_snapshot import RunSnapshot, WorkerSnapshot
from loadgen.rules.thresholds import check_threshold
from loadgen.scenario.model import FindMaxSettings, LoadMode
from loadgen.scenario.settings import TargetSettings
from loadgen.tui.presenter import ScreenPresenter
from loadgen.tui.screen_state import ScreenState
from tests.unit.orchestrator_builders import tally, window
from tests.unit.tui_builders import (
    MEASUREMENT,
    MOMENT,
    NOW_S,
    STALE,
    WARMUP,
    run_row,
    scenario,
    second,
    snapshot,
    worker,
)

WARMUP_S, SETTLE_S, STEP_S = 10, 3, 15
NAME, WORKERS = "point_lookup", 2
# Connections, throughput, p95 and outcome of each step; the last one is still measured.
STEPS = (
    (5, 100, 40.5, "STABLE", "held"),
    (15, 300, 41.5, "STABLE", "held"),
    (25, 500, 42.5, "STABLE", "held"),
    (35, 700, 43.5, "STABLE", "held"),
    (45, 720, 88.1, "DEGRADED", "p95 88.1 ms is more than 20 % above 40.5 ms"),
    (35, 700, 43.5, "", ""),
)
BEGINS_S = tuple(WARMUP_S + number * (STEP_S + SETTLE_S) for number in range(len(STEPS)))  # of the measured part
ELAPSED_S = BEGINS_S[-1] + 12


@cache
def times_ms(count: int, p95_ms: float) -> tuple[float, ...]:
    """This many response times with this p95."""
    spread = 0.22
    middle = p95_ms / math.exp(spread * NormalDist().inv_cdf(0.95))
    return tuple(middle * math.exp(spread * NormalDist().inv_cdf((place + 0.5) / count)) for place in range(count))


def step_at(at_s: int) -> int:
    """The index of the step whose load a second has: the connections change when a step settles."""
    return max((number for number, begins_s in enumerate(BEGINS_S) if at_s >= begins_s - SETTLE_S), default=0)


def seconds(until_s: int) -> Iterator[LiveSecond]:
    """The seconds of one worker; the two have the same."""
    for at_s in range(until_s):
        step = step_at(at_s)
        _, qps, p95_ms, *_ = STEPS[step]
        phase = Phase.MEASUREMENT if at_s >= BEGINS_S[step] else Phase.WARMUP
        rate = (qps + qps // 50 * (at_s % 3 - 1)) // WORKERS
        yield second(at_s + 1.0, phase=phase, **{NAME: times_ms(rate, p95_ms)})


def measured(until_s: int) -> int:
    """The statements of one worker in the measured parts of the steps."""
    return sum(one.statements[NAME].succeeded for one in seconds(until_s) if one.phase is Phase.MEASUREMENT)


def newest_window(until_s: int) -> WindowResult:
    step = step_at(until_s - 1)
    times = [
        ms
        for at_s, one in enumerate(seconds(until_s))
        if at_s >= BEGINS_S[step]
        for ms in times_ms(one.statements[NAME].succeeded, STEPS[step][2])
    ]
    length_s = float(until_s - BEGINS_S[step])
    return window({NAME: tally(tuple(times))}, seconds=length_s, step_id=step + 1, window_id=step + 1)


def records(until_s: int) -> tuple[StepRecord, ...]:
    """The steps that were judged by then."""
    fields = dict.fromkeys(StepRecord.__slots__)
    known = (
        {"step_number": number, "target_connections": target, "qps": float(qps), "p95_latency_ms": p95_ms,
         "outcome": outcome, "reason": reason, "failed": 0, "error_rate": 0.0}
        for number, (target, qps, p95_ms, outcome, reason) in enumerate(STEPS, start=1)
        if BEGINS_S[number - 1] + STEP_S <= until_s
    )  # fmt: skip
    return tuple(StepRecord(**(fields | one)) for one in known)  # type: ignore[arg-type]


def workers(until_s: int, *windows: WindowResult) -> Iterator[WorkerSnapshot]:
    target = STEPS[step_at(until_s - 1)][0]
    own, done = tuple(seconds(until_s)), measured(until_s)
    for number in range(WORKERS):
        connections = (target + WORKERS - 1 - number) // WORKERS
        yield worker(
            number,
            *windows,
            elapsed_s=float(until_s),
            seconds=own,
            measured=MeasuredCounts(queries=done, reads=done),
            target_connections=connections,
            open_connections=connections,
            active_connections=connections - 1,
            cpu_percent=11.0 + number,
        )


def polls() -> Iterator[WarehousePoll]:
    for at_s in range(0, ELAPSED_S, 10):
        connections, _, p95_ms, *_ = STEPS[step_at(at_s)]
        queued = 9 if p95_ms > 80 else 0
        yield WarehousePoll(
            run_id="r", timestamp=MOMENT + timedelta(seconds=at_s), running=connections // 4, queued=queued,
            started_clusters=1, size="X-Small", raw=None,
        )  # fmt: skip


def at(elapsed_s: float, phase: Phase, own: Sequence[WorkerSnapshot] = (), **more: Any) -> RunSnapshot:
    status, state = more.pop("status", RunStatus.RUNNING), more.pop("state", None)
    run = run_row(status, phase, run_id="20261115-0200-nightly-7f3a", find_max_state=state)
    return snapshot(
        NOW_S - 0.5 - ELAPSED_S + elapsed_s,
        *own,
        run=run,
        moment=MOMENT + timedelta(seconds=elapsed_s),
        elapsed_s=elapsed_s,
        measures_s=float(WARMUP_S),
        **more,
    )


def search() -> ScreenState:
    """A search that confirms its best level after a level that did not hold."""
    look = Statement(name=NAME, kind=StatementKind.READ, weight=1, queries=(Query(sql="select 1"),))
    settings = FindMaxSettings(step_s=STEP_S, settle_s=SETTLE_S, stop_on_queue=False)
    presenter = ScreenPresenter(
        replace(
            scenario(mode=LoadMode.FIND_MAX, duration_s=None, find_max=settings),
            name="nightly",
            connection="prod",
            target=TargetSettings(warehouse="BENCH_WH"),
            workload=Workload(statements=(look,), seed=1),
        )
    )
    presenter.update(at(-4, Phase.PREPARING, status=RunStatus.STARTING))
    presenter.update(at(0, Phase.WARMUP))
    presenter.update(at(WARMUP_S, Phase.MEASUREMENT))
    for begins_s in BEGINS_S[:-1]:
        presenter.update(at(begins_s + STEP_S, Phase.MEASUREMENT, steps=records(begins_s + STEP_S)))
    newest = newest_window(ELAPSED_S)
    merged = merge([[newest]] * WORKERS)
    state = {"step": len(STEPS), "target": 35, "best": 35, "failed": 45, "next": "confirm", "reason": "held"}
    return presenter.update(
        at(
            ELAPSED_S,
            Phase.MEASUREMENT,
            tuple(workers(ELAPSED_S, newest)),
            state=json.dumps(state),
            steps=records(ELAPSED_S),
            polls=tuple(polls())[-9:],
            checked=tuple(check_threshold(parse_threshold(one), merged) for one in ("p95 < 250ms", "error_rate < 1%")),
        )
    )


FIND_MAX = search()
VIEWS = {"warmup": WARMUP, "measurement": MEASUREMENT, "find_max": FIND_MAX, "stale": STALE}
SIZES = ((80, 24), (120, 40), (200, 60))
