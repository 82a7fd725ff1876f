"""Verdict and answer of a search for the maximum under random faults: orchestrators and workers in simulated time,
against a warehouse whose limit is known.

To see what happened with a seed: `World(seed, "/tmp", kind=Kind.FIND_MAX, trace=print).run()`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.simulation.histories import SEARCHES, check_verdicts, quiet
from tests.unit.simulation.scenarios import Kind

__all__ = ["quiet"]

pytestmark = pytest.mark.simulation


@pytest.mark.parametrize("seeds", SEARCHES, ids=["few", "many"])
def test_a_search_claims_no_more_than_the_warehouse_holds_and_its_load_shows(seeds: range, tmp_path: Path) -> None:
    check_verdicts(Kind.FIND_MAX, seeds, tmp_path)
