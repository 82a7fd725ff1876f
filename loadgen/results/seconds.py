"""From the rows of WORKER_METRICS_SNAPSHOTS to the seconds of a run that can be compared. Pure.

A worker's row holds what ended since its last row, so the first one of the measurement began before it, and the last
ones end after it. Only rows that lie wholly inside are used here. The rows of several workers are put side by side in
order; they are off by less than a second, which is nothing to blocks of several.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from loadgen.control.tables.worker_metrics_snapshots import MetricsSnapshot
from loadgen.metrics.histogram import BUCKETS
from loadgen.metrics.interval import CustomMetrics, read_custom_metrics
from loadgen.metrics.window import WindowResult
from loadgen.model.run import Phase
from loadgen.rules.bootstrap import SecondSeries


@dataclass(frozen=True, slots=True)
class _Second:
    ended_s: float  # since the measurement began; up to one row too early
    metrics: CustomMetrics


def measured_seconds(
    snapshots: Iterable[MetricsSnapshot], windows: Mapping[str, Sequence[WindowResult]]
) -> SecondSeries:
    """All workers together. Empty when one of them has left no rows."""
    rows: dict[str, list[MetricsSnapshot]] = {worker_id: [] for worker_id in windows}
    for row in snapshots:
        if row.phase == Phase.MEASUREMENT and row.worker_id in rows:
            rows[row.worker_id].append(row)
    workers = [_inner(rows[worker_id], sum(window.seconds for window in own)) for worker_id, own in windows.items()]
    length = min(map(len, workers), default=0)
    stages = np.zeros(length, np.int64)
    if length:
        ends_s = np.cumsum([window.seconds for window in next(iter(windows.values()))])
        stages = np.searchsorted(ends_s[:-1], [second.ended_s for second in workers[0][:length]]).astype(np.int64)
    return _added([[second.metrics for second in seconds[:length]] for seconds in workers], stages)


def _inner(rows: list[MetricsSnapshot], measured_s: float) -> list[_Second]:
    rows.sort(key=lambda row: row.elapsed_seconds)
    if not rows:
        return []
    first = _metrics(rows[0])
    ended = [row.elapsed_seconds - rows[0].elapsed_seconds for row in rows[1:]]
    inside = [(row, end_s) for row, end_s in zip(rows[1:], ended, strict=True) if end_s <= measured_s - first.seconds]
    return [_Second(end_s, _metrics(row)) for row, end_s in inside]


def _metrics(row: MetricsSnapshot) -> CustomMetrics:
    return read_custom_metrics(row.custom_metrics or "")


def _added(
    workers: Sequence[Sequence[CustomMetrics]], stages: np.ndarray[tuple[int, ...], np.dtype[np.int64]]
) -> SecondSeries:
    length = len(stages)
    names = dict.fromkeys(name for seconds in workers for second in seconds for name in second.statements)
    seconds_s, sums_ns = np.zeros(length), np.zeros(length)
    buckets = np.zeros((length, BUCKETS), np.int64)
    succeeded, failed = ({name: np.zeros(length, np.int64) for name in names} for _ in range(2))
    for seconds in workers:
        for at, second in enumerate(seconds):
            seconds_s[at] += second.seconds / len(workers)
            sums_ns[at] += second.response.sum_ns
            buckets[at] += second.response.counts
            for name, counts in second.statements.items():
                succeeded[name][at] += counts.succeeded
                failed[name][at] += counts.failed
    return SecondSeries(
        seconds=seconds_s, buckets=buckets, sums_ns=sums_ns, succeeded=succeeded, failed=failed, stages=stages
    )
