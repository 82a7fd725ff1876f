"""Sections that a file and the typed Scenario share: each key is declared once, with type, default and help."""

import re
from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Annotated, ClassVar, Self

from loadgen.log import register_secret
from loadgen.model.run import CONTROL_WAREHOUSE
from loadgen.model.workload import Scalar
from loadgen.scenario.document import EnvironmentText
from loadgen.scenario.keys import AppliesWhen, key, section
from loadgen.scenario.spawner import SpawnerKind
from loadgen.scenario.types import (
    Boolean,
    Duration,
    FreeText,
    Integer,
    InvalidValue,
    JsonSchema,
    Label,
    Number,
    OneOf,
    ScalarValue,
    SqlName,
    ValueType,
)
from loadgen.units import format_duration_s, parse_duration_s

USERS_MAX = 10**6
SERVICE_S_MAX = 3600.0
SIGMA_MAX = 3.0
_DAY_S = 86_400.0

OptionalName = Annotated[str | None, SqlName(nullable=True)]
OptionalLabel = Annotated[str | None, Label(nullable=True)]
OnOff = Annotated[bool, Boolean()]
Percent = Annotated[float, Number(low=0, high=100, above=True)]
Interval = Annotated[float, Duration(low_s=0.001, high_s=_DAY_S)]


@section
class ControlPlaneSettings:
    """Where the tables of the control plane are."""

    connection: OptionalLabel = key(default=None, description="Another connection; null: that of the scenario.")
    database: Annotated[str, SqlName()] = key(default="LOADGEN")
    schema: Annotated[str, SqlName()] = key(default="CONTROL")
    warehouse: Annotated[str, SqlName(nullable=True, null_value=CONTROL_WAREHOUSE)] = key(
        default=None, description=f"null: {CONTROL_WAREHOUSE}."
    )
    share_warehouse: OnOff = key(
        default=False, description="Allow the warehouse under test, although that disturbs the measurement."
    )


@section
class TargetSettings:
    """What the load sessions use; null: the value of the connection."""

    warehouse: OptionalName = key(default=None, description="The warehouse under test.")
    database: OptionalName = key(default=None)
    schema: OptionalName = key(default=None)
    use_cached_result: OnOff = key(default=False, description="true lets Snowflake answer from its result cache.")
    statement_timeout_s: Annotated[int, Duration(low_s=1, high_s=604_800, whole=True)] = key(
        default="30s", description="The server cancels a statement after this time."
    )
    session: Mapping[str, Annotated[Scalar, ScalarValue()]] = key(default={}, description="Further session parameters.")


class SessionAffinity(StrEnum):
    """What happens to a user session when its connection ends."""

    STRICT = "strict"  # it ends too
    HINT = "hint"  # it continues over the next connection of the same client


@section
class UserSessionSettings:
    """Logical users that execute statements with `session: true`, each over one connection at a time."""

    count: Annotated[int, Integer(high=USERS_MAX)] = key(default=0, description="Users of the whole run; 0: none.")
    affinity: Annotated[SessionAffinity, OneOf(words=SessionAffinity)] = key(
        default="hint", description="strict: a session ends with its connection. hint: it continues over the next one."
    )
    ttl_s: Interval = key(default="1h", description="An idle session expires after this time.")
    max: Annotated[int, Integer(low=1, high=USERS_MAX)] = key(
        default=10_000, description="Quota: the largest value allowed for count."
    )
    metadata: Mapping[str, Annotated[str, Label()]] = key(
        default={}, description="Texts for QUERY_TAG of statements that are executed in sessions."
    )


@section
class ConnectionPolicy:
    """How load connections are opened, and when they are replaced between statements."""

    open_parallel: Annotated[int, Integer(low=1, high=1_000)] = key(
        default=16, description="Connections that are opened at the same time."
    )
    max_age_s: Annotated[float | None, Duration(low_s=1, nullable=True)] = key(
        default=None, description="Replace a connection that is older; null: never."
    )
    max_statements: Annotated[int | None, Integer(low=1, nullable=True)] = key(
        default=None, description="Replace a connection after this number of statements; null: never."
    )


class GuardrailAction(StrEnum):
    WARN = "warn"
    ABORT = "abort"


@section
class GuardrailSettings:
    """Limits of the client machine and of cost."""

    max_cpu_percent: Percent = key(default=90, description="CPU of this machine.")
    max_memory_percent: Percent = key(default=85, description="Memory of this machine.")
    action: Annotated[GuardrailAction, OneOf(words=GuardrailAction)] = key(
        default="warn", description="What to do above max_cpu_percent or max_memory_percent."
    )
    max_credits: Annotated[float | None, Number(low=0, high=10**6, above=True, nullable=True)] = key(
        default=None, description="Stop the run when the warehouse may have cost this much, whatever action is."
    )


