"""A job service of Snowpark Container Services: its name, specification and statements, and what its containers say.

Pure. Names of jobs and compute pools are written without quotes: Snowflake takes no others for them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from string import Template
from typing import Any, Self

from loadgen.control.location import ControlPlaneLocation
from loadgen.errors import ConfigurationError
from loadgen.log import printable
from loadgen.scenario.frozen import secrets_in
from loadgen.scenario.model import Scenario
from loadgen.snowflake.ident import Identifier
from loadgen.snowflake.profile import EMBEDDED, ENVIRONMENT
from loadgen.snowflake.profile_lookup import find_profile
from orchestrator.spawn.container_job import LOG_LINES, ContainerLost, process_code
from orchestrator.spawn.spawner import ProcessEnd

CONTAINER = "worker"  # as the specification names it
MESSAGE_MAX = 300

_PREFIX = "LOADGEN_"
_BARE = re.compile(r"[A-Z_][A-Z0-9_$]*")
# A container with one of these stays PENDING; waiting for it until the registration ends would explain nothing.
_HOPELESS = ("failed to pull image", "failed to retrieve image", "image name uses an invalid format")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatements:
    """What can be said of a job service whose name is known."""

    name: str

    @property
    def describe(self) -> str:
        return f"DESCRIBE SERVICE {self.name}"

    @property
    def containers(self) -> str:
        return f"SHOW SERVICE CONTAINERS IN SERVICE {self.name}"

    @property
    def cancel(self) -> str:
        """Containers get SIGTERM, and 30 s later SIGKILL."""
        return f"SELECT {self.name}!SPCS_CANCEL_JOB()"

    @property
    def drop(self) -> str:
        """With whatever still runs in it."""
        return f"DROP SERVICE IF EXISTS {self.name} FORCE"

    def logs(self, index: int) -> str:
        return f"SELECT SYSTEM$GET_SERVICE_LOGS('{self.name}', '{index}', '{CONTAINER}', {LOG_LINES})"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpcsJob(JobStatements):
    """What to run, and where."""

    compute_pool: str
    image: str
    warehouse: str | None  # of sessions that name none
    environment: Mapping[str, str]

    @classmethod
    def of_scenario(
        cls, scenario: Scenario, run_id: str, told: Mapping[str, str], environ: Mapping[str, str] = os.environ
    ) -> Self:
        """`told`: what a worker of this run must be told, wherever it runs."""
        assert scenario.spawner.compute_pool is not None, "a scenario with spcs has a compute pool"
        assert scenario.spawner.image is not None, "a scenario with spcs has an image"
        warehouse = scenario.target.warehouse or find_profile(scenario.connection, environ=environ).text("warehouse")
        return cls(
            name=job_name(run_id),
            compute_pool=_bare(scenario.spawner.compute_pool),
            image=scenario.spawner.image,
            warehouse=None if warehouse is None else Identifier.parse(warehouse).sql,
            environment={**container_environment(told), "LOADGEN_RUN_ID": run_id},
        )

    def execute(self, replicas: int) -> str:
        """The one statement that starts all workers. Order matters: the pool first, the specification last."""
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
    """One job per run. The end of a run's id is random, so that ids which differ in a dash alone do not meet."""
    return _PREFIX + re.sub(r"[^A-Z0-9]", "_", run_id.upper())


def quoted(text: str) -> str:
    """A YAML scalar that is this text and nothing else. A dollar sign could end the SQL text around it."""
    return '"' + "".join(map(_escaped, text)) + '"'


def _escaped(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    if " " <= character <= "~" and character != "$":
        return character
    return f"\\U{ord(character):08X}"


def container_environment(told: Mapping[str, str]) -> dict[str, str]:
    """The same for a container: connections of this machine are unknown there, but Snowflake lets it log in."""
    connections = {name: told.get(name) for name in ("LOADGEN_CONNECTION", "LOADGEN_CONTROL_CONNECTION")}
    return {**told, **{name: EMBEDDED if old == EMBEDDED else ENVIRONMENT for name, old in connections.items()}}


def require_spcs_settings(
    scenario: Scenario, place: ControlPlaneLocation, environ: Mapping[str, str] = os.environ
) -> None:
    """Refuse, before anything is made, what cannot work: a container reaches its own account and nothing else."""
    assert scenario.spawner.compute_pool is not None
    _bare(scenario.spawner.compute_pool)
    target, control = find_profile(scenario.connection, environ=environ), place.profile(environ)
    if target.is_embedded != control.is_embedded:
        which = "control plane" if control.is_embedded else "target"
        raise ConfigurationError(
            f"spawner spcs: containers in Snowflake cannot reach the embedded server, where the {which} is",
            remedy="Have both in the account that runs the containers, or use spawner kind local.",
        )
    accounts = [printable((profile.text("account") or "").upper(), 80) for profile in (target, control)]
    if accounts[0] != accounts[1]:
        raise ConfigurationError(
            f"spawner spcs: the target is in account {accounts[0]}, the control plane in {accounts[1]},"
            " and a container can log in to its own account only",
            remedy="Have both in one account, or use spawner kind local.",
        )
    if secrets := secrets_in(scenario):
        raise ConfigurationError(
            f"spawner spcs: the scenario uses {', '.join(f'${{{name}}}' for name in secrets)}: secrets are not stored"
            " with a run, and a container does not have them",
            remedy="Use a variable that is not named like a secret if it is none, or spawner kind local.",
        )
    for key in ("database", "schema"):
        inherited = None if target.is_embedded else target.text(key)
        if inherited is not None and getattr(scenario.target, key) is None:
            raise ConfigurationError(
                f"spawner spcs: target.{key} is left to connection {printable(target.name, 80)!r},"
                " unknown in a container",
                remedy=f"Write target: {{{key}: {printable(inherited, 80)}}} into the scenario.",
            )


def _bare(text: str) -> str:
    name = Identifier.parse(text).name
    if not _BARE.fullmatch(name):
        raise ConfigurationError(
            f"spawner.compute_pool is {printable(text, 80)!r}: Snowflake has no compute pools with such names",
            remedy="Write letters, digits, _ and $ without quotes; SHOW COMPUTE POOLS lists those there are.",
        )
    return name


# --- what containers say ---------------------------------------------------------------------------------------------


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
        """How it ended; None while it has not."""
        if self.is_hopeless:
            what = f"cannot start: {self.message}; check spawner.image, and READ on its image repository"
            return ContainerLost(worker_id=worker_id, what=what, last_lines=last_lines)
        if self.status == "DONE":
            return ProcessEnd(worker_id=worker_id, code=0, last_lines=last_lines)
        if self.status != "FAILED":
            return None
        if not self.exit_code:
            what = f"was lost with its container: {self.message or 'Snowflake does not say why'}"
            return ContainerLost(worker_id=worker_id, what=what, last_lines=last_lines)
        return ProcessEnd(worker_id=worker_id, code=process_code(self.exit_code), last_lines=last_lines)


def read_containers(rows: Iterable[Mapping[str, Any]]) -> tuple[Container, ...]:
    """Those there are: a job whose containers are still to be made has a row without an instance."""
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
