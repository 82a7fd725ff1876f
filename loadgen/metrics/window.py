"""Results of windows: of one worker, merged over workers, and as JSON in WINDOW_RESULTS."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from functools import reduce
from operator import add
from typing import Any, Self

import numpy as np

from loadgen.errors import LoadgenError
from loadgen.metrics.connections import ConnectionTime, read_time, time_data
from loadgen.metrics.histogram import (
    BUCKETS,
    COARSENESSES,
    EMPTY,
    INNER_BUCKETS,
    Histogram,
    bucket_of,
    buckets_of,
    group_of,
    join,
    spread,
)
from loadgen.metrics.json_fields import COUNT_MAX, TIME_NS_MAX, JsonFields, parse
from loadgen.metrics.percentile import quantile
from loadgen.metrics.recorder import Outcome, ReplayTally, WindowState, all_replayed, read_replayed, replayed_data
from loadgen.metrics.stalls import Span, WindowStalls, possible_stalls, read_stalls, run_stalls, stalls_data
from loadgen.metrics.tally import ErrorKey, ErrorTally, StatementTally, Tally, Times
from loadgen.model.counts import Counts, ErrorCategory, count_discrepancy
from loadgen.model.run import Phase
from loadgen.units import NS_PER_MS
from loadgen.values import dataclass

# --- The influence of the worker process on a window: CPU time, and lateness of wake-ups; both add -------------------
#
# Lateness is weighted by time: each millisecond of the window counts with the lateness of the wake-up that ended it. So
# a process that was paused for ten seconds was late for ten seconds, and not just once among a thousand wake-ups.

PAUSE_NS = 100 * NS_PER_MS  # a longer delay is not scheduling noise: the process did not run
GAP_NS = 500 * NS_PER_MS  # a longer delay is not caused by a busy machine: the process was stopped
MINUTE_MS = 60_000
_P99 = 990


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientResourceUse:
    """One window of one worker, or several together."""

    elapsed_ms: int = 0  # of the window, as far as it was monitored
    cpu_ms: int = 0  # of this process
    machine_cpu_ms: int = 0  # of all processes of the machine, including this one, and stolen time
    stolen_cpu_ms: int = 0  # withheld by the host of a virtual machine: steal time
    cores: int = 0  # of the machine
    gap_ms: int = 0  # in which the process was paused
    late: Histogram = EMPTY  # weighted by milliseconds
    sent_late: Histogram = EMPTY  # open loop, of each statement: sent - max(due, when its connection became free)
    minute_cpu_ms: int = 0  # the highest CPU time of a minute; 0: less than a minute was measured, or it is unknown

    def __add__(self, other: ClientResourceUse) -> ClientResourceUse:
        return ClientResourceUse(
            elapsed_ms=self.elapsed_ms + other.elapsed_ms,
            cpu_ms=self.cpu_ms + other.cpu_ms,
            machine_cpu_ms=self.machine_cpu_ms + other.machine_cpu_ms,
            stolen_cpu_ms=self.stolen_cpu_ms + other.stolen_cpu_ms,
            cores=max(self.cores, other.cores),
            gap_ms=self.gap_ms + other.gap_ms,
            late=self.late + other.late,
            sent_late=self.sent_late + other.sent_late,
            minute_cpu_ms=max(self.minute_cpu_ms, other.minute_cpu_ms),
        )

    @property
    def cpu_percent_of_core(self) -> float | None:
        return 100.0 * self.cpu_ms / self.elapsed_ms if self.elapsed_ms else None

    @property
    def worst_cpu_percent(self) -> float | None:
        """CPU percent of the busiest minute, or of the whole window if that is higher."""
        mean = self.cpu_percent_of_core
        return None if mean is None else max(mean, 100.0 * self.minute_cpu_ms / MINUTE_MS)

    @property
    def others_cores(self) -> float | None:
        """The average number of cores that all other processes of the machine used."""
        used_ms = self.machine_cpu_ms - self.stolen_cpu_ms - self.cpu_ms
        return max(0, used_ms) / self.elapsed_ms if self.elapsed_ms else None

    @property
    def stolen_cores(self) -> float | None:
        """The average number of cores that the host of a virtual machine withheld."""
        return self.stolen_cpu_ms / self.elapsed_ms if self.elapsed_ms else None

    @property
    def late_mean_ms(self) -> float | None:
        mean_ns = self.late.mean_ns
        return None if mean_ns is None else mean_ns / NS_PER_MS

    @property
    def late_p99_ms(self) -> float | None:
        found = quantile(_P99, self.late)
        return None if found is None else found.value_ns / NS_PER_MS

    @property
    def late_max_ms(self) -> float | None:
        return self.late.max_ns / NS_PER_MS if self.late.count else None

    @property
    def sent_late_mean_ms(self) -> float | None:
        mean_ns = self.sent_late.mean_ns
        return None if mean_ns is None else mean_ns / NS_PER_MS

    @property
    def gap_percent(self) -> float | None:
        """Percent of the time in pauses of at least 500 ms."""
        return 100.0 * self.gap_ms / self.late.count if self.late.count else None

    @property
    def paused_percent(self) -> float | None:
        """Percent of the time in pauses of at least 100 ms."""
        if not self.late.count:
            return None
        return 100.0 * int(self.late.counts[int(buckets_of(PAUSE_NS)) :].sum()) / self.late.count


SURPLUS_IGNORED = 0.01  # of successful samples
ALL_STATEMENTS = "*"  # the name of all statements together, if a heartbeat has no room for each


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowResult:
    """The result of one window of one worker. It does not change any more once it is FINAL."""

    window_id: int
    phase: Phase
    step_id: int | None
    state: WindowState
    seconds: float
    counts: Counts
    tally: Tally
    connections: ConnectionTime | None = None  # None: not measured
    client: ClientResourceUse | None = None  # None: not measured
    stalls: WindowStalls | None = None  # None: not measured
    surplus: int = 0  # succeeded statements answered after the window, minus those of others answered inside it
    replayed: ReplayTally | None = None  # None: another mode, or the window is not final
    uncertain_ms: int = 0  # possible difference between its times and the plan


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedWindows:
    """The windows of several workers, merged."""

    seconds: float  # the measured span: the longest that a worker measured
    counts: Counts
    tally: Tally
    qps: float  # succeeded samples per second
    statement_qps: Mapping[str, float]
    stalls: tuple[Span, ...] | None = None  # None: not measured
    possible_stalls: tuple[Span, ...] = ()  # with the known stalls; empty: all stalls are known
    stages: Mapping[str, MergedWindows] = field(default_factory=dict)  # by name; those with thresholds
    surplus: int = 0
    replayed: ReplayTally | None = None  # None: not of all workers
    sent_late: Histogram = EMPTY  # mode replay: client lag of each statement

    @property
    def surplus_fraction(self) -> float:
        """The fraction of the throughput that was answered after the measured time; 0.0 if it is negligible.

        Statements count in the window in which they start. In a steady state, the number of statements of earlier
        windows that are answered inside it equals the number of its statements that are answered after it. While a
        queue grows, the latter number is larger.
        """
        succeeded = self.counts.succeeded
        fraction = self.surplus / succeeded if succeeded else 0.0
        return fraction if fraction > SURPLUS_IGNORED else 0.0

    @property
    def folded(self) -> bool:
        """Whether some of the figures are not known per statement."""
        return ALL_STATEMENTS in self.tally.statements

    @property
    def longest_stall_ms(self) -> float | None:
        return None if self.stalls is None else _longest_ms(self.stalls)

    @property
    def possible_stall_ms(self) -> float:
        """The longest span that may have been a stall: the median of a statement was not known, or a worker paused."""
        return _longest_ms(self.possible_stalls)


def _longest_ms(spans: Iterable[Span]) -> float:
    return float(max((end - start for start, end in spans), default=0))


def known_windows(
    stored: Iterable[WindowRow], reported: Mapping[str, Iterable[WindowResult]], unreadable: Callable[[str, str], None]
) -> dict[str, tuple[WindowResult, ...]]:
    """The windows of every worker in order: as stored, else as `reported` in its last heartbeat. `unreadable` is called
    with the worker of a damaged row, and why."""
    known: dict[str, dict[int, WindowResult]] = {worker_id: {} for worker_id in reported}
    for row in stored:
        own = known.setdefault(row.worker_id, {})
        try:
            own[row.window_id] = row.result()
        except LoadgenError as error:
            unreadable(row.worker_id, str(error))
    for worker_id, windows in reported.items():
        for window in windows:
            known[worker_id].setdefault(window.window_id, window)
    return {worker_id: tuple(window for _, window in sorted(own.items())) for worker_id, own in known.items()}


def merge(workers: Iterable[Sequence[WindowResult]], *, live: bool = False) -> MergedWindows:
    """Merge the windows of each worker, which are consecutive, and then the workers, which run in parallel.

    A rate is a count divided by the measured span, also for a worker that ended early. `live`: an open window is as old
    as the heartbeat that reported it, so the rate of a worker uses its own seconds, reduced by the share of statements
    that are in flight and will be counted later. Stalls end with the oldest of these heartbeats, because what a worker
    did after its own is not known.
    """
    known = list(workers)
    own_stalls = [[window.stalls for window in windows] for windows in known]
    until_ms = _reported_until_ms(known) if live else None
    own_seconds = [math.fsum(window.seconds for window in windows) for windows in known]
    span_s = max(own_seconds, default=0.0)
    counts, tally = Counts(), Tally()
    statement_qps: dict[str, float] = {}
    for windows, own_s in zip(known, own_seconds, strict=True):
        own_tally = reduce(add, (window.tally for window in windows), Tally())
        own_counts = reduce(add, (window.counts for window in windows), Counts())
        goes_on = live and any(window.state is WindowState.OPEN for window in windows)
        counted_s = (own_s if goes_on else span_s) * (_ended_share(own_counts) if live else 1.0)
        for name, statement in own_tally.statements.items():
            statement_qps[name] = statement_qps.get(name, 0.0) + rate(statement, counted_s)
        counts += own_counts
        tally += own_tally
    return MergedWindows(
        seconds=span_s,
        counts=counts,
        tally=tally,
        qps=math.fsum(statement_qps.values()),
        statement_qps=statement_qps,
        stalls=run_stalls(own_stalls, until_ms=until_ms),
        possible_stalls=possible_stalls(own_stalls, until_ms=until_ms),
        surplus=sum(window.surplus for windows in known for window in windows),
        replayed=all_replayed(window.replayed for windows in known for window in windows),
        sent_late=reduce(add, (one.client.sent_late for windows in known for one in windows if one.client), EMPTY),
    )


def _reported_until_ms(workers: Iterable[Sequence[WindowResult]]) -> int | None:
    """Up to when every worker that still measures has reported its stalls. None: none measures any more."""
    measuring = (windows for windows in workers if any(one.state is WindowState.OPEN for one in windows))
    reported = ([one.stalls.until_ms for one in windows if one.stalls is not None] for windows in measuring)
    return min((max(until_ms) for until_ms in reported if until_ms), default=None)


def _ended_share(counts: Counts) -> float:
    """The fraction of begun statements that have ended."""
    return counts.ended / (counts.ended + counts.in_flight) if counts.ended else 1.0


def rate(tally: StatementTally, seconds: float) -> float:
    """Succeeded samples per second."""
    return tally.succeeded.response.count / seconds if seconds > 0.0 else 0.0


def window_discrepancy(result: WindowResult) -> str | None:
    """The inconsistency of a window as one sentence; None if it is consistent."""
    ended, counts = result.tally.ended, result.counts
    problem = count_discrepancy(counts)
    if problem is None and result.state is WindowState.FINAL and counts.in_flight:
        problem = f"it is final, and {counts.in_flight} are in flight"
    for name in ("skipped", "succeeded", "failed", "cancelled"):
        if problem is None and getattr(counts, name) != getattr(ended, name):
            problem = f"{name} is {getattr(counts, name)}, and its statements have {getattr(ended, name)}"
    errors = sum(group.count for group in result.tally.errors.values())
    if problem is None and errors != ended.failed:
        problem = f"{ended.failed} failed, and {errors} errors are described"
    sent = ended.succeeded + ended.failed + ended.cancelled
    lags = sum(statement.lag.count for statement in result.tally.statements.values())
    if problem is None and lags not in (0, sent):
        problem = f"{sent} were sent, and the lag of {lags} is known"
    for name, statement in result.tally.statements.items():
        if problem is None and statement.unsent.count > statement.skipped:
            problem = f"{name}: {statement.skipped} were skipped, and the age of {statement.unsent.count} is known"
    return problem and f"window {result.window_id}: {problem}"


# --- JSON: the only writer and reader of stored metrics --------------------------------------------------------------
#
# A histogram is written as {"count", "sum_ns", "min_ns", "max_ns", "buckets"}. `buckets` is a list: the number of the
# first non-empty bucket, followed by the counts; -n stands for n empty buckets. With "coarseness" 3 the numbers are
# those of groups of 3 buckets (histogram.group_of). Service times that equal the response times, as always in a closed
# loop, are omitted.
#
#     COUNTS    {"version", scheduled … in_flight, "statements": {name: {skipped … cancelled}}, "errors": [{…}],
#                "connections": {planned_ms, delivered_ms, logging_in_ms}, "client": {…}, "stalls": {…}, "surplus": n,
#                "replayed": {sent, rows}, "uncertain_ms": n}
#     BUCKETS   {"version", "statements": {name: {OUTCOME: {"response": h, "service": h}, "lag": h, "unsent": h}}}
#
# Counts follow from buckets. They are written for people, and so that a reader detects when one of the two is damaged.

VERSION = 1
_LAG, _UNSENT = "lag", "unsent"
_ENDED = ("skipped", "succeeded", "failed", "cancelled")
_OUTCOMES: Mapping[str, Outcome] = {one.name: one for one in Outcome if one is not Outcome.SKIPPED}  # they have times


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowRow:
    """A window as it is stored and spooled: the columns of WINDOW_RESULTS after RUN_ID, in order."""

    worker_id: str
    window_id: int
    epoch: int  # of the leader whose commands the worker followed
    phase: str
    step_id: int | None
    seconds: float
    counts: str
    buckets: str

    @classmethod
    def of(cls, result: WindowResult, *, worker_id: str, epoch: int) -> Self:
        """The row of a final window, or at the end of a worker, of a window with statements that did not return."""
        return cls(
            worker_id=worker_id,
            window_id=result.window_id,
            epoch=epoch,
            phase=result.phase.value,
            step_id=result.step_id,
            seconds=result.seconds,
            counts=dump({"version": VERSION, **counts_data(result)}),
            buckets=dump({"version": VERSION, "statements": buckets_data(result.tally)}),
        )

    def to_row(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self.__slots__)

    def result(self) -> WindowResult:
        """The window. Raises InvalidMetrics if it is inconsistent."""
        place = f"window {self.window_id}"
        counts = parse(self.counts, f"{place}, COUNTS", version=VERSION)
        buckets = parse(self.buckets, f"{place}, BUCKETS", version=VERSION)
        columns = JsonFields({"phase": self.phase, "seconds": self.seconds}, place)
        in_flight = counts.whole("in_flight")
        return read_result(
            counts,
            buckets.part("statements"),
            window_id=self.window_id,
            phase=columns.one_of("phase", Phase),
            step_id=self.step_id,
            seconds=columns.number("seconds"),
            state=WindowState.CLOSED if in_flight else WindowState.FINAL,
        )


def dump(data: object) -> str:
    """Compact JSON in ASCII, so that its length is its size in bytes."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False)


