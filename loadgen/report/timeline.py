"""A run second by second: the seconds of all workers put together, and what charts draw of them. Pure.

Workers harvest once a second, each at its own moment, a little early or late. A worker's next second goes into the next
row unless it is off by more than a quarter, so that a wobble makes neither a gap nor a doubled second.

In the second in which a worker's phase changes, only what belongs to the new phase is known, for an unknown part of the
second. Such a row has counts and times, but no rate; neither has the last one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import reduce
from itertools import groupby
from math import ceil, floor, fsum
from operator import add

from loadgen.metrics.histogram import EMPTY, Histogram
from loadgen.metrics.percentile import is_supported, quantile
from loadgen.model.counts import Counts
from loadgen.model.run import Phase
from loadgen.units import NS_PER_MS

CLOCK_JITTER = 0.25  # of a second
COOLDOWN = Phase.COOLDOWN.value
POINTS_MAX = 300  # of a line; longer runs have several seconds in each
GAP_SPANS = 3  # points that are missing before a line is interrupted: workers stored nothing there

# Response times by statement, of the points of a chart: (number of the point's span, phase) → statement → times.
PointTimes = Mapping[tuple[int, str | None], Mapping[str, Histogram]]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSecond:
    """One interval of one worker."""

    worker_id: str
    ended_at: datetime  # naive UTC
    seconds: float
    phase: str | None
    statements: Mapping[str, Counts] = field(default_factory=dict)  # what ended
    response: Histogram = EMPTY  # of samples that succeeded
    cut_off: Histogram = EMPTY  # of those that timed out or were cancelled: the time they took at least
    lag: Histogram = EMPTY
    times: Mapping[str, Histogram] = field(default_factory=dict)  # response by statement, as far as it was stored
    executing: int = 0
    target: int = 0
    cpu_percent: float | None = None
    memory_percent: float | None = None

    @property
    def counts(self) -> Counts:
        return reduce(add, self.statements.values(), Counts())


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSecond:
    """One row of a run, or several that follow one another: sums over workers."""

    at_s: int  # since the start of the run
    length_s: int = 1
    phase: str | None
    workers: int
    qps: float | None  # None: the second was measured in part only
    statements: Mapping[str, Counts]
    response: Histogram
    cut_off: Histogram = EMPTY
    lag: Histogram
    executing: int
    target: int
    cpu_percent: float | None = None  # of the busiest worker
    memory_percent: float | None = None

    @property
    def counts(self) -> Counts:
        return reduce(add, self.statements.values(), Counts())

    @property
    def end_s(self) -> int:
        return self.at_s + self.length_s

    @property
    def every_response(self) -> Histogram:
        return self.response + self.cut_off

    def response_ms(self, per_mille: int) -> float | None:
        return _ms(self.every_response, per_mille)

    def lag_ms(self, per_mille: int) -> float | None:
        return _ms(self.lag, per_mille)


class StatementTimes:
    """Response times by statement, summed up point by point: those of every second would need too much memory."""

    def __init__(self, span_s: int) -> None:
        self.span_s = span_s
        self._points: dict[tuple[int, str | None], dict[str, Histogram]] = {}

    def add(self, at_s: int, second: WorkerSecond) -> None:
        own = self._points.setdefault((at_s // self.span_s, second.phase), {})
        for name, times in second.times.items():
            own[name] = own.get(name, EMPTY) + times

    @property
    def points(self) -> PointTimes:
        return self._points


def span_for(length_s: float) -> int:
    """How many seconds one point of a chart has in a run of this length."""
    return max(ceil(length_s / POINTS_MAX), 1)


def merge_seconds(
    start: datetime, seconds: Iterable[WorkerSecond], times: StatementTimes | None = None
) -> tuple[RunSecond, ...]:
    """Rows in order of time, up to the last in which anything happened. `seconds` are in order for each worker; their
    times by statement go to `times`."""
    rows = SecondAggregator(start)
    for second in seconds:
        number = rows.add(second)
        if times is not None:
            times.add(number, second)
    merged = [rows.second(number) for number in rows.numbers]
    while merged and not merged[-1].executing and not merged[-1].counts.ended:
        merged.pop()  # the load was over, and only the processes went on
    if merged:
        merged[-1] = replace(merged[-1], qps=None)
    return tuple(merged)


class SecondAggregator:
    """Puts the seconds of workers into the rows of their run, one by one. Those of a worker come in order."""

    def __init__(self, start: datetime) -> None:
        self._start = start
        self._rows: dict[int, _Row] = {}
        self._before: dict[str, tuple[int, str | None]] = {}

    def add(self, second: WorkerSecond) -> int:
        """The number of its row."""
        last_row, last_phase = self._before.get(second.worker_id, (None, None))
        number = _row_number(self._start, second, last_row)
        if number == last_row and second.phase not in (last_phase, COOLDOWN):
            number += 1  # a row of two phases would count statements of the warm-up as measured
        self._before[second.worker_id] = number, second.phase
        self._rows.setdefault(number, _Row()).add(second, partial=last_row is None or last_phase != second.phase)
        return number

    @property
    def numbers(self) -> list[int]:
        return sorted(self._rows)

    def last(self, worker_id: str) -> int | None:
        """The newest row of a worker."""
        return self._before[worker_id][0] if worker_id in self._before else None

    def second(self, number: int) -> RunSecond:
        return self._rows[number].second(number)

    def forget(self, number: int) -> None:
        """Nothing will be added to this row any more."""
        self._rows.pop(number, None)


def thin(seconds: Sequence[RunSecond], span_s: int) -> tuple[RunSecond, ...]:
    """The points of a chart: the seconds of one span and phase are joined, their samples merged, so that percentiles
    stay true."""
    if span_s == 1:
        return tuple(seconds)
    groups = groupby(seconds, key=lambda second: (second.at_s // span_s, second.phase))
    return tuple(_joined(list(group)) for _, group in groups)


@dataclass(frozen=True, slots=True)
class Stretch:
    """Neighbouring points that have one value together."""

    first: int  # place of the point
    last: int
    value: float | None  # None: still too few samples


def percentile_line(
    points: Sequence[RunSecond], times: Sequence[Histogram], per_mille: int, reach_s: float
) -> tuple[Stretch, ...]:
    """A percentile over time, in milliseconds. `times` has the samples of each point. Where one point has too few of
    them, as many neighbours of its phase as it needs are taken together, up to `reach_s`. So is the point in which a
    phase begins: only statements that began and ended within it are known, and those are the short ones."""
    found: list[Stretch] = []
    for run in _runs(points):
        own: list[Stretch] = []
        first, samples = run[0], EMPTY
        for place in run:
            samples += times[place]
            enough = is_supported(per_mille, samples.count) and not (place == run[0] and points[place].qps is None)
            if enough or points[place].end_s - points[first].at_s >= reach_s:
                own.append(Stretch(first, place, _ms(samples, per_mille)))
                first, samples = place + 1, EMPTY
        if first <= run[-1]:  # what is left goes to the stretch before
            before = own.pop() if own else Stretch(first, first, None)
            joined = reduce(add, times[before.first : run[-1] + 1], EMPTY)
            own.append(Stretch(before.first, run[-1], _ms(joined, per_mille)))
        found += own
    return tuple(found)


def is_gap(before: RunSecond, after: RunSecond) -> bool:
    """Did workers store nothing between two points?"""
    return after.at_s - before.end_s >= GAP_SPANS * max(before.length_s, after.length_s)


def _runs(points: Sequence[RunSecond]) -> list[range]:
    """Places of points that follow one another in one phase."""
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


class _Row:
    """One second while it is summed up; no histogram of a worker is kept longer than that."""

    def __init__(self) -> None:
        self._last: dict[str, WorkerSecond] = {}
        self._tried: dict[str, tuple[int, float]] = {}  # by worker: (succeeded, seconds)
        self._partial = False
        self._statements: dict[str, Counts] = {}
        self._response, self._cut_off, self._lag = EMPTY, EMPTY, EMPTY
        self._cpu: list[float | None] = []
        self._memory: list[float | None] = []

    def add(self, second: WorkerSecond, *, partial: bool) -> None:
        succeeded, length_s = self._tried.get(second.worker_id, (0, 0.0))
        self._tried[second.worker_id] = succeeded + second.counts.succeeded, length_s + second.seconds
        before = self._last.get(second.worker_id)
        closed = second.phase == COOLDOWN  # in the middle of this row, which stays one of its phase
        phase = before.phase if before is not None and closed else second.phase
        self._last[second.worker_id] = replace(second, phase=phase, response=EMPTY, cut_off=EMPTY, lag=EMPTY, times={})
        self._partial |= partial
        for name, counts in second.statements.items():
            self._statements[name] = self._statements.get(name, Counts()) + counts
        self._response, self._lag = self._response + second.response, self._lag + second.lag
        self._cut_off += second.cut_off
        self._cpu.append(second.cpu_percent)
        self._memory.append(second.memory_percent)

    def second(self, number: int) -> RunSecond:
        last = self._last.values()
        rates = [succeeded / length_s if length_s > 0.0 else 0.0 for succeeded, length_s in self._tried.values()]
        return RunSecond(
            at_s=number,
            phase=_commonest([one.phase for one in last]),
            workers=len(self._last),
            qps=None if self._partial else fsum(rates),
            statements=self._statements,
            response=self._response,
            cut_off=self._cut_off,
            lag=self._lag,
            executing=sum(one.executing for one in last),
            target=sum(one.target for one in last),
            cpu_percent=_highest(self._cpu),
            memory_percent=_highest(self._memory),
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
        executing=max(second.executing for second in group),
        target=last.target,
        cpu_percent=_highest(second.cpu_percent for second in group),
        memory_percent=_highest(second.memory_percent for second in group),
    )


def _sum(parts: Iterable[Mapping[str, Counts]]) -> dict[str, Counts]:
    total: dict[str, Counts] = {}
    for part in parts:
        for name, counts in part.items():
            total[name] = total.get(name, Counts()) + counts
    return total


def _commonest(phases: Sequence[str | None]) -> str | None:
    """What most workers are in that have not closed their windows; the same whatever order they come in."""
    known = sorted(phase for phase in phases if phase is not None)
    open_ones = [phase for phase in known if phase != COOLDOWN] or known
    return max(open_ones, key=open_ones.count) if open_ones else None


def _highest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _ms(times: Histogram, per_mille: int) -> float | None:
    found = quantile(per_mille, times)
    return None if found is None else found.value_ns / NS_PER_MS
