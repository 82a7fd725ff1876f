"""The embedded server's service time, as far as a scenario must know it: whether a text is one.

`loadgen.embedded.service_time` reads the same texts; a test holds the two together.
"""

from __future__ import annotations

import re

from loadgen.units import parse_duration_s

SERVICE_S_MAX = 3600.0
SIGMA_MAX = 3.0

_CALL = re.compile(r"(?P<kind>[a-z]+)\s*\((?P<arguments>[^()]*)\)", re.IGNORECASE)


def check_service_time(text: str) -> bool:
    """Is it `20ms`, `lognormal(20ms,0.3)`, `exponential(20ms)` or `uniform(10ms,30ms)`?"""
    text = text.strip()
    call = _CALL.fullmatch(text)
    if call is None:
        return _duration_s(text) is not None
    kind = call["kind"].lower()
    arguments = [argument.strip() for argument in call["arguments"].split(",")]
    first_s = _duration_s(arguments[0])
    if first_s is None or len(arguments) != {"lognormal": 2, "exponential": 1, "uniform": 2}.get(kind):
        return False
    if kind == "uniform":
        second_s = _duration_s(arguments[1])
        return second_s is not None and first_s <= second_s
    return first_s > 0 and (kind == "exponential" or _is_sigma(arguments[1]))


def _duration_s(text: str) -> float | None:
    try:
        duration_s = parse_duration_s(text)
    except (ValueError, OverflowError):
        return None
    return duration_s if duration_s <= SERVICE_S_MAX else None


def _is_sigma(text: str) -> bool:
    try:
        return 0 <= float(text) <= SIGMA_MAX
    except ValueError:
        return False
