"""A benchmark leaves no process and no file behind, however it ends."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

import psutil

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
END_S = 15.0  # for the graceful end of a server and its database


@contextmanager
def cleaned_up() -> Iterator[None]:
    """Temporary files that are made in the block, and processes that are started there, end with it.

    The first signal ends the block; further ones are ignored, so that the cleaning up is not interrupted.
    """
    before = {number: signal.signal(number, _end) for number in SIGNALS}
    outer = tempfile.tempdir
    try:
        with tempfile.TemporaryDirectory(prefix="loadgen-bench-", ignore_cleanup_errors=True) as folder:
            os.chmod(folder, 0o755)  # the embedded server's database may run as another user
            tempfile.tempdir = folder
            try:
                yield
            finally:
                tempfile.tempdir = outer
                end(psutil.Process().children(recursive=True))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def end(processes: list[psutil.Process]) -> None:
    """Ask them to end, paused ones too; then kill what is left."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.resume()
            process.terminate()
    _, alive = psutil.wait_procs(processes, END_S)
    kill(alive)


def kill(processes: list[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, END_S)


def with_children(pid: int) -> list[psutil.Process]:
    """The process and everything below it, if it is there."""
    with suppress(psutil.NoSuchProcess):
        parent = psutil.Process(pid)
        return [parent, *parent.children(recursive=True)]
    return []


def _end(number: int, _: FrameType | None) -> None:
    for other in SIGNALS:
        signal.signal(other, signal.SIG_IGN)
    sys.exit(128 + number)
