"""A run measures with one model of its warehouse from beginning to end, or it is INVALID: also when the server is
restarted, or another client changes the model. The history of the server contains what was executed, and how."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.embedded_server import EmbeddedServer
from tests.process.run_harness import MEASURES, Program, history, run_harness
from tests.process.served import Server, serving
from tests.processes import reachable_directory, wait_until

SERVICE_MS = 50.0
MODEL = {"slots": 2, "service_time": f"{SERVICE_MS:g}ms"}
LOAD = {"connections": 4, "duration": "25s"}
IN_FORCE = "the model of warehouse"


@pytest.fixture
def folder() -> Iterator[Path]:
    """Not removed before the servers in it have ended."""
    with reachable_directory() as path:
        yield path


@contextmanager
def again(server: Server, data_dir: Path) -> Iterator[Server]:
    """The server killed, and another one in its place."""
    server.process.kill()
    server.process.wait()
    with serving(data_dir, "--port", str(server.port)) as successor:
        yield successor


def measured(server: EmbeddedServer, run: Program, statements: int) -> None:
    run.wait_for(MEASURES)
    wait_until(lambda: history(server, run.run_id)[None] >= statements, f"{statements} statements: {run.said}")


def paused(server: EmbeddedServer, run: Program) -> int:
    """No statement is answered any more. How many have succeeded for the measurement before that."""
    server.fault(match="SELECT 1", kind="hang")
    wait_until(lambda: server.ask("/__loadgen/stats")["warehouses"][warehouse(run)]["running"] == 0, "none runs")
    return len(executed(server, run))


def warehouse(run: Program) -> str:
    (scenario,) = run.folder.glob("runs/*/scenario.yaml")
    return str(json.loads(scenario.read_text("utf-8"))["target"]["warehouse"])


def executed(server: EmbeddedServer, run: Program) -> list[dict[str, Any]]:
    """The statements of the measurement that succeeded."""
    lines = [line for line in server.history(run.run_id) if line["sql_text"] == "SELECT 1" and not line["error_code"]]
    return [line for line in lines if json.loads(line["query_tag"]).get("phase") == "MEASUREMENT"]


def reasons(run: Program) -> str:
    return "; ".join(run.summary["validity"]["reasons"])


@pytest.mark.slow
def test_the_model_of_a_run_survives_a_server_that_is_killed_and_started_again(folder: Path) -> None:
    with serving(folder / "data") as server, run_harness(server, folder / "home", embedded=MODEL) as harness:
        run = harness.run(load=LOAD)
        measured(server, run, 50)
        before = paused(server, run)
        with again(server, folder / "data") as successor:
            wait_until(lambda: len(executed(successor, run)) >= 50, f"it goes on: {run.said}")
            assert run.ended() in (0, 5), run.said
            after = executed(successor, run)

    summary = run.summary
    assert min(line["execution_ms"] for line in after) >= SERVICE_MS - 1
    assert summary["totals"]["succeeded"] == before + len(after)
    assert summary["totals"]["failed"] >= LOAD["connections"], "each connection has lost a statement"
    assert IN_FORCE not in reasons(run)
    assert summary["validity"]["valid"] is (summary["delivered"]["fraction"] >= 0.99), "the outage is missing load"


@pytest.mark.slow
def test_a_run_whose_server_came_back_with_another_data_directory_is_invalid(folder: Path) -> None:
    """The control plane is elsewhere and survives."""
    with (
        serving(folder / "control") as control,
        serving(folder / "data") as server,
        run_harness(server, folder / "home", {"elsewhere": control}, embedded=MODEL) as harness,
    ):
        assert harness.start("setup", "-c", "elsewhere").ended() == 0
        run = harness.run(load=LOAD, control={"connection": "elsewhere"})
        measured(server, run, 50)
        with again(server, folder / "other") as successor:
            wait_until(lambda: len(executed(successor, run)) >= 50, f"it goes on: {run.said}")
            assert run.ended() == 5, run.said

    assert IN_FORCE in reasons(run)


def test_a_run_whose_warehouse_was_altered_is_invalid(server: EmbeddedServer, tmp_path: Path) -> None:
    """Without slots of its model the warehouse has those of its settings."""
    with run_harness(server, tmp_path, embedded={"service_time": MODEL["service_time"]}) as harness:
        run = harness.run(load=LOAD | {"duration": "5s"})
        measured(server, run, 20)
        with server.connect() as connection:
            connection.cursor().execute(f"ALTER WAREHOUSE {warehouse(run)} SET MAX_CONCURRENCY_LEVEL = 2")

        assert run.ended() == 5, run.said

    assert f"the settings of warehouse {warehouse(run)} were changed while the run measured" in reasons(run)


@pytest.mark.slow
def test_a_run_whose_model_was_deleted_is_invalid(server: EmbeddedServer, tmp_path: Path) -> None:
    with run_harness(server, tmp_path, embedded=MODEL) as harness:
        run = harness.run(load=LOAD | {"duration": "5s"})
        measured(server, run, 50)
        body = {"name": warehouse(run), "pid": run.process.pid}
        server.ask("/__loadgen/warehouses", method="DELETE", body=body)
        server.ask("/__loadgen/warehouses", method="POST", body=body | MODEL)  # undisturbed

        assert run.ended() == 5, run.said

    assert IN_FORCE in reasons(run)


@pytest.mark.slow
def test_a_run_that_is_refused_does_not_disturb_the_one_that_measures(server: EmbeddedServer, tmp_path: Path) -> None:
    with run_harness(server, tmp_path, embedded=MODEL) as harness:
        first = harness.run(load=LOAD | {"duration": "8s"}, target={"warehouse": "REFUSING_WH"})
        measured(server, first, 20)
        second = harness.run(
            "--share-warehouse", target={"warehouse": "REFUSING_WH"}, embedded={"slots": 3, "service_time": "1ms"}
        )

        assert second.ended() == 75, second.said
        assert first.ended() == 0, first.said

    assert first.summary["validity"] == {"valid": True, "reasons": []}
