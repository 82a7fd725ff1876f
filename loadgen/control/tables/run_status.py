"""RUN_STATUS: the definition, status, phase and totals of a run. STOP_REQUESTS: requests of users to end a run.

Writes of the leader contain its lease, and SQL rejects them when the lease has expired. Any process reads. A user who
ends a run inserts a row into STOP_REQUESTS; from then on readers of the run see the status CANCELLING.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import field
from datetime import datetime
from typing import Any

from loadgen.control.session import (
    REASON_MAX,
    ControlFailed,
    ControlSession,
    ParsedRows,
    RowUnreadable,
    clip_text,
    load_queries,
    parse_row,
    read_rows,
)
from loadgen.control.tables.run_leases import Lease
from loadgen.control.tables.run_leases import read as read_holder
from loadgen.errors import LoadgenError, UsageError
from loadgen.log import printable
from loadgen.metrics.json_fields import NUMBER_MAX
from loadgen.model.run import IDS_SHOWN, Phase, RunStatus, check_transition, chosen_id
from loadgen.snowflake.session import RetryPolicy
from loadgen.values import dataclass

WORKERS_MAX = 100_000  # more than any scenario may have
EVERY_WORKER = "*"  # key in WORKER_TARGETS of a target for all workers together
RAMP_MAX_S = 1e6
_ANY_TEXT = ("", "\U0010ffff")  # from the first to the last text: a range for an index, when no value is given
_EVER_S = 3_000_000_000
_SHOW_RUNS = "`loadgen runs list` shows the runs."

_Q = load_queries("run_status")


class Fenced(LoadgenError):
    """The lease has expired. Another leader may be active; nothing was written."""

    exit_code = 4
    remedy = "`loadgen runs show` names the leader of the run."


class RunExists(LoadgenError):
    """A run with this id exists already."""

    exit_code = 2
    remedy = "Choose another run id."


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRun:
    run_id: str
    template_id: str
    test_name: str
    scenario_config: str  # of loadgen.scenario.frozen
    workers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A row. Times are naive UTC."""

    run_id: str
    template_id: str
    test_name: str
    status: RunStatus
    phase: Phase
    start_time: datetime | None
    warmup_start_time: datetime | None
    warmup_end_time: datetime | None
    end_time: datetime | None
    workers_expected: int
    workers_registered: int
    workers_active: int
    workers_completed: int
    total_ops: int
    error_count: int
    current_qps: float
    find_max_state: str | None
    worker_targets: str | None
    next_sequence_id: int
    lease_epoch: int
    reason: str | None
    verdict: str | None
    enrichment_status: str | None
    created_at: datetime
    updated_at: datetime
    stored_status: RunStatus | None = None  # written by the leader; `status` is CANCELLING after a request to stop
    # Not columns of the row:
    server_time: datetime | None = field(default=None, compare=False)  # time of the reading; None: in a list
    event_at: datetime | None = field(default=None, compare=False)  # insertion of the requested event


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionTarget:
    """The target of one worker, or under "*" of all workers together. `sequence_id` is the number of the event that set
    it; None: the event is unknown."""

    target_connections: int
    sequence_id: int | None
    step_id: int | None = None
    ramp_s: float = 0.0
    effective_at: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPoll:
    """What a worker reads every second."""

    status: RunStatus
    phase: Phase
    next_sequence_id: int
    lease_epoch: int
    targets: Mapping[str, ConnectionTarget]
    server_time: datetime  # naive UTC
    lease_over_ms: int | None  # since the lease expired; negative: it is valid; None: there was none


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRollup:
    """The totals and targets that the leader publishes, always all of them."""

    workers_registered: int = 0
    workers_active: int = 0
    workers_completed: int = 0
    total_ops: int = 0
    error_count: int = 0
    current_qps: float = 0.0
    find_max_state: str | None = None
    targets: Mapping[str, ConnectionTarget]
    next_sequence_id: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfinishedRun:
    """A run that has not ended. None: there was no lease or no heartbeat."""

    run_id: str
    lease_over_ms: int | None
    beat_age_ms: int | None
    update_age_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFigures:
    """The main figures of a result. None: unknown, or too few samples."""

    operations: int  # succeeded and failed
    errors: int
    qps: float | None
    p95_ms: float | None
    p95_at_least: bool = False  # statements were cut off, so p95_ms is a lower bound


