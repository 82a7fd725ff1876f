"""Workers as replicas of one job service, in the containers of a Snowflake account."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from loadgen.clock import Clock
from loadgen.control.location import ControlPlaneLocation
from loadgen.control.session import ControlFailed, ControlSession
from loadgen.errors import ConfigurationError, LoadgenError, PrivilegeMissing, RunFailed
from loadgen.log import printable
from loadgen.snowflake.failure import describe
from loadgen.snowflake.session import RetryPolicy
from loadgen.snowflake.settings import CONTROL_STATEMENT_S
from orchestrator.spawn.container_job import is_led_by_another
from orchestrator.spawn.spcs_service import Container, JobStatements, SpcsJob, read_containers

START_STATEMENT_S = 60  # it returns at once, but may look for the image first
ATTEMPTS = 3

_RIGHTS = (
    "The role needs USAGE on the compute pool, CREATE SERVICE on the control plane's schema and READ on the image"
    " repository."
)


class JobSession(ControlSession):
    """A session of the control plane that also speaks of job services: they live in its schema."""

    def query(self, verb: str, sql: str) -> list[dict[str, Any]]:
        """Rows by the names of their columns."""

        with self.named_cursor(f"spcs.{verb}") as cursor:
            cursor.execute(sql)
            names = [column[0].lower() for column in cursor.description or ()]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


class JobService:
    """The job service of a run, made in the control plane's schema by the role of its connection."""

    def __init__(
        self,
        place: ControlPlaneLocation,
        job: JobStatements,
        *,
        clock: Clock,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self.name, self.by_hand, self.may_exist = job.name, job.drop, False
        self._place, self._job, self._environ = place, job, environ
        self._patience = RetryPolicy(stop=threading.Event(), attempts=ATTEMPTS, clock=clock)
        self._session = self._new_session(CONTROL_STATEMENT_S)

    def start(self, workers: int) -> None:
        assert isinstance(self._job, SpcsJob), "only its name is known"
        session, job = self._new_session(START_STATEMENT_S), self._job
        statement = job.execute(workers)
        try:
            self._patience.settle(lambda: session.query("execute", statement), lambda: self._described(session))
            self.may_exist = True
        except ControlFailed as error:
            self.may_exist = error.failure.retryable or error.failure.unknown_outcome  # an answer may be lost
            raise refusal(error, job) from error
        finally:
            session.close()

    def observe(self) -> Sequence[Container] | None:
        try:
            return read_containers(self._session.query("containers", self._job.containers))
        except ControlFailed as error:
            if not error.failure.is_missing_object:
                raise
            return None

    def read_log(self, index: int) -> str:
        rows = self._session.query("logs", self._job.logs(index))
        return str(next(iter(rows[0].values())) or "") if rows else ""

    def cancel(self) -> None:
        self._session.query("cancel", self._job.cancel)

    def remove(self) -> None:
        self._patience.call(lambda: self._session.query("drop", self._job.drop))

    def is_led_by_another(self, run_id: str) -> bool:
        return is_led_by_another(self._session, self._patience, run_id)

    def close(self) -> None:
        self._session.close()

    def _described(self, session: JobSession) -> list[dict[str, Any]] | None:
        """The job, if there is one: the answer to the statement that made it may have been lost."""
        try:
            return session.query("describe", self._job.describe)
        except ControlFailed as error:
            if not error.failure.is_missing_object:
                raise
            return None

    def _new_session(self, statement_limit_s: int) -> JobSession:
        return JobSession(self._place, role="spcs", environ=self._environ, statement_limit_s=statement_limit_s)


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
