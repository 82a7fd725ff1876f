"""Line mode of `loadgen run`: a line per event and every ten seconds, for cron, CI and pipes. Pure but for the echo."""

from __future__ import annotations

import click

from loadgen.cli.run_job import Now
from loadgen.clock import Clock
from loadgen.log import plain
from loadgen.metrics.result import merge
from loadgen.model.run import Phase
from loadgen.units import NS_PER_MS, NS_PER_S
from orchestrator.tick import Tick

LINE_S = 10.0


class RunLines:
    """Called by the main thread, often; says something now and then."""

    def __init__(self, clock: Clock, *, quiet: bool) -> None:
        self._clock, self._quiet = clock, quiet
        self._last_key: object = None
        self._last_ns = 0

    def show(self, now: Now) -> None:
        key = self._key(now)
        now_ns = self._clock.monotonic_ns()
        if key != self._last_key or now_ns - self._last_ns >= LINE_S * NS_PER_S:
            self._last_key, self._last_ns = key, now_ns
            self.say(line_of(now))

    def say(self, text: str) -> None:
        if not self._quiet:
            click.echo(plain(text), err=True)

    def _key(self, now: Now) -> object:
        if now.tick is not None:
            return (now.tick.run.status, now.tick.run.phase, tuple(worker.health for worker in now.tick.crew))
        return (now.doing, now.progress and (now.progress.step, now.progress.table))


def line_of(now: Now) -> str:
    """Where a run is, in one line."""
    if now.tick is not None:
        return _tick_line(now.tick)
    progress = now.progress
    if progress is not None and progress.table:
        return f"{now.doing}: {progress.table} {progress.rows_there:,} of {progress.rows:,} rows"
    return f"{now.doing}{f' of run {now.run_id}' if now.run_id else ''}"


def _tick_line(tick: Tick) -> str:
    ready = sum(worker.is_ready for worker in tick.crew)
    opened = sum(worker.row.beat.open_connections for worker in tick.crew if worker.row is not None)
    parts = [
        f"{tick.run.run_id} {tick.run.status} {tick.run.phase}",
        f"{ready}/{len(tick.crew)} workers",
        f"{opened} connections",
    ]
    if tick.elapsed_s is not None and tick.ends_s is not None:
        parts.append(f"{max(0.0, tick.ends_s - tick.elapsed_s):.0f} s left")
    lives = [worker.live for worker in tick.crew if worker.live is not None]
    if tick.run.phase is not Phase.PREPARING and lives:
        merged = merge([[window for window in live.windows if window.phase is tick.run.phase] for live in lives])
        p95 = merged.tally.whole.response_at(950)
        parts.append(f"{merged.qps:,.1f}/s")
        parts += [] if p95 is None else [f"p95 {p95.value_ns / NS_PER_MS:.1f} ms"]
        parts.append(f"{merged.counts.failed} failed")
    if tick.ending is not None:
        parts.append(tick.ending.reason)
    return ", ".join(parts)
