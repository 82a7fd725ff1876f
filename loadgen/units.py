"""Parses and formats durations, counts and rates, and counts with nouns.

    duration   500ms  30s  1.5s  5m  1h  2d      units ns us (µs) ms s m h d
    count      250  10k  1.5m  2b                k thousand, m million, b billion; underscores may group digits
    rate       500/s  30/m  10k/h                a count per second, minute or hour

All values are exact: a parse function returns the value that its format function received. Invalid text raises
ValueError with one sentence that explains the notation.
"""

import re
from decimal import Decimal
from fractions import Fraction

NS_PER_US = 1_000
NS_PER_MS = 1_000_000
MS_PER_S = 1_000
NS_PER_S = 1_000_000_000
HOUR_S = 3_600.0
DAY_S = 86_400.0

_NS_PER_UNIT = {
    "ns": 1,
    "us": NS_PER_US,
    "ms": NS_PER_MS,
    "s": NS_PER_S,
    "m": 60 * NS_PER_S,
    "h": 3_600 * NS_PER_S,
    "d": 86_400 * NS_PER_S,
}
_COUNT_PER_SUFFIX = {"": 1, "k": 1_000, "m": 1_000_000, "b": 1_000_000_000}
_SECONDS_PER_UNIT = {"s": 1, "m": 60, "h": 3_600}
_RATE_MIN, _RATE_MAX = 1e-9, 1e15

# The number of digits is limited: hostile text must not cause computations with millions of digits.
_NUMBER = r"(?P<number>[0-9]{1,30}(?:_[0-9]{1,30}){0,9}(?:\.[0-9]{1,30})?)"
_DURATION = re.compile(rf"{_NUMBER}\s*(?P<unit>[a-zA-Zµμ]{{0,12}})")
_COUNT = re.compile(rf"{_NUMBER}\s*(?P<suffix>[kKmMbB]?)")
_RATE = re.compile(rf"{_NUMBER}\s*(?P<suffix>[kKmMbB]?)\s*/\s*(?P<unit>[smh])")

_DURATION_HELP = "write one number and one unit (ns us ms s m h d), such as 500ms, 30s or 1.5h"
_COUNT_HELP = "write a whole number, such as 250, 10k (thousand), 1m (million) or 2b (billion)"
_RATE_HELP = "write a number per second, minute or hour, such as 500/s, 30/m or 10k/h"


def parse_duration_ns(text: str) -> int:
    """'1.5s' → 1_500_000_000."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise _bad(text, "a duration", _DURATION_HELP)
    number, unit = _fraction(match), match["unit"].replace("µ", "u").replace("μ", "u")
    if not unit and number == 0:
        return 0
    if not unit:
        raise _bad(text, "a duration", f"the unit is missing; {_DURATION_HELP}")
    if unit not in _NS_PER_UNIT:
        raise _bad(text, "a duration", f"{unit!r} is not a unit; {_DURATION_HELP}")
    duration_ns = number * _NS_PER_UNIT[unit]
    if duration_ns.denominator != 1:
        raise _bad(text, "a duration", "it is finer than a nanosecond")
    return int(duration_ns)


def format_duration_ns(duration_ns: int) -> str:
    """1_500_000_000 → '1.5s'. Exact: minutes, hours and days only for whole numbers of them."""
    if duration_ns < 0:
        raise ValueError(f"a duration cannot be negative, got {duration_ns} ns")
    if duration_ns == 0:
        return "0s"
    for unit in ("d", "h", "m"):
        if duration_ns % _NS_PER_UNIT[unit] == 0:
            return f"{duration_ns // _NS_PER_UNIT[unit]}{unit}"
    for unit in ("s", "ms", "us"):
        size_ns = _NS_PER_UNIT[unit]
        if duration_ns >= size_ns and duration_ns * 1000 % size_ns == 0:
            whole, thousandths = divmod(duration_ns * 1000 // size_ns, 1000)
            return f"{_digits(f'{whole}.{thousandths:03d}')}{unit}"
    return f"{duration_ns}ns"


def parse_duration_s(text: str) -> float:
    """'1.5s' → 1.5."""
    return parse_duration_ns(text) / NS_PER_S


def format_duration_s(duration_s: float) -> str:
    """1.5 → '1.5s', rounded to the nanosecond."""
    return format_duration_ns(round(duration_s * NS_PER_S))


def parse_count(text: str) -> int:
    """'10k' → 10_000."""
    match = _COUNT.fullmatch(text.strip())
    if match is None:
        raise _bad(text, "a count", _COUNT_HELP)
    count = _fraction(match) * _COUNT_PER_SUFFIX[match["suffix"].lower()]
    if count.denominator != 1:
        raise _bad(text, "a count", f"it is not whole; {_COUNT_HELP}")
    return int(count)


def counted(number: int, noun: str) -> str:
    """1 → '1 worker', 2_000 → '2,000 workers'."""
    return f"{number:,} {noun if number == 1 else f'{noun}s'}"


def parse_rate_per_second(text: str) -> float:
    """'30/m' → 0.5."""
    match = _RATE.fullmatch(text.strip())
    if match is None:
        raise _bad(text, "a rate", _RATE_HELP)
    per_unit = _fraction(match) * _COUNT_PER_SUFFIX[match["suffix"].lower()]
    return float(per_unit / _SECONDS_PER_UNIT[match["unit"]])


def format_rate_per_second(rate_per_second: float) -> str:
    """500.0 → '500/s'; 1/3 → '20/m', because that is exact."""
    if rate_per_second != 0 and not _RATE_MIN <= rate_per_second < _RATE_MAX:  # NaN fails it too
        raise ValueError(f"a rate must be 0 or lie between {_RATE_MIN:g} and {_RATE_MAX:g} per second")
    for unit, seconds in _SECONDS_PER_UNIT.items():
        text = f"{_digits(f'{rate_per_second * seconds:.3f}')}/{unit}"
        if parse_rate_per_second(text) == rate_per_second:
            return text
    return f"{_digits(f'{Decimal(repr(rate_per_second)):f}')}/s"


def _fraction(match: re.Match[str]) -> Fraction:
    return Fraction(match["number"].replace("_", ""))


def _digits(text: str) -> str:
    """The number without trailing zeros: '1.500' → '1.5'."""
    return text.rstrip("0").rstrip(".") if "." in text else text


def _bad(text: str, what: str, how: str) -> ValueError:
    shown = text if len(text) <= 40 else f"{text[:39]}…"
    return ValueError(f"{shown!r} is not {what}: {how}")
