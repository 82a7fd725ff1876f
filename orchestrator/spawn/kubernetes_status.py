"""What Kubernetes says of a Job, its pods and its events, and what that means for each worker. Pure.

    the pods of an index      the worker
    none                      waits, or cannot be made (quota, admission), or was deleted
    Pending                   waits (unschedulable, pulling the image), or cannot start
    Running                   works
    ended, all of them        has ended: by itself, or by Kubernetes

Two pods of one index may exist for a while: the worker of the second finds the first alive, and exits. The index has
ended when both have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from loadgen.log import printable
from loadgen.values import dataclass
from orchestrator.spawn.container_job import ContainerLost, process_code
from orchestrator.spawn.kubernetes_job import CONTAINER, RUN_ANNOTATION
from orchestrator.spawn.spawner import ProcessEnd

MESSAGE_MAX = 300
INDEX_ANNOTATION = "batch.kubernetes.io/job-completion-index"

_USUAL = ("ContainerCreating", "PodInitializing", "")  # steps of every start
# Nothing that happens by itself changes these.
_HOPELESS = ("InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError", "CreateContainerError")
_PULL = ("ErrImagePull", "ImagePullBackOff", "ImageInspectError")
# What registries say of an image that is not there, or not ours. Other failures of a pull may pass.
_NO_IMAGE = ("not found", "manifest unknown", "denied", "unauthorized", "authorization failed", "does not exist")
_LOST_CONTAINER = "ContainerStatusUnknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """A reason of Kubernetes, with its message."""

    reason: str
    message: str = ""

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}" if self.message else self.reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """One pod of the Job."""

    index: int
    name: str
    phase: str  # Pending Running Succeeded Failed Unknown
    node: str
    why: Why | None  # why it failed as a whole: Evicted, NodeLost, DeadlineExceeded
    disruption: Why | None  # it was ended by Kubernetes: preemption, drain, taint, node pressure
    unschedulable: Why | None
    waiting: Why | None  # why a container has not started
    terminated: Why | None  # of the worker's container
    exit_code: int | None
    is_deleted: bool  # it is being ended

    @property
    def lost(self) -> str | None:
        """How it ended, when its exit code does not say that; None: it has not, or the exit code says it."""
        node = f"node {self.node or 'unknown'}"
        if self.why is not None and self.why.reason == "Evicted":
            return f"was evicted from {node}: {self.why.message or 'Kubernetes does not say why'}"
        if self.why is not None and self.why.reason == "DeadlineExceeded":
            return "was ended: the deadline of its Job has passed"
        if self.phase == "Unknown" or (self.why is not None and self.why.reason == "NodeLost"):
            return f"was lost with {node}: {self.why or 'the node does not answer'}"
        if self.disruption is not None and (self.is_deleted or self.has_ended):
            return f"was ended by Kubernetes on {node}: {self.disruption}"
        if self.terminated is not None and self.terminated.reason == "OOMKilled":
            return f"was killed on {node}: OOMKilled, it used more memory than its limit; raise spawner.resources"
        if self.terminated is not None and self.terminated.reason == _LOST_CONTAINER:
            return f"was lost with {node}: {self.terminated}"
        if self.phase == "Failed" and self.exit_code is None:
            return f"was lost on {node}: {self.why or 'Kubernetes does not say why'}"
        return None

    @property
    def has_ended(self) -> bool:
        return self.phase in ("Succeeded", "Failed") or self.exit_code is not None

    @property
    def cannot_start(self) -> str | None:
        """Why it never will."""
        if self.waiting is None or self.phase != "Pending":
            return None
        if self.waiting.reason in _PULL and any(words in self.waiting.message.lower() for words in _NO_IMAGE):
            return f"cannot start: {self.waiting}; check spawner.image, and that the cluster may pull it"
        if self.waiting.reason in _HOPELESS:
            return f"cannot start: {self.waiting}; check spawner.image and spawner.secret"
        return None

    @property
    def is_over(self) -> bool:
        return self.has_ended or self.lost is not None or self.cannot_start is not None

    @property
    def waits(self) -> str:
        if self.phase != "Pending":
            return ""
        return str(self.unschedulable or self.waiting or "") or "its pod is pending"

    @property
    def is_held_up(self) -> bool:
        held = self.waiting is not None and self.waiting.reason not in _USUAL
        return self.phase == "Pending" and (self.unschedulable is not None or held)


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesJobStatus:
    """The Job itself."""

    uid: str
    run_id: str
    workers: int
    is_deleted: bool
    failed: Why | None  # the Job as a whole
    failed_indexes: frozenset[int]
    done_indexes: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexStatus:
    """One worker: the pods of its index, and what is known when there is none."""

    index: int
    pods: tuple[Pod, ...]
    refused: Why | None = None  # why no pod could be made
    gone: str | None = None  # how it ended, when its pod is not there any more
    is_done: bool = False

    @property
    def has_failed(self) -> bool:
        return bool(self.pods) and self._is_over and not self._done

    @property
    def waits(self) -> str:
        if self.pods:
            left = [pod for pod in self.pods if not pod.is_over]
            return left[0].waits if left and all(pod.phase == "Pending" for pod in left) else ""
        if self.is_done or self.gone:
            return ""
        return str(self.refused or "Kubernetes has not made its pod")

    @property
    def is_held_up(self) -> bool:
        return bool(self.waits) and (self.refused is not None or any(pod.is_held_up for pod in self.pods))

    def end(self, worker_id: str, last_lines: tuple[str, ...] = ()) -> ProcessEnd | None:
        """How it ended; None while it has not."""
        if self.pods and not self._is_over:
            return None
        if self._done or (not self.pods and self.is_done):
            return ProcessEnd(worker_id=worker_id, code=0, last_lines=last_lines)
        if not self.pods:
            what = self._never_made or self.gone
            return None if what is None else ContainerLost(worker_id=worker_id, what=what, last_lines=last_lines)
        pod = self.pods[0]
        what = pod.cannot_start or pod.lost
        if what is not None or pod.exit_code is None:
            return ContainerLost(worker_id=worker_id, what=what or "was lost", last_lines=last_lines)
        return ProcessEnd(worker_id=worker_id, code=process_code(pod.exit_code), last_lines=last_lines)

    @property
    def _is_over(self) -> bool:
        return all(pod.is_over for pod in self.pods)

    @property
    def _done(self) -> bool:
        return any(pod.exit_code == 0 and pod.lost is None for pod in self.pods)

    @property
    def _never_made(self) -> str | None:
        """A quota may get room; nothing else that refuses pods changes by itself."""
        if self.refused is None or "is forbidden" not in self.refused.message:
            return None
        return None if "exceeded quota" in self.refused.message else f"cannot start: {self.refused}"


def index_statuses(job: KubernetesJobStatus, pods: Sequence[Pod], refused: Why | None) -> tuple[IndexStatus, ...]:
    """Every worker, in order. Pods that are over come last: how the first one fares is how the worker does."""
    by_index: dict[int, list[Pod]] = {}
    for pod in sorted(pods, key=lambda one: (one.is_over, one.name)):
        by_index.setdefault(pod.index, []).append(pod)
    deadline = job.failed is not None and job.failed.reason == "DeadlineExceeded"
    gone_how = "was ended: the deadline of its Job has passed" if deadline else "was lost: its pod was deleted"
    return tuple(
        IndexStatus(
            index=index,
            pods=tuple(by_index.get(index, ())),
            refused=refused,
            gone=gone_how if index in job.failed_indexes or job.failed is not None else None,
            is_done=index in job.done_indexes,
        )
        for index in range(job.workers)
    )


# --- reading ---------------------------------------------------------------------------------------------------------


def read_job(data: Mapping[str, Any]) -> KubernetesJobStatus:
    metadata, status = _mapping(data, "metadata"), _mapping(data, "status")
    failed = _condition(status, ("Failed", "FailureTarget"))
    return KubernetesJobStatus(
        uid=_text(metadata, "uid"),
        run_id=_text(_mapping(metadata, "annotations"), RUN_ANNOTATION),
        workers=int(_mapping(data, "spec").get("completions") or 0),
        is_deleted=metadata.get("deletionTimestamp") is not None,
        failed=failed,
        failed_indexes=indexes_of(_text(status, "failedIndexes")),
        done_indexes=indexes_of(_text(status, "completedIndexes")),
    )


def read_pods(data: Mapping[str, Any]) -> tuple[Pod, ...]:
    pods = [_pod(one) for one in _items(data)]
    return tuple(pod for pod in pods if pod is not None)


def read_refusal(data: Mapping[str, Any]) -> Why | None:
    """The last reason why the Job's pods could not be made."""
    found = [one for one in _items(data) if one.get("reason") == "FailedCreate"]
    newest = max(found, key=_event_time, default=None)
    return None if newest is None else _why(newest, "FailedCreate")


