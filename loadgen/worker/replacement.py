"""Whether a worker may take the place of one that ended: it draws the same values, from the first one on.

For most workloads that does no harm. A sequence or a UUID promises values that nobody had before, and a strict session
that nobody has it again once its connection is gone. Where the predecessor got to, nobody knows, for it may have sent
statements after its last beat.
"""

from __future__ import annotations

from loadgen.control.retry import RetryPolicy
from loadgen.control.session import ControlSession
from loadgen.control.tables import run_status
from loadgen.control.tables.worker_heartbeats import HeartbeatRow, WorkerHeartbeat
from loadgen.errors import LoadgenError
from loadgen.model.run import RunStatus
from loadgen.model.workload import Parameter, Remembered, Sequence, Uuid
from loadgen.scenario.frozen import thaw
from loadgen.scenario.model import Scenario, SessionAffinity

_BEFORE_LOAD = (RunStatus.PREPARED, RunStatus.STARTING)


class WorkerNotReplaceable(LoadgenError):
    """The values of this worker's sequences were drawn by another process already."""

    exit_code = 1
    remedy = "Start a new run: only a worker without `sequence`, `uuid` and strict sessions can be replaced."


def check_replacement_allowed(session: ControlSession, patience: RetryPolicy, there: HeartbeatRow) -> None:
    """Raises ValuesDrawn when the process whose row this is must not be followed by another."""
    run_id = there.identity.run_id
    run = patience.call(lambda: run_status.read(session, run_id))
    text = patience.call(lambda: run_status.read_config(session, run_id))
    if run is None or text is None or run.status.is_terminal:
        return  # there is nothing to do for anybody, and that is said elsewhere
    statement = first_unrepeatable_statement(thaw(text, None))
    if statement is not None and may_have_sent_load(there.beat, run.status):
        other = there.identity
        raise WorkerNotReplaceable(
            f"worker {other.worker_id} of run {run_id} cannot be replaced: statement {statement} would draw values"
            f" again that process {other.pid} on {other.hostname} has drawn"
        )


def may_have_sent_load(last: WorkerHeartbeat, run: RunStatus) -> bool:
    """Whether a process may have made load, by its last beat. One that said it was done has said all there is."""
    if last.phase is not None:
        return True
    return not last.status.is_terminal and run not in _BEFORE_LOAD


def first_unrepeatable_statement(scenario: Scenario) -> str | None:
    """The first statement whose values must not come twice."""
    is_strict = scenario.sessions.affinity is SessionAffinity.STRICT
    for statement in scenario.workload.statements:
        if statement.session and is_strict:
            return statement.name
        for query in statement.queries:
            if any(_is_new_each_time(parameter) for parameter in query.parameters):
                return statement.name
    return None


def _is_new_each_time(parameter: Parameter) -> bool:
    drawn = parameter.of if isinstance(parameter, Remembered) else parameter
    return isinstance(drawn, (Sequence, Uuid))
