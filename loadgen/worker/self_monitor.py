"""The CPU, memory and wake-up delay of the worker: a client without enough CPU time measures itself, not the server."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil

from loadgen.clock import Clock
from loadgen.metrics.histogram import EMPTY, Histogram
from loadgen.metrics.recorder import Window
from loadgen.metrics.window import GAP_NS, MINUTE_MS, PAUSE_NS, ClientResourceUse
from loadgen.model.run import Phase
from loadgen.units import NS_PER_MS, NS_PER_S
from loadgen.values import dataclass

SHORTEST_S = 0.2  # the kernel counts CPU time in steps, so the share of a shorter time is not meaningful
GAPS_KEPT = 100  # newest gaps
PROBE_S = 0.05  # each wake-up interrupts a client: a hundred per second have a measurable effect
_PROBE_NS = round(PROBE_S * NS_PER_S)
_CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
_BUSY = ("user", "nice", "system", "irq", "softirq", "steal")  # CPU times of the machine; not all systems have all


class _MachineCpu(NamedTuple):
    """CPU time of the machine since its start."""

    busy_ns: int
    stolen_ns: int  # the part of it that the host of a virtual machine has withheld

    @classmethod
    def now(cls) -> _MachineCpu:
        times = psutil.cpu_times()
        busy_s = sum(getattr(times, name, 0.0) for name in _BUSY)
        return cls(round(busy_s * NS_PER_S), round(getattr(times, "steal", 0.0) * NS_PER_S))


class WakeupDelay(NamedTuple):
    """A wait of the probe, or the part of it that was not reported before. Times are of the monotonic clock."""

    from_ns: int
    to_ns: int
    late_ns: int  # how much later than requested the whole wait ended


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceReading:
    """The use of resources by this process in the last second."""

    cpu_percent: float  # of one core
    memory_percent: float  # of the machine's or the container's memory
    wakeup_p99_ms: float | None  # p99 of the wake-up delay
    from_ns: int = 0
    to_ns: int = 0
    cpu_ns: int = 0
    machine_cpu_ns: int = 0  # of all processes of the machine, and withheld by its host
    stolen_cpu_ns: int = 0  # withheld by the host of a virtual machine
    cores: int = 0
    waits: tuple[WakeupDelay, ...] = ()

    @property
    def paused(self) -> list[tuple[int, int]]:
        """The times in which no thread of this process ran for at least PAUSE_NS."""
        return [(wait.from_ns, wait.to_ns) for wait in self.waits if wait.late_ns >= PAUSE_NS]

    @property
    def is_short(self) -> bool:
        """Whether it follows another reading at once, so that its shares are not meaningful."""
        return self.to_ns - self.from_ns < SHORTEST_S * NS_PER_S


class SelfMonitor:
    """One thread calls read() every second. Another thread executes probe()."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._process = psutil.Process()
        self._memory_bytes = _memory_limit()
        self._cores = os.cpu_count() or 1
        self._cpu_ns, self._machine = self._used_cpu_ns(), _MachineCpu.now()
        self._read_ns = self._noted_ns = clock.monotonic_ns()
        self._waits: deque[WakeupDelay] = deque()
        self._asked_ns: int | None = None  # when the wait under way began; written by the probe only
        self._percent = 0.0

    def probe(self, stopping: threading.Event) -> None:
        """Repeatedly wait for 50 ms, and record how late each wait ended."""
        while True:
            asked_ns = self.begin()
            if self._clock.wait(stopping, PROBE_S):
                return
            self.end(asked_ns)

    def begin(self) -> int:
        """Record the begin of a wait."""
        asked_ns = self._asked_ns = self._clock.monotonic_ns()
        return asked_ns

    def end(self, asked_ns: int) -> None:
        woken_ns = self._clock.monotonic_ns()
        self._waits.append(WakeupDelay(asked_ns, woken_ns, max(0, woken_ns - asked_ns - _PROBE_NS)))

    def read(self) -> ResourceReading:
        cpu_ns, machine, before = self._used_cpu_ns(), _MachineCpu.now(), self._machine
        from_ns, now_ns = self._read_ns, self._clock.monotonic_ns()
        used_ns = max(0, cpu_ns - self._cpu_ns)
        self._read_ns, self._cpu_ns, self._machine = now_ns, cpu_ns, machine
        if now_ns - from_ns >= SHORTEST_S * NS_PER_S:
            self._percent = 100.0 * used_ns / (now_ns - from_ns)
        waits = self._new_waits(now_ns)
        late_ns = sorted(wait.late_ns for wait in waits)
        return ResourceReading(
            cpu_percent=self._percent,
            memory_percent=100.0 * self._process.memory_info().rss / self._memory_bytes,
            wakeup_p99_ms=late_ns[min(len(late_ns) - 1, len(late_ns) * 99 // 100)] / NS_PER_MS if late_ns else None,
            from_ns=from_ns,
            to_ns=now_ns,
            cpu_ns=used_ns,
            machine_cpu_ns=max(0, machine.busy_ns - before.busy_ns),
            stolen_cpu_ns=max(0, machine.stolen_ns - before.stolen_ns),
            cores=self._cores,
            waits=waits,
        )

    def _new_waits(self, now_ns: int) -> tuple[WakeupDelay, ...]:
        """The waits that have ended since the last call, and a wait that is overdue: after a pause of the process this
        thread may wake up before the probe, and must not miss the pause."""
        asked_ns = self._asked_ns  # read before the queue: a wait that is in the queue then has ended
        waits = [self._waits.popleft() for _ in range(len(self._waits))]
        noted_ns = self._noted_ns
        is_overdue = asked_ns is not None and now_ns > asked_ns + _PROBE_NS
        if asked_ns is not None and is_overdue and not (waits and waits[-1].from_ns >= asked_ns):
            waits.append(WakeupDelay(asked_ns, now_ns, now_ns - asked_ns - _PROBE_NS))
            self._noted_ns = now_ns
        return tuple(wait._replace(from_ns=max(wait.from_ns, noted_ns)) for wait in waits if wait.to_ns > noted_ns)

    def _used_cpu_ns(self) -> int:
        times = self._process.cpu_times()
        return round(float(times.user + times.system) * NS_PER_S)


class ClientResourceMeter:
    """The use of resources in each window. Belongs to one thread."""

    def __init__(self) -> None:
        self._accounts: dict[int, _Account] = {}
        self._minute = _BusiestMinute()
        self._gaps: deque[WakeupDelay] = deque(maxlen=GAPS_KEPT)  # earlier pauses, which may have delayed a window

    def add(self, resources: ResourceReading, windows: Iterable[Window]) -> None:
        """Distribute the last second over the windows that it was part of."""
        for window in windows:
            if window.window_id not in self._accounts:
                self._accounts[window.window_id] = _Account()
                self._accounts[window.window_id].held_up(self._gaps, window)
            self._accounts[window.window_id].add(resources, window)
            if window.phase is Phase.MEASUREMENT:
                self._minute.add(resources, window, self._accounts)
        self._gaps.extend(wait for wait in resources.waits if wait.late_ns >= GAP_NS)

    def add_lags(self, lags: deque[tuple[int, int]]) -> None:
        """Take out the client lags of statements: window and nanoseconds."""
        by_window: dict[int, list[int]] = {}
        for _ in range(len(lags)):
            window_id, late_ns = lags.popleft()
            by_window.setdefault(window_id, []).append(late_ns)
        for window_id, found in by_window.items():
            if window_id in self._accounts:
                self._accounts[window_id].sent_late += Histogram.of(np.array(found, np.int64))

    def effect(self, window_id: int) -> ClientResourceUse | None:
        """The use of resources in a window so far. None: it has no reading yet."""
        account = self._accounts.get(window_id)
        return None if account is None else account.effect()

    def stopped_ms(self, window_id: int) -> tuple[int, int]:
        """How long the process was paused since a window opened, and how much time has passed since then."""
        account = self._accounts.get(window_id) or _Account()
        held_up_ns = account.held_up_ns
        return (account.gap_ns - held_up_ns) // NS_PER_MS, (account.elapsed_ns - held_up_ns) // NS_PER_MS

    def forget(self, window_id: int) -> None:
        self._accounts.pop(window_id, None)


@dataclass(slots=True)
class _Account:
    """The sums of one window."""

    elapsed_ns: int = 0
    cpu_ns: int = 0
    machine_cpu_ns: int = 0
    stolen_cpu_ns: int = 0
    gap_ns: int = 0
    cores: int = 0
    late: Histogram = EMPTY
    sent_late: Histogram = EMPTY
    held_up_ns: int = 0  # the part of the gaps before the window opened
    worst_cpu_ms: int = 0  # the highest CPU of any minute that is partly inside

    def add(self, resources: ResourceReading, window: Window) -> None:
        inside_ns = _overlap_ns(resources.from_ns, resources.to_ns, window)
        share = inside_ns / max(resources.to_ns - resources.from_ns, 1)
        self.elapsed_ns += inside_ns
        self.cpu_ns += round(share * resources.cpu_ns)
        self.machine_cpu_ns += round(share * resources.machine_cpu_ns)
        self.stolen_cpu_ns += round(share * resources.stolen_cpu_ns)
        self.cores = resources.cores
        self._wait(resources.waits, window)

    def held_up(self, gaps: Sequence[WakeupDelay], window: Window) -> None:
        """Add pauses that have delayed the opening of the window."""
        late = [gap for gap in gaps if gap.to_ns > window.begins_ns]
        if late:
            self.elapsed_ns += sum(_overlap_ns(gap.from_ns, gap.to_ns, window) for gap in late)
            self._wait(late, window)

    def _wait(self, waits: Sequence[WakeupDelay], window: Window) -> None:
        inside = [_overlap_ns(wait.from_ns, wait.to_ns, window) for wait in waits]
        self.gap_ns += sum(part for wait, part in zip(waits, inside, strict=True) if wait.late_ns >= GAP_NS)
        ends_ns = [(wait.from_ns, min(wait.to_ns, window.opened_ns)) for wait in waits if wait.late_ns >= GAP_NS]
        self.held_up_ns += sum(_overlap_ns(from_ns, to_ns, window) for from_ns, to_ns in ends_ns)
        late_ns = np.array([wait.late_ns for wait in waits], np.int64)
        self.late += Histogram.weighted(late_ns, np.array([round(part / NS_PER_MS) for part in inside], np.int64))

    def effect(self) -> ClientResourceUse:
        return ClientResourceUse(
            elapsed_ms=self.elapsed_ns // NS_PER_MS,
            cpu_ms=self.cpu_ns // NS_PER_MS,
            machine_cpu_ms=self.machine_cpu_ns // NS_PER_MS,
            stolen_cpu_ms=self.stolen_cpu_ns // NS_PER_MS,
            cores=self.cores,
            gap_ms=self.gap_ns // NS_PER_MS,
            late=self.late,
            sent_late=self.sent_late,
            minute_cpu_ms=self.worst_cpu_ms,
        )


class _MeasuredPart(NamedTuple):
    """The part of a reading inside a window."""

    window_id: int
    to_ns: int
    lasted_ns: int
    cpu_ns: float


class _BusiestMinute:
    """The last minute of measurement, across the borders of stages: a busy minute must not hide in two of them. The
    steps of a search do not follow each other at once, so each step has its own minutes."""

    def __init__(self) -> None:
        self._parts: deque[_MeasuredPart] = deque()

    def add(self, resources: ResourceReading, window: Window, accounts: Mapping[int, _Account]) -> None:
        """Add the part of a reading inside a window, and note the CPU of the minute in all windows that it is part of.
        A window that is stored already keeps its figure; the later one has it."""
        parts, to_ns = self._parts, min(resources.to_ns, window.closed_ns or resources.to_ns)
        from_ns = max(resources.from_ns, window.begins_ns)
        if to_ns <= from_ns:
            return
        if parts and from_ns > parts[-1].to_ns:
            parts.clear()
        lasted_ns = to_ns - max(from_ns, parts[-1].to_ns if parts else from_ns)
        share = lasted_ns / (resources.to_ns - resources.from_ns)
        parts.append(_MeasuredPart(window.window_id, to_ns, lasted_ns, share * resources.cpu_ns))
        total_ns = sum(part.lasted_ns for part in parts)
        while total_ns - parts[0].lasted_ns >= MINUTE_MS * NS_PER_MS:
            total_ns -= parts.popleft().lasted_ns
        if total_ns >= MINUTE_MS * NS_PER_MS:  # it may be slightly longer
            used_ms = round(sum(part.cpu_ns for part in parts)) * MINUTE_MS // total_ns
            for account in (accounts.get(window_id) for window_id in {part.window_id for part in parts}):
                if account is not None:
                    account.worst_cpu_ms = max(account.worst_cpu_ms, used_ms)


def _overlap_ns(from_ns: int, to_ns: int, window: Window) -> int:
    """How much of a span lies inside the window."""
    end_ns = to_ns if window.closed_ns is None else min(to_ns, window.closed_ns)
    return max(0, end_ns - max(from_ns, window.begins_ns))


def _memory_limit() -> int:
    """The memory of the machine, or the lower limit of its container."""
    total = int(psutil.virtual_memory().total)
    for path in _CGROUP_LIMITS:
        try:
            text = path.read_text("ascii").strip()
        except OSError:
            continue
        if text.isdigit():
            return min(total, int(text))
    return total
