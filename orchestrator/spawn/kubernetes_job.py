"""An Indexed Job of Kubernetes with one worker per index: its name and manifest, the rights that loadgen needs, and
what the state of its pods means for each worker. Pure.

A manifest contains no secret: pods get their login from a Secret, or have an identity.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Self

from loadgen.control.location import ControlPlaneLocation
from loadgen.errors import ConfigurationError
from loadgen.log import printable
from loadgen.model.run import ProcessEnd
from loadgen.rules.plan import plan_run
from loadgen.scenario.frozen import secrets_in
from loadgen.scenario.model import EMBEDDED, Scenario
from loadgen.scenario.settings import OWN_LABELS, SpawnerSettings
from loadgen.snowflake.profile import ENVIRONMENT, ConnectionProfile
from loadgen.snowflake.profile_lookup import EMBEDDED_ADDRESS, EMBEDDED_PASSWORD_FILE
from loadgen.values import dataclass
from orchestrator.spawn.spawner import ContainerLost, process_code

CONTAINER = "worker"
RUN_LABEL = f"{OWN_LABELS}run"  # of the Job and its pods: the name of the Job
RUN_ANNOTATION = f"{OWN_LABELS}run-id"
USER_ID = 10001  # of the image
SCRATCH = "/tmp"  # the only writable folder, deleted with the pod
REQUESTS = {"cpu": "1", "memory": "2Gi"}
KEPT_S = 86_400  # Kubernetes deletes a finished Job after this time
UPLOAD_S = 3_600  # for storing results after the load
KILL_S = 10  # beyond the time that a worker takes to end after SIGTERM

# The rights for the calls of KubernetesApi.
RULES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("batch", "jobs", ("create", "delete", "get")),
    ("", "pods", ("list",)),
    ("", "pods/log", ("get",)),
    ("", "events", ("list",)),
)
_INHERITED = ("warehouse", "database", "schema")  # taken from the connection if the target does not set them
_PUBLIC = ("account", "user", "role", "authenticator", "workload_identity_provider")


def job_name(run_id: str) -> str:
    """The name of the Job of a run. The name of a pod adds an index and five letters, and has at most 63 characters."""
    return "loadgen-" + re.sub(r"[^a-z0-9]+", "-", run_id.lower()).strip("-")


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesJob:
    """A Job with everything that is needed to create it."""

    name: str
    run_id: str
    workers: int
    settings: SpawnerSettings
    environment: Mapping[str, str]
    grace_s: int  # between SIGTERM and SIGKILL
    deadline_s: int | None  # after which Kubernetes ends the Job; None for a search, whose length is not known

    @classmethod
    def of_scenario(cls, scenario: Scenario, run_id: str, environment: Mapping[str, str]) -> Self:
        assert scenario.load.workers is not None, "the number of workers is resolved before a run is created"
        timing, ends_s = scenario.timing, plan_run(scenario.load).ends_s
        end_s = timing.drain_interrupt_s + timing.terminate_after_s + timing.kill_after_s
        deadline_s = None if ends_s is None else math.ceil(timing.registration_s + ends_s + timing.drain_s + UPLOAD_S)
        return cls(
            name=job_name(run_id),
            run_id=run_id,
            workers=scenario.load.workers,
            settings=scenario.spawner,
            environment=environment,
            grace_s=math.ceil(end_s) + KILL_S,
            deadline_s=deadline_s,
        )

    @property
    def manifest(self) -> dict[str, Any]:
        labels = {"app.kubernetes.io/name": "loadgen", **self.settings.labels, RUN_LABEL: self.name}
        metadata: dict[str, Any] = {"name": self.name}
        if self.settings.namespace is not None:
            metadata["namespace"] = self.settings.namespace
        metadata |= {"labels": labels, "annotations": {RUN_ANNOTATION: self.run_id}}
        spec: dict[str, Any] = {
            "completionMode": "Indexed",
            "completions": self.workers,
            "parallelism": self.workers,
            # A lost worker is not replaced: a second one must not begin in the middle of a measurement. The others
            # continue until the leader decides.
            "backoffLimitPerIndex": 0,
            "maxFailedIndexes": self.workers,
            "podReplacementPolicy": "Failed",
            "ttlSecondsAfterFinished": KEPT_S,
        }
        if self.deadline_s is not None:
            spec["activeDeadlineSeconds"] = self.deadline_s
        spec["template"] = {"metadata": {"labels": labels}, "spec": self._pod()}
        return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}

    def _pod(self) -> dict[str, Any]:
        settings = self.settings
        pod: dict[str, Any] = {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": self.grace_s,
            "automountServiceAccountToken": False,  # workers do not call Kubernetes
            "enableServiceLinks": False,
        }
        if settings.service_account is not None:
            pod["serviceAccountName"] = settings.service_account
        if settings.node_selector:
            pod["nodeSelector"] = dict(settings.node_selector)
        if settings.tolerations:
            pod["tolerations"] = [_toleration(one) for one in settings.tolerations]
        pod["securityContext"] = {
            "runAsNonRoot": True,
            "runAsUser": USER_ID,
            "seccompProfile": {"type": "RuntimeDefault"},
        }
        return {**pod, "containers": [self._container()], "volumes": [{"name": "scratch", "emptyDir": {}}]}

    def _container(self) -> dict[str, Any]:
        settings = self.settings
        resources = {"requests": {**REQUESTS, **settings.resources.requests}}
        if settings.resources.limits:
            resources["limits"] = dict(settings.resources.limits)
        container: dict[str, Any] = {
            "name": CONTAINER,
            "image": settings.image,
            "command": ["loadgen", "worker"],
            "args": [f"--worker-group-count={self.workers}"],  # JOB_COMPLETION_INDEX is the number of the worker
            "env": self._env(),
        }
        if settings.secret is not None:
            container["envFrom"] = [{"secretRef": {"name": settings.secret}}]
        return container | {
            "resources": resources,
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            },
            "volumeMounts": [{"name": "scratch", "mountPath": SCRATCH}],
        }

    def _env(self) -> list[dict[str, Any]]:
        """The variables of a worker. The names of the pod come first, because later values refer to them. Two pods of
        one index have the same host name, and their workers the same process id: the name of the pod
        distinguishes them."""
        fields = {"LOADGEN_HOSTNAME": "metadata.name", "LOADGEN_POD_UID": "metadata.uid"}
        fields["LOADGEN_NODE"] = "spec.nodeName"
        from_pod = [{"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()]
        values = {
            **{name: value.replace("$(", "$$(") for name, value in self.environment.items()},  # escaped references
            "HOME": SCRATCH,
            "LOADGEN_LABELS": "node=$(LOADGEN_NODE),pod_uid=$(LOADGEN_POD_UID)",
            "LOADGEN_RUN_ID": self.run_id,
            "LOADGEN_SPOOL_DIR": f"{SCRATCH}/spool",
        }
        return from_pod + [{"name": name, "value": value} for name, value in sorted(values.items())]


def _toleration(one: Any) -> dict[str, Any]:
    fields = {"key": one.key, "operator": one.operator, "value": one.value, "effect": one.effect}
    written = {name: str(value) for name, value in fields.items() if value is not None}
    return written if one.seconds is None else {**written, "tolerationSeconds": one.seconds}


# --- where pods find the target and the control plane ----------------------------------------------------------------


def pod_environment(
    scenario: Scenario, place: ControlPlaneLocation, variables: Mapping[str, str], profile: ConnectionProfile | None
) -> dict[str, str]:
    """The environment of pods, which do not know the connections of this machine. A single connection becomes the
    connection of the environment. Two connections keep their names, under which the Secret must describe them.
    `profile`: that of the target."""
    kept = {name: value for name, value in variables.items() if name not in (EMBEDDED_ADDRESS, EMBEDDED_PASSWORD_FILE)}
    if scenario.connection == place.connection:
        kept |= {"LOADGEN_CONNECTION": ENVIRONMENT, "LOADGEN_CONTROL_CONNECTION": ENVIRONMENT}
    if profile is None:
        return kept
    inherited = [key for key in _INHERITED if getattr(scenario.target, key) is None]
    keys = [*([] if scenario.spawner.secret else _PUBLIC), *inherited]
    found = {f"SNOWFLAKE_{key.upper()}": profile.text(key) for key in keys}
    return {**kept, **{name: value for name, value in found.items() if value is not None}}


def require_kubernetes_settings(scenario: Scenario, place: ControlPlaneLocation) -> None:
    """Reject settings that cannot work in pods, before anything is created."""
    if EMBEDDED in (scenario.connection, place.connection):
        which = "target" if scenario.connection == EMBEDDED else "control plane"
        raise ConfigurationError(
            f"spawner kubernetes: pods cannot reach the embedded server of this machine, where the {which} is",
            remedy="Use a Snowflake account for both, or spawner kind local.",
        )
    if scenario.spawner.secret is not None:
        return
    if scenario.connection != place.connection:
        raise ConfigurationError(
            "spawner kubernetes: target and control plane have different connections, and pods know neither",
            remedy="Name a Secret in spawner.secret that has SNOWFLAKE_CONNECTIONS_<NAME>_ACCOUNT and others for both.",
        )
    if secrets := secrets_in(scenario):
        raise ConfigurationError(
            f"spawner kubernetes: the scenario uses {', '.join(f'${{{name}}}' for name in secrets)}: secrets are not"
            " stored with a run, and pods do not have them",
            remedy="Put them into a Secret under the same names, and name it in spawner.secret.",
        )


# --- rights ----------------------------------------------------------------------------------------------------------


def role_manifests(namespace: str | None, users: Sequence[str]) -> list[dict[str, Any]]:
    """A Role with the rights that `loadgen run` needs, and its binding to these users."""
    metadata = {"name": "loadgen", **({} if namespace is None else {"namespace": namespace})}
    rules = [{"apiGroups": [group], "resources": [resource], "verbs": list(verbs)} for group, resource, verbs in RULES]
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": metadata, "rules": rules}
    if not users:
        return [role]
    group = "rbac.authorization.k8s.io"
    return [
        role,
        {
            "apiVersion": f"{group}/v1",
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": group, "kind": "Role", "name": "loadgen"},
            "subjects": [{"kind": "User", "apiGroup": group, "name": printable(user, 253)} for user in users],
        },
    ]


# --- manifests as text -----------------------------------------------------------------------------------------------

_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*")
_WORDS = frozenset(["y", "n", "yes", "no", "on", "off", "true", "false", "null"])  # YAML 1.1, which kubectl reads


def manifest_text(manifests: Sequence[Mapping[str, Any]]) -> str:
    """YAML in the order of the keys, one document per manifest."""
    return "\n---\n".join("\n".join(_lines(one)) for one in manifests)


def _lines(value: Mapping[str, Any] | Sequence[Any]) -> list[str]:
    """The lines of a YAML block. Nested blocks are indented by two spaces; a list begins below its key."""
    if isinstance(value, Mapping):
        lines = []
        for name, inner in value.items():
            if isinstance(inner, (Mapping, list)) and inner:
                lines += [f"{_scalar(name)}:", *(f"  {line}" for line in _lines(inner))]
            else:
                lines.append(f"{_scalar(name)}: {_scalar(inner)}")
        return lines
    lines = []
    for inner in value:
        first, *rest = _lines(inner) if isinstance(inner, (Mapping, list)) and inner else [_scalar(inner)]
        lines += [f"- {first}", *(f"  {line}" for line in rest)]
    return lines


def _scalar(value: Any) -> str:
    """A YAML scalar. A text that YAML could read as another type is written as a JSON string."""
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    return json.dumps(value)


# --- The state of a Job, its pods and its events, and what it means for each worker ----------------------------------
#     the pods of an index      the worker
#     none                      waits, or cannot be created (quota, admission), or was deleted
#     Pending                   waits (unschedulable, pulling the image), or cannot start
#     Running                   works
#     ended, all of them        has ended: by itself, or by Kubernetes
#
# Two pods of one index may exist for a while: the worker of the second one notices that the first is alive, and exits.
# The index has ended when both pods have ended.

MESSAGE_MAX = 300
INDEX_ANNOTATION = "batch.kubernetes.io/job-completion-index"

_USUAL = ("ContainerCreating", "PodInitializing", "")  # steps of every start
# Permanent reasons.
_HOPELESS = ("InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError", "CreateContainerError")
_PULL = ("ErrImagePull", "ImagePullBackOff", "ImageInspectError")
# Messages of registries about images that do not exist or may not be read. Other failures of a pull are temporary.
_NO_IMAGE = ("not found", "manifest unknown", "denied", "unauthorized", "authorization failed", "does not exist")
_LOST_CONTAINER = "ContainerStatusUnknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodReason:
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
    why: PodReason | None  # why the pod has failed as a whole: Evicted, NodeLost, DeadlineExceeded
    disruption: PodReason | None  # why Kubernetes has ended it: preemption, drain, taint, node pressure
    unschedulable: PodReason | None
    waiting: PodReason | None  # why a container has not started
    terminated: PodReason | None  # why the container of the worker has ended
    exit_code: int | None
    is_deleted: bool  # it is being deleted

    @property
    def lost(self) -> str | None:
        """How it ended, if the exit code does not show it. None: it has not ended, or the exit code shows it."""
        node = f"node {self.node or 'unknown'}"
        if self.why is not None and self.why.reason == "Evicted":
            return f"was evicted from {node}: {self.why.message or 'Kubernetes gives no reason'}"
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
            return f"was lost on {node}: {self.why or 'Kubernetes gives no reason'}"
        return None

    @property
    def has_ended(self) -> bool:
        return self.phase in ("Succeeded", "Failed") or self.exit_code is not None

    @property
    def cannot_start(self) -> str | None:
        """Why it will never start. None: it has started, or may start."""
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
    """The state of the Job itself."""

    run_id: str
    workers: int
    failed: PodReason | None  # the Job as a whole
    failed_indexes: frozenset[int]
    done_indexes: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexStatus:
    """The state of one worker: the pods of its index or, without a pod, the facts in the Job."""

    index: int
    pods: tuple[Pod, ...]
    refused: PodReason | None = None  # why no pod could be created
    gone: str | None = None  # how it ended, if its pod does not exist any more
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
        return str(self.refused or "Kubernetes has not created its pod")

    @property
    def is_held_up(self) -> bool:
        return bool(self.waits) and (self.refused is not None or any(pod.is_held_up for pod in self.pods))

    def end(self, worker_id: str, last_lines: tuple[str, ...] = ()) -> ProcessEnd | None:
        """The end of the worker. None: it has not ended."""
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
        """Why a pod will never be created. An exceeded quota is temporary; other rejections are permanent."""
        if self.refused is None or "is forbidden" not in self.refused.message:
            return None
        return None if "exceeded quota" in self.refused.message else f"cannot start: {self.refused}"


def index_statuses(job: KubernetesJobStatus, pods: Sequence[Pod], refused: PodReason | None) -> tuple[IndexStatus, ...]:
    """The state of every worker, in order. Ended pods come last: the first pod of an index counts."""
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
        run_id=_text(_mapping(metadata, "annotations"), RUN_ANNOTATION),
        workers=int(_mapping(data, "spec").get("completions") or 0),
        failed=failed,
        failed_indexes=indexes_of(_text(status, "failedIndexes")),
        done_indexes=indexes_of(_text(status, "completedIndexes")),
    )


def read_pods(data: Mapping[str, Any]) -> tuple[Pod, ...]:
    pods = [_pod(one) for one in _items(data)]
    return tuple(pod for pod in pods if pod is not None)


def read_refusal(data: Mapping[str, Any]) -> PodReason | None:
    """The last reason why a pod of the Job could not be created."""
    found = [one for one in _items(data) if one.get("reason") == "FailedCreate"]
    newest = max(found, key=_event_time, default=None)
    return None if newest is None else _why(newest, "FailedCreate")


def indexes_of(text: str) -> frozenset[int]:
    """The indexes in a text such as `1,3-5`."""
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


def _unschedulable(status: Mapping[str, Any]) -> PodReason | None:
    for one in _list(status, "conditions"):
        if one.get("type") == "PodScheduled" and one.get("status") == "False":
            return _why(one, "Unschedulable")
    return None


def _condition(status: Mapping[str, Any], types: Sequence[str]) -> PodReason | None:
    for one in _list(status, "conditions"):
        if one.get("type") in types and one.get("status") == "True":
            return _why(one, str(one["type"]))
    return None


def _why(data: Mapping[str, Any], default: str = "") -> PodReason:
    return PodReason(
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
