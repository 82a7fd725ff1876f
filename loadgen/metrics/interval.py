"""One second of one worker, as stored in a row of WORKER_METRICS_SNAPSHOTS."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import reduce
from itertools import chain
from operator import add
from typing import Any

import numpy as np

from loadgen.metrics.connections import LoginCounts, read_logins
from loadgen.metrics.histogram import EMPTY, Histogram, IntArray
from loadgen.metrics.json_fields import JsonFields, parse
from loadgen.metrics.percentile import exact_quantile_ns
from loadgen.metrics.recorder import CUT_OFF, Outcome, Sample
from loadgen.metrics.tally import ErrorKey, ErrorTally, StatementTally, Tally, Times
from loadgen.metrics.window import (
    ALL_STATEMENTS,
    VERSION,
    dump,
    ended_data,
    histogram_data,
    read_ended,
    read_histogram,
    read_statement,
    statement_data,
)
from loadgen.model.counts import Counts
from loadgen.model.run import Phase
from loadgen.model.workload import StatementKind
from loadgen.scenario.model import Threshold
from loadgen.units import NS_PER_MS
from loadgen.values import dataclass

EARLIER = "earlier"  # in LIVE_METRICS and CUSTOM_METRICS
_FIELDS = 6
_OUTCOMES = len(Outcome)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleBatch:
    """One entry per sample in each column. In a closed loop response and service are the same column."""

    statement: IntArray
    window: IntArray
    outcome: IntArray
    response_ns: IntArray
    service_ns: IntArray
    lag_ns: IntArray
    done_ns: IntArray
    open_loop: bool

    @classmethod
    def of(cls, samples: Sequence[Sample], *, open_loop: bool) -> SampleBatch:
        numbers: Iterable[int] = chain.from_iterable(samples)  # type: ignore[arg-type]  # Failed has __index__
        table = np.fromiter(numbers, np.int64, _FIELDS * len(samples)).reshape(-1, _FIELDS)
        statement, window, due_ns, sent_ns, done_ns, outcome = np.ascontiguousarray(table.T)
        if open_loop:
            due_ns = np.minimum(due_ns, sent_ns)  # a wait may end slightly early, which is not a negative delay
        elif (due_ns != sent_ns).any():
            raise ValueError("in a closed loop a statement is due when it is sent")
        service_ns = done_ns - sent_ns
        return cls(
            statement=statement,
            window=window,
            outcome=outcome,
            response_ns=done_ns - due_ns if open_loop else service_ns,
            service_ns=service_ns,
            lag_ns=sent_ns - due_ns,
            done_ns=done_ns,
            open_loop=open_loop,
        )

    def surplus(self, window_id: int, opened_ns: int, closed_ns: int | None) -> int:
        """Succeeded statements of a window that were answered after it, minus those of others answered inside it."""
        inside = (self.done_ns >= opened_ns) & (True if closed_ns is None else self.done_ns < closed_ns)
        own, succeeded = self.window == window_id, self.outcome == Outcome.SUCCEEDED
        return int((succeeded & own & ~inside).sum()) - int((succeeded & ~own & inside).sum())

    def tallies(self, names: Sequence[str], errors: Mapping[int, Mapping[ErrorKey, ErrorTally]]) -> dict[int, Tally]:
        """The tally of this batch for each window. `names` are the names of the statements."""
        windows: dict[int, dict[str, StatementTally]] = {}
        for window, statement, rows in self._groups(len(names)):
            statements, name = windows.setdefault(window, {}), names[statement]
            piece = self._tally(rows)
            statements[name] = statements[name] + piece if name in statements else piece
        return {
            window: Tally(statements=statements, errors=errors.get(window, {}))
            for window, statements in windows.items()
        }

    def _groups(self, statements: int) -> Iterator[tuple[int, int, IntArray]]:
        """(window, statement, rows) for each combination of window, statement and outcome in the batch."""
        if not len(self.window):
            return
        for column, size in ((self.statement, statements), (self.outcome, _OUTCOMES)):
            if column.min() < 0 or column.max() >= size:
                raise ValueError("a sample has a statement that is not in the workload, or no known outcome")
        places = np.unique(self.window, return_inverse=True)[1]
        keys = (places * statements + self.statement) * _OUTCOMES + self.outcome
        keys = keys.astype(np.min_scalar_type(int(keys.max())))  # small numbers are sorted by radix, in linear time
        order = np.argsort(keys, kind="stable")
        for rows in np.split(order, np.flatnonzero(np.diff(keys[order])) + 1):
            yield int(self.window[rows[0]]), int(self.statement[rows[0]]), rows

    def _tally(self, rows: IntArray) -> StatementTally:
        outcome = Outcome(int(self.outcome[rows[0]]))
        if outcome is Outcome.SKIPPED:
            ages_ns = self.response_ns[rows]
            return StatementTally(skipped=len(rows), unsent=Histogram.of(ages_ns[ages_ns > 0]))
        service = response = Histogram.of(self.service_ns[rows])
        lag = EMPTY
        if self.open_loop:
            response, lag = Histogram.of(self.response_ns[rows]), Histogram.of(self.lag_ns[rows])
        return StatementTally(times={outcome: Times(response, service)}, lag=lag)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCounts:
    """Samples since the start of MEASUREMENT; 0 before it. Cancelled statements are not counted."""

    queries: int = 0  # succeeded and failed: reads + writes
    reads: int = 0
    writes: int = 0
    errors: int = 0  # failed queries

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
    """The statements of the windows in `phase` that ended since the last collection. Times are exact; those of
    statements that were cut off are lower bounds."""

    phase: Phase | None  # None: no window has been opened yet
    seconds: float
    measured: MeasuredCounts  # from the start of the measurement until now
    qps: float
    p50_ms: float | None  # None: too few samples; likewise below
    p95_ms: float | None
    p99_ms: float | None
    avg_ms: float | None
    min_ms: float | None
    max_ms: float | None
    tally: Tally
    earlier: Tally | None = None  # of windows of another phase that ended in it, or had statements in flight then

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
        earlier: Tally | None = None,
    ) -> Interval:
        """The interval of these results. `windows` are the windows of the phase, and `tally` is their tally."""
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
            earlier=earlier,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierSamples:
    """Samples that ended in an interval, and began before its phase. They belong to its rate and its times, but not to
    the counts of the phase."""

    statements: Mapping[str, Counts] = field(default_factory=dict)  # ended statements
    times: Mapping[str, Histogram] = field(default_factory=dict)  # response of successful samples
    cut_off: Histogram = EMPTY

    @classmethod
    def of(cls, tally: Tally) -> EarlierSamples:
        statements = tally.statements
        return cls(
            statements={name: statement.ended for name, statement in statements.items()},
            times={
                name: statement.succeeded.response
                for name, statement in statements.items()
                if statement.succeeded.response.count
            },
            cut_off=tally.whole.cut_off.response,
        )

    def __add__(self, other: EarlierSamples) -> EarlierSamples:
        statements, times = dict(self.statements), dict(self.times)
        for name, counts in other.statements.items():
            statements[name] = statements.get(name, Counts()) + counts
        for name, histogram in other.times.items():
            times[name] = times.get(name, EMPTY) + histogram
        return EarlierSamples(statements=statements, times=times, cut_off=self.cut_off + other.cut_off)

    def coarse(self, coarseness: int) -> EarlierSamples:
        times = {name: histogram.coarse(coarseness) for name, histogram in self.times.items()}
        return EarlierSamples(statements=self.statements, times=times, cut_off=self.cut_off.coarse(coarseness))

    @property
    def folded(self) -> EarlierSamples:
        """All statements as one."""
        if not self.statements:
            return self
        return EarlierSamples(
            statements={ALL_STATEMENTS: self.counts},
            times={ALL_STATEMENTS: reduce(add, self.times.values())} if self.times else {},
            cut_off=self.cut_off,
        )

    @property
    def counts(self) -> Counts:
        return reduce(add, self.statements.values(), Counts())

    @property
    def response(self) -> Histogram:
        """Response times of successful samples, and of those that were cut off."""
        return reduce(add, self.times.values(), self.cut_off)


def earlier_data(earlier: EarlierSamples | None) -> dict[str, Any]:
    """The part of a document; empty for None."""
    if earlier is None:
        return {}
    times = {name: {"response": histogram_data(histogram)} for name, histogram in earlier.times.items()}
    statements = {name: ended_data(counts) | times.get(name, {}) for name, counts in earlier.statements.items()}
    cut_off = {"cut_off": histogram_data(earlier.cut_off)} if earlier.cut_off.count else {}
    return {EARLIER: {"statements": statements, **cut_off}}


def read_earlier(fields: JsonFields) -> EarlierSamples | None:
    """The samples in a document, if it has any."""
    if not fields.has(EARLIER):
        return None
    part = fields.part(EARLIER)
    written = part.part("statements")
    statements = {name: read_ended(written.part(name)) for name in written.names()}
    times = {name: read_histogram(written.part(name).part("response")) for name in _timed(written)}
    if any(counts.succeeded != times.get(name, EMPTY).count for name, counts in statements.items()):
        written.refuse("has other times than were counted")
    cut_off = read_histogram(part.part("cut_off")) if part.has("cut_off") else EMPTY
    return EarlierSamples(statements=statements, times=times, cut_off=cut_off)


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomMetrics:
    """The part of an interval that can be added to the same interval of other workers."""

    seconds: float
    response: Histogram  # of successful samples
    lag: Histogram
    cut_off: Histogram  # response of statements that timed out or were cancelled: lower bounds
    statements: Mapping[str, Counts]  # ended statements only
    times: Mapping[str, Histogram]  # response of successful samples, for each statement whose times are stored
    logins: LoginCounts | None = None  # of the worker until now; None: not reported
    earlier: EarlierSamples | None = None  # None: the phase did not change, or it is not known


def write_custom_metrics(interval: Interval, timed: Collection[str] | None = None) -> str:
    """JSON for CUSTOM_METRICS, with the response times of the statements in `timed`; None: of all statements.

    If only one statement succeeded, all times belong to it and are written once.
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
            **earlier_data(None if interval.earlier is None else EarlierSamples.of(interval.earlier)),
        }
    )


