"""What one look at a run showed: for whoever displays it."""

from __future__ import annotations

from dataclasses import dataclass

from loadgen.control.tables.find_max_step_history import StepRecord
from loadgen.control.tables.run_status import Run
from loadgen.control.tables.warehouse_poll_snapshots import WarehousePoll
from loadgen.report.verdict import Checked
from orchestrator.lifecycle import RunEnding
from orchestrator.worker_health import WorkerView


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
