"""One second of one worker, as a row of WORKER_METRICS_SNAPSHOTS has it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from loadgen.metrics.batch import SampleBatch
from loadgen.metrics.histogram import EMPTY, Histogram
from loadgen.metrics.json_fields import JsonFields, parse
from loadgen.metrics.outcome import CUT_OFF, Outcome
from loadgen.metrics.percentile import exact_quantile_ns
from loadgen.metrics.tally import StatementTally, Tally
from loadgen.metrics.window_codec import VERSION, dump, ended_data, histogram_data, read_ended, read_histogram
from loadgen.model.counts import Counts
from loadgen.model.run import Phase
from loadgen.model.workload import StatementKind
from loadgen.units import NS_PER_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCounts:
    """Samples since the start of MEASUREMENT; all 0 before it. A cancelled one is none of these."""

    queries: int = 0  # succeeded and failed: reads + writes
    reads: int = 0
    writes: int = 0
    errors: int = 0  # those of them that failed

    def plus(self, tally: Tally, kinds: Mapping[str, StatementKind]) -> MeasuredCounts:
        reads, writes, errors = self.reads, self.writes, self.errors
        for name, statement in tally.statements.items():
            ended = statement.ended
            if kinds[name] is StatementKind.READ:
                reads += ended.succeeded + ended.failed
            else:
                writes += ended.succeeded + ended.failed
            errors += ended.failed
        return MeasuredCounts(queries=reads + writes, reads=reads, writes=writes, errors=errors)


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """What ended since the last harvest, of the windows in `phase`; times are exact. A statement that was
    cut off has at least its time."""

    phase: Phase | None  # None: no window has been opened yet
    seconds: float
    measured: MeasuredCounts  # so far
    qps: float
    p50_ms: float | None  # None: too few samples, as everywhere
    p95_ms: float | None
    p99_ms: float | None
    avg_ms: float | None
    min_ms: float | None
    max_ms: float | None
    tally: Tally

    @classmethod
    def of(
        cls,
        batch: SampleBatch,
        windows: set[int],
        *,
        phase: Phase | None,
        seconds: float,
        tally: Tally,
        measured: MeasuredCounts,
    ) -> Interval:
        """`windows` are those of the phase, `tally` is theirs."""
        inside = np.isin(batch.window, list(windows))
        times_ns = np.sort(batch.response_ns[inside & np.isin(batch.outcome, (Outcome.SUCCEEDED, *CUT_OFF))])
        p50_ns, p95_ns, p99_ns = (exact_quantile_ns(per_mille, times_ns) for per_mille in (500, 950, 990))
        some = bool(len(times_ns))
        return cls(
            phase=phase,
            seconds=seconds,
            measured=measured,
            qps=int((inside & (batch.outcome == Outcome.SUCCEEDED)).sum()) / seconds if seconds > 0.0 else 0.0,
            p50_ms=_ms(p50_ns),
            p95_ms=_ms(p95_ns),
            p99_ms=_ms(p99_ns),
            avg_ms=_ms(times_ns.mean() if some else None),
            min_ms=_ms(times_ns[0] if some else None),
            max_ms=_ms(times_ns[-1] if some else None),
            tally=tally,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomMetrics:
    """What of an interval can be added to that of other workers."""

    seconds: float
    response: Histogram  # of successful samples
    lag: Histogram
    cut_off: Histogram  # response of statements that timed out or were cancelled: at least so long
    statements: Mapping[str, Counts]  # what ended; nothing is known here of what began
    times: Mapping[str, Histogram]  # response of successful samples, for each statement whose times were kept


def write_custom_metrics(interval: Interval, timed: Collection[str] | None = None) -> str:
    """JSON for WORKER_METRICS_SNAPSHOTS.CUSTOM_METRICS; response times by statement for those in `timed`, None: all.

    Where only one statement succeeded, all times are its own and are written once.
    """
    whole = interval.tally.whole
    histograms = {"response": whole.succeeded.response, "lag": whole.lag, "cut_off": whole.cut_off.response}
    statements = interval.tally.statements
    several = sum(bool(statement.succeeded.response.count) for statement in statements.values()) > 1
    return dump(
        {
            "version": VERSION,
            "seconds": interval.seconds,
            "statements": {
                name: _statement_data(statement, with_times=several and (timed is None or name in timed))
                for name, statement in statements.items()
            },
            **{name: histogram_data(histogram) for name, histogram in histograms.items() if histogram.count},
        }
    )


def _statement_data(statement: StatementTally, *, with_times: bool) -> dict[str, Any]:
    response = statement.succeeded.response
    times = {"response": histogram_data(response)} if with_times and response.count else {}
    return {**ended_data(statement.ended), **times}


def read_custom_metrics(text: str) -> CustomMetrics:
    """What was written; raises BadMetrics when it cannot be that."""
    fields = parse(text, "CUSTOM_METRICS", version=VERSION)
    response, lag, cut_off = (
        read_histogram(fields.part(name)) if fields.has(name) else EMPTY for name in ("response", "lag", "cut_off")
    )
    written = fields.part("statements")
    statements = {name: read_ended(written.part(name)) for name in written.names()}
    if sum(counts.succeeded for counts in statements.values()) != response.count:
        fields.refuse("has other times than were counted")
    times = {name: read_histogram(written.part(name).part("response")) for name in _timed(written)}
    succeeded = [name for name, counts in statements.items() if counts.succeeded]
    if len(succeeded) == 1:
        times = {succeeded[0]: response}
    if any(histogram.count != statements[name].succeeded for name, histogram in times.items()):
        written.refuse("has other times than were counted")
    return CustomMetrics(
        seconds=fields.number("seconds"),
        response=response,
        lag=lag,
        cut_off=cut_off,
        statements=statements,
        times=times,
    )


def _timed(statements: JsonFields) -> list[str]:
    return [name for name in statements.names() if statements.part(name).has("response")]


def _ms(time_ns: float | None) -> float | None:
    return None if time_ns is None else float(time_ns) / NS_PER_MS