def create(session: ControlSession, retries: RetryPolicy, run: NewRun) -> None:
    """Insert a run with the status PREPARED. RunExists if the id exists."""

    def write() -> bool:
        binds = (run.run_id, run.run_id, run.template_id, run.test_name, run.scenario_config, run.workers)
        return session.execute(_Q["create"], *binds) == 1

    def look_up() -> bool | None:
        rows = session.fetch(_Q["created"], run.run_id, run.template_id, run.scenario_config)
        return True if rows[0][0] else None

    try:
        retries.settle(write, look_up)
    except ControlFailed as error:
        if error.failure.is_duplicate_key:
            raise RunExists(f"run {run.run_id} exists already") from error
        raise


def read(session: ControlSession, run_id: str, event: int = 0) -> Run | None:
    """A run, with the time at which its event with this number was inserted."""
    rows = session.fetch(_Q["read"], run_id, event, run_id)
    if not rows:
        return None
    *columns, moment, event_at = rows[0]
    return _run(tuple(columns), moment, event_at)


def newest(session: ControlSession, limit: int) -> ParsedRows[Run]:
    """The newest runs, the newest first."""
    return read_rows(session.fetch(_Q["newest"].limited(limit)), _run)


def listed(
    session: ControlSession,
    limit: int,
    *,
    status: RunStatus | None = None,
    verdict: str | None = None,
    scenario: str | None = None,
    within_s: float | None = None,
) -> ParsedRows[tuple[Run, RunFigures | None]]:
    """The newest runs with the figures of their results, the newest first. Optionally only those with a status, with a
    verdict as in summary.json, of a scenario, or created in the last `within_s` seconds."""
    statuses = _ANY_TEXT if status is None else (status.value, status.value)
    verdicts = _ANY_TEXT if verdict is None else (verdict, verdict)
    scenarios = _ANY_TEXT if scenario is None else (scenario, scenario)
    since_s = -_EVER_S if within_s is None else -round(within_s)
    rows = session.fetch(_Q["listed"].limited(limit), *statuses, *verdicts, *scenarios, since_s)
    return read_rows(rows, lambda row: (_run(row[:-5]), _figures(row[0], *row[-5:])))


def scenarios(session: ControlSession, limit: int) -> tuple[str, ...]:
    """The names of the scenarios of all runs, in order."""
    return tuple(str(row[0]) for row in session.fetch(_Q["scenarios"].limited(limit)))


def beginning_with(session: ControlSession, beginning: str, limit: int) -> tuple[str, ...]:
    """The ids that begin with `beginning`, the shortest first."""
    return tuple(str(row[0]) for row in session.fetch(_Q["beginning_with"].limited(limit), beginning))


def read_config(session: ControlSession, run_id: str) -> str | None:
    rows = session.fetch(_Q["config"], run_id)
    return str(rows[0][0]) if rows else None


def poll(session: ControlSession, run_id: str) -> RunPoll | None:
    """The state of a run for its workers; None: there is no such run."""
    rows = session.fetch(_Q["poll"], run_id, run_id)
    if not rows:
        return None
    *columns, targets, moment, lease_over_ms = rows[0]
    row = (*columns, moment, lease_over_ms)
    return parse_row("RUN_STATUS", RunPoll, row, key=run_id, targets=read_targets(targets))


def server_time(session: ControlSession) -> datetime:
    """The time of the server, naive UTC: leases, heartbeats and `effective_at` are compared with it."""
    moment: datetime = session.fetch(_Q["server_time"])[0][0]
    return moment


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusChange:
    """A change of status and phase, from the expected current ones."""

    status: RunStatus
    phase: Phase
    to: RunStatus
    to_phase: Phase
    reason: str | None = None  # None: the stored reason stays
    verdict: str | None = None
    zero: datetime | None = None  # start of the plan, for START_TIME; None: the time of the change