def _statement_data(statement: StatementTally, *, with_times: bool) -> dict[str, Any]:
    response = statement.succeeded.response
    times = {"response": histogram_data(response)} if with_times and response.count else {}
    return {**ended_data(statement.ended), **times}


def read_custom_metrics(text: str) -> CustomMetrics:
    """Parse the JSON of write_custom_metrics. Raises InvalidMetrics."""
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
        logins=read_logins(fields.part("logins")) if fields.has("logins") else None,
        earlier=read_earlier(fields),
    )


def _timed(statements: JsonFields) -> list[str]:
    return [name for name in statements.names() if statements.part(name).has("response")]


def _ms(time_ns: float | None) -> float | None:
    return None if time_ns is None else float(time_ns) / NS_PER_MS


RUN_MAX_S = 31 * 86_400.0
KEY = "judged"  # in LIVE_METRICS and CUSTOM_METRICS


@dataclass(frozen=True, slots=True, kw_only=True)
class ThresholdSecond:
    """The tallies of one interval of the measurement, for the statements of sliding thresholds; ALL_STATEMENTS: of all
    statements together. `drained`: statements that ended after the measurement, by the second in which they started."""

    until_s: float  # since the start of the plan
    seconds: float
    tallies: Mapping[str, StatementTally]
    drained: Mapping[int, Mapping[str, StatementTally]] = field(default_factory=dict)

    @classmethod
    def of(cls, tally: Tally, subjects: Iterable[str], *, from_s: float, until_s: float) -> ThresholdSecond:
        """The second of an interval, from its part inside the measurement."""
        tallies = {name: subject_tally(tally, name) for name in subjects}
        return cls(until_s=until_s, seconds=until_s - max(0.0, from_s), tallies=tallies)

    @classmethod
    def of_drain(cls, drained: Mapping[int, Tally], subjects: Collection[str], *, until_s: float) -> ThresholdSecond:
        started = {second: {name: subject_tally(one, name) for name in subjects} for second, one in drained.items()}
        return cls(until_s=until_s, seconds=0.0, tallies={}, drained=started)

    @property
    def from_s(self) -> float:
        return self.until_s - self.seconds

    @property
    def number(self) -> int:
        """The number of the second that it ends, from 1."""
        return max(1, round(self.until_s))


