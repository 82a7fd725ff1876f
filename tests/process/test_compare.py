"""`loadgen compare` over a real control plane: runs are stored as workers and orchestrator do it, without waiting."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadgen.cli.main import main
from loadgen.control import run_status, test_results, window_results, worker_metrics_snapshots
from loadgen.control.run_status import Move, NewRun
from loadgen.metrics.histogram import Histogram
from loadgen.metrics.outcome import Outcome
from loadgen.metrics.result import merge
from loadgen.metrics.tally import StatementTally, Tally, Times
from loadgen.model.run import Phase, RunStatus
from loadgen.report.client_health import ClientHealth
from loadgen.report.summary import RunFacts, WorkerResult, summarize
from loadgen.scenario.frozen import freeze, template_id
from loadgen.scenario.read import parse_scenario
from loadgen.scenario.scenario import Scenario
from loadgen.scenario.workers import with_workers
from loadgen.worker.arguments import WorkerArguments
from loadgen.worker.rows import stored_window
from orchestrator.results import result_row
from tests.control_plane import ControlPlane, patience
from tests.unit.orchestrator_builders import window
from tests.unit.warehouse_runs import second_row

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

OTHER_SCENARIO = """
version: 1
name: rates
connection: embedded
target: {warehouse: %s, database: BENCH, schema: PUBLIC}
workload: {statements: [{name: read, sql: SELECT 1}]}
load: {mode: rate, rate: 50/s, max_connections: 64, workers: 2, warmup: 1s, duration: 30s}
"""
WIDE_SCENARIO = """
version: 1
name: orders
seed: 7
connection: embedded
target: {warehouse: %s, database: BENCH, schema: OTHER, statement_timeout: 60s}
workload: {statements: [{name: look, weight: 2, sql: SELECT 1}, {name: pay, weight: 1, kind: write, sql: SELECT 3}]}
load: {connections: 16, workers: 2, warmup: 1s, duration: 30s}
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
        run_status.create(session, patience(), run)
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
            window_results.append(session, patience(), run_id, stored_window(windows[-1][0], worker, epoch=1))
        worker_metrics_snapshots.append(session, patience(), rows)
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
        test_results.append(session, patience(), result_row(stored, facts, summarize(facts)))

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
            step = Move(status=status, phase=phase, to=to, to_phase=to_phase)
            assert run_status.move(self.plane.session, patience(), term, step)
            status, phase = to, to_phase

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


