"""A runner: takes runs from the queue and executes them, one at a time, until it is asked to end.

thread     does                                                               owns
main       answers its manager, handles signals, checks the lease; no driver  stdin, stdout
runs       claims a run, follows it, stores its outcome                       a session, the process of the run
heartbeat  keeps the runner registered, and renews the lease of its run       a separate session
"""

from __future__ import annotations

import logging
import os
import platform
import random
import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import loadgen
from loadgen.clock import Clock, SystemClock
from loadgen.control.lease import LeaseTimes, LeaseTrust
from loadgen.control.location import ControlPlaneLocation
from loadgen.control.session import ControlSession, RowUnreadable
from loadgen.control.tables import pool_workers, run_queue
from loadgen.control.tables.pool_workers import PoolWorkerIdentity, RegistryReply, new_worker_id
from loadgen.control.tables.run_queue import AttemptResult, QueueClaim
from loadgen.errors import LoadgenError
from loadgen.log import event, printable
from loadgen.model.nightly import AttemptStatus, QueueStatus, was_signalled
from loadgen.report.formatting import verdict_word
from loadgen.snowflake import driver
from loadgen.snowflake.session import RetryPolicy
from loadgen.threads import Service
from loadgen.units import NS_PER_S
from loadgen.values import dataclass
from orchestrator.nightly.attempt import (
    LOADGEN_COMMAND,
    STOP_S,
    AttemptOutcome,
    InvalidQueueRow,
    RunProcess,
    judge_attempt,
    start_attempt,
)

log = logging.getLogger(__name__)

# --- The heartbeat of a runner: one thread, one connection -----------------------------------------------------------
# Each heartbeat also renews the lease of the current run. As with the leader of a run (loadgen.control.lease), the
# database decides who holds a lease; the local clock only ends the trust in it earlier.

_AGAIN_S = 1.0  # after a failed heartbeat
_JOIN_S = 20.0  # longer than two statements may take


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldClaim:
    """The claim on the current run, and for how long the runner may trust its lease."""

    claim: QueueClaim
    trust: LeaseTrust
    run_id: str | None = None  # None: not known yet


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptCounts:
    """Number of attempts that the runner has executed."""

    completed: int = 0
    failed: int = 0