# --- JSON of a window ------------------------------------------------------------------------------------------------


def counts_data(result: WindowResult) -> dict[str, Any]:
    statements = result.tally.statements
    return {
        **{name: getattr(result.counts, name) for name in Counts.__slots__},
        "statements": {name: ended_data(statement.ended) for name, statement in statements.items()},
        "errors": [
            {
                "category": key.category.value,
                "code": key.code,
                **_named(key),
                "count": group.count,
                "example": group.example,
            }
            for key, group in result.tally.errors.items()
        ],
        **({} if result.connections is None else {"connections": time_data(result.connections)}),
        **({} if result.client is None else {"client": _client_data(result.client)}),
        **({} if result.stalls is None else {"stalls": stalls_data(result.stalls)}),
        **({} if not result.surplus else {"surplus": result.surplus}),
        **({} if result.replayed is None else {"replayed": replayed_data(result.replayed)}),
        **({} if not result.uncertain_ms else {"uncertain_ms": result.uncertain_ms}),
    }


def _named(key: ErrorKey) -> dict[str, str]:
    return {} if key.statement is None else {"statement": key.statement}


def buckets_data(tally: Tally) -> dict[str, Any]:
    return {name: statement_data(statement) for name, statement in tally.statements.items()}


def ended_data(counts: Counts) -> dict[str, int]:
    return {name: getattr(counts, name) for name in _ENDED}


