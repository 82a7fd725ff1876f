"""Generators of keys: whole numbers of a range, and sequences that never give a number twice."""

from __future__ import annotations

import functools
from collections.abc import Sequence as Values
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from loadgen.model.workload import Hotspot, KeyRange, Latest, Sequence, Uniform, Zipfian
from loadgen.workload import random_bits
from loadgen.workload.generator import CHUNK_VALUES, DrawContext, Generator, Lane, Value, plain, shard_range

TABLE_RANKS = 4_096
ITEMS_MAX = 1 << 62  # beyond 2**53 the rarest are drawn in small groups only

# The scrambled generator of YCSB draws a rank of this many items, whatever the range, and hashes it into the range. Its
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
        self._sums = np.array(list(accumulate(random_bits.power(ranks, -theta).tolist())))
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
            ranks[far] = np.floor(random_bits.power(above, 1.0 / self._flatness) - 0.5).astype(np.int64)
            ranks[far] = np.maximum(ranks[far], TABLE_RANKS)
        return np.minimum(ranks, counts - 1)

    def _power_at(self, items: IntArray) -> FloatArray:
        """The integral of x**-theta up to `items` + 1/2, times (1 - theta): the midpoint rule."""
        return random_bits.power(items.astype(np.float64) + 0.5, self._flatness)


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


KEY_MIN, KEY_MAX = -(1 << 63), (1 << 63) - 1
_OFFSETS = np.arange(CHUNK_VALUES, dtype=np.int64)


class UniformKeys(Generator):
    """All keys alike."""

    def __init__(self, parameter: Uniform, source: DrawContext) -> None:
        super().__init__()
        self._source = source
        self._keys = keys_of(parameter.keys, sharded=parameter.sharded, source=source)

    def make(self, chunk: int) -> Values[Value]:
        offsets = self._source.bits(chunk).below(self._keys.size, CHUNK_VALUES)
        return plain(offsets + self._keys.low)


class ZipfianKeys(Generator):
    """The first keys are the popular ones; scrambled, popular keys are spread over the range."""

    def __init__(self, parameter: Zipfian, source: DrawContext) -> None:
        super().__init__()
        self._source = source
        self._keys = keys_of(parameter.keys, sharded=parameter.sharded, source=source)
        self._zipfian = zipfian(parameter.theta)
        self._scrambled = parameter.scrambled

    def make(self, chunk: int) -> Values[Value]:
        units = self._source.bits(chunk).units(CHUNK_VALUES)
        if self._scrambled:
            offsets = scrambled(self._zipfian.ranks(units, SCRAMBLED_ITEMS), self._keys.size)
        else:
            offsets = self._zipfian.ranks(units, self._keys.size)
        return plain(offsets + self._keys.low)


class HotspotKeys(Generator):
    """The first keys are hot. At least one is, so that the hot share of the draws always has somewhere to go."""

    def __init__(self, parameter: Hotspot, source: DrawContext) -> None:
        super().__init__()
        if not (0.0 <= parameter.hot_fraction <= 1.0 and 0.0 <= parameter.hot_share <= 1.0):
            raise ValueError("hot_fraction and hot_share of a hotspot must lie between 0 and 1")
        self._source = source
        self._keys = keys_of(parameter.keys, sharded=parameter.sharded, source=source)
        self._hot = min(max(1, round(self._keys.size * parameter.hot_fraction)), self._keys.size)
        self._cold = self._keys.size - self._hot
        self._share = parameter.hot_share if self._cold else 1.0

    def make(self, chunk: int) -> Values[Value]:
        bits = self._source.bits(chunk)
        is_hot = bits.units(CHUNK_VALUES) < self._share
        hot = bits.below(self._hot, CHUNK_VALUES)
        cold = bits.below(max(1, self._cold), CHUNK_VALUES) + self._hot
        return plain(np.where(is_hot, hot, cold) + self._keys.low)


class LatestKeys(Generator):
    """Zipfian over the keys, the newest first: those that this lane has drawn from the sequence it follows, then the
    range from its end. Keys of other lanes are left out: a lane that is not open, or is behind, has not made its own.
    """

    def __init__(self, parameter: Latest, source: DrawContext) -> None:
        super().__init__()
        self._source = source
        self._keys = keys_of(parameter.keys, sharded=parameter.sharded, source=source)
        self._zipfian = zipfian(parameter.theta)

    def make(self, chunk: int) -> Values[Value]:
        units = self._source.bits(chunk).units(CHUNK_VALUES)
        last, followed = self._keys.high - 1, self._source.followed
        if followed is None:
            return plain(last - self._zipfian.ranks(units, self._keys.size))
        drawn = followed.drawn_before(_OFFSETS + chunk * CHUNK_VALUES)
        within = max(0, (last - followed.first) // followed.step + 1)  # numbers of the sequence that are no new keys
        new = np.maximum(drawn - within, 0)
        ranks = self._zipfian.ranks(units, new + self._keys.size)
        newest_first = followed.first + (drawn - 1 - np.minimum(ranks, new)) * followed.step
        return plain(np.where(ranks < new, newest_first, last - (ranks - new)))


class SequenceKeys(Generator):
    """Increasing numbers, each in one lane only; when all lanes have drawn equally often, none is left out.

    Sharded, they are this worker's keys from the first to the last; then there are no more. `start` says nothing then.
    """

    def __init__(self, parameter: Sequence, source: DrawContext) -> None:
        super().__init__()
        self._end: int | None = None
        lane, first = source.lane, parameter.start
        if parameter.sharded:
            keys = keys_of(None, sharded=True, source=source)
            place = source.place
            lane = Lane(0, 1) if source.open_loop else Lane(place.client, place.clients)
            first, self._end = keys.low, keys.high
        self.first, self.step = first + lane.number, lane.count

    def make(self, chunk: int) -> Values[Value]:
        first = self.first + chunk * CHUNK_VALUES * self.step
        end = first + CHUNK_VALUES * self.step
        return range(first, end if self._end is None else min(end, max(first, self._end)), self.step)


def keys_of(keys: KeyRange | None, *, sharded: bool, source: DrawContext) -> KeyRange:
    """The range a parameter draws from: all of it, or this worker's part."""
    if keys is None:
        if source.sharding is None or not sharded:
            raise ValueError("a generator without a range needs sharding, and must be sharded")
        keys = source.sharding.keys
    if sharded:
        whole, keys = keys, shard_range(keys, source.place.worker, source.place.workers)
        if keys.size < 1:
            raise ValueError(
                f"worker {source.place.worker} has no keys: {whole.size} are not enough for "
                f"{source.place.workers} workers"
            )
    if not (KEY_MIN <= keys.low < keys.high <= KEY_MAX and keys.size <= ITEMS_MAX):
        raise ValueError(
            f"keys from {keys.low} up to {keys.high} cannot be drawn: a range holds at least 1 and at most 2**62 "
            "whole numbers of 64 bits"
        )
    return keys
