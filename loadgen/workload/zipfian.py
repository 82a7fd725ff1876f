"""The zipfian distribution of YCSB: rank r (from 0) of n items has the probability 1 / (r + 1)**theta / zeta(n, theta).

YCSB draws it with the method of Gray et al. (SIGMOD 1994), which is exact for the first two ranks and, at theta 0.99,
up to 19 % too high for the next ones and up to 5 % too low for the far ones. Here the published probabilities
themselves are drawn: the first ranks from a table of their sums, the others by inverting the integral that continues
it, whose error is below 1e-8 of each probability. Zeta comes from the same two parts, so any number of items, and one
that grows with every draw, costs the same.
"""

from __future__ import annotations

import functools
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from loadgen.workload import portable

TABLE_RANKS = 4_096
ITEMS_MAX = 1 << 62  # beyond 2**53 the rarest are drawn in small groups only

# The scrambled generator of YCSB draws a rank of so many items, whatever the range, and hashes it into the range. Its
# zeta is that of 10**10 items (26.469…); the 10**16 that newer versions name beside it would have another.
SCRAMBLED_ITEMS = 10_000_000_000
_FNV_OFFSET_BASIS = np.uint64(0xCBF29CE484222325)
_FNV_PRIME = np.uint64(1099511628211)

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


class ZipfianDistribution:
    """Zipfian over any number of items, for one theta from 0 (all alike) up to, not including, 1."""

    def __init__(self, theta: float) -> None:
        if not 0.0 <= theta < 1.0:
            raise ValueError(f"theta of a zipfian must be at least 0 and below 1, not {theta}")
        self._flatness = 1.0 - theta
        ranks = np.arange(1, TABLE_RANKS + 1, dtype=np.float64)
        self._sums = np.array(list(accumulate(portable.power(ranks, -theta).tolist())))
        self._table_sum = float(self._sums[-1])
        self._table_power = float(self._power_at(np.array([TABLE_RANKS]))[0])

    def zeta(self, items: IntArray) -> FloatArray:
        """The sum of 1 / i**theta for i from 1 to `items`, for each number of items."""
        near: FloatArray = self._sums[np.minimum(items, TABLE_RANKS) - 1]
        far = (self._power_at(np.maximum(items, TABLE_RANKS)) - self._table_power) / self._flatness
        return near + far

    def ranks(self, units: FloatArray, items: int | IntArray) -> IntArray:
        """Ranks below `items` (one number, or one for each) from units, which are uniform from 0 to 1."""
        counts = np.broadcast_to(np.asarray(items, dtype=np.int64), units.shape)
        target = units * (self.zeta(counts) if isinstance(items, np.ndarray) else _zeta_of(self, items))
        ranks = np.searchsorted(self._sums, target, side="right").astype(np.int64)
        far = ranks >= TABLE_RANKS
        if far.any():
            above = (target[far] - self._table_sum) * self._flatness + self._table_power
            ranks[far] = np.floor(portable.power(above, 1.0 / self._flatness) - 0.5).astype(np.int64)
            ranks[far] = np.maximum(ranks[far], TABLE_RANKS)
        return np.minimum(ranks, counts - 1)

    def _power_at(self, items: IntArray) -> FloatArray:
        """The integral of x**-theta up to `items` + 1/2, times (1 - theta): the midpoint rule."""
        return portable.power(items.astype(np.float64) + 0.5, self._flatness)


def zipfian(theta: float) -> ZipfianDistribution:
    """The Zipfian of this theta; made once."""
    return _made(float(theta))


def scrambled(ranks: IntArray, size: int) -> IntArray:
    """Ranks spread over 0 … size - 1 as YCSB does: the absolute value of their FNV-1a hash, modulo the size."""
    return (np.abs(fnv1a_64(ranks)) % size).astype(np.int64)


def fnv1a_64(values: IntArray) -> IntArray:
    """64-bit FNV-1a over the eight bytes of each value, the lowest first; as a signed number."""
    rest = values.astype(np.uint64)
    hashes = np.full(rest.shape, _FNV_OFFSET_BASIS)
    for _ in range(8):
        hashes ^= rest & np.uint64(0xFF)
        hashes *= _FNV_PRIME
        rest >>= np.uint64(8)
    return hashes.view(np.int64)


@functools.lru_cache(maxsize=64)
def _made(theta: float) -> ZipfianDistribution:
    return ZipfianDistribution(theta)


@functools.lru_cache(maxsize=1024)
def _zeta_of(distribution: ZipfianDistribution, items: int) -> float:
    if not 1 <= items <= ITEMS_MAX:
        raise ValueError(f"a zipfian needs from 1 to 2**62 items, not {items}")
    return float(distribution.zeta(np.array([items]))[0])