def read_ended(fields: JsonFields) -> Counts:
    return Counts(**{name: fields.whole(name) for name in _ENDED})


def read_counts(fields: JsonFields) -> Counts:
    return Counts(**{name: fields.whole(name) for name in Counts.__slots__})


def read_result(counts: JsonFields, buckets: JsonFields, **window: Any) -> WindowResult:
    """A window from its counts, buckets and columns, which must be consistent."""
    written = counts.part("statements")
    if set(written.names()) != set(buckets.names()):
        buckets.refuse("has other statements than the counts")
    statements = {}
    for name in written.names():
        ended = read_ended(written.part(name))
        statements[name] = read_statement(buckets.part(name), skipped=ended.skipped)
        if statements[name].ended != ended:
            buckets.part(name).refuse("does not hold as many as were counted")
    tally = Tally(statements=statements, errors=_read_errors(counts))
    connections = read_time(counts.part("connections")) if counts.has("connections") else None
    client = _read_client(counts.part("client")) if counts.has("client") else None
    stalls = read_stalls(counts.part("stalls")) if counts.has("stalls") else None
    surplus = counts.whole("surplus", low=-COUNT_MAX) if counts.has("surplus") else 0
    result = WindowResult(
        counts=read_counts(counts),
        tally=tally,
        connections=connections,
        client=client,
        stalls=stalls,
        surplus=surplus,
        replayed=read_replayed(counts.part("replayed")) if counts.has("replayed") else None,
        uncertain_ms=counts.whole("uncertain_ms") if counts.has("uncertain_ms") else 0,
        **window,
    )
    problem = window_discrepancy(result)
    if problem:
        counts.refuse(f"does not add up: {problem}")
    return result