def threshold_subjects(thresholds: Iterable[Threshold]) -> frozenset[str]:
    """The statements of sliding thresholds."""
    return frozenset(one.check.statement or ALL_STATEMENTS for one in thresholds if one.window_s is not None)


def subject_tally(tally: Tally, name: str) -> StatementTally:
    return tally.whole if name == ALL_STATEMENTS else tally.statements.get(name, StatementTally())


def judged_data(second: ThresholdSecond) -> dict[str, Any]:
    drained = {str(number): _tallies_data(tallies) for number, tallies in second.drained.items()}
    return {
        "until_s": second.until_s,
        "seconds": second.seconds,
        "statements": _tallies_data(second.tallies),
        **({"drained": drained} if drained else {}),
    }


def _tallies_data(tallies: Mapping[str, StatementTally]) -> dict[str, Any]:
    return {name: {"skipped": tally.skipped, "times": statement_data(tally)} for name, tally in tallies.items()}


def read_judged(fields: JsonFields) -> ThresholdSecond:
    until_s = fields.number("until_s")
    if until_s > RUN_MAX_S:  # readers iterate over all seconds before it
        fields.refuse("has an until_s that is no second of a run")
    return ThresholdSecond(
        until_s=until_s,
        seconds=fields.number("seconds"),
        tallies=_read_tallies(fields.part("statements")),
        drained=_read_drained(fields.part("drained")) if fields.has("drained") else {},
    )


def _read_drained(written: JsonFields) -> dict[int, dict[str, StatementTally]]:
    if not all(number.isdecimal() and len(number) < 10 for number in written.names()):
        written.refuse("has seconds that are no numbers")
    return {int(number): _read_tallies(written.part(number)) for number in written.names()}


def _read_tallies(written: JsonFields) -> dict[str, StatementTally]:
    parts = {name: written.part(name) for name in written.names()}
    return {name: read_statement(part.part("times"), skipped=part.whole("skipped")) for name, part in parts.items()}


def stored_judged(custom_metrics: str | None) -> ThresholdSecond | None:
    """Read from CUSTOM_METRICS of a row of WORKER_METRICS_SNAPSHOTS; None: it contains none."""
    fields = parse(custom_metrics or "", "CUSTOM_METRICS", version=VERSION)
    return read_judged(fields.part(KEY)) if fields.has(KEY) else None
