"""What a runner offers: the labels that its user gave it, and what it knows of itself."""

from __future__ import annotations

import os
import platform
import socket

import loadgen
from loadgen.control.location import ControlPlaneLocation
from loadgen.control.tables.pool_workers import PoolWorkerIdentity, new_worker_id
from loadgen.snowflake import driver


def capabilities(labels: tuple[str, ...]) -> tuple[str, ...]:
    """A label of the same name comes before what is known."""
    known = {
        "host": socket.gethostname(),
        "os": platform.system().lower(),
        "python": ".".join(platform.python_version_tuple()[:2]),
        "driver": str(driver.major()),
        "loadgen": loadgen.__version__,
    }
    given = {label.partition("=")[0] for label in labels}
    own = {f"{key}={value}" for key, value in known.items() if key not in given}
    return tuple(sorted(own | set(labels)))


def runner_identity(place: ControlPlaneLocation, labels: tuple[str, ...]) -> PoolWorkerIdentity:
    """Of this process."""
    return PoolWorkerIdentity(
        worker_id=new_worker_id(),
        hostname=socket.gethostname()[:255],
        pid=os.getpid(),
        version=loadgen.__version__,
        task_queue=f"{place.database}.{place.schema}"[:100],
        labels=labels,
        capabilities=capabilities(labels),
    )
