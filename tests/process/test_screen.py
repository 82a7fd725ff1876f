"""`loadgen run` and `loadgen watch` on a real terminal, which is given back however they end; and without one."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.control_plane import ControlPlane
from tests.process.run_commands import SCENARIO
from tests.processes import PATIENCE_S, PROGRAM, ROOT, wait_until

ENTER, LEAVE, CURSOR, NO_CURSOR = "\x1b[?1049h", "\x1b[?1049l", "\x1b[?25h", "\x1b[?25l"
COLOUR = re.compile(r"\x1b\[[0-9;]*m")

END_OF_TEST = b"\x00"  # no program writes it


class TerminalProgram:
    """A terminal, and a program that it controls."""

    def __init__(self, plane: ControlPlane, folder: Path, *words: str) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self._before = termios.tcgetattr(slave)
        self._slave = slave
        self.seen = ""
        kept = {key: os.environ[key] for key in ("PATH", "LANG", "LC_ALL") if key in os.environ}
        self.process = subprocess.Popen(
            [*PROGRAM, *words],
            cwd=folder,
            env=kept | plane.environ | {"PYTHONPATH": str(ROOT), "HOME": str(folder), "TERM": "xterm-256color"},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        # As a terminal does, all the time: the program gives up on one that does not read.
        self._reader = threading.Thread(target=self._read, name="terminal", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        while not (part := os.read(self._master, 65_536)).endswith(END_OF_TEST):
            self.seen += decoder.decode(part)
        self.seen += decoder.decode(part.removesuffix(END_OF_TEST))

    def wait_for(self, text: str) -> None:
        wait_until(lambda: text in self.seen, f"the screen shows {text!r}")

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def ended(self) -> int:
        """Its exit code, once everything it wrote was read."""
        code = self.process.wait(PATIENCE_S)
        self._stop_reading()
        return code

    def _stop_reading(self) -> None:
        if self._reader.is_alive():
            os.write(self._slave, END_OF_TEST)
            self._reader.join(PATIENCE_S)

    @property
    def left(self) -> str:
        """What stays on the terminal."""
        return self.seen.rpartition(LEAVE)[2]

    def check_restored(self) -> None:
        assert self.seen.count(ENTER) == self.seen.count(LEAVE)
        assert self.seen.rindex(CURSOR) > self.seen.rindex(NO_CURSOR)
        assert termios.tcgetattr(self._slave) == self._before
        assert "\x1b" not in COLOUR.sub("", self.left)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._stop_reading()
        os.close(self._slave)
        os.close(self._master)


def start_on_terminal(plane: ControlPlane, folder: Path, **durations: str) -> Iterator[dict[str, TerminalProgram]]:
    """Runs at once, each on a separate warehouse. One starts when those before it measure, so that their imports do not
    disturb it."""
    made: dict[str, TerminalProgram] = {}
    try:
        for name, duration in durations.items():
            file = folder / f"{name}.yaml"
            file.write_text(SCENARIO % (plane.place.database, f"{name}_WH", duration), "utf-8")
            made[name] = TerminalProgram(plane, folder, "run", str(file))
            made[name].wait_for("statement, measurement")
        yield made
    finally:
        for terminal in made.values():
            terminal.close()


@pytest.fixture
def interrupted(plane: ControlPlane, tmp_path: Path) -> Iterator[dict[str, TerminalProgram]]:
    yield from start_on_terminal(plane, tmp_path, CTRL_C="5m")


@pytest.fixture
def ending(plane: ControlPlane, tmp_path: Path) -> Iterator[dict[str, TerminalProgram]]:
    yield from start_on_terminal(plane, tmp_path, TERM="5m", END="10s")


def check_given_back(ended: dict[str, TerminalProgram]) -> None:
    for terminal in ended.values():
        assert ENTER in terminal.seen
        terminal.check_restored()
        left = COLOUR.sub("", terminal.left).replace("\r", "").splitlines()
        assert any(line.startswith("report: ") and line.endswith("/report.html") for line in left)
        assert [line for line in left if len(line) > 80 and "/" not in line] == []
        assert COLOUR.search(terminal.left)


@pytest.mark.slow
def test_the_terminal_is_given_back_when_a_user_types_q(plane, tmp_path):
    for seated in start_on_terminal(plane, tmp_path, KEY="5m"):
        seated["KEY"].type("q")

        assert seated["KEY"].ended() == 130
        check_given_back(seated)


@pytest.mark.slow
def test_the_terminal_is_restored_at_the_end_of_a_run_and_on_sigterm(ending):
    ending["TERM"].process.send_signal(signal.SIGTERM)
    assert ending["END"].ended() == 0, COLOUR.sub("", ending["END"].left)
    assert ending["TERM"].ended() == 143
    check_given_back(ending)


def test_the_terminal_is_restored_when_a_user_ends_a_run_or_its_watch(interrupted, plane, tmp_path):
    run_id = re.findall(r"\d{8}-\d{4}-nap-[0-9a-f]+", interrupted["CTRL_C"].seen)[-1]
    watch = ("watch", run_id, "-c", "embedded", "--database", plane.place.database)
    by_cron = subprocess.Popen(
        [*PROGRAM, *watch],
        cwd=tmp_path,
        env=plane.environ | {"PYTHONPATH": str(ROOT)},  # nothing else, as cron has it
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    watcher = TerminalProgram(plane, tmp_path, *watch)
    try:
        watcher.wait_for("q leave, the run continues")
        watcher.wait_for("statement, measurement")
        # The seconds before it was opened come from the tables, so the peak is known, and not only "at least".
        wait_until(lambda: re.search(r"peak \d", watcher.seen), "the peak of the run is known")
        peak = re.findall(r"peak [\d.,]+/s", watcher.seen)[-1]
        wait_until(lambda: peak in interrupted["CTRL_C"].seen, f"the run's own view shows {peak!r}, as `watch` does")
        watcher.type("q")
        assert watcher.ended() == 0
        assert f"run {run_id} continues: RUNNING MEASUREMENT" in watcher.left
        assert by_cron.stderr is not None
        first = by_cron.stderr.readline()

        interrupted["CTRL_C"].type("\x1a")  # Ctrl-Z: with no shell to continue it, it goes on by itself
        wait_until(lambda: interrupted["CTRL_C"].seen.count(ENTER) == 2, "the screen is left and taken again")
        interrupted["CTRL_C"].type("\x03")

        assert interrupted["CTRL_C"].ended() == 130
        check_given_back(interrupted)
        watcher.check_restored()
        said, told = by_cron.communicate(timeout=PATIENCE_S)
        assert f"{run_id} RUNNING MEASUREMENT" in first
        assert "\x1b" not in first + told
        assert (by_cron.returncode, said.count("\n")) == (0, 1)
        assert said.startswith(f"CANCELLED  nap  run {run_id}: ")
    finally:
        watcher.close()
        by_cron.kill()
        by_cron.communicate()
