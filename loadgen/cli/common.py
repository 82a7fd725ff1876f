"""What several commands share: printing, tables, durations, labels and times.

Text goes to stdout and stderr here and nowhere else. Control characters and marks that turn the reading direction are
made visible, so foreign text cannot control the terminal.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import re
import select
import shutil
import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

import click

from loadgen.clock import utc_iso
from loadgen.errors import DISK_FULL, OutputFailed, UsageError
from loadgen.log import columns_of, printable
from loadgen.units import DAY_S, parse_duration_s

if TYPE_CHECKING:
    from loadgen.control.session import ParsedRows
    from loadgen.report.run_text import TextLine


class StdoutClosed(OSError):
    """The caller has closed stdout (`>&-`)."""


def echo(text: str, *, err: bool = False, nl: bool = True, wrap: bool = True) -> None:
    """Print to stdout or stderr. Newlines and tabs are kept: foreign text has been through `printable` before.

    On a terminal, lines to stderr are wrapped between words; without `wrap` they are not, so that commands can be
    copied. A failure to write to stderr, such as a full disk, is ignored. A closed pipe raises BrokenPipeError on both.
    """
    if text and not err:
        _require_stdout()
    text = printable(text, sys.maxsize, multiline=True)
    width = columns_of(sys.stderr) if err and wrap else None
    if width is not None and len(text) * 2 > width:  # a character takes at most two columns
        from loadgen.report.run_text import wrapped_text  # here, because most commands print no long message

        text = wrapped_text(text, width)
    try:
        click.echo(text, err=err, nl=nl)
    except OSError as error:
        if not err or isinstance(error, BrokenPipeError):
            raise


def _require_stdout() -> None:
    """Raise if stdout was closed when the program started: click would print nothing."""
    if sys.stdout is None:
        raise StdoutClosed(errno.EBADF, "stdout is closed")


def warn(line: str) -> None:
    """Print a warning. A failure of stderr, such as a full disk, must not end a command."""
    with contextlib.suppress(OSError):
        echo(f"warning: {printable(line)}", err=True)


def text_table(head: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = (), gap: int = 2) -> str:
    """A table with columns as wide as their widest cell and `gap` spaces between them. Columns listed in `right` are
    aligned to the right. Each row is one line, whatever its cells contain."""
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    return "\n".join(
        (" " * gap)
        .join(
            f"{cell:>{width}}" if number in right else f"{cell:<{width}}"
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        .rstrip()
        for row in (head, *rows)
    )


def fact_lines(facts: Mapping[str, str | None]) -> list[str]:
    """A line for each known fact: its name, and its value in one column."""
    width = max(map(len, facts))
    return [f"  {name:<{width}}  {printable(value)}" for name, value in facts.items() if value]


def terminal_width() -> int | None:
    """Columns of the terminal; None if stdout is not a terminal: then lines are not wrapped."""
    return shutil.get_terminal_size().columns if sys.stdout is not None and sys.stdout.isatty() else None


def shows_colours() -> bool:
    """Whether stdout is a terminal with colours, and NO_COLOR is not set (no-color.org)."""
    if sys.stdout is None or not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        return False
    return os.environ.get("TERM", "") not in ("", "dumb")


def print_lines(lines: Iterable[TextLine]) -> None:
    """Print the lines of a result, in colour on a terminal."""
    _require_stdout()
    coloured = shows_colours()
    for line in lines:
        text, mark = printable(line.text, sys.maxsize), printable(line.mark)
        if coloured and mark:
            text = text.replace(mark, click.style(mark, fg=line.colour, bold=True), 1)
        click.echo(text)


def warn_unreadable(rows: ParsedRows[Any]) -> None:
    """Warn of each row that a list leaves out."""
    for error in rows.unreadable:
        warn(str(error))


def unreadable_as_json(rows: ParsedRows[Any]) -> list[dict[str, str]]:
    return [{"id": str(error.key), "reason": error.why} for error in rows.unreadable]


DURATION_MAX_S = 36_500 * DAY_S  # a hundred years; dates have an end


def duration_s(text: str, option: str) -> float:
    """Seconds of a text such as 90d. UsageError names the option."""
    try:
        seconds = parse_duration_s(text)
    except ValueError:
        seconds = math.nan
    if not seconds <= DURATION_MAX_S:
        raise UsageError(
            f"{option} {printable(text, 40)!r} is not a duration", remedy=f"Write {option} 90d, 12h, 30m or 45s."
        )
    return seconds


Status = TypeVar("Status", bound=StrEnum)


def parse_status(text: str, kind: type[Status]) -> Status:
    """The status that --status names."""
    try:
        return kind(text.upper())
    except ValueError:
        known = ", ".join(status.value for status in kind)
        raise UsageError(f"there is no status {printable(text, 40)!r}", remedy=f"Choose one of {known}.") from None


def utc_stamp(at: datetime | None, timespec: str = "milliseconds") -> str | None:
    """A time in UTC for JSON: 2026-11-15T02:00:00.000Z."""
    return utc_iso(at, timespec)


def utc_text(at: datetime | None) -> str:
    """A time in UTC for people: 2026-11-15 02:00:00. Empty for None."""
    return "" if at is None else at.replace(tzinfo=None).isoformat(sep=" ", timespec="seconds")


_WORD = re.compile(r"[^\s=,]{1,100}=[^\s,]{1,200}")
_RUN_LABEL_VALUE_MAX = 1_000  # characters, as in a scenario


def run_labels(given: Sequence[str], known: Collection[str]) -> dict[str, str]:
    """The labels of `--label team=checkout` for a run whose scenario has these labels: by the rules of the scenario's
    labels."""
    from loadgen.scenario.checks import LABELS_MAX
    from loadgen.scenario.value_types import FreeText, InvalidValue, Label

    remedy = "Write --label team=checkout."
    found = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise UsageError(f"--label {printable(text, 80)!r} is not KEY=VALUE", remedy=remedy)
        for part, parser in ((key, Label()), (value, FreeText(length_max=_RUN_LABEL_VALUE_MAX, empty=True))):
            try:
                parser.parse(part)
            except InvalidValue as wrong:
                what = "the key" if part is key else "the value"
                raise UsageError(f"--label {printable(text, 80)!r}: {what} {wrong.what}", remedy=remedy) from None
        found[key] = value
    if len(found.keys() | set(known)) > LABELS_MAX:
        raise UsageError(f"the run has more than {LABELS_MAX} labels", remedy="Use --label fewer times.")
    return found


def parse_labels(given: Sequence[str], option: str) -> tuple[str, ...]:
    """The labels of `--labels zone=eu,disk=ssd --labels team=db`: all three, sorted, without duplicates."""
    from loadgen.control.tables.run_queue import REQUIRES_MAX, labels_json

    words = {word for text in given for word in text.split(",") if word}
    for word in words:
        if not _WORD.fullmatch(word):
            raise UsageError(
                f"{option} {printable(word, 80)!r} is not KEY=VALUE", remedy=f"Write {option} zone=eu,disk=ssd."
            )
    if len(labels_json(tuple(words))) > REQUIRES_MAX:
        raise UsageError(f"{option} has more than {REQUIRES_MAX:,} characters", remedy="Name fewer labels.")
    return tuple(sorted(words))


class OutputClosed(Exception):
    """The reader of the output has closed it, as `| head` does. Not an OSError: click would make it exit code 1."""


@contextlib.contextmanager
def output_failures() -> Iterator[None]:
    """Turn failures to write the output into OutputClosed or OutputFailed."""
    try:
        yield
    except BrokenPipeError as error:
        if _has_no_reader(sys.stdout) or _has_no_reader(sys.stderr):
            raise OutputClosed from error
        raise ConnectionError(
            f"a connection broke: {error}"
        ) from error  # another pipe or socket, which must be reported
    except OSError as error:
        if not _is_of_output(error):
            raise
        remedy = "Free space there, or send the output elsewhere." if error.errno in DISK_FULL else None
        raise OutputFailed(f"cannot write the output: {error.strerror or error}", remedy=remedy) from error


def print_verdict(exit_code: int, tell: Callable[[], None], *, stored: bool = False) -> int:
    """Print a result, and return its exit code. The exit code is a verdict, so it stays if printing fails; only for
    exit code 0 of a result that is not `stored` anywhere, the failure is raised."""
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
    """Flush stdout while a failure can still be reported."""
    with output_failures():
        if sys.stdout is not None:
            echo("", nl=False)


def discard_output(stream: TextIO | None) -> None:
    """Discard buffered output, so that Python does not fail to write it a second time at exit."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())  # type: ignore[union-attr]
        os.close(nowhere)


def _is_of_output(error: OSError) -> bool:
    if isinstance(error, StdoutClosed):
        return True
    frames = list(traceback.walk_tb(error.__traceback__))
    return bool(frames) and frames[-1][0].f_code is click.echo.__code__


def _has_no_reader(stream: TextIO | None) -> bool:
    with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or no real file
        poll = select.poll()
        poll.register(stream.fileno(), 0)  # type: ignore[union-attr]
        return any(events & select.POLLERR for _, events in poll.poll(0))
    return False
