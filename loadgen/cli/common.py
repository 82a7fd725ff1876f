"""What several commands share: how they print tables and coloured lines, and the priority of those that measure."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from loadgen.report.text import Line

MEASURING_NICENESS = -10  # beside twelve busy programs on two cores, threads woke up 4 ms late with it, 10 without


def raise_priority() -> None:
    """Let other programs of this machine delay a measurement less, where that is permitted (root, CAP_SYS_NICE).

    Threads and processes that are started afterwards inherit it: workers, and the embedded server. A niceness that the
    user has chosen is kept: `nice -n 1 loadgen …`.
    """
    try:
        if os.getpriority(os.PRIO_PROCESS, 0) == 0:
            os.setpriority(os.PRIO_PROCESS, 0, MEASURING_NICENESS)
    except OSError:
        return


def text_table(head: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = (), gap: int = 2) -> str:
    """Columns as wide as their widest cell, `gap` apart; those with a number in `right` are aligned there."""
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


def print_lines(lines: Iterable[Line]) -> None:
    """Lines of a result, with their colours on a terminal."""
    coloured = shows_colours()
    for line in lines:
        text = line.text
        if coloured and line.mark:
            text = text.replace(line.mark, click.style(line.mark, fg=line.colour, bold=True), 1)
        click.echo(text)
