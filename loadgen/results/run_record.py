"""Reads a finished run from its tables: the input of every report."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import reduce
from math import inf
from operator import add, attrgetter
from typing import Any, TypeVar

from loadgen.control.session import ControlSession, ParsedRows
from loadgen.control.tables import (
    run_control_events,
    run_measurements,
    run_status,
    test_logs,
    test_results,
    worker_heartbeats,
)
from loadgen.control.tables.run_control_events import PastEvent
from loadgen.control.tables.run_measurements import MetricsSnapshot, WarehousePoll
from loadgen.control.tables.run_status import Run
from loadgen.control.tables.test_logs import LogRow
from loadgen.control.tables.worker_heartbeats import HeartbeatRow
from loadgen.errors import LoadgenError, RunFailed, UsageError
from loadgen.log import printable
from loadgen.metrics.histogram import EMPTY
from loadgen.metrics.interval import read_custom_metrics
from loadgen.metrics.json_fields import InvalidMetrics
from loadgen.metrics.live_metrics import LiveSecond, read_live
from loadgen.metrics.window import MergedWindows, WindowResult, WindowRow, known_windows, merge
from loadgen.model.event import SetPhase, SetRunTarget, Start, Stop
from loadgen.model.run import Phase
from loadgen.model.warehouse import kind_shown, shown_row
from loadgen.report import formatting
from loadgen.report.formatting import failure_words
from loadgen.report.records import (
    EventKind,
    FindMaxStepResult,
    RunEvent,
    RunRecord,
    StatementTimes,
    WarehousePollPoint,
    WorkerHost,
    WorkerSecond,
    WorkerWarning,
    merge_seconds,
    span_for,
)
from loadgen.report.summary import in_order
from loadgen.results.stored_summary import read_summary
from loadgen.rules.plan import plan_run
from loadgen.scenario.frozen import thaw
from loadgen.scenario.model import Scenario, stage_name
from loadgen.snowflake.session import RetryPolicy
from loadgen.units import counted

# Marks of judged steps by outcome; all other outcomes mean that the level did not hold.
_JUDGED = {"STABLE": ("✓", EventKind.HELD), "CLIENT_LIMIT": ("○", EventKind.LIMITED)}
# The reasons in STOP as words; others are shown as they are.
STOP_WORDS = {
    "duration": "the plan is complete",
    "find_max": "the search has ended",
    "threshold": "a threshold with abort was missed",
    "guardrail": "a guardrail was exceeded",
    "worker_failure": "a worker failed",
    "cancelled": "the run was cancelled",
    "taken over": "the run was taken over",
}
DEAD = "DEAD"  # status of a worker that was lost
LOGS_READ = 2_000  # the newest lines, of which warnings are shown
WARNINGS = ("WARNING", "ERROR", "CRITICAL")
MARGIN_S = 86_400.0  # tolerance for wrong clocks of workers
_TIMESTAMP, _CREATED_AT = attrgetter("timestamp"), attrgetter("created_at")

Record = TypeVar("Record")


def read_record(session: ControlSession, retries: RetryPolicy, name: str) -> RunRecord:
    """Read the named run. Raises if it has no result."""
    run = run_status.find_run(session, retries, name)
    summary = _summary(session, retries, run)
    run_id, start, left_out = run.run_id, run.start_time, _LeftOut(run)
    beats = left_out.of(retries.call(lambda: worker_heartbeats.read(session, run_id)))
    stored = left_out.of(retries.call(lambda: run_measurements.read_windows(session, run_id)))
    snapshots = left_out.of(retries.call(lambda: run_measurements.read_snapshots(session, run_id)), _TIMESTAMP)
    connections = summary["client"].get("connections") or {}
    config = retries.call(lambda: run_status.read_config(session, run_id)) or ""
    past_events = left_out.of(retries.call(lambda: run_control_events.history(session, run_id)), _CREATED_AT)
    heard = retries.call(lambda: worker_heartbeats.last_beats(session, run_id))
    polls = left_out.of(retries.call(lambda: run_measurements.read_polls(session, run_id)), _TIMESTAMP)
    steps = left_out.of(retries.call(lambda: run_measurements.read_steps(session, run_id)))
    logs = left_out.of(retries.call(lambda: test_logs.newest(session, run_id, LOGS_READ)))
    merged, missing = measured_windows(summary, stored, beats)
    scenario = _scenario(config)
    names = () if scenario is None else [statement.name for statement in scenario.workload.statements]
    measures_s = None if scenario is None else plan_run(scenario.load).measures_s
    times = StatementTimes(_span_s(snapshots, start))
    seconds = with_last_seconds(worker_seconds(snapshots, left_out.reasons), beats)
    return RunRecord(
        summary=in_order(summary, names),
        template_id=run.template_id,
        started=start,
        ended=run.end_time,
        enrichment_status=run.enrichment_status,
        config=config,
        scenario=scenario,
        seconds=() if start is None else merge_seconds(start, seconds, times, measures_s=measures_s),
        span_s=times.span_s,
        point_times=times.points,
        merged=merged,
        merged_missing=missing,
        events=()
        if start is None
        else events_of(
            past_events, steps, _lost(summary, heard), start, connections, stages=stage_names(summary, scenario)
        ),
        polls=() if start is None else tuple(_poll(poll, start) for poll in polls),
        steps=find_max_steps(steps, summary),
        machines={
            row.identity.worker_id: WorkerHost(
                hostname=row.identity.hostname, version=row.identity.version, labels=row.labels
            )
            for row in beats
        },
        logs=tuple(_log(line) for line in logs if line.level in WARNINGS),
        unreadable=tuple(left_out.reasons),
    )


def update_stored_summary(
    session: ControlSession,
    retries: RetryPolicy,
    run_id: str,
    change: Callable[[Mapping[str, Any]], Mapping[str, Any]],
) -> RunRecord | None:
    """Amend the stored summary of a run, and read the run again for its reports; None: it has no result."""
    stored = read_summary(session, retries, run_id)
    if stored is None:
        return None
    test_results.amend(session, retries, run_id, json.dumps(change(stored)))
    return read_record(session, retries, run_id)


_TABLES = {
    MetricsSnapshot: "WORKER_METRICS_SNAPSHOTS",
    PastEvent: "RUN_CONTROL_EVENTS",
    WarehousePoll: "WAREHOUSE_POLL_SNAPSHOTS",
}


class _LeftOut:
    """Collects which rows of a run are left out: unreadable ones, and rows with a time outside the run."""

    def __init__(self, run: Run) -> None:
        self._start = run.start_time
        end = run.end_time or run.updated_at
        self._length_s = 0.0 if run.start_time is None else (end - run.start_time).total_seconds()
        self.reasons: list[str] = []

    def of(self, rows: ParsedRows[Record], moment: Callable[[Record], datetime] | None = None) -> tuple[Record, ...]:
        """The rows that are used."""
        self.reasons += map(str, rows.unreadable)
        if moment is None or self._start is None:
            return tuple(rows)
        kept = tuple(row for row in rows if self._is_in_time(moment(row)))
        if len(kept) < len(rows):
            table, count = _TABLES[type(rows[0])], len(rows) - len(kept)
            self.reasons.append(f"{count:,} of {len(rows):,} rows of {table} have a time outside the run")
        return kept

    def _is_in_time(self, moment: datetime) -> bool:
        assert self._start is not None
        return -MARGIN_S <= (moment - self._start).total_seconds() <= self._length_s + MARGIN_S


def _summary(session: ControlSession, retries: RetryPolicy, run: Run) -> Mapping[str, Any]:
    found = read_summary(session, retries, run.run_id)
    if found is not None:
        return found
    if run.status.is_terminal:
        raise RunFailed(
            f"run {run.run_id} is {run.status} and has no result: {run.reason or 'no reason is stored'}",
            remedy=f"`loadgen runs logs {run.run_id}` shows the log of its workers.",
        )
    raise UsageError(
        f"run {run.run_id} has no result yet: it is {run.status}",
        remedy=f"`loadgen status {run.run_id}` shows its state; `loadgen runs recover` ends it if it has no leader.",
    )


def _scenario(config: str) -> Scenario | None:
    """The scenario for display: variables stay ${NAME}."""
    try:
        return thaw(config, None)
    except LoadgenError:
        return None


# --- windows ---------------------------------------------------------------------------------------------------------


def measured_windows(
    summary: Mapping[str, Any], stored: Sequence[WindowRow], beats: Sequence[HeartbeatRow]
) -> tuple[MergedWindows | None, str | None]:
    """The windows of the summary, or why they are not available. Windows that a worker could not store are in its last
    heartbeat."""
    try:
        windows = stored_windows(stored, beats)
    except InvalidMetrics as error:
        return None, str(error)
    wanted = (summary["totals"]["succeeded"], summary["totals"]["failed"])
    searched = summary["find_max"]
    decisive = (
        searched.get("decisive_step") if searched else None
    )  # the summary of a search has the numbers of one step
    merged = merge(
        [[window for window in own if not searched or window.step_id == decisive] for own in windows.values()]
    )
    if (merged.counts.succeeded, merged.counts.failed) != wanted:
        return None, f"the stored windows have {merged.counts.succeeded} samples, but the result has {wanted[0]}"
    return merged, None


def stored_windows(stored: Sequence[WindowRow], beats: Sequence[HeartbeatRow]) -> dict[str, tuple[WindowResult, ...]]:
    """The measured windows of every worker. Raises InvalidMetrics if one of them is damaged."""
    texts = {beat.identity.worker_id: beat.beat.live_metrics for beat in beats}
    reported = {worker_id: read_live(text).windows if text else () for worker_id, text in texts.items()}
    unreadable: list[str] = []
    known = known_windows(stored, reported, lambda worker_id, why: unreadable.append(f"{worker_id}: {why}"))
    if unreadable:
        raise InvalidMetrics(unreadable[0])
    return {
        worker_id: tuple(window for window in own if window.phase is Phase.MEASUREMENT)
        for worker_id, own in sorted(known.items())
    }


# --- rows ------------------------------------------------------------------------------------------------------------


def worker_seconds(snapshots: Sequence[MetricsSnapshot], left_out: list[str]) -> Iterator[WorkerSecond]:
    """The seconds of workers, one by one: the buckets of all seconds would need too much memory. Unreadable rows are
    added to `left_out`."""
    for row in snapshots:
        try:
            metrics = read_custom_metrics(row.custom_metrics or "")
        except InvalidMetrics as error:
            left_out.append(f"row {printable(row.snapshot_id, 60)} of WORKER_METRICS_SNAPSHOTS is unreadable: {error}")
            continue
        yield WorkerSecond(
            worker_id=row.worker_id,
            ended_at=row.timestamp,
            seconds=metrics.seconds,
            phase=row.phase,
            statements=metrics.statements,
            response=metrics.response,
            cut_off=metrics.cut_off,
            lag=metrics.lag,
            times=metrics.times,
            earlier=metrics.earlier,
            logins=metrics.logins,
            executing=int(row.active_connections),
            target=int(row.target_connections),
            cpu_percent=row.cpu_percent,
            memory_percent=row.memory_percent,
        )


def with_last_seconds(stored: Iterable[WorkerSecond], beats: Sequence[HeartbeatRow]) -> Iterator[WorkerSecond]:
    """The stored seconds, then those that only the last heartbeat of a worker has: a worker that was killed has not
    stored its newest seconds, but they are in its last heartbeat, and so in the result."""
    newest: dict[str, WorkerSecond] = {}
    for second in stored:
        newest[second.worker_id] = second
        yield second
    for row in beats:
        worker_id, last = row.identity.worker_id, newest.get(row.identity.worker_id)
        for one in _seconds_of(row.beat.live_metrics):
            if last is None or one.ended_at - timedelta(seconds=one.seconds / 2) > last.ended_at:
                yield WorkerSecond(
                    worker_id=worker_id,
                    ended_at=one.ended_at,
                    seconds=one.seconds,
                    phase=one.phase.value,
                    statements=one.statements,
                    response=reduce(add, one.times.values(), EMPTY),
                    cut_off=one.cut_off,
                    times=one.times,
                    earlier=one.earlier,
                    executing=one.executing,
                    target=0 if last is None else last.target,  # not part of a heartbeat's seconds
                )


def _seconds_of(live_metrics: str | None) -> Sequence[LiveSecond]:
    try:
        return read_live(live_metrics).seconds if live_metrics else ()
    except InvalidMetrics:  # measured_windows() has reported it
        return ()


def _span_s(snapshots: Sequence[MetricsSnapshot], start: datetime | None) -> int:
    if start is None or not snapshots:
        return 1
    return span_for((snapshots[-1].timestamp - start).total_seconds())


def events_of(
    past_events: Sequence[PastEvent],
    steps: Sequence[run_measurements.StepRecord],
    lost: Mapping[str, datetime],
    start: datetime,
    connections: Mapping[str, Any] | None = None,
    *,
    stages: Mapping[int, str] | None = None,
) -> tuple[RunEvent, ...]:
    """The events of a run in order of time, without commands that were announced for a time after STOP.

    `stages`: the names of the stages by number, as far as they are known.
    """
    commands = list(_commands(past_events, start))
    stopped_s = min((event.at_s for event in commands if event.kind is EventKind.STOP), default=inf)
    found = [*commands, *(event for event in _levels(past_events, start, stages or {}) if event.at_s <= stopped_s)]
    for step in steps:
        if step.window_end_time is not None:
            label, kind = _JUDGED.get(step.outcome, ("✗", EventKind.BROKEN))
            level = f"step {int(step.step_number)}, {int(step.target_connections)} connections"
            at_s = _since(start, step.window_end_time)
            text = f"{level}: {step.outcome}, {step.reason}"
            found.append(RunEvent(at_s=at_s, label=label, text=text, kind=kind))
    for worker_id, moment in lost.items():
        text = f"{worker_id} was lost: its last heartbeat; seconds before it may not have been stored"
        found.append(RunEvent(at_s=_since(start, moment), label=f"{worker_id} lost", text=text, kind=EventKind.LOST))
    found += _connections(connections or {})
    return tuple(sorted(found, key=lambda event: (event.at_s, event.text)))


def _connections(connections: Mapping[str, Any]) -> Iterator[RunEvent]:
    """Refused logins and lost connections that the result lists."""
    refused, lost = (connections.get(name) or () for name in ("last_refused", "last_lost"))
    for label, kind, failures in (
        ("refused", EventKind.REFUSED, refused),
        ("connection lost", EventKind.RECONNECT, lost),
    ):
        for one in failures:
            if one["second"] is not None:
                yield RunEvent(at_s=max(one["second"], 0.0), label=label, text=failure_words(one), kind=kind)


def _commands(events: Sequence[PastEvent], start: datetime) -> Iterator[RunEvent]:
    for event in events:
        at_s = _since(start, event.created_at)
        if isinstance(event.command, Start):
            workers = event.command.expected_workers
            text = f"START: {workers} worker{'' if workers == 1 else 's'}"
            yield RunEvent(at_s=at_s, label="START", text=text, kind=EventKind.START)
        elif isinstance(event.command, Stop):
            yield RunEvent(
                at_s=at_s,
                label="STOP",
                text=f"STOP: {STOP_WORDS.get(event.command.reason, event.command.reason)}",
                kind=EventKind.STOP,
            )


def stage_names(summary: Mapping[str, Any], scenario: Scenario | None) -> dict[int, str]:
    """Names from the result, which has the values of variables; from the scenario for stages without a measurement."""
    planned = () if scenario is None else scenario.load.stages
    names = {number: stage.name for number, stage in enumerate(planned, 1) if stage.name is not None}
    measured = summary.get("stages") or ()
    return names | {one["stage"]: one["name"] for one in measured if isinstance(one.get("stage"), int)}


def _levels(events: Sequence[PastEvent], start: datetime, stages: Mapping[int, str]) -> Iterator[RunEvent]:
    """Phases, stages and targets: one event per moment for all workers."""
    targets: dict[str | None, int] = {}
    moments: dict[datetime, dict[str, tuple[str, str]]] = {}  # → kind of command → label and text
    levels: dict[datetime, tuple[int, float]] = {}  # → connections, and the ramp to them
    for one in run_control_events.announced(events):
        command = one.command
        if isinstance(command, SetPhase) and command.phase is Phase.WARMUP:
            continue  # it begins with START
        if isinstance(command, SetPhase):
            number = command.step_id
            label = command.phase.value.lower() if number is None else stages.get(number) or stage_name(number)
            moments.setdefault(one.at, {})["phase"] = label, f"{label} begins"
            continue
        if isinstance(command, SetRunTarget):
            targets = {None: command.total_connections}
        else:
            targets[one.address.worker_id] = command.target_connections
        total = sum(targets.values())
        ramp = f", reached in {formatting.seconds(command.ramp_s)}" if command.ramp_s else ""
        label, text = f"{total} conn.", f"target {counted(total, 'connection')}{ramp}"
        moments.setdefault(one.at, {})["target"] = label, text
        levels[one.at] = total, command.ramp_s
    for moment, said_then in moments.items():
        labels, texts = zip(*(said_then[kind] for kind in ("phase", "target") if kind in said_then), strict=True)
        connections, ramp_s = levels.get(moment, (None, 0.0))
        yield RunEvent(
            at_s=_since(start, moment),
            label=", ".join(labels),
            text=", ".join(texts),
            connections=connections,
            ramp_s=ramp_s,
        )


def _lost(summary: Mapping[str, Any], heard: Mapping[str, datetime]) -> dict[str, datetime]:
    """The last heartbeats of lost workers."""
    dead = [worker["worker_id"] for worker in summary["worker_results"] if worker["status"] == DEAD]
    return {worker_id: heard[worker_id] for worker_id in dead if worker_id in heard}


def _since(start: datetime, moment: datetime) -> float:
    return max((moment - start).total_seconds(), 0.0)


def _poll(poll: run_measurements.WarehousePoll, start: datetime) -> WarehousePollPoint:
    return WarehousePollPoint(
        at_s=(poll.timestamp - start).total_seconds(),
        running=poll.running,
        queued=poll.queued,
        started_clusters=poll.started_clusters,
        size=poll.size,
        kind=kind_shown(shown := shown_row(poll.raw)),
        resumed_s=resumed_s(shown, start),
    )


def resumed_s(shown: Mapping[str, Any], start: datetime) -> float | None:
    """When the warehouse was last resumed, in seconds since the start of the run; None: unknown."""
    try:
        moment = datetime.fromisoformat(str(shown.get("resumed_on")))
    except ValueError:
        return None
    return (moment.astimezone(UTC).replace(tzinfo=None) - start).total_seconds() if moment.tzinfo else None


def find_max_steps(
    judged: Sequence[run_measurements.StepRecord], summary: Mapping[str, Any]
) -> tuple[FindMaxStepResult, ...]:
    """The steps of a search, with all measurements from the result if it has them."""
    found = (summary.get("find_max") or {}).get("steps", ())
    recorded = {one["step"]: one for one in found if one.keys() >= {"succeeded", "error_rate", "latency_ms"}}
    return tuple(_step(step, recorded.get(int(step.step_number))) for step in judged)


def _step(step: run_measurements.StepRecord, recorded: Mapping[str, Any] | None) -> FindMaxStepResult:
    judged = {
        "succeeded": int(step.succeeded),
        "failed": int(step.failed),
        "qps": step.qps,
        "error_rate": step.error_rate,
        "latency_ms": {"p50": step.p50_latency_ms, "p95": step.p95_latency_ms, "p99": step.p99_latency_ms},
    }
    return FindMaxStepResult(
        number=int(step.step_number),
        target=int(step.target_connections),
        queue_seen=bool(step.queue_seen),
        outcome=step.outcome,
        reason=step.reason,
        **(judged if recorded is None else {name: recorded[name] for name in judged}),
    )


def _log(row: LogRow) -> WorkerWarning:
    return WorkerWarning(moment=row.timestamp, worker_id=row.worker_id, level=row.level, message=row.message)
