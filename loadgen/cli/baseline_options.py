"""--baseline and --confirm, of every command that has a scenario run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from loadgen.cli.options import Command
from loadgen.errors import UsageError

if TYPE_CHECKING:
    from loadgen.control.location import ControlPlaneLocation
    from loadgen.model.queue import BaselineCheck

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


def baseline_check_of(baseline: str | None, confirm: bool, place: ControlPlaneLocation) -> BaselineCheck:
    """For a run that is done later: what it will be compared with, which must be fit for that now."""
    from loadgen.cli.baseline import check_baseline
    from loadgen.model.queue import BaselineCheck

    check_confirm(baseline, confirm)
    return BaselineCheck(baseline=None if baseline is None else check_baseline(baseline, place), confirm=confirm)
