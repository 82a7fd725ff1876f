"""The real orchestrator and the real workers, in a thousand simulated worlds where everything fails.

To see what happened in one: `World(seed, "/tmp", trace=print).run()`.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadgen.control.queries import queries
from loadgen.model.run import RunStatus
from tests.unit.simulation.faults import KINDS
from tests.unit.simulation.rules import Broken, Rule, Violation
from tests.unit.simulation.tables import Tables
from tests.unit.simulation.world import History, World

SEEDS, BLOCK = 1_000, 50
SEARCHED = 400  # seeds at most, for one that shows what is broken

# Worlds that have shown an error of the product, and which.
FOUND = {}

# What is broken, and what notices.
NOTICED = {
    Broken.FENCING: {Rule.FENCE},
    Broken.MARGIN: {Rule.FENCE, Rule.TERMS},
    Broken.RENEWAL: {Rule.TERMS},
    Broken.PLACE: {Rule.STEPS},
    Broken.NUMBERS: {Rule.NUMBERS},
    Broken.MEMORY: {Rule.ONCE},
    Broken.LIVENESS: {Rule.OUTAGE},
    Broken.LOSS: {Rule.LOSS},
    Broken.RECOVERY: {Rule.END},
    Broken.CONNECTIONS: {Rule.SHORT},
    Broken.PAUSES: {Rule.SHORT},
    Broken.LIMITS: {Rule.SHORT},
    Broken.PLAN: {Rule.SHORT},
    Broken.STRICT: {Rule.WHOLE},
}
SHOWN_BY: dict[Broken, int] = {}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Every failure is logged where it is met; formatting the lines would take longer than the histories."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(before)


def history_of(seed: int, folder: Path, broken: Broken | None = None) -> History | Violation:
    try:
        return World(seed, str(folder), broken).run()
    except Violation as violation:
        return violation


@pytest.mark.parametrize("first", range(0, SEEDS, BLOCK))
def test_the_verdict_is_right_whatever_happens(first: int, tmp_path: Path) -> None:
    happened: Counter[str] = Counter()
    for seed in range(first, first + BLOCK):
        history = history_of(seed, tmp_path)
        assert isinstance(history, History), f"seed {seed}: {history}"
        happened[f"{history.status} {history.valid}"] += 1
        happened["taken over"] += history.terms > 1
        happened.update(history.seen.keys())
    ends = [f"{RunStatus.COMPLETED} True", f"{RunStatus.COMPLETED} False", f"{RunStatus.FAILED} False"]
    assert not [what for what in (*ends, "taken over") if not happened[what]]
    assert sum(bool(happened[kind]) for kind in set(KINDS)) > len(set(KINDS)) / 2
