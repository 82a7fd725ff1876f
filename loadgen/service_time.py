"""Service times of the embedded server, as users write them in scenarios, options and files.

SPEC                   what is added to each statement
20ms                   always 20 ms
lognormal(20ms,0.3)    median 20 ms, the logarithm has a standard deviation of 0.3
exponential(20ms)      20 ms on average
uniform(10ms,30ms)     from 10 to 30 ms with equal probability
nothing, "", 0ms       nothing
"""

from __future__ import annotations

import math
import re

from loadgen.units import parse_duration_s
from loadgen.values import dataclass

SERVICE_S_MAX = 3600.0
SIGMA_MAX = 3.0  # above it one sample in a thousand exceeds 10,000 times the median
EXAMPLES = "20ms, lognormal(20ms,0.3), exponential(20ms) or uniform(10ms,30ms)"

_ARGUMENTS = {
    "lognormal": ("median", "sigma"),
    "exponential": ("mean",),
    "uniform": ("shortest", "longest"),
}
_CALL = re.compile(r"(?P<kind>[a-z]+)\s*\((?P<arguments>[^()]*)\)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ServiceTimeSpec:
    """A parsed SPEC. For a lognormal `low_s` is the median, for an exponential the mean."""

    kind: str
    low_s: float
    high_s: float = 0.0
    sigma: float = 0.0


def parse_service_time(text: str | None) -> ServiceTimeSpec | None:
    """The parsed service time; None: nothing is added. Raises ValueError with a message for the user."""
    spec = (text or "").strip()
    if not spec:
        return None
    call = _CALL.fullmatch(spec)
    if call is None:
        duration_s = _duration_s(spec, spec)
        return ServiceTimeSpec("constant", duration_s) if duration_s > 0 else None
    kind = call["kind"].lower()
    arguments = [part.strip() for part in call["arguments"].split(",")]
    if kind not in _ARGUMENTS:
        raise ValueError(f"service time {spec!r}: there is no distribution {kind!r}; write {EXAMPLES}")
    if len(arguments) != len(_ARGUMENTS[kind]) or "" in arguments:
        raise ValueError(f"service time {spec!r}: {kind} takes ({', '.join(_ARGUMENTS[kind])}); write {EXAMPLES}")
    return _distribution(kind, arguments, spec)


def _distribution(kind: str, arguments: list[str], spec: str) -> ServiceTimeSpec:
    low_s = _duration_s(arguments[0], spec)
    if kind == "uniform":
        high_s = _duration_s(arguments[1], spec)
        if low_s > high_s:
            raise ValueError(f"service time {spec!r}: the shortest time comes first, and {low_s:g} s > {high_s:g} s")
        return ServiceTimeSpec(kind, low_s, high_s=high_s)
    if low_s <= 0:
        raise ValueError(f"service time {spec!r}: the {_ARGUMENTS[kind][0]} must be above 0")
    if kind == "exponential":
        return ServiceTimeSpec(kind, low_s)
    try:
        sigma = float(arguments[1])
    except ValueError:
        sigma = math.nan
    if not 0 <= sigma <= SIGMA_MAX:
        raise ValueError(f"service time {spec!r}: sigma must be a number from 0 to {SIGMA_MAX:g}, got {arguments[1]!r}")
    return ServiceTimeSpec(kind, low_s, sigma=sigma)


def _duration_s(text: str, spec: str) -> float:
    try:
        duration_s = parse_duration_s(text)
    except (ValueError, OverflowError):
        raise ValueError(f"service time {spec!r}: {text!r} is not a duration; write {EXAMPLES}") from None
    if not 0 <= duration_s <= SERVICE_S_MAX:
        raise ValueError(f"service time {spec!r}: {text!r} is not between 0 and {SERVICE_S_MAX:g} s")
    return duration_s
