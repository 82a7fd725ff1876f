"""What a scenario from the queue may use of the host that runs it: variables, connections, webhooks, programs.

Rows of the queue are data: whoever may write them must not get secrets or start programs on the hosts of a pool. So all
that a row names has to be allowed by the pool's user. Of connections the pool's own is.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from loadgen.errors import ConfigurationError
from loadgen.log import printable

if TYPE_CHECKING:
    from loadgen.cli.options import Command
    from loadgen.scenario.model import Notification, Scenario

_KINDS = {
    "variable": "Variable that queued scenarios may read: ${NAME}. May be repeated.",
    "webhook": "Host that queued scenarios may notify. May be repeated.",
    "connection": "Connection that queued scenarios may use, beside the pool's. May be repeated.",
    "command": "Program that queued scenarios may notify, exactly as they name it. May be repeated.",
}


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

    @classmethod
    def of_options(cls, given: Mapping[str, Any], *connections: str | None) -> HostPermissions:
        """From what allow_options gave; `connections` are allowed too."""
        named = {f"{kind}s": frozenset(given[f"allow_{kind}"]) for kind in _KINDS}
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
        return [f"--allow-{kind}={name}" for kind in _KINDS for name in sorted(getattr(self, f"{kind}s"))]


def allow_options(*, hidden: bool = False) -> Callable[[Command], Command]:
    """--allow-variable, --allow-webhook, --allow-connection, --allow-command."""

    def add(command: Command) -> Command:
        for kind, help_text in reversed(_KINDS.items()):
            metavar = "HOST" if kind == "webhook" else "NAME"
            command = click.option(f"--allow-{kind}", metavar=metavar, multiple=True, help=help_text, hidden=hidden)(
                command
            )
        return command

    return add


def apply_permissions(scenario: Scenario, allowed: HostPermissions, warn: Callable[[str], None]) -> Scenario:
    """The scenario with the notifications that it may send: NotAllowed for anything else that is not allowed."""
    for name in {scenario.connection, scenario.control.connection or scenario.connection}:
        known = name or default_connection()
        if known not in allowed.connections:
            raise NotAllowed("connection", known or "(default)", "the scenario")
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
    from loadgen.snowflake.config_files import read_config_files

    files = read_config_files(os.environ)
    return files.default_name or ("default" if "default" in files.sections else None)


def _host(url: str) -> str:
    try:
        return (urlsplit(url).hostname or "").lower()
    except ValueError:
        return ""