def _read_errors(counts: JsonFields) -> Mapping[ErrorKey, ErrorTally]:
    errors: dict[ErrorKey, ErrorTally] = {}
    for group in counts.parts("errors"):
        statement = group.text("statement") if group.has("statement") else None
        key = ErrorKey(group.one_of("category", ErrorCategory), group.whole_or_none("code"), statement)
        if key in errors:
            group.refuse("is there twice")
        errors[key] = ErrorTally(group.whole("count", low=1), group.text("example"))
    return errors


def statement_data(statement: StatementTally) -> dict[str, Any]:
    data: dict[str, Any] = {outcome.name: _times_data(times) for outcome, times in statement.times.items()}
    for name, histogram in ((_LAG, statement.lag), (_UNSENT, statement.unsent)):
        if histogram.count:
            data[name] = histogram_data(histogram)
    return data


def read_statement(fields: JsonFields, *, skipped: int) -> StatementTally:
    times, lag, unsent = {}, EMPTY, EMPTY
    for name in fields.names():
        if name == _LAG:
            lag = read_histogram(fields.part(name))
        elif name == _UNSENT:
            unsent = read_histogram(fields.part(name))
        elif name in _OUTCOMES:
            times[_OUTCOMES[name]] = _read_times(fields.part(name))
        else:
            fields.refuse(f"has an unknown outcome {name!r}")
    return StatementTally(times=times, lag=lag, skipped=skipped, unsent=unsent)


