"""An Indexed Job of Kubernetes with one worker per index: its name and manifest, and the rights that loadgen needs.

Pure. Nothing secret is in a manifest: pods get their login from a Secret, or have an identity.
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
from loadgen.rules.plan import plan_run
from loadgen.scenario.frozen import secrets_in
from loadgen.scenario.model import EMBEDDED, Scenario
from loadgen.scenario.settings import OWN_LABELS, SpawnerSettings
from loadgen.snowflake.profile import ENVIRONMENT, ConnectionProfile
from loadgen.snowflake.profile_lookup import EMBEDDED_ADDRESS, EMBEDDED_PASSWORD_FILE
from loadgen.values import dataclass

CONTAINER = "worker"
RUN_LABEL = f"{OWN_LABELS}run"  # of the Job and its pods: the name of the Job
RUN_ANNOTATION = f"{OWN_LABELS}run-id"
USER_ID = 10001  # of the image
SCRATCH = "/tmp"  # the only folder that can be written to, and gone with the pod
REQUESTS = {"cpu": "1", "memory": "2Gi"}
KEPT_S = 86_400  # a finished Job that was not removed removes itself
UPLOAD_S = 3_600  # for what workers store after the load
KILL_S = 10  # beyond the time that a worker takes to end when it is asked to

# Exactly the calls of KubernetesApi.
RULES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("batch", "jobs", ("create", "delete", "get")),
    ("", "pods", ("list",)),
    ("", "pods/log", ("get",)),
    ("", "events", ("list",)),
)
_INHERITED = ("warehouse", "database", "schema")  # of the connection, where the target leaves them out
_PUBLIC = ("account", "user", "role", "authenticator", "workload_identity_provider")


def job_name(run_id: str) -> str:
    """One Job per run. The name of a pod adds its index and five letters, and must not be longer than 63."""
    return "loadgen-" + re.sub(r"[^a-z0-9]+", "-", run_id.lower()).strip("-")


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesJob:
    """What to run."""

    name: str
    run_id: str
    workers: int
    settings: SpawnerSettings
    environment: Mapping[str, str]
    grace_s: int  # between SIGTERM and SIGKILL
    deadline_s: int | None  # after which Kubernetes ends it; None: a search ends when it knows

    @classmethod
    def of_scenario(cls, scenario: Scenario, run_id: str, environment: Mapping[str, str]) -> Self:
        assert scenario.load.workers is not None, "a run has its number of workers settled"
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
            # A worker that was lost is lost: no second one may begin in the middle of a measurement, and the others
            # go on until the leader decides.
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
            "automountServiceAccountToken": False,  # workers ask Kubernetes nothing
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
            "args": [f"--worker-group-count={self.workers}"],  # which of them it is, JOB_COMPLETION_INDEX says
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
        """The pod's own names first: later values refer to them. Two pods of one index have the same host name, and
        their workers the same process id, so a worker is told apart by the name of its pod."""
        fields = {"LOADGEN_HOSTNAME": "metadata.name", "LOADGEN_POD_UID": "metadata.uid"}
        fields["LOADGEN_NODE"] = "spec.nodeName"
        from_pod = [{"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()]
        values = {
            **{name: value.replace("$(", "$$(") for name, value in self.environment.items()},  # not a reference
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
    scenario: Scenario, place: ControlPlaneLocation, told: Mapping[str, str], profile: ConnectionProfile | None
) -> dict[str, str]:
    """What workers are told, for pods: connections of this machine are unknown there. One connection becomes that of
    the environment; two keep their names, under which the Secret must describe them. `profile`: the target's."""
    kept = {name: value for name, value in told.items() if name not in (EMBEDDED_ADDRESS, EMBEDDED_PASSWORD_FILE)}
    if scenario.connection == place.connection:
        kept |= {"LOADGEN_CONNECTION": ENVIRONMENT, "LOADGEN_CONTROL_CONNECTION": ENVIRONMENT}
    if profile is None:
        return kept
    inherited = [key for key in _INHERITED if getattr(scenario.target, key) is None]
    keys = [*([] if scenario.spawner.secret else _PUBLIC), *inherited]
    found = {f"SNOWFLAKE_{key.upper()}": profile.text(key) for key in keys}
    return {**kept, **{name: value for name, value in found.items() if value is not None}}


def require_kubernetes_settings(scenario: Scenario, place: ControlPlaneLocation) -> None:
    """Refuse, before anything is made, what pods cannot reach or know."""
    if EMBEDDED in (scenario.connection, place.connection):
        which = "target" if scenario.connection == EMBEDDED else "control plane"
        raise ConfigurationError(
            f"spawner kubernetes: pods cannot reach the embedded server of this machine, where the {which} is",
            remedy="Have both in a Snowflake account, or use spawner kind local.",
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
    """A Role with the rights of `loadgen run`, and its binding to these users."""
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
    """A block; what is nested is indented by two spaces, and a list stands below its key."""
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
    """A text that could be read as something else is written as in JSON, which YAML reads alike."""
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    return json.dumps(value)
