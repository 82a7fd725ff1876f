"""The input of a report, as it is read from the tables. The same tables give the same report on any machine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from datetime import datetime
from enum import StrEnum
from functools import reduce
from itertools import chain, groupby
from math import ceil, floor, fsum
from operator import add
from typing import Any

from loadgen.metrics.connections import LoginCounts
from loadgen.metrics.histogram import EMPTY, Histogram
from loadgen.metrics.interval import EarlierSamples
from loadgen.metrics.percentile import is_supported, quantile
from loadgen.metrics.window import MergedWindows
from loadgen.model.counts import Counts
from loadgen.model.run import Phase
from loadgen.model.warehouse import WarehouseKind
from loadgen.scenario.model import Scenario
from loadgen.units import NS_PER_MS
from loadgen.values import dataclass

# --- A run second by second: the seconds of all workers added up, and the points of charts. Pure ---------------------
#
# Workers collect once a second, at different moments and with jitter. The next second of a worker goes into the next
# row unless it is off by more than a quarter of a second, so jitter causes neither gaps nor doubled seconds.
#
# A row has the counts of one phase. Its rate and its response times are of all statements that ended in it: in the
# second in which the phase changes, and while statements of the phase before are still in flight, those are more than
# the phase has. Where they are not known (the first row of a run, workers of an older version, heartbeats of large
# runs), the row has no rate. The last row has no rate either.

CLOCK_JITTER = 0.25  # of a second
COOLDOWN = Phase.COOLDOWN.value
_LOAD_PHASES = (Phase.WARMUP.value, Phase.MEASUREMENT.value)  # in their order
PHASE_SHIFT_MAX = 3  # seconds by which the beginnings of a phase may differ between workers
POINTS_MAX = 300  # of a line; in longer runs a point has several seconds
REACH_PARTS = 10  # points with too few samples for a percentile are joined over at most a tenth of the run
GAP_SPANS = 3  # missing points that interrupt a line, because workers stored nothing

NOTHING_EARLIER = EarlierSamples()

# Response times by statement, of the points of a chart: (number of the point's span, phase) → statement → times.
PointTimes = Mapping[tuple[int, str | None], Mapping[str, Histogram]]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSecond:
    """One interval of one worker."""

    worker_id: str
    ended_at: datetime  # naive UTC
    seconds: float
    phase: str | None
    statements: Mapping[str, Counts] = field(default_factory=dict)  # ended statements
    response: Histogram = EMPTY  # of successful samples
    cut_off: Histogram = EMPTY  # lower bounds of samples that timed out or were cancelled
    lag: Histogram = EMPTY
    times: Mapping[str, Histogram] = field(default_factory=dict)  # response times by statement, if stored
    earlier: EarlierSamples | None = None  # None: the phase did not change, or it is not known
    logins: LoginCounts | None = None  # of the worker so far; None: not stored
    executing: int = 0
    target: int = 0
    cpu_percent: float | None = None
    memory_percent: float | None = None

    @property
    def counts(self) -> Counts:
        return reduce(add, self.statements.values(), Counts())


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSecond:
    """One row of a run, or several consecutive ones: sums over workers."""

    at_s: int  # since the start of the run
    length_s: int = 1
    phase: str | None
    workers: int
    qps: float | None  # of all statements that ended; None: only a part of the second is known
    statements: Mapping[str, Counts]  # of the phase
    response: Histogram
    cut_off: Histogram = EMPTY
    lag: Histogram
    earlier: EarlierSamples = NOTHING_EARLIER
    executing: int
    target: int
    cpu_percent: float | None = None  # of the busiest worker
    memory_percent: float | None = None
    logins: LoginCounts | None = None  # in this row; None: not stored

    @property
    def counts(self) -> Counts:
        return reduce(add, self.statements.values(), Counts())

    @property
    def end_s(self) -> int:
        return self.at_s + self.length_s

    @property
    def every_statement(self) -> Mapping[str, Counts]:
        """All statements that ended, of any phase."""
        return _sum((self.statements, self.earlier.statements))

    @property
    def every_count(self) -> Counts:
        return self.counts + self.earlier.counts

    @property
    def every_response(self) -> Histogram:
        return self.response + self.cut_off + self.earlier.response

    def response_ms(self, per_mille: int) -> float | None:
        return _ms(self.every_response, per_mille)

    def lag_ms(self, per_mille: int) -> float | None:
        return _ms(self.lag, per_mille)


class StatementTimes:
    """Response times by statement, added up per point of a chart: one per second would need too much memory."""

    def __init__(self, span_s: int) -> None:
        self.span_s = span_s
        self._points: dict[tuple[int, str | None], dict[str, Histogram]] = {}

    def add(self, at_s: int, second: WorkerSecond) -> None:
        own = self._points.setdefault((at_s // self.span_s, second.phase), {})
        for name, times in chain(second.times.items(), (second.earlier or NOTHING_EARLIER).times.items()):
            own[name] = own.get(name, EMPTY) + times

    @property
    def points(self) -> PointTimes:
        return self._points


def span_for(length_s: float) -> int:
    """The number of seconds in one point of a chart, for a run of this length."""
    return max(ceil(length_s / POINTS_MAX), 1)


def merge_seconds(
    start: datetime,
    seconds: Iterable[WorkerSecond],
    times: StatementTimes | None = None,
    *,
    measures_s: float | None = None,
) -> tuple[RunSecond, ...]:
    """Rows in order of time, up to the last one with a statement. `seconds` must be in order for each worker. Their
    times by statement are added to `times`. `measures_s`: when the measurement began, by the plan; None: not known."""
    rows = SecondAggregator(start, measures_s=measures_s)
    for second in seconds:
        for number, part in rows.place(second):
            if times is not None:
                times.add(number, part)
    merged = [rows.second(number) for number in rows.numbers]
    while merged and not merged[-1].executing and not merged[-1].counts.ended:
        merged.pop()  # the load had ended, and only the processes were running
    if merged:
        merged[-1] = replace(merged[-1], qps=None)
    return tuple(merged)


class SecondAggregator:
    """Adds the seconds of workers to the rows of their run. The seconds of each worker must come in order."""

    def __init__(self, start: datetime, *, measures_s: float | None = None) -> None:
        self._start = start
        self._measures = None if measures_s is None else floor(measures_s)  # the first row of the measurement
        self._rows: dict[int, _Row] = {}
        self._before: dict[str, tuple[int, str | None]] = {}
        self._logins: dict[str, LoginCounts] = {}

    def add(self, second: WorkerSecond) -> int:
        """Add a second, and return the number of the row with its counts."""
        return self.place(second)[-1][0]

    def place(self, second: WorkerSecond) -> tuple[tuple[int, WorkerSecond], ...]:
        """Add a second, and return its parts with the numbers of the rows that have their counts. Its rate is in the
        row of its time: otherwise a row would show a dip if the counts of one worker are in a neighbouring row. A
        second whose end alone is of the measurement has two parts: what began in the warm-up stays in its row."""
        last_row, last_phase = self._before.get(second.worker_id, (None, None))
        of_time = number = _row_number(self._start, second, last_row)
        if number == last_row and second.phase not in (last_phase, COOLDOWN):
            number += 1  # a row with two phases would count statements of the warm-up as measured
        number = self._row_of_phase(number, second.phase, changes=second.earlier is not None)
        self._before[second.worker_id] = of_time, second.phase
        partial = last_row is None or (last_phase != second.phase and second.earlier is None)
        self._rows.setdefault(of_time, _Row()).add_rate(second, partial=partial)
        parts: tuple[tuple[int, WorkerSecond], ...] = ((number, second),)
        is_moved = number > of_time and second.phase == Phase.MEASUREMENT
        if is_moved and second.earlier is not None and self._rows[of_time].counted_phase != second.phase:
            parts = ((of_time, _begun_before(second, second.earlier)), (number, replace(second, earlier=None)))
        for at, part in parts:
            self._rows.setdefault(at, _Row()).add(part)
        if second.logins is not None:
            new = second.logins.since(self._logins.get(second.worker_id, LoginCounts()))
            self._rows[number].add_logins(new)
            self._logins[second.worker_id] = second.logins
        return parts

    def _row_of_phase(self, number: int, phase: str | None, *, changes: bool) -> int:
        """The number of a row for this phase: the row itself, or a neighbour if another worker has used the row for
        another phase. A row contains samples of one phase only. `changes`: the second has samples of two."""
        if self._measures:
            if phase == Phase.MEASUREMENT and changes:
                number = max(number, self._measures)
            elif phase == Phase.WARMUP and number < self._measures + PHASE_SHIFT_MAX:  # not of a later replacement
                number = min(number, self._measures - 1)
        for _ in range(PHASE_SHIFT_MAX):
            other = self._rows[number].counted_phase if number in self._rows else None
            if phase not in _LOAD_PHASES or other not in _LOAD_PHASES or other == phase:
                break
            number += 1 if _LOAD_PHASES.index(other) < _LOAD_PHASES.index(phase) else -1
        return max(number, 0)

    @property
    def numbers(self) -> list[int]:
        return sorted(self._rows)

    def last(self, worker_id: str) -> int | None:
        """The newest row with a rate of a worker."""
        return self._before[worker_id][0] if worker_id in self._before else None

    def second(self, number: int) -> RunSecond:
        return self._rows[number].second(number)

    def forget(self, number: int) -> None:
        """Drop a row to which nothing will be added any more."""
        self._rows.pop(number, None)


def thin(seconds: Sequence[RunSecond], span_s: int) -> tuple[RunSecond, ...]:
    """The points of a chart: the seconds of each span and phase, with their samples merged, so that percentiles stay
    exact."""
    if span_s == 1:
        return tuple(seconds)
    groups = groupby(seconds, key=lambda second: (second.at_s // span_s, second.phase))
    return tuple(_joined(list(group)) for _, group in groups)


@dataclass(frozen=True, slots=True)
class Stretch:
    """Consecutive points with one common value."""

    first: int  # index of the point
    last: int
    value: float | None  # None: still too few samples


def percentile_line(
    points: Sequence[RunSecond], times: Sequence[Histogram], per_mille: int, reach_s: float
) -> tuple[Stretch, ...]:
    """A percentile over time, in milliseconds. `times` has the samples of each point. A point with too few samples is
    joined with neighbours of its phase, up to `reach_s`. A first or last point without a rate is always joined: the
    first knows only statements that began and ended within its phase, and the last only those that were still in
    flight, so its samples are too short or too long."""
    found: list[Stretch] = []
    counts, spans_s = [one.count for one in times], [(point.at_s, point.end_s) for point in points]
    for run in _runs(points):
        partial = points[run[0]].qps is None
        groups = stretches(run, counts, spans_s, per_mille, reach_s, partial=partial)
        if points[run[-1]].qps is None and len(groups) > 1 and groups[-1][0] == run[-1]:
            groups[-2:] = [(groups[-2][0], run[-1])]
        for first, last in groups:
            found.append(Stretch(first, last, _ms(reduce(add, times[first : last + 1], EMPTY), per_mille)))
    return tuple(found)


def stretches(
    run: range,
    counts: Sequence[int],
    spans_s: Sequence[tuple[float, float]],
    per_mille: int,
    reach_s: float,
    *,
    partial: bool = False,
) -> list[tuple[int, int]]:
    """Groups of consecutive indexes (first, last) with enough samples for a percentile, or of length `reach_s`; the
    remainder is added to the last group. `partial`: the first index must not be a group alone."""
    found: list[tuple[int, int]] = []
    first, samples = run[0], 0
    for place in run:
        samples += counts[place]
        enough = is_supported(per_mille, samples) and not (partial and place == run[0])
        if enough or spans_s[place][1] - spans_s[first][0] >= reach_s:
            found.append((first, place))
            first, samples = place + 1, 0
    if first <= run[-1]:
        found.append((found.pop()[0] if found else first, run[-1]))
    return found


def is_gap(before: RunSecond, after: RunSecond) -> bool:
    """Whether workers stored nothing between two points."""
    return after.at_s - before.end_s >= GAP_SPANS * max(before.length_s, after.length_s)


def _runs(points: Sequence[RunSecond]) -> list[range]:
    """Ranges of indexes of consecutive points in one phase."""
    runs: list[range] = []
    for place, point in enumerate(points):
        before = points[place - 1] if place else None
        if before is not None and before.phase == point.phase and not is_gap(before, point):
            runs[-1] = range(runs[-1].start, place + 1)
        else:
            runs.append(range(place, place + 1))
    return runs


def spans(seconds: Sequence[RunSecond]) -> tuple[tuple[str, int, int], ...]:
    """(phase, from, to) in seconds since the start."""
    found: list[tuple[str, int, int]] = []
    for second in seconds:
        phase, end = second.phase or "", second.end_s
        if found and found[-1][0] == phase:
            found[-1] = (phase, found[-1][1], end)
        else:
            found.append((phase, second.at_s, end))
    return tuple(found)


def _row_number(start: datetime, second: WorkerSecond, last_row: int | None) -> int:
    middle_s = (second.ended_at - start).total_seconds() - second.seconds / 2
    if last_row is None:
        return max(floor(middle_s), 0)
    following = last_row + 1
    is_next = following - CLOCK_JITTER <= middle_s < following + 1 + CLOCK_JITTER
    return following if is_next else max(floor(middle_s), last_row)


def _begun_before(second: WorkerSecond, earlier: EarlierSamples) -> WorkerSecond:
    """The part of a second of the measurement that had begun in the warm-up, as a part of the warm-up."""
    return replace(
        second,
        phase=Phase.WARMUP.value,
        statements=earlier.statements,
        response=reduce(add, earlier.times.values(), EMPTY),
        cut_off=earlier.cut_off,
        lag=EMPTY,
        times=earlier.times,
        earlier=None,
    )


class _Row:
    """One row while workers are added to it. Histograms of single workers are not kept."""

    def __init__(self) -> None:
        self._last: dict[str, WorkerSecond] = {}  # the last second of each worker at the time of this row
        self._phases: dict[str, str | None] = {}  # of the workers that are counted
        self._tried: dict[str, tuple[int, float]] = {}  # by worker: (succeeded, seconds)
        self._partial = False
        self._statements: dict[str, Counts] = {}
        self._response, self._cut_off, self._lag = EMPTY, EMPTY, EMPTY
        self._earlier = NOTHING_EARLIER
        self._cpu: list[float | None] = []
        self._memory: list[float | None] = []
        self._logins: LoginCounts | None = None

    def add_rate(self, second: WorkerSecond, *, partial: bool) -> None:
        """Add the rate of a second whose time is that of this row."""
        succeeded, length_s = self._tried.get(second.worker_id, (0, 0.0))
        succeeded += second.counts.succeeded + (second.earlier or NOTHING_EARLIER).counts.succeeded
        self._tried[second.worker_id] = succeeded, length_s + second.seconds
        self._last[second.worker_id] = replace(second, response=EMPTY, cut_off=EMPTY, lag=EMPTY, times={}, earlier=None)
        self._partial |= partial

    def add(self, second: WorkerSecond) -> None:
        """Add a second whose counts belong to this row."""
        closed = second.phase == COOLDOWN  # the windows closed within this row, which keeps its phase
        if not closed or second.worker_id not in self._phases:
            self._phases[second.worker_id] = second.phase
        self._earlier += second.earlier or NOTHING_EARLIER
        for name, counts in second.statements.items():
            self._statements[name] = self._statements.get(name, Counts()) + counts
        self._response, self._lag = self._response + second.response, self._lag + second.lag
        self._cut_off += second.cut_off
        self._cpu.append(second.cpu_percent)
        self._memory.append(second.memory_percent)

    def add_logins(self, logins: LoginCounts) -> None:
        self._logins = logins if self._logins is None else self._logins + logins

    @property
    def counted_phase(self) -> str | None:
        return _most_frequent([*self._phases.values()])

    @property
    def phase(self) -> str | None:
        return self.counted_phase or _most_frequent([one.phase for one in self._last.values()])

    def second(self, number: int) -> RunSecond:
        last = self._last.values()
        rates = [succeeded / length_s if length_s > 0.0 else 0.0 for succeeded, length_s in self._tried.values()]
        return RunSecond(
            at_s=number,
            phase=self.phase,
            workers=len(self._last.keys() | self._phases.keys()),
            qps=None if self._partial or not rates else fsum(rates),
            statements=self._statements,
            response=self._response,
            cut_off=self._cut_off,
            lag=self._lag,
            earlier=self._earlier,
            executing=sum(one.executing for one in last),
            target=sum(one.target for one in last),
            cpu_percent=_highest(self._cpu),
            memory_percent=_highest(self._memory),
            logins=self._logins,
        )


def _joined(group: Sequence[RunSecond]) -> RunSecond:
    first, last = group[0], group[-1]
    rates = [second.qps for second in group if second.qps is not None]
    return RunSecond(
        at_s=first.at_s,
        length_s=last.end_s - first.at_s,
        phase=first.phase,
        workers=max(second.workers for second in group),
        qps=fsum(rates) / len(rates) if rates else None,
        statements=_sum(second.statements for second in group),
        response=reduce(add, (second.response for second in group), EMPTY),
        cut_off=reduce(add, (second.cut_off for second in group), EMPTY),
        lag=reduce(add, (second.lag for second in group), EMPTY),
        earlier=reduce(add, (second.earlier for second in group), NOTHING_EARLIER),
        executing=max(second.executing for second in group),
        target=last.target,
        cpu_percent=_highest(second.cpu_percent for second in group),
        memory_percent=_highest(second.memory_percent for second in group),
        logins=reduce(add, known) if (known := [one.logins for one in group if one.logins is not None]) else None,
    )


def _sum(parts: Iterable[Mapping[str, Counts]]) -> dict[str, Counts]:
    total: dict[str, Counts] = {}
    for part in parts:
        for name, counts in part.items():
            total[name] = total.get(name, Counts()) + counts
    return total


def _most_frequent(phases: Sequence[str | None]) -> str | None:
    """The phase of most workers with open windows. The result does not depend on their order."""
    known = sorted(phase for phase in phases if phase is not None)
    open_ones = [phase for phase in known if phase != COOLDOWN] or known
    return max(open_ones, key=open_ones.count) if open_ones else None


def _highest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _ms(times: Histogram, per_mille: int) -> float | None:
    found = quantile(per_mille, times)
    return None if found is None else found.value_ns / NS_PER_MS


class EventKind(StrEnum):
    """The kind of an event on the time axis; each kind is drawn differently."""

    START = "start"
    STOP = "stop"
    LEVEL = "level"  # a phase, a stage or a number of connections began
    HELD = "held"  # a step of a search was judged
    BROKEN = "broken"
    LIMITED = "limited"  # the client was the limit, so the step is no evidence about the server
    LOST = "lost"  # a worker
    REFUSED = "refused"  # a login
    RECONNECT = "reconnect"  # a connection was lost and opened again


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvent:
    """An event of the run."""

    at_s: float
    label: str  # a few characters, for charts
    text: str  # one sentence
    kind: EventKind = EventKind.LEVEL
    connections: int | None = None  # of all workers from then on; None: not changed
    ramp_s: float = 0.0  # until they are reached


@dataclass(frozen=True, slots=True, kw_only=True)
class WarehousePollPoint:
    """The state of the warehouse at one moment of the run."""

    at_s: float
    running: int | None
    queued: int | None
    started_clusters: int | None
    size: str | None
    kind: WarehouseKind = WarehouseKind.GEN1
    resumed_s: float | None = None  # when it was last resumed; None: not known


@dataclass(frozen=True, slots=True, kw_only=True)
class FindMaxStepResult:
    """A step of a search for the maximum: its measurements and its outcome."""

    number: int
    target: int
    succeeded: int
    failed: int
    qps: float | None
    latency_ms: Mapping[str, Any]  # as in summary.json
    error_rate: float | None
    queue_seen: bool
    outcome: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerHost:
    """The machine of a worker."""

    hostname: str
    version: str
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerWarning:
    """A warning or an error in the log of a worker."""

    moment: datetime  # naive UTC
    worker_id: str | None
    level: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """A finished run. Times are naive UTC, or seconds since `started`."""

    summary: Mapping[str, Any]  # summary.json
    template_id: str
    started: datetime | None  # None: it did not start
    ended: datetime | None
    enrichment_status: str | None
    config: str  # of loadgen.scenario.frozen; secrets are ${NAME}
    scenario: Scenario | None  # None: written by another version; only `config` can be shown
    seconds: tuple[RunSecond, ...] = ()
    span_s: int = 1  # seconds in each point of a chart
    point_times: PointTimes = field(default_factory=dict)  # response times by statement; empty: not stored
    merged: MergedWindows | None = None  # the windows of the summary; None: not available
    merged_missing: str | None = None  # why
    events: tuple[RunEvent, ...] = ()  # in the order of time
    polls: tuple[WarehousePollPoint, ...] = ()
    steps: tuple[FindMaxStepResult, ...] = ()
    machines: Mapping[str, WorkerHost] = field(default_factory=dict)  # by worker id
    logs: tuple[WorkerWarning, ...] = ()
    unreadable: tuple[str, ...] = ()  # unreadable rows of the run, with reasons

    def statement_names(self) -> list[str]:
        """Names of measured statements in the order of the scenario, then other names in alphabetical order."""
        measured = self.summary["statements"]
        known = [] if self.scenario is None else [one.name for one in self.scenario.workload.statements]
        return [name for name in known if name in measured] + sorted(set(measured) - set(known))
