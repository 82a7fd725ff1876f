"""Once a second: collects the samples of the clients, queues final windows for storing, makes the live metrics."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from loadgen.clock import Clock
from loadgen.control.tables.test_results import ResultRow
from loadgen.metrics.interval import Interval, ThresholdSecond, threshold_subjects
from loadgen.metrics.live_metrics import FULL_SECONDS_WORKERS_MAX, LiveMetrics, LiveSecond, write_live
from loadgen.metrics.recorder import ReplayMeter, WindowState
from loadgen.metrics.window import WindowResult, WindowRow
from loadgen.model.counts import UserSessionCounts
from loadgen.model.run import Phase
from loadgen.units import NS_PER_S
from loadgen.worker.arguments import WorkerArguments
from loadgen.worker.control_loop import TargetWatchdog
from loadgen.worker.flush import ResultFlusher, contents, result_row, snapshot_row, spool_rows
from loadgen.worker.self_monitor import ClientResourceMeter, ResourceReading
from loadgen.worker.startup import WorkerComponents
from loadgen.worker.worker_state import WorkerSharedState, exit_reason_for

TIMED_MAX = 20  # statements whose times are stored for each second; counts are stored for all statements
AWAKE_MAX_S = 2.0  # between two collections; a longer time means that this process was paused

# Each heartbeat repeats some seconds, so that a viewer who misses heartbeats does not miss seconds.
SECONDS_PER_HEARTBEAT = 10  # minimum
HEARTBEATS_PER_SECOND_SENT = 1.5  # mean number of heartbeats that carry a second


class MetricsCollector:
    """Collects the metrics of a worker. It belongs to the main thread, together with its SampleCollector."""

    def __init__(
        self,
        parts: WorkerComponents,
        flush: ResultFlusher,
        shared: WorkerSharedState,
        arguments: WorkerArguments,
        test_id: str,
        clock: Clock,
    ) -> None:
        self._parts, self._flush, self._shared = parts, flush, shared
        self._arguments, self._test_id, self._clock = arguments, test_id, clock
        self._started_ns = clock.monotonic_ns()
        self._final: list[WindowResult] = []  # windows that were queued for the flush thread
        self._handed: set[int] = set()  # numbers of the windows that were queued
        self._log_failed = False
        self._client = ClientResourceMeter()
        statements, duration_s = parts.scenario.workload.statements, parts.scenario.load.duration_s
        self._replayed = ReplayMeter((one.name for one in statements), duration_s or 0.0)
        self._timed = frozenset(parts.scenario.workload.heaviest(TIMED_MAX))
        self._subjects = threshold_subjects(parts.scenario.thresholds)
        self._is_brief = arguments.worker_group_count > FULL_SECONDS_WORKERS_MAX and not self._subjects
        self._disconnected = TargetWatchdog()
        heartbeats_s = HEARTBEATS_PER_SECOND_SENT * parts.scenario.timing.heartbeat_s
        self._seconds: deque[LiveSecond] = deque(maxlen=max(SECONDS_PER_HEARTBEAT, math.ceil(heartbeats_s)))
        self._closed = False  # the windows were closed at the last collection
        self._cooled = False  # the last snapshot was of the cool-down

    def step(self, resources: ResourceReading) -> None:
        parts, now_ns = self._parts, self._clock.monotonic_ns()
        self._forget()
        self._client.add(resources, parts.windows.held())
        self._client.add_lags(parts.context.client_lags)
        interval = parts.harvester.harvest(now_ns, parts.pool.flights, resources.paused)
        self._replayed.add(parts.context.replayed)  # after the samples: a client appends rows before it records
        self._keep_log()
        phase = self._phase(interval)
        if phase is not None and not (phase is Phase.COOLDOWN and self._cooled and resources.is_short):
            self._cooled = phase is Phase.COOLDOWN
            ended_at, executing = self._clock.utc_now().replace(tzinfo=None), parts.pool.executing
            judged = self._judged(interval, now_ns)
            second = LiveSecond.of(interval, phase, ended_at=ended_at, executing=executing, judged=judged)
            self._seconds.append(second.brief if self._is_brief else second)
            self._flush.put_snapshot(
                snapshot_row(
                    interval,
                    resources,
                    self._arguments,
                    test_id=self._test_id,
                    timestamp=ended_at,
                    elapsed_s=(now_ns - self._started_ns) / NS_PER_S,
                    executing=executing,
                    target=parts.ramp_controller.target,
                    timed=self._timed,
                    phase=phase,
                    sessions=self._sessions(),
                    logins=parts.harvester.logins,
                    judged=judged,
                )
            )
        self.queue_windows()
        self._end_if_disconnected(interval.seconds)
        ending = self._shared.ending
        signal = None if ending is None else ending.signal
        self._shared.live_metrics = write_live(replace(self._live(), signal=signal))

    def _live(self) -> LiveMetrics:
        """The windows that are not stored yet, with the client's use of resources. If this process dies, the result is
        made from them."""
        live = self._parts.harvester.live(self._clock.monotonic_ns())
        return replace(live, windows=tuple(map(self._with_client, live.windows)), seconds=tuple(self._seconds))

    def _forget(self) -> None:
        """Forget stored windows. The newest one is kept: the last heartbeat must contain the whole window."""
        stored, newest = self._shared.stored_windows, self._parts.windows.newest
        for _ in range(len(stored)):
            window_id = stored.popleft()
            if newest is not None and window_id == newest.window_id:
                stored.append(window_id)
                continue
            self._parts.harvester.forget(window_id)
            self._client.forget(window_id)

    def _judged(self, interval: Interval, now_ns: int) -> ThresholdSecond | None:
        """The second for sliding thresholds: the measured part of the interval, and the statements that ended after the
        measurement."""
        zero_ns, newest = self._parts.ramp_controller.zero_ns, self._parts.windows.newest
        if not self._subjects or zero_ns is None or newest is None or newest.phase is not Phase.MEASUREMENT:
            return None
        now_s = (now_ns - zero_ns) / NS_PER_S
        from_s = max(0.0, now_s - interval.seconds)
        closed_ns = next(one.closed_ns for one in self._parts.windows.held() if one.window_id == newest.window_id)
        if closed_ns is None and now_s <= from_s:
            return None
        if closed_ns is None:
            return ThresholdSecond.of(interval.tally, self._subjects, from_s=from_s, until_s=now_s)
        harvester, until_s = self._parts.harvester, (min(now_ns, closed_ns) - zero_ns) / NS_PER_S
        drain = ThresholdSecond.of_drain(harvester.drained(zero_ns, closed_ns), self._subjects, until_s=now_s)
        if until_s <= from_s:
            return drain if drain.drained else None
        second = ThresholdSecond.of(harvester.in_time(closed_ns), self._subjects, from_s=from_s, until_s=until_s)
        return replace(second, drained=drain.drained)

    def _end_if_disconnected(self, seconds: float) -> None:
        """End the worker if no client has values left to send, or if none has been connected for too long."""
        pool, disconnected = self._parts.pool, self._disconnected
        if pool.given_up is not None:
            self._shared.end(exit_reason_for(pool.given_up))
        disconnected.count(wanted=pool.wanted, connected=pool.open, awake_s=min(seconds, AWAKE_MAX_S))
        ending = disconnected.ending(self._shared, self._parts.scenario.timing, self._parts.harvester.logins)
        if ending is not None:
            self._shared.end(ending)

    def _phase(self, interval: Interval) -> Phase | None:
        """The phase of an interval. An interval after the windows have closed is cool-down, unless statements of a
        window ended in it: the seconds of a window must add up to the window."""
        before, self._closed = self._closed, self._parts.ramp_controller.phase is Phase.COOLDOWN
        return Phase.COOLDOWN if before and self._closed and not interval.tally.whole.ended.ended else interval.phase

    def _keep_log(self) -> None:
        """Write the query log. A full disk ends the query log, never the measurement; missing rows are counted."""
        parts = self._parts
        if parts.query_log is None:
            return
        try:
            parts.query_log.keep(parts.windows.held())
        except OSError as error:
            self._end_log(error)

    def close_log(self) -> None:
        """Close the query log after the measurement."""
        if self._parts.query_log is None:
            return
        try:
            self._parts.query_log.close()
        except OSError as error:
            self._end_log(error)

    def _end_log(self, error: OSError) -> None:
        if not self._log_failed:
            self._log_failed = True
            self._shared.say("WARNING", f"the query log ends here, it cannot be written: {error.strerror}")

    def queue_windows(self, *, everything: bool = False) -> None:
        """Queue final windows for the flush thread, each once; with `everything` also windows that will not become
        final."""
        for result in self._parts.harvester.results(self._clock.monotonic_ns()):
            if result.window_id in self._handed or not (everything or result.state is WindowState.FINAL):
                continue
            self._handed.add(result.window_id)
            result = self._with_replayed(self._with_client(result))
            self._final.append(result)
            final = result.state is WindowState.FINAL
            row = WindowRow.of(result, worker_id=self._arguments.worker_id, epoch=self._parts.command_queue.epoch)
            self._flush.put_window(row, forget=final)

    def _with_client(self, result: WindowResult) -> WindowResult:
        zero_ns, stalls = self._parts.ramp_controller.zero_ns, None
        if zero_ns is not None and result.phase is Phase.MEASUREMENT:
            stalls = self._parts.harvester.stalls(result.window_id, zero_ns)
        client, connections = self._client.effect(result.window_id), result.connections
        if client is not None and connections is not None:
            connections = connections.while_running(*self._client.stopped_ms(result.window_id))
        return replace(result, client=client, connections=connections, stalls=stalls)

    def _with_replayed(self, result: WindowResult) -> WindowResult:
        """Adds the replayed statements to a window that is stored. Heartbeats have no room for them."""
        is_replay = self._parts.context.recorded is not None
        return replace(result, replayed=self._replayed.tally(result.window_id)) if is_replay else result

    def _sessions(self) -> UserSessionCounts | None:
        return None if self._parts.users is None else self._parts.users.counts

    def stop_storing_windows(self) -> None:
        """Another process has this worker id, and stores its results."""
        self._flush.stop_storing_windows()

    def spool(self, folder: Path, result: ResultRow) -> None:
        """Write unsent rows to a file, from which `loadgen upload` stores them later."""
        spool_rows(folder, self._arguments.run_id, replace(self._flush.unsent(), result=result))

    def report_unstored(self, folder: Path) -> None:
        """Put the number of spooled rows into the last heartbeat."""
        self._shared.live_metrics = write_live(replace(self._live(), unstored=contents(folder)))

    def result(self, status: str, created_at: datetime, template_id: str) -> ResultRow:
        """The worker's row in TEST_RESULTS, after all windows were queued."""
        return result_row(
            self._final,
            self._parts.harvester.measured,
            self._arguments,
            sessions=self._sessions(),
            logins=self._parts.harvester.logins,
            dropped=self._dropped(),
            test_id=self._test_id,
            template_id=template_id,
            status=status,
            created_at=created_at,
        )

    def _dropped(self) -> dict[str, int]:
        """Number of rows that were neither stored nor spooled, by kind. The result of the run reports them."""
        query_log = self._parts.query_log
        counts = {
            "query_log_rows": 0 if query_log is None else query_log.dropped,
            "query_log_unwritten": 0 if query_log is None else query_log.unwritten,
            "snapshots": self._flush.dropped_snapshots,
            "log_lines": self._shared.lost_lines,
        }
        return {kind: count for kind, count in counts.items() if count}
