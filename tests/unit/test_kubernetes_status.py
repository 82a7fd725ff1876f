"""What the state of a Job, its pods and its events means for each worker."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.spawn.kubernetes_job import (
    IndexStatus,
    PodReason,
    index_statuses,
    indexes_of,
    read_job,
    read_pods,
    read_refusal,
)
from tests.kubernetes_cluster import checked, condition, pod_status


def pod(status: dict[str, Any], *, index: int = 1, name: str = "p1", deleted: bool = False) -> dict[str, Any]:
    metadata: dict[str, Any] = {
        "name": name,
        "annotations": {"batch.kubernetes.io/job-completion-index": str(index)},
    }
    if deleted:
        metadata["deletionTimestamp"] = "2026-11-15T02:00:00Z"
    body = {"metadata": metadata, "spec": {"nodeName": "n1", "containers": []}, "status": status}
    checked("V1Pod", body)
    return body


def status_of(
    *pods: dict[str, Any], job_status: dict[str, Any] | None = None, refused: PodReason | None = None
) -> IndexStatus:
    """Of worker 1 of two."""
    body = {"metadata": {"uid": "u"}, "spec": {"completions": 2, "template": {}}, "status": job_status or {}}
    return index_statuses(read_job(body), read_pods({"items": list(pods)}), refused)[1]


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return pod_status("Pending", {"waiting": {"reason": reason, "message": message}})


def terminated(code: int, reason: str, phase: str = "Failed", **more: Any) -> dict[str, Any]:
    return pod_status(phase, {"terminated": {"exitCode": code, "reason": reason}}, **more)


MISSING = "rpc error: code = NotFound desc = registry.example/loadgen:1.0: not found"
NO_NODE = "0/3 nodes are available: 3 Insufficient cpu."
UNSCHEDULABLE = condition("PodScheduled", "Unschedulable", NO_NODE, holds=False)
DRAIN = condition("DisruptionTarget", "EvictionByEvictionAPI", "Eviction API: evicting")
TAINT = condition("DisruptionTarget", "DeletionByTaintManager", "Taint manager: deleting")


@pytest.mark.parametrize(
    ("status", "deleted", "sentence"),
    [
        (pod_status("Running", {"running": {}}), False, None),
        (pod_status("Pending"), False, None),
        (waiting("ContainerCreating"), False, None),
        (waiting("ErrImagePull", "toomanyrequests: slow down"), False, None),
        (
            pod_status("Pending", conditions=[condition("PodScheduled", "Unschedulable", NO_NODE, holds=False)]),
            False,
            None,
        ),
        (terminated(0, "Completed", "Succeeded"), False, "exited with code 0"),
        (terminated(3, "Error"), False, "exited with code 3"),
        (terminated(137, "Error"), False, "was killed by signal 9"),
        (terminated(3, "Error", "Running"), False, "exited with code 3"),  # a sidecar keeps the pod running
        (
            terminated(137, "OOMKilled"),
            False,
            "was killed on node n1: OOMKilled, it used more memory than its limit; raise spawner.resources",
        ),
        (
            waiting("ImagePullBackOff", f"Back-off pulling image: {MISSING}"),
            False,
            f"cannot start: ImagePullBackOff: Back-off pulling image: {MISSING}; check spawner.image, and that the"
            " cluster may pull it",
        ),
        (
            waiting("CreateContainerConfigError", 'secret "s" not found'),
            False,
            'cannot start: CreateContainerConfigError: secret "s" not found; check spawner.image and spawner.secret',
        ),
        (
            pod_status("Failed", reason="Evicted", message="The node was low on resource: memory."),
            False,
            "was evicted from node n1: The node was low on resource: memory.",
        ),
        (pod_status("Failed", reason="DeadlineExceeded"), False, "was ended: the deadline of its Job has passed"),
        (
            pod_status("Running", {"running": {}}, reason="NodeLost", message="Node n1 which was running pod is gone"),
            True,
            "was lost with node n1: NodeLost: Node n1 which was running pod is gone",
        ),
        (pod_status("Unknown"), False, "was lost with node n1: the node does not answer"),
        (pod_status("Running", {"running": {}}, conditions=[DRAIN]), False, None),
        (
            pod_status("Running", {"running": {}}, conditions=[TAINT]),
            True,
            "was ended by Kubernetes on node n1: DeletionByTaintManager: Taint manager: deleting",
        ),
        (
            terminated(0, "Completed", "Failed", conditions=[DRAIN]),
            False,
            "was ended by Kubernetes on node n1: EvictionByEvictionAPI: Eviction API: evicting",
        ),
        (terminated(137, "ContainerStatusUnknown"), False, "was lost with node n1: ContainerStatusUnknown"),
        (
            pod_status("Failed", reason="OutOfcpu", message="Node didn't have enough cpu"),
            False,
            "was lost on node n1: OutOfcpu: Node didn't have enough cpu",
        ),
    ],
)
def test_what_the_state_of_a_pod_means_for_its_worker(status, deleted, sentence):
    worker = status_of(pod(status, deleted=deleted))

    end = worker.end("worker-1", ("last words",))

    assert (None if end is None else end.sentence) == (None if sentence is None else f"worker-1 {sentence}")
    assert end is None or end.last_lines == ("last words",)
    assert worker.has_failed == (sentence is not None and sentence != "exited with code 0")


@pytest.mark.parametrize(
    ("status", "waits", "held_up"),
    [
        (pod_status("Running", {"running": {}}), "", False),
        (pod_status("Pending"), "its pod is pending", False),
        (waiting(""), "its pod is pending", False),
        (waiting("ContainerCreating"), "ContainerCreating", False),
        (waiting("ErrImagePull", "toomanyrequests: slow down"), "ErrImagePull: toomanyrequests: slow down", True),
        (
            pod_status("Pending", conditions=[UNSCHEDULABLE]),
            f"Unschedulable: {NO_NODE}",
            True,
        ),
    ],
)
def test_why_a_pod_has_not_started(status, waits, held_up):
    worker = status_of(pod(status))

    assert (worker.waits, worker.is_held_up) == (waits, held_up)


QUOTA = 'Error creating: pods "x" is forbidden: exceeded quota: q, requested: cpu=1, used: cpu=4, limited: cpu=4'
NO_ACCOUNT = 'Error creating: pods "x" is forbidden: error looking up service account bench/a: not found'


@pytest.mark.parametrize(
    ("message", "sentence", "waits"),
    [
        (QUOTA, None, f"FailedCreate: {QUOTA}"),
        (NO_ACCOUNT, f"worker-1 cannot start: FailedCreate: {NO_ACCOUNT}", f"FailedCreate: {NO_ACCOUNT}"),
        (None, None, "Kubernetes has not created its pod"),
    ],
)
def test_why_there_is_no_pod(message, sentence, waits):
    created = {"reason": "SuccessfulCreate", "message": "Created pod: y", "lastTimestamp": "2026-11-15T03:00:00Z"}
    older = {"reason": "FailedCreate", "message": "older", "lastTimestamp": "2026-11-15T01:00:00Z"}
    newer = {"reason": "FailedCreate", "message": message, "lastTimestamp": "2026-11-15T02:00:00Z"}
    events = [newer, older, created] if message else [created]

    worker = status_of(refused=read_refusal({"items": events}))

    end = worker.end("worker-1")
    assert (None if end is None else end.sentence) == sentence
    assert worker.waits == waits
    assert worker.is_held_up == (message is not None)


@pytest.mark.parametrize(
    ("job_status", "sentence"),
    [
        ({}, None),
        ({"completedIndexes": "0-1"}, "worker-1 exited with code 0"),
        ({"failedIndexes": "1"}, "worker-1 was lost: its pod was deleted"),
        ({"failedIndexes": "0"}, None),
        (
            {"conditions": [condition("FailureTarget", "DeadlineExceeded", "Job was active longer than specified")]},
            "worker-1 was ended: the deadline of its Job has passed",
        ),
    ],
)
def test_the_end_of_a_worker_whose_pod_was_deleted(job_status, sentence):
    end = status_of(job_status=job_status).end("worker-1")

    assert (None if end is None else end.sentence) == sentence


@pytest.mark.parametrize(
    ("first", "second", "sentence"),
    [
        (pod_status("Running", {"running": {}}), terminated(1, "Error"), None),
        (terminated(1, "Error"), pod_status("Running", {"running": {}}), None),
        (terminated(0, "Completed", "Succeeded"), terminated(1, "Error"), "worker-1 exited with code 0"),
        (terminated(4, "Error"), terminated(1, "Error"), "worker-1 exited with code 4"),
    ],
)
def test_two_pods_of_one_index_are_one_worker(first, second, sentence):
    worker = status_of(pod(first, name="a"), pod(second, name="b"), job_status={"failedIndexes": "1"})

    end = worker.end("worker-1")
    assert (None if end is None else end.sentence) == sentence


def test_a_second_pod_waits_when_the_first_has_ended():
    worker = status_of(pod(terminated(1, "Error"), name="a"), pod(waiting("ErrImagePull"), name="b"))

    assert (worker.waits, worker.is_held_up) == ("ErrImagePull", True)


REASONS = ["", "ContainerCreating", "ImagePullBackOff", "CreateContainerConfigError", "CrashLoopBackOff", "New"]
STATES = st.one_of(
    st.none(),
    st.builds(lambda reason: {"waiting": {"reason": reason}}, st.sampled_from(REASONS)),
    st.just({"running": {}}),
    st.builds(lambda code: {"terminated": {"exitCode": code, "reason": "Error"}}, st.sampled_from([0, 1, 137, 143])),
)
STATUSES = st.builds(
    lambda phase, state, conditions, why: pod_status(phase, state, conditions=conditions, **why),
    st.sampled_from(["Pending", "Running", "Succeeded", "Failed", "Unknown"]),
    STATES,
    st.lists(st.sampled_from([UNSCHEDULABLE, DRAIN, TAINT]), unique_by=str),
    st.sampled_from([{}, {"reason": "Evicted"}, {"reason": "NodeLost"}, {"reason": "DeadlineExceeded"}]),
)


@given(st.lists(st.tuples(STATUSES, st.booleans()), max_size=2))
def test_a_worker_runs_or_has_ended_or_waits_for_a_reason_in_every_state_of_its_pods(said):
    pods = [pod(status, name=f"p{n}", deleted=deleted) for n, (status, deleted) in enumerate(said)]

    worker = status_of(*pods)

    runs = any(status["phase"] == "Running" for status, _ in said)
    assert runs or worker.end("worker-1") is not None or worker.waits  # what waits is given up in time


def test_pods_of_others_are_not_workers():
    body = pod(pod_status("Running"))
    del body["metadata"]["annotations"]

    assert read_pods({"items": [body, None]}) == ()
    assert indexes_of("0,2-4,x,9") == {0, 2, 3, 4, 9}
