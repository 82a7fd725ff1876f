"""From a parameter of the scenario to the generator of its values."""

from __future__ import annotations

import math
from collections.abc import Sequence as Values
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from loadgen.model.workload import (
    NORMAL_KEPT_MIN,
    Choice,
    Hotspot,
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
from loadgen.workload.generator import CHUNK_VALUES, Constant, DrawContext, Generator, Value, plain, shard_of
from loadgen.workload.keys import HotspotKeys, LatestKeys, SequenceKeys, UniformKeys, ZipfianKeys, zipfian
from loadgen.workload.random_bits import SMALL_SIZE_MAX, FloatArray, RandomBits

TEXT_CHUNK_CHARACTERS = 1 << 15  # so that long texts do not fill the memory; at least one text
_NORMAL_ROUND_MAX = 1 << 15
_WHOLE_MAX = float(1 << 62)
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001  naive, as all moments here
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
    """Numbers of an interval, all alike."""

    def __init__(self, parameter: UniformFloat, source: DrawContext) -> None:
        super().__init__()
        low, high = parameter.low, parameter.high
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise ValueError(f"there are no numbers from {low} up to {high}")
        self._source = source
        self._low, self._high, self._last = low, high, math.nextafter(high, low)

    def make(self, chunk: int) -> Values[Value]:
        units = self._source.bits(chunk).units(CHUNK_VALUES)
        # Two products, because high - low may be more than a float can hold; rounding must not leave the interval.
        values = self._low * (1.0 - units) + self._high * units
        return plain(np.clip(values, self._low, self._last))


class NormalNumbers(Generator):
    """Normally distributed numbers by the polar method; those outside the bounds are drawn again.

    Whole numbers are rounded first, so the bounds hold for what is given out.
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
    """Random letters of an alphabet; lengths from `length` to `length_max`, all alike."""

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
    """Naive UTC moments, to the microsecond, all alike."""

    def __init__(self, parameter: Timestamp, source: DrawContext) -> None:
        super().__init__()
        if parameter.low.tzinfo is not None or parameter.high.tzinfo is not None:
            raise ValueError("the moments of a timestamp must be naive; they are taken as UTC")
        self._source = source
        self._low_us, high_us = _microseconds(parameter.low), _microseconds(parameter.high)
        self._span_us = high_us - self._low_us
        if self._span_us < 1:
            raise ValueError(f"there are no moments from {parameter.low} up to {parameter.high}")

    def make(self, chunk: int) -> Values[Value]:
        offsets_us = self._source.bits(chunk).below(self._span_us, CHUNK_VALUES)
        return plain((offsets_us + self._low_us).view("datetime64[us]"))


class PoolValues(Generator):
    """Values of a pool. Sequential: each lane takes its own until all are used up, then those beside them.

    The lanes' number and the pool's size may have a factor in common. Without moving on, a lane would see the same few
    values for ever, and while few lanes are open, the run would work on a small part of the pool.
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
    """The text in pieces of these lengths."""
    pieces, start = [], 0
    for length in lengths:
        pieces.append(text[start : start + length])
        start += length
    return pieces


def _standard_normals(bits: RandomBits, pairs: int) -> FloatArray:
    """About 1.57 normals per pair of units: Marsaglia's polar method, which needs a logarithm and a root only."""
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
    """The generator of a parameter; ValueError when it can draw nothing."""
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
            return Constant(None)  # a blank: the session fills it in, see loadgen.workload.users
        case Previous():
            raise ValueError("`previous` repeats another parameter and has no values")
