"""The verdict on a closed loop with one level under random faults: real orchestrator and workers in simulated time.

To see what happened with a seed: `World(seed, "/tmp", kind=Kind.FLAT, trace=print).run()`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.simulation.histories import BLOCKS, check_verdicts, quiet
from tests.unit.simulation.scenarios import Kind

__all__ = ["quiet"]

pytestmark = pytest.mark.simulation


@pytest.mark.parametrize("seeds", BLOCKS, ids=str)
def test_a_run_is_valid_only_when_its_connections_were_there(seeds: range, tmp_path: Path) -> None:
    check_verdicts(Kind.FLAT, seeds, tmp_path)
