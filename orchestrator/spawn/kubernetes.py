"""Workers as pods of one Indexed Job in a Kubernetes cluster: the API calls, and the job of a run.

Every call is one request with a time limit. Answers are read as JSON, because the models of an older client reject
answers of newer clusters. A Job of the same name is used if its annotation names this run.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from loadgen.clock import Clock
from loadgen.control.location import ControlPlaneLocation
from loadgen.control.session import ControlSession
from loadgen.errors import ConfigurationError, ConnectFailed, LoadgenError, PrivilegeMissing, RunFailed
from loadgen.log import event, printable
from loadgen.snowflake.session import RetryPolicy
from orchestrator.spawn.kubernetes_job import (
    CONTAINER,
    RUN_LABEL,
    IndexStatus,
    KubernetesJob,
    KubernetesJobStatus,
    Pod,
    index_statuses,
    read_job,
    read_pods,
    read_refusal,
)
from orchestrator.spawn.spawner import LOG_LINES, is_led_by_another

log = logging.getLogger(__name__)

ATTEMPTS = 5
LIMITS_S = (5, 20)  # of one request: for the connection, for the answer
LOG_BYTES = 10_000_000  # of one worker's log; the rest is cut off
NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
SERVICE_HOST = "KUBERNETES_SERVICE_HOST"
TEXT_MAX = 500
_RIGHTS = "`loadgen grants --kubernetes` prints the Role that is needed."


class KubernetesFailed(LoadgenError):
    """A request to Kubernetes failed. `status` is the HTTP status; None: there was no answer."""

    exit_code = 3
    remedy = "Check the cluster with `kubectl get jobs`."

    def __init__(self, what: str, status: int | None) -> None:
        super().__init__(what)
        self.status = status

    @property
    def is_missing(self) -> bool:
        return self.status == 404

    @property
    def is_retryable(self) -> bool:
        return self.status is None or self.status in (408, 409, 429) or self.status >= 500


def _is_retryable(error: BaseException) -> bool:
    return isinstance(error, KubernetesFailed) and error.is_retryable


class KubernetesApi:
    """All API calls of loadgen. kubernetes_job.RULES lists the rights that they need."""

    def __init__(
        self, context: str | None = None, namespace: str | None = None, *, environ: Mapping[str, str] = os.environ
    ) -> None:
        self._client, found = _configured_client(context, environ)
        self.namespace, self.host = namespace or found, self._client.host
        self._jobs, self._core = self._client.BatchV1Api(), self._client.CoreV1Api()

    def create_job(self, manifest: Mapping[str, Any]) -> KubernetesJobStatus:
        return read_job(self._json(self._jobs.create_namespaced_job, namespace=self.namespace, body=manifest))

    def get_job(self, name: str) -> KubernetesJobStatus:
        return read_job(self._json(self._jobs.read_namespaced_job, name=name, namespace=self.namespace))

    def delete_job(self, name: str, *, propagation: str) -> None:
        """Delete the Job with its pods. `propagation` Foreground keeps the Job until its pods have ended."""
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation}
        self._text(self._jobs.delete_namespaced_job, name=name, namespace=self.namespace, body=options)

    def list_pods(self, name: str) -> tuple[Pod, ...]:
        call = self._core.list_namespaced_pod
        return read_pods(self._json(call, namespace=self.namespace, label_selector=f"{RUN_LABEL}={name}"))

    def list_events(self, name: str) -> Mapping[str, Any]:
        wanted = f"involvedObject.kind=Job,involvedObject.name={name}"
        return self._json(self._core.list_namespaced_event, namespace=self.namespace, field_selector=wanted)

    def read_log(self, pod: str) -> str:
        return self._text(
            self._core.read_namespaced_pod_log,
            name=pod,
            namespace=self.namespace,
            container=CONTAINER,
            tail_lines=LOG_LINES,
            limit_bytes=LOG_BYTES,
        )

    def close(self) -> None:
        self._client.close()

    def _json(self, call: Callable[..., Any], **arguments: Any) -> Mapping[str, Any]:
        text = self._text(call, **arguments)
        try:
            answer = json.loads(text)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise KubernetesFailed(f"Kubernetes answered with {printable(text, 80)!r}, which is not JSON", None)
        return answer

    def _text(self, call: Callable[..., Any], **arguments: Any) -> str:
        return self._client.call(call, **arguments)


class ConfiguredClient:
    """The client library, which is an optional dependency and imported when needed."""

    def __init__(self, library: Any, configuration: Any) -> None:
        configuration.retries = False  # loadgen retries, and logs it
        self._library, self._api = library, library.client.ApiClient(configuration)
        self.host = printable(str(configuration.host), 200)

    def BatchV1Api(self) -> Any:
        return self._library.client.BatchV1Api(self._api)

    def CoreV1Api(self) -> Any:
        return self._library.client.CoreV1Api(self._api)

    def call(self, call: Callable[..., Any], **arguments: Any) -> str:
        from urllib3.exceptions import HTTPError

        try:
            answer = call(**arguments, _preload_content=False, _request_timeout=LIMITS_S)
            return bytes(answer.data).decode("utf-8", "replace")
        except self._library.client.ApiException as error:
            raise KubernetesFailed(_message(error), error.status or 400) from error
        except (HTTPError, OSError) as error:
            text = printable(str(error), TEXT_MAX)
            raise KubernetesFailed(f"the Kubernetes API at {self.host} did not answer: {text}", None) from error

    def close(self) -> None:
        self._api.close()


def _message(error: Any) -> str:
    """The server's message, without the headers that the exception contains."""
    try:
        message = json.loads(error.body or "").get("message")
    except (ValueError, AttributeError, TypeError):
        message = None
    return printable(str(message or error.reason or f"status {error.status}"), TEXT_MAX)


