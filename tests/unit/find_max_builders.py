"""A search over two workers, with the measurements that a test gives it."""

import json
from dataclasses import replace
from typing import Any

from loadgen.control.tables.run_measurements import StepRecord
from loadgen.metrics.connections import ConnectionTime
from loadgen.metrics.tally import StatementTally
from loadgen.metrics.window import ClientResourceUse, WindowResult, merge
from loadgen.results.run_snapshot import WorkerHealth, WorkerSnapshot
from loadgen.scenario.model import FindMaxSettings, OnWorkerLoss
from orchestrator.find_max_controller import FindMaxController, step_record
from orchestrator.lifecycle import (
    SearchDecision,
)
from tests.unit.orchestrator_builders import live, tally, view, window
from tests.unit.worker_builders import SERVER_TIME

CONFIG = FindMaxSettings(start=5, increment=10, step_s=10.0, settle_s=2.0, maximum=100, refine=False)
MISSING_S = 30.0
CALM = tally((20.0,) * 500)
UNCLEAR = tally((20.0,) * 45 + (30.0,) * 5)  # the bounds of its p95 are on both sides of the limit
BAD = tally((99.0,) * 500)


class Led:
    """A search over two workers, and the time."""

    def __init__(self, on_worker_loss: OnWorkerLoss = OnWorkerLoss.FAIL) -> None:
        self.controller = FindMaxController(CONFIG, (), missing_s=MISSING_S, on_worker_loss=on_worker_loss)
        self.now_s = 100.0
        self.records: list[StepRecord] = []
        self.windows: dict[int, list[list[WindowResult]]] = {}

    def worker(
        self, number: int, shown: StatementTally, seconds: float, health: WorkerHealth = WorkerHealth.ALIVE, **more: Any
    ) -> WorkerSnapshot:
        step = self.controller.number
        elapsed_ms = round(seconds * 1000)
        cpu_percent, delivered = more.pop("cpu_percent", 20), more.pop("delivered", 1.0)
        own = replace(
            window({"s": shown}, step_id=step, seconds=seconds, window_id=step),
            client=ClientResourceUse(elapsed_ms=elapsed_ms, cpu_ms=elapsed_ms * cpu_percent // 100),
            connections=ConnectionTime(planned_ms=elapsed_ms, delivered_ms=round(elapsed_ms * delivered)),
        )
        return view(health, number=number, live=live(own), **more)

    def look(self, *views: WorkerSnapshot, later_s: float = 1.0) -> SearchDecision | None:
        self.now_s += later_s
        number = self.controller.number
        judged, order = self.controller.observe(views, self.now_s, queue_seen=False)
        if judged is not None:
            step, measured = judged
            self.records.append(step_record("run", step, measured, SERVER_TIME))
            self.windows[number] = [list(worker.live.windows) for worker in views if worker.live is not None]
        return order

    def step(self, shown: StatementTally = CALM, seconds: float = 10.0, **more: Any) -> SearchDecision | None:
        """Request the next step where the search did not, and judge it."""
        if not self.records:
            self.look(view(number=0), view(number=1))
        self.look(*(self.worker(number, shown, 1.5, **more) for number in range(2)))
        return self.look(*(self.worker(number, shown, seconds, **more) for number in range(2)))

    @property
    def outcomes(self) -> list[tuple[int, str]]:
        return [(record.target_connections, record.outcome) for record in self.records]

    def result(self, *, valid: bool = True) -> dict[str, Any]:
        found = self.controller.result(lambda step: merge(self.windows.get(step or 0, [])), valid=valid)
        json.dumps(found)
        return found
