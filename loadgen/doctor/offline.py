"""Checks without a connection: the resources of this machine, versions, connection parameters, the scenario."""

from __future__ import annotations

import platform
import resource
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import psutil

from loadgen.doctor.check_context import DoctorTarget, Finding, failed, ok, warning
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
RELEASED = datetime(2026, 1, 1, tzinfo=UTC)  # a correct clock never shows an earlier time

_CGROUP = Path("/sys/fs/cgroup")


def processor(cores_here: int, connections: int | None) -> Finding:
    text = counted(cores_here, "core")
    if connections is None:
        return ok(text)
    wanted = -(-connections // CONNECTIONS_PER_WORKER)
    if wanted > cores_here:
        return warning(
            f"{text} for {counted(connections, 'connection')}: one core drives about {CONNECTIONS_PER_WORKER}",
            f"Check the client CPU of the run; fast statements need {counted(wanted, 'core')}, or fewer connections.",
        )
    return ok(f"{text} for {counted(connections, 'connection')}")


def memory(free_mb: int, workers: int, connections: int | None) -> Finding:
    wanted = workers * WORKER_MB + (connections or 0) * CONNECTION_MB
    text = f"{free_mb:,} MB free"
    if connections is not None and free_mb < wanted:
        return failed(
            f"{text}; {counted(workers, 'worker')} with {counted(connections, 'connection')} need about {wanted:,} MB",
            "Close other programs, or use fewer workers (load.workers) or connections.",
        )
    if free_mb < MEMORY_FEW_MB:
        return warning(text, "Close other programs: swapping distorts the measured times.")
    return ok(text)


def free_mb() -> int:
    """Memory that this process may still allocate, in MB. The limit of a container counts."""
    free = psutil.virtual_memory().available
    try:
        limit = (_CGROUP / "memory.max").read_text("ascii").strip()
        if limit.isdigit():
            free = min(free, int(limit) - int((_CGROUP / "memory.current").read_text("ascii")))
    except (OSError, ValueError):  # no cgroup files: no limit
        return int(free // 1_000_000)
    return int(max(free, 0) // 1_000_000)


def open_files(limit: int, connections_per_worker: int | None) -> Finding:
    text = "no limit" if limit == resource.RLIM_INFINITY else f"at most {limit:,} per process"
    wanted = FILES_OF_A_PROCESS + FILES_PER_CONNECTION * (connections_per_worker or 0)
    is_enough = limit == resource.RLIM_INFINITY or limit >= wanted
    if not is_enough:
        return failed(
            f"{text}; a worker with {counted(connections_per_worker or 0, 'connection')} needs about {wanted:,}",
            f"Raise the limit (ulimit -n {max(4_096, wanted)}), or use more workers (load.workers).",
        )
    if connections_per_worker is None and limit != resource.RLIM_INFINITY and limit < FILES_FEW:
        return warning(text, "Raise the limit before a run with many connections: ulimit -n 4096.")
    return ok(text)


def open_files_limit() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def versions() -> Finding:
    """Raises ConfigurationError when the driver is missing or its version is not supported."""
    driver.major()
    return ok(f"Python {platform.python_version()}, {driver.DISTRIBUTION} {driver.version()}")


def wall_clock(now: datetime) -> Finding:
    text = f"{now:%Y-%m-%d %H:%M:%S} UTC"
    if now < RELEASED:
        return failed(
            f"the clock of this machine is wrong: it shows {text}",
            "Set it: certificates and keys are checked against it.",
        )
    return ok(text)


def connection(profile: ConnectionProfile) -> Sequence[Finding]:
    """The parameters of a connection, and the warnings about its files and variables."""
    found = [ok(f"{printable(profile.name, 80)}: {printable(profile.address, 120)}", *_fields(profile))]
    remedy = "Correct the file or variable; `loadgen connections list` shows which files are read."
    found += [warning(printable(text), remedy) for text in profile.warnings]
    if profile.unused:
        found.append(
            warning(
                f"ignored, because loadgen sets these options itself: {printable(', '.join(profile.unused), 500)}",
                "No action is needed. Remove them if only loadgen uses this connection.",
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
    """The warnings about the scenario, and whether load and control plane share a warehouse or a database."""
    assert subject.loaded is not None
    found = [
        warning(printable(str(each)), "`loadgen validate FILE --plan` shows what it means.")
        for each in subject.loaded.warnings
    ]
    control = subject.loaded.scenario.control
    if not subject.is_apart and not control.share_warehouse and _same(subject.warehouse(), control.warehouse):
        found.append(
            warning(
                f"the control plane uses the target warehouse, {printable(control.warehouse, 80)}",
                "Set control.warehouse to another warehouse: heartbeats would wait behind the load and add to it.",
            )
        )
    database = subject.target_profile().text("database") if subject.loaded.scenario.target.database is None else None
    if not subject.is_apart and not subject.target_profile().is_embedded and _same(database, subject.place.database):
        found.append(
            warning(
                f"the database of the connection, {printable(database or '', 80)}, is also that of the control plane,"
                " and the hybrid tables of a database share one limit of operations",
                "Set target.database or control.database to another database.",
            )
        )
    return found or [ok(printable(subject.loaded.scenario.name, 80))]


def _same(first: str | None, second: str) -> bool:
    try:
        return first is not None and Identifier.parse(first) == Identifier.parse(second)
    except InvalidIdentifier:
        return False
