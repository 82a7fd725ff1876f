"""The screen on a pseudo-terminal: what is written, which keys do what, and that everything is put back."""

from __future__ import annotations

import fcntl
import logging
import os
import pty
import select
import signal
import struct
import sys
import termios
from collections.abc import Iterator
from dataclasses import replace
from typing import TextIO

import click
import pytest

from loadgen.cli.display import LiveDisplay, RunDisplay
from loadgen.scenario.settings import SpawnerKind, SpawnerSettings
from loadgen.tui.terminal import LiveScreen, is_usable
from loadgen.units import NS_PER_S
from orchestrator.job import JobStatus
from tests.fake_clock import FakeClock
from tests.processes import wait_until
from tests.unit.tui_builders import MEASUREMENT, scenario, snapshot

ENTER, LEAVE, CURSOR, NO_CURSOR = "\x1b[?1049h", "\x1b[?1049l", "\x1b[?25h", "\x1b[?25l"
GOOD = {"TERM": "xterm-256color"}
MARK = b"<read up to here>"


class Pty:
    """Both ends: `stream` is what a program has for stderr, the rest is what a person does.

    The kernel carries from one end to the other when it has the time.
    """

    def __init__(self) -> None:
        self.master, self.slave = pty.openpty()
        self.stream: TextIO = os.fdopen(os.dup(self.slave), "w", encoding="utf-8", buffering=1)
        self.resize(80, 24)
        self.before = self.settings

    def resize(self, width: int, height: int) -> None:
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    @property
    def settings(self) -> list[object]:
        return termios.tcgetattr(self.slave)

    def type(self, keys: str) -> None:
        os.write(self.master, keys.encode())
        flags = termios.tcgetattr(self.slave)[3]
        if not flags & termios.ICANON:  # else they are kept until the line ends
            wait_until(lambda: select.select([self.slave], [], [], 0)[0], "the keys have arrived")

    def read(self) -> str:
        """All that was written so far: up to a mark that is written now."""
        seen, mark = b"", MARK
        while not seen.endswith(MARK):
            readable, writable, _ = select.select([self.master], [self.slave] if mark else [], [])
            if writable:  # byte by byte: the terminal's buffer may be nearly full, and no other process empties it
                mark = mark[os.write(self.slave, mark[:1]) :]
            if readable:
                seen += os.read(self.master, 65_536)
        return seen.removesuffix(MARK).decode()

    def close(self) -> None:
        self.stream.close()
        os.close(self.slave)
        os.close(self.master)


@pytest.fixture
def tty() -> Iterator[Pty]:
    made = Pty()
    yield made
    made.close()


@pytest.fixture
def clock() -> FakeClock:
    made = FakeClock()
    made.advance(1_000.0)
    return made