class RunnerHeartbeat(Service):
    """The heartbeat thread. Owns `session`, which it closes. The thread `runs` sets what is held and counted."""

    def __init__(self, session: ControlSession, me: PoolWorkerIdentity, *, lease_s: float, clock: Clock) -> None:
        self.held: HeldClaim | None = None
        self.counted = AttemptCounts()
        self.registered = threading.Event()
        self.draining = threading.Event()  # set by the answer of the registry, or by this process
        self.error: BaseException | None = None  # why the heartbeats have ended
        self._session, self._me, self._lease_s, self._clock = session, me, lease_s, clock
        super().__init__("heartbeat", self._keep)
        self._woken = threading.Event()  # send the next heartbeat now
        self._retries = RetryPolicy(stop=self.stopping, clock=clock)
        self._beat_s = pool_workers.beat_s(lease_s)
        self._idle_s: float | None = None
        self._drain_stored = False

    def hold(self, held: HeldClaim | None) -> None:
        """Set the current run."""
        self.held = held
        self._woken.set()

    def set_idle(self, beat_s: float | None) -> None:
        """Set the heartbeat interval of an idle pool. None: there may be work."""
        if beat_s != self._idle_s:
            self._idle_s = beat_s
            self._woken.set()

    def stop(self) -> None:
        """Report OFFLINE, and end within _JOIN_S. Safe to call twice."""
        super().stop()
        self._woken.set()
        self.join(_JOIN_S)

    def new_trust(self, begun_ns: int) -> LeaseTrust:
        """The trust in a lease whose claim began at this time."""
        times = LeaseTimes(ttl_s=self._lease_s, renew_s=self._beat_s, margin_s=self._lease_s / 12)
        return LeaseTrust(times, begun_ns)

    def step(self) -> bool:
        """Send one heartbeat, and renew the lease of the current run. Returns False on failure."""
        try:
            self._beat()
        except LoadgenError as error:
            event(log, logging.WARNING, "beat_failed", runner=self._me.worker_id, why=str(error))
            return False
        return True

    # --- the thread --------------------------------------------------------------------------------------------------

    def _keep(self) -> None:
        try:
            self._take_reply(self._register())
        except LoadgenError as error:
            self.error = error
        self.registered.set()
        if self.error is None:
            try:
                self._keep_beating()
            except BaseException as error:  # a bug, or a panic of the driver: a runner without heartbeats must end
                self.error = error
                self.draining.set()
            self._unregister()
        self._session.close()

    def _keep_beating(self) -> None:
        wait_s = self._beat_s
        while not self.stopping.is_set():
            self._clock.wait(self._woken, wait_s)
            self._woken.clear()
            if not self.stopping.is_set():
                wait_s = self._beat_s if self.step() else min(self._beat_s, _AGAIN_S)

    def _beat(self) -> None:
        held, begun_ns = self.held, self._clock.monotonic_ns()
        answer = pool_workers.beat(
            self._session,
            self._me.worker_id,
            current_run=None if held is None else held.claim.queue_id,
            completed=self.counted.completed,
            failed=self.counted.failed,
            lease_s=self._lease_s,
            idle_s=self._idle_s if held is None else None,
            draining=self._drain_stored,
        )
        if answer is None:
            event(log, logging.WARNING, "runner_row_missing", runner=self._me.worker_id)
            answer = self._register()
        if held is not None:  # claimed before the statement: if no row was extended, another runner has the run
            if run_queue.extend(self._session, held.claim, self._lease_s, run_id=held.run_id):
                held.trust.renewed(begun_ns)
            else:
                held.trust.lose()
        self._take_reply(answer)

    def _take_reply(self, answer: RegistryReply) -> None:
        self._beat_s = answer.beat_s
        if answer.should_drain:
            self._drain_stored = True
            self.draining.set()
        elif self.draining.is_set() and not self._drain_stored:
            pool_workers.drain(self._session, self._retries, self._me.worker_id)
            self._drain_stored = True

    def _register(self) -> RegistryReply:
        return pool_workers.register(
            self._session, self._retries, self._me, draining=self.draining.is_set(), lease_s=self._lease_s
        )

    def _unregister(self) -> None:
        """Send the last counts and OFFLINE, without retries: a runner without heartbeats counts as OFFLINE."""
        retries = RetryPolicy(stop=threading.Event(), attempts=1, clock=self._clock)
        try:
            self._beat()
            pool_workers.offline(self._session, retries, self._me.worker_id)
        except LoadgenError as error:
            event(log, logging.INFO, "unregister_failed", runner=self._me.worker_id, why=str(error))


# --- The runner ------------------------------------------------------------------------------------------------------

PROCESS_CHECK_S = 0.1  # between checks of the process of a run
IDLE_CHECK_S = 0.5  # between checks whether the pool is still idle
ASKED_TO_END = "its runner was asked to end"
GIVEN_UP = "its runner stopped it: the control plane failed or did not answer"
ATTEMPTS = 4  # of a statement; a lease does not last for more
_COULD_NOT_START = 1  # exit codes of an attempt whose run was never created
_HOPELESS = 2
SIGNAL_S = 1.0  # a signal to several processes reaches all of them within this time
EVENTS_KEPT = 1_000  # lines that the manager has not read
EVENT_LENGTH_MAX = 1_000  # characters: a line must be written at once


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerSettings:
    runs_folder: Path
    lease_s: float = 60.0
    poll_s: float = 5.0
    stop_s: float = STOP_S
    share: bool = False  # share warehouses with other runs
    options: tuple[str, ...] = ()  # of each `loadgen run`: the permissions on this host
    program: Sequence[str] = LOADGEN_COMMAND


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerState:
    """The answer to a ping."""

    worker_id: str  # in the registry
    registered: bool
    draining: bool
    queue_id: str | None  # of the current run
    runs: int
    idle_s: float | None  # None: it executes a run, or is not registered yet


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptInterruption:
    """Reasons for the end of an attempt that its exit code does not show."""

    cancelled: bool = False  # at the request of a user
    interrupted: bool = False  # because the runner ends
    lost: bool = False  # the lease was lost: the outcome must not be stored


