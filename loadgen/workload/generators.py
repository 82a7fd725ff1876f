"""The n-th value of a parameter, for each kind of parameter: keys of a range, sequences, and other values.

A generator makes its values in chunks with numpy and returns them as plain Python values, because the driver cannot
bind others. A chunk depends only on its number and on the generator's DrawContext, so values can be taken in any order.

take(), items(): any thread. A chunk is made under the lock of the generator, which takes well below a millisecond
unless texts are very long.
"""

from __future__ import annotations

import functools
import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence as Values
from datetime import date, datetime, time
from decimal import Decimal
from itertools import accumulate
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from loadgen.errors import RunFailed
from loadgen.model.workload import (
    NORMAL_KEPT_MIN,
    Choice,
    Hotspot,
    KeyRange,
    Latest,
    Literal,
    Normal,
    Parameter,
    PoolOrder,
    PoolValue,
    Previous,
    Remembered,
    Sequence,
    Shard,
    Text,
    Timestamp,
    Uniform,
    UniformFloat,
    Uuid,
    Zipfian,
)
from loadgen.workload import random_bits
from loadgen.workload.draw_context import CHUNK_VALUES, DrawContext, Lane, shard_of, shard_range
from loadgen.workload.random_bits import SMALL_SIZE_MAX, FloatArray, IntArray, RandomBits

# --- values in chunks ------------------------------------------------------------------------------------------------

Value = str | int | float | bool | bytes | Decimal | datetime | date | time | None
Item = TypeVar("Item")


class Chunked(ABC, Generic[Item]):
    """Endless items with numbers, made in chunks of a size that is a power of two."""

    chunk_items = CHUNK_VALUES

    def __init__(self) -> None:
        self._making = threading.Lock()  # guards the replacement of _chunks; the dict is never changed
        self._chunks: dict[int, Values[Item]] = {}

    @abstractmethod
    def make(self, chunk: int) -> Values[Item]:
        """The items of a chunk: `chunk_items` of them from n = chunk * chunk_items on, or as many as there are."""

    def take(self, n: int) -> Item:
        """The n-th item, from 0."""
        chunk, at = divmod(n, self.chunk_items)
        items = self._chunks.get(chunk)
        try:
            return (self._made(chunk) if items is None else items)[at]
        except IndexError:
            raise _used_up() from None

    def items(self, first: int, count: int) -> Values[Item]:
        """The items from `first` on; they must lie in one chunk."""
        chunk, at = divmod(first, self.chunk_items)
        if count == self.chunk_items and at == 0:
            return self.make(chunk)
        if at + count > self.chunk_items:
            raise ValueError(f"{count} items from {first} on do not lie in one chunk of {self.chunk_items}")
        items = self._chunks.get(chunk)
        return (self._made(chunk) if items is None else items)[at : at + count]

    def _made(self, chunk: int) -> Values[Item]:
        """The chunk. It is kept, and so is the last one, from which some clients of an open loop still draw."""
        with self._making:
            items = self._chunks.get(chunk)
            if items is None:
                items = self.make(chunk)
                last = list(self._chunks.items())[-1:]
                self._chunks = dict([*last, (chunk, items)])
            return items


class Generator(Chunked[Value]):
    """The values of one parameter in one lane."""


class Constant(Generator):
    """Always the same value."""

    def __init__(self, value: Value) -> None:
        super().__init__()
        self._values = (value,) * CHUNK_VALUES

    def make(self, chunk: int) -> Values[Value]:
        return self._values


def plain(numbers: NDArray[Any]) -> list[Value]:
    """The numbers as values of Python: the driver cannot bind those of numpy."""
    values: list[Value] = numbers.tolist()
    return values


def _used_up() -> RunFailed:
    """The error of a sharded sequence without further values; no other generator ends."""
    return RunFailed(
        "a sharded sequence has given all keys of its worker",
        remedy="Widen key_range under sharding, or shorten the run; no key was given twice.",
    )


# --- Zipfian ranks, keys of a range, sequences -----------------------------------------------------------------------

TABLE_RANKS = 4_096
ITEMS_MAX = 1 << 62  # beyond 2**53, single items cannot be told apart by a float, and the rarest are drawn in groups

# The scrambled generator of YCSB draws a rank of this number of items whatever the range, and hashes it into the range.
# Its zeta is that of 10**10 items (26.469…), although newer versions name 10**16 items.
SCRAMBLED_ITEMS = 10_000_000_000
_FNV_OFFSET_BASIS = np.uint64(0xCBF29CE484222325)
_FNV_PRIME = np.uint64(1099511628211)


