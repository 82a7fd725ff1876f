"""Which process of which machine holds something: enough to know later, on the same machine, that it has ended.

A mark names the place in which process ids are unique (this start of this machine and its namespaces) and the moment at
which the process started there. Two containers with the same host name and process id have different marks, and so has
the next process that gets the same id. Linux only: elsewhere a mark is empty, and nothing is known of any process.
"""

from __future__ import annotations

import hashlib
import os
import socket
from functools import cache
from pathlib import Path

MARK_LENGTH = 18
PLACE_LENGTH = 8
_STATE, _START_TICKS = 0, 19  # fields of /proc/<pid>/stat after the name of the process


def process_mark(pid: int) -> str:
    """The mark of a process of this machine; empty where it cannot be known."""
    place, start_ticks = _place(), _started(pid)
    if not place or start_ticks is None:
        return ""
    return f"{place}{start_ticks:0{MARK_LENGTH - PLACE_LENGTH}x}"


def has_ended(pid: int, mark: str) -> bool:
    """Has the process with this mark run here, and ended? False whenever that is not certain."""
    place, started = _place(), mark[PLACE_LENGTH:]
    if not place or len(mark) != MARK_LENGTH or mark[:PLACE_LENGTH] != place:
        return False
    if not is_running(pid):
        return True
    now_ticks = _started(pid)
    return now_ticks is not None and f"{now_ticks:0{MARK_LENGTH - PLACE_LENGTH}x}" != started  # another has its id


def is_running(pid: int) -> bool:
    """Is there such a process on this machine? One that only waits to be noticed by its parent is none."""
    try:
        os.kill(pid, 0)  # asks the kernel: /proc may hide the processes of other users
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    fields = _fields(pid)
    return fields is None or fields[_STATE] not in ("Z", "X")


@cache
def _place() -> str:
    """This start of this machine, and where process ids and start times are counted; empty where that is unknown."""
    try:
        parts = [
            Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip(),
            os.readlink("/proc/self/ns/pid"),
            socket.gethostname(),
        ]
    except OSError:
        return ""
    for path in (Path("/etc/machine-id"), Path("/proc/self/ns/time")):  # where there are any
        try:
            parts.append(os.readlink(path) if path.is_symlink() else path.read_text("ascii").strip())
        except (OSError, ValueError):
            parts.append("")
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:PLACE_LENGTH]


def _started(pid: int) -> int | None:
    """In ticks since the machine started: the wall clock may be set."""
    fields = _fields(pid)
    return None if fields is None else int(fields[_START_TICKS])


def _fields(pid: int) -> list[str] | None:
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    except OSError:
        return None
