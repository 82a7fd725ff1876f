"""Random bits that depend only on a seed and a key.

Only the raw 64-bit words of numpy's PCG64, seeded by SeedSequence, are used: numpy guarantees that they stay the same
in all versions (NEP 19), but not its distributions.
"""

from __future__ import annotations

import numpy as np
from numpy.random import PCG64, SeedSequence
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
WordArray = NDArray[np.uint64]

# First part of every key, so that uses do not share bits.
VALUES = 1
ARRIVALS = 2

SMALL_SIZE_MAX = 1 << 12
_WORDS = 1 << 64
_QUARTERS = 1 << 16
_UNIT = 2.0**-53
_POPCOUNT_WORDS = 1 << 16  # at a time


class RandomBits:
    """An endless stream of random bits. Equal seeds and keys give equal bits; other bits are independent."""

    def __init__(self, seed: int, *key: int) -> None:
        if seed < 0 or not all(0 <= part < 1 << 32 for part in key):
            raise ValueError(f"seed {seed} and key {key} must not be negative, parts of a key are below 2**32")
        self._generator = PCG64(SeedSequence(entropy=seed, spawn_key=key))

    def words(self, count: int) -> WordArray:
        """Whole numbers below 2**64."""
        return self._generator.random_raw(count)

    def units(self, count: int) -> FloatArray:
        """Numbers from 0 up to, not including, 1: multiples of 2**-53 with equal probability."""
        return (self.words(count) >> np.uint64(11)).astype(np.float64) * _UNIT

    def below(self, size: int, count: int) -> IntArray:
        """Whole numbers from 0 up to, not including, `size`, with exactly equal probability."""
        words = self.words(count)
        unfair = _WORDS % size  # words above the largest multiple of `size` would favour small results
        if unfair:
            limit = np.uint64(_WORDS - unfair)
            while (again := words >= limit).any():
                words[again] = self.words(int(again.sum()))
        return (words % np.uint64(size)).astype(np.int64)

    def small_below(self, size: int, count: int) -> NDArray[np.uint32]:
        """Like `below`, with a quarter of the bits and without a division, for sizes up to SMALL_SIZE_MAX."""
        products = self._quarters(count) * np.uint32(size)  # the result in the upper 16 bits
        unfair = np.uint32(_QUARTERS % size)
        while (again := (products & np.uint32(_QUARTERS - 1)) < unfair).any():
            products[again] = self._quarters(int(again.sum())) * np.uint32(size)
        return products >> np.uint32(16)

    def coin_heads(self, count: int) -> int:
        """The number of heads of `count` fair coins: exactly Binomial(count, 1/2)."""
        heads = 0
        while count > 0:
            flips = min(count, 64 * _POPCOUNT_WORDS)
            words = self.words(-(-flips // 64))
            if flips % 64:
                words[-1] >>= np.uint64(64 - flips % 64)
            heads += int(np.bitwise_count(words).sum(dtype=np.int64))
            count -= flips
        return heads

    def _quarters(self, count: int) -> NDArray[np.uint32]:
        """Whole numbers below 2**16, four of each word."""
        words = self.words(-(-count // 4)).astype("<u8")  # the same order on every machine
        return words.view("<u2")[:count].astype(np.uint32)


_LN2_HIGH = float.fromhex("0x1.62E42FEFA3800p-1")  # the first bits, so that its product with an exponent is exact
_LN2_LOW = float.fromhex("0x1.EF35793C76730p-45")
_INVERSE_LN2 = float.fromhex("0x1.71547652B82FEp0")
_SQRT_HALF = float.fromhex("0x1.6A09E667F3BCDp-1")
_LOG_TERMS = 12
_EXP_TERMS = 15
_LOG_COEFFICIENTS = [1.0 / (2 * term + 1) for term in range(_LOG_TERMS)]
_EXP_MIN, _EXP_MAX = -745.0, 709.0


def log(x: FloatArray) -> FloatArray:
    """Natural logarithm of positive numbers: log x = e ln 2 + 2 artanh((m - 1) / (m + 1)), x = m 2**e, m near 1."""
    mantissa, exponent = np.frexp(x)
    small = mantissa < _SQRT_HALF
    mantissa = np.where(small, mantissa * 2.0, mantissa)
    whole = (exponent - small).astype(np.float64)
    s = (mantissa - 1.0) / (mantissa + 1.0)
    series = _horner(s * s, _LOG_COEFFICIENTS)
    return whole * _LN2_HIGH + (whole * _LN2_LOW + 2.0 * s * series)


def exp(x: FloatArray) -> FloatArray:
    """e**x for x from -745 to 709; other x count as the nearest of these."""
    clipped = np.clip(x, _EXP_MIN, _EXP_MAX)
    whole = np.rint(clipped * _INVERSE_LN2)
    rest = (clipped - whole * _LN2_HIGH) - whole * _LN2_LOW
    return np.ldexp(_horner(rest, _EXP_COEFFICIENTS), whole.astype(np.int32))


def power(x: FloatArray, exponent: float) -> FloatArray:
    """x**exponent for positive x."""
    return exp(log(x) * exponent)


def _inverse_factorials(count: int) -> list[float]:
    values = [1.0]
    for factor in range(1, count):
        values.append(values[-1] / factor)
    return values


def _horner(x: FloatArray, coefficients: list[float]) -> FloatArray:
    total = np.full_like(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total *= x
        total += coefficient
    return total


_EXP_COEFFICIENTS = _inverse_factorials(_EXP_TERMS)
