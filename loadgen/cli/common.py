"""What several commands share: how they print, and the priority of those that measure.

This is the only place where text goes to stdout or stderr. What passes through here cannot move the cursor or turn the
reading direction, and is visible.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from loadgen.log import printable

if TYPE_CHECKING:
    from loadgen.control.rows import ParsedRows
    from loadgen.report.text import TextLine

# Beside twelve busy programs on two cores, threads woke up 4 ms late with it, 10 without. Beside six in other sessions,
# 1 ms where the session has it too, 6 without.
MEASURING_NICENESS = -10


def raise_priority() -> None:
    """Let other programs of this machine delay a measurement less, where that is permitted (root, CAP_SYS_NICE).

    Threads and processes that are started afterwards inherit it: workers, and the embedded server. A niceness that the
    user has chosen is kept: `nice -n 1 loadgen …`.

    Linux may weigh sessions against each other first, and the processes of a session only after that (autogroup). So a
    process that leads a session gives it the same niceness. The session of a terminal is not changed.
    """
    try:
        if os.getpriority(os.PRIO_PROCESS, 0) == 0:
            os.setpriority(os.PRIO_PROCESS, 0, MEASURING_NICENESS)
        if os.getpriority(os.PRIO_PROCESS, 0) == MEASURING_NICENESS and os.getsid(0) == os.getpid():
            Path("/proc/self/autogroup").write_text(str(MEASURING_NICENESS))
    except OSError:  # not permitted, or no such thing here
        return


def echo(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print to stdout, or to stderr. Newlines and tabs are kept: what came from elsewhere has lost its own before.

    What a full stderr does not take is lost: it fails no command. A reader that left is told by an error, as on stdout.
    """
    try:
        click.echo(printable(text, sys.maxsize, multiline=True), err=err, nl=nl)
    except OSError as error:
        if not err or isinstance(error, BrokenPipeError):
            raise


def text_table(head: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = (), gap: int = 2) -> str:
    """Columns as wide as their widest cell, `gap` apart; those with a number in `right` are aligned there. A row is one
    line, whatever is in its cells."""
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


def terminal_width() -> int | None:
    """Columns of the terminal that stdout is; None: it is none, and lines may be as long as they are."""
    return shutil.get_terminal_size().columns if sys.stdout is not None and sys.stdout.isatty() else None


def shows_colours() -> bool:
    """Is stdout a terminal that shows colours, and are they wanted? See no-color.org."""
    if sys.stdout is None or not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        return False
    return os.environ.get("TERM", "") not in ("", "dumb")


def print_lines(lines: Iterable[TextLine]) -> None:
    """Lines of a result, with their colours on a terminal."""
    coloured = shows_colours()
    for line in lines:
        text, mark = printable(line.text, sys.maxsize), printable(line.mark)
        if coloured and mark:
            text = text.replace(mark, click.style(mark, fg=line.colour, bold=True), 1)
        click.echo(text)


def warn_unreadable(rows: ParsedRows[Any]) -> None:
    """Name the rows that a list leaves out."""
    for error in rows.unreadable:
        echo(f"warning: {printable(str(error), 500)}", err=True)


def unreadable_as_json(rows: ParsedRows[Any]) -> list[dict[str, str]]:
    return [{"id": str(error.key), "reason": error.why} for error in rows.unreadable]
