"""On which core a worker stays."""

from __future__ import annotations

from collections import Counter

from loadgen.worker.process import core_of

CORES = (2, 3, 6, 7)


def test_workers_of_a_run_are_on_different_cores_as_far_as_there_are_enough():
    taken = Counter(core_of("20261116-0200-nightly-4b0af5", worker, CORES) for worker in range(10))

    assert set(taken) == set(CORES)
    assert max(taken.values()) - min(taken.values()) <= 1


def test_runs_do_not_all_begin_at_the_same_core():
    assert {core_of(f"run-{number}", 0, CORES) for number in range(50)} == set(CORES)
