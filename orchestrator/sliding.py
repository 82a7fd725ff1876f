"""The seconds of a run, of all workers together, for thresholds over a span. RunSeconds is pure.

A second is complete when every worker has reported it; one that is over, or was declared lost, is not waited for. What
beats have lost comes from the stored snapshots: a hole in a worker's seconds says that it is worth reading them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from loadgen.control import worker_metrics_snapshots
from loadgen.control.retry import Patience
from loadgen.control.session import ControlSession
from loadgen.control.worker_metrics_snapshots import Snapshot
from loadgen.errors import LoadgenError
from loadgen.metrics.judged import JudgedSecond, stored_judged, subjects_of
from loadgen.metrics.result import EVERYTHING, Merged
from loadgen.metrics.tally import StatementTally, Tally
from loadgen.scenario.scenario import Threshold
from orchestrator.crew import WorkerView

HOLES_S = 5.0  # snapshots are stored every few seconds
CLOCKS_S = 60.0  # by which the clocks of workers and server may differ
_TOUCHING_S = 0.02  # two intervals of a worker that follow one another are at most this far apart


@dataclass(frozen=True, slots=True)
class _Sum:
    """One second of the run: how long it was on average over the workers, and what ended in it."""

    seconds: float
    tallies: dict[str, StatementTally]


class RunSeconds:
    """add() what is reported, close() what is complete, span() what was closed. One thread."""

    def __init__(self, thresholds: Iterable[Threshold]) -> None:
        sliding = [one for one in thresholds if one.window_s is not None]
        self.subjects = subjects_of(sliding)
        self._kept = math.ceil(max((one.window_s or 0.0 for one in sliding), default=0.0))
        self._reported: dict[str, dict[float, JudgedSecond]] = {}  # of seconds that are not closed, by their end
        self._covered_s: dict[str, float] = {}  # of a worker, without a hole
        self._last_s: dict[str, float] = {}
        self._closed: dict[int, _Sum] = {}  # by number
        self.closed = 0  # the newest that is

    def note(self, crew: Sequence[WorkerView]) -> None:
        """What beats tell."""
        for worker in crew:
            for second in () if worker.live is None else worker.live.seconds:
                if second.judged is not None:
                    self.add(worker.worker_id, second.judged)

    def add(self, worker_id: str, second: JudgedSecond) -> None:
        """What is known already changes nothing."""
        if second.number > self.closed:
            self._reported.setdefault(worker_id, {})[second.until_s] = second
        self._last_s[worker_id] = max(self._last_s.get(worker_id, 0.0), second.until_s)
        self._follow(worker_id)

    def add_stored(self, rows: Iterable[Snapshot]) -> None:
        """Those of snapshots; a row that cannot be read says nothing. A worker stores them in order: what is not there
        before one that is will not come."""
        stored_s: dict[str, float] = {}
        for row in rows:
            try:
                second = stored_judged(row.custom_metrics)
            except LoadgenError:
                continue
            if second is not None:
                self.add(row.worker_id, second)
                stored_s[row.worker_id] = max(stored_s.get(row.worker_id, 0.0), second.until_s)
        for worker_id, until_s in stored_s.items():
            self._covered_s[worker_id] = max(self._covered_s[worker_id], until_s)
            self._follow(worker_id)

    def missing_since_s(self, workers: Collection[str]) -> float | None:
        """When the first second began that a worker has passed over and beats will not bring; None: there is none."""
        holes = [
            covered_s
            for worker_id in workers
            if (covered_s := self._covered_s.get(worker_id, 0.0)) + _TOUCHING_S < self._last_s.get(worker_id, 0.0)
        ]
        return min(holes, default=None)

    def complete(self, waited: Collection[str]) -> int:
        """The newest second that each of these workers has reported."""
        return min((_whole(self._covered_s.get(worker_id, 0.0)) for worker_id in waited), default=self.reported)

    @property
    def reported(self) -> int:
        """The newest second of any worker."""
        return _whole(max(self._last_s.values(), default=0.0))

    def close(self, number: int) -> None:
        """Add up the next second: nothing more will be added to it."""
        seconds = [second for own in self._reported.values() for second in own.values() if second.number <= number]
        present = sum(_whole(last_s) >= number for last_s in self._last_s.values())
        tallies = {name: StatementTally() for name in self.subjects}
        for second in seconds:
            for name in self.subjects & second.tallies.keys():
                tallies[name] += second.tallies[name]
        length_s = math.fsum(second.seconds for second in seconds)
        self._closed[number] = _Sum(length_s / present if present else 0.0, tallies)
        self._closed.pop(number - self._kept, None)
        self.closed = number
        for worker_id, own in self._reported.items():
            self._reported[worker_id] = {end: second for end, second in own.items() if second.number > number}

    def span(self, window_s: float, statement: str | None) -> Merged | None:
        """The seconds until the newest that was closed; None: so much was not measured yet."""
        length = math.ceil(window_s)
        if self.closed < length:
            return None
        sums = [self._closed[number] for number in range(self.closed - length + 1, self.closed + 1)]
        name, seconds = statement or EVERYTHING, math.fsum(one.seconds for one in sums)
        tally = sum((one.tallies[name] for one in sums), StatementTally())
        qps = tally.ended.succeeded / seconds if seconds > 0.0 else 0.0
        return Merged(
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


class StoredSeconds:
    """Reads from the snapshots what beats have lost."""

    def __init__(self, session: ControlSession, run_id: str, seconds: RunSeconds) -> None:
        self._session, self._run_id, self._seconds = session, run_id, seconds
        self._read_s = -HOLES_S

    def fill(self, crew: Sequence[WorkerView], *, now_s: float, measured_s: float) -> None:
        """While the run goes on: now and then, where a worker has passed over seconds."""
        working = [worker.worker_id for worker in crew if not worker.is_over]
        since_s = self._seconds.missing_since_s(working)
        if since_s is not None and now_s >= self._read_s + HOLES_S:
            self._read_s = now_s
            within_s = round(max(0.0, measured_s - since_s) + CLOCKS_S)
            self._seconds.add_stored(worker_metrics_snapshots.newest(self._session, self._run_id, within_s))

    def fill_all(self, crew: Sequence[WorkerView], patience: Patience, measured_s: float) -> None:
        """After the run: all that was stored, if anything is missing."""
        seconds = self._seconds
        seconds.note(crew)
        if seconds.subjects and seconds.complete([worker.worker_id for worker in crew]) < round(measured_s):
            seconds.add_stored(patience.call(lambda: worker_metrics_snapshots.read(self._session, self._run_id)))


def _whole(seconds: float) -> int:
    return math.floor(seconds + 0.5)
