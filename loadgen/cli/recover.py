"""`loadgen runs recover`: end runs whose orchestrator was lost, and lead those on whose workers still work."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from loadgen.cli.common import echo, print_lines, print_verdict, run_in_thread, terminal_width, user_and_host
from loadgen.cli.options import (
    control_options,
    embedded_server_if_needed,
    format_option,
    output_dir_option,
    resolve_target,
    with_control_session,
)
from loadgen.cli.run import follow_run, job_roles
from loadgen.clock import SystemClock
from loadgen.errors import Busy, LoadgenError, RunFailed
from loadgen.log import printable

if TYPE_CHECKING:
    from loadgen.control.session import ControlSession
    from loadgen.snowflake.session import RetryPolicy
    from orchestrator.experiment.warehouse_settings import RestoredWarehouse
    from orchestrator.leadership import SkippedRun
    from orchestrator.recover import RecoveredRun


@click.command("recover", epilog="\b\nExample:\n  loadgen runs recover -c prod")
@click.argument("run", metavar="[RUN]", required=False)
@output_dir_option("Where the result of a run that is led on goes.")
@click.option("--end-only", is_flag=True, help="Lead no run on whose workers still work: leave it alone.")
@control_options
@format_option
def recover(run: str | None, output_dir: Path, end_only: bool, output: str, **place: str | None) -> int:
    """End runs whose orchestrator was lost, or lead them on. Without RUN: all of them.

    Such a run ends as FAILED, with everything that was recorded. One whose workers still work (they were started by
    hand, or in containers) is taken over and led to its end, as `loadgen run` would have; Ctrl-C
    stops it. One command leads one run, and names the others. Only runs whose lease expired some seconds ago are
    touched; that of an orchestrator that has ended on this machine is expired at once, and the seconds are waited for.
    Safe to repeat, and by several at once. Exit code 75 when RUN is still led.

    Without RUN it also restores the settings of warehouses that an experiment without a process has left changed. Exit
    code 4 when one could not be restored.
    """
    from orchestrator.experiment.warehouse_settings import RestoredWarehouse, restore_left_settings
    from orchestrator.recover import RecoveryWait, recover_runs

    def act(session: ControlSession, patience: RetryPolicy) -> tuple[list[RecoveredRun], list[SkippedRun]]:
        return recover_runs(
            session,
            patience,
            by=user_and_host(),
            only=_id(session, patience, run),
            wait=RecoveryWait(patience, _say).look_again,
        )

    def restore(session: ControlSession, patience: RetryPolicy) -> tuple[RestoredWarehouse, ...]:
        return restore_left_settings(session, patience, clock=SystemClock())

    done, left = with_control_session(act, name="recover", **place)
    settings: tuple[RestoredWarehouse, ...] = ()
    if run is None:
        try:
            settings = with_control_session(restore, name="recover", **place)
        except LoadgenError as error:  # what was done about runs is told all the same
            settings = (RestoredWarehouse(experiment_id="?", warehouse="?", restored=False, why=str(error)),)
    living = [] if end_only else [one for one in left if one.living]
    left = [one for one in left if one not in living]
    if run is not None and left and not left[0].has_ended:
        raise Busy(
            f"run {left[0].run_id} was left alone: {left[0].why}",
            remedy="`loadgen status` shows what it does; `loadgen stop` asks it to end.",
        )
    taken, too_many = _lead_on(living, place, output_dir)
    left += too_many

    def tell() -> None:
        if output == "json":
            echo(json.dumps(_as_json(done, left, taken, settings), indent=2))
        else:
            _print(done, left, taken, settings)

    unrestored = any(not one.restored and not one.is_led for one in settings)
    return print_verdict(int(taken[0]["exit_code"]) if run is not None and taken else 4 if unrestored else 0, tell)


def _say(line: str) -> None:
    echo(printable(line), err=True)


def _lead_on(
    living: Sequence[SkippedRun], place: dict[str, str | None], output_dir: Path
) -> tuple[list[dict[str, Any]], list[SkippedRun]]:
    """Lead the first of them to its end. The workers of the others would not wait for that: they are named now."""

    from orchestrator.job import RunAlreadyEnded

    if not living:
        return [], []
    for one in living[1:]:
        run_id = printable(one.run_id)
        echo(f"run {run_id} is not led either: lead it on with `loadgen runs recover {run_id}`", err=True)
    try:
        return [take_over(living[0].run_id, place, output_dir)], list(living[1:])
    except RunAlreadyEnded:
        return [], [replace(living[0], why="another process has led it to its end", has_ended=True), *living[1:]]


def _id(session: ControlSession, patience: RetryPolicy, name: str | None) -> str | None:
    from loadgen.control import run_lookup

    return None if name is None else run_lookup.find_run(session, patience, name).run_id


def _print(
    done: Sequence[RecoveredRun],
    left: Sequence[SkippedRun],
    taken: Sequence[Mapping[str, Any]],
    settings: Sequence[RestoredWarehouse],
) -> None:
    from loadgen.report.run_text import summary_lines

    lines = [f"run {one.run_id} is {one.status} now: {one.reason}" for one in done]
    lines += [f"run {one.run_id} was left alone: {one.why}" for one in left]
    lines += [
        f"warehouse {one.warehouse}, made by experiment {one.experiment_id}, is dropped"
        if one.restored and one.is_made
        else f"warehouse {one.warehouse} is as it was before experiment {one.experiment_id} again"
        if one.restored
        else f"warehouse {one.warehouse} is as experiment {one.experiment_id} left it: {one.why}"
        for one in settings
    ]
    if not lines and not taken:
        lines = ["nothing to recover: every run has ended, or is led"]
    for line in lines:
        echo(printable(line, 1_000))
    for summary in taken:
        print_lines(summary_lines(summary, width=terminal_width()))


def _as_json(
    done: Sequence[RecoveredRun],
    left: Sequence[SkippedRun],
    taken: Sequence[Mapping[str, Any]],
    settings: Sequence[RestoredWarehouse],
) -> dict[str, Any]:
    return {
        "recovered": [{"run_id": one.run_id, "status": one.status.value, "reason": one.reason} for one in done],
        "left": [{"run_id": one.run_id, "why": one.why} for one in left],
        "led_on": list(taken),
        "settings": [
            {
                "experiment_id": one.experiment_id,
                "warehouse": one.warehouse,
                "restored": one.restored,
                "why": one.why,
            }
            for one in settings
        ],
    }


def take_over(run_id: str, place: Mapping[str, str | None], output_dir: Path) -> dict[str, Any]:
    """Lead the run to its end; its summary."""
    from loadgen.worker.arguments import is_id
    from orchestrator.job import TakeoverJob, scenario_of_run

    if not is_id(run_id):  # of a row; it becomes the name of a folder
        raise RunFailed(f"the run id {printable(run_id, 100)!r} is no name for a folder: the run cannot be led on")
    aim = resolve_target(
        None, place["connection"], **{name: value for name, value in place.items() if name != "connection"}
    )
    with embedded_server_if_needed(aim.place.connection):
        scenario = run_in_thread(lambda: scenario_of_run(aim.place, run_id), name="take-over")
        job = TakeoverJob(
            scenario=scenario,
            folder=Path(),
            runs_folder=output_dir,
            clock=SystemClock(),
            roles=job_roles(),
            wait=True,  # for the lease that the lost leader had on the warehouse
            run_id=run_id,
            taken_over=run_id,
            place=aim.place,
        )
        with embedded_server_if_needed(
            scenario.connection
        ):  # the warehouse under test may be there while the tables are elsewhere
            return follow_run(job, quiet=False)
