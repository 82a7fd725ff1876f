"""What ./bin/test does with processes: nothing that a test starts outlives it, and signals reach every program."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil
import pytest

from tests.conftest import restore_signals
from tests.processes import PATIENCE_S, ROOT

# Instead of pytest: starts a program in a separate session, and ends without ending it.
LEAVES_A_PROGRAM = """
import signal, subprocess, sys
left = subprocess.Popen([sys.executable, "-I", "-S", "-c", "import signal; signal.pause()"], start_new_session=True)
print(left.pid, flush=True)
try:
    signal.pause() if "waits" in sys.argv else None
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""
RUNS_IT = f"""
import os, sys
from tests import run
command = [sys.executable, "-I", "-S", "-c", {LEAVES_A_PROGRAM!r}, *sys.argv[1:], "tests/unit"]
run.commands = lambda *_: [(dict(os.environ), command)]
run.LEFT_BEHIND_S = 0.1
sys.exit(run.main([]))
"""
# As a job in the background of a script, and under nohup.
IGNORING = ["bash", "-c", 'trap "" INT HUP QUIT; exec "$@"', "bash"]
DISPOSITIONS = "import signal; print([signal.getsignal(n) is signal.SIG_IGN for n in (2, 1, 3)])"


@contextmanager
def started(*words: str) -> Iterator[tuple[subprocess.Popen[str], psutil.Process]]:
    """The program, and the one that its tests leave."""
    process = subprocess.Popen(
        [*IGNORING, sys.executable, "-c", RUNS_IT, *words],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    left = psutil.Process(int(process.stdout.readline()))
    try:
        yield process, left
    finally:
        process.kill()
        process.communicate()
        with suppress(psutil.NoSuchProcess):
            left.kill()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux has subreapers")
def test_what_the_tests_left_running_is_ended_and_is_an_error():
    with started() as (process, left):
        _, errors = process.communicate(timeout=PATIENCE_S)

        assert process.returncode == 1
        assert errors.startswith("error: the tests left processes behind:\n")
        assert f"{left.pid}: {sys.executable} -I -S -c import signal; signal.pause()" in errors
        assert not left.is_running()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux has subreapers")
def test_sigterm_interrupts_the_tests_and_ends_what_they_started():
    with started("waits") as (process, left):
        process.terminate()
        out, errors = process.communicate(timeout=PATIENCE_S)

        assert process.returncode == 128 + signal.SIGTERM
        assert (out, errors) == ("interrupted\n", "")
        assert not left.is_running()


def test_programs_that_tests_start_do_not_inherit_ignored_signals():
    numbers = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    before = [signal.signal(number, signal.SIG_IGN) for number in numbers]
    try:
        restore_signals()
        command = [sys.executable, "-I", "-S", "-c", DISPOSITIONS]
        told = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)

    assert told.stdout == "[False, False, False]\n"
