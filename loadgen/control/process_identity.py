"""Identifies a process, so that another process on the same machine can later tell that it has ended.

A process id alone is not enough: it is reused, and containers use the same ids. A mark combines the place in which
process ids are unique (this boot of the machine, and the namespaces of the process) with the start time of the process.
Two containers with the same host name and process id have different marks, and so does the next process with the same
id. Marks exist on Linux only; elsewhere a mark is empty, and no process is known to have ended.
"""

from __future__ import annotations

import hashlib
import os
import socket
from functools import cache
from pathlib import Path

MARK_LENGTH = 18
PLACE_LENGTH = 8
_STATE, _START_TICKS = 0, 19  # indexes of the fields of /proc/<pid>/stat after the name of the process


def process_mark(pid: int) -> str:
    """The mark of a process on this machine; empty if it cannot be determined."""
    place, start_ticks = _place(), _started(pid)
    if not place or start_ticks is None:
        return ""
    return f"{place}{start_ticks:0{MARK_LENGTH - PLACE_LENGTH}x}"


def has_ended(pid: int, mark: str) -> bool:
    """Whether the process with this mark ran on this machine and has ended. False if that is not certain."""
    place, started = _place(), mark[PLACE_LENGTH:]
    if not place or len(mark) != MARK_LENGTH or mark[:PLACE_LENGTH] != place:
        return False
    if not is_running(pid):
        return True
    now_ticks = _started(pid)  # of another process, if the id was reused
    return now_ticks is not None and f"{now_ticks:0{MARK_LENGTH - PLACE_LENGTH}x}" != started


def is_running(pid: int) -> bool:
    """Whether a process with this id runs on this machine. A zombie process does not."""
    try:
        os.kill(pid, 0)  # not by /proc, which may hide the processes of other users
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    fields = _fields(pid)
    return fields is None or fields[_STATE] not in ("Z", "X")


@cache
def _place() -> str:
    """A digest of this boot and of the namespaces of process ids and times; empty if it cannot be determined."""
    try:
        parts = [
            Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip(),
            os.readlink("/proc/self/ns/pid"),
            socket.gethostname(),
        ]
    except OSError:
        return ""
    for path in (Path("/etc/machine-id"), Path("/proc/self/ns/time")):  # optional
        try:
            parts.append(os.readlink(path) if path.is_symlink() else path.read_text("ascii").strip())
        except (OSError, ValueError):
            parts.append("")
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:PLACE_LENGTH]


def _started(pid: int) -> int | None:
    """The start time in ticks since boot: the wall clock may be set."""
    fields = _fields(pid)
    return None if fields is None else int(fields[_START_TICKS])


def _fields(pid: int) -> list[str] | None:
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    except OSError:
        return None
