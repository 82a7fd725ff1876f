"""Output that cannot be written: a reader that left, a full disk. One rule for all commands.

All text is printed by click.echo, the help of click included, and flushed there. So an OSError whose innermost frame is
click.echo is a failure of the output, and no bug.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import TextIO

import click

from loadgen.cli.common import echo
from loadgen.errors import OutputFailed

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


class OutputClosed(Exception):
    """Whoever read our output went away, as `| head` does. Not an OSError: click would make that exit code 1, a bug."""


@contextlib.contextmanager
def output_failures() -> Iterator[None]:
    """Failures of the output become ReaderLeft or OutputFailed."""
    try:
        yield
    except BrokenPipeError as error:
        if _has_no_reader(sys.stdout) or _has_no_reader(sys.stderr):
            raise OutputClosed from error
        raise ConnectionError(f"a connection broke: {error}") from error  # some other pipe or socket: never silent
    except OSError as error:
        if not _is_of_output(error):
            raise
        remedy = "Free space there, or send the output elsewhere." if error.errno in _DISK_FULL else None
        raise OutputFailed(f"cannot write the output: {error.strerror or error}", remedy=remedy) from error


def print_verdict(exit_code: int, tell: Callable[[], None], *, stored: bool = False) -> int:
    """Print a result whose verdict is this exit code. Only a verdict of 0 that is `stored` nowhere gives way to the
    exit code for output that could not be written."""
    try:
        tell()
    except OSError as error:
        if (exit_code == 0 and not stored) or not (_is_of_output(error) or isinstance(error, BrokenPipeError)):
            raise
        left = isinstance(error, BrokenPipeError)
        discard_output(sys.stdout)
        with contextlib.suppress(OSError):  # stderr may be on the disk that is full
            if not left:
                echo(f"warning: the result could not be printed: {error.strerror or error}", err=True)
    return exit_code


def flush_output() -> None:
    """Now, while a failure can still be told."""
    with output_failures():
        if sys.stdout is not None:
            echo("", nl=False)


def discard_output(stream: TextIO | None) -> None:
    """Send what is still buffered nowhere, so that Python does not fail on it a second time at exit."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())  # type: ignore[union-attr]
        os.close(nowhere)


def _is_of_output(error: OSError) -> bool:
    frames = list(traceback.walk_tb(error.__traceback__))
    return bool(frames) and frames[-1][0].f_code is click.echo.__code__


def _has_no_reader(stream: TextIO | None) -> bool:
    with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or no real file
        poll = select.poll()
        poll.register(stream.fileno(), 0)  # type: ignore[union-attr]
        return any(events & select.POLLERR for _, events in poll.poll(0))
    return False
