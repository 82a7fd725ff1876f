"""What a run has measured so far, remembered from tick to tick. Pure.

A window leaves the beats once it is stored; here it stays, so a run of several stages has all of them. Thresholds over
a span are judged by the seconds that beats bring.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from loadgen.control.tables.find_max_step_history import StepRecord
from loadgen.control.tables.run_status import Run
from loadgen.control.tables.warehouse_poll_snapshots import WarehousePoll
from loadgen.metrics.recorder import WindowState
from loadgen.metrics.window import ALL_STATEMENTS, MergedWindows, WindowResult, merge
from loadgen.model.run import Phase
from loadgen.report.verdict import Checked
from loadgen.scenario.model import Threshold
from orchestrator.lifecycle import RunEnding
from orchestrator.run_seconds import RunSeconds
from orchestrator.worker_health import WorkerView


class RunAggregator:
    """note() every tick of the measurement. One thread."""

    def __init__(self, thresholds: Iterable[Threshold], stages: Mapping[str, int] | None = None) -> None:
        """`stages`: those that thresholds are about, and the numbers of their windows."""
        self._stages = dict(stages or {})
        self._windows: dict[str, dict[int, WindowResult]] = {}
        self.seconds = RunSeconds(thresholds)
        self.merged: MergedWindows = merge([])

    def remember(self, worker_id: str, windows: Iterable[WindowResult]) -> None:
        """What a worker measured; what it said later of the same window counts."""
        own = self._windows.setdefault(worker_id, {})
        own.update((window.window_id, window) for window in windows if window.phase is Phase.MEASUREMENT)

    def note(self, crew: Sequence[WorkerView]) -> None:
        self.seconds.note(crew)
        for worker in crew:
            if worker.live is not None:
                self.remember(worker.worker_id, worker.live.windows)
            if worker.is_over:
                own = self._windows.get(worker.worker_id, {})
                own.update((number, replace(window, state=WindowState.CLOSED)) for number, window in own.items())
        stages = {name: merge(self.step(number), live=True) for name, number in self._stages.items()}
        whole = merge([list(own.values()) for own in self._windows.values()], live=True)
        self.merged = replace(whole, stages=stages)

    def measured_s(self, worker_id: str) -> float:
        """How long a worker has measured."""
        return math.fsum(window.seconds for window in self._windows.get(worker_id, {}).values())

    def step(self, step_id: int) -> list[list[WindowResult]]:
        """The windows of one step, worker by worker."""
        return [[window for window in own.values() if window.step_id == step_id] for own in self._windows.values()]

    @property
    def folded(self) -> bool:
        """Has a beat had no room for each statement?"""
        return ALL_STATEMENTS in self.merged.tally.statements


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSnapshot:
    run: Run
    crew: tuple[WorkerView, ...]
    elapsed_s: float | None  # since the plan began
    ends_s: float | None
    measures_s: float
    ending: RunEnding | None = None
    checked: tuple[Checked, ...] = ()  # thresholds, by what was measured so far
    warnings: tuple[str, ...] = ()
    find_max_steps: tuple[StepRecord, ...] = ()
    polls: tuple[WarehousePoll, ...] = ()  # the newest looks at the warehouse, oldest first
