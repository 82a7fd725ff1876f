"""Ends of an orchestrator: after a signal there is a result; after a kill nothing is left that would disturb the next
measurement, and the reported reason is true."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
from typing import Any

import psutil
import pytest

from loadgen.clock import SystemClock
from loadgen.control.tables.run_leases import TAKEOVER_MARGIN_S
from loadgen.errors import RunFailed
from loadgen.scenario.model import with_workers
from loadgen.scenario.read import parse_scenario
from orchestrator.service import OrchestratorService
from orchestrator.spawn.spawner import ObservedWorkers, WorkerOrder
from tests.control_plane import ControlPlane
from tests.embedded_server import EmbeddedServer
from tests.process.run_harness import MEASURES, Program, RunHarness, history
from tests.processes import PROGRAM, alive, wait_until

SLOW = {"statements": [{"name": "slow", "sql": "SELECT SYSTEM$WAIT(100)"}]}
SHORT = {"connections": 8, "warmup": "0s", "duration": "1s"}
pytestmark = pytest.mark.scenario(embedded={"service_time": "200ms"})


def on(name: str, **more: Any) -> dict[str, Any]:
    """Runs on one warehouse."""
    return {"target": {"warehouse": name, "database": "BENCH", "schema": "PUBLIC", **more}}


def worker_of(run: Program) -> psutil.Process:
    (found,) = [one for pid in run.look() if (one := psutil.Process(pid)).name() == "worker-0"]
    return found


@pytest.mark.slow  # test_run.py interrupts a run
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGQUIT])
def test_a_closed_terminal_and_a_quit_leave_a_result(harness: RunHarness, number: signal.Signals) -> None:
    run = harness.run()
    run.wait_for(MEASURES)
    wait_until(lambda: history(harness.server, run.run_id)[None] > 5, "it has measured something")

    run.send(number)

    assert run.ended() == 128 + number, run.said
    run.wait_alone()
    summary = run.summary
    assert (summary["status"], summary["verdict"], summary["exit_code"]) == ("CANCELLED", "cancelled", 128 + number)
    assert summary["totals"]["succeeded"] == history(harness.server, run.run_id)[None]
    assert harness.state(run.run_id)[0] == "CANCELLED"


@pytest.mark.slow
def test_a_terminal_that_is_closed_with_everything_in_it_leaves_a_result(harness: RunHarness) -> None:
    """The live view was drawn there, and the result would be printed there."""
    path = harness.home / "scenario.yaml"
    path.write_text(harness.text(950), "utf-8")
    pid, master = pty.fork()
    if pid == 0:  # the child: its terminal is the one that the test closes
        os.chdir(harness.home)
        os.execve(PROGRAM[0], [*PROGRAM, "run", str(path)], {**harness.environ, "TERM": "xterm", "LC_ALL": "C.UTF-8"})

    def measures() -> bool:
        while select.select([master], [], [], 0)[0]:  # or it could not draw
            os.read(master, 65_536)
        return any(history(harness.server, folder.name)[None] > 5 for folder in harness.home.glob("runs/*"))

    try:
        wait_until(measures, "it measures")
    finally:
        os.close(master)
    _, status = os.waitpid(pid, 0)

    assert os.waitstatus_to_exitcode(status) == 128 + signal.SIGHUP
    (file,) = harness.home.glob("runs/*/summary.json")
    summary = json.loads(file.read_text("utf-8"))
    assert (summary["verdict"], summary["exit_code"]) == ("cancelled", 129)
    assert (file.parent / "report.html").exists()


@pytest.mark.slow
def test_a_hang_up_that_is_ignored_stays_ignored(harness: RunHarness) -> None:
    """As after `nohup`, which a program inherits."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        run = harness.run(load={"connections": 8, "warmup": "0s", "duration": "2s"})
    finally:
        signal.signal(signal.SIGHUP, before)
    run.wait_for(MEASURES)
    run.send(signal.SIGHUP)

    assert run.ended() == 0, run.said
    assert run.summary["status"] == "COMPLETED"