class Runner:
    """drain(), interrupt(), guard(), set_idle() and state() are called by other threads. `done` is set at the end."""

    def __init__(
        self,
        make_session: Callable[[str], ControlSession],
        me: PoolWorkerIdentity,
        settings: RunnerSettings,
        *,
        clock: Clock | None = None,
    ) -> None:
        self.done = threading.Event()
        self.error: BaseException | None = None
        self._me, self._settings, self._clock = me, settings, clock or SystemClock()
        self._session = make_session("runner")
        self._beats = RunnerHeartbeat(make_session("heartbeat"), me, lease_s=settings.lease_s, clock=self._clock)
        self._drain_by_ns: int | None = None
        self._draining = threading.Event()  # this process was asked to end
        self._drain_reason: str | None = None  # the reason of a run that is interrupted
        self._interrupted_now = threading.Event()  # this process was asked to end within seconds
        self._is_idle = False  # the pool has no work
        self._events: deque[str] = deque(maxlen=EVENTS_KEPT)
        self._in_doubt = False  # the answer to a claim was lost: this runner may hold a run
        self._runs = 0
        self._idle_since_ns: int | None = None
        self._process: RunProcess | None = None
        self._thread = threading.Thread(target=self._run, name="runs", daemon=True)

    def start(self) -> None:
        self._beats.start()
        self._thread.start()

    def drain(self, grace_s: float | None, why: str = ASKED_TO_END) -> None:
        """Take no new run, and end the current one at the latest after the grace time. None: without a time limit.
        `why` is the reason of a run that this interrupts; the first reason counts."""
        if grace_s is not None and self._drain_reason is None:
            self._drain_reason = why
        if grace_s is not None:
            by_ns = self._clock.monotonic_ns() + round(grace_s * NS_PER_S)
            self._drain_by_ns = by_ns if self._drain_by_ns is None else min(by_ns, self._drain_by_ns)
            self._draining.set()
        self._beats.draining.set()

    def set_idle(self, beat_s: float | None) -> None:
        """The pool has no work: do not read the queue; send heartbeats at this interval. None: there may be work."""
        self._is_idle = beat_s is not None
        self._beats.set_idle(beat_s)

    def interrupt(self, why: str) -> None:
        """End within seconds: the current run is ended and queued again."""
        self._interrupted_now.set()
        self.drain(0.0, why)

    def guard(self) -> None:
        """Stop the current run if its lease is lost. For the main thread: other threads may wait for the driver."""
        held, process = self._beats.held, self._process
        if held is not None and process is not None and not held.trust.holds(self._clock.monotonic_ns()):
            process.stop()

    def state(self) -> RunnerState:
        held, since_ns = self._beats.held, self._idle_since_ns
        idle = held is None and since_ns is not None
        return RunnerState(
            worker_id=self._me.worker_id,
            registered=self._beats.registered.is_set() and self._beats.error is None,
            draining=self._beats.draining.is_set(),
            queue_id=None if held is None else held.claim.queue_id,
            runs=self._runs,
            idle_s=(self._clock.monotonic_ns() - since_ns) / NS_PER_S if idle and since_ns is not None else None,
        )

    def take_events(self) -> list[str]:
        """The events since the last call, one line each."""
        events: list[str] = []
        with suppress(IndexError):
            while True:
                events.append(self._events.popleft())
        return events

    # --- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._beats.registered.wait()
            if self._beats.error is not None:
                raise self._beats.error
            self._idle_since_ns = self._clock.monotonic_ns()
            while not self._beats.draining.is_set():
                if not self._take_one():
                    self._pause()
            if self._in_doubt:
                self._release_unknown()
        except BaseException as error:  # the top of a thread: the main thread reports it
            self.error = error
        finally:
            self._session.close()
            self._beats.stop()
            self.done.set()

    def _pause(self) -> None:
        """Wait until the queue has to be read again. While there is no work the pool reads it for all runners."""
        self._clock.wait(self._beats.draining, self._settings.poll_s * random.uniform(0.8, 1.2))
        while self._is_idle and not self._beats.draining.is_set():
            self._clock.wait(self._beats.draining, IDLE_CHECK_S)

    def _take_one(self) -> bool:
        """Claim and execute a run. Returns False if there is none, or if the control plane is unreachable."""
        begun_ns = self._clock.monotonic_ns()
        retries = self._retries(self._beats.draining)
        try:
            if self._in_doubt:
                run_queue.expire(self._session, retries, self._me.worker_id, GIVEN_UP)
                self._in_doubt = False
            offers, ttl_s = self._me.capabilities, self._settings.lease_s
            claim = run_queue.claim(
                self._session, retries, self._me.worker_id, offers, ttl_s, share=self._settings.share
            )
        except LoadgenError as error:
            self._in_doubt = True
            event(log, logging.WARNING, "claim_failed", runner=self._me.worker_id, why=str(error))
            return False
        if claim is None:
            return False
        try:
            self._beats.hold(HeldClaim(claim=claim, trust=self._beats.new_trust(begun_ns)))
            self._attempt(claim)
        except LoadgenError as error:  # the outcome is not stored: the lease expires, and another runner repeats it
            self._in_doubt = True
            event(log, logging.WARNING, "attempt_failed", queued=claim.queue_id, why=str(error))
        finally:
            self._beats.hold(None)
            self._runs += 1
            self._idle_since_ns = self._clock.monotonic_ns()
        return True

    def _release_unknown(self) -> None:
        """Release a run that this runner may have claimed without knowing, so that its lease need not expire."""
        try:
            run_queue.expire(self._session, self._retries(threading.Event()), self._me.worker_id, GIVEN_UP)
        except LoadgenError as error:
            event(log, logging.INFO, "release_failed", runner=self._me.worker_id, why=str(error))

    def _attempt(self, claim: QueueClaim) -> None:
        retries = self._retries(threading.Event())
        try:
            wanted = retries.call(lambda: run_queue.claimed_run(self._session, claim))
        except RowUnreadable as error:
            self._record(claim, 1, AttemptResult(exit_code=_HOPELESS, reason=str(error)), AttemptInterruption())
            return
        if wanted is None:
            return
        event(log, logging.INFO, "run_claimed", queued=claim.queue_id, epoch=claim.epoch, attempt=wanted.number)
        self._tell(f"claimed {claim.queue_id}, attempt {wanted.number}")
        try:
            process = start_attempt(
                claim,
                wanted,
                self._settings.runs_folder,
                [*self._settings.options, *(["--share-warehouse"] if self._settings.share else [])],
                program=self._settings.program,
                stop_s=self._settings.stop_s,
            )
        except (OSError, ValueError, TypeError, InvalidQueueRow) as error:  # texts of the row may be invalid arguments
            code = _COULD_NOT_START if isinstance(error, OSError) else _HOPELESS
            result = AttemptResult(exit_code=code, reason=f"it could not start: {error}")
            self._record(claim, wanted.attempts, result, AttemptInterruption())
            return
        try:
            self._process = process
            followed = self._follow(claim, process)
            warnings = process.warnings()
            result = process.result()
        finally:
            self._process = None
            process.close()
        for line in warnings:
            self._tell(f"{claim.queue_id}: {line}")
        assert result.exit_code is not None
        self._record(claim, wanted.attempts, result, self._interrupted(result.exit_code, followed))

    def _interrupted(self, exit_code: int, followed: AttemptInterruption) -> AttemptInterruption:
        """A run that ends by a signal is interrupted if this process receives the same signal: systemd, for example,
        signals every process of a service, and the run may end first."""
        if followed.cancelled or followed.interrupted:
            return followed
        if self._draining.is_set() or (was_signalled(exit_code) and self._clock.wait(self._draining, SIGNAL_S)):
            return replace(followed, interrupted=True)
        return followed

    def _follow(self, claim: QueueClaim, process: RunProcess) -> AttemptInterruption:
        """Follow the run until it ends: learn its id, and stop it after a request to cancel it, when this runner ends,
        or when its lease is lost."""
        seen, known, read_ns = AttemptInterruption(), False, self._clock.monotonic_ns()
        held, never, tried = self._beats.held, threading.Event(), False
        assert held is not None
        while process.exit_code is None:
            self._clock.wait(never, PROCESS_CHECK_S)
            before, now_ns = seen, self._clock.monotonic_ns()
            if not held.trust.holds(self._clock.monotonic_ns()):
                seen = replace(seen, lost=True)
            elif self._drain_by_ns is not None and now_ns >= self._drain_by_ns:
                seen = replace(seen, interrupted=True)
            run_id = None if known else process.run_id
            if not seen.lost and (now_ns >= read_ns or (run_id is not None and not tried)):
                seen = self._read_status(claim, seen)
                if run_id is not None:
                    if not tried:
                        self._tell(f"started {claim.queue_id} as run {run_id}")
                    self._beats.hold(replace(held, run_id=run_id))
                    known, tried = self._store_run_id(claim, run_id), True
                read_ns = self._clock.monotonic_ns() + round(self._settings.poll_s * NS_PER_S)
            if seen != before:
                event(log, logging.INFO, "run_stopped", queued=claim.queue_id, why=repr(seen))
                process.stop()
            if self._interrupted_now.is_set():
                process.interrupt()
        return seen if held.trust.holds(self._clock.monotonic_ns()) else replace(seen, lost=True)

    def _read_status(self, claim: QueueClaim, seen: AttemptInterruption) -> AttemptInterruption:
        try:
            status = run_queue.claim_status(self._session, claim)
        except LoadgenError as error:  # the run continues while the lease is trusted
            event(log, logging.WARNING, "claim_status_not_read", queued=claim.queue_id, why=str(error))
            return seen
        if status is None:
            return replace(seen, lost=True)
        return replace(seen, cancelled=status is QueueStatus.CANCEL_REQUESTED)

    def _store_run_id(self, claim: QueueClaim, run_id: str) -> bool:
        try:
            run_queue.set_run(self._session, RetryPolicy(stop=self.done, attempts=1, clock=self._clock), claim, run_id)
        except LoadgenError:
            return False
        return True

    def _record(self, claim: QueueClaim, attempts: int, result: AttemptResult, followed: AttemptInterruption) -> None:
        """Store the outcome of an attempt, if this runner still holds the lease."""
        assert result.exit_code is not None
        outcome = judge_attempt(
            result.exit_code,
            attempts=attempts,
            cancelled=followed.cancelled,
            interrupted=followed.interrupted,
            chance=random.random(),
        )
        # A run that was stopped because of a lost lease has no outcome. A result may be in time: SQL decides that.
        has_result = outcome.attempt is AttemptStatus.COMPLETED
        accepted = (has_result or not followed.lost) and self._accepted(claim, result, outcome)
        counted = self._beats.counted
        if accepted and has_result:
            self._beats.counted = replace(counted, completed=counted.completed + 1)
        elif not accepted or outcome.attempt is AttemptStatus.FAILED:
            self._beats.counted = replace(counted, failed=counted.failed + 1)
        became = outcome.attempt if accepted else AttemptStatus.LOST
        event(log, logging.INFO, "run_ended", queued=claim.queue_id, code=result.exit_code, attempt=became)
        verdict = "" if result.verdict is None else f" {verdict_word(result.verdict)}"
        again = "; queued again" if accepted and outcome.final is None else ""
        why = f": {result.reason}" if became is AttemptStatus.FAILED else ""
        self._tell(f"ended {claim.queue_id}: {became}{verdict}, exit code {result.exit_code}{again}{why}")

    def _accepted(self, claim: QueueClaim, result: AttemptResult, outcome: AttemptOutcome) -> bool:
        retries = self._retries(threading.Event())
        if outcome.attempt is AttemptStatus.CANCELLED:
            result = replace(result, reason=None)  # the row has the reason of the user
        elif outcome.attempt is AttemptStatus.INTERRUPTED:
            result = replace(result, reason=self._drain_reason)  # the run itself reports that a user has stopped it
        if outcome.final is not None:
            accepted = run_queue.finish(self._session, retries, claim, outcome.final, result)
        else:
            accepted = run_queue.release(
                self._session,
                retries,
                claim,
                result,
                pause_s=outcome.pause_s,
                counts=outcome.counts,
                status=outcome.attempt,
            )
        return accepted

    def _tell(self, line: str) -> None:
        self._events.append(printable(line, EVENT_LENGTH_MAX).replace("\n", " "))

    def _retries(self, stop: threading.Event) -> RetryPolicy:
        return RetryPolicy(stop=stop, attempts=ATTEMPTS, clock=self._clock)


def capabilities(labels: tuple[str, ...]) -> tuple[str, ...]:
    """The properties of this machine and the labels. A label replaces a property of the same name."""
    known = {
        "host": socket.gethostname(),
        "os": platform.system().lower(),
        "python": ".".join(platform.python_version_tuple()[:2]),
        "driver": str(driver.major()),
        "loadgen": loadgen.__version__,
    }
    given = {label.partition("=")[0] for label in labels}
    own = {f"{key}={value}" for key, value in known.items() if key not in given}
    return tuple(sorted(own | set(labels)))


def runner_identity(place: ControlPlaneLocation, labels: tuple[str, ...]) -> PoolWorkerIdentity:
    """The identity of this process in the registry of runners."""
    return PoolWorkerIdentity(
        worker_id=new_worker_id(),
        hostname=socket.gethostname()[:255],
        pid=os.getpid(),
        version=loadgen.__version__,
        task_queue=f"{place.database}.{place.schema}"[:100],
        labels=labels,
        capabilities=capabilities(labels),
    )
