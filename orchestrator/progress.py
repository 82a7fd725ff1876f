"""What a run has measured so far, remembered from tick to tick. Pure.

A window leaves the beats once it is stored; here it stays, so a run of several stages has all of them. For thresholds
over the last seconds the sums of every tick are kept, for those statements that are asked for and as long as needed.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from loadgen.metrics.difference import since
from loadgen.metrics.result import EVERYTHING, Merged, WindowResult, merge
from loadgen.metrics.tally import StatementTally, Tally
from loadgen.metrics.windows import WindowState
from loadgen.model.run import Phase
from loadgen.scenario.scenario import Threshold
from orchestrator.crew import WorkerView


@dataclass(frozen=True, slots=True)
class _Sums:
    """Until a tick: how long was measured, and what, by statement; None: all statements together."""

    seconds: float
    tallies: dict[str | None, StatementTally]


class Progress:
    """note() every tick of the measurement. One thread."""

    def __init__(self, thresholds: Iterable[Threshold]) -> None:
        sliding = [threshold for threshold in thresholds if threshold.window_s is not None]
        self._names = {threshold.check.statement for threshold in sliding}
        self._keep_s = max((threshold.window_s or 0.0 for threshold in sliding), default=0.0)
        self._windows: dict[str, dict[int, WindowResult]] = {}
        self._sums: deque[_Sums] = deque()
        self.merged: Merged = merge([])

    def remember(self, worker_id: str, windows: Iterable[WindowResult]) -> None:
        """What a worker measured; what it said later of the same window counts."""
        own = self._windows.setdefault(worker_id, {})
        own.update((window.window_id, window) for window in windows if window.phase is Phase.MEASUREMENT)

    def note(self, crew: Sequence[WorkerView]) -> None:
        for worker in crew:
            if worker.live is not None:
                self.remember(worker.worker_id, worker.live.windows)
            if worker.is_over:
                own = self._windows.get(worker.worker_id, {})
                own.update((number, replace(window, state=WindowState.CLOSED)) for number, window in own.items())
        self.merged = merge([list(own.values()) for own in self._windows.values()], live=True)
        if self._names:
            self._sums.append(_Sums(self.merged.seconds, {name: self._tally(name) for name in self._names}))
            while len(self._sums) > 2 and self._sums[1].seconds <= self.merged.seconds - self._keep_s:
                self._sums.popleft()

    def measured_s(self, worker_id: str) -> float:
        """How long a worker has measured."""
        return math.fsum(window.seconds for window in self._windows.get(worker_id, {}).values())

    def step(self, step_id: int) -> list[list[WindowResult]]:
        """The windows of one step, worker by worker."""
        return [[window for window in own.values() if window.step_id == step_id] for own in self._windows.values()]

    def last(self, window_s: float, statement: str | None) -> Merged | None:
        """The last `window_s` of the measurement, for that statement; None: so much was not measured yet."""
        if not self._sums:
            return None
        now = self._sums[-1]
        before = [sums for sums in self._sums if sums.seconds <= now.seconds - window_s]
        if not before:
            return None
        tally = since(before[-1].tallies[statement], now.tallies[statement])
        seconds = now.seconds - before[-1].seconds
        if tally is None or seconds <= 0.0:
            return None
        name, ended = statement or EVERYTHING, tally.ended
        qps = ended.succeeded / seconds
        return Merged(
            seconds=seconds, counts=ended, tally=Tally(statements={name: tally}), qps=qps, statement_qps={name: qps}
        )

    def _tally(self, name: str | None) -> StatementTally:
        tally = self.merged.tally
        return tally.whole if name is None else tally.statements.get(name, StatementTally())