def move(session: ControlSession, retries: RetryPolicy, lease: Lease, step: StatusChange) -> bool:
    """Change status and phase. False: they are not the expected ones any more. Raises Fenced if the lease has
    expired."""
    check_transition(step.status, step.phase, step.to, step.to_phase)
    started = step.to is RunStatus.RUNNING
    warm = started and step.to_phase is Phase.WARMUP
    warmed_up = step.phase is Phase.WARMUP and step.to_phase is not Phase.WARMUP
    reason = None if step.reason is None else clip_text(step.reason, REASON_MAX)
    zero = None if step.zero is None else step.zero.isoformat(timespec="milliseconds")
    changes = (step.status, step.phase) != (step.to, step.to_phase)

    def write() -> bool | None:
        touched = session.execute(
            _Q["move"],
            *(step.to, step.to_phase, reason, step.verdict, lease.epoch),
            *(int(started), zero, int(warm), zero, int(warmed_up), int(step.to.is_terminal)),
            *(lease.key, step.status, step.status, step.phase, lease.key, lease.epoch, lease.owner),
        )
        return True if touched == 1 else look_up() or False

    def look_up() -> bool | None:
        run = read(session, lease.key)
        if run is None:
            return None
        landed = (run.status, run.phase, run.lease_epoch) == (step.to, step.to_phase, lease.epoch)
        return True if changes and landed else None  # without a change the state does not show whether it was written

    if retries.settle(write, look_up):
        return True
    _require(session, retries, lease)
    return False


def publish(session: ControlSession, lease: Lease, rollup: RunRollup) -> bool:
    """Publish totals and targets. False: the run has ended, or the lease has expired. Idempotent."""
    touched = session.execute(
        _Q["publish"],
        *(rollup.workers_registered, rollup.workers_active, rollup.workers_completed),
        *(rollup.total_ops, rollup.error_count, rollup.current_qps, rollup.find_max_state),
        *(write_targets(rollup.targets), rollup.next_sequence_id, lease.epoch),
        *(lease.key, lease.key, lease.epoch, lease.owner),
    )
    return touched == 1


def cancel(session: ControlSession, retries: RetryPolicy, run_id: str, reason: str) -> Run:
    """Request the end of a run. Returns the row afterwards."""

    def write() -> None:
        try:
            session.execute(_Q["cancel"], clip_text(reason, REASON_MAX), run_id)
        except ControlFailed as error:
            if not error.failure.is_duplicate_key:  # requested before
                raise

    retries.call(write)
    run = retries.call(lambda: read(session, run_id))
    if run is None:
        raise UsageError(f"there is no run {run_id}", remedy=_SHOW_RUNS)
    return run


def set_enrichment(session: ControlSession, retries: RetryPolicy, run_id: str, status: str) -> None:
    retries.call(lambda: session.execute(_Q["set_enrichment"], status, run_id))


def unfinished(session: ControlSession) -> ParsedRows[UnfinishedRun]:
    """The runs that have not ended, with the times since the last signs of leader and workers."""
    return read_rows(session.fetch(_Q["unfinished"]), lambda row: parse_row("RUN_STATUS", UnfinishedRun, row))


def write_targets(targets: Mapping[str, ConnectionTarget]) -> str:
    """The JSON of WORKER_TARGETS."""
    return json.dumps(
        {
            worker_id: {
                _connections_key(worker_id): target.target_connections,
                "step_id": target.step_id,
                "sequence_id": target.sequence_id,
                "ramp_seconds": target.ramp_s,
                "effective_at": target.effective_at,
            }
            for worker_id, target in targets.items()
        },
        separators=(",", ":"),
    )


def read_targets(written: str | None) -> dict[str, ConnectionTarget]:
    """The valid entries of WORKER_TARGETS: an invalid entry must not make the poll of a worker fail."""
    try:
        found = json.loads(written) if written else {}
    except (ValueError, RecursionError):
        return {}
    return {
        worker_id: target
        for worker_id, entry in (found.items() if isinstance(found, dict) else ())
        if (target := _target(entry, _connections_key(worker_id))) is not None
    }


