"""A run second by second: the seconds of all workers put together. Pure.

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
from math import floor, fsum
from operator import add

from loadgen.metrics.histogram import EMPTY, Histogram
from loadgen.metrics.percentile import quantile
from loadgen.model.counts import Counts
from loadgen.units import NS_PER_MS

WOBBLE = 0.25  # of a second


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSecond:
    """One interval of one worker."""

    worker_id: str
    ended_at: datetime  # naive UTC
    seconds: float
    phase: str | None
    statements: Mapping[str, Counts] = field(default_factory=dict)  # what ended
    response: Histogram = EMPTY  # of successful samples
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
class Second:
    """One row of a run, or several that follow one another: sums over workers."""

    at_s: int  # since the start of the run
    length_s: int = 1
    phase: str | None
    workers: int
    qps: float | None  # None: the second was measured in part only
    statements: Mapping[str, Counts]
    response: Histogram
    lag: Histogram
    executing: int
    target: int
    cpu_percent: float | None = None  # of the busiest worker
    memory_percent: float | None = None

    @property
    def counts(self) -> Counts:
        return reduce(add, self.statements.values(), Counts())

    def response_ms(self, per_mille: int) -> float | None:
        return _ms(self.response, per_mille)

    def lag_ms(self, per_mille: int) -> float | None:
        return _ms(self.lag, per_mille)


def merge_seconds(start: datetime, seconds: Iterable[WorkerSecond]) -> tuple[Second, ...]:
    """Rows in order of time, up to the last in which anything happened. `seconds` are in order for each worker."""
    rows = Rows(start)
    for second in seconds:
        rows.add(second)
    merged = [rows.second(number) for number in rows.numbers]
    while merged and not merged[-1].executing and not merged[-1].counts.ended:
        merged.pop()  # the load was over, and only the processes went on
    if merged:
        merged[-1] = replace(merged[-1], qps=None)
    return tuple(merged)


class Rows:
    """Puts the seconds of workers into the rows of their run, one by one. Those of a worker come in order."""

    def __init__(self, start: datetime) -> None:
        self._start = start
        self._rows: dict[int, _Row] = {}
        self._before: dict[str, tuple[int, str | None]] = {}

    def add(self, second: WorkerSecond) -> int:
        """The number of its row."""
        last_row, last_phase = self._before.get(second.worker_id, (None, None))
        number = _row_number(self._start, second, last_row)
        self._before[second.worker_id] = number, second.phase
        self._rows.setdefault(number, _Row()).add(second, partial=last_row is None or last_phase != second.phase)
        return number

    @property
    def numbers(self) -> list[int]:
        return sorted(self._rows)

    def last(self, worker_id: str) -> int | None:
        """The newest row of a worker."""
        return self._before[worker_id][0] if worker_id in self._before else None

    def second(self, number: int) -> Second:
        return self._rows[number].second(number)

    def forget(self, number: int) -> None:
        """Nothing will be added to this row any more."""
        self._rows.pop(number, None)


def thin(seconds: Sequence[Second], points_max: int) -> tuple[Second, ...]:
    """At most about so many: neighbours of one phase are joined, their samples merged, so percentiles stay true."""
    if len(seconds) <= points_max:
        return tuple(seconds)
    span = -(-len(seconds) // points_max)
    joined: list[list[Second]] = []
    for second in seconds:
        group = joined[-1] if joined else None
        if group and group[0].phase == second.phase and second.at_s - group[0].at_s < span:
            group.append(second)
        else:
            joined.append([second])
    return tuple(map(_joined, joined))


def spans(seconds: Sequence[Second]) -> tuple[tuple[str, int, int], ...]:
    """(phase, from, to) in seconds since the start."""
    found: list[tuple[str, int, int]] = []
    for second in seconds:
        phase, end = second.phase or "", second.at_s + second.length_s
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
    is_next = following - WOBBLE <= middle_s < following + 1 + WOBBLE
    return following if is_next else max(floor(middle_s), last_row)


class _Row:
    """One second while it is summed up; no histogram of a worker is kept longer than that."""

    def __init__(self) -> None:
        self._last: dict[str, WorkerSecond] = {}
        self._tried: dict[str, tuple[int, float]] = {}  # by worker: succeeded, in so many seconds
        self._partial = False
        self._statements: dict[str, Counts] = {}
        self._response, self._lag = EMPTY, EMPTY
        self._cpu: list[float | None] = []
        self._memory: list[float | None] = []

    def add(self, second: WorkerSecond, *, partial: bool) -> None:
        succeeded, length_s = self._tried.get(second.worker_id, (0, 0.0))
        self._tried[second.worker_id] = succeeded + second.counts.succeeded, length_s + second.seconds
        self._last[second.worker_id] = replace(second, response=EMPTY, lag=EMPTY, times={})
        self._partial |= partial
        for name, counts in second.statements.items():
            self._statements[name] = self._statements.get(name, Counts()) + counts
        self._response, self._lag = self._response + second.response, self._lag + second.lag
        self._cpu.append(second.cpu_percent)
        self._memory.append(second.memory_percent)

    def second(self, number: int) -> Second:
        last = self._last.values()
        rates = [succeeded / length_s if length_s > 0.0 else 0.0 for succeeded, length_s in self._tried.values()]
        return Second(
            at_s=number,
            phase=_commonest([one.phase for one in last]),
            workers=len(self._last),
            qps=None if self._partial else fsum(rates),
            statements=self._statements,
            response=self._response,
            lag=self._lag,
            executing=sum(one.executing for one in last),
            target=sum(one.target for one in last),
            cpu_percent=_highest(self._cpu),
            memory_percent=_highest(self._memory),
        )


def _joined(group: Sequence[Second]) -> Second:
    first, last = group[0], group[-1]
    rates = [second.qps for second in group if second.qps is not None]
    return Second(
        at_s=first.at_s,
        length_s=last.at_s + last.length_s - first.at_s,
        phase=first.phase,
        workers=max(second.workers for second in group),
        qps=fsum(rates) / len(rates) if rates else None,
        statements=_sum(second.statements for second in group),
        response=reduce(add, (second.response for second in group), EMPTY),
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
    """What most workers are in; the same whatever order they come in."""
    known = sorted(phase for phase in phases if phase is not None)
    return max(known, key=known.count) if known else None


def _highest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _ms(times: Histogram, per_mille: int) -> float | None:
    found = quantile(per_mille, times)
    return None if found is None else found.value_ns / NS_PER_MS
