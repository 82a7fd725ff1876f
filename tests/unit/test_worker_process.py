"""On which core a worker stays, and its priority."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from loadgen.worker.main import core_of
from tests.processes import ROOT

CORES = (2, 3, 6, 7)


def test_workers_of_a_run_are_on_different_cores_if_there_are_enough():
    taken = Counter(core_of("20261116-0200-nightly-4b0af5", worker, CORES) for worker in range(10))

    assert set(taken) == set(CORES)
    assert max(taken.values()) - min(taken.values()) <= 1


def test_runs_do_not_all_begin_at_the_same_core():
    assert {core_of(f"run-{number}", 0, CORES) for number in range(50)} == set(CORES)


# --- priority --------------------------------------------------------------------------------------------------------

RAISED = """
import os, threading
from loadgen.process import raise_priority
raise_priority()
seen = []
thread = threading.Thread(target=lambda: seen.append(os.getpriority(os.PRIO_PROCESS, 0)))
thread.start()
thread.join()
print(os.getpriority(os.PRIO_PROCESS, 0), *seen)
"""
PERMITTED = "import os; os.setpriority(os.PRIO_PROCESS, 0, -10)"


@pytest.mark.parametrize("more", [0, 5])
def test_a_measurement_has_priority_unless_its_user_chose_one(more: int) -> None:
    niceness = min(os.getpriority(os.PRIO_PROCESS, 0) + more, 19)  # the maximum of the kernel
    permitted = subprocess.run([sys.executable, "-c", PERMITTED], capture_output=True).returncode == 0
    words = ["nice", "-n", str(more), sys.executable, "-c", RAISED]

    done = subprocess.run(words, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True)

    expected = -10 if niceness == 0 and permitted else niceness
    assert done.stdout.split() == [str(expected)] * 2  # threads inherit it


AUTOGROUP = Path("/proc/self/autogroup")


@pytest.mark.skipif(not AUTOGROUP.exists(), reason="this kernel does not weigh sessions")
@pytest.mark.parametrize("own_session", [True, False])
def test_a_session_of_our_own_has_the_same_priority_and_a_terminal_s_session_keeps_its_own(own_session: bool) -> None:
    # A process that is in no autogroup (the first session of a container) reads an empty text.
    code = f"{RAISED}\nprint('session', open('{AUTOGROUP}').read())"
    before = AUTOGROUP.read_text().split()[-1:]

    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        start_new_session=own_session,
        capture_output=True,
        text=True,
        check=True,
    )

    of_process, of_session = done.stdout.split("session")
    raised = of_process.split()[0] == "-10"
    assert of_session.split()[-1:] in ([["-10" if raised else "0"], []] if own_session else [before])
