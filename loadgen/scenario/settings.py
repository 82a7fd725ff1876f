"""Sections that the file and the typed Scenario share: spawner, sessions, guardrails, timing and others."""

import re
from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Annotated, ClassVar, Self

from loadgen.identifiers import is_name
from loadgen.log import register_secret
from loadgen.model.run import CONTROL_WAREHOUSE
from loadgen.model.workload import Scalar
from loadgen.scenario.document import EnvironmentText
from loadgen.scenario.key_reader import AppliesWhen, Section, key
from loadgen.scenario.value_types import (
    Duration,
    FreeText,
    Integer,
    InvalidValue,
    JsonSchema,
    Label,
    Number,
    ParsedText,
    ScalarValue,
    SqlName,
    ValueType,
    WholeSeconds,
)
from loadgen.service_time import EXAMPLES, parse_service_time
from loadgen.units import format_duration_s

OWN_LABELS = "loadgen-"  # prefix of the labels by which loadgen finds its Jobs and pods
_NAME = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?")
_DOTTED_NAME = re.compile(rf"{_NAME.pattern}(?:\.{_NAME.pattern})*")
_WORD = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?")
_QUANTITY = re.compile(r"[0-9]+(?:\.[0-9]+)?(?:[mkMGTPE]|[KMGTPE]i)?")
_WORD_MAX, _DOTTED_NAME_MAX = 63, 253


class LabelKey(ValueType):
    """The key of a label, a taint or a resource: `name`, or `prefix/name` where the prefix is the name of a domain."""

    of: str = "Kubernetes label"
    how: str = "write it like team or example.com/team"
    own: bool = False  # of an object that loadgen creates

    def parse(self, value: object) -> str:
        text = value if isinstance(value, str) else ""
        prefix, slash, name = text.rpartition("/")
        domain_fits = not slash or (len(prefix) <= _DOTTED_NAME_MAX and _DOTTED_NAME.fullmatch(prefix))
        if not domain_fits or len(name) > _WORD_MAX or not _WORD.fullmatch(name):
            raise InvalidValue(f"is not the name of a {self.of}", self.how)
        if self.own and text.startswith(OWN_LABELS):
            what = "cannot be set here: loadgen finds its pods by labels that begin so"
            raise InvalidValue(what, "choose another name")
        return str(text)

    def schema(self) -> JsonSchema:
        return {"type": "string", "minLength": 1}


class KubernetesLabel(ValueType):
    """The value of a label or of a node selector."""

    def parse(self, value: object) -> str:
        text = str(value).lower() if isinstance(value, bool) else str(value) if isinstance(value, int) else value
        if not isinstance(text, str) or len(text) > _WORD_MAX or (text and not _WORD.fullmatch(text)):
            how = f"write at most {_WORD_MAX} letters, digits, dashes, underscores and dots"
            raise InvalidValue("is not the value of a Kubernetes label", how)
        return str(text)

    def schema(self) -> JsonSchema:
        return {"anyOf": [{"type": "string"}, {"type": "integer"}, {"type": "boolean"}]}


_OWN_PARAMETERS = {
    "USE_CACHED_RESULT": "set target.use_cached_result",
    "STATEMENT_TIMEOUT_IN_SECONDS": "set target.statement_timeout",
    "QUERY_TAG": "loadgen tags its statements, so that they can be counted",
    "TIMEZONE": "sessions are in UTC",
    "AUTOCOMMIT": "list the statements of a transaction under transaction:",
    "ABORT_DETACHED_QUERY": "loadgen sets it, so that no statement keeps running",
    "CLIENT_TELEMETRY_ENABLED": "loadgen turns telemetry off",
    "MULTI_STATEMENT_COUNT": "write one statement per entry",
}


class SessionParameterName(ValueType):
    """The name of a session parameter that a scenario may set."""

    def parse(self, value: object) -> str:
        if not isinstance(value, str) or not is_name(value) or value.startswith('"'):
            raise InvalidValue("is not the name of a session parameter", "write letters, digits and _")
        if value.upper() in _OWN_PARAMETERS:
            raise InvalidValue("cannot be set here: results depend on it", _OWN_PARAMETERS[value.upper()])
        return str(value)