@pytest.fixture
def screen(tty: Pty, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> Iterator[LiveScreen]:
    monkeypatch.setenv("TERM", "xterm-256color")
    made = LiveScreen(tty.stream, clock, lambda _: None)
    yield made
    made.close()


def test_the_screen_is_taken_and_given_back(tty, screen):
    screen.show(MEASUREMENT)
    shown = tty.read()
    screen.close()
    after = tty.read()

    assert shown.startswith(ENTER)
    assert NO_CURSOR in shown
    assert "point_lookup" in shown
    assert after.endswith(CURSOR + LEAVE)
    assert tty.settings == tty.before
    screen.close()
    assert tty.read() == ""


def test_no_more_than_four_frames_a_second_and_none_without_news_but_for_the_clocks(tty, clock, screen):
    frames = 0
    for _ in range(100):
        screen.show(replace(MEASUREMENT))
        frames += tty.read().count("\x1b[H")
        clock.advance(0.1)
    assert 10 <= frames <= 40

    frames = 0
    for _ in range(100):
        screen.show(MEASUREMENT)
        frames += tty.read().count("\x1b[H")
        clock.advance(0.1)
    assert 9 <= frames <= 11


def test_keys_turn_pages_and_others_are_handed_on(tty, clock, screen):
    def after(keys: str) -> tuple[str, str]:
        tty.type(keys)
        clock.advance(1.0)
        tty.read()
        others = screen.show(MEASUREMENT)
        return others, tty.read()

    assert "of errors" in after("e")[1]
    assert "of errors" not in after("e")[1]
    assert "this page" in after("?")[1]
    assert "of errors" in after("e")[1]
    assert " thresholds " not in after("t")[1].replace("t thresholds", "")
    assert " thresholds " in after("t")[1].replace("t thresholds", "")
    assert after("q")[0] == "q"
    assert after("\x1b[A")[0] == ""  # an arrow
    assert ENTER in after("\x0c")[1]


def test_what_was_printed_meanwhile_follows_broken_between_words(tty, clock, monkeypatch):
    monkeypatch.setattr(sys, "stderr", tty.stream)
    shown = LiveScreen(tty.stream, clock, lambda _: None)
    print("words " * 20, file=sys.stderr)
    shown.close()

    printed = tty.read().rpartition(LEAVE)[2].split("\r\n")
    assert [line.split() for line in printed] == [["words"] * 13, ["words"] * 7, []]


def test_a_resized_window_is_filled(tty, clock, screen):
    screen.show(MEASUREMENT)
    tty.read()
    tty.resize(120, 40)
    clock.advance(0.3)
    screen.show(MEASUREMENT)
    frame = tty.read()
    clock.advance(0.1)
    while "running statements" not in frame:  # it did not fit into the buffer
        screen.show(MEASUREMENT)
        frame += tty.read()

    assert frame.count("\r\n") == 39


def test_a_terminal_that_does_not_read_blocks_no_thread(tty, clock, screen):
    termios.tcflow(tty.slave, termios.TCOOFF)  # as Ctrl-S

    for _ in range(50):
        screen.show(replace(MEASUREMENT))
        clock.advance(1.0)
    termios.tcflow(tty.slave, termios.TCOON)
    screen.close()

    assert tty.read().endswith(CURSOR + LEAVE)
    assert tty.settings == tty.before


def test_what_others_print_appears_afterwards_and_in_the_log(tty, clock, monkeypatch):
    heard: list[str] = []
    handler = logging.StreamHandler(tty.stream)
    logging.getLogger().addHandler(handler)
    monkeypatch.setattr(sys, "stderr", tty.stream)
    screen = LiveScreen(tty.stream, clock, heard.append)
    try:
        logging.getLogger("loadgen.test").warning("lease_lost epoch=1")
        click.echo("start worker-0 by hand\x1b[2J", err=True)
        screen.show(MEASUREMENT)
        assert "by hand" not in tty.read()
    finally:
        screen.close()
        logging.getLogger().removeHandler(handler)

    left = tty.read()
    assert left.index(LEAVE) < left.index("lease_lost epoch=1") < left.index("start worker-0 by hand")
    assert [line[:10] for line in heard] == ["lease_lost", "start work"]
    assert sys.stderr is tty.stream


def test_a_process_that_was_stopped_and_goes_on_takes_the_terminal_back(tty, clock, screen):
    screen.show(MEASUREMENT)
    tty.read()
    os.kill(os.getpid(), signal.SIGCONT)
    clock.advance(1.0)

    screen.show(MEASUREMENT)

    assert ENTER in tty.read()


def test_q_requests_the_end_of_a_run_once_and_the_log_shows_what_follows(tty, clock, monkeypatch):
    monkeypatch.setattr(sys, "stderr", tty.stream)
    monkeypatch.setattr("os.environ", GOOD)
    display = RunDisplay(scenario(), clock, quiet=False)
    now = JobStatus(doing="connecting")
    assert not display.show(now)

    tty.type("q")
    assert display.show(now)
    tty.type("q")
    assert not display.show(now)
    display.say("stopping: statements under way may end")
    clock.advance(1.0)
    display.show(now)
    display.close()
    shown = tty.read()
    display.verdict({"run_id": "r", "verdict": "cancelled", "exit_code": 130, "exit_reason": "stopped"})

    assert "stopping: statements under way may end" in shown.partition(LEAVE)[0]
    assert shown.endswith(LEAVE)
    assert tty.read() == ""  # the result that follows shows it


def test_from_the_first_ctrl_c_on_the_header_shows_stopping_and_the_footer_the_effect_of_the_next_one(
    tty, clock, monkeypatch
):
    monkeypatch.setattr(sys, "stderr", tty.stream)
    monkeypatch.setattr("os.environ", GOOD)
    display = RunDisplay(scenario(), clock, quiet=False)
    seen = snapshot(clock.monotonic_ns() / NS_PER_S, elapsed_s=34.0, ends_s=60.0)  # one second before the first frame
    now = JobStatus(doing="", snapshot=seen)

    def frame() -> str:
        clock.advance(1.0)
        display.show(now)
        return str(tty.read())

    running = frame()
    display.interrupted()
    once = frame()
    display.interrupted()
    twice = frame()
    display.close()

    assert "MEASUREMENT" in running
    assert "00:25 left" in running
    assert " q stop   e errors" in running
    for shown in (once, twice):
        assert "STOPPING" in shown
        assert "left" not in shown
        assert "q stop" not in shown
    assert "Ctrl-C again: cancel running statements" in once
    assert "Ctrl-C again: end this program at once" in twice


def test_commands_for_a_person_to_copy_are_not_hidden_behind_a_screen(tty, clock, monkeypatch):
    monkeypatch.setattr(sys, "stderr", tty.stream)
    monkeypatch.setattr("os.environ", GOOD)
    by_hand = replace(scenario(), spawner=SpawnerSettings(kind=SpawnerKind.EXTERNAL))

    RunDisplay(by_hand, clock, quiet=False).show(JobStatus(doing="connecting"))

    assert tty.read().endswith("Z connecting\r\n")


def test_a_picture_that_cannot_be_drawn_gives_way_to_lines(tty, clock, monkeypatch):
    monkeypatch.setattr(sys, "stderr", tty.stream)
    monkeypatch.setattr("os.environ", GOOD)
    display = LiveDisplay(clock, quiet=False)
    assert display.is_screen

    display.show(replace(MEASUREMENT, checked=None))  # type: ignore[arg-type]
    display.show(MEASUREMENT)
    display.close()

    after = tty.read().partition(LEAVE)[2]
    assert tty.settings == tty.before
    assert "RUNNING MEASUREMENT" in after
    assert "\x1b" not in after


@pytest.mark.parametrize(
    "environ",
    [{}, {"TERM": ""}, {"TERM": "dumb"}, {"TERM": "xterm", "CI": "true"}],
)
def test_there_is_no_screen_where_it_would_do_harm(tty, environ):
    assert is_usable(tty.stream, GOOD)
    assert not is_usable(tty.stream, environ)
    assert not is_usable(None, GOOD)
    with open(os.devnull, "w") as nowhere:
        assert not is_usable(nowhere, GOOD)


def test_colours_go_with_no_color(tty, clock, monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", "1")
    screen = LiveScreen(tty.stream, clock, lambda _: None)
    screen.show(MEASUREMENT)
    screen.close()

    assert "\x1b[32m" not in tty.read()
