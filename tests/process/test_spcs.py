"""Workers as replicas of one job service: real processes that know what a container would."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loadgen.clock import SystemClock
from loadgen.control.tables import run_leases
from loadgen.errors import ConfigurationError
from loadgen.model.run import ProcessEnd
from orchestrator.spawn.containers import ContainerSpawner
from orchestrator.spawn.spawner import WorkerOrder
from orchestrator.spawn.spcs import JobService, SpcsJob
from tests.control_plane import ControlPlane, retries
from tests.embedded_server import EmbeddedServer
from tests.process.container_harness import ContainerHarness, result
from tests.processes import alive, wait_until
from tests.spcs_replicas import Replicas

IMAGE = "/bench_db/loadgen/images/loadgen:1.0"
SPAWNER = f"{{kind: spcs, compute_pool: bench_pool, image: {IMAGE}}}"
_numbers = itertools.count(1)  # of jobs


@pytest.fixture
def replicas(server: EmbeddedServer, tmp_path: Path) -> Iterator[Replicas]:
    with Replicas(server, tmp_path, IMAGE) as running:
        yield running


@pytest.fixture
def harness(server: EmbeddedServer, tmp_path: Path) -> Iterator[ContainerHarness]:
    made = ContainerHarness(server, tmp_path, SPAWNER)
    yield made
    made.close()


def test_a_run_with_its_workers_in_containers(harness, replicas):
    ended = result(harness.run("bench", warehouse="SPCS_WH", duration="2s"))

    assert (ended["code"], ended["status"]) == (0, "COMPLETED"), ended
    assert [one["worker_id"] for one in ended["worker_results"]] == ["worker-0", "worker-1"]
    assert ended["totals"]["succeeded"] > 0
    job = "LOADGEN_" + ended["run_id"].upper().replace("-", "_")
    (made,) = harness.statements(f"NAME = {job}\n")
    assert made.startswith(
        f"EXECUTE JOB SERVICE\nIN COMPUTE POOL BENCH_POOL\nNAME = {job}\nASYNC = TRUE\nREPLICAS = 2\n"
    )
    (container,) = replicas.specifications[f"{harness.plane.place.database}.CONTROL.{job}"]["spec"]["containers"]
    assert container["env"] == {
        "LOADGEN_RUN_ID": ended["run_id"],
        "LOADGEN_CONNECTION": "environment",
        "LOADGEN_CONTROL_CONNECTION": "environment",
        "LOADGEN_CONTROL_DATABASE": harness.plane.place.database,
        "LOADGEN_CONTROL_SCHEMA": "CONTROL",
        "LOADGEN_CONTROL_WAREHOUSE": "LOADGEN_CONTROL_WH",
    }
    # Nothing is left, and the logs of the containers are here.
    assert harness.statements(f"DROP SERVICE IF EXISTS {job} FORCE")
    assert harness.server.ask("/__loadgen/services") == []
    wait_until(lambda: not alive(replicas.pids()), "its workers have ended")
    logs = harness.folder / "runs" / ended["run_id"] / "logs"
    said = {path.name: path.read_text("utf-8").splitlines()[0] for path in logs.iterdir()}
    assert said == {"worker-0.log": "replica 0 starts", "worker-1.log": "replica 1 starts"}


@pytest.mark.slow
def test_a_replica_that_is_killed_fails_the_run_and_is_named(harness, replicas):
    process = harness.run("embedded", warehouse="KILLED_WH", duration="60s")
    harness.wait_measuring(process)

    replicas.kill(1)

    ended = result(process)
    assert (ended["code"], ended["status"]) == (4, "FAILED")
    assert "worker-1 was killed by signal 9" in ended["exit_reason"]
    assert "worker-0" not in ended["exit_reason"]
    assert harness.server.ask("/__loadgen/services") == []
    wait_until(lambda: not alive(replicas.pids()), "the other worker has ended")


@pytest.mark.slow
def test_the_successor_of_a_leader_removes_its_job(harness, replicas):
    process = harness.run("bench", warehouse="TAKEN_WH", duration="6s")
    harness.wait_measuring(process)
    process.kill()
    process.wait()
    harness.plane.change("UPDATE RUN_LEASES SET EXPIRES_AT = DATEADD(second, -12, SYSDATE())")

    ended = result(harness.start("runs", "recover", "-c", "bench", "--database", harness.plane.place.database))

    (summary,) = ended["led_on"]
    assert summary["status"] == "COMPLETED", ended
    assert summary["totals"]["succeeded"] > 0
    assert harness.server.ask("/__loadgen/services") == []
    logs = harness.folder / "runs" / summary["run_id"] / "logs"
    assert {path.name for path in logs.iterdir()} == {"worker-0.log", "worker-1.log"}


@pytest.mark.slow
def test_recovery_of_an_orphan_removes_its_job(harness, replicas):
    process = harness.run("bench", warehouse="ORPHAN_WH", duration="60s")
    harness.wait_measuring(process)
    process.kill()
    process.wait()
    for number in (0, 1):
        replicas.kill(number)
    wait_until(lambda: not alive(replicas.pids()), "the workers are gone")
    harness.plane.change("UPDATE RUN_LEASES SET EXPIRES_AT = DATEADD(second, -12, SYSDATE())")
    harness.plane.change("UPDATE WORKER_HEARTBEATS SET LAST_HEARTBEAT = DATEADD(second, -90, SYSDATE())")
    assert len(harness.server.ask("/__loadgen/services")) == 1

    ended = result(harness.start("runs", "recover", "-c", "bench", "--database", harness.plane.place.database))

    assert [one["status"] for one in ended["recovered"]] == ["FAILED"], ended
    assert harness.server.ask("/__loadgen/services") == []


# --- the spawner alone -----------------------------------------------------------------------------------------------


class SpawnerHarness:
    """Spawners with two workers each, on a server whose containers have scripted states."""

    def __init__(self, server: EmbeddedServer, plane: ControlPlane, folder: Path) -> None:
        self.server, self.plane, self.folder = server, plane, folder
        self.run_id = plane.new_run()
        self.job_name = f"LOADGEN_YARD_{next(_numbers)}"
        self.name = f"{plane.place.database}.CONTROL.{self.job_name}"

    def spawner(self) -> ContainerSpawner:
        job = SpcsJob(name=self.job_name, compute_pool="P", image=IMAGE, warehouse=None, environment={})
        clock, place, environ = SystemClock(), self.plane.place, self.plane.environ
        return ContainerSpawner(
            lambda: JobService(place, job, clock=clock, environ=environ), self.folder, clock=clock, poll_s=0.05
        )

    def orders(self) -> tuple[WorkerOrder, ...]:
        return tuple(
            WorkerOrder(run_id=self.run_id, worker_id=f"worker-{n}", worker_group_id=n, worker_group_count=2)
            for n in range(2)
        )

    def started(self) -> ContainerSpawner:
        spawner = self.spawner()
        spawner.start(self.orders())
        return spawner

    def job(self) -> Any:
        """The job on the server; None after it was dropped."""
        return next((job for job in self.server.ask("/__loadgen/services") if job["name"] == self.name), None)

    def say(self, **instances: dict[str, Any]) -> None:
        told = {number[1:]: {"container": "worker", **state} for number, state in instances.items()}
        logs = {f"{number}/worker": f"first of {number}\nlast of {number}" for number in told}
        body = {"name": self.name, "instances": told, "logs": logs}
        assert self.server.ask("/__loadgen/services", method="POST", body=body) == {"known": True}


@pytest.fixture
def spawners(server: EmbeddedServer, plane: ControlPlane, tmp_path: Path) -> SpawnerHarness:
    return SpawnerHarness(server, plane, tmp_path)


def test_containers_that_end_are_reported_with_their_last_lines(spawners, caplog):
    spawner = spawners.started()
    spawners.say(_0={"status": "READY"}, _1={"status": "PENDING", "message": "No room"})
    wait_until(lambda: "No room" in caplog.text, "it tells why one has not started")
    assert spawner.ended() == ()

    spawners.say(_0={"status": "DONE", "exit_code": 0}, _1={"status": "FAILED", "exit_code": 4})

    wait_until(lambda: len(spawner.ended()) == 2, "both ends are seen")
    assert set(spawner.ended()) == {
        ProcessEnd(worker_id="worker-0", code=0),
        ProcessEnd(worker_id="worker-1", code=4, last_lines=("first of 1", "last of 1")),
    }
    spawner.close()
    spawner.close()
    assert spawners.job() is None
    assert (spawners.folder / "worker-0.log").read_text("utf-8") == "first of 0\nlast of 0\n"
    assert (spawners.folder / "worker-1.log").read_text("utf-8") == "first of 1\nlast of 1\n"


def test_workers_are_asked_to_end_and_then_ended(spawners):
    spawner = spawners.started()
    spawners.say(_0={"status": "READY"}, _1={"status": "READY"})
    assert spawners.job()["status"] == "RUNNING"

    spawner.terminate(hard=False)
    wait_until(lambda: spawners.job()["status"] == "CANCELLING", "the job is cancelled")
    spawner.terminate(hard=True)
    wait_until(lambda: spawners.job() is None, "the job is gone")

    assert (spawners.folder / "worker-1.log").exists()
    spawner.close()


def test_a_job_that_was_dropped_has_lost_its_workers(spawners):
    spawner = spawners.started()
    spawners.plane.change(f"DROP SERVICE {spawners.job_name}")

    wait_until(lambda: len(spawner.ended()) == 2, "both are lost")

    assert [end.sentence for end in spawner.ended()] == [f"worker-{n} was lost: its job was removed" for n in range(2)]
    spawner.close()


def test_a_lost_answer_does_not_start_a_second_job(spawners):
    spawners.server.fault(match="^EXECUTE JOB SERVICE", kind="truncate", count=1)

    spawner = spawners.started()

    assert spawners.job()["replicas"] == 2
    history = spawners.server.ask(f"/__loadgen/history?tag=spcs&since={spawners.job()['created_ms']}")
    assert [one["sql_text"] for one in history if "DESCRIBE" in one["sql_text"]] == [
        f"DESCRIBE SERVICE {spawners.job_name}"
    ]
    spawner.close()
    assert spawners.job() is None


def test_a_rejected_job_reports_its_reason_and_leaves_nothing(spawners):
    message = "Compute pool 'P' does not exist or not authorized."
    spawners.server.fault(match="^EXECUTE JOB SERVICE", kind="error", errno=2003, sqlstate="42S02", message=message)
    spawner = spawners.spawner()

    with pytest.raises(ConfigurationError, match="compute pool P cannot be used: ") as refused:
        spawner.start(spawners.orders())

    assert "SHOW COMPUTE POOLS" in refused.value.remedy
    spawner.close()
    assert spawners.job() is None


def test_a_run_that_another_leads_by_now_keeps_its_workers(spawners, caplog):
    caplog.set_level(logging.INFO)
    spawner = spawners.started()
    assert run_leases.claim(spawners.plane.session, retries(), spawners.run_id, "elsewhere:1:abc", 30.0) is not None

    spawner.close()

    assert spawners.job()["status"] == "PENDING"
    assert "job_removed" not in caplog.text
