"""intervals.csv: one row per second of a run, summed up over its workers. Pure."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from datetime import timedelta

from loadgen.model.counts import Counts
from loadgen.report import formatting
from loadgen.report.records import RunRecord
from loadgen.report.timeline import RunSecond
from loadgen.units import NS_PER_MS

COLUMNS = (
    *("second", "time", "phase", "workers", "qps", "succeeded", "failed", "skipped", "cancelled"),
    *("p50_ms", "p90_ms", "p95_ms", "p99_ms", "mean_ms", "min_ms", "max_ms", "lag_p99_ms"),
    *("executing", "target_connections", "cpu_percent_of_core", "memory_percent"),
)


def intervals_csv(record: RunRecord) -> str:
    """An empty cell: not known, or not enough samples to say. Each statement has two columns of its own at the end."""
    names = record.statement_names()
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(
        [*COLUMNS, *(formatting.csv(f"{name} {kind}") for name in names for kind in ("succeeded", "failed"))],
    )
    for second in record.seconds:
        writer.writerow([*_cells(record, second), *_statements(second, names)])
    return written.getvalue()


def _cells(record: RunRecord, second: RunSecond) -> Iterator[object]:
    assert record.started is not None, "there are no seconds before the start"
    counts, times = second.counts, second.every_response
    moment = record.started + timedelta(seconds=second.at_s)
    yield second.at_s
    yield f"{moment.isoformat(timespec='milliseconds')}Z"
    yield second.phase or ""
    yield second.workers
    yield _number(second.qps)
    yield from (counts.succeeded, counts.failed, counts.skipped, counts.cancelled)
    yield from (_number(second.response_ms(per_mille)) for per_mille in (500, 900, 950, 990))
    some = bool(times.count)
    yield _number(times.sum_ns / times.count / NS_PER_MS if some else None)
    yield _number(times.min_ns / NS_PER_MS if some else None)
    yield _number(times.max_ns / NS_PER_MS if some else None)
    yield _number(second.lag_ms(990))
    yield from (second.executing, second.target, _number(second.cpu_percent), _number(second.memory_percent))


def _statements(second: RunSecond, names: list[str]) -> Iterator[int]:
    for name in names:
        counts = second.statements.get(name, Counts())
        yield from (counts.succeeded, counts.failed)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"
