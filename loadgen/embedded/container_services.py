"""Snowpark Container Services, the part that a load generator uses: jobs are accepted and recorded, not run.

A test reads `GET /__loadgen/services`, starts the replicas as local processes and reports on them with a POST:

    {"name": "DB.SCHEMA.JOB", "logs": {"0/worker": "…"},
     "instances": {"0": {"container": "worker", "status": "FAILED", "exit_code": 137, "message": "…"}}}

`status` sets the status of the whole job; without it the status follows from its instances.
"""

from __future__ import annotations

from dataclasses import asdict, field
from typing import Any

from loadgen.embedded.wire import BadRequest
from loadgen.values import dataclass

LOG_BYTES_MAX = 100_000
JOBS_MAX = 1_000
FINAL = frozenset({"DONE", "FAILED", "CANCELLED"})
STATUSES = FINAL | {"PENDING", "RUNNING", "CANCELLING"}
CONTAINER_STATUSES = frozenset({"PENDING", "READY", "DONE", "FAILED", "UNKNOWN"})


@dataclass(slots=True, kw_only=True)
class ContainerInstance:
    """One replica: its only container."""

    container: str
    status: str
    message: str = ""
    exit_code: int | None = None

    @property
    def has_ended(self) -> bool:
        return self.status in ("DONE", "FAILED")


@dataclass(slots=True, kw_only=True)
class ContainerJob:
    """One EXECUTE JOB SERVICE."""

    name: str  # qualified
    compute_pool: str
    replicas: int
    query_warehouse: str | None
    asynchronous: bool
    specification: str
    created_ms: float
    status: str = "PENDING"  # PENDING RUNNING DONE FAILED CANCELLING CANCELLED
    logs: dict[str, str] = field(default_factory=dict)  # "instance/container" → text
    instances: dict[str, ContainerInstance] = field(default_factory=dict)  # by number, those that were made

    def settle(self) -> None:
        """Derive the job's status from its instances; a cancelled job ends with its last instance."""
        ended = [instance for instance in self.instances.values() if instance.has_ended]
        if self.status in FINAL or not self.instances:
            return
        if len(ended) < self.replicas:
            self.status = "CANCELLING" if self.status == "CANCELLING" else "RUNNING"
        elif self.status == "CANCELLING":
            self.status = "CANCELLED"
        else:
            self.status = "FAILED" if any(one.status == "FAILED" for one in ended) else "DONE"


class ContainerServices:
    """The jobs of this account, newest last."""

    def __init__(self) -> None:
        self.jobs: dict[str, ContainerJob] = {}

    def add(self, job: ContainerJob) -> None:
        self.jobs.pop(job.name, None)
        self.jobs[job.name] = job
        while len(self.jobs) > JOBS_MAX:
            self.jobs.pop(next(iter(self.jobs)))

    def cancel(self, job: ContainerJob) -> None:
        """A job that was not started is cancelled immediately; a running one ends with its processes."""
        if job.status not in FINAL:
            job.status = "CANCELLED" if job.status == "PENDING" else "CANCELLING"

    def report(self, message: dict[str, Any]) -> bool:
        """Record what a test helper reports about the processes of a job. False: unknown job."""
        job = self.jobs.get(str(message.get("name") or ""))
        status, logs = message.get("status"), _objects(message, "logs")
        if status is not None and not _is_one_of(status, STATUSES):
            raise BadRequest(f"status is none of {', '.join(sorted(STATUSES))}")
        instances = {_number(key): _instance(given) for key, given in _objects(message, "instances").items()}
        if job is None:
            return False
        if status is not None and job.status not in FINAL:
            job.status = status
        job.logs |= {key: str(text)[-LOG_BYTES_MAX:] for key, text in logs.items()}
        job.instances |= instances
        job.settle()
        return True

    def listing(self) -> list[dict[str, Any]]:
        return [asdict(job) for job in self.jobs.values()]


def _objects(message: dict[str, Any], key: str) -> dict[str, Any]:
    given = message.get(key) or {}
    if not isinstance(given, dict):
        raise BadRequest(f"{key} is not an object")
    return given


def _is_one_of(given: Any, known: frozenset[str]) -> bool:
    return isinstance(given, str) and given in known


def _number(key: str) -> str:
    if not (key.isascii() and key.isdigit() and len(key) <= 6):
        raise BadRequest("an instance's key is not its number")
    return key


def _instance(given: Any) -> ContainerInstance:
    if not isinstance(given, dict):
        raise BadRequest("an instance is not an object")
    container, status, code = given.get("container"), given.get("status"), given.get("exit_code")
    if not isinstance(container, str) or not _is_one_of(status, CONTAINER_STATUSES) or not isinstance(code, int | None):
        raise BadRequest("an instance has no container, an unknown status, or an exit_code that is no number")
    return ContainerInstance(
        container=container, status=str(status), message=str(given.get("message") or ""), exit_code=code
    )
