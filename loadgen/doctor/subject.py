"""What is examined, and the sessions in which it is."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from loadgen.control.location import ControlPlaneLocation
from loadgen.control.session import ControlSession
from loadgen.control.setup.installer import Prerequisites, partial_location
from loadgen.doctor.server import WarehouseDescription
from loadgen.scenario.model import Scenario
from loadgen.scenario.read import LoadedScenario
from loadgen.snowflake import driver
from loadgen.snowflake.connect import ConnectionProbe, connect
from loadgen.snowflake.driver import Connection
from loadgen.snowflake.failure import classify, describe
from loadgen.snowflake.profile import ConnectionProfile
from loadgen.snowflake.profile_lookup import find_profile
from loadgen.snowflake.session import SnowflakeSession, StatementFailed
from loadgen.snowflake.settings import probe_settings
from loadgen.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorTarget:
    """A connection for the load, a place for the control plane, perhaps a scenario."""

    connection: str | None
    place: ControlPlaneLocation
    loaded: LoadedScenario | None = None
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)

    @property
    def scenario(self) -> Scenario | None:
        return self.loaded.scenario if self.loaded is not None else None

    @property
    def is_apart(self) -> bool:
        """Does the control plane use another connection than the target?"""
        return self.place.connection != self.connection

    def target_profile(self) -> ConnectionProfile:
        return find_profile(self.connection, environ=self.environ)

    def control_profile(self) -> ConnectionProfile:
        return find_profile(self.place.connection, environ=self.environ)

    def warehouse(self) -> str | None:
        """The name of the target's warehouse, as it is written."""
        named = self.scenario.target.warehouse if self.scenario is not None else None
        return named or self.target_profile().text("warehouse")


@dataclass(slots=True)
class KnownFacts:
    """What earlier checks found out and later ones use. Written in the lane, one check after another."""

    target: ConnectionProbe | None = None
    control: ConnectionProbe | None = None
    ground: Prerequisites = field(default_factory=Prerequisites)
    hybrid_here: int = 0  # hybrid tables of the control plane
    warehouse: WarehouseDescription | None = None


class DoctorSessions:
    """Opened when they are first needed. Belong to the lane's thread."""

    def __init__(self, subject: DoctorTarget, facts: KnownFacts) -> None:
        self.subject = subject
        self.facts = facts
        self._target = SnowflakeSession(self._connect)
        self._control: ControlSession | None = None
        self._control_ground: Prerequisites | None = None

    def rows(self, sql: str) -> list[dict[str, Any]]:
        """The rows of a statement on the target's connection, by column in lower case."""
        self._target.open()
        try:
            return self._target.named_rows(sql)
        except Exception as error:  # the driver leaks exceptions of its libraries
            raise StatementFailed(describe(error), classify(error)) from error

    def control(self, ground: Prerequisites) -> ControlSession:
        """A session of the control plane that names what is there, and so makes nothing."""
        if self._control is None or self._control_ground != ground:
            if self._control is not None:
                self._control.close()
            place = partial_location(self.subject.place, ground)
            self._control = ControlSession(place, role="doctor", environ=self.subject.environ)
            self._control_ground = ground
        return self._control

    def close(self) -> None:
        self._target.close()
        if self._control is not None:
            self._control.close()

    def _connect(self) -> Connection:
        profile = self.subject.target_profile()
        return connect(profile, probe_settings(profile, major=driver.major()), environ=self.subject.environ)
