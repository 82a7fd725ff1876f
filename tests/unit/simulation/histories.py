"""Histories for tests, and the property of every history: its verdict is one that the truth allows."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from loadgen.model.run import RunStatus
from tests.unit.simulation.faults import WEIGHTS
from tests.unit.simulation.rules import Mutation, Violation
from tests.unit.simulation.scenarios import Kind
from tests.unit.simulation.world import History, World

SEEDS, BLOCK = 318, 53  # of every kind of load; with the searches a thousand
BLOCKS = [range(first, first + BLOCK) for first in range(0, SEEDS, BLOCK)]
SEARCHES = [range(48), pytest.param(range(48, 120), marks=pytest.mark.slow)]  # one takes four times as long
ENDS = (f"{RunStatus.COMPLETED} True", f"{RunStatus.COMPLETED} False", f"{RunStatus.FAILED} False")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Every failure is logged where it is handled; formatting the lines would take longer than the histories."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    with one_core():
        yield
    logging.disable(before)


@contextmanager
def one_core() -> Iterator[None]:
    """One task runs at a time: handing control to a thread on another core takes a fifth of the processor time."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    cores = os.sched_getaffinity(0)
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))  # every other one has simulations
    os.sched_setaffinity(0, {sorted(cores)[worker // 2 % len(cores)]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def history_of(
    seed: int, folder: Path, mutation: Mutation | None = None, *, kind: Kind | None = None, contested: bool = False
) -> History | Violation:
    try:
        return World(seed, str(folder), mutation, kind=kind, contested=contested).run()
    except Violation as violation:
        return violation


def check_verdicts(kind: Kind, seeds: range, folder: Path) -> None:
    """Check a block of seeds, in which enough must have happened for the check to be meaningful."""
    happened: Counter[str] = Counter()
    for seed in seeds:
        history = history_of(seed, folder, kind=kind)
        assert isinstance(history, History), f"seed {seed}: {history}"
        happened[f"{history.status} {history.valid}"] += 1
        happened["taken over"] += history.terms > 1
        happened.update(history.seen.keys())
        happened[str((history.summary.get("find_max") or {}).get("result"))] += history.valid
    assert kind is not Kind.FIND_MAX or (happened["TRUE_MAX"] and happened["BOUNDED_MAX"])
    assert not [what for what in (*ENDS, "taken over") if not happened[what]]
    assert sum(bool(happened[fault]) for fault in WEIGHTS) > len(WEIGHTS) / 2
