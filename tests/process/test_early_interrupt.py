"""Ctrl-C before the program has begun: it ends, and shows nothing of its insides."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import PATIENCE_S, ROOT

IMPORTING = "import signal\nprint('importing', flush=True)\nwhile True: signal.pause()\n"
EARLY = [[str(ROOT / "bin" / "loadgen")], [sys.executable, "-P", "-m", "loadgen"]]


@pytest.mark.parametrize("program", EARLY, ids=["bin/loadgen", "python -m loadgen"])
def test_an_interrupt_during_imports_shows_no_traceback(program, tmp_path: Path):
    (tmp_path / "click.py").write_text(IMPORTING, "utf-8")
    environ = os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    process = subprocess.Popen(
        [*program, "runs", "list"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "importing\n"

    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=PATIENCE_S)

    assert (process.returncode, said) == (-signal.SIGINT, "")


def test_an_interrupt_that_is_ignored_stays_ignored(tmp_path: Path):
    """As in the background of a script."""
    (tmp_path / "click.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nraise SystemExit(9)\n")
    environ = os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    ignoring = (
        "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "os.execv(sys.executable, [sys.executable, '-P', '-m', 'loadgen'])"
    )
    words = [sys.executable, "-c", ignoring]

    assert subprocess.run(words, env=environ, timeout=PATIENCE_S).returncode == 9
