"""Snowpark Container Services, as far as a load generator uses them: jobs are accepted and recorded, not run.

A test reads `GET /__loadgen/services`, starts the replicas as local processes and reports their end with a POST.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

LOG_BYTES_MAX = 100_000
JOBS_MAX = 1_000
FINAL = frozenset({"DONE", "FAILED", "CANCELLED"})


@dataclass(slots=True, kw_only=True)
class Job:
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


class Services:
    """The jobs of this account, newest last."""

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}

    def add(self, job: Job) -> None:
        self.jobs.pop(job.name, None)
        self.jobs[job.name] = job
        while len(self.jobs) > JOBS_MAX:
            self.jobs.pop(next(iter(self.jobs)))

    def cancel(self, job: Job) -> None:
        """A job nobody has started yet is cancelled at once; a running one ends when its processes have."""
        if job.status not in FINAL:
            job.status = "CANCELLED" if job.status == "PENDING" else "CANCELLING"

    def report(self, name: str, status: str | None, logs: dict[str, str]) -> bool:
        """What a test helper tells about the processes it runs for a job."""
        job = self.jobs.get(name)
        if job is None:
            return False
        if status is not None and job.status not in FINAL:
            job.status = status
        for key, text in logs.items():
            job.logs[key] = text[-LOG_BYTES_MAX:]
        return True

    def listing(self) -> list[dict[str, Any]]:
        return [asdict(job) for job in self.jobs.values()]
