"""`loadgen trend` and --baseline over a real control plane: nights are stored as the orchestrator stores them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadgen.cli.main import main
from loadgen.cli.options import control_access
from loadgen.control.tables import run_measurements, run_status, test_results
from loadgen.control.tables.run_measurements import WarehousePoll
from loadgen.control.tables.run_status import NewRun
from loadgen.errors import UsageError
from loadgen.scenario.frozen import freeze, template_id
from loadgen.scenario.model import with_workers
from loadgen.scenario.read import parse_scenario
from orchestrator.nightly.baseline import check_baseline, judge_against_baseline, wants_second_run
from tests.control_plane import ControlPlane, result_row, retries
from tests.embedded_server import EmbeddedServer
from tests.process.stored_runs import Store
from tests.unit.orchestrator_builders import merged, tally
from tests.unit.report_builders import summary

NIGHTS = 12
SCENARIO = """
version: 1
name: orders
connection: embedded
target: {warehouse: WH, database: BENCH, schema: PUBLIC}
workload: {statements: [{name: look, sql: SELECT 1}, {name: pay, kind: write, sql: SELECT 2}]}
load: {connections: %s, workers: 2, warmup: 1s, duration: 20s}
"""


class Nights:
    """Results of runs in the tables of a control plane, one after another."""

    def __init__(self, plane: ControlPlane, capsys: pytest.CaptureFixture[str]) -> None:
        self.plane, self._capsys, self._count = plane, capsys, 0

    def run(
        self,
        p95: float,
        *,
        connections: int = 8,
        driver: str = "5.2.0",
        status: str = "COMPLETED",
        invalid: tuple[str, ...] = (),
        generation: str = "1",
        server: str = "10.1.0",
        name: str = "orders",
        at_least: bool = False,
    ) -> dict[str, Any]:
        """Its summary."""
        self._count += 1
        session, run_id = self.plane.session, f"night-{self._count:03d}"
        text = SCENARIO.replace("orders", name) % connections
        scenario = with_workers(parse_scenario(text, source="test", environ={}).scenario, 2)
        template = template_id(scenario)
        run_status.create(
            session,
            retries(),
            NewRun(
                run_id=run_id,
                template_id=template,
                test_name=scenario.name,
                scenario_config=freeze(scenario),
                workers=2,
            ),
        )
        stored = run_status.read(session, run_id)
        assert stored is not None
        summary = summary_of(run_id, p95, connections, driver, status, invalid, server)
        if at_least:
            summary["latency_ms"] |= {"p50": 26.0, "at_least": ["p95"]}
            summary["totals"]["qps"] = 4_000 / 52
            for statement in summary["statements"].values():
                statement["latency_ms"]["p95"] = 52.0
        look = WarehousePoll(
            run_id=run_id,
            timestamp=stored.created_at,
            running=1,
            queued=0,
            started_clusters=1,
            size="X-Small",
            raw=json.dumps({"name": "WH", "generation": generation, "running": self._count}),
        )
        run_measurements.append_polls(session, retries(), [look])
        measured = result_row(
            run_id,
            template_id=template,
            status=status,
            created_at=stored.created_at,
            p50_latency_ms=p95 / 2,
            p95_latency_ms=p95,
            summary=json.dumps(summary),
        )
        test_results.append(session, retries(), measured)
        return summary

    def trend(self, *words: str) -> tuple[int, str, str]:
        """Exit code, stdout and stderr."""
        self._capsys.readouterr()
        code = main(["trend", *words, "-c", "embedded", "--database", self.plane.place.database])
        return code, *self._capsys.readouterr()

    def json(self, *words: str) -> tuple[int, dict[str, Any]]:
        code, out, _ = self.trend(*words, "--format", "json")
        return code, json.loads(out)


def summary_of(
    run_id: str,
    p95: float,
    connections: int,
    driver: str,
    status: str,
    invalid: tuple[str, ...],
    server: str = "10.1.0",
) -> dict[str, Any]:
    measured = merged({name: tally((p95,)) for name in ("look", "pay")})
    surroundings = {"driver": driver, "server": server, "cores": 2, "warnings": [], "credits": 0.1 * p95}
    made = summary(
        measured,
        ("look", "pay"),
        run_id=run_id,
        scenario="orders",
        status=status,
        invalid=invalid,
        connections=connections,
        environment=surroundings,
        checked=(),
    )
    made["latency_ms"] |= {"p50": p95 / 2, "p95": p95}
    made["totals"] |= {"qps": 4_000 / p95, "error_rate": 0.0}
    for statement in made["statements"].values():
        statement["latency_ms"] |= {"p50": None, "p95": p95}
    return made


@pytest.fixture
def plane(server: EmbeddedServer) -> Iterator[ControlPlane]:
    made = ControlPlane(server)
    yield made
    made.close()


@pytest.fixture
def nights(plane: ControlPlane, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Nights:
    for name, value in plane.environ.items():
        monkeypatch.setenv(name, value)
    return Nights(plane, capsys)


def test_a_regression_is_suspected_confirmed_and_known_and_only_comparable_runs_are_compared(
    nights: Nights, tmp_path: Path
) -> None:
    check_no_runs(nights)
    store_usual_nights(nights)
    first = check_suspected(nights)
    second = check_confirmed(nights, first, tmp_path / "trend.html")
    check_known(nights, second)
    check_new_series(nights)
    check_lower_bounds(nights)
    check_refused_baselines(nights)


def check_no_runs(nights: Nights) -> None:
    code, out, errors = nights.trend("orders")
    assert (code, out) == (2, "")
    assert errors == (
        "error: scenario orders has no run with a result\n"
        "hint: Name a scenario as its file does, in `name:`. There are no runs yet.\n"
    )


def store_usual_nights(nights: Nights) -> None:
    usual = 40 * np.exp(np.random.default_rng(4).normal(0, 0.03, NIGHTS))
    for p95 in usual:
        nights.run(float(p95))
    nights.run(400.0, invalid=("worker lost: worker-1",))
    nights.run(400.0, status="FAILED")
    nights.run(60.0, connections=16)  # by hand, in between: a separate series
    assert nights.json("orders")[1]["verdict"] == "learning"
    nights.run(1.0, invalid=("a worker was lost",), name="sick")
    nothing = nights.trend("sick")[1].splitlines()
    assert nothing[0] == "LEARNING  sick has no run that counts: 1 is INVALID; 6 comparable runs are needed"
    assert nothing[-1].endswith(") is INVALID: a worker was lost")


def check_suspected(nights: Nights) -> dict[str, Any]:
    """The first of three nights, and the output of --baseline trend about it."""
    look = control_access(nights.plane.place, "baseline")
    first = nights.run(52.0, driver="5.3.0", generation="2", server="10.2.0")
    code, data = nights.json("orders")
    assert (code, data["verdict"], data["runs_in_series"]) == (0, "suspected", NIGHTS + 1)
    assert data["left_out"] == {"are INVALID": 1, "have the verdict error": 1}
    (other,) = data["other_series"]
    assert {one["key"] for one in other["differs_in"]} == {"load.connections"}
    suspected = judge_against_baseline("trend", look, first)
    assert (suspected["exit_code"], suspected["baseline"]["verdict"]) == (0, "suspected")
    assert wants_second_run(suspected)
    return first


def check_confirmed(nights: Nights, first: dict[str, Any], page: Path) -> dict[str, Any]:
    look = control_access(nights.plane.place, "baseline")
    second = nights.run(52.0, driver="5.3.0", generation="2", server="10.2.0")
    code, data = nights.json("orders", "--last", "5")
    assert (code, data["verdict"], data["exit_code"]) == (11, "regression", 11)
    assert len(data["runs"]) == 5
    (change,) = [one for one in data["changes"] if (one["statement"], one["metric"]) == (None, "p95")]
    assert change["since"] == first["run_id"]
    assert change["changed_with_it"] == {
        "environment.driver": {"from": "5.2.0", "to": "5.3.0"},
        "environment.server": {"from": "10.1.0", "to": "10.2.0"},
        "warehouse.generation": {"from": "1", "to": "2"},
    }
    confirmed = judge_against_baseline("trend", look, second)
    assert (confirmed["verdict"], confirmed["exit_code"]) == ("failed", 11)
    assert confirmed["exit_reason"].startswith("trend: regression: p95 +")
    assert not wants_second_run(confirmed)
    assert (
        judge_against_baseline("trend", look, {**second, "exit_code": 10})["exit_code"] == 10
    )  # a threshold comes first
    strange = judge_against_baseline("trend", look, {**second, "scenario": "renamed"})
    assert (strange["verdict"], strange["exit_code"]) == ("error", 2)
    assert strange["exit_reason"] == "trend: not judged: scenario renamed has no run with a result"
    code, out, errors = nights.trend("orders", "--html", str(page))
    assert (code, errors) == (11, "")
    assert out.startswith("REGRESSION  p95 +")
    assert "driver 5.2.0 → 5.3.0, server 10.1.0 → 10.2.0, warehouse.generation 1 → 2" in out
    assert page.read_text("utf-8").startswith("<!DOCTYPE html>")
    return second


def check_known(nights: Nights, second: dict[str, Any]) -> None:
    look = control_access(nights.plane.place, "baseline")
    nights.run(52.0, driver="5.3.0", generation="2", server="10.2.0")
    code, data = nights.json("orders")
    assert (code, data["verdict"]) == (0, "steady")
    assert judge_against_baseline("trend", look, second)["exit_code"] == 11  # as it was that night


def check_new_series(nights: Nights) -> None:
    """Of another driver."""
    nights.run(52.0, driver="6.0.0")
    _, data = nights.json("orders")
    assert (data["verdict"], data["runs_in_series"], data["series"]["driver_major"]) == ("learning", 1, "6")
    assert "environment.driver_major" in {one["key"] for one in data["other_series"][-1]["differs_in"]}


def check_lower_bounds(nights: Nights) -> None:
    """A p95 of which only a lower bound is known."""
    look = control_access(nights.plane.place, "baseline")
    for _ in range(5):
        nights.run(52.0, driver="6.0.0")
    low = nights.run(30.0, driver="6.0.0", at_least=True)
    code, data = nights.json("orders")
    assert (code, data["verdict"]) == (0, "undecided")
    assert data["reason"].startswith("p95 is at least 30.00 ms: statements timed out or were cancelled")
    assert judge_against_baseline("trend", look, low)["baseline"]["verdict"] == "undecided"
    nights.run(90.0, driver="6.0.0", at_least=True)
    code, data = nights.json("orders")
    assert (code, data["verdict"]) == (0, "suspected")
    assert data["reason"].startswith("p95 at least +7")


def check_refused_baselines(nights: Nights) -> None:
    """A run that cannot be a baseline is rejected before the start."""
    look = control_access(nights.plane.place, "baseline")
    assert check_baseline("trend", look) == "trend"
    for name, why in (
        ("nosuchrun", "there is no run nosuchrun"),
        ("night-001", "--baseline night-001: it (night-001) has the status PREPARED, and not COMPLETED"),
    ):
        with pytest.raises(UsageError, match="^" + why.replace("(", r"\(").replace(")", r"\)")) as raised:
            check_baseline(name, look)
        assert raised.value.remedy


def test_an_unknown_name_is_answered_with_every_scenario_that_has_runs(nights: Nights) -> None:
    names = [f"nightly-{letter}" for letter in "gfedcba"]
    for name in names:
        nights.run(40.0, name=name)

    code, out, errors = nights.trend("nightly-h")

    assert (code, out) == (2, "")
    assert errors.splitlines()[0] == "error: scenario nightly-h has no run with a result"
    hint = errors.splitlines()[1]
    assert hint.startswith("hint: Did you mean nightly-")
    assert hint.endswith(f"There are runs of {', '.join(sorted(names))}.")


def test_a_run_is_compared_with_the_named_run(nights: Nights, capsys: pytest.CaptureFixture[str]) -> None:
    look, store = control_access(nights.plane.place, "baseline"), Store(nights.plane, capsys)
    first, slow = store.run("20261114-0200-orders-aaaa"), store.run("20261115-0200-orders-bbbb", slower=1.2)
    elsewhere = store.run("20261116-0200-orders-cccc", warehouse="BIG_WH")

    assert check_baseline("latest~2", look) == first
    worse = judge_against_baseline(first, look, summary_of(slow, 48.0, 8, "5.2.0", "COMPLETED", ()))
    assert (worse["verdict"], worse["exit_code"]) == ("failed", 11)
    assert worse["exit_reason"].startswith(f"baseline {first}: worse: p")
    better = judge_against_baseline(slow, look, summary_of(first, 40.0, 8, "5.2.0", "COMPLETED", ()))
    assert (better["verdict"], better["exit_code"], better["exit_reason"]) == ("passed", 0, "done")
    assert better["baseline"]["verdict"] == "better"
    other = judge_against_baseline(first, look, summary_of(elsewhere, 40.0, 8, "5.2.0", "COMPLETED", ()))
    assert (other["verdict"], other["exit_code"]) == ("error", 2)
    assert other["exit_reason"] == f"baseline {first}: not comparable: they differ in target.warehouse"
    stopped = summary_of(slow, 48.0, 8, "5.2.0", "CANCELLED", ())
    assert judge_against_baseline(first, look, stopped) == stopped