class QueryLogMode(StrEnum):
    ALL = "all"
    SAMPLE = "sample"
    ERRORS = "errors"
    NONE = "none"


@section
class QueryLogSettings:
    """Which executed statements are stored one by one, in QUERY_EXECUTIONS."""

    mode: Annotated[QueryLogMode, OneOf(words=QueryLogMode)] = key(default="sample")
    sample_rate: Annotated[float, Number(low=0, high=1, above=True)] = key(
        default=0.01,
        description="Mode sample: the fraction that is stored.",
        applies=AppliesWhen("mode", (QueryLogMode.SAMPLE,)),
    )
    max_rows: Annotated[int, Integer(low=1, high=10**9)] = key(
        default="1m",
        description="Rows of the whole run.",
        applies=AppliesWhen("mode", (QueryLogMode.ALL, QueryLogMode.SAMPLE, QueryLogMode.ERRORS)),
    )


# --- notifications ---------------------------------------------------------------------------------------------------

_URL = re.compile(r"https?://[^\s/?#]+[^\s]*")


class NotifyEvent(StrEnum):
    """When a notification is sent."""

    FAILED = "failed"  # the run or a threshold
    INVALID = "invalid"
    REGRESSION = "regression"
    ALWAYS = "always"


class SecretUrl(ValueType):
    """A URL that gives access to its owner, so it comes from the environment and never from the file."""

    keeps_variables: ClassVar[bool] = True

    def parse(self, value: object) -> str:
        if not isinstance(value, EnvironmentText):
            raise InvalidValue("must come from the environment, because the URL itself gives access", "write ${NAME}")
        if not _URL.fullmatch(value):
            raise InvalidValue("is not a URL that begins with https:// or http://", "check the variable's value")
        register_secret(str(value))
        return value

    def schema(self) -> JsonSchema:
        return {"type": "string", "pattern": r"\$\{"}


@section
class Notification:
    """A message at the end of a run: one of webhook, command and ping."""

    webhook: Annotated[str | None, SecretUrl(nullable=True)] = key(
        default=None, description="Receives a small JSON document by POST; write ${NAME}."
    )
    command: tuple[Annotated[str, FreeText(length_max=1_000)], ...] = key(
        default=[], description="A program and its arguments; receives the same document on stdin."
    )
    ping: Annotated[str | None, SecretUrl(nullable=True)] = key(
        default=None, description="Receives a GET; write ${NAME}."
    )
    on: tuple[Annotated[NotifyEvent, OneOf(words=NotifyEvent)], ...] = key(
        default=["failed", "invalid", "regression"], description="When to send it; always: after every run."
    )


# --- timing ----------------------------------------------------------------------------------------------------------

SLOW_SPAWNERS = (SpawnerKind.SPCS, SpawnerKind.KUBERNETES, SpawnerKind.EXTERNAL)
REGISTRATION_S, START_S = 60.0, 120.0
SLOW_TIMING = {"registration_s": 600.0, "start_s": 900.0}  # defaults for spawners that start workers slowly


def _start_limit(default_s: float) -> Duration:
    return Duration(low_s=0.001, high_s=_DAY_S, nullable=True, null_value=default_s)


def _start_help(what: str, default_s: float, attribute: str) -> str:
    slow = format_duration_s(SLOW_TIMING[attribute])
    return f"{what}; null: {format_duration_s(default_s)}, or {slow} with spcs, kubernetes and external."


WORKERS_PER_SECOND = 100  # that send a heartbeat, and that poll


