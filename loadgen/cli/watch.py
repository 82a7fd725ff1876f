"""`loadgen watch`: the live view of a run on any machine. `loadgen stop`: ask a run to end.

thread   does                                                  owns
main     displays, waits, reads keys; never calls the driver   the terminal
watch    reads the tables every second (orchestrator.watch)    its session
"""

from __future__ import annotations

import json
from contextlib import closing
from typing import TYPE_CHECKING

import click

from loadgen.cli.common import echo, print_lines, terminal_width, warn
from loadgen.cli.options import control_options, embedded_server_if_needed, format_option, with_control_session
from loadgen.cli.signals import noted_signals
from loadgen.control.location import resolve_target
from loadgen.log import printable
from loadgen.process import user_and_host

if TYPE_CHECKING:
    from loadgen.control.session import ControlSession
    from loadgen.control.tables.run_status import Run
    from loadgen.report.run_text import TextLine
    from loadgen.results.run_snapshot import RunSnapshot
    from loadgen.snowflake.session import RetryPolicy
    from loadgen.tui.screen_state import ScreenState
    from orchestrator.leadership import StopRequest
    from orchestrator.watch import WatchJob


TICK_S = 0.1


@click.command(epilog="\b\nExample:\n  loadgen watch -c prod\n  loadgen watch 20261115-0200-orders --quiet")
@click.argument("run", metavar="[RUN]", default="latest")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing until the run has ended.")
@control_options
@format_option
def watch(
    run: str,
    quiet: bool,
    output: str,
    **place: str | None,
) -> int:
    """Show RUN live until it ends, then print its verdict. Without RUN: the latest run.

    On a terminal, `q` leaves the view; the run continues, and `loadgen stop` ends it. Elsewhere a line is printed every
    ten seconds and for each event. RUN is a run id, a unique prefix of one, `latest`, or `latest~1` for the run before.

    Exit codes: 0 the run has ended with any verdict, or `q`; 2 no such run; 3 the control plane cannot be reached; 4 no
    process leads the run any more; 130 Ctrl-C.
    """
    from loadgen.clock import SystemClock
    from loadgen.tui.history import KEPT_S, coarsen_second
    from orchestrator.watch import DisplayHistory, WatchJob

    aim = resolve_target(None, **place)
    with embedded_server_if_needed(aim.place.connection), noted_signals() as received:
        history = DisplayHistory(kept_s=KEPT_S, coarsen=coarsen_second)
        job = WatchJob(place=aim.place, name=run, clock=SystemClock(), history=history, warn=warn)
        job.start()
        try:
            _show(job, received, quiet=quiet)
        finally:
            job.stop.set()
        return _end(job, received, output)


def _end(job: WatchJob, received: list[int], output: str) -> int:
    """Print how the run ended, or that it still runs. Returns the exit code."""
    if job.done.is_set():
        last: Run | None = job.result()
    else:
        last = None if job.snapshot is None else job.snapshot.run
    if output == "json":
        from loadgen.results.run_details import run_as_json, run_figures

        figures = None if job.summary is None else run_figures(job.summary)
        now = job.clock.utc_now().replace(tzinfo=None)
        echo(json.dumps({"run": None if last is None else run_as_json(last, figures, now)}, indent=2))
    elif last is not None and last.status.is_terminal:
        print_lines(_verdict(job, last))
    elif last is not None:
        echo(printable(f"run {last.run_id} continues: {last.status} {last.phase}"), err=True)
    return 128 + received[0] if received and not job.done.is_set() else 0


def _verdict(job: WatchJob, run: Run) -> list[TextLine]:
    from loadgen.report.formatting import verdict_word
    from loadgen.report.run_text import VERDICT_COLOURS, TextLine, wrapped
    from loadgen.results.run_details import outcome

    summary = job.summary or {}
    verdict = verdict_word(str(summary.get("verdict") or outcome(run)))
    reason = " ".join(str(summary.get("exit_reason") or run.reason or "").split())
    text = printable(f"{verdict.upper()}  {run.test_name}  run {run.run_id}: {reason}")
    return list(wrapped(TextLine(text, verdict.upper(), VERDICT_COLOURS.get(verdict)), terminal_width()))