def _configured_client(context: str | None, environ: Mapping[str, str]) -> tuple[ConfiguredClient, str]:
    """A client, and the namespace of its context. In a pod, without a context or kubeconfig: the pod's cluster."""
    try:
        import kubernetes
        from kubernetes import config
    except ImportError as error:
        raise ConfigurationError(
            f"spawner kubernetes needs the Python package kubernetes, which cannot be imported: {error}",
            remedy="Install it into the environment of loadgen: pip install 'loadgen[kubernetes]', or in a checkout"
            " pip install --require-hashes -r requirements-kubernetes.lock.",
        ) from error
    configuration = kubernetes.client.Configuration()
    try:
        if context is None and environ.get(SERVICE_HOST) and not environ.get("KUBECONFIG"):
            config.load_incluster_config(client_configuration=configuration)
            return ConfiguredClient(kubernetes, configuration), _own_namespace()
        file = environ.get("KUBECONFIG") or str(Path(environ.get("HOME") or Path.home()) / ".kube" / "config")
        config.load_kube_config(config_file=file, context=context, client_configuration=configuration)
        contexts, current = config.list_kube_config_contexts(config_file=file)
        used = current if context is None else next((one for one in contexts if one["name"] == context), current)
        namespace = (used.get("context") or {}).get("namespace") or "default"
        return ConfiguredClient(kubernetes, configuration), str(namespace)
    except Exception as error:  # of the client, or of the libraries with which it reads the file
        raise ConfigurationError(
            f"spawner kubernetes: no cluster is configured here: {printable(str(error), TEXT_MAX)}",
            remedy="Set KUBECONFIG, or spawner.context to one that `kubectl config get-contexts` lists.",
        ) from error


def _own_namespace() -> str:
    try:
        return NAMESPACE_FILE.read_text("utf-8").strip() or "default"
    except OSError:
        return "default"


