"""Logarithm, exponential and power with the same bits on every machine.

Mathematical libraries agree on these to the last digit but one, and numpy takes another routine on each kind of
processor. These are sums and products in a fixed order, and those are exact to the rules of IEEE 754 everywhere. Errors
stay within a few units of the last place.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

_LN2_HIGH = float.fromhex("0x1.62E42FEFA3800p-1")  # the first bits, so that a whole number times it is exact
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
    """e**x for x from -745 to 709; beyond, as at those ends."""
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
