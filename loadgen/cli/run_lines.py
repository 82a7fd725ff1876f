"""Line mode of a run: a line per event and every ten seconds, for cron, CI and pipes."""

from __future__ import annotations

from loadgen.cli.common import echo
from loadgen.clock import Clock
from loadgen.tui.screen_state import LogEntry, ScreenState
from loadgen.tui.snapshot import WorkerDisplayState
from loadgen.tui.words import clock as as_clock
from loadgen.tui.words import one_line, percent, rate, time_of
from loadgen.units import NS_PER_S, counted

LINE_S = 9.8  # a little less than ten, as it is looked at ten times a second: never more than ten without a line
LINE_MAX = 1_000  # characters


class RunLines:
    """Called by the main thread, often; says something now and then. When nobody reads any more it falls silent: a
    measurement does not end because its display does."""

    def __init__(self, clock: Clock, *, quiet: bool) -> None:
        self._clock, self._silent = clock, quiet
        self._last_key: object = None
        self._last_ns = 0
        self._told: LogEntry | None = None  # the last line of the log that was said

    def show(self, view: ScreenState) -> None:
        now_ns = self._clock.monotonic_ns()
        for line in self._new(view.log):
            if line.text != _state(view):
                self.say(f"{view.run_id or view.scenario}: {line.text}")
        key = (view.status, view.phase, view.run_id, *(() if view.status else (view.doing, _table(view))))
        if key != self._last_key or now_ns - self._last_ns >= LINE_S * NS_PER_S:
            self._last_key, self._last_ns = key, now_ns
            self.say(status_line(view, now_ns / NS_PER_S))

    def say(self, text: str) -> None:
        if self._silent:
            return
        line = f"{self._clock.utc_now():%Y-%m-%dT%H:%M:%SZ} {one_line(text, LINE_MAX)}"
        try:
            echo(line, err=True)
        except OSError:
            self._silent = True

    def _new(self, log: tuple[LogEntry, ...]) -> tuple[LogEntry, ...]:
        """What was added to the log since the last time."""
        told = next((place for place, line in enumerate(log) if line is self._told), -1)
        if log:
            self._told = log[-1]
        return log[told + 1 :]


def status_line(view: ScreenState, now_s: float) -> str:
    """Where a run is, in one line."""
    if not view.status:
        table = _table(view)
        where = f": {table} {view.filling.rows_there:,} of {counted(view.filling.rows, 'row')}" if view.filling else ""
        return f"{view.doing}{where}{f' of run {view.run_id}' if view.run_id else ''}"
    offered = view.offered
    parts = [f"{view.run_id} {_state(view)}{_time(view, now_s)}"]
    if view.workers:
        working = sum(
            worker.state in (WorkerDisplayState.RUNNING, WorkerDisplayState.WAITING) for worker in view.workers
        )
        parts.append(f"{working} of {counted(len(view.workers), 'worker')}")
    parts.append(f"{offered.open} of {counted(offered.target, 'connection')}")
    parts += _numbers(view)
    old_s = view.old_s(now_s)
    if old_s is not None:
        parts.append(f"no news for {old_s:.0f} s")
    if view.doing:
        parts.append(view.doing)
    return ", ".join(parts)


def _numbers(view: ScreenState) -> list[str]:
    if view.recent is None or view.window is None:
        return []
    recent, window = view.recent, view.window
    numbers = [f"p50 {time_of(recent.p50)} p95 {time_of(recent.p95)} p99 {time_of(recent.p99)} ms"]
    if recent.qps is not None:  # None once nothing is sent any more
        offered = view.offered.rate_per_s  # 0 once the schedule is over: nothing is offered any more
        numbers.insert(0, f"{rate(recent.qps)}/s" + (f" of {rate(offered)}/s" if offered else ""))
    failed, tried = (view.failed, view.tried) if view.tried else (window.failed, window.failed + window.succeeded)
    numbers.append(f"{failed} of {tried} failed{f' ({percent(failed / tried)})' if failed else ''}")
    if view.ladder is not None and view.ladder.target is not None:
        numbers.append(f"step {view.ladder.step}: {counted(view.ladder.target, 'connection')}")
    cpu_percent = view.client_cpu_percent
    return numbers if cpu_percent is None else [*numbers, f"client CPU {cpu_percent:.0f} %"]


def _time(view: ScreenState, now_s: float) -> str:
    if view.since_s is None:
        return ""
    passed_s = max(0.0, now_s - view.since_s)
    if view.until_s is None:
        return f" {as_clock(passed_s)}"
    whole_s = view.until_s - view.since_s
    return f" {as_clock(min(passed_s, whole_s))} of {as_clock(whole_s)}"


def _state(view: ScreenState) -> str:
    return f"{view.status} {view.phase or ''}".rstrip()


def _table(view: ScreenState) -> str:
    return "" if view.filling is None else view.filling.table