def indexes_of(text: str) -> frozenset[int]:
    """Of `1,3-5`."""
    indexes: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        if first.isdigit() and (last or first).isdigit():
            indexes |= set(range(int(first), int(last or first) + 1))
    return frozenset(indexes)


def _pod(data: Mapping[str, Any]) -> Pod | None:
    metadata, status = _mapping(data, "metadata"), _mapping(data, "status")
    index = _text(_mapping(metadata, "annotations"), INDEX_ANNOTATION)
    if not index.isdigit():
        return None
    containers = _list(status, "containerStatuses")
    worker = next((one for one in containers if one.get("name") == CONTAINER), {})
    states = [_mapping(one, "state") for one in (*_list(status, "initContainerStatuses"), *containers)]
    waiting = [_why(state["waiting"]) for state in states if isinstance(state.get("waiting"), Mapping)]
    ended = _mapping(_mapping(worker, "state"), "terminated")
    code = ended.get("exitCode")
    return Pod(
        index=int(index),
        name=_text(metadata, "name"),
        phase=_text(status, "phase") or "Pending",
        node=_text(_mapping(data, "spec"), "nodeName"),
        why=_why(status) if status.get("reason") else None,
        disruption=_condition(status, ("DisruptionTarget",)),
        unschedulable=_unschedulable(status),
        waiting=min(waiting, key=lambda why: why.reason in _USUAL, default=None),
        terminated=_why(ended) if ended else None,
        exit_code=code if isinstance(code, int) else None,
        is_deleted=metadata.get("deletionTimestamp") is not None,
    )


def _unschedulable(status: Mapping[str, Any]) -> Why | None:
    for one in _list(status, "conditions"):
        if one.get("type") == "PodScheduled" and one.get("status") == "False":
            return _why(one, "Unschedulable")
    return None


def _condition(status: Mapping[str, Any], types: Sequence[str]) -> Why | None:
    for one in _list(status, "conditions"):
        if one.get("type") in types and one.get("status") == "True":
            return _why(one, str(one["type"]))
    return None


def _why(data: Mapping[str, Any], default: str = "") -> Why:
    return Why(
        reason=printable(_text(data, "reason") or default, 100), message=printable(_text(data, "message"), MESSAGE_MAX)
    )


def _event_time(data: Mapping[str, Any]) -> str:
    return _text(data, "lastTimestamp") or _text(data, "eventTime") or _text(_mapping(data, "metadata"), "name")


def _items(data: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return _list(data, "items")


def _mapping(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = data.get(key)
    return value if isinstance(value, Mapping) else {}


def _list(data: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    value = data.get(key)
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []


def _text(data: Mapping[str, Any], key: str) -> str:
    value = data.get(key)
    return value if isinstance(value, str) else ""
