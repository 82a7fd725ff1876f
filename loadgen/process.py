"""This process and its machine: priority, garbage collection, cores, user and host."""

from __future__ import annotations

import gc
import getpass
import os
import socket
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
