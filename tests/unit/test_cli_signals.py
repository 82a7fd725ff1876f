"""Signals while a command works: noted in order, then graceful, then at once, in bounded time."""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from loadgen.cli.signals import (
    CANCEL_GRACE_S,
    FORCED_STOP_S,
    STOP_GRACE_S,
    display_preparation,
    display_run,
    noted_signals,
)
from orchestrator.job import JobStatus
from tests.fake_clock import FakeClock

STOPPING = "stopping after the running statement; press Ctrl-C again to stop at once"


class ScriptedRun:
    """A job that never ends by itself, and its display. `script` is called before each frame."""

    def __init__(self, script: Any, run_id: str | None = None) -> None:
        self.now = JobStatus(doing="RUNNING", run_id=run_id)
        self.clock = FakeClock()
        self.done, self.stop = threading.Event(), threading.Event()
        self.progress = None
        self.did: list[str] = []
        self._frames, self._script = 0, script

    def show(self, _: object) -> bool:
        self._frames += 1
        self._script(self, self._frames)
        return False

    def say(self, text: str) -> None:
        self.did.append(text.partition(":")[0])

    def interrupt(self, number: int) -> None:
        self.did.append(f"interrupt {number}")

    def interrupted(self) -> None:
        """The display shows it."""

    def close(self) -> None:
        """The terminal is restored."""

    def cancel(self) -> None:
        self.did.append("cancel")

    def abandon(self) -> None:
        self.did.append("abandon")


def test_a_signal_to_a_run_also_ends_its_experiment() -> None:
    with noted_signals() as outer:
        with noted_signals() as inner:
            signal.raise_signal(signal.SIGINT)
            assert (inner, outer) == ([signal.SIGINT], [signal.SIGINT])
        signal.raise_signal(signal.SIGTERM)

    assert (inner, outer) == ([signal.SIGINT], [signal.SIGINT, signal.SIGTERM])


def test_each_signal_is_passed_on_once_and_the_first_one_names_the_reason():
    received: list[int] = []

    def script(job: ScriptedRun, frame: int) -> None:
        if frame in (2, 4):
            received.append(signal.SIGTERM if frame == 2 else signal.SIGINT)
        if frame == 6:
            job.done.set()

    job: Any = ScriptedRun(script)

    display_run(job, job, received)

    assert job.did == ["stopping", "interrupt 15", "cancelling running statements", "interrupt 15"]


def test_a_run_that_does_not_end_after_the_second_signal_is_ended_in_bounded_time(monkeypatch):
    job: Any = ScriptedRun(lambda job, frame: job.clock.advance(FORCED_STOP_S / 2))
    monkeypatch.setattr(os, "_exit", sys.exit)

    with pytest.raises(SystemExit) as ended:
        display_run(job, job, [signal.SIGTERM, signal.SIGTERM])

    assert ended.value.code == 143
    assert job.did[-1] == "ended at once"


@pytest.mark.parametrize(
    ("run_id", "line"),
    [
        (None, "ended at once: statements may still be running on the server"),
        (
            "20261116-0600-orders-7f3a9c",
            "ended at once: statements may still be running on the server;"
            " `loadgen runs show 20261116-0600-orders-7f3a9c` shows the state of the run",
        ),
    ],
)
def test_a_program_that_is_ended_at_once_names_its_run(monkeypatch, run_id, line):
    """The third signal; before there is a run, there is none to show."""
    said: list[str] = []
    job: Any = SimpleNamespace(
        now=JobStatus(doing="RUNNING", run_id=run_id),
        clock=FakeClock(),
        done=threading.Event(),
        interrupt=lambda _: None,
    )
    display: Any = SimpleNamespace(show=lambda _: False, say=said.append, interrupted=lambda: None, close=lambda: None)
    monkeypatch.setattr(os, "_exit", sys.exit)

    with pytest.raises(SystemExit) as ended:
        display_run(job, display, [2, 2, 2])

    assert said[-1] == line
    assert ended.value.code == 130


def test_a_preparation_ends_after_its_statement_and_in_bounded_time():
    received: list[int] = []

    def script(job: ScriptedRun, frame: int) -> None:
        received.extend([signal.SIGINT] if frame == 2 else [])
        job.clock.advance((STOP_GRACE_S + CANCEL_GRACE_S) / 4)

    job: Any = ScriptedRun(script)

    display_preparation(job, job, received, job.clock)

    assert job.stop.is_set()
    assert list(dict.fromkeys(job.did)) == [
        "stopping after the running statement; press Ctrl-C again to stop at once",
        "cancel",
        "abandon",
    ]


def test_the_second_signal_ends_a_preparation_at_once():
    job: Any = ScriptedRun(lambda job, frame: None)

    display_preparation(job, job, [signal.SIGINT, signal.SIGINT], job.clock)

    assert job.did == [STOPPING, "abandon"]