@section
class TimingSettings:
    """Intervals and time limits of loadgen itself, for tests and slow networks."""

    tick_s: Interval = key(default="1s", description="Interval of the orchestrator's decisions.")
    heartbeat_s: Interval = key(
        default="1s",
        description="Interval of each worker's heartbeat; grows with the workers beyond 100, to 10s at 1,000.",
    )
    status_poll_s: Interval = key(
        default="1s", description="Interval in which workers read the run's status; grows like heartbeat."
    )
    events_poll_s: Interval = key(default="5s", description="Interval in which workers read events.")
    warehouse_poll_s: Interval = key(default="5s", description="Interval in which the warehouse is polled.")
    flush_s: Interval = key(default="5s", description="Interval in which snapshots and logs are written.")
    announce_s: Interval = key(
        default="2s",
        description="How far ahead a change is announced, plus one status_poll and the control plane's latency.",
    )
    registration_s: Annotated[float, _start_limit(REGISTRATION_S)] = key(
        default=None, description=_start_help("Time limit for workers to register", REGISTRATION_S, "registration_s")
    )
    start_s: Annotated[float, _start_limit(START_S)] = key(
        default=None, description=_start_help("How long a worker waits for START", START_S, "start_s")
    )
    stale_s: Interval = key(default="30s", description="A worker without a heartbeat for this time is stale.")
    dead_s: Interval = key(default="60s", description="A worker without a heartbeat for this time is lost.")
    no_connection_s: Interval = key(
        default="60s",
        description="A worker without the control plane, or without any load connection, ends after this time.",
    )
    orchestrator_lost_s: Interval = key(
        default="60s", description="A worker whose run has no leader ends after this time."
    )
    metrics_missing_s: Interval = key(default="30s", description="Metrics older than this count as missing.")
    drain_s: Interval = key(default="120s", description="Time limit for statements in flight after STOP.")
    drain_interrupt_s: Interval = key(default="20s", description="The same after Ctrl-C.")
    terminate_after_s: Interval = key(default="5s", description="From the end of the drain to SIGTERM.")
    kill_after_s: Interval = key(default="2s", description="From SIGTERM to SIGKILL.")
    lease_ttl_s: Interval = key(default="30s", description="The leader's lease expires after this time.")
    lease_renew_s: Interval = key(default="5s", description="Interval in which the lease is renewed.")
    lease_margin_s: Interval = key(default="5s", description="The leader stops acting this long before the expiry.")

    def for_workers(self, workers: int) -> Self:
        """With intervals that keep the statements per second of all workers together within bounds."""
        period_s = workers / WORKERS_PER_SECOND
        if period_s <= 1.0:
            return self
        heartbeat_s, status_poll_s = max(self.heartbeat_s, period_s), max(self.status_poll_s, period_s)
        return replace(
            self,
            heartbeat_s=heartbeat_s,
            status_poll_s=status_poll_s,
            events_poll_s=max(self.events_poll_s, 2 * status_poll_s),
            tick_s=max(self.tick_s, heartbeat_s / 2),  # more often, it would read the same heartbeats again
            stale_s=max(self.stale_s, 6 * heartbeat_s),
            dead_s=max(self.dead_s, 12 * heartbeat_s),
            metrics_missing_s=max(self.metrics_missing_s, 6 * heartbeat_s),
        )


# --- the embedded server ---------------------------------------------------------------------------------------------

_CALL = re.compile(r"(?P<kind>[a-z]+)\s*\((?P<arguments>[^()]*)\)", re.IGNORECASE)


def check_service_time(text: str) -> bool:
    """Is it `20ms`, `lognormal(20ms,0.3)`, `exponential(20ms)` or `uniform(10ms,30ms)`?"""
    text = text.strip()
    call = _CALL.fullmatch(text)
    if call is None:
        return _service_s(text) is not None
    kind = call["kind"].lower()
    arguments = [argument.strip() for argument in call["arguments"].split(",")]
    first_s = _service_s(arguments[0])
    if first_s is None or len(arguments) != {"lognormal": 2, "exponential": 1, "uniform": 2}.get(kind):
        return False
    if kind == "uniform":
        second_s = _service_s(arguments[1])
        return second_s is not None and first_s <= second_s
    return first_s > 0 and (kind == "exponential" or _is_sigma(arguments[1]))


def _service_s(text: str) -> float | None:
    try:
        duration_s = parse_duration_s(text)
    except (ValueError, OverflowError):
        return None
    return duration_s if duration_s <= SERVICE_S_MAX else None


def _is_sigma(text: str) -> bool:
    try:
        return 0 <= float(text) <= SIGMA_MAX
    except ValueError:
        return False


class ServiceTimeText(ValueType):
    def parse(self, value: object) -> str:
        if not isinstance(value, str) or not check_service_time(value):
            how = "write 20ms, lognormal(20ms,0.3), exponential(20ms) or uniform(10ms,30ms)"
            raise InvalidValue("is not a service time", how)
        return str(value)

    def schema(self) -> JsonSchema:
        return {"type": "string"}


class EmbeddedEngine(StrEnum):
    POSTGRES = "postgres"
    NULL = "null"


@section
class EmbeddedSettings:
    """The target warehouse on the embedded server; read for `connection: embedded` only."""

    service_time: Annotated[str | None, ServiceTimeText(nullable=True)] = key(
        default=None, description="Added to each statement: 20ms, or lognormal(20ms,0.3)."
    )
    slots: Annotated[int, Integer(high=10_000)] = key(
        default=0, description="Statements that run at once; 0: MAX_CONCURRENCY_LEVEL × clusters."
    )
    engine: Annotated[EmbeddedEngine, OneOf(words=EmbeddedEngine)] = key(default="postgres")
