"""How warehouses of the embedded server perform: a model with these parameters, and not Snowflake's performance.

    {"speed": {"X-Small": 1, "Small": 1.9, "Medium": 3.5}, "generation": {"1": 1, "2": 1.4},
     "resume": "2s", "cold": {"factor": 3, "decay": "10s"}, "scale_out": "5s"}

speed, generation   the service time of a statement is divided by both; what is not named has speed 1
resume              a suspended warehouse serves its first statement after this time; statements queue meanwhile
cold                after a resume, and after a change of size or generation, service times are `factor` times as long;
                    the excess falls to a third with every `decay`
scale_out           a further cluster starts when statements have queued for this time, up to MAX_CLUSTER_COUNT; without
                    it, MIN_CLUSTER_COUNT clusters run
credits             {"X-Small": 1, "Small": 2}: per hour and cluster; what is not named costs twice the size before it
generation_credits  {"2": 1.35}: times this
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import heapq
import json
import math
import os
import random
import struct
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

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
    """The default makes all warehouses equally fast, at once."""

    speed: Mapping[str, float] = field(default_factory=dict)  # by size
    generation: Mapping[str, float] = field(default_factory=dict)
    resume_s: float = 0.0
    cold_factor: float = 1.0
    cold_decay_s: float = 1.0
    scale_out_s: float | None = None
    credits: Mapping[str, float] = field(default_factory=dict)  # by size, per hour and cluster
    generation_credits: Mapping[str, float] = field(default_factory=lambda: {"2": 1.35})

    def credits_per_hour(self, size: str, generation: str) -> float:
        """Of one cluster."""
        rate = self.credits.get(size, float(2 ** SIZES.index(size)))
        return rate * self.generation_credits.get(generation, 1.0)

    def time_factor(self, size: str, generation: str, warm_s: float) -> float:
        """How many times as long statements take, this long after a resume or a change."""
        cold = 1.0 + (self.cold_factor - 1.0) * math.exp(-max(0.0, warm_s) / self.cold_decay_s)
        return cold / (self.speed.get(size, 1.0) * self.generation.get(generation, 1.0))


def read_performance_model(path: Path) -> PerformanceModel:
    """Raises ValueError with a message for the user; OSError."""
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
    """Raises ValueError with a message for the user."""
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


# Service times: samples of a distribution, and a timer that ends them on time.
#
# The event loop's own timers count whole milliseconds and fire up to 1.2 ms early or late. `Alarm` uses the kernel's
# timer instead: never early, about 0.1 ms late. Where the kernel has none (macOS), the loop's timers serve, never
# early.


class ServiceTimeSampler:
    """Draws from a SPEC; the same seed gives the same times in the same order."""

    __slots__ = ("sample_s", "spec")

    def __init__(self, spec: ServiceTimeSpec, seed: int) -> None:
        self.spec = spec
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
    """Answers statements on tables of the control plane later: the time of a network, not of a warehouse slot."""

    def __init__(self, spec: ServiceTimeSpec, schemas: Sequence[str], seed: int, sleeper: Sleeper) -> None:
        """`schemas` are texts such as LOADGEN.CONTROL; * stands for any database."""
        self._schemas = [tuple(schema.split(".")) for schema in schemas]
        self._sample_s = ServiceTimeSampler(spec, seed).sample_s
        self._sleeper = sleeper

    async def delay(self, touched: Collection[tuple[str, str]]) -> None:
        """Sleep if the statement touched a table of these schemas (database, schema)."""
        if any(schema in ((database, name), ("*", name)) for database, name in touched for schema in self._schemas):
            await self._sleeper.sleep_until(time.monotonic() + self._sample_s())


class Sleeper(Protocol):
    """The timer of the warehouse model."""

    def sleep_until(self, deadline_s: float) -> asyncio.Future[None]:
        """Return at `deadline_s` of the server's monotonic clock, never before."""


class WakeupTimer:
    """Wakes any number of sleepers of one event loop. One kernel timer, armed for the earliest of them.

    Only the loop's own thread calls it. Make it inside the running loop; close() it before the loop ends.
    """

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        self._monotonic_s = monotonic_s
        self._loop = asyncio.get_running_loop()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []  # a heap
        self._number = 0  # keeps sleepers with equal deadlines in order
        self._sweep_at = 1024
        self._armed_for_s = math.inf
        self._handle: asyncio.TimerHandle | None = None
        self._timer = _KernelTimer.open()
        if self._timer is not None:
            self._loop.add_reader(self._timer.fd, self._ring)

    def sleep_until(self, deadline_s: float) -> asyncio.Future[None]:
        sleeper = self._loop.create_future()
        if len(self._sleepers) >= self._sweep_at:
            self._sweep()
        self._number += 1
        heapq.heappush(self._sleepers, (deadline_s, self._number, sleeper))
        if deadline_s < self._armed_for_s:
            self._arm(deadline_s)
        return sleeper

    def close(self) -> None:
        """Safe to call twice. Sleepers that are left are cancelled."""
        if self._timer is not None:
            self._loop.remove_reader(self._timer.fd)
            self._timer.close()
            self._timer = None
        if self._handle is not None:
            self._handle.cancel()
        for _, _, sleeper in self._sleepers:
            sleeper.cancel()
        self._sleepers.clear()

    def _arm(self, deadline_s: float) -> None:
        self._armed_for_s = deadline_s
        delay_s = deadline_s - self._monotonic_s()
        if self._timer is not None:
            self._timer.set(delay_s)
            return
        if self._handle is not None:
            self._handle.cancel()
        self._handle = self._loop.call_later(max(delay_s, 0.001), self._ring)

    def _ring(self) -> None:
        if self._timer is not None:
            self._timer.acknowledge()
        now_s = self._monotonic_s()
        sleepers = self._sleepers
        while sleepers and sleepers[0][0] <= now_s:
            sleeper = heapq.heappop(sleepers)[2]
            if not sleeper.done():  # done: the sleeper was cancelled
                sleeper.set_result(None)
        self._armed_for_s = math.inf
        if sleepers:
            self._arm(sleepers[0][0])

    def _sweep(self) -> None:
        """Drop cancelled sleepers with a late deadline, or they would accumulate."""
        self._sleepers = [entry for entry in self._sleepers if not entry[2].done()]
        heapq.heapify(self._sleepers)
        self._sweep_at = max(1024, 2 * len(self._sleepers))


class _KernelTimer:
    """Linux timerfd through the C library: the os module has it from Python 3.13 on."""

    _CLOCK_MONOTONIC = 1

    def __init__(self, library: ctypes.CDLL, fd: int) -> None:
        self.fd = fd
        self._settime = library.timerfd_settime
        self._spec = ctypes.create_string_buffer(struct.calcsize("@4l"))
        self._pack = struct.Struct("@4l").pack_into  # interval s, ns (never repeat), delay s, ns

    @classmethod
    def open(cls) -> _KernelTimer | None:
        library = ctypes.CDLL(None)
        create = getattr(library, "timerfd_create", None)
        fd = -1 if create is None else create(cls._CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        return None if fd < 0 else cls(library, fd)

    def set(self, delay_s: float) -> None:
        delay_ns = max(1, round(delay_s * 1e9))  # 0 would disarm it
        self._pack(self._spec, 0, 0, 0, delay_ns // 1_000_000_000, delay_ns % 1_000_000_000)
        self._settime(self.fd, 0, self._spec, None)

    def acknowledge(self) -> None:
        with contextlib.suppress(BlockingIOError):  # it was armed again after it had fired
            os.read(self.fd, 8)

    def close(self) -> None:
        os.close(self.fd)
