"""A length of time in an option."""

from __future__ import annotations

import math

from loadgen.errors import UsageError
from loadgen.log import printable
from loadgen.units import parse_duration_s

DURATION_MAX_S = 36_500 * 86_400.0  # a hundred years: calendars end somewhere


def duration_s(text: str, option: str) -> float:
    """'90d' → seconds; UsageError names the option."""
    try:
        seconds = parse_duration_s(text)
    except ValueError:
        seconds = math.nan
    if not seconds <= DURATION_MAX_S:
        raise UsageError(f"{option} is {printable(text, 40)!r}", remedy=f"Write {option} 90d, 12h, 30m or 45s.")
    return seconds
