"""This machine: is there enough of it for the load?"""

from __future__ import annotations

import os
import platform
import resource
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import psutil

from loadgen.doctor.finding import Finding, failed, ok, warning
from loadgen.doctor.subject import DoctorTarget
from loadgen.log import printable
from loadgen.scenario.model import CONNECTIONS_PER_WORKER
from loadgen.snowflake import driver
from loadgen.snowflake.ident import Identifier, InvalidIdentifier
from loadgen.snowflake.profile import ConnectionProfile
from loadgen.units import counted

# Measured with driver 5: a worker's process takes 70 MB, a connection one descriptor and 0.1 MB without TLS.
WORKER_MB, CONNECTION_MB = 100, 1
FILES_OF_A_PROCESS, FILES_PER_CONNECTION = 64, 2
FILES_FEW = 1_024
MEMORY_FEW_MB = 500
RELEASED = datetime(2026, 1, 1, tzinfo=UTC)  # no clock that is right shows an earlier time

_CGROUP = Path("/sys/fs/cgroup")


def cores() -> int:
    """The cores that this process may use, where the system tells them."""
    allowed = getattr(os, "sched_getaffinity", None)
    return len(allowed(0)) if allowed is not None else os.cpu_count() or 1


def processor(cores_here: int, connections: int | None) -> Finding:
    said = counted(cores_here, "core")
    if connections is None:
        return ok(said)
    wanted = -(-connections // CONNECTIONS_PER_WORKER)
    if wanted > cores_here:
        return warning(
            f"{said} for {counted(connections, 'connection')}: one core keeps about {CONNECTIONS_PER_WORKER} busy",
            f"Watch the run's client CPU; for fast statements use {counted(wanted, 'core')}, or fewer connections.",
        )
    return ok(f"{said} for {counted(connections, 'connection')}")


def memory(free_mb: int, workers: int, connections: int | None) -> Finding:
    wanted = workers * WORKER_MB + (connections or 0) * CONNECTION_MB
    said = f"{free_mb:,} MB free"
    if connections is not None and free_mb < wanted:
        return failed(
            f"{said}, and {counted(workers, 'worker')} with {counted(connections, 'connection')} take about"
            f" {wanted:,} MB",
            "Close other programs, or use fewer workers (load.workers) or connections.",
        )
    if free_mb < MEMORY_FEW_MB:
        return warning(said, "Close other programs: a machine that swaps measures itself.")
    return ok(said)


def free_mb() -> int:
    """Memory that this process may still allocate; in a container its limit counts."""
    free = psutil.virtual_memory().available
    try:
        limit = (_CGROUP / "memory.max").read_text("ascii").strip()
        if limit.isdigit():
            free = min(free, int(limit) - int((_CGROUP / "memory.current").read_text("ascii")))
    except (OSError, ValueError):  # no such files: no such limit
        return int(free // 1_000_000)
    return int(max(free, 0) // 1_000_000)


def open_files(limit: int, connections_per_worker: int | None) -> Finding:
    said = "no limit" if limit == resource.RLIM_INFINITY else f"at most {limit:,} per process"
    wanted = FILES_OF_A_PROCESS + FILES_PER_CONNECTION * (connections_per_worker or 0)
    is_enough = limit == resource.RLIM_INFINITY or limit >= wanted
    if not is_enough:
        return failed(
            f"{said}, and a worker with {counted(connections_per_worker or 0, 'connection')} needs about {wanted:,}",
            f"Raise it: ulimit -n {max(4_096, wanted)}; or use more workers (load.workers).",
        )
    if connections_per_worker is None and limit != resource.RLIM_INFINITY and limit < FILES_FEW:
        return warning(said, "Raise it before a run with many connections: ulimit -n 4096.")
    return ok(said)


def open_files_limit() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def versions() -> Finding:
    """Raises ConfigurationError when the driver is missing or of a version that loadgen does not know."""
    driver.major()
    return ok(f"Python {platform.python_version()}, {driver.DISTRIBUTION} {driver.version()}")


def wall_clock(now: datetime) -> Finding:
    said = f"{now:%Y-%m-%d %H:%M:%S} UTC"
    if now < RELEASED:
        return failed(
            f"the clock says {said}, which is long past", "Set it: certificates and keys are checked against it."
        )
    return ok(said)


def connection(profile: ConnectionProfile) -> Sequence[Finding]:
    """One connection, and everything that its files and variables gave cause to say."""
    found = [ok(f"{printable(profile.name, 80)}: {printable(profile.address, 120)}", *_fields(profile))]
    remedy = "Correct it there; `loadgen connections list` shows which files are read."
    found += [warning(printable(text), remedy) for text in profile.warnings]
    if profile.unused:
        found.append(
            warning(
                f"not used, since loadgen decides it: {printable(', '.join(profile.unused), 500)}",
                "Nothing has to be done; remove them if they are for loadgen alone.",
            )
        )
    return found


def _fields(profile: ConnectionProfile) -> list[str]:
    rows = [
        (key, printable(profile.text(key) or "", 120), printable(profile.origin(key) or "", 300))
        for key in sorted(profile.fields)
    ]
    widths = [max(map(len, column)) for column in list(zip(*rows, strict=True))[:2]] if rows else [0, 0]
    return [f"{key.ljust(widths[0])}  {value.ljust(widths[1])}  {origin}".rstrip() for key, value, origin in rows]


def scenario(subject: DoctorTarget) -> Sequence[Finding]:
    """What the scenario's reader had to say, and whether load and control plane keep out of each other's way."""
    assert subject.loaded is not None
    found = [
        warning(printable(str(each)), "`loadgen validate FILE --plan` shows what it means.")
        for each in subject.loaded.warnings
    ]
    control = subject.loaded.scenario.control
    if not subject.is_apart and not control.share_warehouse and _same(subject.warehouse(), control.warehouse):
        found.append(
            warning(
                f"the control plane uses the target's own warehouse, {printable(control.warehouse, 80)}",
                "Set control.warehouse to another one: heartbeats would queue behind the load and add to it.",
            )
        )
    database = subject.target_profile().text("database") if subject.loaded.scenario.target.database is None else None
    if not subject.is_apart and not subject.target_profile().is_embedded and _same(database, subject.place.database):
        found.append(
            warning(
                f"the connection's database, {printable(database or '', 80)}, is that of the control plane, and hybrid"
                " tables of a database share one limit of operations",
                "Set target.database or control.database to another one.",
            )
        )
    return found or [ok(printable(subject.loaded.scenario.name, 80))]


def _same(first: str | None, second: str) -> bool:
    try:
        return first is not None and Identifier.parse(first) == Identifier.parse(second)
    except InvalidIdentifier:
        return False
