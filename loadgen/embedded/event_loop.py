"""The event loop: long work in threads beside it, and waits that end at an exact time.

The loop's own timers count whole milliseconds and fire up to 1.2 ms early or late. `WakeupTimer` uses the kernel's
timer: never early, about 0.1 ms late. Where the kernel has none (macOS) it uses the loop's timers, never early.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import heapq
import math
import os
import struct
import threading
from collections.abc import Callable
from typing import Protocol, TypeVar, cast

T = TypeVar("T")


async def in_thread(work: Callable[[], T], name: str) -> T:
    """Run `work` in a daemon thread, for which a stopping server does not wait, and return its result."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(value: T | None, error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(cast(T, value))

    def target() -> None:
        value, error = None, None
        try:
            value = work()
        except Exception as raised:  # raised again in the waiting task
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop is closed: a signal stopped the server
            loop.call_soon_threadsafe(settle, value, error)

    threading.Thread(target=target, name=name, daemon=True).start()
    return await done


async def ends_within(task: asyncio.Task[bytes], seconds: float) -> bool:
    """Wait for the task, which continues after a timeout. Cheaper than asyncio.wait; every statement calls it."""
    if task.done():
        return True
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[bool] = loop.create_future()

    def set_outcome(ended: bool) -> None:
        if not outcome.done():
            outcome.set_result(ended)

    task.add_done_callback(lambda _: set_outcome(True))
    timer = loop.call_later(seconds, set_outcome, False)
    try:
        return await outcome
    finally:
        timer.cancel()


class Sleeper(Protocol):
    """The timer of the warehouse model."""

    def sleep_until(self, deadline_s: float) -> asyncio.Future[None]:
        """A future that is done at `deadline_s` of the server's monotonic clock, never before."""


class WakeupTimer:
    """Wakes sleepers of one event loop with one kernel timer, which is armed for the earliest deadline.

    It is created inside the running loop, used by the loop's thread only, and closed before the loop ends.
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
        """Cancel the remaining sleepers. Safe to call twice."""
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
        """Drop cancelled sleepers. Those with a late deadline would otherwise accumulate."""
        self._sleepers = [entry for entry in self._sleepers if not entry[2].done()]
        heapq.heapify(self._sleepers)
        self._sweep_at = max(1024, 2 * len(self._sleepers))


class _KernelTimer:
    """Linux timerfd through the C library. The os module supports it since Python 3.13."""

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
