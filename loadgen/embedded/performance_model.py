"""The performance model of warehouses, read from a JSON file. It does not describe Snowflake's performance.

    {"speed": {"X-Small": 1, "Small": 1.9, "Medium": 3.5}, "generation": {"1": 1, "2": 1.4},
     "resume": "2s", "cold": {"factor": 3, "decay": "10s"}, "scale_out": "5s"}

speed, generation   the service time of a statement is divided by both; the default is 1
resume              time from a resume to the first statement; statements queue during this time
cold                after a resume, and after a change of size or generation, service times are multiplied by `factor`;
                    the excess decays exponentially with the time constant `decay`
scale_out           another cluster starts when statements have queued for this time, up to MAX_CLUSTER_COUNT; without
                    this key, MIN_CLUSTER_COUNT clusters run
credits             {"X-Small": 1, "Small": 2}: per hour and cluster; the default is 1 for X-Small, doubled per size
generation_credits  {"2": 1.35}: factor of the credits
"""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Any

from loadgen.embedded.event_loop import Sleeper
from loadgen.service_time import ServiceTimeSpec
from loadgen.units import parse_duration_s
from loadgen.values import dataclass

SIZES = (
    "X-Small", "Small", "Medium", "Large", "X-Large", "2X-Large", "3X-Large", "4X-Large", "5X-Large", "6X-Large",
)  # fmt: skip
FILE_BYTES_MAX = 100_000
FACTOR_MIN, FACTOR_MAX = 0.001, 1_000.0
TIME_MAX_S = 3_600.0
_KEYS = ("speed", "generation", "resume", "cold", "scale_out", "credits", "generation_credits")


@dataclass(frozen=True, slots=True, kw_only=True)
class PerformanceModel:
    """Parameters of the model. With the defaults all warehouses are equally fast, without resume or warm-up times."""

    speed: Mapping[str, float] = field(default_factory=dict)  # by size
    generation: Mapping[str, float] = field(default_factory=dict)
    resume_s: float = 0.0
    cold_factor: float = 1.0
    cold_decay_s: float = 1.0
    scale_out_s: float | None = None
    credits: Mapping[str, float] = field(default_factory=dict)  # by size, per hour and cluster
    generation_credits: Mapping[str, float] = field(default_factory=lambda: {"2": 1.35})

    def credits_per_hour(self, size: str, generation: str) -> float:
        """Credits of one cluster."""
        rate = self.credits.get(size, float(2 ** SIZES.index(size)))
        return rate * self.generation_credits.get(generation, 1.0)

    def time_factor(self, size: str, generation: str, warm_s: float) -> float:
        """The factor of service times, `warm_s` seconds after a resume or a change of size or generation."""
        cold = 1.0 + (self.cold_factor - 1.0) * math.exp(-max(0.0, warm_s) / self.cold_decay_s)
        return cold / (self.speed.get(size, 1.0) * self.generation.get(generation, 1.0))


def read_performance_model(path: Path) -> PerformanceModel:
    """Read the file. Raises OSError, and ValueError with a message for the user."""
    with path.open("rb") as file:
        content = file.read(FILE_BYTES_MAX + 1)
    if len(content) > FILE_BYTES_MAX:
        raise ValueError(f"is larger than {FILE_BYTES_MAX:,} bytes")
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is not JSON: {error}") from None
    return parse_performance_model(found)


def parse_performance_model(found: Any) -> PerformanceModel:
    """Check the parsed JSON. Raises ValueError with a message for the user."""
    if not isinstance(found, dict):
        raise ValueError("is not a JSON object")
    if unknown := sorted(found.keys() - set(_KEYS)):
        raise ValueError(f"has the key {unknown[0]!r}; known are {', '.join(_KEYS)}")
    cold = found.get("cold", {})
    if not isinstance(cold, dict) or cold.keys() - {"factor", "decay"}:
        raise ValueError('cold is not like {"factor": 3, "decay": "10s"}')
    return PerformanceModel(
        speed=_factors("speed", found.get("speed", {}), SIZES),
        generation=_factors("generation", found.get("generation", {}), ("1", "2")),
        resume_s=_time_s("resume", found.get("resume", "0s")),
        cold_factor=_factor("cold.factor", cold.get("factor", 1)),
        cold_decay_s=max(_time_s("cold.decay", cold.get("decay", "1s")), 0.001),
        scale_out_s=None if found.get("scale_out") is None else _time_s("scale_out", found["scale_out"]),
        credits=_factors("credits", found.get("credits", {}), SIZES),
        generation_credits=_factors("generation_credits", found.get("generation_credits", {"2": 1.35}), ("1", "2")),
    )


def _factors(key: str, given: Any, names: tuple[str, ...]) -> dict[str, float]:
    if not isinstance(given, dict):
        raise ValueError(f"{key} is not a JSON object")
    if unknown := sorted(given.keys() - set(names)):
        raise ValueError(f"{key} has the key {unknown[0]!r}; known are {', '.join(names)}")
    return {name: _factor(f"{key}.{name}", value) for name, value in given.items()}


def _factor(key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not FACTOR_MIN <= value <= FACTOR_MAX:
        raise ValueError(f"{key} is not a number from {FACTOR_MIN:g} to {FACTOR_MAX:g}")
    return float(value)


def _time_s(key: str, value: Any) -> float:
    try:
        time_s = parse_duration_s(value) if isinstance(value, str) else math.nan
    except ValueError:
        time_s = math.nan
    if not 0.0 <= time_s <= TIME_MAX_S:
        raise ValueError(f'{key} is not a time up to an hour, such as "2s" or "500ms"')
    return time_s


# --- service times: samples of a distribution -------------------------------------------------------------------------


class ServiceTimeSampler:
    """Draws service times from a distribution; the same seed gives the same sequence."""

    __slots__ = ("sample_s", "spec")

    def __init__(self, spec: ServiceTimeSpec, seed: int) -> None:
        self.sample_s: Callable[[], float] = _sampler(spec, random.Random(seed))


def _sampler(spec: ServiceTimeSpec, rng: random.Random) -> Callable[[], float]:
    if spec.kind == "constant":
        return lambda: spec.low_s
    if spec.kind == "exponential":
        return partial(rng.expovariate, 1.0 / spec.low_s)
    if spec.kind == "uniform":
        return partial(rng.uniform, spec.low_s, spec.high_s)
    gauss, exp, mu = rng.gauss, math.exp, math.log(spec.low_s)
    return lambda: exp(gauss(mu, spec.sigma))


class ControlLatency:
    """Delays the answers to statements on tables of the control plane, like a network; no warehouse slot is held."""

    def __init__(self, spec: ServiceTimeSpec, schemas: Sequence[str], seed: int, sleeper: Sleeper) -> None:
        """`schemas` are names such as LOADGEN.CONTROL; * matches any database."""
        self._schemas = [tuple(schema.split(".")) for schema in schemas]
        self._sample_s = ServiceTimeSampler(spec, seed).sample_s
        self._sleeper = sleeper

    async def delay(self, touched: Collection[tuple[str, str]]) -> None:
        """Sleep if one of the schemas (database, schema) that the statement touched is configured."""
        if any(schema in ((database, name), ("*", name)) for database, name in touched for schema in self._schemas):
            await self._sleeper.sleep_until(time.monotonic() + self._sample_s())
