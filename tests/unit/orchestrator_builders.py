"""Workers, beats and results for the tests of the orchestrator and of reports; valid by default."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from loadgen.control.tables.worker_heartbeats import HeartbeatRow, WorkerHeartbeat, WorkerIdentity
from loadgen.metrics.connections import ConnectionTime
from loadgen.metrics.histogram import EMPTY, Histogram
from loadgen.metrics.interval import MeasuredCounts
from loadgen.metrics.live_metrics import LiveMetrics, write_live
from loadgen.metrics.recorder import Outcome, WindowState
from loadgen.metrics.tally import ErrorKey, ErrorTally, StatementTally, Tally, Times
from loadgen.metrics.window import MergedWindows, WindowResult, merge
from loadgen.model.counts import Counts, ErrorCategory
from loadgen.model.run import Phase, ProcessEnd, WorkerStatus
from loadgen.results.run_snapshot import WorkerHealth, WorkerSnapshot

MS = 1_000_000


def row(
    worker_id: str = "worker-0",
    status: WorkerStatus = WorkerStatus.RUNNING,
    *,
    count: int = 5,
    **said: Any,
) -> HeartbeatRow:
    identity = WorkerIdentity(
        run_id="r", worker_id=worker_id, worker_group_id=0, hostname="h", pid=1, version="1", labels=None
    )
    return HeartbeatRow(
        identity=identity, beat=WorkerHeartbeat(status=status, phase=None, count=count, **said), age_ms=0
    )


def end(worker_id: str = "worker-0", code: int = -9, *last_lines: str) -> ProcessEnd:
    return ProcessEnd(worker_id=worker_id, code=code, last_lines=last_lines)


def view(
    health: WorkerHealth = WorkerHealth.ALIVE,
    status: WorkerStatus | None = WorkerStatus.RUNNING,
    *,
    number: int = 0,
    ended: ProcessEnd | None = None,
    live: LiveMetrics | None = None,
    silent_s: float = 0.0,
    **said: Any,
) -> WorkerSnapshot:
    worker_id = f"worker-{number}"
    return WorkerSnapshot(
        worker_id=worker_id,
        health=health,
        row=None if status is None else row(worker_id, status, **said),
        live=live,
        end=ended,
        silent_s=silent_s,
    )


def times(*ms: float) -> Histogram:
    return Histogram.of(np.array([round(value * MS) for value in ms], np.int64)) if ms else EMPTY


def tally(
    ms: tuple[float, ...] = (10.0,) * 100,
    *,
    failed: int = 0,
    cancelled_ms: tuple[float, ...] = (),
    lag_ms: tuple[float, ...] = (),
    service_ms: tuple[float, ...] | None = None,
    skipped: int = 0,
    unsent_ms: tuple[float, ...] = (),
    timed_out_ms: tuple[float, ...] = (),
) -> StatementTally:
    response = times(*ms)
    ended = {Outcome.SUCCEEDED: Times(response, response if service_ms is None else times(*service_ms))}
    if failed:
        wrong = times(*[1.0] * failed)
        ended[Outcome.SNOWFLAKE_ERROR] = Times(wrong, wrong)
    for outcome, cut_off_ms in ((Outcome.CANCELLED, cancelled_ms), (Outcome.QUERY_TIMEOUT, timed_out_ms)):
        if cut_off_ms:
            ended[outcome] = Times(times(*cut_off_ms), times(*cut_off_ms))
    return StatementTally(times=ended, lag=times(*lag_ms), skipped=skipped, unsent=times(*unsent_ms))


def window(
    statements: Mapping[str, StatementTally] | None = None,
    *,
    seconds: float = 10.0,
    phase: Phase = Phase.MEASUREMENT,
    step_id: int | None = None,
    window_id: int = 1,
    state: WindowState = WindowState.FINAL,
    example: str = "it failed",
    connections: ConnectionTime | None = None,
) -> WindowResult:
    found = {"s": tally()} if statements is None else dict(statements)
    ended = sum((statement.ended for statement in found.values()), Counts())
    errors = {
        ErrorKey(ErrorCategory.SNOWFLAKE_ERROR, 100_051, name): ErrorTally(
            count=statement.ended.failed, example=example
        )
        for name, statement in found.items()
        if statement.ended.failed
    }
    return WindowResult(
        window_id=window_id,
        phase=phase,
        step_id=step_id,
        state=state,
        seconds=seconds,
        counts=Counts(
            scheduled=ended.ended,
            skipped=ended.skipped,
            succeeded=ended.succeeded,
            failed=ended.failed,
            cancelled=ended.cancelled,
        ),
        tally=Tally(statements=found, errors=errors if ended.failed else {}),
        connections=connections,
    )


def merged(statements: Mapping[str, StatementTally] | None = None, **more: Any) -> MergedWindows:
    return merge([[window(statements, **more)]])


def live(*windows: WindowResult) -> LiveMetrics:
    return LiveMetrics(elapsed_s=1.0, totals=Counts(), measured=MeasuredCounts(), windows=windows)


def live_text(*windows: WindowResult) -> str:
    return write_live(live(*windows))
