"""What a check receives and returns: the subject of the checks, the facts of earlier checks, sessions, and findings."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from typing import Any, Self

from loadgen.control.location import ControlPlaneLocation
from loadgen.control.session import ControlSession
from loadgen.control.setup.installer import Prerequisites, partial_location
from loadgen.log import printable
from loadgen.model.warehouse import clusters_shown, truth_shown
from loadgen.rules.price import PlannedWarehouse, shown_warehouse
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

# --- Findings --------------------------------------------------------------------------------------------------------


class FindingLevel(StrEnum):
    OK = "ok"
    WARNING = "warning"  # a run works; something about it deserves attention
    FAILED = "failed"  # a run would fail
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of a check: one sentence, and what to do unless everything is in order."""

    level: FindingLevel
    message: str
    remedy: str | None = None
    details: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        assert (self.remedy is None) == (self.level in (FindingLevel.OK, FindingLevel.SKIPPED)), f"remedy of {self}"


def ok(message: str, *details: str) -> Finding:
    return Finding(level=FindingLevel.OK, message=message, details=details)


def warning(message: str, remedy: str, *details: str) -> Finding:
    return Finding(level=FindingLevel.WARNING, message=message, remedy=remedy, details=details)


def failed(message: str, remedy: str) -> Finding:
    return Finding(level=FindingLevel.FAILED, message=message, remedy=remedy)


def skipped(message: str) -> Finding:
    return Finding(level=FindingLevel.SKIPPED, message=message)


# --- The target warehouse --------------------------------------------------------------------------------------------

_PRICED_TYPES = ("STANDARD", "SNOWPARK-OPTIMIZED")


@dataclass(frozen=True, slots=True, kw_only=True)
class WarehouseDescription:
    """A row of SHOW WAREHOUSES. None: not reported."""

    name: str
    state: str
    type: str
    size: str
    generation: str | None
    clusters_min: int
    clusters_max: int
    auto_suspend_s: int | None
    auto_resume: bool
    query_acceleration: bool
    max_concurrency: int | None
    planned: PlannedWarehouse | None  # None: a type whose price is not known

    @classmethod
    def from_row(cls, row: Mapping[str, Any], max_concurrency: int | None) -> Self:
        return cls(
            name=_text(row, "name"),
            state=_text(row, "state").upper(),
            type=_text(row, "type").upper(),
            size=_text(row, "size"),
            generation=_text(row, "generation") or None,
            clusters_min=_number(row, "min_cluster_count") or 1,
            clusters_max=clusters_shown(row)[1],
            auto_suspend_s=_number(row, "auto_suspend") or None,
            auto_resume=truth_shown(row.get("auto_resume")),
            query_acceleration=truth_shown(row.get("enable_query_acceleration")),
            max_concurrency=max_concurrency,
            planned=shown_warehouse(row) if _text(row, "type").upper() in _PRICED_TYPES else None,
        )


def _text(row: Mapping[str, Any], key: str) -> str:
    value = row.get(key)
    return "" if value is None else printable(str(value), 300)


def _number(row: Mapping[str, Any], key: str) -> int | None:
    text = _text(row, key)
    return int(text) if text.isdigit() else None


# --- Subject, facts and sessions -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorTarget:
    """The subject of the checks: a connection for the load, a control plane, and optionally a scenario."""

    connection: str | None
    place: ControlPlaneLocation
    loaded: LoadedScenario | None = None
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)

    @property
    def scenario(self) -> Scenario | None:
        return self.loaded.scenario if self.loaded is not None else None

    @property
    def is_apart(self) -> bool:
        """Whether the control plane uses another connection than the target."""
        return self.place.connection != self.connection

    def target_profile(self) -> ConnectionProfile:
        return find_profile(self.connection, environ=self.environ)

    def control_profile(self) -> ConnectionProfile:
        return find_profile(self.place.connection, environ=self.environ)

    def warehouse(self) -> str | None:
        """The name of the target warehouse, as the scenario or the connection writes it."""
        named = self.scenario.target.warehouse if self.scenario is not None else None
        return named or self.target_profile().text("warehouse")


@dataclass(slots=True)
class KnownFacts:
    """Results of earlier checks that later checks use. Only the thread of the checks writes them."""

    target: ConnectionProbe | None = None
    control: ConnectionProbe | None = None
    prerequisites: Prerequisites = field(default_factory=Prerequisites)
    hybrid_here: int = 0  # hybrid tables of the control plane
    warehouse: WarehouseDescription | None = None


class DoctorSessions:
    """The sessions of the checks, opened on first use. They belong to the thread of the checks."""

    def __init__(self, subject: DoctorTarget, facts: KnownFacts) -> None:
        self.subject = subject
        self.facts = facts
        self._target = SnowflakeSession(self._connect)
        self._control: ControlSession | None = None
        self._control_prerequisites: Prerequisites | None = None

    def rows(self, sql: str) -> list[dict[str, Any]]:
        """The rows of a statement on the target connection, each as a mapping by column name in lower case."""
        self._target.open()
        try:
            return self._target.named_rows(sql)
        except Exception as error:  # the driver also raises exceptions of its libraries
            raise StatementFailed(describe(error), classify(error)) from error

    def control(self, prerequisites: Prerequisites) -> ControlSession:
        """A session of the control plane. Its login names only objects that exist: the embedded server creates missing
        ones."""
        if self._control is None or self._control_prerequisites != prerequisites:
            if self._control is not None:
                self._control.close()
            place = partial_location(self.subject.place, prerequisites)
            self._control = ControlSession(place, role="doctor", environ=self.subject.environ)
            self._control_prerequisites = prerequisites
        return self._control

    def close(self) -> None:
        self._target.close()
        if self._control is not None:
            self._control.close()

    def _connect(self) -> Connection:
        profile = self.subject.target_profile()
        return connect(profile, probe_settings(profile, major=driver.major()), environ=self.subject.environ)
