"""Adds up the measurements of all workers, from tick to tick.

Heartbeats carry a window until it is stored. The aggregator keeps it, so that all stages of a run are available.
Heartbeats also carry seconds, by which thresholds over a span are judged.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from loadgen.control.session import ControlSession
from loadgen.control.tables import run_measurements
from loadgen.control.tables.run_measurements import MetricsSnapshot
from loadgen.control.tables.run_status import ConnectionTarget, RunRollup
from loadgen.errors import LoadgenError
from loadgen.metrics.interval import ThresholdSecond, stored_judged, threshold_subjects
from loadgen.metrics.recorder import WindowState
from loadgen.metrics.tally import StatementTally, Tally
from loadgen.metrics.window import ALL_STATEMENTS, MergedWindows, WindowResult, WindowRow, merge
from loadgen.model.run import Phase
from loadgen.results.run_snapshot import WorkerHealth, WorkerSnapshot
from loadgen.rules.client_health import ClientHealthByScope
from loadgen.scenario.model import Threshold
from loadgen.snowflake.session import RetryPolicy
from loadgen.values import dataclass
from orchestrator.run_result import MeasuredWindows, client_health

BACKFILL_PERIOD_S = 5.0  # snapshots are stored every few seconds
CLOCK_SKEW_MAX_S = 60.0  # by which the clocks of workers and server may differ
DRAINED_KEPT_S = 300  # statements of the drain that began longer before its start count in the oldest kept second
UNREPORTED_MAX_S = 0.5  # of the seconds of a worker; less than one of them
_TOUCHING_S = 0.02  # the largest gap between two successive intervals of a worker


@dataclass(frozen=True, slots=True)
class _Sum:
    """One second of the run: its mean length over the workers, and the statements that ended in it."""

    seconds: float
    tallies: dict[str, StatementTally]


class RunSeconds:
    """Seconds of the run: add() those that workers report, close() complete ones, span() merges closed ones.

    Belongs to one thread.
    """

    def __init__(self, thresholds: Iterable[Threshold]) -> None:
        sliding = [one for one in thresholds if one.window_s is not None]
        self.subjects = threshold_subjects(sliding)
        self._kept = math.ceil(max((one.window_s or 0.0 for one in sliding), default=0.0))
        self._reported: dict[str, dict[float, ThresholdSecond]] = {}  # not closed yet; by worker and end
        self._covered_s: dict[str, float] = {}  # by worker: the end of its seconds without a gap
        self._last_s: dict[str, float] = {}  # by worker: the end of its newest second
        self._closed: dict[int, _Sum] = {}  # by number, without gaps
        self._drained: dict[tuple[str, float], ThresholdSecond] = {}  # by worker and end
        self._late: dict[tuple[str, float], ThresholdSecond] = {}  # reported after they were closed; by worker and end
        self._judged_s: dict[str, float] = {}  # by worker: the length of its seconds that are closed
        self._judged_until_s: dict[str, float] = {}  # by worker: the end of its newest second that is closed
        self.closed = 0  # the number of the newest closed second

    def note(self, workers: Sequence[WorkerSnapshot]) -> None:
        """Add the seconds in heartbeats. Heartbeats have them only if a threshold is judged over a span."""
        for worker in workers if self.subjects else ():
            for second in () if worker.live is None else worker.live.seconds:
                if second.judged is not None:
                    self.add(worker.worker_id, second.judged)

    def add(self, worker_id: str, second: ThresholdSecond) -> None:
        """Add a second of a worker. Safe to repeat."""
        if second.drained:
            self._drained[worker_id, second.until_s] = second
        if not second.seconds:
            return
        if second.number > self.closed:
            self._reported.setdefault(worker_id, {})[second.until_s] = second
        elif second.until_s > self._judged_until_s.get(worker_id, 0.0):
            self._late[worker_id, second.until_s] = second
        self._last_s[worker_id] = max(self._last_s.get(worker_id, 0.0), second.until_s)
        self._follow(worker_id)

    def add_stored(self, rows: Iterable[MetricsSnapshot]) -> None:
        """Add the seconds of snapshots; unreadable rows are left out. A worker stores its snapshots in order, so a gap
        before a stored snapshot will not be filled."""
        stored_s: dict[str, float] = {}
        for row in rows:
            try:
                second = stored_judged(row.custom_metrics)
            except LoadgenError:
                continue
            if second is None:
                continue
            self.add(row.worker_id, second)
            if second.seconds:
                stored_s[row.worker_id] = max(stored_s.get(row.worker_id, 0.0), second.until_s)
        for worker_id, until_s in stored_s.items():
            self._covered_s[worker_id] = max(self._covered_s[worker_id], until_s)
            self._follow(worker_id)

    def end(self, workers: Iterable[str]) -> None:
        """These workers have ended, and all their snapshots were added: what is missing will not be reported."""
        for worker_id in workers:
            self._covered_s[worker_id] = max(self._covered_s.get(worker_id, 0.0), self._last_s.get(worker_id, 0.0))

    def missing_since_s(self, workers: Collection[str]) -> float | None:
        """When the first gap in the reported seconds of these workers begins. None: there is no gap."""
        gaps = [
            covered_s
            for worker_id in workers
            if (covered_s := self._covered_s.get(worker_id, 0.0)) + _TOUCHING_S < self._last_s.get(worker_id, 0.0)
        ]
        return min(gaps, default=None)

    def complete(self, waited: Collection[str], ended: Collection[str] = ()) -> int:
        """The newest second that all of these workers have reported. Those that have `ended` report no more seconds,
        but the snapshots may fill their gaps, until end()."""
        behind = [worker_id for worker_id in ended if self.missing_since_s([worker_id]) is not None]
        covered = [self._covered_s.get(worker_id, 0.0) for worker_id in (*waited, *behind)]
        # Rounded down: a closed second takes no more seconds, and a late interval may end in the middle of one.
        return min((math.floor(covered_s + _TOUCHING_S) for covered_s in covered), default=self.reported)

    @property
    def reported(self) -> int:
        """The newest second that any worker has reported."""
        return _whole(max(self._last_s.values(), default=0.0))

    def unreported(self, measured_s: Mapping[str, float]) -> str:
        """The worker that did not report a part of its measurement; empty: all reported everything but a moment."""
        for worker_id, length_s in measured_s.items():
            missing_s = length_s - self._judged_s.get(worker_id, 0.0)
            if missing_s > UNREPORTED_MAX_S:
                return f"{worker_id} did not report {missing_s:.1f} of its {length_s:.1f} s"
        return ""

    def close(self, number: int) -> None:
        """Add up the next second. Seconds that are reported later are not added to it."""
        seconds = [second for own in self._reported.values() for second in own.values() if second.number <= number]
        present = sum(_whole(last_s) >= number for last_s in self._last_s.values())
        tallies = {name: StatementTally() for name in self.subjects}
        for second in seconds:
            for name in self.subjects & second.tallies.keys():
                tallies[name] += second.tallies[name]
        length_s = math.fsum(second.seconds for second in seconds)
        self._closed[number] = _Sum(length_s / present if present else 0.0, tallies)
        self._closed.pop(number - self._kept - DRAINED_KEPT_S, None)
        self.closed = number
        for worker_id, own in self._reported.items():
            known = [second for second in own.values() if second.number <= number]
            self._count(worker_id, known)
            self._reported[worker_id] = {end: second for end, second in own.items() if second.number > number}

    def _count(self, worker_id: str, closed: Sequence[ThresholdSecond]) -> None:
        ends_s = (second.until_s for second in closed)
        self._judged_until_s[worker_id] = max(ends_s, default=self._judged_until_s.get(worker_id, 0.0))
        known_s = math.fsum(second.seconds for second in closed)
        self._judged_s[worker_id] = self._judged_s.get(worker_id, 0.0) + known_s

    def settle(self) -> int | None:
        """After the drain, once: add the statements that ended in it to the seconds in which they began, and the last
        moment of the measurement to its second, which may have been closed before. Returns the first second that
        changes; None: none changes."""
        changed = []
        for (worker_id, _), late in self._late.items():
            if late.number in self._closed:
                changed.append(self._amend(late.number, late.tallies, late.seconds / len(self._last_s)))
                self._count(worker_id, [late])
        for second in self._drained.values():
            changed += [self._amend(number, tallies) for number, tallies in second.drained.items() if self._closed]
        self._late.clear()
        self._drained.clear()
        return min(changed, default=None)

    def _amend(self, started: int, tallies: Mapping[str, StatementTally], seconds: float = 0.0) -> int:
        """Add to a closed second, or to the oldest one that is kept; returns its number."""
        number = min(max(started, min(self._closed)), self.closed)
        known = self._closed[number]
        added = {name: tally + tallies.get(name, StatementTally()) for name, tally in known.tallies.items()}
        self._closed[number] = _Sum(known.seconds + seconds, added)
        return number

    def span(self, window_s: float, statement: str | None, *, until: int | None = None) -> MergedWindows | None:
        """The measurement of the `window_s` seconds up to `until` (default: the newest closed second). None: not all of
        them were measured, or are kept."""
        length, until = math.ceil(window_s), self.closed if until is None else until
        numbers = range(until - length + 1, until + 1)
        if not all(number in self._closed for number in numbers):
            return None
        sums = [self._closed[number] for number in numbers]
        name, seconds = statement or ALL_STATEMENTS, math.fsum(one.seconds for one in sums)
        tally = sum((one.tallies[name] for one in sums), StatementTally())
        qps = tally.ended.succeeded / seconds if seconds > 0.0 else 0.0
        return MergedWindows(
            seconds=seconds,
            counts=tally.ended,
            tally=Tally(statements={name: tally}),
            qps=qps,
            statement_qps={name: qps},
        )

    def _follow(self, worker_id: str) -> None:
        covered_s = self._covered_s.get(worker_id, 0.0)
        for second in sorted(self._reported.get(worker_id, {}).values(), key=lambda one: one.until_s):
            if second.from_s <= covered_s + _TOUCHING_S:
                covered_s = max(covered_s, second.until_s)
        self._covered_s[worker_id] = covered_s


class SnapshotBackfill:
    """Reads seconds from the stored snapshots that are missing in the heartbeats."""

    def __init__(self, session: ControlSession, run_id: str, seconds: RunSeconds) -> None:
        self._session, self._run_id, self._seconds = session, run_id, seconds
        self._read_s = -BACKFILL_PERIOD_S

    def fill(self, workers: Sequence[WorkerSnapshot], *, now_s: float, measured_s: float) -> None:
        """During the run: read the newest snapshots, at most every BACKFILL_PERIOD_S, if a worker has a gap. Workers
        store their snapshots before they end, so the gaps that are left in those that have ended stay."""
        working = [worker.worker_id for worker in workers if worker.health is not WorkerHealth.DEAD]
        since_s = self._seconds.missing_since_s(working)
        if since_s is not None and now_s >= self._read_s + BACKFILL_PERIOD_S:
            self._read_s = now_s
            within_s = round(max(0.0, measured_s - since_s) + CLOCK_SKEW_MAX_S)
            self._seconds.add_stored(run_measurements.newest_snapshots(self._session, self._run_id, within_s))
            self._seconds.end(worker.worker_id for worker in workers if worker.is_over)

    def fill_all(self, workers: Sequence[WorkerSnapshot], retries: RetryPolicy) -> None:
        """After the run: read all snapshots. The last heartbeat has only the last seconds of the drain."""
        seconds = self._seconds
        seconds.note(workers)
        if seconds.subjects:
            seconds.add_stored(retries.call(lambda: run_measurements.read_snapshots(self._session, self._run_id)))


def _whole(seconds: float) -> int:
    return math.floor(seconds + 0.5)


class RunAggregator:
    """The windows of all workers, merged. note() is called in every tick of the measurement. Belongs to one thread."""

    def __init__(self, thresholds: Iterable[Threshold], stages: Mapping[str, int] | None = None) -> None:
        """`stages`: the stages that thresholds refer to, with the numbers of their windows."""
        self._stages = dict(stages or {})
        self._windows: dict[str, dict[int, WindowResult]] = {}
        self.seconds = RunSeconds(thresholds)
        self.merged: MergedWindows = merge([])

    def remember(self, worker_id: str, windows: Iterable[WindowResult]) -> None:
        """Keep the windows of a worker. A later report of a window replaces an earlier one."""
        own = self._windows.setdefault(worker_id, {})
        own.update((window.window_id, window) for window in windows if window.phase is Phase.MEASUREMENT)

    def remember_stored(self, rows: Iterable[WindowRow]) -> None:
        """Keep stored windows. Unreadable rows are left out: the result of the run reports them as gaps."""
        for row in rows:
            with suppress(LoadgenError):
                self.remember(row.worker_id, [row.result()])

    def note(self, workers: Sequence[WorkerSnapshot]) -> None:
        self.seconds.note(workers)
        for worker in workers:
            if worker.live is not None:
                self.remember(worker.worker_id, worker.live.windows)
            if worker.is_over:
                own = self._windows.get(worker.worker_id, {})
                own.update((number, replace(window, state=WindowState.CLOSED)) for number, window in own.items())
        stages = {name: merge(self.step(number), live=True) for name, number in self._stages.items()}
        whole = merge([list(own.values()) for own in self._windows.values()], live=True)
        self.merged = replace(whole, stages=stages)

    def measured_s(self, worker_id: str, subject: str | None = None) -> float:
        """How long a worker has measured: in the run, or in the stage that is the subject of a threshold."""
        windows, stage = self._windows.get(worker_id, {}).values(), self._stages.get(subject or "")
        return math.fsum(window.seconds for window in windows if stage in (None, window.step_id))

    @property
    def client(self) -> ClientHealthByScope:
        """The health of the workers so far."""
        windows = {worker_id: tuple(own.values()) for worker_id, own in self._windows.items()}
        return client_health(MeasuredWindows(windows=windows, gaps=()), self._stages)

    def step(self, step_id: int) -> list[list[WindowResult]]:
        """The windows of one step, by worker."""
        return [[window for window in own.values() if window.step_id == step_id] for own in self._windows.values()]


def roll_up(
    workers: Sequence[WorkerSnapshot],
    *,
    targets: Mapping[str, ConnectionTarget],
    next_sequence_id: int,
    find_max_state: str | None,
) -> RunRollup:
    """The figures of RUN_STATUS, except the throughput."""
    lives = [worker.live for worker in workers if worker.live is not None]
    healths = [worker.health for worker in workers]
    return RunRollup(
        workers_registered=sum(health is not WorkerHealth.MISSING for health in healths),
        workers_active=sum(health in (WorkerHealth.ALIVE, WorkerHealth.STALE) for health in healths),
        workers_completed=sum(health is WorkerHealth.DONE for health in healths),
        total_ops=sum(live.measured.queries for live in lives),
        error_count=sum(live.measured.errors for live in lives),
        find_max_state=find_max_state,
        targets=targets,
        next_sequence_id=next_sequence_id,
    )
