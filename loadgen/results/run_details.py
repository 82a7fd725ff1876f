"""One run at this moment: its state, its leader, its workers and its result, as JSON and as text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from loadgen.clock import utc_iso
from loadgen.control.session import ControlSession, ParsedRows, RowUnreadable
from loadgen.control.tables import run_leases, run_status, worker_heartbeats
from loadgen.control.tables.run_leases import LeaseHolder
from loadgen.control.tables.run_status import Run, RunFigures
from loadgen.control.tables.worker_heartbeats import HeartbeatRow
from loadgen.errors import LoadgenError, RunFailed
from loadgen.log import printable
from loadgen.model.run import RunStatus, WorkerStatus
from loadgen.report.formatting import verdict_word
from loadgen.report.run_text import VERDICT_COLOURS, TextLine, summary_lines, wrapped
from loadgen.snowflake.session import RetryPolicy
from loadgen.units import counted
from loadgen.values import dataclass

REASON_SHOWN = 500  # characters


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDetails:
    """The state of a run at one moment of the server's clock."""

    run: Run
    holder: LeaseHolder | None
    workers: ParsedRows[HeartbeatRow]
    now: datetime  # naive UTC
    summary: Mapping[str, Any] | None = None  # of an ended run with a result
    summary_problem: str | None = None  # why there is none

    @property
    def figures(self) -> RunFigures | None:
        return None if self.summary is None else run_figures(self.summary)


def read_run_details(session: ControlSession, retries: RetryPolicy, name: str) -> RunDetails:
    """Read the named run."""
    run = run_status.find_run(session, retries, name)
    summary, problem = _summary(session, retries, run.run_id) if run.status.is_terminal else (None, None)
    return RunDetails(
        run=run,
        holder=retries.call(lambda: run_leases.read(session, run.run_id)),
        workers=retries.call(lambda: worker_heartbeats.read(session, run.run_id)),
        now=retries.call(lambda: run_status.server_time(session)),
        summary=summary,
        summary_problem=problem,
    )


def _summary(session: ControlSession, retries: RetryPolicy, run_id: str) -> tuple[Mapping[str, Any] | None, str | None]:
    """The summary of an ended run with its keys in the defined order, or why it cannot be shown."""
    from loadgen.report.summary import in_order
    from loadgen.results.stored_summary import read_summary

    try:
        found = read_summary(session, retries, run_id)
    except (RowUnreadable, RunFailed) as error:
        return None, str(error)
    if found is None:
        return None, None
    config = retries.call(lambda: run_status.read_config(session, run_id))
    return in_order(found, _statements(config)), None


def run_figures(summary: Mapping[str, Any]) -> RunFigures:
    totals = summary["totals"]
    return RunFigures(
        operations=totals["succeeded"] + totals["failed"],
        errors=totals["failed"],
        qps=totals["qps"],
        p95_ms=summary["latency_ms"]["p95"],
        p95_at_least="p95" in summary["latency_ms"].get("at_least", ()),
    )


def _statements(config: str | None) -> tuple[str, ...]:
    from loadgen.scenario.frozen import thaw

    try:
        return tuple(statement.name for statement in thaw(config or "", None).workload.statements)
    except LoadgenError:  # written by another version
        return ()


# --- JSON ------------------------------------------------------------------------------------------------------------


def run_details_as_json(seen: RunDetails) -> dict[str, Any]:
    """The run, its leader, and its workers."""
    return {
        "run": run_as_json(seen.run, seen.figures, seen.now),
        "leader": None if seen.holder is None else _leader(seen.holder),
        "workers": [_worker(row) for row in seen.workers],
    }


def run_as_json(run: Run, figures: RunFigures | None, now: datetime) -> dict[str, Any]:
    """The run. Counts come from the result, or before the end from the last update of the leader."""
    seconds = lasted_s(run, now)
    return {
        "run_id": run.run_id,
        "scenario": run.test_name,
        "template_id": run.template_id,
        "status": run.status.value,
        "phase": run.phase.value,
        "verdict": run.verdict,
        "reason": run.reason,
        "created_at": utc_iso(run.created_at),
        "started_at": utc_iso(run.start_time),
        "warmup_started_at": utc_iso(run.warmup_start_time),
        "warmup_ended_at": utc_iso(run.warmup_end_time),
        "ended_at": utc_iso(run.end_time),
        "updated_at": utc_iso(run.updated_at),
        "workers": {
            "expected": run.workers_expected,
            "registered": run.workers_registered,
            "active": run.workers_active,
            "completed": run.workers_completed,
        },
        "duration_s": None if seconds is None else round(seconds, 3),
        "operations": run.total_ops if figures is None else figures.operations,
        "errors": run.error_count if figures is None else figures.errors,
        "qps": run.current_qps if figures is None else figures.qps,
        "p95_ms": None if figures is None else figures.p95_ms,
        "find_max": _find_max(run.find_max_state),
    }


def _find_max(written: str | None) -> Any:
    """The state of a search, from a row that another program may have written."""
    try:
        return None if written is None else json.loads(written)
    except (ValueError, RecursionError):
        return None


def _leader(holder: LeaseHolder) -> dict[str, Any]:
    # `term` is the name that `epoch` had; scripts may read it.
    return {
        "owner": holder.owner,
        "epoch": holder.epoch,
        "term": holder.epoch,
        "lease_left_ms": holder.remaining_ms,
    }