@pytest.mark.slow
def test_a_run_that_was_ended_at_once_does_not_keep_its_warehouse(harness: RunHarness) -> None:
    run = harness.run(workload=SLOW, **on("ENDED_WH", statement_timeout="2m"))
    run.wait_for(MEASURES)
    for heard in ("again to cancel them", "cancelling", "ended at once"):
        run.send(signal.SIGINT)
        wait_until(lambda: heard in run.said or run.process.poll() is not None, heard)  # noqa: B023
    assert run.ended() == 130
    run.wait_alone()
    living = "SELECT COUNT(*) FROM RUN_LEASES WHERE RUN_ID = 'warehouse:EMBEDDED/ENDED_WH' AND EXPIRES_AT > SYSDATE()"
    held = harness.rows(living)

    after = harness.run(load=SHORT, **on("ENDED_WH"))

    assert after.ended() == 0, after.said
    assert held == [(1,)] or "ended at once" not in run.said


@pytest.mark.slow
def test_no_run_is_measured_while_workers_of_a_dead_orchestrator_are_alive(harness: RunHarness) -> None:
    """Their statements are long, and they wait for them."""
    run = harness.run(workload=SLOW, timing={"drain_interrupt": "60s"}, **on("KILLED_WH", statement_timeout="2m"))
    run.wait_for(MEASURES)
    worker = worker_of(run)
    run.kill()

    refused = harness.run(load=SHORT, **on("KILLED_WH"))
    assert refused.ended() == 75, refused.said
    why = f"run {run.run_id} has no leader any more, and its workers still generate load there: worker-0"
    assert why in refused.said
    waiting = harness.run("--wait", load=SHORT, **on("KILLED_WH"))
    waiting.wait_for(f"waiting: run {run.run_id} has no leader any more")
    worker.terminate()  # once more: it does not wait for its statements

    assert waiting.ended() == 0, waiting.said
    assert not alive(run.pids)


@pytest.mark.slow
def test_the_run_of_a_dead_orchestrator_is_ended_without_waiting_for_its_lease(harness: RunHarness) -> None:
    """Its workers were killed with it, without a last heartbeat. Its last statements have time to end."""
    run = harness.run(timing={"lease_ttl": "10m"})
    run.wait_for(MEASURES)
    living = harness.recover(run.run_id)
    assert living.ended() == 75
    assert f"it is led by process {run.process.pid} on " in living.said
    worker = worker_of(run)
    run.send(signal.SIGSTOP)  # or it would see its worker's end
    worker.kill()
    run.kill()
    run.wait_alone()
    since_ms = harness.server.ask("/__loadgen/stats")["now_ms"]

    recovery = harness.recover(run.run_id)

    assert recovery.ended() == 0, recovery.said
    assert f"waiting for run {run.run_id}: process {run.process.pid} on " in recovery.said
    assert [(one["run_id"], one["status"]) for one in recovery.printed["recovered"]] == [(run.run_id, "FAILED")]
    assert harness.state(run.run_id)[0] == "FAILED"
    expired_ms, claimed_ms = lease_changes(harness, since_ms)
    assert claimed_ms - expired_ms >= TAKEOVER_MARGIN_S * 1000


def lease_changes(harness: RunHarness, since_ms: float) -> tuple[float, float]:
    """When the lease of the dead orchestrator was ended, and when its successor got its lease, by the server's
    clock."""
    texts = [(line["sql_text"], line) for line in harness.server.history(since_ms=since_ms)]
    expired = next(line for text, line in texts if text.startswith("UPDATE RUN_LEASES SET EXPIRES_AT = SYSDATE()"))
    claimed = next(line for text, line in texts if text.startswith("INSERT INTO RUN_LEASES"))
    return expired["end_ms"], claimed["start_ms"]


