"""The entry point of a worker process: `loadgen worker`, bin/run_worker, and the local spawner all come here.

What must happen before numpy and the driver are imported happens first; the rest of the package is imported after it.
"""

from __future__ import annotations

import faulthandler
import os
from typing import NoReturn

from loadgen.worker.arguments import WorkerArguments
from loadgen.worker.process import (
    ignore_terminal,
    limit_threads,
    name_process,
    pin_to_core,
    watch_parent,
    watch_signals,
)

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
