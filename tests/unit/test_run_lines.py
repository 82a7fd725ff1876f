"""Line mode: enough lines, each on its own, nothing that a file or a mail would choke on."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta

import click
import pytest

from loadgen.cli.display import RunDisplay, RunLines, status_line
from loadgen.cli.run import _said_once
from loadgen.model.run import Phase
from loadgen.tui.screen_state import LogEntry, TableProgress
from orchestrator.job import JobStatus
from tests.fake_clock import FakeClock
from tests.unit.orchestrator_builders import view
from tests.unit.tui_builders import MEASUREMENT, MOMENT, NOW_S, STALE, WARMUP, run_row, scenario, snapshot
from tests.unit.tui_views import FIND_MAX


@pytest.fixture
def clock() -> FakeClock:
    made = FakeClock()
    made.advance(NOW_S)
    return made


def test_a_line_has_everything_in_one_order():
    assert status_line(MEASUREMENT, NOW_S) == (
        "20261115-0200-nightly-7f3a RUNNING MEASUREMENT 01:42 of 05:00, 4 of 4 workers, 64 of 64 connections, "
        "812/s of 800/s, p50 41.2 p95 77.4 p99 121 ms, 17 of 82017 failed (0.021 %), client CPU 14 %"
    )
    assert "no update for 12 s" in status_line(STALE, NOW_S)
    assert "step 6: 35 connections" in status_line(FIND_MAX, NOW_S)


def test_a_line_without_a_rate_shows_none():
    assert MEASUREMENT.recent is not None
    line = status_line(replace(MEASUREMENT, recent=replace(MEASUREMENT.recent, qps=None)), NOW_S)

    assert "64 of 64 connections, p50 41.2 " in line
    assert "/s" not in line


def test_before_the_run_a_line_shows_the_current_step():
    preparing = replace(
        WARMUP,
        status="",
        run_id=None,
        doing="preparing tables",
        filling=TableProgress(table="T", rows_there=5, rows=5_000),
    )

    assert status_line(preparing, NOW_S) == "preparing tables: T 5 of 5,000 rows"
    assert status_line(replace(preparing, filling=None, doing="starting workers", run_id="r"), NOW_S) == (
        "starting workers of run r"
    )


def test_a_line_is_printed_every_ten_seconds_and_not_more_often(clock, capsys):
    lines = RunLines(clock, quiet=False)
    silences, silent_s = [], 0.0

    for _ in range(600):
        lines.show(replace(MEASUREMENT, log=()))
        if capsys.readouterr().err:
            silences.append(silent_s)
            silent_s = 0.0
        clock.advance(0.1)
        silent_s += 0.1

    assert max(silences) <= 10.0
    assert len(silences) == 7


def test_a_change_of_phase_and_each_event_is_printed_at_once_and_once(clock, capsys):
    lines = RunLines(clock, quiet=False)
    lines.show(replace(WARMUP, log=()))
    capsys.readouterr()
    died = LogEntry(moment=MOMENT + timedelta(seconds=9), text="worker-3 was killed by signal 9", bad=True)
    state = LogEntry(moment=MOMENT, text="RUNNING MEASUREMENT")

    for _ in range(3):
        lines.show(replace(MEASUREMENT, log=(state, died)))
        clock.advance(0.1)

    told = capsys.readouterr().err.splitlines()
    assert len(told) == 2
    assert told[0].endswith("20261115-0200-nightly-7f3a: worker-3 was killed by signal 9")
    assert "RUNNING MEASUREMENT" in told[1]


def test_every_line_has_its_time_and_foreign_text_cannot_write_another(clock, capsys):
    lines = RunLines(clock, quiet=False)

    lines.show(replace(MEASUREMENT, log=(), doing="it said\n\x1b[2J\x00error: all is lost"))
    lines.say("stopping\r\nnow")

    told = capsys.readouterr().err
    assert re.fullmatch(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ [^\x00-\x1f]*\n){2}", told)


def test_quiet_is_quiet(clock, capsys):
    lines = RunLines(clock, quiet=True)
    lines.show(MEASUREMENT)
    lines.say("stopping")

    assert capsys.readouterr() == ("", "")


def test_a_reader_that_left_is_no_reason_to_end_the_run(clock, monkeypatch):
    tries = []

    def broken(*_: object, **__: object) -> None:
        tries.append(1)
        raise BrokenPipeError

    monkeypatch.setattr(click, "echo", broken)
    lines = RunLines(clock, quiet=False)

    lines.say("one")
    lines.say("two")

    assert len(tries) == 1


def test_a_phase_without_an_end_counts_up():
    cooling = replace(MEASUREMENT, status="STOPPING", phase=Phase.COOLDOWN, since_s=NOW_S - 3, until_s=None)

    assert "STOPPING COOLDOWN 00:03, " in status_line(cooling, NOW_S)


def test_failures_are_counted_from_the_first_statement_on():
    assert MEASUREMENT.window is not None
    begun = replace(MEASUREMENT, tried=0, failed=0, window=replace(MEASUREMENT.window, succeeded=0, failed=0))

    assert "failed" not in status_line(begun, NOW_S)
    assert "0 of 1 failed" in status_line(replace(begun, tried=1), NOW_S)


def test_the_last_line_of_a_run_is_its_verdict(clock, capsys):
    display = RunDisplay(scenario(), clock, quiet=False)
    display.show(JobStatus(doing="connecting"))
    display.show(JobStatus(doing="starting workers", run_id="r1"))
    seen = snapshot(NOW_S, view(), run=run_row(run_id="r1"), elapsed_s=12.0, ends_s=70.0, measures_s=10.0)
    display.show(JobStatus(doing="RUNNING", run_id="r1", snapshot=seen))
    display.say("stopping")
    display.close()
    display.verdict({"run_id": "r1", "verdict": "failed", "exit_code": 10, "exit_reason": "not met: p95 < 1ms"})

    told = [line.partition("Z ")[2] for line in capsys.readouterr().err.splitlines()]
    assert told == [
        "connecting",
        "starting workers of run r1",
        "r1 RUNNING MEASUREMENT 00:02 of 01:00, 1 of 1 worker, 0 of 0 connections",
        "stopping",
        "r1 MISSED, exit code 10: not met: p95 < 1ms",
    ]


def test_the_reason_of_the_end_is_printed_once_when_a_worker_repeats_it(clock: FakeClock, capsys):
    why = "worker-0 exited with code 1: statement pay: no such table"
    lines = RunLines(clock, quiet=False)
    log = tuple(LogEntry(moment=MOMENT, text=text) for text in (f"ending: {why}", why, "worker-1 is LATE"))

    lines.show(replace(MEASUREMENT, log=log))

    said = capsys.readouterr().err
    assert said.count(why) == 1
    assert "worker-1 is LATE" in said


def test_the_text_of_a_failed_run_has_its_reason_once():
    reasons = ["worker lost: worker-0 ended: refused", "too few samples: 0"]
    summary = {"verdict": "error", "exit_reason": "worker-0 ended: refused", "validity": {"reasons": reasons}}

    assert _said_once(summary)["validity"]["reasons"] == reasons[1:]
    assert _said_once(summary | {"verdict": "invalid"})["validity"]["reasons"] == reasons
