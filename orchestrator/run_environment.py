"""The environment of a run: machine, versions, warnings, and foreign load on the target warehouse.

Foreign load is load that the run has not sent. Polls of the warehouse show it if more statements execute than the run
can have at once. The query history, read at the end of the run, also shows it below that number. The history leaves out
most short statements on hybrid tables, those of the run and foreign ones. So the history is compared with the
measurement of the run, and foreign load on hybrid tables shows in polls only.

Foreign statements in the query history are proof: they make the run INVALID. A role without MONITOR sees only the
statements of its user, so their absence proves nothing. On the embedded server polls are exact: foreign load in polls
makes the run INVALID, and so do missing polls, because foreign load is not ruled out then. Snowflake does not document
how current its numbers are, so there both are warnings.
"""

from __future__ import annotations

import logging
import math
import os
import platform
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import accumulate, pairwise
from typing import Any, Protocol

from loadgen import __version__
from loadgen.control.session import ControlSession
from loadgen.control.tables import run_measurements
from loadgen.control.tables.run_measurements import StepRecord, WarehousePoll
from loadgen.control.tables.run_status import Run
from loadgen.control.tables.test_results import ResultRow, dropped_rows
from loadgen.errors import LoadgenError
from loadgen.log import event, printable
from loadgen.metrics.connections import PLANNED
from loadgen.model.run import WorkerStatus
from loadgen.results.run_snapshot import WorkerHealth, WorkerSnapshot
from loadgen.rules.plan import RunPlan
from loadgen.scenario.model import EMBEDDED, LoadMode, Scenario
from loadgen.snowflake import driver
from loadgen.snowflake.ident import Identifier
from loadgen.snowflake.session import RetryPolicy
from loadgen.units import MS_PER_S, NS_PER_MS
from loadgen.values import dataclass
from orchestrator.query_history import HistorySlice, QueryHistory, WarehouseUse, history_profile
from orchestrator.run_result import MeasuredWindows

log = logging.getLogger(__name__)

MARGIN = 1  # statements that have ended for their client, but not yet for the server
FOREIGN_MAX_PERCENT = 2  # of the execution time of all statements
OWN_SEEN_MIN_PERCENT = 90  # of the statements of the run; below this the history counts as incomplete
FAR_MORE_PERCENT = 150  # of the statements that the run can have at once; above this one poll is enough
UNOBSERVED_MAX_PERIODS = 3  # poll periods of the measurement that may be without a poll
UNOBSERVED_MAX_PERCENT = 10  # of the measurement, if that is more


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnLoad:
    """A span of the measurement, and the largest number of statements that the run can have had at once in it."""

    begin: datetime  # naive UTC
    end: datetime
    statements: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnUse:
    """Statements that ended, and their total service time, as measured by the clients of a run."""

    statements: int
    service_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignLoad:
    """Foreign load that was found: reasons why the run is INVALID, and warnings."""

    disturbances: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


class RunMeasurement(Protocol):
    """What a run has measured, and where: an EndedRun."""

    @property
    def run(self) -> Run: ...
    @property
    def scenario(self) -> Scenario: ...
    @property
    def plan(self) -> RunPlan: ...
    @property
    def gathered(self) -> MeasuredWindows: ...
    @property
    def connections(self) -> Mapping[str, Any]: ...


def read_foreign_load(
    session: ControlSession,
    retries: RetryPolicy,
    ended: RunMeasurement,
    *,
    warehouse: str,
    polls: Sequence[WarehousePoll],
    environ: Mapping[str, str],
    interrupted: Callable[[], bool],
) -> ForeignLoad:
    """Find foreign load in a run that has ended. With a control plane on the same warehouse nothing is judged, because
    its statements cannot be told apart. `interrupted`: the run was interrupted, so the history is not read."""
    scenario = ended.scenario
    own = own_load(session, retries, ended)
    if own is None:
        return ForeignLoad()
    name, is_exact = Identifier.parse(warehouse), scenario.connection == EMBEDDED
    polled = foreign_statements(name.name, polls, own)
    used = unread = None
    if not (is_exact and polled) and not interrupted():
        try:
            used = _foreign_use(session, ended, name, own, environ)
        except LoadgenError as error:
            event(log, logging.WARNING, "history_not_read", run=ended.run.run_id, why=str(error))
            unread = "the query history of the warehouse could not be read: foreign load may not have been noticed"
    unobserved = unobserved_load([poll.timestamp for poll in polls], own, scenario.timing.warehouse_poll_s)
    return judge_foreign_load(used=used, unread=unread, polled=polled, unobserved=unobserved, is_exact=is_exact)


UNREAD_BY_RECOVERY = "the query history was not read after its orchestrator was lost: foreign load may not be noticed"
UNPOLLED = "whether other statements ran on the warehouse is not known: its orchestrator has stored no poll of it"


