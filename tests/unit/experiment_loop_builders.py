"""An experiment whose runs, warehouses and tables are values in memory; time advances with each run."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

from loadgen.errors import LoadgenError
from loadgen.metrics.window import MergedWindows, merge
from loadgen.model.warehouse import CreditRates
from loadgen.report.experiment import ExperimentStatus
from loadgen.report.records import RunRecord, WarehousePollPoint
from loadgen.rules.experiment import block_order, design_of
from loadgen.rules.measurement import Measurement
from loadgen.scenario.experiment import read_experiment
from loadgen.scenario.model import Scenario
from orchestrator.experiment.job import ArmRun, ExperimentActions, ExperimentLoop
from orchestrator.experiment.state import ExperimentState
from tests.fake_clock import FakeClock
from tests.unit.metrics_builders import MS, S, sample, worker

RUN_S = 100.0
STARTED = datetime(2026, 1, 1)  # noqa: DTZ001  naive UTC, as records have it
SCENARIO = {
    "version": 1,
    "name": "loop",
    "connection": "embedded",
    "load": {"mode": "concurrency", "connections": 1, "workers": 1, "warmup": "10s", "duration": "80s"},
    "workload": {"statements": [{"name": "a", "sql": "SELECT 1"}]},
}


@cache
def merged_of(mean_ms: float) -> MergedWindows:
    many = [
        sample(window=2, due_ns=2 * S + number, service_ns=round((mean_ms + 0.001 * number) * MS))
        for number in range(200)
    ]
    harvester = worker(many)
    harvester.harvest(9 * S)
    return merge([[one for one in harvester.live(9 * S).windows if one.window_id == 2]])


class FakeStore:
    """Rows of one experiment."""

    experiment_id = "loop-1"

    def __init__(self, *measured: Measurement, begun: int = 0) -> None:
        self.rows, self.begun = list(measured), begun
        self.left: list[Measurement] = []
        self.results: list[dict[str, Any]] = []
        self.fail_on: dict[str, LoadgenError] = {}

    def read(self) -> ExperimentState:
        return ExperimentState(
            experiment_id=self.experiment_id,
            created_at="2026-01-01T00:00:00.000Z",
            begun=self.begun,
            measured=tuple(self.rows),
        )

    def left_runs(self, state: ExperimentState, rates: CreditRates) -> Sequence[Measurement]:
        return self.left

    def begin_block(self, number: int) -> None:
        self._may_fail("begin_block")
        assert number == self.begun + 1
        self.begun = number

    def record(self, one: Measurement) -> None:
        self._may_fail("record")
        key = (one.block, one.arm, one.attempt)
        assert key not in [(row.block, row.arm, row.attempt) for row in self.rows]
        self.rows.append(one)

    def finish(self, result: dict[str, Any]) -> None:
        self._may_fail("finish")
        self.results.append(result)

    def _may_fail(self, what: str) -> None:
        if what in self.fail_on:
            raise self.fail_on[what]


class LoopHarness:
    """An experiment of two arms with scripted runs: `script` replaces the run of (block, arm, attempt)."""

    def __init__(self, tmp_path: Path, **sections: Any) -> None:
        (tmp_path / "s.yaml").write_text(json.dumps(SCENARIO))
        document = {
            "version": 1,
            "name": "loop",
            "scenario": "s.yaml",
            "reference": "a",
            "seed": 1,
            "arms": {"a": {}, "b": {"set": {"load.connections": 2}}},
            "metrics": {"p50": "5%"},
            "washout": "5s",
            "blocks": {"minimum": 2, "maximum": 4},
        }
        (tmp_path / "e.yaml").write_text(json.dumps(document | sections))
        self.loaded = read_experiment(tmp_path / "e.yaml", environ={})
        self.store, self.clock = FakeStore(), FakeClock()
        self.script: dict[tuple[int, str, int], Callable[[], ArmRun]] = {}
        self.mean_ms = {"a": 10.0, "b": 20.0}
        self.clusters: int | None = 1
        self.worst: Mapping[str, float | None] = {"a": 0.0, "b": 0.0}
        self.set_up: Callable[[str], None] = lambda arm: None
        self.restore: Callable[[], None] = lambda: None
        self.signals: list[int] = []
        self.done: list[str] = []  # what was called, in order
        self.said: list[str] = []
        self.shown: list[ExperimentStatus] = []

    def run(self) -> dict[str, Any]:
        scenarios = {name: arm.scenario for name, arm in self.loaded.arms.items()}
        actions = ExperimentActions(
            measure=self._measure,
            set_up=self._set_up,
            restore=self._restore,
            worst_case=lambda: self.worst,
            pause=self._pause,
            print_line=self.said.append,
            clock=self.clock,
        )
        return ExperimentLoop(self.loaded, scenarios, self.store, actions).run()

    def arm_run(self, arm: str, code: int = 0, *, reason: str = "done", merged: bool = True) -> ArmRun:
        self.clock.advance(RUN_S)
        run_id = f"run-{len(self.done)}"
        poll = None
        if self.clusters is not None:
            poll = WarehousePollPoint(at_s=0.0, running=1, queued=0, started_clusters=self.clusters, size="X-Small")
        record = RunRecord(
            summary={},
            template_id="",
            started=STARTED,
            ended=STARTED + timedelta(seconds=RUN_S),
            enrichment_status=None,
            config="",
            scenario=self.loaded.arms[arm].scenario,
            merged=merged_of(self.mean_ms[arm]) if merged else None,
            polls=() if poll is None else (poll,),
        )
        return ArmRun(summary={"exit_code": code, "exit_reason": reason, "run_id": run_id}, record=record)

    def fails(self, block: int, arm: str, *attempts: int, code: int = 4, reason: str = "broken") -> None:
        for attempt in attempts:
            self.script[block, arm, attempt] = lambda: self.arm_run(arm, code, reason=reason, merged=False)

    def raises(self, block: int, arm: str, attempt: int, error: LoadgenError) -> None:
        def act() -> ArmRun:
            raise error

        self.script[block, arm, attempt] = act

    def again(self, store: FakeStore) -> LoopHarness:
        """The same experiment in another process."""
        other = copy.copy(self)
        other.store, other.done, other.said = store, [], []
        return other

    def order(self, block: int) -> tuple[str, ...]:
        return block_order(design_of(self.loaded.file), block)

    def outcomes(self) -> list[tuple[int, str, int, str]]:
        return sorted((one.block, one.arm, one.attempt, one.outcome.value) for one in self.store.rows)

    def _measure(self, arm: str, scenario: Scenario, status: ExperimentStatus) -> ArmRun:
        self.shown.append(status)
        labels = scenario.labels
        assert (labels["experiment"], labels["arm"]) == (self.store.experiment_id, arm)
        self.done.append(f"measure {labels['block']} {arm} {labels['attempt']}")
        act = self.script.get((int(labels["block"]), arm, int(labels["attempt"])))
        return self.arm_run(arm) if act is None else act()

    def _set_up(self, arm: str) -> None:
        self.done.append(f"set up {arm}")
        self.set_up(arm)

    def _restore(self) -> None:
        self.done.append("restore")
        self.restore()

    def _pause(self, seconds: float) -> int | None:
        if not self.signals:
            self.clock.advance(seconds)
        return self.signals[0] if self.signals else None


def raising(error: BaseException) -> Callable[..., Any]:
    def act(*_: Any) -> None:
        raise error

    return act