def _times_data(times: Times) -> dict[str, Any]:
    data = {"response": histogram_data(times.response)}
    if times.service != times.response:
        data["service"] = histogram_data(times.service)
    return data


def _read_times(fields: JsonFields) -> Times:
    response = read_histogram(fields.part("response"))
    service = read_histogram(fields.part("service")) if fields.has("service") else response
    if service.count != response.count:
        fields.refuse("has more of one time than of the other")
    return Times(response, service)


# --- JSON of the client resource use ---------------------------------------------------------------------------------

_CLIENT = ("elapsed_ms", "cpu_ms", "machine_cpu_ms", "cores", "gap_ms")
_CLIENT_OPTIONAL = ("minute_cpu_ms", "stolen_cpu_ms")  # 0 is left out


def _client_data(effect: ClientResourceUse) -> dict[str, Any]:
    data: dict[str, Any] = {name: getattr(effect, name) for name in _CLIENT}
    data |= {name: value for name in _CLIENT_OPTIONAL if (value := getattr(effect, name))}
    found = {"late": effect.late, "sent_late": effect.sent_late}
    return data | {name: histogram_data(histogram) for name, histogram in found.items() if histogram.count}


def _read_client(fields: JsonFields) -> ClientResourceUse:
    late, sent_late = (
        read_histogram(fields.part(name)) if fields.has(name) else EMPTY for name in ("late", "sent_late")
    )
    known = {name: fields.whole(name) for name in (*_CLIENT, *filter(fields.has, _CLIENT_OPTIONAL))}
    return ClientResourceUse(late=late, sent_late=sent_late, **known)


