"""The heartbeat thread: one UPDATE per interval on a dedicated session; registration and replacement of a worker."""

from __future__ import annotations

import faulthandler
import logging
import os
import random
import socket
import threading
from collections.abc import Callable, Mapping

from loadgen import __version__
from loadgen.clock import Clock
from loadgen.control.session import ControlSession
from loadgen.control.tables import run_status
from loadgen.control.tables.worker_heartbeats import HeartbeatRow, WorkerHeartbeat, WorkerIdentity, beat, register
from loadgen.errors import LoadgenError
from loadgen.log import event
from loadgen.model.run import RunStatus, WorkerExit
from loadgen.model.workload import Parameter, Remembered, Sequence, Uuid
from loadgen.scenario.frozen import thaw
from loadgen.scenario.model import Scenario
from loadgen.scenario.settings import SessionAffinity
from loadgen.snowflake.session import RetryPolicy
from loadgen.snowflake.settings import CONTROL_MARGIN_S, CONTROL_STATEMENT_S
from loadgen.units import NS_PER_S
from loadgen.worker.arguments import WorkerArguments, labels_of
from loadgen.worker.worker_state import ExitReason, WorkerSharedState, exit_reason_for

_BEFORE_LOAD = (RunStatus.PREPARED, RunStatus.STARTING)
# Two pods of one index have the same host name, and their workers the same process id; the name of a pod is unique.
HOSTNAME_VARIABLE = "LOADGEN_HOSTNAME"


class WorkerNotReplaceable(LoadgenError):
    """Another process has already drawn values of this worker's sequences."""

    exit_code = 1
    remedy = "Start a new run: only a worker without `sequence`, `uuid` and strict sessions can be replaced."


def check_replacement_allowed(session: ControlSession, retries: RetryPolicy, there: HeartbeatRow) -> None:
    """Raises WorkerNotReplaceable if the process with this row must not be replaced by another one."""
    run_id = there.identity.run_id
    run = retries.call(lambda: run_status.read(session, run_id))
    text = retries.call(lambda: run_status.read_config(session, run_id))
    if run is None or text is None or run.status.is_terminal:
        return  # the run was deleted or has ended; the control thread reports it
    statement = first_unrepeatable_statement(thaw(text, None))
    if statement is not None and may_have_sent_load(there.beat, run.status):
        other = there.identity
        raise WorkerNotReplaceable(
            f"worker {other.worker_id} of run {run_id} cannot be replaced: statement {statement} would draw values"
            f" again that process {other.pid} on {other.hostname} has drawn"
        )


def may_have_sent_load(last: WorkerHeartbeat, run: RunStatus) -> bool:
    """Whether a process with this last heartbeat may have generated load."""
    if last.phase is not None:
        return True
    return not last.status.is_terminal and run not in _BEFORE_LOAD


def first_unrepeatable_statement(scenario: Scenario) -> str | None:
    """The name of the first statement whose values must not be drawn twice; None: there is no such statement."""
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


log = logging.getLogger(__name__)

# A predecessor with the same id counts as dead after this silence, and after this number of missing heartbeats.
PREDECESSOR_DEAD_S = 10.0
PREDECESSOR_HEARTBEATS = 6
# For the last heartbeat: longer than one that is under way, and hangs, may take. Shorter when the worker has to hurry.
LAST_BEAT_S = CONTROL_STATEMENT_S + CONTROL_MARGIN_S + 2.0
HURRIED_BEAT_S = 5.0


class Heartbeat:
    """run() is the thread; finish() is for the main thread, which then waits for `said_last`."""

    def __init__(
        self,
        session: ControlSession,
        me: WorkerIdentity,
        shared: WorkerSharedState,
        compose: Callable[[int], WorkerHeartbeat],
        *,
        period_s: float,
        clock: Clock,
    ) -> None:
        """`compose` makes the heartbeat with a number."""
        self._session, self._me, self._shared, self._compose = session, me, shared, compose
        self.period_s, self._clock = period_s, clock
        self._count = 1  # the registration counts as the first heartbeat
        self.registered = threading.Event()
        self.is_first = False  # True: no other process has had this worker id; valid once it is registered
        self._finishing = threading.Event()
        self.said_last = threading.Event()  # the last heartbeat is stored, or the thread has ended

    def run(self, retries: RetryPolicy) -> None:
        try:
            self._keep_beating(retries)
        finally:
            self.said_last.set()
            self._session.close()

    def _keep_beating(self, retries: RetryPolicy) -> None:
        try:
            silent_s = max(PREDECESSOR_DEAD_S, PREDECESSOR_HEARTBEATS * self.period_s)
            self.is_first = register(
                self._session, retries, self._me, silent_ms=round(silent_s * 1000), check=self._check(retries)
            )
        except LoadgenError as error:
            self._shared.end(exit_reason_for(error))
            return
        faulthandler.cancel_dump_traceback_later()  # set by main() to log the stacks of a start that hangs
        self._shared.contact()
        self.registered.set()
        # Workers that were started together must not send their heartbeats together.
        due_ns = self._clock.monotonic_ns() - round(random.uniform(0.0, self.period_s) * NS_PER_S)
        while True:
            finishing = self._finishing.is_set()
            is_sent = self._beat()
            if finishing and is_sent:
                break
            due_ns = max(due_ns + round(self.period_s * NS_PER_S), self._clock.monotonic_ns())
            self._clock.wait(self._finishing, (due_ns - self._clock.monotonic_ns()) / NS_PER_S)
            if finishing:  # the last heartbeat failed: retry soon, until the process ends
                self._clock.wait(self.said_last, 0.2)

    def _check(self, retries: RetryPolicy) -> Callable[[HeartbeatRow], None]:
        return lambda there: check_replacement_allowed(self._session, retries, there)

    def finish(self) -> None:
        """Send the last heartbeat, with the final state."""
        self._finishing.set()

    def _beat(self) -> bool:
        self._count += 1
        try:
            ours = beat(self._session, self._me, self._compose(self._count))
        except LoadgenError as error:  # even a refused login: the next heartbeat retries
            event(log, logging.DEBUG, "beat_failed", what=str(error))
            return False
        self._shared.contact()
        if not ours:
            text = f"worker {self._me.worker_id} was replaced by another process"
            self._shared.end(ExitReason(code=WorkerExit.FATAL, error=text, replaced=True))
        return True


def identity_of(arguments: WorkerArguments, environ: Mapping[str, str]) -> WorkerIdentity:
    """The identity of this process, as in its row."""
    return WorkerIdentity(
        run_id=arguments.run_id,
        worker_id=arguments.worker_id,
        worker_group_id=arguments.worker_group_id,
        hostname=(environ.get(HOSTNAME_VARIABLE) or socket.gethostname())[:255],
        pid=os.getpid(),
        version=__version__,
        labels=labels_of(environ),
    )
