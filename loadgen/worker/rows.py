"""What a worker measured, as rows of the tables. Pure."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import asdict
from datetime import datetime

from loadgen.control.tables.test_results import ResultRow
from loadgen.control.tables.window_results import WindowResultRow as StoredWindow
from loadgen.control.tables.worker_metrics_snapshots import MetricsSnapshot
from loadgen.metrics.client_resources import ClientResourceUse
from loadgen.metrics.connections import LoginCounts, logins_data
from loadgen.metrics.interval import Interval, MeasuredCounts, write_custom_metrics
from loadgen.metrics.percentile import PERCENTILES, Quantile, mean
from loadgen.metrics.threshold_seconds import KEY as JUDGED
from loadgen.metrics.threshold_seconds import ThresholdSecond, judged_data
from loadgen.metrics.window import WindowResult, merge
from loadgen.metrics.window_codec import write_window
from loadgen.model.run import Phase
from loadgen.model.sessions import UserSessionCounts
from loadgen.snowflake import driver
from loadgen.units import NS_PER_MS
from loadgen.worker.arguments import WorkerArguments
from loadgen.worker.self_monitor import ResourceReading


def snapshot_row(
    interval: Interval,
    gauge: ResourceReading,
    arguments: WorkerArguments,
    *,
    test_id: str,
    timestamp: datetime,
    elapsed_s: float,
    executing: int,
    target: int,
    timed: Collection[str] | None = None,
    phase: Phase | None = None,
    sessions: UserSessionCounts | None = None,
    logins: LoginCounts | None = None,
    judged: ThresholdSecond | None = None,
) -> MetricsSnapshot:
    """One second; `timed` are the statements whose times are kept one by one, None: all;
    `phase` where it is not that of its window."""
    phase = phase or interval.phase
    custom = {**json.loads(write_custom_metrics(interval, timed)), "wakeup_p99_ms": gauge.wakeup_p99_ms}
    if logins is not None:
        custom["logins"] = logins.counts()
    if sessions is not None:
        custom["sessions"] = sessions.document()
    if judged is not None:
        custom[JUDGED] = judged_data(judged)
    return MetricsSnapshot(
        run_id=arguments.run_id,
        test_id=test_id,
        worker_id=arguments.worker_id,
        worker_group_id=arguments.worker_group_id,
        worker_group_count=arguments.worker_group_count,
        timestamp=timestamp,
        elapsed_seconds=elapsed_s,
        phase=None if phase is None else phase.value,
        total_queries=interval.measured.queries,
        read_count=interval.measured.reads,
        write_count=interval.measured.writes,
        error_count=interval.measured.errors,
        qps=interval.qps,
        p50_latency_ms=interval.p50_ms,
        p95_latency_ms=interval.p95_ms,
        p99_latency_ms=interval.p99_ms,
        avg_latency_ms=interval.avg_ms,
        min_latency_ms=interval.min_ms,
        max_latency_ms=interval.max_ms,
        active_connections=executing,
        target_connections=target,
        cpu_percent=gauge.cpu_percent,
        memory_percent=gauge.memory_percent,
        custom_metrics=json.dumps(custom, separators=(",", ":")),
    )


def window_row(result: WindowResult, arguments: WorkerArguments, epoch: int) -> StoredWindow:
    row = write_window(result)
    return StoredWindow(
        worker_id=arguments.worker_id,
        window_id=row.window_id,
        epoch=epoch,
        phase=Phase(row.phase),
        step_id=row.step_id,
        seconds=row.seconds,
        counts=row.counts,
        buckets=row.buckets,
    )


def started_row(arguments: WorkerArguments, *, test_id: str, template_id: str, created_at: datetime) -> ResultRow:
    """The worker's own result, of which nothing is known yet but that it has begun."""
    return ResultRow(
        test_id=test_id,
        run_id=arguments.run_id,
        worker_id=arguments.worker_id,
        worker_group_id=arguments.worker_group_id,
        template_id=template_id,
        status="RUNNING",
        created_at=created_at,
        total_operations=0,
        read_operations=0,
        write_operations=0,
        failed_operations=0,
        p50_latency_ms=None,
        p95_latency_ms=None,
        p99_latency_ms=None,
        avg_latency_ms=None,
        find_max_result=None,
        summary=None,
    )


def result_row(
    windows: Sequence[WindowResult],
    measured: MeasuredCounts,
    arguments: WorkerArguments,
    *,
    sessions: UserSessionCounts | None = None,
    logins: LoginCounts | None = None,
    test_id: str,
    template_id: str,
    status: str,
    created_at: datetime,
) -> ResultRow:
    """The worker's own result: everything it measured."""
    measured_windows = [window for window in windows if window.phase is Phase.MEASUREMENT]
    merged = merge([measured_windows])
    whole = merged.tally.whole
    times = {name: whole.response_at(PERCENTILES[name]) for name in ("p50", "p95", "p99")}
    times["avg"] = mean(*whole.responses)
    summary = {
        "counts": asdict(merged.counts),
        "qps": merged.qps,
        "seconds": merged.seconds,
        "client": _client(measured_windows),
        # Columns have no room for "or more", which is all that is known when samples were cut off.
        "at_least": [name for name, found in times.items() if found is not None and found.at_least],
        **({} if sessions is None else {"sessions": sessions.document()}),
        **({} if logins is None else {"logins": logins_data(logins)}),
        "driver_lightened": driver.telemetry_hooks_disabled(),
    }
    return ResultRow(
        test_id=test_id,
        run_id=arguments.run_id,
        worker_id=arguments.worker_id,
        worker_group_id=arguments.worker_group_id,
        template_id=template_id,
        status=status,
        created_at=created_at,
        total_operations=merged.counts.succeeded + merged.counts.failed,
        read_operations=measured.reads,
        write_operations=measured.writes,
        failed_operations=merged.counts.failed,
        p50_latency_ms=_ms(times["p50"]),
        p95_latency_ms=_ms(times["p95"]),
        p99_latency_ms=_ms(times["p99"]),
        avg_latency_ms=_ms(times["avg"]),
        find_max_result=None,
        summary=json.dumps(summary),
    )


def _client(windows: Sequence[WindowResult]) -> dict[str, float | None]:
    """How loaded the worker itself was."""
    effect = sum((window.client for window in windows if window.client is not None), ClientResourceUse())
    return {
        "cpu_percent_of_core": effect.cpu_percent_of_core,
        "wakeup_mean_ms": effect.late_mean_ms,
        "wakeup_p99_ms": effect.late_p99_ms,
        "gap_percent": effect.gap_percent,
        "paused_percent": effect.paused_percent,
    }


def _ms(quantile: Quantile | None) -> float | None:
    return None if quantile is None else quantile.value_ns / NS_PER_MS
