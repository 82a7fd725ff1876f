"""A Kubernetes cluster for tests: an API server on loopback that knows Jobs, pods, their logs and events.

Every body, sent and answered, must survive the client's own models unchanged. Each index of a Job is one real process
with the environment that the manifest describes, and nothing of this one; the working tree replaces the
image. Faults are scripted: failed requests, lost responses, and any state of a pod.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from kubernetes import client

from tests.processes import PROGRAM, ROOT

NAMESPACE = "bench"
TOKEN = "a-token-of-a-test"
IMAGE = "registry.example/loadgen:1.0"
SPAWNER = f'{{kind: kubernetes, image: "{IMAGE}", secret: snowflake}}'
JOBS = re.compile(r"/apis/batch/v1/namespaces/([^/]+)/jobs(?:/([^/]+))?")
CORE = re.compile(r"/api/v1/namespaces/([^/]+)/(pods|events)(?:/([^/]+)/(log))?")
KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: test
contexts:
  - {name: test, context: {cluster: test, user: test, namespace: %s}}
clusters:
  - {name: test, cluster: {server: "http://%s:%d"}}
users:
  - {name: test, user: {token: %s}}
"""


def checked(model: str, body: Any) -> Any:
    """The body, which must be one that the client's model can hold: no unknown key, no wrong type."""
    read = getattr(client, model).from_dict(body)
    with client.ApiClient() as api:
        written = json.loads(json.dumps(api.sanitize_for_serialization(read)).replace("+00:00", "Z"))
    assert written == body, f"{model}: {json.dumps(body)} is read as {json.dumps(written)}"
    return body


@dataclass(slots=True, kw_only=True)
class ClusterPod:
    """A pod: a process, or the state that the test has set."""

    name: str
    uid: str
    index: int
    labels: Mapping[str, str]
    process: subprocess.Popen[bytes] | None
    log: Path
    said: dict[str, Any] | None = None  # its status, instead of the process's
    deleted: bool = False

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def body(self) -> dict[str, Any]:
        metadata: dict[str, Any] = {
            "name": self.name,
            "namespace": NAMESPACE,
            "uid": self.uid,
            "labels": dict(self.labels),
            "annotations": {"batch.kubernetes.io/job-completion-index": str(self.index)},
        }
        if self.deleted:
            metadata["deletionTimestamp"] = "2026-11-15T02:00:00Z"
        container = {"name": "worker", "image": IMAGE}
        spec = {"nodeName": "node-a", "containers": [container]}
        return {"metadata": metadata, "spec": spec, "status": self.said or self._status()}

    def _status(self) -> dict[str, Any]:
        assert self.process is not None
        code = self.process.poll()
        if code is None:
            return pod_status("Running", {"running": {"startedAt": "2026-11-15T02:00:00Z"}})
        code = 128 - code if code < 0 else code  # as a container says it
        state = {"terminated": {"exitCode": code, "reason": "Error" if code else "Completed"}}
        return pod_status("Failed" if code else "Succeeded", state)