def recovered_foreign_load(session: ControlSession, retries: RetryPolicy, ended: RunMeasurement) -> ForeignLoad:
    """As read_foreign_load(), for a run without a leader: only by the stored polls. A recovery does not log in to the
    target, and it does not know whether the user had allowed other runs."""
    own, scenario = own_load(session, retries, ended), ended.scenario
    if own is None:
        return ForeignLoad()
    polls = retries.call(lambda: run_measurements.read_polls(session, ended.run.run_id))
    if not polls:
        return ForeignLoad(warnings=(UNPOLLED,))
    warehouse = scenario.target.warehouse or "of the target"
    polled = foreign_statements(warehouse, polls, own)
    unobserved = unobserved_load([poll.timestamp for poll in polls], own, scenario.timing.warehouse_poll_s)
    is_exact = scenario.connection == EMBEDDED
    unread = None if is_exact and polled else UNREAD_BY_RECOVERY
    found = judge_foreign_load(used=None, unread=unread, polled=polled, unobserved=unobserved, is_exact=is_exact)
    return replace(found, warnings=(*map(str, polls.unreadable), *found.warnings))


def own_load(session: ControlSession, retries: RetryPolicy, ended: RunMeasurement) -> list[OwnLoad] | None:
    """The load of the run, by spans. None: foreign load is not judged, because the run never started, or the control
    plane shares its warehouse."""
    run, scenario = ended.run, ended.scenario
    if run.start_time is None or scenario.control.share_warehouse:
        return None
    again = lost_connections(ended.connections["reopened"])  # their statements may still execute
    if scenario.load.mode is LoadMode.FIND_MAX:
        return own_load_of_steps(retries.call(lambda: run_measurements.read_steps(session, run.run_id)), again)
    begin = run.start_time + timedelta(seconds=ended.plan.measures_s)
    end = begin + timedelta(seconds=ended.gathered.merged.seconds)
    return [OwnLoad(begin=begin, end=end, statements=scenario.load.connections + again)]


def lost_connections(reopened: Mapping[str, int]) -> int:
    """The connections that were lost. One that is replaced as planned has no statement under way."""
    return sum(count for reason, count in reopened.items() if reason not in PLANNED)


def judge_foreign_load(
    *, used: str | None, unread: str | None, polled: str | None, unobserved: str | None, is_exact: bool
) -> ForeignLoad:
    """Judge foreign load. `used`: found in the query history; `unread`: it could not be read; `polled`: found in polls;
    `unobserved`: polls are missing; `is_exact`: polls are exact. Pure."""
    proven = (used,) if used is not None else ()
    others = tuple(one for one in (None if proven else polled, unobserved) if one is not None)
    unknown = () if unread is None else (unread,)
    if is_exact:
        return ForeignLoad(disturbances=(*proven, *others), warnings=unknown)
    return ForeignLoad(disturbances=proven, warnings=(*others, *unknown))


def own_load_of_steps(steps: Sequence[StepRecord], again: int) -> list[OwnLoad]:
    """The spans of a search. After a step to a lower level statements of the previous one may still execute, so the
    highest level so far counts."""
    highest = accumulate((int(step.target_connections) for step in steps), max)
    return [
        OwnLoad(begin=step.window_start_time, end=step.window_end_time, statements=level + again)
        for step, level in zip(steps, highest, strict=True)
        if step.window_start_time is not None and step.window_end_time is not None
    ]


def foreign_statements(warehouse: str, polls: Sequence[WarehousePoll], own: Sequence[OwnLoad]) -> str | None:
    """A sentence if two polls in a row show more statements than the run can have, or one poll far more. Pure."""
    seen = [
        ((poll.running or 0) + (poll.queued or 0), span.statements)
        for poll in sorted(polls, key=lambda poll: poll.timestamp)
        for span in own
        if span.begin <= poll.timestamp <= span.end
    ]
    pairs = [pair for pair in pairwise(seen) if all(at_once > most + MARGIN for at_once, most in pair)]
    far_more = [(one,) for one in seen if one[0] * 100 > FAR_MORE_PERCENT * (one[1] + MARGIN)]
    if not pairs and not far_more:
        return None
    at_once, most = max((one for found in (*pairs, *far_more) for one in found), key=lambda one: one[0] - one[1])
    return (
        f"other statements ran on warehouse {printable(warehouse, 100)}: up to {at_once} at once, this run has at most"
        f" {most}"
    )


def _foreign_use(
    session: ControlSession,
    ended: RunMeasurement,
    warehouse: Identifier,
    own: Sequence[OwnLoad],
    environ: Mapping[str, str],
) -> str | None:
    """A sentence like that of foreign_statements(), by the query history. Raises LoadgenError if it cannot be read."""
    if not own or not warehouse.like:  # a name that needs escaping
        return None
    bounds = (min(span.begin for span in own), max(span.end for span in own))
    start_ms, end_ms = (round(moment.replace(tzinfo=UTC).timestamp() * MS_PER_S) for moment in bounds)
    place, scenario = session.place, ended.scenario
    is_shared = place.connection == scenario.connection and Identifier.parse(place.warehouse).name == warehouse.name
    profile = history_profile(scenario, place, environ)
    with closing(QueryHistory(profile, ended.run.run_id, environ)) as history:
        span = HistorySlice(start_ms=start_ms, end_ms=end_ms)
        use = history.use(warehouse.name, span, has_control_plane=is_shared)
    shown = 1 - min(1.0, use.left_out_ms / (end_ms - start_ms)) if end_ms > start_ms else 1.0
    return foreign_use(warehouse.name, use, own_use(ended.gathered), shown)


