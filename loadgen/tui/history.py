"""The last minutes of a run, second by second, and its newest window. Pure.

Workers measure and store seconds: heartbeats contain the newest, the tables contain the others. Every view adds the
same seconds to the same rows, numbered from the start of the run. So the live view of `loadgen run` and a view that is
opened later on another machine show the same numbers. A row is shown after all active workers have reported it; a
second without data is a gap, and is not interpolated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from datetime import datetime
from functools import reduce
from itertools import chain, takewhile
from operator import add

from loadgen.metrics.histogram import EMPTY, Histogram
from loadgen.metrics.live_metrics import SECONDS_COARSENESS, LiveSecond
from loadgen.metrics.percentile import Quantile, maximum, quantile
from loadgen.metrics.tally import ErrorKey, ErrorTally, merged
from loadgen.metrics.window import WindowResult
from loadgen.model.run import PHASES, Phase
from loadgen.report.records import NOTHING_EARLIER, SecondAggregator, WorkerSecond
from loadgen.results.run_snapshot import RunSnapshot, WorkerDisplayState
from loadgen.units import NS_PER_MS
from loadgen.values import dataclass

KEPT_S = 180
RECENT_S = 10  # span of current percentiles, because one second has too few samples
OPEN_S = 30  # time during which a row may change, because workers may report late
EDGE_S = 2  # rows at the beginning of a phase that may be missing, because workers begin at different moments

_QUIET = (WorkerDisplayState.MISSING, WorkerDisplayState.STARTING, WorkerDisplayState.WAITING, WorkerDisplayState.STALE)

Scope = tuple[int, int]  # phase and step, in the order of time


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementSecond:
    name: str
    qps: float
    p95_ms: float | None  # joined with earlier seconds if it has too few samples


@dataclass(frozen=True, slots=True, kw_only=True)
class HistorySecond:
    """One second of the run, of all workers. None: not known, or too few samples."""

    at_s: int  # since the start of the run
    phase: Phase
    qps: float | None
    p50_ms: float | None
    p95_ms: float | None  # joined with earlier seconds if it has too few samples
    p99_ms: float | None
    statements: tuple[StatementSecond, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentFigures:
    """Figures of the last seconds."""

    qps: float | None
    p50: Quantile | None
    p95: Quantile | None
    p99: Quantile | None
    most: Quantile | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakThroughput:
    """The highest throughput in a second of the phase. `at_least`: some seconds of the phase are unknown."""

    qps: float
    at_least: bool


@dataclass(slots=True)
class LiveHistory:
    """Kept seconds and windows of one run. Call note() with every snapshot, in order."""

    _rows: SecondAggregator | None = None  # from the start of the run on
    _reported: dict[str, datetime] = field(default_factory=dict)  # by worker: the end of the newest second in a row
    _seconds: dict[int, HistorySecond] = field(default_factory=dict)  # rows that all workers have reported
    _times: dict[int, dict[str, Histogram]] = field(default_factory=dict)  # by row and statement, while it may change
    # Response times, lower bounds, and times of statements of the phase before.
    _responses: dict[int, tuple[Histogram, Histogram, Histogram]] = field(default_factory=dict)
    _through: int = -1  # the newest row that all workers have reported
    _forgotten: int = -1  # the newest row that is no longer kept
    _forgotten_peaks: dict[Phase, float] = field(default_factory=dict)
    _unknown: int = -1  # the newest row that was not known when it was forgotten
    _measures_s: float = 0.0
    _errors: dict[tuple[str, int], Mapping[ErrorKey, ErrorTally]] = field(default_factory=dict)
    _scope: Scope | None = None
    _windows: dict[tuple[str, int], WindowResult] = field(default_factory=dict)  # of the scope

    def note(self, snapshot: RunSnapshot) -> None:
        self._measures_s = snapshot.measures_s
        for worker in snapshot.workers:
            for window in worker.live.windows if worker.live is not None else ():
                self._remember(worker.worker_id, window)
        if snapshot.run.start_time is None:
            return
        if self._rows is None:
            self._rows = SecondAggregator(snapshot.run.start_time)
        changed = self._put(self._rows, snapshot)
        before, self._through = self._through, max(self._through, _known_of_all(self._rows, snapshot))
        changed |= {number for number in self._rows.numbers if before < number <= self._through}
        reached = {
            later for number in changed for later in range(number, number + RECENT_S)
        }  # by a percentile that includes the changed rows
        for number in self._rows.numbers:
            if number in reached and number <= self._through:
                self._seconds[number] = self._second(self._rows, number)
        self._forget(self._rows)

    @property
    def seconds(self) -> tuple[HistorySecond, ...]:
        """The kept seconds in order, at most KEPT_S."""
        return tuple(second for _, second in sorted(self._seconds.items()))

    @property
    def newest_windows(self) -> list[list[WindowResult]]:
        """The windows of the newest phase or step, by worker, even after they were stored."""
        workers: dict[str, list[WindowResult]] = {}
        for (worker_id, _), window in self._windows.items():
            workers.setdefault(worker_id, []).append(window)
        return list(workers.values())

    @property
    def errors(self) -> Mapping[ErrorKey, ErrorTally]:
        """The errors in all windows of this phase that were seen."""
        found: Mapping[ErrorKey, ErrorTally] = {}
        for errors in self._errors.values():
            found = merged(found, errors)
        return found

    @property
    def recent(self) -> RecentFigures | None:
        """Figures of the last seconds of this phase; after the load, of the last phase, without a rate. None: no data
        yet."""
        newest = self._newest
        if newest is None:
            return None
        numbers = range(newest.at_s - RECENT_S + 1, newest.at_s + 1)
        same = [number for number in numbers if number in self._seconds and self._seconds[number].phase is newest.phase]
        both = [self._responses.get(number, (EMPTY, EMPTY))[:2] for number in same]
        times = tuple(reduce(add, one, EMPTY) for one in zip(*both, strict=True))
        rates = [self._seconds[number].qps for number in same] if newest.at_s == max(self._seconds) else []
        return RecentFigures(
            qps=next((qps for qps in reversed(rates) if qps is not None), None),
            p50=quantile(500, *times),
            p95=quantile(950, *times),
            p99=quantile(990, *times),
            most=maximum(*times),
        )

    @property
    def peak(self) -> PeakThroughput | None:
        """The peak of this phase; None: no data yet."""
        newest = self._newest
        own = [] if newest is None else [one.qps for one in self.seconds if one.phase is newest.phase]
        own += [] if newest is None else [self._forgotten_peaks.get(newest.phase)]
        known = [qps for qps in own if qps is not None]
        if newest is None or not known:
            return None
        begun_s = self._measures_s if newest.phase is Phase.MEASUREMENT else 0.0
        first = math.ceil(begun_s) + EDGE_S
        needed = range(max(first, self._forgotten + 1), newest.at_s + 1)
        has_gap = self._unknown >= first or any(number not in self._seconds for number in needed)
        return PeakThroughput(qps=max(known), at_least=has_gap)

    @property
    def _newest(self) -> HistorySecond | None:
        """The phase and step of the load; a cool-down begins no new scope."""
        return next((second for second in reversed(self.seconds) if second.phase is not Phase.COOLDOWN), None)

    # --- one snapshot ------------------------------------------------------------------------------------------------

    def _put(self, rows: SecondAggregator, snapshot: RunSnapshot) -> set[int]:
        """Add seconds to their rows: stored ones, then newer ones from heartbeats. Returns the changed rows."""
        reported = [(second.worker_id, second) for second in snapshot.stored]
        for worker in snapshot.workers:
            seconds = worker.live.seconds if worker.live is not None else ()
            reported += [(worker.worker_id, _of_beat(worker.worker_id, second)) for second in seconds]
        changed = set()
        for worker_id, second in reported:
            if worker_id in self._reported and second.ended_at <= self._reported[worker_id]:
                continue
            self._reported[worker_id] = second.ended_at
            number = rows.add(second)
            changed |= {number, rows.last(worker_id) or 0}
            times = self._times.setdefault(number, {})
            for name, histogram in chain(second.times.items(), (second.earlier or NOTHING_EARLIER).times.items()):
                times[name] = times.get(name, EMPTY) + histogram
        return changed

    def _second(self, rows: SecondAggregator, number: int) -> HistorySecond:
        row = rows.second(number)
        self._responses[number] = row.response, row.cut_off, row.earlier.response
        counts = {name: counts.succeeded for name, counts in row.every_statement.items()}
        total = sum(counts.values())
        share = 0.0 if row.qps is None or not total else row.qps / total
        phase = Phase.MEASUREMENT if row.phase is None else Phase(row.phase)
        return HistorySecond(
            at_s=number,
            phase=phase,
            qps=row.qps,
            p50_ms=row.response_ms(500),
            p95_ms=self._p95_ms(number, phase, lambda at: reduce(add, self._responses[at])),
            p99_ms=row.response_ms(990),
            statements=tuple(
                StatementSecond(
                    name=name, qps=counts.get(name, 0) * share, p95_ms=self._statement_p95_ms(number, phase, name)
                )
                for name in self._recent_statements(number, phase, counts)
            ),
        )

    def _recent_statements(self, number: int, phase: Phase, names: Iterable[str]) -> list[str]:
        """The statements of a second, and those of the seconds that its percentiles may include."""
        earlier = range(number - 1, number - RECENT_S, -1)
        same = takewhile(lambda at: at in self._seconds and self._seconds[at].phase is phase, earlier)
        return list(dict.fromkeys(chain(names, *(self._times.get(at, ()) for at in same))))

    def _statement_p95_ms(self, number: int, phase: Phase, name: str) -> float | None:
        return self._p95_ms(number, phase, lambda at: self._times.get(at, {}).get(name, EMPTY))

    def _p95_ms(self, number: int, phase: Phase, times_of: Callable[[int], Histogram]) -> float | None:
        """A percentile of a second; with too few samples, of this and earlier seconds of its phase."""
        times = EMPTY
        for at in range(number, number - RECENT_S, -1):
            if at not in self._responses or (at < number and self._seconds[at].phase is not phase):
                return None
            times += times_of(at)
            if (found := _ms(times, 950)) is not None:
                return found
        return None

    def _forget(self, rows: SecondAggregator) -> None:
        for number in [number for number in rows.numbers if number < self._through - OPEN_S]:
            rows.forget(number)
            self._times.pop(number, None)
            self._responses.pop(number, None)
        forgotten, self._forgotten = self._forgotten, max(self._forgotten, self._through - KEPT_S)
        for number in range(forgotten + 1, self._forgotten + 1):
            second = self._seconds.pop(number, None)
            if second is None:
                self._unknown = number
            elif second.qps is not None:
                before = self._forgotten_peaks.get(second.phase, 0.0)
                self._forgotten_peaks[second.phase] = max(before, second.qps)

    def _remember(self, worker_id: str, window: WindowResult) -> None:
        scope = (PHASES.index(window.phase), window.step_id or 0)
        if self._scope is None or scope > self._scope:
            if self._scope is not None and scope[0] > self._scope[0]:
                self._errors.clear()  # errors of the warm-up do not count for the measurement
            self._scope = scope
            self._windows.clear()
        if scope == self._scope:
            self._windows[worker_id, window.window_id] = window
        if scope[0] == self._scope[0] and window.tally.errors:
            self._errors[worker_id, window.window_id] = window.tally.errors


def _known_of_all(rows: SecondAggregator, snapshot: RunSnapshot) -> int:
    """The newest row that all active workers have reported; without active workers, the newest row."""
    working = [
        worker.worker_id for worker in snapshot.workers if not worker.state.is_over and worker.state not in _QUIET
    ]
    last_rows = [rows.last(worker_id) for worker_id in working]
    if not last_rows:
        return max(rows.numbers, default=-1)
    return min(-1 if number is None else number for number in last_rows)


def _of_beat(worker_id: str, second: LiveSecond) -> WorkerSecond:
    return WorkerSecond(
        worker_id=worker_id,
        ended_at=second.ended_at,
        seconds=second.seconds,
        phase=second.phase.value,
        statements=second.statements,
        response=reduce(add, second.times.values(), EMPTY),
        cut_off=second.cut_off,
        times=second.times,
        earlier=second.earlier,
        executing=second.executing,
    )


def coarsen_second(second: WorkerSecond) -> WorkerSecond:
    """A stored second in the resolution of heartbeats."""
    return WorkerSecond(
        worker_id=second.worker_id,
        ended_at=second.ended_at,
        seconds=second.seconds,
        phase=second.phase,
        statements=second.statements,
        response=second.response.coarse(SECONDS_COARSENESS),
        cut_off=second.cut_off.coarse(SECONDS_COARSENESS),
        times={name: times.coarse(SECONDS_COARSENESS) for name, times in second.times.items()},
        earlier=None if second.earlier is None else second.earlier.coarse(SECONDS_COARSENESS),
        executing=second.executing,
    )


def _ms(times: Histogram, per_mille: int) -> float | None:
    found = quantile(per_mille, times)
    return None if found is None else found.value_ns / NS_PER_MS


def least_seconds(windows: Sequence[Sequence[WindowResult]]) -> float:
    """The shortest measured time of all workers."""
    return min((math.fsum(window.seconds for window in own) for own in windows), default=0.0)
