"""Workers as replicas of one job service, in the containers of a Snowflake account."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from string import Template
from typing import Any, Self

from loadgen.clock import Clock
from loadgen.control.location import ControlPlaneLocation
from loadgen.control.session import ControlFailed, ControlSession
from loadgen.errors import ConfigurationError, LoadgenError, PrivilegeMissing, RunFailed
from loadgen.log import printable
from loadgen.model.run import ProcessEnd
from loadgen.scenario.frozen import secrets_in
from loadgen.scenario.model import Scenario
from loadgen.snowflake.failure import describe
from loadgen.snowflake.ident import Identifier
from loadgen.snowflake.profile import EMBEDDED, ENVIRONMENT
from loadgen.snowflake.profile_lookup import find_profile
from loadgen.snowflake.session import RetryPolicy
from loadgen.snowflake.settings import CONTROL_STATEMENT_S
from loadgen.values import dataclass
from orchestrator.spawn.spawner import LOG_LINES, ContainerLost, is_led_by_another, process_code

# --- A job service of Snowpark Container Services: its name, specification and statements: pure ----------------------
#
# Names of jobs and compute pools are written without quotes: Snowflake accepts no quoted names for them.

CONTAINER = "worker"  # the name in the specification
MESSAGE_MAX = 300

_PREFIX = "LOADGEN_"
_BARE = re.compile(r"[A-Z_][A-Z0-9_$]*")
# A container with one of these messages stays PENDING for ever.
_HOPELESS = ("failed to pull image", "failed to retrieve image", "image name uses an invalid format")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatements:
    """The statements about a job service of which only the name is known."""

    name: str

    @property
    def describe(self) -> str:
        return f"DESCRIBE SERVICE {self.name}"

    @property
    def containers(self) -> str:
        return f"SHOW SERVICE CONTAINERS IN SERVICE {self.name}"

    @property
    def cancel(self) -> str:
        """Sends SIGTERM to the containers, and 30 s later SIGKILL."""
        return f"SELECT {self.name}!SPCS_CANCEL_JOB()"

    @property
    def drop(self) -> str:
        """Removes the job with its containers."""
        return f"DROP SERVICE IF EXISTS {self.name} FORCE"

    def logs(self, index: int) -> str:
        return f"SELECT SYSTEM$GET_SERVICE_LOGS('{self.name}', '{index}', '{CONTAINER}', {LOG_LINES})"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpcsJob(JobStatements):
    """A job service with everything that is needed to start it."""

    compute_pool: str
    image: str
    warehouse: str | None  # default of its sessions
    environment: Mapping[str, str]

    @classmethod
    def of_scenario(
        cls, scenario: Scenario, run_id: str, variables: Mapping[str, str], environ: Mapping[str, str] = os.environ
    ) -> Self:
        """The job of a run. `variables`: the environment of a worker on any machine."""
        assert scenario.spawner.compute_pool is not None, "a scenario with spcs has a compute pool"
        assert scenario.spawner.image is not None, "a scenario with spcs has an image"
        warehouse = scenario.target.warehouse or find_profile(scenario.connection, environ=environ).text("warehouse")
        return cls(
            name=job_name(run_id),
            compute_pool=_bare(scenario.spawner.compute_pool),
            image=scenario.spawner.image,
            warehouse=None if warehouse is None else Identifier.parse(warehouse).sql,
            environment={**container_environment(variables), "LOADGEN_RUN_ID": run_id},
        )

    def execute(self, replicas: int) -> str:
        """The statement that starts all workers. The order of its clauses is fixed: pool first, specification last."""
        lines = [
            "EXECUTE JOB SERVICE",
            f"IN COMPUTE POOL {self.compute_pool}",
            f"NAME = {self.name}",
            "ASYNC = TRUE",
            f"REPLICAS = {replicas}",
            *([] if self.warehouse is None else [f"QUERY_WAREHOUSE = {self.warehouse}"]),
            f"FROM SPECIFICATION $$\n{self.specification}$$",
        ]
        return "\n".join(lines)

    @property
    def specification(self) -> str:
        template = Template((files("schemas") / "spcs" / "worker.yaml").read_text("utf-8"))
        pairs = [f"{quoted(name)}: {quoted(value)}" for name, value in sorted(self.environment.items())]
        return template.substitute(image=quoted(self.image), environment=f"{{{', '.join(pairs)}}}")


def job_name(run_id: str) -> str:
    """The name of the job of a run. Run ids end with random characters, so replacing dashes causes no collision."""
    return _PREFIX + re.sub(r"[^A-Z0-9]", "_", run_id.upper())


def quoted(text: str) -> str:
    """The text as a quoted YAML scalar. Dollar signs are escaped: they could end the SQL literal around it."""
    return '"' + "".join(map(_escaped, text)) + '"'


def _escaped(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    if " " <= character <= "~" and character != "$":
        return character
    return f"\\U{ord(character):08X}"


def container_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """The environment of a container: it does not know the connections of this machine, but Snowflake gives it a
    login."""
    connections = {name: variables.get(name) for name in ("LOADGEN_CONNECTION", "LOADGEN_CONTROL_CONNECTION")}
    return {**variables, **{name: EMBEDDED if old == EMBEDDED else ENVIRONMENT for name, old in connections.items()}}


def require_spcs_settings(
    scenario: Scenario, place: ControlPlaneLocation, environ: Mapping[str, str] = os.environ
) -> None:
    """Reject settings that cannot work, before anything is created: a container reaches only its own account."""
    assert scenario.spawner.compute_pool is not None
    _bare(scenario.spawner.compute_pool)
    target, control = find_profile(scenario.connection, environ=environ), place.profile(environ)
    if target.is_embedded != control.is_embedded:
        which = "control plane" if control.is_embedded else "target"
        raise ConfigurationError(
            f"spawner spcs: containers in Snowflake cannot reach the embedded server, where the {which} is",
            remedy="Use the account that runs the containers for both, or spawner kind local.",
        )
    accounts = [printable((profile.text("account") or "").upper(), 80) for profile in (target, control)]
    if accounts[0] != accounts[1]:
        raise ConfigurationError(
            f"spawner spcs: the target is in account {accounts[0]}, the control plane in {accounts[1]},"
            " and a container can log in to its own account only",
            remedy="Use one account for both, or spawner kind local.",
        )
    if secrets := secrets_in(scenario):
        raise ConfigurationError(
            f"spawner spcs: the scenario uses {', '.join(f'${{{name}}}' for name in secrets)}: secrets are not stored"
            " with a run, and a container does not have them",
            remedy="If it is not a secret, use a variable with another name; otherwise use spawner kind local.",
        )
    for key in ("database", "schema"):
        inherited = None if target.is_embedded else target.text(key)
        if inherited is not None and getattr(scenario.target, key) is None:
            raise ConfigurationError(
                f"spawner spcs: target.{key} comes from connection {printable(target.name, 80)!r},"
                " which is unknown in a container",
                remedy=f"Write target: {{{key}: {printable(inherited, 80)}}} into the scenario.",
            )


def _bare(text: str) -> str:
    name = Identifier.parse(text).name
    if not _BARE.fullmatch(name):
        raise ConfigurationError(
            f"spawner.compute_pool is {printable(text, 80)!r}: Snowflake has no compute pools with such names",
            remedy="Write letters, digits, _ and $ without quotes; SHOW COMPUTE POOLS lists the existing ones.",
        )
    return name


# --- the state of containers -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """One row of SHOW SERVICE CONTAINERS."""

    index: int
    status: str  # PENDING READY DONE FAILED UNKNOWN
    message: str
    exit_code: int | None

    @property
    def has_failed(self) -> bool:
        return self.status == "FAILED" or self.is_hopeless

    @property
    def is_hopeless(self) -> bool:
        return self.status == "PENDING" and any(words in self.message.lower() for words in _HOPELESS)

    @property
    def waits(self) -> str:
        return self.message if self.status == "PENDING" else ""

    @property
    def is_held_up(self) -> bool:
        return bool(self.waits)

    def end(self, worker_id: str, last_lines: tuple[str, ...] = ()) -> ProcessEnd | None:
        """The end of the worker. None: it has not ended."""
        if self.is_hopeless:
            what = f"cannot start: {self.message}; check spawner.image, and READ on its image repository"
            return ContainerLost(worker_id=worker_id, what=what, last_lines=last_lines)
        if self.status == "DONE":
            return ProcessEnd(worker_id=worker_id, code=0, last_lines=last_lines)
        if self.status != "FAILED":
            return None
        if not self.exit_code:
            what = f"was lost with its container: {self.message or 'Snowflake gives no reason'}"
            return ContainerLost(worker_id=worker_id, what=what, last_lines=last_lines)
        return ProcessEnd(worker_id=worker_id, code=process_code(self.exit_code), last_lines=last_lines)


def read_containers(rows: Iterable[Mapping[str, Any]]) -> tuple[Container, ...]:
    """The existing containers. A job whose containers are not created yet has a row without an instance."""
    return tuple(
        Container(
            index=int(row["instance_id"]),
            status=str(row.get("status") or "UNKNOWN").upper(),
            message=printable(str(row.get("message") or ""), MESSAGE_MAX),
            exit_code=_number(row.get("last_exit_code")),
        )
        for row in rows
        if row.get("instance_id") is not None and row.get("container_name") == CONTAINER
    )


def _number(value: Any) -> int | None:
    text = str(value)
    return int(text) if re.fullmatch(r"-?[0-9]{1,9}", text) else None


# --- the job of a run ------------------------------------------------------------------------------------------------

START_STATEMENT_S = 60  # it returns at once, but may check the image first
ATTEMPTS = 3

_RIGHTS = (
    "The role needs USAGE on the compute pool, CREATE SERVICE on the control plane's schema and READ on the image"
    " repository."
)


class JobSession(ControlSession):
    """A control session that also executes statements about job services, which belong to its schema."""

    def query(self, verb: str, sql: str) -> list[dict[str, Any]]:
        """Execute a statement. Returns each row as a dictionary by column name."""
        with self.named_cursor(f"spcs.{verb}") as cursor:
            cursor.execute(sql)
            names = [column[0].lower() for column in cursor.description or ()]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


class JobService:
    """The job service of a run. The role of the control plane's connection creates it in the control plane's schema."""

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
        self._retries = RetryPolicy(stop=threading.Event(), attempts=ATTEMPTS, clock=clock)
        self._session = self._new_session(CONTROL_STATEMENT_S)

    def start(self, workers: int) -> None:
        assert isinstance(self._job, SpcsJob), "only its name is known"
        session, job = self._new_session(START_STATEMENT_S), self._job
        statement = job.execute(workers)
        try:
            self._retries.settle(lambda: session.query("execute", statement), lambda: self._described(session))
            self.may_exist = True
        except ControlFailed as error:
            self.may_exist = error.failure.retryable or error.failure.unknown_outcome  # the answer may have been lost
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
        self._retries.call(lambda: self._session.query("drop", self._job.drop))

    def is_led_by_another(self, run_id: str) -> bool:
        return is_led_by_another(self._session, self._retries, run_id)

    def close(self) -> None:
        self._session.close()

    def _described(self, session: JobSession) -> list[dict[str, Any]] | None:
        """The rows that describe the job. None: it does not exist. Read when the answer of its creation was lost."""
        try:
            return session.query("describe", self._job.describe)
        except ControlFailed as error:
            if not error.failure.is_missing_object:
                raise
            return None

    def _new_session(self, statement_limit_s: int) -> JobSession:
        return JobSession(self._place, role="spcs", environ=self._environ, statement_limit_s=statement_limit_s)


def refusal(error: ControlFailed, job: SpcsJob) -> LoadgenError:
    """The error that explains why the job was not created, with a remedy. Snowflake names what is missing only in the
    message."""
    if isinstance(error.__cause__, LoadgenError):  # there was no connection: that error has a remedy
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
            remedy="SHOW COMPUTE POOLS lists the existing ones; spawner.compute_pool names one. " + _RIGHTS,
        )
    return RunFailed(f"the workers' job service could not be started: {text}", remedy=_RIGHTS)
