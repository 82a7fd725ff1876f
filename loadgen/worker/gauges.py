"""How loaded the worker itself is: a measurement by a client that is short of time is not one of the server."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from loadgen.clock import Clock
from loadgen.metrics.histogram import EMPTY, Histogram
from loadgen.metrics.percentile import quantile
from loadgen.units import NS_PER_MS, NS_PER_S

SHORTEST_S = 0.2  # the kernel counts CPU time in steps: over less, a share of a core may be anything
PROBE_S = 0.01
PAUSE_S = 0.04  # between two probes: each wake-up takes the interpreter from a client, and a hundred a second are felt
_CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauge:
    """The last second of this process."""

    cpu_percent: float  # of one core
    memory_percent: float  # of what it may have
    wakeup_p99_ms: float | None  # how much later than asked a thread woke up
    seconds: float = 0.0  # that it covers
    late_ns: tuple[int, ...] = ()  # every wake-up of it, in order of lateness


class ClientLoad:
    """How loaded this process was over all of the measurement. One thread."""

    def __init__(self) -> None:
        self._cpu_s = self._seconds = 0.0
        self._late = EMPTY

    def add(self, gauge: Gauge) -> None:
        self._cpu_s += gauge.cpu_percent / 100.0 * gauge.seconds
        self._seconds += gauge.seconds
        self._late += Histogram.of(np.array(gauge.late_ns, np.int64))

    def document(self) -> dict[str, float | None]:
        """For the worker's result: the share of a core, and the lateness of wake-ups."""
        late = quantile(990, self._late)
        return {
            "cpu_percent_of_core": 100.0 * self._cpu_s / self._seconds if self._seconds else None,
            "wakeup_p99_ms": None if late is None else late.value_ns / NS_PER_MS,
        }


class Gauges:
    """read(): one thread, every second. The probe has a thread of its own."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._process = psutil.Process()
        self._memory_bytes = _memory_limit()
        self._cpu_s = self._used_cpu_s()
        self._read_ns = clock.monotonic_ns()
        self._percent = 0.0
        self._overshoots_ns: deque[int] = deque()

    def probe(self, stopping: threading.Event) -> None:
        """Ask to be woken in 10 ms, again and again, and note how late it was. The thread's whole work."""
        while True:
            if self._clock.wait(stopping, PAUSE_S):
                return
            asked_ns = self._clock.monotonic_ns()
            if self._clock.wait(stopping, PROBE_S):
                return
            late_ns = self._clock.monotonic_ns() - asked_ns - round(PROBE_S * NS_PER_S)
            self._overshoots_ns.append(max(0, late_ns))

    def read(self) -> Gauge:
        """What was used since the last reading; one that follows at once says the same, and covers nothing."""
        now_ns, cpu_s = self._clock.monotonic_ns(), self._used_cpu_s()
        elapsed_s = (now_ns - self._read_ns) / NS_PER_S
        if elapsed_s >= SHORTEST_S:
            self._percent = max(0.0, 100.0 * (cpu_s - self._cpu_s) / elapsed_s)
            self._read_ns, self._cpu_s = now_ns, cpu_s
        else:
            elapsed_s = 0.0
        late = sorted(self._overshoots_ns.popleft() for _ in range(len(self._overshoots_ns)))
        return Gauge(
            cpu_percent=self._percent,
            memory_percent=100.0 * self._process.memory_info().rss / self._memory_bytes,
            wakeup_p99_ms=late[min(len(late) - 1, len(late) * 99 // 100)] / NS_PER_MS if late else None,
            seconds=elapsed_s,
            late_ns=tuple(late),
        )

    def _used_cpu_s(self) -> float:
        times = self._process.cpu_times()
        return float(times.user + times.system)


def _memory_limit() -> int:
    """The memory of the machine, or of the container when it may have less."""
    total = int(psutil.virtual_memory().total)
    for path in _CGROUP_LIMITS:
        try:
            text = path.read_text("ascii").strip()
        except OSError:
            continue
        if text.isdigit():
            return min(total, int(text))
    return total
