"""A length of time in an option."""

from __future__ import annotations

from loadgen.errors import UsageError
from loadgen.log import plain
from loadgen.units import parse_duration_s


def duration_s(text: str, option: str) -> float:
    """'90d' → seconds; UsageError names the option."""
    try:
        return parse_duration_s(text)
    except ValueError:
        raise UsageError(f"{option} is {plain(text, 40)!r}", remedy=f"Write {option} 90d, 12h, 30m or 45s.") from None
