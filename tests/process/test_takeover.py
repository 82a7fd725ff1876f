"""Runs whose workers were started by users, and whose orchestrator is killed: `loadgen runs recover` continues them.

The tables are behind a named connection, the warehouse under test is on the embedded server: two servers, as with an
account without hybrid tables, but exchanged. The successor knows nothing but the tables.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from loadgen.embedded.datadir import DATA_DIR_VARIABLE
from loadgen.snowflake.profile_lookup import EMBEDDED_ADDRESS
from tests.embedded_server import EmbeddedServer
from tests.process.run_harness import MEASURES, Program, RunHarness, history, run_harness
from tests.processes import wait_until

# Without a leader nothing polls the warehouse, for as long as the machine takes to start the next one. These tests are
# not about that: with this interval a measurement of three minutes needs no poll.
BY_HAND = {
    "control": {"connection": "plane"},
    "spawner": {"kind": "external"},
    "timing": {"warehouse_poll": "60s"},
}


@pytest.fixture(scope="module")
def plane() -> Iterator[EmbeddedServer]:
    with EmbeddedServer("--strict-hybrid") as running:
        yield running


@pytest.fixture
def harness(server: EmbeddedServer, plane: EmbeddedServer, tmp_path: Path) -> Iterator[RunHarness]:
    with run_harness(plane, tmp_path, {"plane": plane}, embedded={"service_time": "200ms"}) as made:
        # The address of the embedded server is not given: it is found by its data directory.
        del made.environ[EMBEDDED_ADDRESS]
        made.environ[DATA_DIR_VARIABLE] = str(server.data_dir)
        setup = made.start("setup", "-c", "plane")
        assert setup.ended() == 0, setup.said
        yield made


def commands(run: Program) -> list[str]:
    """The commands that users were asked to start."""

    def said() -> list[str]:
        return [line for line in run.said.splitlines() if " loadgen worker " in line]

    run.wait_for("worker-group-id=0")
    wait_until(lambda: len(said()) == int(said()[0].rpartition("=")[2]), "every command was told")
    return said()


def recover(harness: RunHarness, *words: object) -> Program:
    return harness.start("runs", "recover", "-c", "plane", "--format", "json", *words)


def led_on(recovery: Program) -> dict[str, Any]:
    """The summary of the one run that was led on."""
    assert recovery.ended() == 0, recovery.said
    (summary,) = recovery.printed["led_on"]
    assert summary["validity"]["reasons"] == []
    return dict(summary)


def windows(harness: RunHarness, run: Program) -> Counter[tuple[str, int | None]]:
    """How often each worker has stored a window of the measurement, by step."""
    sql = "SELECT WORKER_ID, STEP_ID FROM WINDOW_RESULTS WHERE RUN_ID = ? AND PHASE = 'MEASUREMENT'"
    return Counter((worker_id, step_id) for worker_id, step_id in harness.rows(sql, run.run_id))


def test_a_run_is_led_on_in_the_middle_of_its_measurement(harness: RunHarness, server: EmbeddedServer) -> None:
    run = harness.run(load={"connections": 8, "duration": "12s"}, **BY_HAND)
    workers = [harness.worker(line) for line in commands(run)]
    run.wait_for(MEASURES)
    run.kill()
    harness.expire(run.run_id)

    both = [recover(harness, run.run_id), recover(harness, run.run_id)]

    # One of them leads. The other has waited for it, or came when the run was led again.
    leading, other = sorted(both, key=lambda one: (one.ended() != 0, not one.out or not one.printed.get("led_on")))
    summary = led_on(leading)
    assert (summary["status"], summary["exit_code"], leading.ended()) == ("COMPLETED", 0, 0), leading.said
    if other.ended() == 0:
        assert other.printed["left"] == [{"run_id": run.run_id, "why": "another process took it over and has ended it"}]
    else:
        assert (other.ended(), "is led" in other.said) == (75, True), other.said
    assert [worker.ended() for worker in workers] == [0]
    assert windows(harness, run) == {("worker-0", None): 1}
    assert summary["totals"]["succeeded"] == history(server, run.run_id)[None] > 0
    measured = [line for line in server.history(run.run_id) if line["sql_text"] == "SELECT 1"]
    assert min(line["execution_ms"] for line in measured) >= 200, "its warehouse kept its model without a leader"
    name = json.loads((run.folder / "runs" / run.run_id / "scenario.yaml").read_text("utf-8"))["target"]["warehouse"]
    assert server.ask("/__loadgen/stats")["warehouses"][name]["service_time"] is None, "it was put back at the end"
    assert harness.state(run.run_id)[0] == "COMPLETED"
    assert (leading.folder / "runs" / run.run_id / "summary.json").exists()


@pytest.mark.slow
def test_a_run_with_a_published_start_begins_though_its_leader_died_before_it_moved_the_run(
    harness: RunHarness, server: EmbeddedServer
) -> None:
    run = harness.run(load={"connections": 8, "workers": 2, "duration": "3s"}, **BY_HAND)
    lines = commands(run)
    wait_until(lambda: harness.state(run.run_id)[0] == "STARTING", "workers are waited for")
    harness.server.fault(match=r"^UPDATE RUN_STATUS SET\s+STATUS", kind="hang")
    workers = [harness.worker(line) for line in lines]
    said = "SELECT CREATED_AT, EVENT_DATA FROM RUN_CONTROL_EVENTS WHERE RUN_ID = ? AND EVENT_TYPE = 'START'"
    wait_until(lambda: harness.rows(said, run.run_id), f"START is said: {run.said}")
    run.kill()
    assert harness.state(run.run_id)[0] == "STARTING"
    harness.server.clear_faults()
    harness.expire(run.run_id)

    summary = led_on(recover(harness, run.run_id))

    assert [worker.ended() for worker in workers] == [0, 0]
    assert summary["status"] == "COMPLETED"
    assert harness.state(run.run_id)[2] == "the plan is complete"
    assert windows(harness, run) == {("worker-0", None): 1, ("worker-1", None): 1}
    assert summary["totals"]["succeeded"] == history(server, run.run_id)[None] > 0
    ((created_at, data),) = harness.rows(said, run.run_id)
    ((start_time,),) = harness.rows("SELECT START_TIME FROM RUN_STATUS WHERE RUN_ID = ?", run.run_id)
    zero = created_at + timedelta(milliseconds=json.loads(data)["lead_ms"])
    assert abs(start_time - zero) < timedelta(seconds=1), "seconds count from the zero that workers know"


@pytest.mark.slow
def test_a_search_is_led_on_between_two_steps(harness: RunHarness, server: EmbeddedServer) -> None:
    search = {"start": 8, "increment": 8, "maximum": 16, "step": "1s", "settle": "200ms", "latency_stability_pct": 900}
    load = {"mode": "find_max", "workers": 2, "connections": None, "duration": None, "warmup": "0s"}
    run = harness.run(load=load | {"find_max": search | {"qps_stability_pct": 90, "stop_on_queue": False}}, **BY_HAND)
    workers = [harness.worker(line) for line in commands(run)]
    judged = "SELECT COUNT(*) FROM FIND_MAX_STEP_HISTORY WHERE RUN_ID = ?"
    run.wait_for(MEASURES)
    wait_until(lambda: harness.rows(judged, run.run_id)[0][0] == 1, "the first step was judged")
    run.kill()
    harness.expire(run.run_id)

    summary = led_on(recover(harness, run.run_id))

    assert [worker.ended() for worker in workers] == [0, 0]
    found = summary["find_max"]
    assert (found["max_concurrency"], found["result"]) == (16, "BOUNDED_MAX"), found
    assert not [
        text for text in summary["environment"]["warnings"] if "step 1" in text and "may have added" not in text
    ]
    assert [(step["step"], step["target"], step["outcome"]) for step in found["steps"]] == [
        (1, 8, "STABLE"),
        (2, 16, "STABLE"),
        (3, 16, "STABLE"),
    ]
    sql = "SELECT STEP_NUMBER, TARGET_CONNECTIONS FROM FIND_MAX_STEP_HISTORY WHERE RUN_ID = ? ORDER BY STEP_NUMBER"
    assert harness.rows(sql, run.run_id) == [(1, 8), (2, 16), (3, 16)]
    assert summary["totals"]["succeeded"] == history(server, run.run_id)[3] > 0
    assert set(windows(harness, run)) == {(f"worker-{number}", step) for number in (0, 1) for step in (1, 2, 3)}


@pytest.mark.slow
def test_of_two_runs_without_a_leader_one_is_continued_and_the_other_named(
    harness: RunHarness, server: EmbeddedServer
) -> None:
    """Both lost their leader before their workers came."""
    runs = [harness.run(load={"connections": 8, "duration": "3s"}, **BY_HAND) for _ in range(2)]
    lines = [commands(run)[0] for run in runs]
    for run in runs:
        run.kill()
    workers = [harness.worker(line) for line in lines]
    waiting = "SELECT COUNT(*) FROM WORKER_HEARTBEATS WHERE STATUS = 'WAITING' AND (RUN_ID = ? OR RUN_ID = ?)"
    wait_until(lambda: harness.rows(waiting, *(run.run_id for run in runs)) == [(2,)], "both workers wait")
    harness.expire(*(run.run_id for run in runs))

    recovery = recover(harness)
    summary = led_on(recovery)

    (left,) = recovery.printed["left"]
    assert {summary["run_id"], left["run_id"]} == {run.run_id for run in runs}
    assert f"`loadgen runs recover {left['run_id']}` takes it over" in recovery.said
    assert summary["totals"]["succeeded"] == history(server, summary["run_id"])[None] > 0
    assert harness.state(left["run_id"])[0] == "STARTING"
    led = [run.run_id for run in runs].index(summary["run_id"])
    assert workers[led].ended() == 0


@pytest.mark.slow
def test_a_run_that_a_threshold_aborted_fails_also_when_another_leader_drains_it(
    harness: RunHarness, server: EmbeddedServer
) -> None:
    server.fault(match="'long'", kind="latency", ms=15_000)
    mix = [{"name": "short", "sql": "SELECT 1", "weight": 20}, {"name": "long", "sql": "SELECT 'long'"}]
    run = harness.run(
        load={"connections": 4, "workers": 1, "duration": "60s"},
        workload={"statements": mix},
        thresholds=[{"check": "short.p50 < 1ms", "after": "5s", "abort": True}],
        **BY_HAND,
    )
    (worker,) = [harness.worker(line) for line in commands(run)]
    run.wait_for("ending: short.p50")
    run.kill()
    harness.expire(run.run_id)

    recovery = recover(harness, run.run_id)

    assert recovery.ended() == 10, recovery.said
    (summary,) = recovery.printed["led_on"]
    assert summary["validity"]["reasons"] == []
    assert summary["aborted"]
    assert worker.ended() == 0