class ZipfianDistribution:
    """A Zipfian distribution over any number of items, for one theta from 0 (uniform) up to, not including, 1."""

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
        """Ranks below `items` (one number, or one for each unit) from units, which are uniform from 0 to 1."""
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
    """The distribution for this theta; made once."""
    return _made(float(theta))


def scrambled(ranks: IntArray, size: int) -> IntArray:
    """Ranks spread over 0 … size - 1 as YCSB does: the absolute value of their FNV-1a hash, modulo the size."""
    return (np.abs(fnv1a_64(ranks)) % size).astype(np.int64)


def fnv1a_64(values: IntArray) -> IntArray:
    """64-bit FNV-1a over the eight bytes of each value, lowest byte first, as signed numbers."""
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
    """All keys with equal probability."""

    def __init__(self, parameter: Uniform, source: DrawContext) -> None:
        super().__init__()
        self._source = source
        self._keys = keys_of(parameter.keys, sharded=parameter.sharded, source=source)

    def make(self, chunk: int) -> Values[Value]:
        offsets = self._source.bits(chunk).below(self._keys.size, CHUNK_VALUES)
        return plain(offsets + self._keys.low)


class ZipfianKeys(Generator):
    """The first keys are the most frequent; with `scrambled`, frequent keys are spread over the range."""

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
    """The first keys are hot. At least one key is hot, so that `hot_share` of the draws can go to it."""

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
    """Zipfian over the keys, newest first: those that this lane has drawn from the sequence it follows, then the range
    from its end. Keys of other lanes are left out, because a lane that is closed or late has not inserted its keys.
    """

    def __init__(self, parameter: Latest, source: DrawContext) -> None:
        super().__init__()
        self._source = source
        self._keys = keys_of(parameter.keys, sharded=parameter.sharded, source=source)
        self._zipfian = zipfian(parameter.theta)
        self.last, self.follows = self._keys.high - 1, parameter.follows

    def make(self, chunk: int) -> Values[Value]:
        units = self._source.bits(chunk).units(CHUNK_VALUES)
        last, followed = self.last, self._source.followed
        if followed is None:
            return plain(last - self._zipfian.ranks(units, self._keys.size))
        drawn = followed.drawn_before(_OFFSETS + chunk * CHUNK_VALUES)
        within = max(0, (last - followed.first) // followed.step + 1)  # numbers of the sequence that lie in the range
        new = np.maximum(drawn - within, 0)
        ranks = self._zipfian.ranks(units, new + self._keys.size)
        newest_first = followed.first + (drawn - 1 - np.minimum(ranks, new)) * followed.step
        return plain(np.where(ranks < new, newest_first, last - (ranks - new)))


class SequenceKeys(Generator):
    """Increasing numbers, each in one lane only; if all lanes have drawn equally often, there is no gap.

    With `sharded` they are the keys of this worker, and end with the last of them; `start` has no effect.
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
    """The range that a parameter draws from: its own, or this worker's part."""
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


# --- other values ----------------------------------------------------------------------------------------------------

TEXT_CHUNK_CHARACTERS = 1 << 15  # so that long texts do not fill the memory; at least one text
_NORMAL_ROUND_MAX = 1 << 15
_WHOLE_MAX = float(1 << 62)
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001  naive, as all timestamps here
_HYPHEN = ord("-")
_HEX_CODES = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)
_UUID_LENGTH = 36
_UUID_DIGIT_AT = np.array([at for at in range(_UUID_LENGTH) if at not in (8, 13, 18, 23)])


class WeightedChoices(Generator):
    """One of several values."""

    def __init__(self, parameter: Choice, source: DrawContext) -> None:
        super().__init__()
        weights = parameter.weights or (1,) * len(parameter.values)
        if not weights or len(weights) != len(parameter.values) or min(weights) < 0 or not sum(weights):
            raise ValueError("a choice needs values, and as many weights, of which one is above 0")
        self._source = source
        self._values = parameter.values
        self._ends = np.cumsum(np.array(weights, dtype=np.int64))

    def make(self, chunk: int) -> Values[Value]:
        points = self._source.bits(chunk).below(int(self._ends[-1]), CHUNK_VALUES)
        values = self._values
        return [values[at] for at in np.searchsorted(self._ends, points, side="right").tolist()]


class UniformFloats(Generator):
    """Numbers of an interval with equal probability."""

    def __init__(self, parameter: UniformFloat, source: DrawContext) -> None:
        super().__init__()
        low, high = parameter.low, parameter.high
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise ValueError(f"there are no numbers from {low} up to {high}")
        self._source = source
        self._low, self._high, self._last = low, high, math.nextafter(high, low)

    def make(self, chunk: int) -> Values[Value]:
        units = self._source.bits(chunk).units(CHUNK_VALUES)
        # Two products, because high - low may overflow; rounding must not leave the interval.
        values = self._low * (1.0 - units) + self._high * units
        return plain(np.clip(values, self._low, self._last))


