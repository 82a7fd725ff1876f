"""On which core a worker stays, and which programs it finds."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import Counter

from loadgen.worker.process import core_of, spare_lsb_release

CORES = (2, 3, 6, 7)


def test_workers_of_a_run_are_on_different_cores_as_far_as_there_are_enough():
    taken = Counter(core_of("20261116-0200-nightly-4b0af5", worker, CORES) for worker in range(10))

    assert set(taken) == set(CORES)
    assert max(taken.values()) - min(taken.values()) <= 1


def test_runs_do_not_all_begin_at_the_same_core():
    assert {core_of(f"run-{number}", 0, CORES) for number in range(50)} == set(CORES)


def test_programs_are_found_as_before_but_for_lsb_release():
    environ = {"PATH": os.environ["PATH"]}

    spare_lsb_release(environ)

    assert environ["PATH"].endswith(os.environ["PATH"])
    assert subprocess.run(["lsb_release", "-a"], env=environ, capture_output=True).returncode == 1
    assert shutil.which("sh", path=environ["PATH"]) == shutil.which("sh")
