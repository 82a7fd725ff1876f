"""Paired measurements: two sides stay connected to one server and take turns; one is paused (SIGSTOP) while the other
runs.

The server counts statements; the kernel counts, in nanoseconds, the processor time of each thread. A span begins when
a side has run for a moment, so that statements that fell due while it was paused are done. It is as long as the period
of the periodic work of a worker or a leader, which is therefore in it once: a shorter span would not include it.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import comb
from pathlib import Path
from statistics import median

from tests.embedded_server import EmbeddedServer
from tests.perf._figures import Figure

SETTLE_S = 0.25
SPAN_S = 1.0
SURE = 0.95
DRIVER_THREADS = "tokio-rt-worker"  # the name that the driver's runtime gives its threads
KINDS = ("clients", "others", "driver")


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """The processes of one side, and how many client threads they have in all."""

    pids: tuple[int, ...]
    clients: int

    def pause(self) -> None:
        for pid in self.pids:
            os.kill(pid, signal.SIGSTOP)

    def resume(self) -> None:
        for pid in self.pids:
            os.kill(pid, signal.SIGCONT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One turn of one side. CPU is that of a statement, by kind of thread."""

    per_s: float
    cpu_us: Mapping[str, float]

    @property
    def whole_cpu_us(self) -> float:
        return sum(self.cpu_us.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedMeasurement:
    """All turns, in pairs."""

    ours: Sequence[Span]
    bare: Sequence[Span]

    @property
    def ratios(self) -> list[float]:
        """Of throughput."""
        return [ours.per_s / bare.per_s for ours, bare in zip(self.ours, self.bare, strict=True)]

    @property
    def cpu_ratio(self) -> float:
        return median(ours.whole_cpu_us / bare.whole_cpu_us for ours, bare in zip(self.ours, self.bare, strict=True))

    def figure(self, name: str, at_least: float | None) -> Figure:
        ratio, (low, high) = median(self.ratios), bounds(self.ratios)
        rate = median(span.per_s for span in self.ours)
        split = f"CPU × {self.cpu_ratio:.2f}: {_split(self.ours)}; bare {_split(self.bare)}"
        return Figure(
            name=name,
            value=ratio,
            unit="× bare loop",
            aim="" if at_least is None else f"≥ {at_least}",
            met=at_least is None or ratio >= at_least,
            note=f"{low:.2f}–{high:.2f} of {len(self.ratios)} pairs, {rate:.0f}/s, {split}",
        )


def measure_pairs(ours: Side, bare: Side, server: EmbeddedServer, pairs: int) -> PairedMeasurement:
    """Let both take turns. Afterwards ours runs, and the bare side is paused."""
    spans: dict[Side, list[Span]] = {ours: [], bare: []}
    ours.pause()
    bare.pause()
    try:
        for number in range(pairs):
            for side in (ours, bare) if number % 2 else (bare, ours):  # neither is always the first
                spans[side].append(_turn(side, server))
    finally:
        ours.resume()
    return PairedMeasurement(ours=spans[ours], bare=spans[bare])


def bounds(ratios: Sequence[float]) -> tuple[float, float]:
    """Where the true median is with 95 % certainty, by rank; of few ratios, their range, which is less sure."""
    count = len(ratios)
    outside, rank = 0.0, 0  # how likely fewer than `rank` of them are below the true median
    while outside + comb(count, rank) / 2**count <= (1 - SURE) / 2:
        outside += comb(count, rank) / 2**count
        rank += 1
    in_order = sorted(ratios)
    return in_order[max(rank - 1, 0)], in_order[-max(rank, 1)]


def _split(spans: Sequence[Span]) -> str:
    return " + ".join(f"{kind} {median(span.cpu_us[kind] for span in spans):.0f} µs" for kind in KINDS)


def _turn(side: Side, server: EmbeddedServer) -> Span:
    wait = threading.Event()
    side.resume()
    try:
        wait.wait(SETTLE_S)
        before, cpu_before = server.ask("/__loadgen/stats"), _threads(side.pids)
        wait.wait(SPAN_S)
        after, cpu_after = server.ask("/__loadgen/stats"), _threads(side.pids)
    finally:
        side.pause()
    statements = after["statements"] - before["statements"]
    used_ns = {thread: ns - cpu_before.get(thread, 0) for thread, ns in cpu_after.items()}
    return Span(
        per_s=1000 * statements / (after["now_ms"] - before["now_ms"]),
        cpu_us={kind: ns / 1000 / statements for kind, ns in by_kind(used_ns, side.clients).items()},
    )


Thread = tuple[int, int, str]  # process, thread, the thread's name


def _threads(pids: Sequence[int]) -> dict[Thread, int]:
    """Nanoseconds that each thread has run. One that ends while we look is left out."""
    found: dict[Thread, int] = {}
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").iterdir():
            try:
                name, ran_ns = (task / "comm").read_text().strip(), int((task / "schedstat").read_text().split()[0])
            except (FileNotFoundError, ProcessLookupError):
                continue
            found[pid, int(task.name), name] = ran_ns
    return found


def by_kind(used_ns: Mapping[Thread, int], clients: int) -> dict[str, int]:
    """Python's threads all have the name of their process, so the busiest of them are taken for the clients."""
    driver = sum(ns for (_, _, name), ns in used_ns.items() if name == DRIVER_THREADS)
    ours = sorted((ns for (_, _, name), ns in used_ns.items() if name != DRIVER_THREADS), reverse=True)
    return {"clients": sum(ours[:clients]), "others": sum(ours[clients:]), "driver": driver}
