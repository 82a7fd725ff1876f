"""A scenario in the queue: packed with its value files, and what it may use on the host that runs it.

Rows of the queue are data: a user who may write them must not get secrets or start programs on the hosts of a pool. So
variables, connections, webhooks, programs and clusters that a row names must be allowed by the user of the pool. The
connection of the pool is always allowed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from loadgen.errors import ConfigurationError, ScenarioInvalid, UsageError
from loadgen.log import printable
from loadgen.scenario.settings import SpawnerKind
from loadgen.values import dataclass

if TYPE_CHECKING:
    from loadgen.control.tables.run_queue import QueueRequest
    from loadgen.scenario.model import Scenario
    from loadgen.scenario.read import LoadedScenario
    from loadgen.scenario.settings import Notification


PERMISSION_KINDS = ("variable", "webhook", "connection", "command", "cluster")
DEFAULT_CLUSTER = "current"  # where spawner.context is not given


class NotAllowed(ConfigurationError):
    """A queued scenario asks for something of this host that its user did not allow."""

    def __init__(self, kind: str, name: str, where: str) -> None:
        shown = printable(name, 100)
        option = f"--allow-{kind} {shown}"
        super().__init__(
            f"{where} uses the {kind} {shown}, which is not allowed from the queue: pool run {option}",
            remedy=f"If you trust everyone who may queue runs, start the pool with {option}.",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPermissions:
    """Names, compared exactly; hosts of webhooks in lower case."""

    variables: frozenset[str] = frozenset()
    webhooks: frozenset[str] = frozenset()
    connections: frozenset[str] = frozenset()
    commands: frozenset[str] = frozenset()
    clusters: frozenset[str] = frozenset()  # contexts of Kubernetes

    @classmethod
    def of_options(cls, given: Mapping[str, Any], *connections: str | None) -> HostPermissions:
        """From what allow_options gave; `connections` are allowed too."""
        named = {f"{kind}s": frozenset(given[f"allow_{kind}"]) for kind in PERMISSION_KINDS}
        own = {name for name in connections if name is not None}
        allowed = cls(**named)
        return replace(
            allowed,
            connections=allowed.connections | own,
            webhooks=frozenset(host.lower() for host in allowed.webhooks),
        )

    @property
    def words(self) -> list[str]:
        """The same as options."""
        return [f"--allow-{kind}={name}" for kind in PERMISSION_KINDS for name in sorted(getattr(self, f"{kind}s"))]


def apply_permissions(scenario: Scenario, allowed: HostPermissions, warn: Callable[[str], None]) -> Scenario:
    """The scenario with the notifications that it may send: NotAllowed for anything else that is not allowed."""
    for name in {scenario.connection, scenario.control.connection or scenario.connection}:
        known = name or default_connection()
        if known not in allowed.connections:
            raise NotAllowed("connection", known or "(default)", "the scenario")
    if scenario.spawner.kind is SpawnerKind.KUBERNETES:
        context = scenario.spawner.context or DEFAULT_CLUSTER
        if context not in allowed.clusters:
            raise NotAllowed("cluster", context, "spawner")
    return restrict_notifications(scenario, allowed, warn)


def restrict_notifications(scenario: Scenario, allowed: HostPermissions, warn: Callable[[str], None]) -> Scenario:
    """The same where nothing but its notifications is used."""
    kept: list[Notification] = []
    for number, one in enumerate(scenario.notify):
        where, url = f"notify.{number}", one.webhook or one.ping
        if url is not None and (host := _host(str(url))) not in allowed.webhooks:
            raise NotAllowed("webhook", host, where)
        if one.command and str(one.command[0]) not in allowed.commands:
            warn(f"not sent: {NotAllowed('command', str(one.command[0]), where)}")
        else:
            kept.append(one)
    return replace(scenario, notify=tuple(kept))


def default_connection() -> str | None:
    """The name of the connection that is used where none is named."""
    from loadgen.snowflake.profile_lookup import read_config_files

    files = read_config_files(os.environ)
    return files.default_name or ("default" if "default" in files.sections else None)


def _host(url: str) -> str:
    try:
        return (urlsplit(url).hostname or "").lower()
    except ValueError:
        return ""


def pack_scenario(file: Path, connection: str | None, loaded: LoadedScenario) -> QueueRequest:
    """A scenario with the texts of its value files, for a host with other variables and another default connection."""
    from loadgen.control.tables.run_queue import TEXTS_BYTES_MAX, QueueRequest, texts_bytes
    from loadgen.scenario.model import FilePool
    from loadgen.scenario.read import portable_text

    scenario, text = loaded.scenario, portable_text(loaded)
    if scenario.load.replay is not None:
        raise ScenarioInvalid(
            f"{printable(str(file), 200)} replays a capture, and the queue keeps no captures",
            remedy="Run it with `loadgen run`, from cron for example.",
        )
    if scenario.connection is None:
        connection = _default_connection()
    names = sorted({pool.file for pool in scenario.pools if isinstance(pool, FilePool)})
    files = {name: _text(file.parent, name) for name in names}
    warehouse = scenario.target.warehouse or "its warehouse"
    target = f"{scenario.connection or connection}/{warehouse}"
    wanted = QueueRequest(name=scenario.name, scenario=text, files=files, connection=connection, target=target)
    if (size := texts_bytes(wanted)) > TEXTS_BYTES_MAX:
        raise ScenarioInvalid(
            f"{printable(str(file), 200)} and its value files have {size:,} bytes as the queue stores them;"
            f" its limit is {TEXTS_BYTES_MAX:,}",
            remedy="Let the scenario take the values from a query: values: {NAME: {query: ...}}.",
        )
    return wanted


def _default_connection() -> str:
    """By its name: the host that does the run may have another default one."""
    name = default_connection()
    if name is None:
        raise UsageError(
            "the scenario names no connection, and the host that does the run cannot know which one is meant",
            remedy="Name one that it has: -c NAME, or connection: in the scenario.",
        )
    return name


def _text(folder: Path, name: str) -> str:
    from loadgen.scenario.check_data import require_inside

    try:
        require_inside(folder, name)
        return (folder / name).read_text("utf-8-sig")
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ScenarioInvalid(
            f"the value file {printable(name, 200)} cannot be read: {why}",
            remedy="It is looked for beside the scenario.",
        ) from error


def with_control_plane_of_queue(scenario: Scenario) -> Scenario:
    """A queued run is recorded where its queue is. What is the same already is left: it counts for comparisons."""
    from loadgen.control.location import ControlPlaneLocation

    own, told = ControlPlaneLocation.of_scenario(scenario), ControlPlaneLocation.from_environment()
    default = ControlPlaneLocation()
    changed = {
        name: getattr(told, name)
        for name in ("connection", "database", "schema", "warehouse")
        if getattr(told, name) != getattr(own, name)
        and not (name in ("connection", "warehouse") and getattr(told, name) == getattr(default, name))
    }
    return replace(scenario, control=replace(scenario.control, **changed))