def pod_status(phase: str, state: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """The status of a pod with one container in this state."""
    container = {"name": "worker", "image": IMAGE, "imageID": "", "ready": False, "restartCount": 0}
    statuses = {} if state is None else {"containerStatuses": [{**container, "state": dict(state)}]}
    return {"phase": phase, **statuses, **more}


def condition(kind: str, reason: str, message: str = "", *, holds: bool = True) -> dict[str, Any]:
    return {"type": kind, "status": "True" if holds else "False", "reason": reason, "message": message}


@dataclass(slots=True, kw_only=True)
class ClusterJob:
    body: dict[str, Any]
    uid: str
    pods: list[ClusterPod] = field(default_factory=list)
    status: dict[str, Any] = field(default_factory=dict)
    deleting: bool = False

    @property
    def answer(self) -> dict[str, Any]:
        metadata = {**self.body["metadata"], "uid": self.uid}
        if self.deleting:
            metadata["deletionTimestamp"] = "2026-11-15T02:00:00Z"
        return {**self.body, "metadata": metadata, "status": self.status}


@dataclass(slots=True, kw_only=True)
class RequestFault:
    """The fault of the next requests of this kind. `status` None: no response."""

    verb: str
    status: int | None
    message: str = ""
    count: int = 1
    executed: bool = False  # the request is executed before its response is lost


class Cluster:
    """`with` serves it."""

    def __init__(self, folder: Path, *, secrets: Mapping[str, Mapping[str, str]] | None = None) -> None:
        """`secrets`: by name. Without any, pods have no processes: tests set their states."""
        self.folder, self.processes, self.secrets = folder, secrets is not None, secrets or {}
        self.jobs: dict[str, ClusterJob] = {}
        self.manifests: list[dict[str, Any]] = []  # of every Job that was made
        self.removed: list[tuple[str, str]] = []  # Jobs and how
        self.calls: list[tuple[str, str, str]] = []  # verb, API group, resource
        self.faults: list[RequestFault] = []
        self.events: list[dict[str, Any]] = []
        self.second_pods: set[int] = set()  # indexes that get two pods
        self.stuck: dict[int, dict[str, Any]] = {}  # the states of pods that have no process
        self.program: Sequence[str] = PROGRAM  # of the image
        self.code = ROOT  # in the image
        self.trouble: list[BaseException] = []
        self._lock, self._numbers = threading.RLock(), itertools.count(1)
        self._started: list[subprocess.Popen[bytes]] = []
        cluster = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                """Set by tests, if at all."""

            def do_GET(self) -> None:
                cluster.answer(self, "get")

            def do_POST(self) -> None:
                cluster.answer(self, "create")

            def do_DELETE(self) -> None:
                cluster.answer(self, "delete")

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        # The interval bounds how long shutdown() takes.
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), name="kubernetes", daemon=True)
        self.kubeconfig = folder / "kubeconfig"

    def __enter__(self) -> Cluster:
        host, port = self._server.server_address[:2]
        self.kubeconfig.write_text(KUBECONFIG % (NAMESPACE, host, port, TOKEN), "utf-8")
        self.kubeconfig.chmod(0o600)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        for process in self._started:
            process.kill()
            process.wait()
        if self.trouble:
            raise self.trouble[0]

    def pids(self) -> set[int]:
        return {process.pid for process in self._started}

    @property
    def only_job(self) -> ClusterJob:
        (job,) = self.jobs.values()
        return job

    def say(self, index: int, status: dict[str, Any], *, deleted: bool = False) -> None:
        """Set the state of the pod of an index."""
        with self._lock:
            job = self.only_job
            pod = next((pod for pod in job.pods if pod.index == index), None) or self._add_pod(job, index)
            pod.said, pod.deleted = status, deleted

    def kill(self, index: int, status: dict[str, Any] | None = None) -> None:
        """Kill the process of an index, and set the state of its pod."""
        with self._lock:
            pod = next(pod for pod in self.only_job.pods if pod.index == index)
            assert pod.process is not None
            pod.process.send_signal(signal.SIGKILL)
            pod.process.wait()
            pod.said = status

    # --- requests ----------------------------------------------------------------------------------------------------

    def answer(self, request: BaseHTTPRequestHandler, verb: str) -> None:
        length = int(request.headers.get("Content-Length") or 0)
        body = json.loads(request.rfile.read(length)) if length else None
        try:
            with self._lock:
                status, answer = self._answered(request, verb, body)
        except BaseException as error:  # reported at the end, by the thread of the test
            self.trouble.append(error)
            raise
        if status is None:
            request.close_connection = True
            request.connection.close()
            return
        content = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
        request.send_response(status)
        request.send_header("Content-Type", "text/plain" if isinstance(answer, str) else "application/json")
        request.send_header("Content-Length", str(len(content)))
        request.end_headers()
        request.wfile.write(content)

    def _answered(self, request: BaseHTTPRequestHandler, verb: str, body: Any) -> tuple[int | None, Any]:
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return failure(401, "Unauthorized")
        url = urlsplit(request.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        if job := JOBS.fullmatch(url.path):
            self.calls.append((verb, "batch", "jobs"))
            act = {"create": self._create, "get": self._get, "delete": self._delete}[verb]
            return self._faulted(f"{verb} jobs", lambda: act(job[2], body))
        core = CORE.fullmatch(url.path)
        assert core is not None, f"a request that loadgen should not make: {verb} {request.path}"
        if core[4]:
            self.calls.append(("get", "", "pods/log"))
            return self._faulted("get pods/log", lambda: self._log(core[3]))
        self.calls.append(("list", "", core[2]))
        read = self._list_pods if core[2] == "pods" else self._list_events
        return self._faulted(f"list {core[2]}", lambda: read(query))

    def _faulted(self, call: str, act: Any) -> tuple[int | None, Any]:
        for fault in self.faults:
            if fault.verb == call and fault.count > 0:
                fault.count -= 1
                if fault.executed:
                    act()
                return (None, None) if fault.status is None else failure(fault.status, fault.message)
        answered: tuple[int | None, Any] = act()
        return answered

    def _create(self, _: str | None, body: Any) -> tuple[int, Any]:
        checked("V1Job", body)
        name = body["metadata"]["name"]
        if name in self.jobs:
            return failure(409, f'jobs.batch "{name}" already exists')
        self.manifests.append(body)
        job = self.jobs[name] = ClusterJob(body=body, uid=f"job-{next(self._numbers)}")
        if self.processes:
            for index in range(body["spec"]["completions"]):
                for _second in range(2 if index in self.second_pods else 1):
                    self._add_pod(job, index)
        return 201, checked("V1Job", job.answer)

    def _get(self, name: str, _: Any) -> tuple[int, Any]:
        job = self.jobs.get(name)
        if job is not None and job.deleting and not any(pod.is_running for pod in job.pods):
            del self.jobs[name]
            job = None
        return missing(name) if job is None else (200, checked("V1Job", job.answer))

    def _delete(self, name: str, body: Any) -> tuple[int, Any]:
        checked("V1DeleteOptions", body)
        job = self.jobs.get(name)
        if job is None:
            return missing(name)
        self.removed.append((name, body["propagationPolicy"]))
        for pod in job.pods:
            pod.deleted = True
            if pod.is_running and pod.process is not None:
                pod.process.terminate()
        job.deleting = True
        if body["propagationPolicy"] != "Foreground":
            del self.jobs[name]
        return 200, {"apiVersion": "v1", "kind": "Status", "status": "Success"}

    def _list_pods(self, query: Mapping[str, str]) -> tuple[int, Any]:
        key, _, value = query["labelSelector"].partition("=")
        pods = [pod.body for job in self.jobs.values() for pod in job.pods if pod.labels.get(key) == value]
        return 200, checked("V1PodList", {"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": pods})

    def _list_events(self, query: Mapping[str, str]) -> tuple[int, Any]:
        wanted = dict(part.split("=") for part in query["fieldSelector"].split(","))
        assert wanted["involvedObject.kind"] == "Job"
        of_job = {"kind": "Job", "name": wanted["involvedObject.name"]}
        items = [{"metadata": {"name": f"e{n}"}, "involvedObject": of_job, **e} for n, e in enumerate(self.events)]
        return 200, checked(
            "CoreV1EventList", {"apiVersion": "v1", "kind": "EventList", "metadata": {}, "items": items}
        )

    def _log(self, name: str) -> tuple[int, Any]:
        for pod in (pod for job in self.jobs.values() for pod in job.pods if pod.name == name):
            if pod.said is not None and pod.said["phase"] == "Pending":
                return failure(400, f'container "worker" in pod "{name}" is waiting to start')
            return 200, pod.log.read_text("utf-8", "replace")
        return missing(name)

    # --- pods --------------------------------------------------------------------------------------------------------

    def _add_pod(self, job: ClusterJob, index: int) -> ClusterPod:
        number = next(self._numbers)
        template, name = job.body["spec"]["template"], f"{job.body['metadata']['name']}-{index}-{number:05}"
        home = self.folder / name
        home.mkdir()
        log = home / "log"
        log.write_text(f"pod {index} starts\n", "utf-8")
        labels = template["metadata"]["labels"]
        pod = ClusterPod(name=name, uid=f"uid-{number}", index=index, labels=labels, process=None, log=log)
        job.pods.append(pod)
        pod.said = self.stuck.get(index)
        if self.processes and pod.said is None:
            self._start(pod, template["spec"]["containers"][0], home)
        return pod

    def _start(self, pod: ClusterPod, container: dict[str, Any], home: Path) -> None:
        environ = self._environment(pod, container)
        if environ is None:
            message = 'secret "snowflake" not found'
            pod.said = pod_status("Pending", {"waiting": {"reason": "CreateContainerConfigError", "message": message}})
            return
        program, *words = container["command"]
        assert program == "loadgen"
        assert container["image"] == IMAGE
        fixed = {"PATH": os.environ["PATH"], "PYTHONPATH": str(self.code)}
        spool = {"HOME": str(home), "LOADGEN_SPOOL_DIR": str(home / "spool")}  # instead of the pod's volume
        with pod.log.open("ab") as output:
            pod.process = subprocess.Popen(
                [*self.program, *words, *container["args"]],
                env={**environ, **fixed, **spool},
                cwd=home,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._started.append(pod.process)

    def _environment(self, pod: ClusterPod, container: dict[str, Any]) -> dict[str, str] | None:
        """As Kubernetes makes it: Secrets first, then the values, which may refer to earlier ones."""
        environ: dict[str, str] = {}
        for source in container.get("envFrom", ()):
            secret = self.secrets.get(source["secretRef"]["name"])
            if secret is None:
                return None
            environ |= secret
        environ["JOB_COMPLETION_INDEX"] = str(pod.index)
        fields = {"metadata.name": pod.name, "metadata.uid": pod.uid, "spec.nodeName": "node-a"}
        for one in container["env"]:
            if "valueFrom" in one:
                environ[one["name"]] = fields[one["valueFrom"]["fieldRef"]["fieldPath"]]
            else:
                environ[one["name"]] = re.sub(r"\$\((\w+)\)", lambda found: environ[found[1]], one["value"])
        return environ


def login_secret(host: str, port: int) -> dict[str, str]:
    """The content of a Secret with which pods log in to an embedded server."""
    login = {"ACCOUNT": "embedded", "USER": "bench", "PASSWORD": "any", "PROTOCOL": "http"}
    return {f"SNOWFLAKE_{name}": value for name, value in {**login, "HOST": host, "PORT": str(port)}.items()}


def failure(status: int, message: str) -> tuple[int, dict[str, Any]]:
    body = {"apiVersion": "v1", "kind": "Status", "status": "Failure", "message": message, "code": status}
    return status, checked("V1Status", body)


def missing(name: str) -> tuple[int, dict[str, Any]]:
    return failure(404, f'"{name}" not found')