class NormalNumbers(Generator):
    """Normally distributed numbers by the polar method; those outside the bounds are drawn again.

    Whole numbers are rounded first, so that rounding cannot leave the bounds.
    """

    def __init__(self, parameter: Normal, source: DrawContext) -> None:
        super().__init__()
        self._source = source
        self._mean, self._stddev, self._whole = parameter.mean, parameter.stddev, parameter.whole
        self._low = -math.inf if parameter.low is None else parameter.low
        self._high = math.inf if parameter.high is None else parameter.high
        if not (math.isfinite(self._mean) and math.isfinite(self._stddev) and self._stddev >= 0.0):
            raise ValueError(f"a normal needs a mean and a stddev of 0 or more, not {self._mean} and {self._stddev}")
        if self._whole and abs(self._mean) + 40 * self._stddev > _WHOLE_MAX:
            raise ValueError("whole numbers of this normal would not fit 64 bits")
        if parameter.kept_fraction < NORMAL_KEPT_MIN:
            raise ValueError(
                f"less than {NORMAL_KEPT_MIN:.0%} of a normal with mean {self._mean:g} and stddev {self._stddev:g} "
                f"lies from {self._low:g} up to {self._high:g}"
            )

    def make(self, chunk: int) -> Values[Value]:
        bits = self._source.bits(chunk)
        kept: list[FloatArray] = []
        missing, pairs = CHUNK_VALUES, 2 * CHUNK_VALUES // 3
        while missing > 0:
            values = _standard_normals(bits, pairs) * self._stddev + self._mean
            if self._whole:
                values = np.rint(values)
            kept.append(values[(values >= self._low) & (values < self._high)][:missing])
            missing -= len(kept[-1])
            pairs = min(2 * pairs, _NORMAL_ROUND_MAX)
        numbers = np.concatenate(kept)
        return plain(numbers.astype(np.int64) if self._whole else numbers)


