"""The session in which a scenario is prepared: the target's database, schema and warehouse, with time to spare."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

from loadgen.errors import LoadgenError
from loadgen.log import event, printable
from loadgen.prepare.session import OpenConnection, PrepareSession
from loadgen.scenario.model import Scenario
from loadgen.snowflake import driver
from loadgen.snowflake.connect import connect
from loadgen.snowflake.driver import Connection
from loadgen.snowflake.profile import ConnectionProfile
from loadgen.snowflake.profile_lookup import find_profile
from loadgen.snowflake.settings import control_settings, query_tag

# Chunks take a second or two; what a user writes under prepare.statements may copy a large table.
STATEMENT_LIMIT_S = 3_600
VERSION_MAX = 100  # characters

log = logging.getLogger(__name__)


def target_profile(
    scenario: Scenario, name: str | None, *, environ: Mapping[str, str] = os.environ
) -> ConnectionProfile:
    """The connection of that name, or else the scenario's, into its target."""
    target = scenario.target
    overrides = {"warehouse": target.warehouse, "database": target.database, "schema": target.schema}
    return find_profile(name or scenario.connection, environ=environ, overrides=overrides)


def opener(
    profile: ConnectionProfile, scenario: Scenario, *, environ: Mapping[str, str] = os.environ
) -> OpenConnection:
    """Opens sessions for preparing. Control settings: the driver itself tries again, under the same request id."""
    tag = query_tag(run="prepare", worker=scenario.name)

    def open_connection() -> Connection:
        settings = control_settings(profile, major=driver.major(), tag=tag, statement_limit_s=STATEMENT_LIMIT_S)
        return connect(profile, settings, environ=environ)

    return open_connection


def server_version(session: PrepareSession) -> str | None:
    """Snowflake's release at the target. None: it does not say, which is no reason to measure nothing."""
    try:
        ((version,),) = session.read("SELECT CURRENT_VERSION()")
    except LoadgenError as error:
        event(log, logging.WARNING, "server_version_unknown", why=str(error))
        return None
    return printable(str(version), VERSION_MAX)
