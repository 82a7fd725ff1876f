"""The entry point of a worker process, for `loadgen worker`, bin/run_worker and the local spawner.

Thread limits and CPU affinity must be set before numpy and the driver are imported. So main() imports the rest of the
package after that.
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

# Libraries that numpy uses start one thread per core, but a worker has a single core.
_THREADS = (
    *("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "NUMEXPR_NUM_THREADS"),
    "VECLIB_MAXIMUM_THREADS",
)
_COMM_MAX = 15  # characters: the kernel cuts longer names off


def limit_threads(environ: MutableMapping[str, str] = os.environ) -> None:
    """Limit numerical libraries to one thread. Call it before numpy is imported."""
    for name in _THREADS:
        environ[name] = "1"


def pin_to_core(run_id: str, worker_group_id: int) -> int | None:
    """Pin this process to one of the allowed cores, round robin over the workers. None: the platform cannot do that.

    The driver passes the interpreter's lock between threads about thirty times per statement. Across cores that costs
    half of the throughput. Call it before the driver is imported: the threads of the driver inherit the affinity.
    """
    if not hasattr(os, "sched_setaffinity"):
        return None
    core = core_of(run_id, worker_group_id, sorted(os.sched_getaffinity(0)))
    os.sched_setaffinity(0, {core})
    return core


def core_of(run_id: str, worker_group_id: int, cores: Sequence[int]) -> int:
    """The core of a worker. Runs begin at different cores, so that the first workers of concurrent runs of a pool do
    not share a core."""
    return cores[(zlib.crc32(run_id.encode()) + worker_group_id) % len(cores)]


def name_process(name: str) -> None:
    """Show the worker's id in ps and top, on Linux."""
    try:
        Path("/proc/self/comm").write_bytes(name.encode("ascii", "replace")[:_COMM_MAX])
    except OSError:  # this platform has no /proc; the name is optional
        return


def ignore_terminal() -> None:
    """Ignore Ctrl-C and hangups: the terminal signals all processes, and the parent decides what they mean."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)


def watch_signals(stop: Callable[[str], None]) -> None:
    """Call `stop` for each SIGTERM.

    A thread reads the signals from a pipe: a handler that takes a lock could wait for the thread that it interrupts.
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
    """Call `gone` when the parent has ended, in any way: then its end of the pipe is closed."""

    def watch() -> None:
        try:
            while os.read(fd, 1):
                pass
        except OSError:
            pass
        gone("the parent process is gone")

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


STUCK_S = 20  # a worker that has not registered within this time logs the stacks of its threads
PIN_VARIABLE = "LOADGEN_PIN"  # none: use all cores
PARENT_VARIABLE = "LOADGEN_PARENT_FD"  # descriptor of a pipe that is closed when the parent ends


def main(arguments: WorkerArguments) -> NoReturn:
    """Run the worker, and exit with its exit code."""
    ignore_terminal()
    # If the start hangs, the log shows where.
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
        watch_parent(int(parent_fd), worker.parent_ended)
    os._exit(worker.run())