class KubernetesWorkerJob:
    """The Job of a run, as ContainerSpawner uses it."""

    def __init__(
        self,
        place: ControlPlaneLocation,
        name: str,
        job: KubernetesJob | None,
        *,
        context: str | None,
        namespace: str | None,
        clock: Clock,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        """`job` is needed for start() only."""
        self.name, self.may_exist = name, False
        self._place, self._job, self._environ = place, job, environ
        self._context, self._namespace = context, namespace
        self._connected: KubernetesApi | None = None
        self._retries = RetryPolicy(
            stop=threading.Event(), attempts=ATTEMPTS, clock=clock, retryable=_is_retryable, note=self._note_retry
        )
        self._pods: dict[int, str] = {}  # by index: the last known pod
        self._clock = clock

    @property
    def by_hand(self) -> str:
        where = f"{f' --context {self._context}' if self._context else ''} -n {self._namespace or '…'}"
        return f"kubectl delete job {self.name}{where}"

    def start(self, workers: int) -> None:
        job = self._job
        assert job is not None, "only its name is known"
        assert job.workers == workers, "the manifest has the run's number of workers"
        try:
            made = self._retries.call(lambda: self._create(job))
        except KubernetesFailed as error:
            self.may_exist = error.is_retryable  # the answer may have been lost
            raise refusal(error, job, self._api.namespace) from error
        if made.run_id != job.run_id or made.workers != workers:
            raise RunFailed(
                f"there is another Job {job.name} in namespace {self._api.namespace}",
                remedy=f"Remove it: {self.by_hand}.",
            )
        self.may_exist = True

    def _create(self, job: KubernetesJob) -> KubernetesJobStatus:
        """Create the Job, or return the existing one: the answer to an earlier attempt may have been lost. A conflict
        without an existing Job is temporary: another request has changed a quota at the same time."""
        try:
            return self._api.create_job(job.manifest)
        except KubernetesFailed as error:
            if error.status != 409:
                raise
            conflict = error
        try:
            return self._api.get_job(job.name)
        except KubernetesFailed as error:
            raise conflict if error.is_missing else error from None

    def observe(self) -> Sequence[IndexStatus] | None:
        try:
            job = self._api.get_job(self.name)
        except KubernetesFailed as error:
            if not error.is_missing:
                raise
            return None
        pods = self._api.list_pods(self.name)
        missing = set(range(job.workers)) - {pod.index for pod in pods} - job.done_indexes - job.failed_indexes
        refused = read_refusal(self._api.list_events(self.name)) if missing else None
        statuses = index_statuses(job, pods, refused)
        self._pods |= {one.index: one.pods[0].name for one in statuses if one.pods}
        return statuses

    def read_log(self, index: int) -> str:
        """The log of a worker. Empty: its pod has not started, or does not exist any more."""
        pod = self._pods.get(index)
        if pod is None:
            return ""
        try:
            return self._api.read_log(pod)
        except KubernetesFailed as error:
            if error.status in (400, 404):
                return ""
            raise

    def cancel(self) -> None:
        self._delete("Foreground")

    def remove(self) -> None:
        self._retries.call(lambda: self._delete("Background"))

    def _delete(self, propagation: str) -> None:
        try:
            self._api.delete_job(self.name, propagation=propagation)
        except KubernetesFailed as error:
            if not error.is_missing:
                raise

    def is_led_by_another(self, run_id: str) -> bool:
        session = ControlSession(self._place, role="kubernetes", environ=self._environ)
        try:
            retries = RetryPolicy(stop=threading.Event(), attempts=3, clock=self._clock)
            return is_led_by_another(session, retries, run_id)
        finally:
            session.close()

    def close(self) -> None:
        if self._connected is not None:
            self._connected.close()
            self._connected = None

    def _note_retry(self, error: BaseException) -> None:
        event(log, logging.WARNING, "kubernetes_away", job=self.name, what=str(error))

    @property
    def _api(self) -> KubernetesApi:
        if self._connected is None:
            self._connected = KubernetesApi(self._context, self._namespace, environ=self._environ)
            self._namespace = self._connected.namespace
        return self._connected


def refusal(error: KubernetesFailed, job: KubernetesJob, namespace: str) -> LoadgenError:
    """The error that explains why the Job was not created, with a remedy."""
    text = str(error)
    if error.status is None:
        return ConnectFailed(text, remedy="Check the cluster with `kubectl get jobs`, and spawner.context.")
    if error.status == 401:
        return ConnectFailed(f"Kubernetes refused the login: {text}", remedy="Log in to the cluster again.")
    if error.status == 403 and "exceeded quota" in text:
        return RunFailed(f"the workers' Job exceeds a quota: {text}", remedy="Lower load.workers, or raise the quota.")
    if error.status == 403:
        return PrivilegeMissing(f"Kubernetes refused the workers' Job: {text}", remedy=_RIGHTS)
    if error.is_missing:
        remedy = f"Create it with `kubectl create namespace {namespace}`, or name another in spawner.namespace."
        return ConfigurationError(f"namespace {namespace} cannot be used: {text}", remedy=remedy)
    if error.status in (400, 422):
        remedy = "Correct the key of spawner that it names; `loadgen run --dry-run` prints the manifest."
        return ConfigurationError(f"Kubernetes rejected the workers' Job: {text}", remedy=remedy)
    return RunFailed(f"the workers' Job {job.name} could not be created: {text}", remedy="Try again later.")
