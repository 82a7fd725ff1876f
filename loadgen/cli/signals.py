"""What signals do while a command works. They are recorded, and acted on between two frames of its display.

signal   `loadgen run`, `experiment`              `loadgen prepare`
first    running statements may finish            the preparation ends after the running statement
second   running statements are cancelled         the program ends at once
third    the program ends at once

The program ends in any case: FORCED_STOP_S after the second signal of a run, and after the grace periods of a
preparation. A server that does not answer must not prevent that. `loadgen watch` ends at the first signal; runners and
pools follow orchestrator.nightly.pool, changes of warehouse settings orchestrator.experiment.job.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

from loadgen.threads import exit_code_after
from loadgen.units import NS_PER_S

if TYPE_CHECKING:
    from loadgen.cli.display import PreparationDisplay, RunDisplay
    from loadgen.clock import Clock
    from loadgen.prepare.prepare import PreparationJob
    from orchestrator.job import RunJob

TICK_S = 0.1
FORCED_STOP_S = 10.0  # after the second signal a run ends within this time
STOP_GRACE_S = 5.0  # of a preparation: for the running statement, which normally takes a second or two
CANCEL_GRACE_S = 10.0  # for its cancellation afterwards

# Ctrl-C, `kill`, a closed terminal, Ctrl-\. The last two stay ignored if the caller ignores them, as `nohup` does.
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_UNLESS_IGNORED = tuple(getattr(signal, name) for name in ("SIGHUP", "SIGQUIT") if hasattr(signal, name))
_noting: list[list[int]] = []  # the lists that noted_signals() fills, the innermost last


@contextmanager
def noted_signals() -> Iterator[list[int]]:
    """Record signals, in order, instead of handling them; the previous handlers are restored at the end. If calls are
    nested, each records: a signal that ends a run also ends its experiment."""
    received: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        for noted in _noting:
            noted.append(number)

    wanted = [number for number in _UNLESS_IGNORED if signal.getsignal(number) is not signal.SIG_IGN]
    _noting.append(received)
    before = {number: signal.signal(number, note) for number in (*_SIGNALS, *wanted)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _noting.pop()  # the list of this call: calls are nested, in the main thread


def display_run(job: RunJob, display: RunDisplay, received: Sequence[int]) -> None:
    """Display until the job is done, and pass on signals one by one; `q` counts as a signal."""
    passed_on = hurried_ns = 0
    while not job.clock.wait(job.done, TICK_S):
        if display.show(job.now):
            signal.raise_signal(signal.SIGINT)
        late = passed_on == 2 and job.clock.monotonic_ns() - hurried_ns > FORCED_STOP_S * NS_PER_S
        while passed_on < len(received) or late:
            passed_on += 1
            if passed_on >= 3:
                display.close()
                display.say(_ended_at_once(job.now.run_id))
                os._exit(exit_code_after(received))
            hurried_ns = job.clock.monotonic_ns()
            display.interrupted()
            display.say(
                "stopping: running statements may finish; press Ctrl-C again to cancel them"
                if passed_on == 1
                else "cancelling running statements"
            )
            job.interrupt(received[0])


def _ended_at_once(run_id: str | None) -> str:
    """The last line of a program that the user ended at once; `run_id`: None if there is no run yet."""
    text = "ended at once: statements may still be running on the server"
    return text if run_id is None else f"{text}; `loadgen runs show {run_id}` shows the state of the run"


def display_preparation(
    job: PreparationJob, display: PreparationDisplay, received: Sequence[int], clock: Clock
) -> None:
    """Display until the job has ended; after a signal, in bounded time."""
    stop_ns = 0
    display.show(job.progress)
    while not clock.wait(job.done, TICK_S):
        display.show(job.progress)
        if not received:
            continue
        if not job.stop.is_set():
            display.say("stopping after the running statement; press Ctrl-C again to stop at once")
            job.stop.set()
            stop_ns = clock.monotonic_ns()
        waited_s = (clock.monotonic_ns() - stop_ns) / NS_PER_S
        if waited_s > STOP_GRACE_S:
            job.cancel()
        if len(received) > 1 or waited_s > STOP_GRACE_S + CANCEL_GRACE_S:
            job.abandon()
            return
    display.show(job.progress)
