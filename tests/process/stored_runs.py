"""Runs in the tables of a control plane, stored as workers and orchestrator do it, without waiting."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

from loadgen.cli.main import main
from loadgen.control.tables import run_measurements, run_status, test_results
from loadgen.control.tables.run_status import NewRun, StatusChange
from loadgen.metrics.histogram import Histogram
from loadgen.metrics.recorder import Outcome
from loadgen.metrics.tally import StatementTally, Tally, Times
from loadgen.metrics.window import WindowRow, merge
from loadgen.model.run import Phase, RunStatus
from loadgen.report.summary import RunFacts, WorkerResult, summarize
from loadgen.rules.client_health import ClientHealth
from loadgen.scenario.frozen import freeze, template_id
from loadgen.scenario.model import Scenario, with_workers
from loadgen.scenario.read import parse_scenario
from loadgen.worker.arguments import WorkerArguments
from orchestrator.run_result import run_result_row
from tests.control_plane import ControlPlane, retries
from tests.unit.orchestrator_builders import window
from tests.unit.warehouse_runs import MOMENT, second_row

SECONDS = 20
PER_SECOND = 60
SCENARIO = """
version: 1
name: orders
connection: embedded
target: {warehouse: %s, database: BENCH, schema: PUBLIC}
workload: {statements: [{name: look, weight: 3, sql: SELECT 1}, {name: pay, weight: 1, kind: write, sql: SELECT 2}]}
load: {connections: 8, workers: 2, warmup: 1s, duration: 20s}
"""


class Store:
    """Runs of two workers in the tables of a control plane, and the command that compares them."""

    def __init__(self, plane: ControlPlane, capsys: pytest.CaptureFixture[str]) -> None:
        self.plane, self._capsys = plane, capsys

    def run(
        self,
        run_id: str,
        *,
        slower: float = 1.0,
        warehouse: str = "WH",
        invalid: tuple[str, ...] = (),
        ended: bool = True,
        scenario: str = "",
    ) -> str:
        text = scenario or SCENARIO % warehouse
        return self._run(
            run_id,
            with_workers(parse_scenario(text, source="test", environ={}).scenario, 2),
            slower,
            invalid,
            ended=ended,
        )

    def _run(self, run_id: str, scenario: Scenario, slower: float, invalid: tuple[str, ...], *, ended: bool) -> str:
        session = self.plane.session
        run = NewRun(
            run_id=run_id,
            template_id=template_id(scenario),
            test_name=scenario.name,
            scenario_config=freeze(scenario),
            workers=2,
        )
        run_status.create(session, retries(), run)
        if ended:
            self._measured(run_id, scenario, slower, invalid)
            self._end(run_id)
        return run_id

    def _measured(self, run_id: str, scenario: Scenario, slower: float, invalid: tuple[str, ...]) -> None:
        session, windows, rows = self.plane.session, [], []
        for number in range(2):
            worker = WorkerArguments(
                run_id=run_id, worker_id=f"worker-{number}", worker_group_id=number, worker_group_count=2
            )
            names = [statement.name for statement in scenario.workload.statements]
            seconds = [tally_of(f"{run_id} {number} {at}", slower, names) for at in range(SECONDS + 1)]
            rows += [second_row(run_id, worker.worker_id, 2.0 + at, tally) for at, tally in enumerate(seconds)]
            whole = sum(seconds[1:], seconds[0])
            windows.append([window(whole.statements, seconds=float(SECONDS))])
            row = WindowRow.of(windows[-1][0], worker_id=worker.worker_id, epoch=1)
            run_measurements.append_window(session, retries(), run_id, row)
        run_measurements.append_snapshots(session, retries(), rows)
        facts = RunFacts(
            run_id=run_id,
            scenario=scenario.name,
            status="COMPLETED",
            started_at="2026-11-16T02:00:00.000Z",
            connections=8,
            statements=scenario.workload.statements,
            merged=merge(windows),
            invalid=invalid,
            checked=(),
            client=ClientHealth(cpu_percent_of_core=10.0, wakeup_p99_ms=0.1),
            workers=[
                WorkerResult(worker_id=f"worker-{at}", status="ALIVE", succeeded=1, failed=0, qps=1.0)
                for at in range(2)
            ],
            environment={"driver": "5.2.0", "cores": 2},
        )
        stored = run_status.read(session, run_id)
        assert stored is not None
        test_results.append(session, retries(), run_result_row(stored, facts, summarize(facts)))

    def _end(self, run_id: str) -> None:
        """Through the states of a run, as its leader does."""
        term = self.plane.claim(run_id)
        status, phase = RunStatus.PREPARED, Phase.PREPARING
        for to, to_phase in (
            (RunStatus.STARTING, Phase.PREPARING),
            (RunStatus.RUNNING, Phase.MEASUREMENT),
            (RunStatus.STOPPING, Phase.PROCESSING),
            (RunStatus.COMPLETED, Phase.PROCESSING),
        ):
            step = StatusChange(status=status, phase=phase, to=to, to_phase=to_phase)
            assert run_status.move(self.plane.session, retries(), term, step)
            status, phase = to, to_phase
        sql = "UPDATE RUN_STATUS SET START_TIME = TO_TIMESTAMP_NTZ(?), END_TIME = TO_TIMESTAMP_NTZ(?) WHERE RUN_ID = ?"
        began, ended = MOMENT, MOMENT + timedelta(seconds=SECONDS + 5)  # when its seconds were measured
        self.plane.change(sql, str(began), str(ended), run_id)

    def compare(self, *words: str) -> tuple[int, str, str]:
        """Exit code, stdout and stderr."""
        self._capsys.readouterr()
        code = main(["compare", *words, "-c", "embedded", "--database", self.plane.place.database])
        return code, *self._capsys.readouterr()

    def json(self, *words: str) -> tuple[int, dict[str, Any]]:
        code, out, _ = self.compare(*words, "--format", "json")
        return code, json.loads(out)


def tally_of(seed: str, slower: float, names: Sequence[str]) -> Tally:
    """One second of one worker."""
    rng = np.random.default_rng(list(seed.encode()))
    statements = {}
    for name, count in zip(names, (3 * PER_SECOND // 4, PER_SECOND // 4), strict=False):
        times = Histogram.of(np.rint(slower * 2e7 * rng.lognormal(0.0, 0.25, count)).astype(np.int64))
        statements[name] = StatementTally(times={Outcome.SUCCEEDED: Times(times, times)})
    return Tally(statements=statements)
