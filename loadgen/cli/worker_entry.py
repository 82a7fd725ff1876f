"""What a worker process runs that was started as a child of `loadgen run`."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Mapping
from typing import NoReturn

from loadgen.cli.common import raise_priority
from orchestrator.spawn.spawner import WorkerOrder


def run_child(order: WorkerOrder, environment: Mapping[str, str], log_path: str) -> NoReturn:
    """Be a worker: own session, own log file, and an end when the parent ends."""
    os.setsid()  # Ctrl-C at the terminal is the parent's business
    raise_priority()
    _redirect(log_path)
    os.environ.update(environment)
    from loadgen.log import configure
    from loadgen.worker.arguments import WorkerArguments
    from loadgen.worker.main import PARENT_VARIABLE, main

    configure()
    parent = multiprocessing.parent_process()
    if parent is not None:
        os.environ[PARENT_VARIABLE] = str(parent.sentinel)  # can be read when the parent is gone
    main(
        WorkerArguments(
            run_id=order.run_id,
            worker_id=order.worker_id,
            worker_group_id=order.worker_group_id,
            worker_group_count=order.worker_group_count,
        )
    )


def _redirect(log_path: str) -> None:
    """Everything it says, the interpreter's last words too, goes to its file."""
    fd = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # the parent may have been started without
            stream.flush()
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    if fd > 2:
        os.close(fd)
