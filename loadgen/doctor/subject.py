"""What is examined, and the sessions in which it is."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from loadgen.control.ground import Ground, as_found
from loadgen.control.place import ControlPlace
from loadgen.control.session import ControlSession
from loadgen.doctor.warehouse import Warehouse
from loadgen.errors import LoadgenError
from loadgen.scenario.read import Loaded
from loadgen.scenario.scenario import Scenario
from loadgen.snowflake import driver
from loadgen.snowflake.connect import close, connect
from loadgen.snowflake.driver import Connection
from loadgen.snowflake.failure import Failure, classify, describe
from loadgen.snowflake.lookup import find_profile
from loadgen.snowflake.probe import Probe
from loadgen.snowflake.profile import Profile
from loadgen.snowflake.settings import probe_settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A connection for the load, a place for the control plane, perhaps a scenario."""

    connection: str | None
    place: ControlPlace
    loaded: Loaded | None = None
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)

    @property
    def scenario(self) -> Scenario | None:
        return self.loaded.scenario if self.loaded is not None else None

    @property
    def is_apart(self) -> bool:
        """Has the control plane a connection of its own?"""
        return self.place.connection != self.connection

    def target_profile(self) -> Profile:
        return find_profile(self.connection, environ=self.environ)

    def control_profile(self) -> Profile:
        return find_profile(self.place.connection, environ=self.environ)

    def warehouse(self) -> str | None:
        """The name of the target's warehouse, as it is written."""
        named = self.scenario.target.warehouse if self.scenario is not None else None
        return named or self.target_profile().text("warehouse")


@dataclass(slots=True)
class Facts:
    """What earlier checks found out and later ones use. Written in the lane, one check after another."""

    target: Probe | None = None
    control: Probe | None = None
    ground: Ground = field(default_factory=Ground)
    hybrid_here: int = 0  # hybrid tables of the control plane
    warehouse: Warehouse | None = None


class StatementFailed(LoadgenError):
    """A statement of a check failed."""

    exit_code = 3

    def __init__(self, what: str, failure: Failure) -> None:
        super().__init__(what, remedy="Check the role of the connection.")
        self.failure = failure


class Sessions:
    """Opened when they are first needed. Belong to the lane's thread."""

    def __init__(self, subject: Subject, facts: Facts) -> None:
        self.subject = subject
        self.facts = facts
        self._target: Connection | None = None
        self._control: ControlSession | None = None
        self._control_ground: Ground | None = None

    def rows(self, sql: str) -> list[dict[str, Any]]:
        """The rows of a statement on the target's connection, by column in lower case."""
        if self._target is None:
            profile = self.subject.target_profile()
            self._target = connect(profile, probe_settings(profile, major=driver.major()), environ=self.subject.environ)
        try:
            cursor = self._target.cursor()
            try:
                cursor.execute(sql)
                names = [column[0].lower() for column in cursor.description or ()]
                return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
            finally:
                cursor.close()
        except Exception as error:  # the driver leaks exceptions of its libraries
            raise StatementFailed(describe(error), classify(error)) from error

    def control(self, ground: Ground) -> ControlSession:
        """A session of the control plane that names what is there, and so makes nothing."""
        if self._control is None or self._control_ground != ground:
            if self._control is not None:
                self._control.close()
            place = as_found(self.subject.place, ground)
            self._control = ControlSession(place, role="doctor", environ=self.subject.environ)
            self._control_ground = ground
        return self._control

    def close(self) -> None:
        if self._target is not None:
            close(self._target)
            self._target = None
        if self._control is not None:
            self._control.close()
