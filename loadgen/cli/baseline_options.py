"""--baseline and --confirm, of every command that has a scenario run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from loadgen.cli.place import Command
from loadgen.errors import UsageError

if TYPE_CHECKING:
    from loadgen.control.place import ControlPlace
    from loadgen.model.queue import Judging

TREND = "trend"


def baseline_options(command: Command) -> Command:
    baseline = click.option(
        "--baseline",
        metavar="RUN|trend",
        help="Compare with this run, or with the trend of the same scenario; exit code 11 when it is worse.",
    )
    confirm = click.option(
        "--confirm", is_flag=True, help="With --baseline trend: run once more when a regression is suspected."
    )
    return baseline(confirm(command))


def check_confirm(baseline: str | None, confirm: bool) -> None:
    if confirm and baseline != TREND:
        raise UsageError("--confirm needs --baseline trend", remedy="Add --baseline trend.")


def judging_of(baseline: str | None, confirm: bool, place: ControlPlace) -> Judging:
    """For a run that is done later: what it will be compared with, which must be fit for that now."""
    from loadgen.cli.baseline import check_baseline
    from loadgen.model.queue import Judging

    check_confirm(baseline, confirm)
    return Judging(baseline=None if baseline is None else check_baseline(baseline, place), confirm=confirm)