class Texts(Generator):
    """Random characters of an alphabet; lengths from `length` to `length_max` have equal probability."""

    def __init__(self, parameter: Text, source: DrawContext) -> None:
        super().__init__()
        longest = parameter.length if parameter.length_max is None else parameter.length_max
        if not 0 <= parameter.length <= longest:
            raise ValueError(f"there are no lengths from {parameter.length} to {longest}")
        if not parameter.alphabet:
            raise ValueError("a text needs an alphabet of at least one character")
        self._source = source
        self._length, self._lengths = parameter.length, longest - parameter.length + 1
        self._codes = np.frombuffer(parameter.alphabet.encode("utf-32-le"), dtype="<u4")
        texts = max(1, TEXT_CHUNK_CHARACTERS // max(1, longest))
        self.chunk_items = min(CHUNK_VALUES, 1 << (texts.bit_length() - 1))

    def make(self, chunk: int) -> Values[Value]:
        bits = self._source.bits(chunk)
        lengths = [self._length] * self.chunk_items
        if self._lengths > 1:
            lengths = (bits.below(self._lengths, self.chunk_items) + self._length).tolist()
        size, total = len(self._codes), sum(lengths)
        letters = bits.small_below(size, total) if size <= SMALL_SIZE_MAX else bits.below(size, total)
        return cut(self._codes.take(letters).tobytes().decode("utf-32-le"), lengths)


class Uuids(Generator):
    """Version 4 identifiers: 122 random bits."""

    def __init__(self, source: DrawContext) -> None:
        super().__init__()
        self._source = source

    def make(self, chunk: int) -> Values[Value]:
        words = self._source.bits(chunk).words(2 * CHUNK_VALUES).reshape(CHUNK_VALUES, 2)
        words[:, 0] = (words[:, 0] & np.uint64(0xFFFFFFFFFFFF0FFF)) | np.uint64(0x4000)  # version 4
        words[:, 1] = (words[:, 1] & np.uint64(0x3FFFFFFFFFFFFFFF)) | np.uint64(1 << 63)  # variant 10
        octets = words.astype(">u8").view(np.uint8).reshape(CHUNK_VALUES, 16)
        digits = np.empty((CHUNK_VALUES, 32), dtype=np.uint8)
        digits[:, 0::2] = octets >> 4
        digits[:, 1::2] = octets & 15
        codes = np.full((CHUNK_VALUES, _UUID_LENGTH), _HYPHEN, dtype=np.uint8)
        codes[:, _UUID_DIGIT_AT] = _HEX_CODES[digits]
        return cut(codes.tobytes().decode("ascii"), [_UUID_LENGTH] * CHUNK_VALUES)


class Timestamps(Generator):
    """Naive UTC timestamps in microseconds, with equal probability."""

    def __init__(self, parameter: Timestamp, source: DrawContext) -> None:
        super().__init__()
        if parameter.low.tzinfo is not None or parameter.high.tzinfo is not None:
            raise ValueError("the bounds of a timestamp must be naive; they are in UTC")
        self._source = source
        self._low_us, high_us = _microseconds(parameter.low), _microseconds(parameter.high)
        self._span_us = high_us - self._low_us
        if self._span_us < 1:
            raise ValueError(f"there are no timestamps from {parameter.low} up to {parameter.high}")

    def make(self, chunk: int) -> Values[Value]:
        offsets_us = self._source.bits(chunk).below(self._span_us, CHUNK_VALUES)
        return plain((offsets_us + self._low_us).view("datetime64[us]"))


class PoolValues(Generator):
    """Values of a pool. Sequential: of n lanes each takes every n-th value, and moves by one before it would repeat.

    The number of lanes and the size of the pool may have a common factor. Without this move a lane would repeat a few
    values, and a run with few open lanes would use a small part of the pool.
    """

    def __init__(self, parameter: PoolValue, source: DrawContext) -> None:
        super().__init__()
        pool = source.pools.get(parameter.pool)
        if pool is None:
            raise ValueError(f"there is no value pool {parameter.pool!r}")
        self._source, self._order, self._values = source, parameter.order, pool.values
        self._zipfian = zipfian(parameter.theta) if parameter.order is PoolOrder.ZIPFIAN else None

    def make(self, chunk: int) -> Values[Value]:
        values = self._values
        return [values[at] for at in self._indexes(chunk).tolist()]

    def _indexes(self, chunk: int) -> NDArray[np.int64]:
        size = len(self._values)
        if self._zipfian is not None:
            return self._zipfian.ranks(self._source.bits(chunk).units(CHUNK_VALUES), size)
        if self._order is PoolOrder.UNIFORM:
            return self._source.bits(chunk).below(size, CHUNK_VALUES)
        lane = self._source.lane
        turns = np.arange(CHUNK_VALUES, dtype=np.int64) + chunk * CHUNK_VALUES
        common = math.gcd(lane.count, size)
        moved = turns // (size // common) % common  # after this number of turns it would return to its first value
        return (turns * lane.count + lane.number + moved) % size


def cut(text: str, lengths: list[int]) -> list[str]:
    """The text, cut into pieces of these lengths."""
    pieces, start = [], 0
    for length in lengths:
        pieces.append(text[start : start + length])
        start += length
    return pieces


def _standard_normals(bits: RandomBits, pairs: int) -> FloatArray:
    """About 1.57 normals per pair of units, by Marsaglia's polar method, which needs only a logarithm and a root."""
    points = (2.0 * bits.units(2 * pairs) - 1.0).reshape(pairs, 2)
    squares = points[:, 0] * points[:, 0] + points[:, 1] * points[:, 1]
    inside = (squares < 1.0) & (squares > 0.0)
    kept = squares[inside]
    factors = np.sqrt(-2.0 * random_bits.log(kept) / kept)
    return (points[inside] * factors[:, np.newaxis]).reshape(-1)


def _microseconds(moment: datetime) -> int:
    since = moment - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def make_generator(parameter: Parameter, source: DrawContext) -> Generator:
    """The generator of a parameter. Raises ValueError if there are no values to draw."""
    match parameter:
        case Uniform():
            return UniformKeys(parameter, source)
        case Zipfian():
            return ZipfianKeys(parameter, source)
        case Hotspot():
            return HotspotKeys(parameter, source)
        case Latest():
            return LatestKeys(parameter, source)
        case Sequence():
            return SequenceKeys(parameter, source)
        case Choice():
            return WeightedChoices(parameter, source)
        case UniformFloat():
            return UniformFloats(parameter, source)
        case Normal():
            return NormalNumbers(parameter, source)
        case Text():
            return Texts(parameter, source)
        case Uuid():
            return Uuids(source)
        case Timestamp():
            return Timestamps(parameter, source)
        case PoolValue():
            return PoolValues(parameter, source)
        case Literal():
            return Constant(parameter.value)
        case Shard():
            if source.sharding is None:
                raise ValueError("the generator `shard` needs sharding")
            return Constant(shard_of(source.place.worker, source.sharding.total_partitions))
        case Remembered():
            return Constant(None)  # replaced by the value of the session, see loadgen.workload.users
        case Previous():
            raise ValueError("`previous` repeats another parameter and has no values")
