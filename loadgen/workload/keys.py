"""Generators of keys: whole numbers of a range, and sequences that never give a number twice."""

from __future__ import annotations

from collections.abc import Sequence as Values

import numpy as np

from loadgen.model.workload import Hotspot, KeyRange, Latest, Sequence, Uniform, Zipfian
from loadgen.workload.generator import CHUNK_VALUES, DrawContext, Generator, Value, plain
from loadgen.workload.split import Lane, shard_range
from loadgen.workload.zipfian import ITEMS_MAX, SCRAMBLED_ITEMS, scrambled, zipfian

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
