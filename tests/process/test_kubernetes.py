"""The spawner of pods, against an API server on loopback that plays faults. Whole runs: test_kubernetes_runs.py."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loadgen.clock import Clock, SystemClock
from loadgen.control.tables import run_leases
from loadgen.errors import ConfigurationError, ConnectFailed, LoadgenError, PrivilegeMissing, RunFailed
from loadgen.scenario.read import parse_scenario
from orchestrator.spawn.containers import ContainerSpawner
from orchestrator.spawn.kubernetes import KubernetesWorkerJob
from orchestrator.spawn.kubernetes_job import RULES, KubernetesJob
from orchestrator.spawn.spawner import WorkerOrder
from tests.control_plane import ControlPlane, retries
from tests.kubernetes_cluster import SPAWNER, Cluster, RequestFault, condition, pod_status
from tests.processes import wait_until


class NoWait(SystemClock):
    """Pauses between attempts take no time; the poll of pods does."""

    def wait(self, event: Any, timeout_s: float) -> bool:
        return super().wait(event, 0.0 if timeout_s >= 1 else timeout_s)


class Spawners:
    """Spawners with two workers each, in a cluster whose pods have scripted states."""

    def __init__(self, cluster: Cluster, plane: ControlPlane, folder: Path) -> None:
        self.cluster, self.plane, self.folder = cluster, plane, folder
        self.run_id = plane.new_run()
        self.environ = {**plane.environ, "KUBECONFIG": str(cluster.kubeconfig)}
        self.clock: Clock = NoWait()

    def job(self) -> KubernetesJob:
        text = (
            "version: 1\nname: orders\nworkload: {statements: [{name: one, sql: SELECT 1}]}\n"
            f"load: {{connections: 2, workers: 2}}\nspawner: {SPAWNER}\n"
        )
        return KubernetesJob.of_scenario(parse_scenario(text, source="x", environ={}).scenario, self.run_id, {})

    def opened(self) -> KubernetesWorkerJob:
        job = self.job()
        where: dict[str, Any] = {"context": None, "namespace": None, "clock": self.clock, "environ": self.environ}
        return KubernetesWorkerJob(self.plane.place, job.name, job, **where)

    def spawner(self, **more: Any) -> ContainerSpawner:
        return ContainerSpawner(self.opened, self.folder, clock=SystemClock(), poll_s=0.05, **more)

    def orders(self) -> tuple[WorkerOrder, ...]:
        return tuple(
            WorkerOrder(run_id=self.run_id, worker_id=f"worker-{n}", worker_group_id=n, worker_group_count=2)
            for n in range(2)
        )

    def started(self, **more: Any) -> ContainerSpawner:
        spawner = self.spawner(**more)
        spawner.start(self.orders())
        return spawner


@pytest.fixture
def spawners(plane: ControlPlane, tmp_path: Path) -> Iterator[Spawners]:
    with Cluster(tmp_path) as quiet:
        yield Spawners(quiet, plane, tmp_path)


def sentences(spawner: ContainerSpawner, count: int = 1) -> list[str]:
    wait_until(lambda: len(spawner.ended()) >= count, "the ends are seen")
    return [end.sentence for end in spawner.ended()]


def test_the_role_has_the_verbs_that_were_used_and_no_others(spawners):
    spawner = spawners.started()  # no pod exists, so events are read
    wait_until(lambda: ("list", "", "events") in spawners.cluster.calls, "events are read")
    spawners.cluster.say(0, pod_status("Failed", {"terminated": {"exitCode": 4, "reason": "Error"}}))
    assert sentences(spawner) == ["worker-0 exited with code 4"]
    spawner.close()

    granted = {(verb, group, resource) for group, resource, verbs in RULES for verb in verbs}
    assert set(spawners.cluster.calls) == granted


def test_pending_pods_are_reported_at_once_and_given_up_with_their_reason(spawners, caplog):
    spawner = spawners.started(start_limit_s=3.0)
    no_node = condition("PodScheduled", "Unschedulable", "0/3 nodes are available", holds=False)
    spawners.cluster.say(0, pod_status("Pending", conditions=[no_node]))
    quota = 'Error creating: pods "x" is forbidden: exceeded quota: q'
    spawners.cluster.events = [{"reason": "FailedCreate", "message": quota, "lastTimestamp": "2026-11-15T02:00:00Z"}]

    wait_until(lambda: "nodes are available" in caplog.text and "exceeded quota" in caplog.text, "both are told")
    told = sentences(spawner, 2)

    assert told == [
        "worker-0 did not start within 3 s: Unschedulable: 0/3 nodes are available",
        f"worker-1 did not start within 3 s: FailedCreate: {quota}",
    ]
    spawner.close()
    assert spawners.cluster.jobs == {}


def test_a_pod_that_ran_and_was_deleted_is_lost_and_not_late(spawners):
    spawner, cluster = spawners.started(start_limit_s=0.5), spawners.cluster
    for number in range(2):
        cluster.say(number, pod_status("Running", {"running": {}}))
    seen = len(cluster.calls)
    wait_until(lambda: len(cluster.calls) > seen + 3, "the pods are seen")

    asked = cluster.calls.count(("list", "", "events"))
    cluster.only_job.pods.clear()
    wait_until(lambda: cluster.calls.count(("list", "", "events")) > asked, "they are missed")
    cluster.only_job.status = {"failedIndexes": "0,1"}

    assert sentences(spawner, 2) == [f"worker-{n} was lost: its pod was deleted" for n in range(2)]
    spawner.close()


def test_pods_that_end_are_named_with_their_reason_and_last_lines(spawners):
    spawner = spawners.started()
    spawners.cluster.say(0, pod_status("Failed", {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}))
    spawners.cluster.say(1, pod_status("Failed", reason="Evicted", message="The node was low on memory."))

    told = dict(zip(sentences(spawner, 2), spawner.ended(), strict=True))

    assert sorted(told) == [
        "worker-0 was killed on node node-a: OOMKilled, it used more memory than its limit; raise spawner.resources",
        "worker-1 was evicted from node node-a: The node was low on memory.",
    ]
    assert {end.last_lines for end in told.values()} == {("pod 0 starts",), ("pod 1 starts",)}
    spawner.close()
    assert (spawners.folder / "worker-0.log").read_text("utf-8") == "pod 0 starts\n"


def test_workers_are_asked_to_end_and_then_removed(spawners):
    spawner, cluster = spawners.started(), spawners.cluster
    cluster.say(0, pod_status("Running", {"running": {}}))

    spawner.terminate(hard=False)
    wait_until(lambda: [how for _, how in cluster.removed] == ["Foreground"], "the Job is being ended")
    assert sentences(spawner, 2) == ["worker-0 ended with its job", "worker-1 ended with its job"]
    spawner.terminate(hard=True)
    spawner.close()

    assert cluster.jobs == {}


def test_a_job_that_was_deleted_has_lost_its_workers(spawners):
    spawner = spawners.started()
    spawners.cluster.jobs.clear()

    assert sentences(spawner, 2) == [f"worker-{n} was lost: its job was removed" for n in range(2)]
    spawner.close()


@pytest.mark.parametrize(
    "fault",
    [
        {"status": None, "executed": True},
        {"status": None},
        {"status": 503},
        {"status": 409, "message": "Operation cannot be fulfilled on resourcequotas: the object has been modified"},
    ],
)
def test_a_lost_answer_makes_no_second_job(spawners, caplog, fault):
    spawners.cluster.faults = [RequestFault(verb="create jobs", **fault)]

    spawner = spawners.started()

    assert len(spawners.cluster.manifests) == 1
    assert "kubernetes_away" in caplog.text
    spawners.cluster.faults = [RequestFault(verb="delete jobs", **fault)]
    spawner.close()
    assert spawners.cluster.jobs == {}
    assert "job_not_removed" not in caplog.text


def test_a_job_that_cannot_be_removed_is_named_with_the_command_that_does(spawners, caplog):
    spawner = spawners.started()
    spawners.cluster.faults = [RequestFault(verb="delete jobs", status=403, message="cannot delete", count=9)]

    spawner.close()

    assert "job_not_removed" in caplog.text
    assert f"kubectl delete job {spawners.job().name} -n bench" in caplog.text


def test_an_unreachable_api_is_reported_once_and_retried(spawners, caplog):
    caplog.set_level(logging.INFO)
    spawner = spawners.started()
    spawners.cluster.faults = [RequestFault(verb="list pods", status=None, count=3)]
    spawners.cluster.say(0, pod_status("Failed", {"terminated": {"exitCode": 3, "reason": "Error"}}))

    assert sentences(spawner) == ["worker-0 exited with code 3"]

    wait_until(lambda: "containers_seen_again" in caplog.text, "it says that it is back")
    assert [one.message.split()[0] for one in caplog.records].count("containers_not_seen") == 1
    spawner.close()


@pytest.mark.parametrize(
    ("status", "message", "count", "kind", "said", "hint"),
    [
        (None, "", 99, ConnectFailed, "did not answer", "spawner.context"),
        (401, "Unauthorized", 1, ConnectFailed, "refused the login", "Log in"),
        (403, 'cannot create resource "jobs"', 1, PrivilegeMissing, "refused the workers' Job", "loadgen grants"),
        (403, "exceeded quota: q", 1, RunFailed, "exceeds a quota", "load.workers"),
        (
            404,
            'namespaces "bench" not found',
            1,
            ConfigurationError,
            "namespace bench cannot be used",
            "spawner.namespace",
        ),
        (422, "spec.template.spec: Invalid value", 1, ConfigurationError, "rejected the workers' Job", "--dry-run"),
        (500, "etcd is away", 99, RunFailed, "could not be created: etcd is away", "later"),
    ],
)
def test_a_rejected_job_reports_its_reason_and_leaves_nothing(spawners, status, message, count, kind, said, hint):
    spawners.cluster.faults = [RequestFault(verb="create jobs", status=status, message=message, count=count)]
    spawner = spawners.spawner()

    with pytest.raises(LoadgenError, match=said) as refused:
        spawner.start(spawners.orders())

    assert type(refused.value) is kind
    assert hint in refused.value.remedy
    spawner.close()
    assert spawners.cluster.jobs == {}


def test_the_job_of_another_is_left_alone(spawners):
    first = spawners.started()
    job = spawners.cluster.only_job
    job.body["metadata"]["annotations"] = {"loadgen-run-id": "another"}

    with pytest.raises(RunFailed, match="there is another Job") as refused:
        spawners.spawner().start(spawners.orders())

    assert "kubectl delete job" in refused.value.remedy
    assert spawners.cluster.removed == []
    first.close()


def test_a_run_that_another_leads_by_now_keeps_its_workers(spawners):
    spawner = spawners.started()
    plane = spawners.plane
    assert run_leases.claim(plane.session, retries(), spawners.run_id, "elsewhere:1:abc", 30.0) is not None

    spawner.close()

    assert len(spawners.cluster.jobs) == 1
    assert spawners.cluster.removed == []


@pytest.mark.parametrize("content", ["", "{", "current-context: nowhere"])
def test_a_cluster_that_is_not_configured_is_a_configuration_error(spawners, tmp_path, content):
    broken = tmp_path / "broken"
    broken.write_text(content, "utf-8")
    spawners.environ["KUBECONFIG"] = str(broken)
    spawner = spawners.spawner()

    with pytest.raises(ConfigurationError, match="no cluster is configured here") as refused:
        spawner.start(spawners.orders())

    assert "KUBECONFIG" in refused.value.remedy
    spawner.close()
