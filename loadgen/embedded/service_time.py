"""Service times: a distribution that a user writes as SPEC, samples of it, and a timer that ends them on time.

SPEC                   what is added to each statement
20ms                   always 20 ms
lognormal(20ms,0.3)    median 20 ms, the logarithm has a standard deviation of 0.3
exponential(20ms)      20 ms on average
uniform(10ms,30ms)     anything from 10 to 30 ms, evenly
nothing, "", 0ms       nothing

The event loop's own timers count whole milliseconds and fire up to 1.2 ms early or late. `Alarm` uses the kernel's
timer instead: never early, about 0.1 ms late. Where the kernel has none (macOS), the loop's timers serve, never early.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import heapq
import math
import os
import random
import re
import struct
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from loadgen.units import parse_duration_s

SERVICE_S_MAX = 3600.0
SIGMA_MAX = 3.0  # above it one sample in a thousand exceeds 10,000 times the median
EXAMPLES = "20ms, lognormal(20ms,0.3), exponential(20ms) or uniform(10ms,30ms)"

_CALL = re.compile(r"(?P<kind>[a-z]+)\s*\((?P<arguments>[^()]*)\)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ServiceTimeSpec:
    """A parsed SPEC. For a lognormal `low_s` is the median, for an exponential the mean."""

    kind: str
    low_s: float
    high_s: float = 0.0
    sigma: float = 0.0


def parse_service_time(text: str | None) -> ServiceTimeSpec | None:
    """None: nothing is added. Raises ValueError with a message for the user."""
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


class ServiceTimeSampler:
    """Draws from a SPEC; the same seed gives the same times in the same order."""

    __slots__ = ("sample_s", "spec")

    def __init__(self, spec: ServiceTimeSpec, seed: int) -> None:
        self.spec = spec
        self.sample_s: Callable[[], float] = _sampler(spec, random.Random(seed))


_ARGUMENTS = {
    "lognormal": ("median", "sigma"),
    "exponential": ("mean",),
    "uniform": ("shortest", "longest"),
}


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
    except ValueError:
        raise ValueError(f"service time {spec!r}: {text!r} is not a duration; write {EXAMPLES}") from None
    if not 0 <= duration_s <= SERVICE_S_MAX:
        raise ValueError(f"service time {spec!r}: {text!r} is not between 0 and {SERVICE_S_MAX:g} s")
    return duration_s


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
