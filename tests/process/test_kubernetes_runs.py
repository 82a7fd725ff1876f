"""Whole runs whose workers are pods: real processes behind an API server on loopback, and their failures."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.embedded_server import EmbeddedServer
from tests.kubernetes_cluster import SPAWNER, Cluster, RequestFault, condition, login_secret, pod_status
from tests.process.container_harness import ContainerHarness, result
from tests.processes import alive, wait_until


@pytest.fixture
def cluster(server: EmbeddedServer, tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, secrets={"snowflake": login_secret(server.host, server.port)}) as running:
        yield running


@pytest.fixture
def harness(server: EmbeddedServer, tmp_path: Path, cluster: Cluster) -> Iterator[ContainerHarness]:
    made = ContainerHarness(server, tmp_path, SPAWNER, KUBECONFIG=str(cluster.kubeconfig))
    yield made
    made.close()


def test_a_run_with_its_workers_in_pods_one_of_them_twice(harness, cluster):
    cluster.second_pods = {1}

    ended = result(harness.run("bench", warehouse="POD_WH", duration="2s"))

    assert (ended["code"], ended["status"]) == (0, "COMPLETED"), ended
    assert [one["worker_id"] for one in ended["worker_results"]] == ["worker-0", "worker-1"]
    assert ended["totals"]["succeeded"] > 0
    name = f"loadgen-{ended['run_id']}"
    (manifest,) = cluster.manifests
    assert (manifest["metadata"]["name"], manifest["spec"]["completions"]) == (name, 2)
    assert "any" not in str(manifest)  # the password
    # Nothing is left, and the logs of the pods are here.
    assert cluster.removed == [(name, "Background")]
    assert cluster.jobs == {}
    wait_until(lambda: not alive(cluster.pids()), "its workers have ended")
    rows = harness.plane.rows("SELECT WORKER_ID, HOSTNAME, LABELS FROM WORKER_HEARTBEATS ORDER BY WORKER_ID")
    assert [(worker, host.rpartition("-")[0]) for worker, host, _ in rows] == [
        (f"worker-{n}", f"{name}-{n}") for n in range(2)
    ]
    assert all('"node=node-a","pod_uid=uid-' in labels for _, _, labels in rows)
    logs = [path.read_text("utf-8") for path in harness.folder.glob(f"{name}-1-*/log")]
    assert len(logs) == 2
    refusal = r"worker worker-1 of run .* is alive: the last heartbeat of process"
    assert sum(re.search(refusal, log) is not None for log in logs) == 1
    kept = {path.name for path in (harness.folder / "runs" / ended["run_id"] / "logs").iterdir()}
    assert kept == {"worker-0.log", "worker-1.log"}


@pytest.mark.slow
def test_ctrl_c_removes_the_job(harness, cluster):
    process = harness.run("bench", warehouse="STOPPED_WH", duration="60s")
    harness.wait_measuring(process)

    process.send_signal(signal.SIGINT)

    ended = result(process)
    assert (ended["code"], ended["status"]) == (130, "CANCELLED"), ended
    assert cluster.jobs == {}
    wait_until(lambda: not alive(cluster.pids()), "its workers have ended")


@pytest.mark.slow  # test_kubernetes.py gives pods up with their reason
def test_pods_without_their_secret_fail_the_run_at_once_and_name_it(harness, cluster):
    cluster.secrets = {}

    ended = result(harness.run("bench", warehouse="NO_SECRET_WH", duration="60s"))

    assert (ended["code"], ended["status"]) == (4, "FAILED")
    assert 'worker-0 cannot start: CreateContainerConfigError: secret "snowflake" not found' in ended["exit_reason"]
    assert cluster.jobs == {}


@pytest.mark.slow
def test_a_recovered_run_loses_its_job(harness, cluster):
    process = harness.run("bench", warehouse="ORPHAN_POD_WH", duration="60s")
    harness.wait_measuring(process)
    process.kill()
    process.wait()
    for number in (0, 1):
        cluster.kill(number)
    wait_until(lambda: not alive(cluster.pids()), "the workers are gone")
    harness.plane.change("UPDATE RUN_LEASES SET EXPIRES_AT = DATEADD(second, -12, SYSDATE())")
    harness.plane.change("UPDATE WORKER_HEARTBEATS SET LAST_HEARTBEAT = DATEADD(second, -90, SYSDATE())")
    assert len(cluster.jobs) == 1

    ended = result(harness.start("runs", "recover", "-c", "bench", "--database", harness.plane.place.database))

    assert [one["status"] for one in ended["recovered"]] == ["FAILED"], ended
    assert cluster.jobs == {}


@pytest.mark.slow
def test_stop_removes_the_job(harness, cluster):
    process = harness.run("bench", warehouse="ASKED_WH", duration="60s")
    harness.wait_measuring(process)

    asked = harness.start("stop", harness.run_id(), "-c", "bench", "--database", harness.plane.place.database)

    assert result(asked)["code"] == 0
    ended = result(process)
    assert (ended["code"], ended["status"]) == (130, "CANCELLED"), ended
    assert cluster.jobs == {}
    wait_until(lambda: not alive(cluster.pids()), "its workers have ended")


# --- pods that do not start ------------------------------------------------------------------------------------------

NO_NODE = "0/3 nodes are available: 3 Insufficient cpu."
UNSCHEDULABLE = condition("PodScheduled", "Unschedulable", NO_NODE, holds=False)
BACK_OFF = 'Back-off pulling image "registry.example/loadgen:1.0"'
PULL = {"waiting": {"reason": "ImagePullBackOff", "message": BACK_OFF}}
NOT_FOUND = {"waiting": {"reason": "ErrImagePull", "message": "registry.example/loadgen:1.0: not found"}}


@pytest.mark.slow
def test_pods_that_never_start_fail_the_run_before_the_time_to_register_is_over(harness, cluster):
    cluster.stuck = {0: pod_status("Pending", conditions=[UNSCHEDULABLE]), 1: pod_status("Pending", PULL)}

    ended = result(harness.run("bench", warehouse="STUCK_WH", duration="60s", registration="40s"))

    assert (ended["code"], ended["status"]) == (4, "FAILED"), ended
    assert f"worker-0 did not start within 36 s: Unschedulable: {NO_NODE}" in ended["exit_reason"]
    assert f"worker-1 did not start within 36 s: ImagePullBackOff: {BACK_OFF}" in ended["exit_reason"]
    assert "Insufficient cpu" in ended["said"]  # as a warning, long before
    assert cluster.jobs == {}


@pytest.mark.slow
def test_an_image_that_does_not_exist_fails_the_run_at_once(harness, cluster):
    cluster.stuck = {1: pod_status("Pending", NOT_FOUND)}

    ended = result(harness.run("bench", warehouse="NO_IMAGE_WH", duration="60s"))

    assert (ended["code"], ended["status"]) == (4, "FAILED"), ended
    said = "worker-1 cannot start: ErrImagePull: registry.example/loadgen:1.0: not found; check spawner.image"
    assert said in ended["exit_reason"]
    assert cluster.jobs == {}
    wait_until(lambda: not alive(cluster.pids()), "the other worker has ended")


# --- pods that end ---------------------------------------------------------------------------------------------------

OOM = pod_status("Failed", {"terminated": {"exitCode": 137, "reason": "OOMKilled"}})
EVICTED = pod_status("Failed", reason="Evicted", message="The node was low on resource: memory.")
TAINT = condition("DisruptionTarget", "DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint")
# The node is unreachable: Kubernetes does not end the container, and its pod reports that until the node is removed.
NODE_LOST = pod_status("Running", {"running": {}}, reason="NodeLost", message="Node node-a is unresponsive")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("status", "sentence"),
    [
        (OOM, "worker-1 was killed on node node-a: OOMKilled, it used more memory than its limit"),
        (EVICTED, "worker-1 was evicted from node node-a: The node was low on resource: memory."),
        (NODE_LOST, "worker-1 was lost with node node-a: NodeLost: Node node-a is unresponsive"),
        (
            pod_status("Failed", {"terminated": {"exitCode": 143, "reason": "Error"}}, conditions=[TAINT]),
            "worker-1 was ended by Kubernetes on node node-a: DeletionByTaintManager: Taint manager",
        ),
    ],
    ids=["OOMKilled", "Evicted", "NodeLost", "Tainted"],
)
def test_a_worker_that_kubernetes_ends_is_named_with_the_reason(
    harness, cluster, status: dict[str, Any], sentence: str
):
    process = harness.run("bench", warehouse="LOST_POD_WH", duration="60s")
    harness.wait_measuring(process)

    cluster.kill(1, status)

    ended = result(process)
    assert (ended["code"], ended["status"]) == (4, "FAILED"), ended
    assert sentence in ended["exit_reason"]
    assert cluster.jobs == {}
    wait_until(lambda: not alive(cluster.pids()), "the other worker has ended")


# --- an API that fails -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_conflicts_and_lost_answers_change_nothing(harness, cluster):
    modified = "Operation cannot be fulfilled on resourcequotas: the object has been modified"
    cluster.faults = [
        RequestFault(verb="create jobs", status=409, message=modified),
        RequestFault(verb="create jobs", status=None, executed=True),
        RequestFault(verb="get jobs", status=None),
        RequestFault(verb="list pods", status=503, count=2),
        RequestFault(verb="delete jobs", status=None, executed=True),
    ]

    ended = result(harness.run("bench", warehouse="FLAKY_WH", duration="12s"))

    assert ended["status"] == "COMPLETED", ended  # INVALID where the machine is too busy
    assert [fault for fault in cluster.faults if fault.count] == []  # all of them happened
    assert len(cluster.manifests) == 1
    assert cluster.jobs == {}


@pytest.mark.slow
def test_a_run_goes_on_without_the_api_and_names_the_job_that_it_leaves(harness, cluster):
    calls = ("get jobs", "list pods", "delete jobs")

    process = harness.run("bench", warehouse="ALONE_WH", duration="8s")
    wait_until(lambda: bool(cluster.manifests) or process.poll() is not None, "the Job is made")
    cluster.faults = [RequestFault(verb=call, status=None, count=10_000) for call in calls]
    ended = result(process)

    assert ended["status"] == "COMPLETED", ended  # INVALID where the machine is too busy
    assert "did not answer" in ended["said"]
    assert f"kubectl delete job loadgen-{ended['run_id']} -n bench" in ended["said"]
    wait_until(lambda: not alive(cluster.pids()), "its workers have ended by themselves")


@pytest.mark.slow
def test_an_api_that_is_away_from_the_beginning_fails_the_run_with_that_reason(harness, cluster):
    cluster.faults = [RequestFault(verb="create jobs", status=None, count=10_000)]

    ended = result(harness.run("bench", warehouse="NO_API_WH", duration="60s"))

    assert ended["code"] == 3, ended
    assert "the Kubernetes API at http://127.0.0.1" in ended["error"]["message"]
    assert "hint: Check the cluster" in ended["said"]
    assert [one for (one,) in harness.plane.rows("SELECT STATUS FROM RUN_STATUS")] == ["FAILED"]
    assert cluster.manifests == []
