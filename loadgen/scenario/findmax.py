"""How many steps a search for the maximum can take, and how long that is at most. Known before it starts."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from loadgen.scenario.scenario import FindMax

STEP_EXTENSION = 3  # an undecided step goes on for at most this many times its length
GAP_FRACTION = 0.05  # bisecting ends when best and failed are closer than this


@dataclass(frozen=True, slots=True, kw_only=True)
class FindMaxCap:
    """Limits that the search never passes."""

    levels: tuple[int, ...]  # the ladder, should every step hold
    steps: int
    steps_s: float  # all steps with settling, none extended
    longest_s: float  # all steps extended to the utmost


def find_max_cap(config: FindMax) -> FindMaxCap:
    """Climb, confirm (or fall back level by level), bisect between the best and the level that failed."""
    levels = [*range(config.start, config.maximum, config.increment), config.maximum]
    # A climb of k steps is followed by at most k - 1 confirmations, one level lower each, and one bisection.
    steps = len(levels) + max(len(levels) - 1, 1)
    if config.refine:
        steps += max((_bisections(low, high) for low, high in itertools.pairwise(levels)), default=0)
    return FindMaxCap(
        levels=tuple(levels),
        steps=steps,
        steps_s=steps * (config.settle_s + config.step_s),
        longest_s=steps * (config.settle_s + STEP_EXTENSION * config.step_s),
    )


def _bisections(low: int, high: int) -> int:
    """Levels tried in the worst case until the gap is one, or below 5 % of the best."""
    steps = 0
    while high - low > max(1, low * GAP_FRACTION):
        high = low + (high - low + 1) // 2  # the middle fails: if it held, `low` would rise and end it sooner
        steps += 1
    return steps
