"""What the process of one worker did to a window itself: the CPU it used, and how late its threads woke up. They add.

Lateness is weighted by time: each millisecond of the window counts with the lateness of the wake-up that ended it. So a
process that was paused for ten seconds was late for ten seconds, and not once among a thousand wake-ups.
"""

from __future__ import annotations

from dataclasses import dataclass

from loadgen.metrics.histogram import EMPTY, Histogram, buckets_of
from loadgen.metrics.percentile import quantile
from loadgen.units import NS_PER_MS

PAUSE_NS = 100 * NS_PER_MS  # later than this is no noise of a scheduler: nothing of the process ran
GAP_NS = 500 * NS_PER_MS  # later than this is no busy machine any more: the process was stopped
MINUTE_MS = 60_000
_P99 = 990


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientResourceUse:
    """One window of one worker, or several together."""

    elapsed_ms: int = 0  # of the window, as far as it was watched
    cpu_ms: int = 0  # of this process
    machine_cpu_ms: int = 0  # of all processes of the machine, this one included
    cores: int = 0  # of the machine
    gap_ms: int = 0  # in which the process was paused
    late: Histogram = EMPTY  # of each millisecond
    sent_late: Histogram = EMPTY  # mode replay, of each statement: sent - max(due, when its connection became free)
    minute_cpu_ms: int = 0  # the most CPU of a minute; 0: it did not last for one, or that is not known

    def __add__(self, other: ClientResourceUse) -> ClientResourceUse:
        return ClientResourceUse(
            elapsed_ms=self.elapsed_ms + other.elapsed_ms,
            cpu_ms=self.cpu_ms + other.cpu_ms,
            machine_cpu_ms=self.machine_cpu_ms + other.machine_cpu_ms,
            cores=max(self.cores, other.cores),
            gap_ms=self.gap_ms + other.gap_ms,
            late=self.late + other.late,
            sent_late=self.sent_late + other.sent_late,
            minute_cpu_ms=max(self.minute_cpu_ms, other.minute_cpu_ms),
        )

    @property
    def cpu_percent_of_core(self) -> float | None:
        return 100.0 * self.cpu_ms / self.elapsed_ms if self.elapsed_ms else None

    @property
    def worst_cpu_percent(self) -> float | None:
        """Of the busiest minute, which must not hide in the average; of the whole where that was shorter."""
        mean = self.cpu_percent_of_core
        return None if mean is None else max(mean, 100.0 * self.minute_cpu_ms / MINUTE_MS)

    @property
    def others_cores(self) -> float | None:
        """How many cores all other processes of the machine used, on average."""
        return max(0, self.machine_cpu_ms - self.cpu_ms) / self.elapsed_ms if self.elapsed_ms else None

    @property
    def late_mean_ms(self) -> float | None:
        mean_ns = self.late.mean_ns
        return None if mean_ns is None else mean_ns / NS_PER_MS

    @property
    def late_p99_ms(self) -> float | None:
        found = quantile(_P99, self.late)
        return None if found is None else found.value_ns / NS_PER_MS

    @property
    def late_max_ms(self) -> float | None:
        return self.late.max_ns / NS_PER_MS if self.late.count else None

    @property
    def sent_late_mean_ms(self) -> float | None:
        mean_ns = self.sent_late.mean_ns
        return None if mean_ns is None else mean_ns / NS_PER_MS

    @property
    def gap_percent(self) -> float | None:
        """In pauses of 500 ms and more."""
        return 100.0 * self.gap_ms / self.late.count if self.late.count else None

    @property
    def paused_percent(self) -> float | None:
        """In pauses of 100 ms and more, however many they are."""
        if not self.late.count:
            return None
        return 100.0 * int(self.late.counts[int(buckets_of(PAUSE_NS)) :].sum()) / self.late.count
