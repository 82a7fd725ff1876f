"""Whether a worker may take the place of one that ended: it draws the same values, from the first one on.

For most workloads that does no harm. A sequence or a UUID promises values that nobody had before, and a strict session
that nobody has it again once its connection is gone. Where the predecessor got to, nobody knows, for it may have sent
statements after its last beat.
"""

from __future__ import annotations

from loadgen.control import run_status
from loadgen.control.retry import Patience
from loadgen.control.session import ControlSession
from loadgen.control.worker_heartbeats import Beat, WorkerRow
from loadgen.errors import LoadgenError
from loadgen.model.run import RunStatus
from loadgen.model.workload import Parameter, Remembered, Sequence, Uuid
from loadgen.scenario.frozen import thaw
from loadgen.scenario.scenario import Affinity, Scenario

_BEFORE_LOAD = (RunStatus.PREPARED, RunStatus.STARTING)


class ValuesDrawn(LoadgenError):
    """The values of this worker's sequences were drawn by another process already."""

    exit_code = 1
    remedy = "Start a new run: only a worker without `sequence`, `uuid` and strict sessions can be replaced."


def check_predecessor(session: ControlSession, patience: Patience, there: WorkerRow) -> None:
    """Raises ValuesDrawn when the process whose row this is must not be followed by another."""
    run_id = there.identity.run_id
    run = patience.call(lambda: run_status.read(session, run_id))
    text = patience.call(lambda: run_status.read_config(session, run_id))
    if run is None or text is None or run.status.is_terminal:
        return  # there is nothing to do for anybody, and that is said elsewhere
    statement = statement_that_repeats(thaw(text, None))
    if statement is not None and may_have_drawn(there.beat, run.status):
        other = there.identity
        raise ValuesDrawn(
            f"worker {other.worker_id} of run {run_id} cannot be replaced: statement {statement} would draw values"
            f" again that process {other.pid} on {other.hostname} has drawn"
        )


def may_have_drawn(last: Beat, run: RunStatus) -> bool:
    """Whether a process may have made load, by its last beat. One that said it was done has said all there is."""
    if last.phase is not None:
        return True
    return not last.status.is_terminal and run not in _BEFORE_LOAD


def statement_that_repeats(scenario: Scenario) -> str | None:
    """The first statement whose values must not come twice."""
    is_strict = scenario.sessions.affinity is Affinity.STRICT
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
