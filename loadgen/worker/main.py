"""The entry point of a worker process: `loadgen worker`, bin/run_worker, and the local spawner all come here.

What must happen before numpy and the driver are imported happens first; the rest of the package is imported after it.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import threading
import zlib
from collections.abc import Callable, MutableMapping, Sequence
from pathlib import Path
from typing import NoReturn

from loadgen.worker.arguments import WorkerArguments

# Libraries below numpy start a thread per core; a worker has one core.
_THREADS = (
    *("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "NUMEXPR_NUM_THREADS"),
    "VECLIB_MAXIMUM_THREADS",
)
_COMM_MAX = 15  # characters; what the kernel keeps of a name


def limit_threads(environ: MutableMapping[str, str] = os.environ) -> None:
    """Must run before numpy is imported."""
    for name in _THREADS:
        environ[name] = "1"


def pin_to_core(run_id: str, worker_group_id: int) -> int | None:
    """Stay on one of the allowed cores, round robin over the workers; None where that cannot be done.

    The driver hands the interpreter's lock from thread to thread some thirty times per statement, and doing that across
    cores costs half of the throughput. Must run before the driver is imported: its own threads inherit it.
    """
    if not hasattr(os, "sched_setaffinity"):
        return None
    core = core_of(run_id, worker_group_id, sorted(os.sched_getaffinity(0)))
    os.sched_setaffinity(0, {core})
    return core


def core_of(run_id: str, worker_group_id: int, cores: Sequence[int]) -> int:
    """Runs begin at different cores: else the first workers of all that a pool does at once would share one."""
    return cores[(zlib.crc32(run_id.encode()) + worker_group_id) % len(cores)]


def name_process(name: str) -> None:
    """Show the worker's id in ps and top, on Linux."""
    try:
        Path("/proc/self/comm").write_bytes(name.encode("ascii", "replace")[:_COMM_MAX])
    except OSError:  # no such file system here: a name is a comfort, not a need
        return


def ignore_terminal() -> None:
    """Ctrl-C and the terminal's end are the parent's to judge: the terminal tells everyone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)


def watch_signals(stop: Callable[[str], None]) -> None:
    """SIGTERM asks for an end, each time it comes.

    A thread is told through a pipe: a handler that took a lock could wait for the very thread it interrupted.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, lambda *_: None)

    def watch() -> None:
        while os.read(reader, 1):
            stop("SIGTERM")

    threading.Thread(target=watch, name="signals", daemon=True).start()


def watch_parent(fd: int, gone: Callable[[str], None]) -> None:
    """Notice the parent's death, however it died: its end of the pipe closes."""

    def watch() -> None:
        try:
            while os.read(fd, 1):
                pass
        except OSError:
            pass
        gone("the parent process is gone")

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


STUCK_S = 20  # a worker that has not registered by then shows what it is at
PIN_VARIABLE = "LOADGEN_PIN"  # none: stay on all cores
PARENT_VARIABLE = "LOADGEN_PARENT_FD"  # a pipe that closes when the parent dies


def main(arguments: WorkerArguments) -> NoReturn:
    """Be a worker, and exit with its code."""
    ignore_terminal()
    # A start that hangs must not be a riddle: what every thread is at goes to the log.
    faulthandler.dump_traceback_later(STUCK_S)
    limit_threads()
    if os.environ.get(PIN_VARIABLE) != "none":
        pin_to_core(arguments.run_id, arguments.worker_group_id)
    name_process(arguments.worker_id)

    from loadgen.control.location import ControlPlaneLocation
    from loadgen.worker.worker import Worker

    worker = Worker(arguments, ControlPlaneLocation.from_environment(), environ=os.environ)
    watch_signals(worker.stop)
    parent_fd = os.environ.pop(PARENT_VARIABLE, "")
    if parent_fd.isdigit():
        watch_parent(int(parent_fd), worker.orphaned)
    os._exit(worker.run())
