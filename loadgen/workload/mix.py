"""Which statement comes next: smooth weighted round-robin, at any place of it in constant time.

The cycle is made once: in each step every statement gains its weight, the one that has gathered most is drawn and pays
the sum of all weights. After as many steps as that sum (weights divided by what they have in common) all accounts are
back at zero, so every cycle, and every span as long as one, holds each statement exactly in its share, well spread.
"""

from __future__ import annotations

import functools
import math
from array import array
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from loadgen.model.workload import CYCLE_MAX

_GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0  # of all fractions, its multiples keep farthest apart

IntArray = NDArray[np.int64]


class MixCycle:
    """The cycle of a set of weights."""

    def __init__(self, weights: Sequence[int]) -> None:
        self.weights = _reduced(weights)
        self.cycle = _cycle(self.weights)
        self.length = len(self.cycle)
        # nth[position]: how often this position's statement has occurred in the cycle before it
        drawn = [0] * len(self.weights)
        nth = []
        for statement in self.cycle:
            nth.append(drawn[statement])
            drawn[statement] += 1
        self.nth = array("l", nth)


class MixSequence:
    """One lane's way through the mix, beginning somewhere in the cycle so that lanes do not march in step."""

    def __init__(self, mix: MixCycle, phase: int = 0) -> None:
        if not 0 <= phase < mix.length:
            raise ValueError(f"a walk cannot begin at {phase}: the cycle has {mix.length} steps")
        self.mix = mix
        self.phase = phase
        # What lies before the beginning was never drawn.
        skipped = np.bincount(np.asarray(mix.cycle)[:phase], minlength=len(mix.weights))
        self._skipped: tuple[int, ...] = tuple(skipped.tolist())

    def at(self, k: int) -> tuple[int, int]:
        """Draw k (from 0): the statement's number, and how often this walk has drawn it before."""
        mix = self.mix
        cycles, position = divmod(k + self.phase, mix.length)
        statement = mix.cycle[position]
        return statement, cycles * mix.weights[statement] + mix.nth[position] - self._skipped[statement]

    def counter(self, other: int, statement: int) -> Callable[[IntArray], IntArray]:
        """A function of draws n (from 0) of `statement` that says how often `other` is drawn before each of them."""
        cycle = np.array(self.mix.cycle)
        positions = np.flatnonzero(cycle == statement)
        before = (np.cumsum(cycle == other) - (cycle == other))[positions]
        weight, skipped, skipped_other = self.mix.weights[other], self._skipped[statement], self._skipped[other]

        def drawn_before(draws: IntArray) -> IntArray:
            cycles, nth = np.divmod(draws + skipped, len(positions))
            counts: IntArray = cycles * weight + before[nth] - skipped_other
            return counts

        return drawn_before


def mix_sequence(weights: Sequence[int], lane: int) -> MixSequence:
    """The walk of one lane. The first lanes, however many are open, begin well spread over the cycle, and as many
    lanes as the cycle is long begin one at each place of it."""
    mix = _mix(tuple(weights))
    return MixSequence(mix, lane * _stride(mix.length) % mix.length)


@functools.lru_cache(maxsize=16)
def _stride(length: int) -> int:
    """The number nearest to the golden part of `length` that has no factor in common with it."""
    golden = round(length * _GOLDEN)
    return next(
        stride
        for distance in range(length + 1)
        for stride in (golden + distance, golden - distance)
        if stride > 0 and math.gcd(stride, length) == 1
    )


@functools.lru_cache(maxsize=16)
def _mix(weights: tuple[int, ...]) -> MixCycle:
    return MixCycle(weights)


def _reduced(weights: Sequence[int]) -> tuple[int, ...]:
    if not weights or min(weights) < 0 or not any(weights):
        raise ValueError(f"a mix needs weights of 0 or more, at least one of them above 0; got {tuple(weights)}")
    common = math.gcd(*weights)
    reduced = tuple(weight // common for weight in weights)
    if sum(reduced) > CYCLE_MAX:
        raise ValueError(
            f"the weights add up to a cycle of {sum(reduced):,} statements, more than {CYCLE_MAX:,}; "
            "use smaller weights, or weights with a common factor"
        )
    return reduced


def _cycle(weights: tuple[int, ...]) -> array[int]:
    total = sum(weights)
    drawable = [statement for statement, weight in enumerate(weights) if weight]
    gathered = [0] * len(weights)
    cycle = array("l")
    for _ in range(total):
        best = drawable[0]
        for statement in drawable:
            gathered[statement] += weights[statement]
            if gathered[statement] > gathered[best]:
                best = statement
        gathered[best] -= total
        cycle.append(best)
    return cycle