def _worker(row: HeartbeatRow) -> dict[str, Any]:
    beat = row.beat
    return {
        "worker_id": row.identity.worker_id,
        "status": beat.status.value,
        "phase": None if beat.phase is None else beat.phase.value,
        "beat_age_ms": row.age_ms,
        "target_connections": beat.target_connections,
        "open_connections": beat.open_connections,
        "active_connections": beat.active_connections,
        "errors": beat.error_count,
        "last_error": beat.last_error,
        "cpu_percent": beat.cpu_percent,
        "memory_percent": beat.memory_percent,
        "hostname": row.identity.hostname,
        "pid": row.identity.pid,
        "version": row.identity.version,
        "labels": list(row.labels),
    }


# --- text ------------------------------------------------------------------------------------------------------------


def run_details_lines(seen: RunDetails, width: int | None, *, result: bool) -> list[TextLine]:
    """The state of a run and optionally its result, wrapped to `width`."""
    run, figures = seen.run, seen.figures
    operations, errors = (run.total_ops, run.error_count) if figures is None else (figures.operations, figures.errors)
    lines = [
        _head(run),
        TextLine(f"  scenario {printable(run.test_name, 80)}, {_times(run, seen.now)}", indent=4),
        *([TextLine(f"  reason: {printable(run.reason, REASON_SHOWN)}", indent=4)] if run.reason else []),
        *(TextLine(text, indent=4) for text in _leadership(seen)),
        TextLine(f"  {counted(operations, 'statement')}, {counted(errors, 'error')}{_pace(run, figures)}", indent=4),
        *(TextLine(text, indent=4) for text in _worker_lines(seen.workers)),
    ]
    lines = [piece for line in lines for piece in wrapped(line, width)]
    if result and seen.summary is not None:
        lines += [TextLine(""), *summary_lines(seen.summary, width=width)]
    return lines


def _head(run: Run) -> TextLine:
    if not run.status.is_terminal:
        return TextLine(f"{run.run_id}  {run.status} {run.phase}")
    verdict = run.verdict or ""
    word = verdict_word(verdict)
    if word in ("", run.status.value.lower()):
        return TextLine(f"{run.run_id}  {run.status}", run.status.value if word else "", VERDICT_COLOURS.get(verdict))
    return TextLine(f"{run.run_id}  {run.status}, {word}", word, VERDICT_COLOURS.get(verdict))


def lasted_s(run: Run, now: datetime) -> float | None:
    """Seconds from the start to the end, or until now; None: not started."""
    return None if run.start_time is None else max(0.0, ((run.end_time or now) - run.start_time).total_seconds())


def lasted(run: Run, now: datetime) -> str:
    """The duration as 1:05 or 2:01:05."""
    seconds = lasted_s(run, now)
    if seconds is None:
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"


def outcome(run: Run) -> str:
    """The verdict of an ended run as people read it, or the status of another."""
    return outcome_word(run.status, run.verdict)


def outcome_word(status: RunStatus, verdict: str | None = None) -> str:
    """The word of outcome() for a status, and the verdict if it is known."""
    if status is RunStatus.FAILED and verdict is None:
        return "error"
    if status.is_terminal:
        return verdict_word(verdict or status.value.lower())
    return "stopping" if status is RunStatus.CANCELLING else status.value.lower()


def _pace(run: Run, figures: RunFigures | None) -> str:
    if figures is None:
        return "" if run.status.is_terminal else f", {run.current_qps:,.1f}/s now"
    return "" if figures.qps is None else f", {figures.qps:,.1f}/s"


def _times(run: Run, now: datetime) -> str:
    if run.start_time is None:
        return f"created {run.created_at:%Y-%m-%d %H:%M:%S} UTC"
    took = "running for" if run.end_time is None else "took"
    return f"started {run.start_time:%Y-%m-%d %H:%M:%S} UTC, {took} {lasted(run, now)}"


def _leadership(seen: RunDetails) -> Iterator[str]:
    """The leader of a run that has not ended."""
    if seen.run.status.is_terminal:
        return
    holder = seen.holder
    if holder is None:
        yield "  no process leads it yet"
    elif holder.remaining_ms > 0:
        yield f"  led by {printable(holder.owner, 100)} in epoch {holder.epoch}"
    else:
        yield (
            f"  no process has led it for {-holder.remaining_ms / 1000:.0f} s: its workers will end without one;"
            " then `loadgen runs recover` ends the run"
        )


def _worker_lines(workers: tuple[HeartbeatRow, ...]) -> Iterator[str]:
    width = max((len(row.identity.worker_id) for row in workers), default=0)
    for row in workers:
        beat = row.beat
        if beat.status in (WorkerStatus.COMPLETED, WorkerStatus.DEAD):
            yield f"  {row.identity.worker_id:<{width}}  {beat.status}"
        else:
            cpu = "" if beat.cpu_percent is None else f", CPU {beat.cpu_percent:.0f} %"
            yield (
                f"  {row.identity.worker_id:<{width}}  {beat.status} {beat.phase or '-'},"
                f" {beat.open_connections} of {counted(beat.target_connections, 'connection')},"
                f" {beat.active_connections} busy, heartbeat {row.age_ms / 1000:.1f} s ago{cpu}"
            )
        if labels := row.labels:
            yield f"  {'':<{width}}  labels {printable(' '.join(labels), REASON_SHOWN)}"
        if beat.last_error:
            yield f"  {'':<{width}}  last error: {printable(beat.last_error, REASON_SHOWN)}"
