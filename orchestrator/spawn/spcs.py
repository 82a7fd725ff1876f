"""Workers as replicas of one job service, in the containers of a Snowflake account.

One statement starts them all. How they fare is asked every few seconds, from a thread with a separate session: the
leader never waits for it. That thread also ends them, fetches what they said, and removes the job.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loadgen.clock import Clock
from loadgen.control.location import ControlPlaneLocation
from loadgen.control.session import ControlFailed, ControlSession
from loadgen.control.tables import run_leases
from loadgen.control.tables.run_leases import new_owner
from loadgen.errors import ConfigurationError, LoadgenError, PrivilegeMissing, RunFailed
from loadgen.log import event, printable
from loadgen.snowflake.failure import describe
from loadgen.snowflake.session import RetryPolicy
from loadgen.snowflake.settings import CONTROL_STATEMENT_S
from loadgen.threads import Service
from loadgen.units import NS_PER_S
from orchestrator.spawn.spawner import LAST_LINES, ProcessEnd, WorkerOrder
from orchestrator.spawn.spcs_service import ContainerLost, SpcsJob, drop, job_name, read_containers

log = logging.getLogger(__name__)

POLL_S = 5.0
START_STATEMENT_S = 60  # it returns at once, but may look for the image first
ATTEMPTS = 3
LOGS_S = 10.0  # for the last lines of all workers; a job must not be left alone for the sake of its logs
JOIN_S = 60.0

_RIGHTS = (
    "The role needs USAGE on the compute pool, CREATE SERVICE on the control plane's schema and READ on the image"
    " repository."
)


class SpcsSpawner:
    """Should this process die, workers end by themselves when their run's lease has expired, and the job with them."""

    def __init__(
        self,
        place: ControlPlaneLocation,
        job: SpcsJob,
        log_folder: Path,
        *,
        clock: Clock,
        environ: Mapping[str, str] = os.environ,
        poll_s: float = POLL_S,
    ) -> None:
        """The job is made in the control plane's schema, by the role of its connection."""
        self._place, self._job, self._log_folder = place, job, log_folder
        self._clock, self._environ, self._poll_s = clock, environ, poll_s
        self._patience = RetryPolicy(stop=threading.Event(), attempts=ATTEMPTS, clock=clock)
        self._run_id = ""
        self._workers: dict[int, str] = {}  # by number
        self._ends: Mapping[str, ProcessEnd] = {}  # replaced as a whole: the leader reads it
        self._logged: set[int] = set()  # whose logs were fetched after their end
        self._waiting: frozenset[str] = frozenset()  # why containers have not started, as last told
        self._wish = ""  # of the leader: cancel, then drop
        self._cancelled = False
        self._to_remove = False  # there is a job, or may be
        self._woken, self._closing = threading.Event(), threading.Event()
        self._thread: Service | None = None

    # --- the leader's side -------------------------------------------------------------------------------------------

    def start(self, orders: tuple[WorkerOrder, ...]) -> None:
        self._note(orders)
        session = self._session(START_STATEMENT_S)
        statement = self._job.execute(len(orders))
        try:
            self._patience.settle(lambda: session.query("execute", statement), lambda: self._described(session))
            self._to_remove = True
        except ControlFailed as error:
            self._to_remove = error.failure.retryable or error.failure.unknown_outcome  # an answer may be lost
            raise refusal(error, self._job) from error
        finally:
            session.close()
        event(log, logging.INFO, "job_started", job=self._job.name, replicas=len(orders))
        self._follow()

    def adopt(self, orders: tuple[WorkerOrder, ...]) -> None:
        """Instead of start(): another orchestrator has started the job, and whatever comes of it is ours now."""
        self._note(orders)
        self._to_remove = True
        self._follow()

    def _note(self, orders: tuple[WorkerOrder, ...]) -> None:
        self._run_id = orders[0].run_id
        self._workers = {order.worker_group_id: order.worker_id for order in orders}

    def _follow(self) -> None:
        self._thread = Service("spcs-poll", self._run)
        self._thread.start()

    def ended(self) -> tuple[ProcessEnd, ...]:
        if self._thread is not None:
            self._thread.check()
        return tuple(self._ends.values())

    def running(self) -> int:
        return 0  # containers run on other machines

    def terminate(self, *, hard: bool) -> None:
        self._wish = "drop" if hard else self._wish or "cancel"
        self._woken.set()

    def close(self) -> None:
        """Fetch what workers said, and remove the job with whatever still runs in it."""
        self._closing.set()
        self._woken.set()
        if self._thread is None:
            self._remove(self._session())  # it did not start, and may have been created all the same
            return
        if not self._thread.join(JOIN_S):
            event(log, logging.WARNING, "job_not_removed", job=self._job.name, by_hand=self._job.drop)

    # --- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        session = self._session()
        while not self._closing.is_set():
            try:
                self._obey(session)
                self._look(session)
            except Exception as error:  # the driver leaks exceptions of its libraries; the next look may do better
                event(log, logging.WARNING, "containers_not_seen", job=self._job.name, what=str(error))
            self._clock.wait(self._woken, self._poll_s)
            self._woken.clear()
        self._remove(session)

    def _obey(self, session: JobSession) -> None:
        if self._wish == "cancel" and not self._cancelled:
            session.query("cancel", self._job.cancel)
            self._cancelled = True
        elif self._wish == "drop":
            self._remove(session)

    def _look(self, session: JobSession) -> None:
        """See which containers have ended. What one that failed said last is known before its end is."""
        if not self._to_remove:
            return
        try:
            containers = read_containers(session.query("containers", self._job.containers))
        except ControlFailed as error:
            if not error.failure.is_missing_object:
                raise
            self._lose_all("was lost: its job service was dropped")
            return
        for container in containers:
            worker_id = self._workers.get(container.index)
            if worker_id is None or worker_id in self._ends:
                continue
            lines = self._fetch_log(session, container.index) if container.has_failed else ()
            end = container.end(worker_id, lines)
            if end is not None:
                self._ends = {**self._ends, worker_id: end}
        waiting = frozenset(one.message for one in containers if one.status == "PENDING" and one.message)
        if waiting - self._waiting:
            event(log, logging.WARNING, "containers_wait", job=self._job.name, why="; ".join(sorted(waiting)))
        self._waiting |= waiting

    def _lose_all(self, what: str) -> None:
        lost = [worker_id for worker_id in self._workers.values() if worker_id not in self._ends]
        self._ends = {**self._ends, **{one: ContainerLost(worker_id=one, what=what) for one in lost}}

    def _remove(self, session: JobSession) -> None:
        """Once: their logs, then the job. Ends the session, too. A run that another process took over keeps its job."""
        try:
            if self._to_remove and not self._led_by_another(session):
                self._fetch_logs(session)
                self._patience.call(lambda: session.query("drop", self._job.drop))
                self._to_remove = False
                event(log, logging.INFO, "job_removed", job=self._job.name)
        except LoadgenError as error:
            event(log, logging.WARNING, "job_not_removed", job=self._job.name, what=str(error), by_hand=self._job.drop)
        finally:
            session.close()

    def _led_by_another(self, session: JobSession) -> bool:
        holder = self._patience.call(lambda: run_leases.read(session, self._run_id))
        return holder is not None and holder.remaining_ms > 0 and _process(holder.owner) != _process(new_owner())

    # --- logs --------------------------------------------------------------------------------------------------------

    def _fetch_logs(self, session: JobSession) -> None:
        until_ns = self._clock.monotonic_ns() + round(LOGS_S * NS_PER_S)
        for index in sorted(self._workers.keys() - self._logged):
            if self._clock.monotonic_ns() > until_ns:
                event(log, logging.WARNING, "logs_not_fetched", workers=len(self._workers) - len(self._logged))
                return
            self._fetch_log(session, index)

    def _fetch_log(self, session: JobSession, index: int) -> tuple[str, ...]:
        """Keep a worker's log as a file; its last lines. A container that never started has none."""
        try:
            rows = session.query("logs", self._job.logs(index))
            text = str(next(iter(rows[0].values())) or "") if rows else ""
            path = self._log_folder / f"{self._workers[index]}.log"
            if text or not path.exists():  # a container may be gone that had said something before
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
                with open(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
                    file.write(f"{text}\n" if text else "")
        except (LoadgenError, OSError) as error:
            event(log, logging.WARNING, "log_not_fetched", worker=self._workers[index], what=str(error))
            return ()
        self._logged.add(index)
        return tuple(text.splitlines()[-LAST_LINES:])

    # --- the server --------------------------------------------------------------------------------------------------

    def _described(self, session: JobSession) -> list[dict[str, Any]] | None:
        """The job, if there is one: the answer to the statement that made it may have been lost."""
        try:
            return session.query("describe", self._job.describe)
        except ControlFailed as error:
            if not error.failure.is_missing_object:
                raise
            return None

    def _session(self, statement_limit_s: int = CONTROL_STATEMENT_S) -> JobSession:
        return JobSession(self._place, role="spcs", environ=self._environ, statement_limit_s=statement_limit_s)


class JobSession(ControlSession):
    """A session of the control plane that also speaks of job services: they live in its schema."""

    def query(self, verb: str, sql: str) -> list[dict[str, Any]]:
        """Rows by the names of their columns."""

        with self.named_cursor(f"spcs.{verb}") as cursor:
            cursor.execute(sql)
            names = [column[0].lower() for column in cursor.description or ()]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def remove_job(place: ControlPlaneLocation, run_id: str) -> None:
    """The job of a run that was ended without its orchestrator, and whatever runs in it. A failure is a warning."""
    name, session = job_name(run_id), JobSession(place, role="spcs")
    try:
        RetryPolicy(stop=threading.Event(), attempts=ATTEMPTS).call(lambda: session.query("drop", drop(name)))
        event(log, logging.INFO, "job_removed", job=name)
    except LoadgenError as error:
        event(log, logging.WARNING, "job_not_removed", job=name, what=str(error), by_hand=drop(name))
    finally:
        session.close()


def _process(owner: str) -> str:
    """Machine and process of a lease's owner: after a lost term, ours has another name."""
    return owner.rpartition(":")[0]


def refusal(error: ControlFailed, job: SpcsJob) -> LoadgenError:
    """Why there is no job, and what to do about it. Only the text says what is missing."""
    if isinstance(error.__cause__, LoadgenError):  # there was no connection: it says what to do about that
        return error.__cause__
    text, failure = str(error) if error.__cause__ is None else describe(error.__cause__), error.failure
    if failure.is_missing_privilege:
        return PrivilegeMissing(f"the workers' job service was refused: {text}", remedy=_RIGHTS)
    if "image" in text.replace(job.image, "").lower():
        return ConfigurationError(
            f"image {printable(job.image, 200)} cannot be used: {text}",
            remedy="Push it, and write its path to spawner.image: /database/schema/repository/name:tag. " + _RIGHTS,
        )
    if failure.is_missing_object and "pool" in text.lower():
        return ConfigurationError(
            f"compute pool {job.compute_pool} cannot be used: {text}",
            remedy="SHOW COMPUTE POOLS lists those there are; spawner.compute_pool names one. " + _RIGHTS,
        )
    return RunFailed(f"the workers' job service could not be started: {text}", remedy=_RIGHTS)
