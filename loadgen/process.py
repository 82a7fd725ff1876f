"""Processes: priority, garbage collection, cores, user and host of this one; marks, by which others find its end.

A process id alone does not identify a process: it is reused, and containers use the same ids. A mark combines the place
in which process ids are unique (this boot of the machine, and the namespaces of the process) with the start time of the
process. Two containers with the same host name and process id have different marks, and so does the next process with
the same id. Marks exist on Linux only; elsewhere a mark is empty, and no process is known to have ended.
"""

from __future__ import annotations

import gc
import getpass
import hashlib
import os
import socket
from functools import cache
from pathlib import Path

from loadgen.log import printable

# With twelve other busy programs on two cores, threads wake up 4 ms late with this niceness, and 10 ms late without it.
# With six busy programs in other sessions it is 1 ms if the session has this niceness too, and 6 ms without it.
MEASURING_NICENESS = -10
STARTING_GC_THRESHOLD = 20_000


def collect_less_often() -> None:
    """Let the garbage collector run less often: among the many lasting objects of imports it would take a fifth of the
    time of the imports."""
    gc.set_threshold(STARTING_GC_THRESHOLD)


def raise_priority() -> None:
    """Raise the priority of this process, if permitted (root, CAP_SYS_NICE): other programs delay measurements less.

    Threads and processes that are started later inherit it: workers, and the embedded server. A niceness that the user
    has set is kept: `nice -n 1 loadgen …`.

    Linux may schedule sessions against each other first, and then the processes in each session (autogroup). So a
    process that leads a session sets the same niceness for it. The session of a terminal is not changed.
    """
    try:
        if os.getpriority(os.PRIO_PROCESS, 0) == 0:
            os.setpriority(os.PRIO_PROCESS, 0, MEASURING_NICENESS)
        if os.getpriority(os.PRIO_PROCESS, 0) == MEASURING_NICENESS and os.getsid(0) == os.getpid():
            Path("/proc/self/autogroup").write_text(str(MEASURING_NICENESS))
    except OSError:  # not permitted, or not supported by the system
        return


def available_cores() -> int:
    """The number of cores that this process may use, or of all cores if the system does not report it."""
    allowed = getattr(os, "sched_getaffinity", None)
    return len(allowed(0)) if allowed is not None else os.cpu_count() or 1


def user_and_host() -> str:
    """The user and the machine, such as `alice on build-7`."""
    try:
        name = getpass.getuser()
    except (OSError, KeyError):  # no variable with a name, and no account with this number
        name = f"user {os.getuid()}"
    return f"{printable(name, 60)} on {printable(socket.gethostname(), 60)}"


# --- marks of processes ----------------------------------------------------------------------------------------------

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