@pytest.fixture
def store(plane: ControlPlane, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Store:
    for name, value in plane.environ.items():
        monkeypatch.setenv(name, value)
    return Store(plane, capsys)


def test_runs_in_the_tables_are_compared_and_what_cannot_be_compared_is_told(store: Store, tmp_path: Path) -> None:
    first, again = store.run("20261114-0200-orders-aaaa"), store.run("20261115-0200-orders-bbbb")
    slow = store.run("20261116-0200-orders-cccc", slower=1.2)
    big = store.run("20261116-0300-orders-dddd", warehouse="BIG_WH")
    bad = store.run("20261116-0400-orders-eeee", invalid=("worker lost: worker-1",))
    begun = store.run("20261116-0500-orders-ffff", ended=False)

    # the same scenario twice: as text, as JSON, and as a page
    page = tmp_path / "compare.html"
    code, out, errors = store.compare(first, again, "--html", str(page))
    assert (code, errors) == (0, "")
    assert out.startswith("EQUIVALENT  ")
    assert "same scenario, same environment" in out
    assert page.read_text("utf-8").startswith("<!doctype html>")
    code, data = store.json(first, again)
    assert (code, data["verdict"], data["exit_code"]) == (0, "equivalent", 0)
    assert (data["a"]["run_id"], data["b"]["run_id"]) == (first, again)
    assert data["a"]["measured_seconds"] == SECONDS
    assert data["a"]["compared_seconds"] == SECONDS - 1  # the first row began before the measurement
    (qps,) = [one for one in data["metrics"] if (one["statement"], one["metric"]) == (None, "qps")]
    assert qps["a"] == pytest.approx(2 * PER_SECOND * (SECONDS + 1) / SECONDS)

    # a fifth slower, in both directions, and with a limit that tolerates it
    code, data = store.json(first, slow)
    assert (code, data["verdict"], data["exit_code"]) == (11, "worse", 11)
    (p95,) = [one for one in data["metrics"] if (one["statement"], one["metric"]) == ("look", "p95")]
    assert p95["low"] < p95["change"] < p95["high"]
    assert p95["change"] == pytest.approx(0.2, abs=0.06)
    assert store.compare(slow, first)[1].startswith("BETTER  ")
    tolerant = [word for metric in ("p50", "p95") for word in ("--limit", f"{metric}=40%")]
    assert store.json(first, slow, *tolerant)[1]["verdict"] == "equivalent"

    # not comparable
    code, data = store.json(first, big)
    assert (code, data["verdict"], data["exit_code"]) == (2, "not comparable", 2)
    assert [one["key"] for one in data["configuration"]] == ["target.warehouse"]
    code, out, errors = store.compare(first, big)
    assert (code, out) == (2, "")
    assert errors == (
        "error: not comparable: they differ in target.warehouse\n  target.warehouse: WH → BIG_WH\n"
        "hint: If this difference is what you want to compare, add --vary target.warehouse\n"
    )
    code, out, _ = store.compare(first, big, "--vary", "target.warehouse")
    assert code == 0
    assert "target.warehouse: WH → BIG_WH" in out
    # another scenario: a short list in its own words
    other = OTHER_SCENARIO % "WH"
    foreign = store.run("20261116-0600-rates-gggg", scenario=other)
    code, out, errors = store.compare(first, foreign)
    assert (code, out) == (2, "")
    message, *lines, hint = errors.splitlines()
    assert message == (
        "error: not comparable: A is a run of orders, B of rates; they have no statement in common;"
        " response times of different load modes mean different things; they differ in 8 settings"
    )
    assert lines == [
        "  load.mode: concurrency → rate",
        "  load.connections: 8 → not set",
        "  load.duration: 20s → 30s",
        "  load.max_connections: not set → 64",
        "  load.rate: not set → 50/s",
        "  workload.statements.look: only in A",
        "  workload.statements.pay: only in A",
        "  workload.statements.read: only in B",
    ]
    assert hint == "hint: Compare runs of one scenario. `loadgen runs list` shows the runs there are."
    code, data = store.json(first, foreign)
    assert {one["key"] for one in data["configuration"] if one["matters"]} == {
        line.split()[0].strip(":") for line in lines
    }
    wide = store.run("20261116-0700-orders-hhhh", scenario=WIDE_SCENARIO % "WH")
    said, _, options = store.compare(first, wide)[2].splitlines()[-1].partition(", add ")
    assert said == "hint: If this difference is what you want to compare"
    assert options == "--vary load --vary workload --vary target --vary seed"
    code, out, _ = store.compare(first, wide, *options.split())
    assert code == 0
    assert "load.duration: 20s → 30s" in out

    for other, why in ((bad, "is INVALID: worker lost: worker-1"), (begun, "is PREPARED, and not COMPLETED")):
        code, data = store.json(first, other)
        assert (code, data["verdict"]) == (2, "not comparable")
        assert data["reasons"] == [f"B ({other}) {why}"]

    # wrong usage
    for words, said in (
        ((first, "nosuchrun"), "there is no run nosuchrun"),
        ((first, first), f"A and B are the same run: {first}"),
        ((first, again, "--vary", "target"), "--vary target: it does not differ between the two runs"),
        ((first, again, "--limit", "ghost.p95=1%"), "--limit: both runs have no statement ghost"),
        ((first, again, "--html", str(tmp_path / "no" / "x.html")), f"{tmp_path / 'no' / 'x.html'} cannot be written"),
    ):
        code, data = store.json(*words)
        assert code == data["error"]["exit_code"] == 2
        assert data["error"]["message"].startswith(said)
        assert data["error"]["hint"]