# --- JSON of a histogram ---------------------------------------------------------------------------------------------


def histogram_data(histogram: Histogram) -> dict[str, Any]:
    data: dict[str, Any] = {
        "count": histogram.count,
        "sum_ns": histogram.sum_ns,
        "min_ns": histogram.min_ns,
        "max_ns": histogram.max_ns,
    }
    if histogram.coarseness > 1:
        data["coarseness"] = histogram.coarseness
    groups = join(histogram.counts, histogram.coarseness)
    used = np.flatnonzero(groups)
    buckets: list[int] = used[:1].tolist()
    expected = buckets[0] if buckets else 0
    for number, count in zip(used.tolist(), groups[used].tolist(), strict=True):
        if number > expected:
            buckets.append(expected - number)
        buckets.append(count)
        expected = number + 1
    return {**data, "buckets": buckets}


def read_histogram(fields: JsonFields) -> Histogram:
    coarseness = fields.whole("coarseness") if fields.has("coarseness") else 1
    if coarseness not in COARSENESSES:
        fields.refuse(f"has a coarseness that is none of {COARSENESSES}")
    length = INNER_BUCKETS // coarseness + BUCKETS - INNER_BUCKETS
    items = fields.items("buckets")
    if not items or not {int}.issuperset(map(type, items)) or not -BUCKETS < min(items) <= max(items) <= COUNT_MAX:
        fields.refuse("has buckets that are not whole numbers, or none")
    if items[0] < 0:
        fields.refuse("has buckets that are not whole numbers, or none")
    first, counts = items[0], []  # of all buckets from the first to the last in use
    for item in items[1:]:
        if item > 0:
            counts.append(item)
        elif item == 0 or len(counts) - item > length:
            fields.refuse("has an empty bucket, or too many")
        else:
            counts += [0] * -item
    if first + len(counts) > length:
        fields.refuse("has an empty bucket, or too many")
    groups = np.zeros(length, np.int64)
    groups[first : first + len(counts)] = counts
    histogram = Histogram(
        counts=groups if coarseness == 1 else spread(groups, coarseness),
        count=fields.whole("count", low=1),
        sum_ns=fields.whole("sum_ns", high=COUNT_MAX * TIME_NS_MAX),
        min_ns=fields.whole("min_ns", high=TIME_NS_MAX),
        max_ns=fields.whole("max_ns", high=TIME_NS_MAX),
        coarseness=coarseness,
    )
    _check(histogram, [first, first + len(counts) - 1], sum(counts), fields)
    return histogram


def _check(histogram: Histogram, ends: list[int], counted: int, fields: JsonFields) -> None:
    """Redundant parts must be consistent. `ends`: the first and the last non-empty bucket."""
    count, coarseness = histogram.count, histogram.coarseness
    if counted != count:
        fields.refuse(f"has {counted} in its buckets, and a count of {count}")
    if ends != [group_of(bucket_of(time_ns), coarseness) for time_ns in (histogram.min_ns, histogram.max_ns)]:
        fields.refuse("has a minimum or maximum outside its first or last bucket")
    if not count * histogram.min_ns <= histogram.sum_ns <= count * histogram.max_ns:
        fields.refuse("has a sum that its minimum, maximum and count do not allow")