def own_use(gathered: MeasuredWindows) -> OwnUse:
    times = gathered.merged.tally.whole.times.values()
    return OwnUse(
        statements=sum(one.service.count for one in times),
        service_ms=math.fsum(one.service.sum_ns for one in times) / NS_PER_MS,
    )


def foreign_use(warehouse: str, use: WarehouseUse, measured: OwnUse, shown: float) -> str | None:
    """A sentence if foreign statements used more than FOREIGN_MAX_PERCENT of the execution time. Pure.

    `shown`: the fraction of the measurement that the history shows.
    """
    own_ms = use.own_ms
    if use.own * 100 < OWN_SEEN_MIN_PERCENT * measured.statements * shown:
        own_ms = max(own_ms, measured.service_ms * shown)
    if use.others_ms * 100 <= FOREIGN_MAX_PERCENT * (own_ms + use.others_ms):
        return None
    return (
        f"other statements ran on warehouse {printable(warehouse, 100)}: {use.others:,} of them executed for"
        f" {use.others_ms / MS_PER_S:.1f} s, those of this run for {own_ms / MS_PER_S:.1f} s"
    )


def unobserved_load(polled: Sequence[datetime], own: Sequence[OwnLoad], period_s: float) -> str | None:
    """A sentence if polls cover too little of the measurement. Pure.

    A poll covers one period before and one after it. Measurements of up to three periods are not judged.
    """
    period = timedelta(seconds=period_s)
    measured_s = unobserved_s = 0.0
    for span in own:
        at = span.begin  # covered until here
        for moment in sorted(polled):
            unobserved_s += max(0.0, (min(moment - period, span.end) - at).total_seconds())
            at = min(max(at, moment + period), span.end)
        unobserved_s += (span.end - at).total_seconds()
        measured_s += (span.end - span.begin).total_seconds()
    if unobserved_s <= max(UNOBSERVED_MAX_PERIODS * period_s, UNOBSERVED_MAX_PERCENT * measured_s / 100):
        return None
    return (
        f"the warehouse could not be observed for {unobserved_s:.0f} of {measured_s:.0f} s: foreign load is not"
        " ruled out"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetInfo:
    """Properties of the target that are known before a run begins."""

    server: str | None = None  # version of the server
    shared_warehouse: bool = False  # the user allows other runs on the warehouse at the same time


def environment_document(known: TargetInfo) -> dict[str, Any]:
    """The machine and the versions of this orchestrator."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "niceness": os.getpriority(os.PRIO_PROCESS, 0),  # of workers on this machine too: they inherit it
        "loadgen": __version__,
        "driver": driver.version(),
        "server": known.server,
        "shared_warehouse": known.shared_warehouse,
    }


def run_warnings(scenario: Scenario, seen: Sequence[str], *, shared: bool) -> list[str]:
    """The warnings about a run, each once."""
    warnings = list(dict.fromkeys(seen))
    if scenario.target.use_cached_result:
        warnings.append("target.use_cached_result is on: some answers may come from the result cache")
    if shared:
        warnings.append("the warehouse was shared: other runs may have measured on it at the same time")
    return warnings


def workers_started_twice(rows: Sequence[ResultRow]) -> list[str]:
    """A sentence for each worker of which several processes have begun, by their rows in TEST_RESULTS: for a leader
    that has taken over the run, and has not seen what was before."""
    begun = Counter(row.worker_id for row in rows if row.worker_id is not None)
    return [
        f"{worker_id} was replaced: {count} processes have begun with its id, some before the run was taken over"
        for worker_id, count in begun.items()
        if count > 1
    ]


_DROPPED = {
    "query_log_rows": "rows of its query log (query_log.max_rows)",
    "query_log_unwritten": "rows of its query log, which could not be written (such as on a full disk)",
    "snapshots": "seconds of its snapshots, while the control plane did not accept them",
    "log_lines": "lines of its log, while the control plane did not accept them",
}


def dropped_warnings(rows: Sequence[ResultRow], workers: Sequence[WorkerSnapshot]) -> list[str]:
    """Rows that workers neither stored nor spooled: a sentence for each worker and kind; and workers that may not have
    reported the rows that they could not store."""
    unheard = [
        f"the last heartbeat of {worker.worker_id} did not arrive: rows that it could not store may not be listed"
        for worker in workers
        if worker.health is WorkerHealth.DONE and worker.status is not WorkerStatus.COMPLETED
    ]
    return unheard + [
        f"{row.worker_id} dropped {count:,} {_DROPPED[kind]}"
        for row in rows
        for kind, count in dropped_rows(row).items()
        if kind in _DROPPED
    ]
