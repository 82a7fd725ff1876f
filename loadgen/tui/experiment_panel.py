"""The experiment that a run belongs to, on the screen: arms × blocks, every interval, and the budget."""

from __future__ import annotations

from rich.cells import cell_len
from rich.text import Text

from loadgen.model.experiment import Decision
from loadgen.report.experiment import ExperimentStatus
from loadgen.tui.draw import LABEL, cell, flow, label, one_line, spread
from loadgen.tui.screen_state import ScreenState

NAME_MIN = 30  # columns that a metric and its arm may always have; on a wide screen up to half of it
_DECISION_STYLES = {Decision.BETTER: "green", Decision.WORSE: "red", Decision.EQUIVALENT: "cyan"}


def experiment_lines(view: ScreenState, width: int) -> list[Text]:
    """All of it."""
    return [] if view.experiment is None else _experiment_text(view.experiment, width)


def experiment(view: ScreenState, width: int, limit: int) -> list[Text]:
    """The experiment: intervals first, then blocks. The complete list is on a separate page."""
    lines = experiment_lines(view, width)
    if len(lines) <= limit or limit < 2:
        return lines[:limit]
    rest = len(lines) - limit + 1
    return [*lines[: limit - 1], Text(f"{'':{LABEL}}… {rest} more lines: x", style="dim")]


def _experiment_text(status: ExperimentStatus, width: int) -> list[Text]:
    head = label("experiment").append(one_line(status.headline), style="bold")
    spent = Text(f"{one_line(status.spent)} ")
    lines = [spread(head, spent, width)]
    if head.cell_len + spent.cell_len >= width:  # the budget gets a separate line if it does not fit
        lines = [head, Text.assemble(" " * LABEL, spent)]
    pairs = [Text(one_line(one.text), style=_DECISION_STYLES.get(one.decision, "")) for one in status.pairs]
    return [*lines, *flow(pairs, width, indent=LABEL), *_experiment_blocks(status, width)]


def _experiment_blocks(status: ExperimentStatus, width: int) -> list[Text]:
    """One line for each metric and arm, with the newest blocks that fit."""
    names = [one_line(name, 80) for name, _ in status.rows]
    name_width = min(max(NAME_MIN, (width - LABEL) // 2), max((cell_len(name) for name in names), default=0))
    value_width = max([3, *(cell_len(value) for _, values in status.rows for value in values)])
    shown = max(1, (width - LABEL - name_width) // (value_width + 2))
    numbers = "".join(f"  {cell(str(number), value_width, right=True)}" for number in status.blocks[-shown:])
    lines = [label("blocks").append(f"{'':{name_width}}{numbers}", style="dim")]
    for name, (_, values) in zip(names, status.rows, strict=True):
        cells = "".join(f"  {cell(value, value_width, right=True)}" for value in values[-shown:])
        lines.append(Text(f"{'':{LABEL}}{cell(name, name_width)}{cells}"))
    return lines
