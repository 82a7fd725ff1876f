"""`loadgen stop`: ask for the end of a run, from anywhere."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from loadgen.cli.common import echo, user_and_host
from loadgen.cli.options import control_options, format_option, with_control_session
from loadgen.log import printable

if TYPE_CHECKING:
    from loadgen.control.session import ControlSession
    from loadgen.snowflake.session import RetryPolicy
    from orchestrator.leadership import StopRequest


@click.command(epilog="\b\nExample:\n  loadgen stop latest -c prod --reason 'wrong warehouse'")
@click.argument("run", metavar="RUN")
@click.option("--reason", metavar="TEXT", help="Why: kept with the run.")
@control_options
@format_option
def stop(
    run: str,
    reason: str | None,
    output: str,
    **place: str | None,
) -> None:
    """Ask RUN to end gracefully: statements under way may finish, and what was measured is kept.

    Works from any machine that reaches the control plane, and returns at once: the run ends a little later, CANCELLED,
    with who asked for it and when. The `loadgen run` that leads it then exits with 130, as after Ctrl-C. A run that has
    ended is left as it is. RUN is the id of a run, a beginning that no other run has, latest, or latest~1. Exit code 2
    when there is no such run, 3 when the control plane is out of reach.
    """
    asked = with_control_session(
        lambda session, patience: _ask(session, patience, run, reason),
        name="stop",
        **place,
    )
    echo(json.dumps(_as_json(asked), indent=2) if output == "json" else _as_text(asked))


def _ask(session: ControlSession, patience: RetryPolicy, name: str, why: str | None) -> StopRequest:
    from loadgen.control import run_lookup
    from orchestrator.service import OrchestratorService

    run_id = run_lookup.find_run(session, patience, name).run_id
    service = OrchestratorService(session.place, open_session=lambda _: session, patience=patience)
    return service.stop_run(run_id, by=user_and_host(), why=why)


def _as_json(asked: StopRequest) -> dict[str, object]:
    run = asked.run
    return {
        "run_id": run.run_id,
        "asked": asked.by_us,
        "status": run.status.value,
        "reason": run.reason,
        "led": asked.is_led,
    }


def _as_text(asked: StopRequest) -> str:
    run = asked.run
    if run.status.is_terminal and not asked.by_us:
        return printable(f"nothing to stop: run {run.run_id} is {run.status}")
    first = f"run {run.run_id} was asked to end" if asked.by_us else f"run {run.run_id} is ending already"
    lines = [printable(f"{first}: {run.status}, {run.reason or ''}")]
    if asked.is_led:
        lines.append("its `loadgen run` ends with exit code 130")
    if not run.status.is_terminal and not asked.is_led:
        lines.append("no process leads it: its workers end by themselves, then `loadgen runs recover` ends the run")
    return "\n".join(lines)