def _connections_key(worker_id: str) -> str:
    return "total_connections" if worker_id == EVERY_WORKER else "target_connections"


def _target(entry: Any, connections: str) -> ConnectionTarget | None:
    try:
        sequence_id, step_id, moment = entry.get("sequence_id"), entry.get("step_id"), entry.get("effective_at")
        target = ConnectionTarget(
            target_connections=int(entry[connections]),
            sequence_id=None if sequence_id is None else int(sequence_id),
            step_id=None if step_id is None else int(step_id),
            ramp_s=float(entry.get("ramp_seconds") or 0.0),
            effective_at=moment if isinstance(moment, str) else None,
        )
    except (AttributeError, LookupError, TypeError, ValueError, OverflowError):
        return None
    sensible = target.target_connections >= 0 and 0.0 <= target.ramp_s < RAMP_MAX_S
    return target if sensible else None


def _require(session: ControlSession, retries: RetryPolicy, lease: Lease) -> None:
    """After a rejected write: raises Fenced if the lease has expired."""
    holder = retries.call(lambda: read_holder(session, lease.key))
    if holder is None or (holder.epoch, holder.owner) != (lease.epoch, lease.owner) or holder.remaining_ms <= 0:
        raise Fenced(f"the lease of run {lease.key} (epoch {lease.epoch}) has expired")


def _figures(
    run_id: str, operations: int | None, errors: int, qps: str | None, p95_ms: float | None, at_least: str | None
) -> RunFigures | None:
    if operations is None:
        return None
    bound = '"p95"' in (at_least or "")
    try:  # a cast in SQL would make the whole list fail
        rate = None if qps is None else float(qps)
    except ValueError:
        rate = math.nan
    if rate is not None and not 0.0 <= rate <= NUMBER_MAX:
        raise RowUnreadable("TEST_RESULTS", run_id, "summary: totals.qps is not a rate")
    figures = (operations, errors, rate, p95_ms, bound)
    return parse_row("TEST_RESULTS", RunFigures, figures, key=run_id)


def _run(row: tuple[Any, ...], server_time: datetime | None = None, event_at: datetime | None = None) -> Run:
    found = parse_row("RUN_STATUS", Run, row, server_time=server_time, event_at=event_at)
    if not 0 <= found.workers_expected <= WORKERS_MAX:  # readers create a list of this length
        raise RowUnreadable("RUN_STATUS", found.run_id, f"workers_expected is {found.workers_expected}")
    return found


# --- Names of runs: an id, a unique beginning of an id, `latest`, or `latest~1` for the run before the latest ---------

BACK_MAX = 1_000  # how far latest~N may go

_LATEST = re.compile(r"latest(?:~([0-9]{1,6}))?")


def is_latest(name: str) -> bool:
    """Whether the name is `latest` or `latest~N`."""
    return _LATEST.fullmatch(name) is not None


def find_run(session: ControlSession, retries: RetryPolicy, name: str) -> Run:
    """The run with this name. UsageError if there is none, or more than one."""
    if latest := _LATEST.fullmatch(name):
        return _latest(session, retries, int(latest[1] or 0))
    ids = retries.call(lambda: beginning_with(session, name, IDS_SHOWN + 1))
    run_id = chosen_id(name, ids, noun="run", remedy=_SHOW_RUNS)
    run = retries.call(lambda: read(session, run_id))
    if run is None:
        raise UsageError(f"there is no run {printable(run_id, 100)} any more", remedy=_SHOW_RUNS)
    return run


def _latest(session: ControlSession, retries: RetryPolicy, back: int) -> Run:
    if back > BACK_MAX:
        raise UsageError(f"latest~{back} is too far back: at most latest~{BACK_MAX}", remedy=_SHOW_RUNS)
    runs = retries.call(lambda: newest(session, back + 1))
    if not runs:
        raise UsageError("there are no runs yet", remedy="Start one with `loadgen run FILE`.")
    if len(runs) <= back:
        raise UsageError(f"the oldest run is latest~{len(runs) - 1}: there is no latest~{back}", remedy=_SHOW_RUNS)
    return runs[back]