@pytest.mark.slow
def test_workers_that_outlive_their_orchestrator_for_a_while_are_waited_for(harness: RunHarness) -> None:
    """They are not led on: they end because it has ended."""
    run = harness.run(workload=SLOW, timing={"drain_interrupt": "60s"}, **on("DRAINING_WH", statement_timeout="2m"))
    run.wait_for(MEASURES)
    worker = worker_of(run)
    run.kill()

    recovery = harness.recover(run.run_id)
    recovery.wait_for(f"waiting for run {run.run_id}: ")
    worker.terminate()  # once more: it does not wait for its statements

    assert recovery.ended() == 0, recovery.said
    assert [one["status"] for one in recovery.printed["recovered"]] == ["FAILED"]
    assert recovery.printed["led_on"] == []


def test_the_next_run_ends_the_run_of_a_dead_orchestrator(harness: RunHarness) -> None:
    run = harness.run(**on("NEXT_WH"))
    run.wait_for(MEASURES)
    run.kill()
    run.wait_alone()
    harness.expire(run.run_id)

    after = harness.run(**on("NEXT_WH"))

    after.wait_for(MEASURES)
    after.send(signal.SIGINT)
    assert after.ended() == 130, after.said
    assert harness.state(run.run_id)[0] == "FAILED"


@pytest.mark.slow
def test_a_stopped_run_of_a_dead_orchestrator_is_not_reported_as_led(harness: RunHarness) -> None:
    run = harness.run(**on("STOPPED_WH"))
    run.wait_for(MEASURES)
    run.kill()
    run.wait_alone()

    stopped = harness.start("stop", run.run_id, "-c", "embedded")

    assert stopped.ended() == 0, stopped.said
    assert (
        "no process leads it: its workers will end without one; then `loadgen runs recover` ends the run" in stopped.out
    )
    recovery = harness.recover(run.run_id)
    assert recovery.ended() == 0, recovery.said
    assert harness.state(run.run_id)[0] == "FAILED"


@pytest.mark.slow
def test_workers_elsewhere_whose_orchestrator_died_are_not_measured_beside(harness: RunHarness) -> None:
    """They were started by people, and work on for a while."""
    run = harness.run(spawner={"kind": "external"}, timing={"registration": "60s"}, **on("EXTERNAL_WH"))
    run.wait_for("loadgen worker")
    line = next(line for line in run.said.splitlines() if " loadgen worker " in line)
    worker = harness.worker(line)
    run.wait_for(MEASURES)
    run.kill()
    harness.expire(run.run_id)  # that of the warehouse, too

    refused = harness.run(load=SHORT, **on("EXTERNAL_WH"))

    assert refused.ended() == 75, refused.said
    why = f"run {run.run_id} has no leader any more, and its workers still generate load there: worker-0"
    assert why in refused.said
    shared = harness.run("--share-warehouse", load=SHORT, **on("EXTERNAL_WH"))
    assert shared.ended() == 0, shared.said
    worker.process.kill()


class NoProcess(ObservedWorkers):
    """The machine has none left."""

    def start(self, orders: tuple[WorkerOrder, ...]) -> None:
        raise BlockingIOError(11, os.strerror(11))

    def close(self) -> None:
        raise OSError("not even that works")


def test_workers_that_cannot_be_started_end_the_run(server: EmbeddedServer) -> None:
    plane = ControlPlane(server)
    text = (
        "version: 1\nname: x\nconnection: embedded\nload: {workers: 1}\n"
        "workload: {statements: [{name: s, sql: SELECT 1}]}\n"
    )
    parsed = with_workers(parse_scenario(text, source="x.yaml", environ={}).scenario, 1)
    service = OrchestratorService(plane.place, lambda _: NoProcess(), clock=SystemClock(), environ=plane.environ)
    run_id = service.create_run(parsed)

    with pytest.raises(RunFailed, match=r"workers could not be started: .*Resource temporarily unavailable"):
        service.start_run(run_id)

    ((status, reason),) = plane.rows("SELECT STATUS, REASON FROM RUN_STATUS WHERE RUN_ID = ?", run_id)
    assert (status, "Resource temporarily unavailable" in reason) == ("FAILED", True)
    plane.close()
