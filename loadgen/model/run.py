"""States and phases of a run, and the transitions between them.

    PREPARED ──▶ STARTING ──▶ RUNNING ──▶ STOPPING ──▶ COMPLETED
        │            │           │            │
        ├────────────┴───────────┤            │
        ▼                        │            │
    CANCELLING ──▶ CANCELLED     │            │
        │                        │            │
        ▼                        ▼            ▼
      FAILED ◀── any state that is not terminal; a fatal condition goes through STOPPING, so that workers drain

Terminal states are final, here and in SQL. Phases only go forward.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import IntEnum, StrEnum

from loadgen.errors import LoadgenError, UsageError
from loadgen.log import printable
from loadgen.values import dataclass

CONTROL_WAREHOUSE = "LOADGEN_CONTROL_WH"  # of the control plane, unless another is named
RUN_ID_MAX = 36
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def is_id(text: str, longest: int = RUN_ID_MAX) -> bool:
    """Whether the text is a valid id of a run or a worker. It is also the name of a folder."""
    return _ID.fullmatch(text) is not None and len(text) <= longest


IDS_SHOWN = 5  # in the message about an ambiguous name


def chosen_id(name: str, ids: Sequence[str], *, noun: str, remedy: str) -> str:
    """The id that equals `name`, or the only one that begins with it. `ids`: those that begin with it, at least the
    first IDS_SHOWN + 1 in their order. UsageError if there is none, or more than one; `remedy` says what shows them."""
    if not name:
        raise UsageError(f"the name of {'an' if noun[0] in 'aeiou' else 'a'} {noun} is empty", remedy=remedy)
    if name in ids:
        return name
    if not ids:
        raise UsageError(f"there is no {noun} {printable(name, 100)}", remedy=remedy)
    if len(ids) > 1:
        more = ", …" if len(ids) > IDS_SHOWN else ""
        raise UsageError(
            f"{printable(name, 100)} is the beginning of several {noun}s: {', '.join(ids[:IDS_SHOWN])}{more}",
            remedy="Write more of it.",
        )
    return ids[0]


class RunStatus(StrEnum):
    PREPARED = "PREPARED"  # the row exists, with its scenario
    STARTING = "STARTING"  # workers connect
    RUNNING = "RUNNING"
    STOPPING = "STOPPING"  # workers drain; then the results are computed
    COMPLETED = "COMPLETED"
    CANCELLING = "CANCELLING"  # a user has requested the end
    CANCELLED = "CANCELLED"
    FAILED = "FAILED"

    @property
    def is_terminal(self) -> bool:
        return not RUN_TRANSITIONS[self]


class Phase(StrEnum):
    PREPARING = "PREPARING"
    WARMUP = "WARMUP"
    MEASUREMENT = "MEASUREMENT"
    COOLDOWN = "COOLDOWN"
    PROCESSING = "PROCESSING"

    @property
    def is_measured(self) -> bool:
        """Whether the measurement has begun."""
        return PHASES.index(self) >= PHASES.index(Phase.MEASUREMENT)


_S = RunStatus
RUN_TRANSITIONS: dict[RunStatus, frozenset[RunStatus]] = {
    _S.PREPARED: frozenset({_S.STARTING, _S.CANCELLING, _S.FAILED}),
    _S.STARTING: frozenset({_S.RUNNING, _S.STOPPING, _S.CANCELLING, _S.FAILED}),
    _S.RUNNING: frozenset({_S.STOPPING, _S.CANCELLING, _S.FAILED}),
    _S.STOPPING: frozenset({_S.COMPLETED, _S.FAILED}),
    _S.CANCELLING: frozenset({_S.CANCELLED, _S.FAILED}),
    _S.COMPLETED: frozenset(),
    _S.CANCELLED: frozenset(),
    _S.FAILED: frozenset(),
}
PHASES = tuple(Phase)


class InvalidTransition(LoadgenError):
    """A transition that does not exist: an error of the caller."""


def check_transition(status: RunStatus, phase: Phase, to: RunStatus, to_phase: Phase) -> None:
    """Check a transition: the status stays or moves along STEPS, the phase stays or moves forward."""
    if status.is_terminal or (to is not status and to not in RUN_TRANSITIONS[status]):
        raise InvalidTransition(f"a run that is {status} cannot become {to}")
    if PHASES.index(to_phase) < PHASES.index(phase):
        raise InvalidTransition(f"a run in {phase} cannot go back to {to_phase}")


class RowEnrichment(StrEnum):
    """The enrichment of one logged statement. The names are stored in QUERY_EXECUTIONS.ENRICHMENT_STATUS."""

    PENDING = "PENDING"  # not looked up yet, or too recent for the history
    ENRICHED = "ENRICHED"  # has the times of the server; final
    NOT_FOUND = "NOT_FOUND"  # the history does not contain it, and is no longer late
    SKIPPED = "SKIPPED"  # not looked up, because the history does not contain such statements
    FAILED = "FAILED"  # the history contains it without times


class RunEnrichment(StrEnum):
    """The enrichment of a run. The names are stored in RUN_STATUS.ENRICHMENT_STATUS and in summary.json."""

    PENDING = "PENDING"  # some statements may still appear in the history
    ENRICHED = "ENRICHED"  # all statements that were looked up were found
    PARTIAL = "PARTIAL"  # final, and some statements were not found
    SKIPPED = "SKIPPED"  # no statement was looked up
    FAILED = "FAILED"  # the history could not be read


# --- Worker processes: states, the transitions between them, exit codes, ends -----------------------------------------


class WorkerStatus(StrEnum):
    STARTING = "STARTING"  # connecting
    WAITING = "WAITING"  # for START; every connection is open
    RUNNING = "RUNNING"
    DRAINING = "DRAINING"  # no new statements
    COMPLETED = "COMPLETED"
    DEAD = "DEAD"  # written by the worker with its last heartbeat; missing heartbeats are judged by the leader

    @property
    def is_terminal(self) -> bool:
        return self in (WorkerStatus.COMPLETED, WorkerStatus.DEAD)


_WORKER_S = WorkerStatus
WORKER_TRANSITIONS: dict[WorkerStatus, frozenset[WorkerStatus]] = {
    _WORKER_S.STARTING: frozenset({_WORKER_S.WAITING, _WORKER_S.DRAINING, _WORKER_S.DEAD}),
    _WORKER_S.WAITING: frozenset({_WORKER_S.RUNNING, _WORKER_S.DRAINING, _WORKER_S.DEAD}),
    _WORKER_S.RUNNING: frozenset({_WORKER_S.DRAINING, _WORKER_S.DEAD}),
    _WORKER_S.DRAINING: frozenset({_WORKER_S.COMPLETED, _WORKER_S.DEAD}),
    _WORKER_S.COMPLETED: frozenset(),
    _WORKER_S.DEAD: frozenset(),
}


class WorkerExit(IntEnum):
    """The exit code of a worker."""

    CLEAN = 0
    CONFIGURATION = 1  # invalid arguments, scenario or SQL; another worker with this id is alive
    NO_CONTROL_PLANE = 2  # the control plane was unreachable for too long
    NO_START = 3  # no START in time
    FATAL = 4  # a bug, or the run has no leader any more


_LOGGED_ERRORS = ("error: ", "Fatal Python error: ")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessEnd:
    """The end of a worker process. A negative `code` is the number of the signal that killed it."""

    worker_id: str
    code: int
    last_lines: tuple[str, ...] = ()

    @property
    def error(self) -> str | None:
        """The last error message among the last lines of its log. Other lines may follow it."""
        lines = [line for line in self.last_lines if line.startswith(_LOGGED_ERRORS)]
        return lines[-1].removeprefix("error: ").removeprefix(f"{self.worker_id}: ") if lines else None

    @property
    def sentence(self) -> str:
        how = f"was killed by signal {-self.code}" if self.code < 0 else f"exited with code {self.code}"
        return f"{self.worker_id} {how}"


_REFUSED_STATEMENT = re.compile(r"worker-\d+ [^:]*: statement (?P<name>.+?): ")


def error_hint(reason: str) -> str | None:
    """What to do about a run that ended for this reason. None: the reason says it."""
    found = _REFUSED_STATEMENT.match(reason)
    return None if found is None else f"Check the SQL of statement {found['name']}."


def worker_share(total: int, index: int, count: int) -> int:
    """Part `index` of `total`. The parts add up exactly and differ by at most one; low indexes get the remainder."""
    if count < 1 or not 0 <= index < count:
        raise ValueError(f"there is no part {index} of {count}")
    if total < 0:
        raise ValueError(f"cannot split {total}: it is negative")
    base, extra = divmod(total, count)
    return base + (index < extra)