class ResourceQuantity(ValueType):
    """An amount of CPU or memory, as Kubernetes writes it."""

    def parse(self, value: object) -> str:
        text = str(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else value
        if not isinstance(text, str) or not _QUANTITY.fullmatch(text) or not float(re.sub("[A-Za-z]+", "", text)):
            raise InvalidValue("is not a quantity", "write it like 2, 500m or 2Gi")
        return str(text)

    def schema(self) -> JsonSchema:
        return {"anyOf": [{"type": "string", "pattern": rf"^{_QUANTITY.pattern}$|\$\{{"}, {"type": "number"}]}


class SpawnerKind(StrEnum):
    LOCAL = "local"
    SUBPROCESS = "subprocess"
    SPCS = "spcs"
    KUBERNETES = "kubernetes"
    EXTERNAL = "external"


class TolerationOperator(StrEnum):
    EQUAL = "Equal"
    EXISTS = "Exists"


class TaintEffect(StrEnum):
    NO_SCHEDULE = "NoSchedule"
    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    NO_EXECUTE = "NoExecute"


Name = Annotated[str, SqlName()]
LabelText = Annotated[str, Label()]
ObjectName = Annotated[
    str,
    ParsedText(
        read=lambda text: text if len(text) <= _DOTTED_NAME_MAX and _DOTTED_NAME.fullmatch(text) else None,
        what="is not the name of a Kubernetes object",
        how="write lower-case letters, digits and dashes, beginning and ending with a letter or digit",
        more={"minLength": 1},
    ),
]
LabelName = Annotated[str, LabelKey()]
LabelValue = Annotated[str, KubernetesLabel()]
ResourceName = Annotated[str, LabelKey(of="resource", how="write cpu or memory")]
Quantity = Annotated[str, ResourceQuantity()]


class Toleration(Section):
    """A taint of nodes that pods accept, as in a pod's specification."""

    operator: TolerationOperator = key("Equal: the value must match; Exists: any value.", default="Equal")
    value: LabelValue | None = key(
        "Value of the taint, with operator Equal.",
        default=None,
        applies=AppliesWhen("operator", (TolerationOperator.EQUAL,)),
    )
    effect: TaintEffect | None = key("Effect of the taint; null: every effect.", default=None)
    seconds: Annotated[int, Integer(high=10**9)] | None = key(
        "With NoExecute: how long a pod stays on such a node; null: forever.",
        default=None,
        applies=AppliesWhen("effect", (TaintEffect.NO_EXECUTE,)),
    )
    key: Annotated[str, LabelKey(of="taint")] | None = key(
        "Key of the taint; null, with operator Exists: every taint.", default=None
    )


class ContainerResources(Section):
    """CPU and memory of each worker's container."""

    requests: Mapping[ResourceName, Quantity] = key(
        "Resources that a node must have free: {cpu: 500m, memory: 4Gi}. Unless given, cpu is 1 and memory 2Gi.",
        default={},
    )
    limits: Mapping[ResourceName, Quantity] = key(
        "Limits of a worker. A limit of cpu makes Kubernetes pause workers, and pauses are measured as latency.",
        default={},
    )


_SPCS_ONLY = AppliesWhen("kind", (SpawnerKind.SPCS,))
_KUBERNETES_ONLY = AppliesWhen("kind", (SpawnerKind.KUBERNETES,))
_CONTAINERS_ONLY = AppliesWhen("kind", (SpawnerKind.SPCS, SpawnerKind.KUBERNETES))


class SpawnerSettings(Section):
    """Where workers run."""

    kind: SpawnerKind = key(
        "local and subprocess: on this machine; spcs: in Snowpark Container Services; kubernetes: in the pods of a Job;"
        " external: you start them with `loadgen worker`.",
        default="local",
    )
    compute_pool: Annotated[str, SqlName()] | None = key(
        "With spcs: the compute pool of the containers.", default=None, applies=_SPCS_ONLY
    )
    image: Annotated[str, FreeText(length_max=1_000)] | None = key(
        "With spcs: the path of the image in its repository. With kubernetes: the image of the workers.",
        default=None,
        applies=_CONTAINERS_ONLY,
    )
    namespace: ObjectName | None = key(
        "With kubernetes: the namespace of the Job; null: that of the context, or of this pod.",
        default=None,
        applies=_KUBERNETES_ONLY,
    )
    context: LabelText | None = key(
        "With kubernetes: the context of the kubeconfig file; null: in a pod the cluster of the pod, elsewhere the"
        " current context.",
        default=None,
        applies=_KUBERNETES_ONLY,
    )
    service_account: ObjectName | None = key(
        "With kubernetes: the service account of the pods; its identity can be their login.",
        default=None,
        applies=_KUBERNETES_ONLY,
    )
    secret: ObjectName | None = key(
        "With kubernetes: a Secret with the environment of the pods: SNOWFLAKE_ACCOUNT, SNOWFLAKE_USER,"
        " SNOWFLAKE_PRIVATE_KEY_RAW and others.",
        default=None,
        applies=_KUBERNETES_ONLY,
    )
    resources: ContainerResources = key(default=ContainerResources(), applies=_KUBERNETES_ONLY)
    node_selector: Mapping[LabelName, LabelValue] = key(
        "With kubernetes: labels that a node must have.", default={}, applies=_KUBERNETES_ONLY
    )
    tolerations: tuple[Toleration, ...] = key(
        "With kubernetes: taints of nodes that pods accept.", default=[], applies=_KUBERNETES_ONLY
    )
    labels: Mapping[Annotated[str, LabelKey(own=True)], LabelValue] = key(
        "With kubernetes: further labels of the Job and its pods.", default={}, applies=_KUBERNETES_ONLY
    )


USERS_MAX = 10**6
_DAY_S = 86_400.0

Percent = Annotated[float, Number(low=0, high=100, above=True)]
Interval = Annotated[float, Duration(low_s=0.001, high_s=_DAY_S)]


class ControlPlaneSettings(Section):
    """Where the tables of the control plane are."""

    connection: LabelText | None = key("Connection of the control plane; null: that of the scenario.", default=None)
    database: Name = key("Database of the tables.", default="LOADGEN")
    schema: Name = key("Schema of the tables.", default="CONTROL")
    warehouse: Annotated[str, SqlName(nullable=True, null_value=CONTROL_WAREHOUSE)] = key(
        f"Warehouse of the control plane; null: {CONTROL_WAREHOUSE}.", default=None
    )
    share_warehouse: bool = key(
        "Let the control plane use the warehouse under test, although that disturbs the measurement.", default=False
    )


class TargetSettings(Section):
    """Settings of the load sessions; null: the value of the connection."""

    warehouse: Name | None = key("The warehouse under test.", default=None)
    database: Name | None = key("The current database.", default=None)
    schema: Name | None = key("The current schema.", default=None)
    use_cached_result: bool = key("Let Snowflake answer from its result cache.", default=False)
    statement_timeout_s: Annotated[int, WholeSeconds(low_s=1, high_s=604_800)] = key(
        "The server cancels a statement after this time.", default="30s"
    )
    session: Mapping[Annotated[str, SessionParameterName()], Annotated[Scalar, ScalarValue()]] = key(
        "Further session parameters.", default={}
    )


class SessionAffinity(StrEnum):
    """What happens to a user session when its connection ends."""

    STRICT = "strict"  # it ends too
    HINT = "hint"  # it continues over the next connection of the same client


class UserSessionSettings(Section):
    """Logical users that execute statements with `session: true`, each over one connection at a time."""

    count: Annotated[int, Integer(high=USERS_MAX)] = key(
        "Number of users of the whole run; 0: no user sessions.", default=0
    )
    affinity: SessionAffinity = key(
        "strict: a session ends with its connection; hint: it continues over the next connection of the same client.",
        default="hint",
    )
    ttl_s: Interval = key("An idle session expires after this time.", default="1h")
    max: Annotated[int, Integer(low=1, high=USERS_MAX)] = key(
        "Quota: the largest allowed value of count.", default=10_000
    )
    metadata: Mapping[LabelText, LabelText] = key(
        "Texts that are added to QUERY_TAG of statements of user sessions.", default={}
    )


class ConnectionPolicy(Section):
    """How load connections are opened, and when they are replaced between statements."""

    open_parallel: Annotated[int, Integer(low=1, high=1_000)] = key(
        "Number of connections that are opened at the same time.", default=16
    )
    max_age_s: Annotated[float, Duration(low_s=1)] | None = key(
        "Replace a connection that is older; null: never.", default=None
    )
    max_statements: Annotated[int, Integer(low=1)] | None = key(
        "Replace a connection after this number of statements; null: never.", default=None
    )


class GuardrailAction(StrEnum):
    WARN = "warn"
    ABORT = "abort"


class GuardrailSettings(Section):
    """Limits of the client machine and of cost."""

    max_cpu_percent: Percent = key("Highest CPU use of this machine.", default=90)
    max_memory_percent: Percent = key("Highest memory use of this machine.", default=85)
    action: GuardrailAction = key(
        "What happens above max_cpu_percent or max_memory_percent: a warning, or the end of the run.", default="warn"
    )
    max_credits: Annotated[float, Number(low=0, high=10**6, above=True)] | None = key(
        "Stop the run when the warehouse may have used this number of credits, whatever `action` is.", default=None
    )


class QueryLogMode(StrEnum):
    ALL = "all"
    SAMPLE = "sample"
    ERRORS = "errors"
    NONE = "none"


class QueryLogSettings(Section):
    """Executed statements that are stored individually, in QUERY_EXECUTIONS."""

    mode: QueryLogMode = key("all, a random sample, those that failed (errors), or none.", default="sample")
    sample_rate: Annotated[float, Number(low=0, high=1, above=True)] = key(
        "Mode sample: the fraction that is stored.", default=0.01, applies=AppliesWhen("mode", (QueryLogMode.SAMPLE,))
    )
    max_rows: Annotated[int, Integer(low=1, high=10**9)] = key(
        "Largest number of rows of the whole run.",
        default="1m",
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
    """A URL that is itself a credential: it comes from the environment, never from the file."""

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


class Notification(Section):
    """A message at the end of a run: one of webhook, command and ping."""

    webhook: Annotated[str, SecretUrl()] | None = key(
        "URL that receives a small JSON document by POST; write ${NAME}.", default=None
    )
    command: tuple[Annotated[str, FreeText(length_max=1_000)], ...] = key(
        "A program and its arguments; it receives the same document on stdin.", default=[]
    )
    ping: Annotated[str, SecretUrl()] | None = key("URL that receives a GET request; write ${NAME}.", default=None)
    on: tuple[NotifyEvent, ...] = key(
        "Results after which the message is sent; always: after every run.", default=["failed", "invalid", "regression"]
    )


# --- timing ----------------------------------------------------------------------------------------------------------

SLOW_SPAWNERS = (SpawnerKind.SPCS, SpawnerKind.KUBERNETES, SpawnerKind.EXTERNAL)
REGISTRATION_S, START_S = 60.0, 120.0
SLOW_TIMING = {"registration_s": 600.0, "start_s": 900.0}  # defaults for SLOW_SPAWNERS


def _start_limit(default_s: float) -> Duration:
    return Duration(low_s=0.001, high_s=_DAY_S, nullable=True, null_value=default_s)


def _start_help(what: str, default_s: float, attribute: str) -> str:
    slow = format_duration_s(SLOW_TIMING[attribute])
    return f"{what}; null: {format_duration_s(default_s)}, or {slow} with spcs, kubernetes and external."


WORKERS_PER_SECOND = 100  # heartbeats per second of all workers together, and status polls


class TimingSettings(Section):
    """Intervals and time limits of loadgen itself, for tests and slow networks."""

    tick_s: Interval = key("Interval of the orchestrator's decisions.", default="1s")
    heartbeat_s: Interval = key(
        f"Interval of each worker's heartbeat; longer with more than {WORKERS_PER_SECOND} workers: 10s with 1,000.",
        default="1s",
    )
    status_poll_s: Interval = key(
        "Interval in which workers read the run's status; longer with many workers, as heartbeat.", default="1s"
    )
    events_poll_s: Interval = key("Interval in which workers read events.", default="5s")
    warehouse_poll_s: Interval = key("Interval in which the warehouse is polled.", default="5s")
    flush_s: Interval = key("Interval in which snapshots and logs are written.", default="5s")
    announce_s: Interval = key(
        "Time by which a change is announced in advance; a status_poll and the control plane's latency are added.",
        default="2s",
    )
    registration_s: Annotated[float, _start_limit(REGISTRATION_S)] = key(
        _start_help("Time limit for workers to register", REGISTRATION_S, "registration_s"), default=None
    )
    start_s: Annotated[float, _start_limit(START_S)] = key(
        _start_help("How long a worker waits for START", START_S, "start_s"), default=None
    )
    stale_s: Interval = key("A worker without a heartbeat for this time is stale.", default="30s")
    dead_s: Interval = key("A worker without a heartbeat for this time is lost.", default="60s")
    no_connection_s: Interval = key(
        "A worker without the control plane, or without any load connection, ends after this time.", default="60s"
    )
    orchestrator_lost_s: Interval = key("A worker whose run has no leader ends after this time.", default="60s")
    metrics_missing_s: Interval = key("Metrics of a worker that are older than this count as missing.", default="30s")
    drain_s: Interval = key("Time limit for statements in flight after STOP.", default="120s")
    drain_interrupt_s: Interval = key("Time limit for statements in flight after Ctrl-C.", default="20s")
    terminate_after_s: Interval = key("Time from the end of the drain to SIGTERM.", default="5s")
    kill_after_s: Interval = key("Time from SIGTERM to SIGKILL.", default="2s")
    lease_ttl_s: Interval = key("The leader's lease expires after this time.", default="30s")
    lease_renew_s: Interval = key("Interval in which the lease is renewed.", default="5s")
    lease_margin_s: Interval = key(
        "Time before the expiry of the lease at which the leader stops acting.", default="5s"
    )

    def for_workers(self, workers: int) -> Self:
        """Longer intervals for many workers, so that their control statements per second stay bounded."""
        period_s = workers / WORKERS_PER_SECOND
        if period_s <= 1.0:
            return self
        heartbeat_s, status_poll_s = max(self.heartbeat_s, period_s), max(self.status_poll_s, period_s)
        return replace(
            self,
            heartbeat_s=heartbeat_s,
            status_poll_s=status_poll_s,
            events_poll_s=max(self.events_poll_s, 2 * status_poll_s),
            # All workers read an event within one poll, which slows each of them down.
            announce_s=max(self.announce_s, status_poll_s / 2),
            tick_s=max(self.tick_s, heartbeat_s / 2),  # a shorter tick would read the same heartbeats again
            stale_s=max(self.stale_s, 6 * heartbeat_s),
            dead_s=max(self.dead_s, 12 * heartbeat_s),
            metrics_missing_s=max(self.metrics_missing_s, 6 * heartbeat_s),
        )


# --- the embedded server ---------------------------------------------------------------------------------------------


def _service_time_text(text: str) -> str | None:
    try:
        parse_service_time(text)
    except ValueError:
        return None
    return text if text.strip() else None


ServiceTimeText = Annotated[
    str,
    ParsedText(
        read=_service_time_text,
        what="is not a service time",
        how=f"write {EXAMPLES}",
    ),
]


class EmbeddedEngine(StrEnum):
    POSTGRES = "postgres"
    NULL = "null"


class EmbeddedSettings(Section):
    """Model of the target warehouse on the embedded server; used with `connection: embedded` only."""

    service_time: ServiceTimeText | None = key(
        "Time that each statement takes: 20ms, lognormal(20ms,0.3) …; null: --service-time of the server.", default=None
    )
    slots: Annotated[int, Integer(high=10_000)] = key(
        "Number of concurrent statements; 0: MAX_CONCURRENCY_LEVEL × clusters.", default=0
    )
    engine: EmbeddedEngine = key(
        "postgres: statements are executed; null: each is answered with one row, to measure clients.",
        default="postgres",
    )