def _show(job: WatchJob, received: list[int], *, quiet: bool) -> None:
    """Display the run until it ends or the user leaves."""
    from loadgen.cli.display import LiveDisplay

    if not _wait_for_first(job, received):
        return
    with closing(LiveDisplay(job.clock, quiet=quiet)) as display:
        views = _Views(job)
        while not received and "q" not in display.show(views.next(display.heard())):
            if job.clock.wait(job.done, TICK_S):
                return


def _wait_for_first(job: WatchJob, received: list[int]) -> bool:
    """Wait for the first snapshot. False: the run has ended, or a signal came first."""
    while not received and not job.done.is_set():
        if job.snapshot is not None and not job.snapshot.run.status.is_terminal:
            return True
        job.clock.wait(job.done, TICK_S)
    return False


class _Views:
    """The screen states of the watched run."""

    def __init__(self, job: WatchJob) -> None:
        from loadgen.tui.presenter import ScreenPresenter

        assert job.scenario is not None
        self._job, self._viewer = job, ScreenPresenter(job.scenario, quits=True)
        self._seen: RunSnapshot | None = None
        self._view: ScreenState | None = None
        self._logged: set[str] = set()

    def next(self, heard: list[str]) -> ScreenState:
        """The newest state, whose log contains the lines in `heard`."""
        for line in heard:
            self._viewer.say(self._job.clock.utc_now(), line)
        snapshot = self._job.snapshot
        assert snapshot is not None
        if self._view is None or snapshot is not self._seen:
            for row in snapshot.logs:
                if row.log_id not in self._logged:
                    self._logged.add(row.log_id)
                    self._viewer.say(row.timestamp, f"{row.worker_id or 'orchestrator'}: {row.message}", bad=True)
            self._seen, self._view = snapshot, self._viewer.update(snapshot)
        return self._view


# --- `loadgen stop`: ask a run to end, from any machine --------------------------------------------------------------


@click.command(epilog="\b\nExample:\n  loadgen stop latest -c prod --reason 'wrong warehouse'")
@click.argument("run", metavar="RUN")
@click.option("--reason", metavar="TEXT", help="The reason, which is stored with the run.")
@control_options
@format_option
def stop(
    run: str,
    reason: str | None,
    output: str,
    **place: str | None,
) -> None:
    """Ask RUN to end gracefully: running statements may finish, and all measurements are kept.

    Works on any machine that reaches the control plane, and returns at once. The run ends soon afterwards as CANCELLED;
    its reason names the user who asked, and the time. The `loadgen run` that leads it exits with 130, as after Ctrl-C.
    If no process leads the run, its workers are told to end; this takes up to ten seconds after its leader was lost.
    A run that has ended is not changed. RUN is a run id, a unique prefix of one, `latest`, or `latest~1` for the run
    before. Exit code 2 if there is no such run, 3 if the control plane cannot be reached.
    """
    asked = with_control_session(
        lambda session, retries: _ask(session, retries, run, reason),
        name="stop",
        **place,
    )
    echo(json.dumps(_as_json(asked), indent=2) if output == "json" else _as_text(asked))


def _ask(session: ControlSession, retries: RetryPolicy, name: str, why: str | None) -> StopRequest:
    from loadgen.control.tables import run_status
    from orchestrator.service import OrchestratorService

    run_id = run_status.find_run(session, retries, name).run_id
    service = OrchestratorService(session.place, open_session=lambda _: session, retries=retries)
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
    first = f"run {run.run_id} was asked to end" if asked.by_us else f"run {run.run_id} is already ending"
    lines = [printable(f"{first}: {run.status}, {run.reason or ''}")]
    if asked.is_led:
        lines.append("its `loadgen run` ends with exit code 130")
    if not run.status.is_terminal and not asked.is_led:
        lines.append("no process leads it: its workers will end without one; then `loadgen runs recover` ends the run")
    return "\n".join(lines)
