"""A run as its tables show it, for `status` and `runs show`: one look, then text or JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from loadgen.control import run_leases, run_names, run_status, test_results, worker_heartbeats
from loadgen.control.retry import Patience
from loadgen.control.run_leases import Holder
from loadgen.control.run_status import Run
from loadgen.control.session import ControlSession
from loadgen.control.worker_heartbeats import WorkerRow
from loadgen.errors import LoadgenError
from loadgen.log import plain

REASON_SHOWN = 500  # characters


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """Everything at one moment, by the server's clock."""

    run: Run
    holder: Holder | None
    workers: tuple[WorkerRow, ...]
    now: datetime  # naive UTC
    summary: Mapping[str, Any] | None = None  # when it was asked for, and is there


def look(session: ControlSession, patience: Patience, name: str, *, summary: bool = False) -> Look:
    """The run of that name."""
    run = run_names.find(session, patience, name)
    return Look(
        run=run,
        holder=patience.call(lambda: run_leases.read(session, run.run_id)),
        workers=patience.call(lambda: worker_heartbeats.read(session, run.run_id)),
        now=patience.call(lambda: run_status.server_time(session)),
        summary=_summary(session, patience, run.run_id) if summary else None,
    )


def _summary(session: ControlSession, patience: Patience, run_id: str) -> Mapping[str, Any] | None:
    """As it was written at the end of the run: out of the table it comes in another order."""
    from loadgen.report.summary import in_order

    rows = patience.call(lambda: test_results.read(session, run_id))
    stored = next((row.summary for row, _ in rows if row.worker_id is None), None)
    found = None if stored is None else json.loads(stored)
    if not isinstance(found, dict):
        return None
    config = patience.call(lambda: run_status.read_config(session, run_id))
    return in_order(found, _statements(config))


def _statements(config: str | None) -> tuple[str, ...]:
    from loadgen.scenario.frozen import thaw

    try:
        return tuple(statement.name for statement in thaw(config or "", None).workload.statements)
    except LoadgenError:  # of another version
        return ()


# --- JSON ------------------------------------------------------------------------------------------------------------


def as_json(seen: Look) -> dict[str, Any]:
    """The run, who leads it, its workers."""
    return {
        "run": run_as_json(seen.run),
        "leader": None if seen.holder is None else _leader(seen.holder),
        "workers": [_worker(row) for row in seen.workers],
    }


def run_as_json(run: Run) -> dict[str, Any]:
    return {
        "run_id": run.run_id,
        "scenario": run.test_name,
        "template_id": run.template_id,
        "status": run.status.value,
        "phase": run.phase.value,
        "verdict": run.verdict,
        "reason": run.reason,
        "created_at": _moment(run.created_at),
        "started_at": _moment(run.start_time),
        "warmup_ended_at": _moment(run.warmup_end_time),
        "ended_at": _moment(run.end_time),
        "updated_at": _moment(run.updated_at),
        "workers": {
            "expected": run.workers_expected,
            "registered": run.workers_registered,
            "active": run.workers_active,
            "completed": run.workers_completed,
        },
        "operations": run.total_ops,
        "errors": run.error_count,
        "qps": run.current_qps,
        "find_max": None if run.find_max_state is None else json.loads(run.find_max_state),
    }


def _leader(holder: Holder) -> dict[str, Any]:
    return {"owner": holder.owner, "term": holder.epoch, "lease_left_ms": holder.remaining_ms}


def _worker(row: WorkerRow) -> dict[str, Any]:
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
    }


def _moment(moment: datetime | None) -> str | None:
    return None if moment is None else f"{moment.isoformat(timespec='milliseconds')}Z"


# --- text ------------------------------------------------------------------------------------------------------------


def as_text(seen: Look) -> str:
    """At most 100 columns wide, as long as reasons are short."""
    run = seen.run
    lines = [
        f"{run.run_id}  {run.status} {run.phase}{f'  {run.verdict}' if run.verdict else ''}",
        f"  scenario {plain(run.test_name, 80)}, {_times(run, seen.now)}",
        *([f"  reason: {plain(run.reason, REASON_SHOWN)}"] if run.reason else []),
        *_leadership(seen),
        f"  {run.total_ops:,} operations, {run.error_count:,} errors{_pace(run)}",
        *_worker_lines(seen.workers),
    ]
    if seen.summary is not None:
        from loadgen.report.text import summary_text

        lines += ["", summary_text(seen.summary)]
    return "\n".join(lines)


def lasted(run: Run, now: datetime) -> str:
    """From start to end, or until now: 0:01:05."""
    until = run.end_time or now
    if run.start_time is None:
        return "-"
    return str(timedelta(seconds=round(max(0.0, (until - run.start_time).total_seconds()))))


def _pace(run: Run) -> str:
    return "" if run.status.is_terminal else f", {run.current_qps:,.1f}/s now"


def _times(run: Run, now: datetime) -> str:
    created = f"created {run.created_at:%Y-%m-%d %H:%M:%S} UTC"
    if run.start_time is None:
        return created
    if run.end_time is not None:
        return f"{created}, ended {run.end_time:%H:%M:%S} after {lasted(run, now)}"
    return f"{created}, running for {lasted(run, now)}"


def _leadership(seen: Look) -> Iterator[str]:
    """Only of interest while the run has not ended."""
    if seen.run.status.is_terminal:
        return
    holder = seen.holder
    if holder is None:
        yield "  nobody leads it yet"
    elif holder.remaining_ms > 0:
        yield f"  led by {plain(holder.owner, 100)} in term {holder.epoch}"
    else:
        yield (
            f"  nobody has led it for {-holder.remaining_ms / 1000:.0f} s: workers end by themselves,"
            " then `loadgen runs recover` ends the run"
        )


def _worker_lines(workers: tuple[WorkerRow, ...]) -> Iterator[str]:
    width = max((len(row.identity.worker_id) for row in workers), default=0)
    for row in workers:
        beat = row.beat
        cpu = "" if beat.cpu_percent is None else f", CPU {beat.cpu_percent:.0f} %"
        yield (
            f"  {row.identity.worker_id:<{width}}  {beat.status:<9} {beat.phase or '-':<11}"
            f" {beat.open_connections}/{beat.target_connections} connections, {beat.active_connections} busy,"
            f" heard {row.age_ms / 1000:.1f} s ago{cpu}"
        )
        if beat.last_error:
            yield f"  {'':<{width}}  {plain(beat.last_error, REASON_SHOWN)}"
