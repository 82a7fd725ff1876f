"""Did the client limit the result? The rule for the effect of a worker's process on what it measures. Pure.

    CPU of a worker            warning from 60 % of a core on, INVALID from 85 %; in its busiest minute
    lateness, mean over time   the largest increase of avg and decrease of qps that the client may cause. Above 3 % of
                               the mean service time a warning, above 10 % and 1 ms INVALID
    lateness, p99 over time    the largest error of percentiles that the client may cause; of response times of an open
                               loop the p99 of the client lag, if that is more. A threshold that is missed by less is
                               undecided: INVALID, not failed
    gaps                       lateness of 500 ms or more: the process was paused. Above 1 % of the time INVALID
    client lag, mean           open loop: how late the client sent what was due, since a connection became free; since
                               it was due, if a connection was missing then. Judged like the mean lateness. If the
                               server refused or lost connections, the reason names that and not the client
    pauses                     lateness of 100 ms or more, summed up. Above 1 % of the time it may determine p99: a
                               warning. Above 5 % it may determine p95, whatever the service time: INVALID

Each worker is judged in each stage, or step of a search: a busy minute must not hide in an average.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace

from loadgen.metrics.percentile import rank_of
from loadgen.metrics.window import ClientResourceUse
from loadgen.model.threshold import Operator, ThresholdCheck, ThresholdMetric
from loadgen.units import MS_PER_S, NS_PER_MS
from loadgen.values import dataclass

CPU_WARN_PERCENT = 60.0  # of one core, per worker
CPU_INVALID_PERCENT = 85.0
LATE_WARN_FRACTION = 0.03  # of the mean service time
LATE_INVALID_FRACTION = 0.10
LATE_INVALID_MS = 1.0
GAP_INVALID_PERCENT = 1.0  # of the time
PAUSED_WARN_PERCENT = 1.0
PAUSED_INVALID_PERCENT = 5.0
CORES_TAKEN = 0.5  # used by other processes; above this they are named as the likely cause
STOLEN_FRACTION = 0.05  # of the cores, withheld by the host; above this the host is named as well

_PAUSED = "its process was stopped and continued: SIGSTOP, a suspended machine or a frozen container"

_P99 = 990  # per mille
NAMED_MAX = 5  # workers with the same problem

_AT_MOST, _AT_LEAST = (Operator.LT, Operator.LE), (Operator.GT, Operator.GE)
_PERCENTILES = (
    ThresholdMetric.P50,
    ThresholdMetric.P90,
    ThresholdMetric.P95,
    ThresholdMetric.P99,
    ThresholdMetric.P999,
    ThresholdMetric.LAG_P99,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientHealth:
    """How loaded the load generator itself was; of several workers or windows, the worst of each. None: not known."""

    cpu_percent_of_core: float | None = None
    worst_cpu_percent: float | None = None  # of a core, in the busiest minute
    wakeup_mean_ms: float | None = None
    wakeup_p99_ms: float | None = None  # how far percentiles may be off
    wakeup_max_ms: float | None = None
    gap_percent: float | None = None
    paused_percent: float | None = None
    sent_late_mean_ms: float | None = None  # open loop: client lag
    sent_late_p99_ms: float | None = None
    sent_late_max_ms: float | None = None
    others_cores: float | None = None  # used by other processes of the machine
    stolen_cores: float | None = None  # withheld by the host of a virtual machine
    cores: int | None = None  # of the machine
    saturated: bool = False  # the result is INVALID because of it

    @classmethod
    def of(cls, effect: ClientResourceUse | None) -> ClientHealth:
        if effect is None:
            return cls()
        sent_late, sent_late_p99_ms = effect.sent_late, None
        if sent_late.count:  # of these statements, however few they are
            bucket = sent_late.bucket_at(rank_of(_P99, sent_late.count))
            sent_late_p99_ms = sent_late.span_ns(bucket)[1] / NS_PER_MS
        return cls(
            cpu_percent_of_core=effect.cpu_percent_of_core,
            worst_cpu_percent=effect.worst_cpu_percent,
            wakeup_mean_ms=effect.late_mean_ms,
            wakeup_p99_ms=effect.late_p99_ms,
            wakeup_max_ms=effect.late_max_ms,
            gap_percent=effect.gap_percent,
            paused_percent=effect.paused_percent,
            sent_late_mean_ms=effect.sent_late_mean_ms,
            sent_late_p99_ms=sent_late_p99_ms,
            sent_late_max_ms=sent_late.max_ns / NS_PER_MS if sent_late.count else None,
            others_cores=effect.others_cores,
            stolen_cores=effect.stolen_cores,
            cores=effect.cores or None,
        )

    def saturation(self, service_mean_ms: float | None) -> str | None:
        """Why the client, and not the server, may have limited the result; None: the client did not."""
        late = self.sends_late(service_mean_ms)
        late = None if late is None else f"{late}, because it was busy or connections were missing"
        return self.process_limit(service_mean_ms) or late

    def sends_late(self, service_mean_ms: float | None) -> str | None:
        """The client lag, if it is too large."""
        sent_late_ms = self.sent_late_mean_ms or 0.0
        if not service_mean_ms or sent_late_ms <= max(LATE_INVALID_MS, LATE_INVALID_FRACTION * service_mean_ms):
            return None
        share = f"{100 * sent_late_ms / service_mean_ms:.0f} % of the mean service time"
        most = f"at most {100 * LATE_INVALID_FRACTION:.0f} %"
        return f"sent statements {sent_late_ms:.1f} ms late on average, {share} ({most})"

    def process_limit(self, service_mean_ms: float | None) -> str | None:
        """Why the process of the worker may have limited the result, whatever its connections did."""
        cpu_percent, late_ms = self._busiest_percent, self.wakeup_mean_ms
        if cpu_percent >= CPU_INVALID_PERCENT:
            when = "" if cpu_percent == self.cpu_percent_of_core else " in its busiest minute"
            return f"used {cpu_percent:.0f} % of its core{when} (at most {CPU_INVALID_PERCENT:.0f} %)"
        if (self.gap_percent or 0.0) > GAP_INVALID_PERCENT:
            return f"was paused for {self.gap_percent:.1f} % of the time (at most {GAP_INVALID_PERCENT:.0f} %)"
        if (self.paused_percent or 0.0) > PAUSED_INVALID_PERCENT:
            most = f"at most {PAUSED_INVALID_PERCENT:.0f} %"
            return f"was paused again and again, for {self.paused_percent:.1f} % of the time ({most})"
        fraction = self._late_fraction(service_mean_ms)
        if late_ms is not None and late_ms > LATE_INVALID_MS and fraction > LATE_INVALID_FRACTION:
            return (
                f"woke up {late_ms:.1f} ms late on average, {100 * fraction:.0f} % of the mean service time"
                f" (at most {100 * LATE_INVALID_FRACTION:.0f} %)"
            )
        return None

    def warning(self, service_mean_ms: float | None) -> str | None:
        """The warning about a valid result; None: there is no warning."""
        if self._busiest_percent >= CPU_WARN_PERCENT:
            return f"uses more than {CPU_WARN_PERCENT:g} % of its core"
        fraction = self._late_fraction(service_mean_ms)
        if fraction > LATE_WARN_FRACTION:
            added = f"{self.wakeup_mean_ms:.2g} ms to avg, {100 * fraction:.0f} % of the mean service time"
            return f"may have added {added}"
        if (self.paused_percent or 0.0) > PAUSED_WARN_PERCENT:
            paused = f"was paused for {self.paused_percent:.1f} % of the time, 100 ms or more each time"
            return f"{paused}, and p99 may be off by {self.wakeup_p99_ms or 0.0:.3g} ms"
        return None

    def _late_fraction(self, service_mean_ms: float | None) -> float:
        return (self.wakeup_mean_ms or 0.0) / service_mean_ms if service_mean_ms else 0.0

    @property
    def is_unknown(self) -> bool:
        """Whether no figure was reported. A worker reports its load and lateness with every window."""
        return self == ClientHealth()

    @property
    def _busiest_percent(self) -> float:
        return max(self.cpu_percent_of_core or 0.0, self.worst_cpu_percent or 0.0)

    @property
    def advice(self) -> str:
        """What the user can do about it."""
        paused = (self.gap_percent or 0.0) > GAP_INVALID_PERCENT or (self.paused_percent or 0.0) > PAUSED_WARN_PERCENT
        if self._busiest_percent >= (CPU_INVALID_PERCENT if paused else CPU_WARN_PERCENT):
            return "more workers would be safer"
        if paused:
            return f"{_PAUSED}{self._starved}"
        others, stolen = self.others_cores or 0.0, self._stolen or 0.0
        if stolen > others:
            return (
                f"the host of this virtual machine withheld {stolen:.1f} of its {self.cores} cores (steal time);"
                " run the workers on a machine that shares its cores with no other"
            )
        if others >= CORES_TAKEN:
            return (
                f"other processes use this machine: {others:.1f} of its {self.cores} cores;"
                " end them, or run the workers elsewhere"
            )
        return "run fewer connections per worker, or the workers on another machine"

    @property
    def taken_cores(self) -> str | None:
        """How other processes and the host used all cores of the machine; None: a core was free, or it is not known."""
        stolen = self._stolen or 0.0
        if self.others_cores is None or self.cores is None or self.others_cores + stolen < self.cores - CORES_TAKEN:
            return None
        host = f", the host of this virtual machine withheld {stolen:.1f}" if stolen else ""
        return f"other processes used {self.others_cores:.1f} of {self.cores}{host}"

    @property
    def _starved(self) -> str:
        """Another reason why the process did not run, if there is evidence for it."""
        if self.taken_cores:
            return f", or had no core to run on: {self.taken_cores}"
        if self._stolen:
            return f", or its host withheld its cores: {self._stolen:.1f} of {self.cores} (steal time)"
        return ""

    @property
    def _stolen(self) -> float | None:
        """Cores that the host withheld, if they are more than the noise of a shared machine."""
        if self.stolen_cores is None or self.cores is None or self.stolen_cores < STOLEN_FRACTION * self.cores:
            return None
        return self.stolen_cores


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientHealthByScope:
    """The worst health of any worker in the run, and in each stage that thresholds refer to."""

    run: ClientHealth
    stages: Mapping[str, ClientHealth] = field(default_factory=dict)

    def of(self, subject: str | None) -> ClientHealth:
        """The health that bears on a threshold about a stage; about a statement, or all of them: that of the run."""
        return self.run if subject is None else self.stages.get(subject, self.run)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientPart:
    """One worker in one stage or step."""

    where: str  # "worker-1", or "worker-1 in stage 2"
    health: ClientHealth
    service_mean_ms: float | None
    missing_ms: int = 0  # connection time that was planned and not delivered

    def outage(self, cause: str | None) -> str | None:
        """A sentence, if statements were late because connections were missing for this cause: the client is not to
        blame. None: there is no cause, or the process itself was slow too."""
        late = self.health.sends_late(self.service_mean_ms)
        if cause is None or late is None or not self.missing_ms or self.health.process_limit(self.service_mean_ms):
            return None
        return f"connections were missing for {self.missing_ms / MS_PER_S:.1f} s: {self.where} {late}; {cause}"

    @property
    def limit(self) -> str | None:
        """A sentence, if the client may have limited the result, and not the server."""
        limit = self.health.saturation(self.service_mean_ms)
        return None if limit is None else f"the client was the limit: {self.where} {limit}; {self.health.advice}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientVerdict:
    """The judgement of all parts together."""

    health: ClientHealth
    invalid: tuple[str, ...]
    warnings: tuple[str, ...]


def judge_client(
    parts: Sequence[ClientPart], *, shares_machine: bool = False, outage: str | None = None
) -> ClientVerdict:
    """Judge every worker in every stage separately. `shares_machine`: the server runs on the machine of the workers.
    `outage`: logins that the server refused, or connections that it lost."""
    invalid, outages, warnings = [], [], []
    for part in parts:
        warning = part.health.warning(part.service_mean_ms)
        if part.health.is_unknown:
            invalid.append(f"whether the client was the limit is not known: {part.where} did not report its own load")
        elif (missing := part.outage(outage)) is not None:
            outages.append(missing)
        elif part.limit is not None:
            invalid.append(part.limit)
        elif warning is not None:
            warnings.append(f"{part.where} {warning}: {part.health.advice}")
    health = replace(worst(part.health for part in parts), saturated=bool(invalid))
    texts = list(_few(warnings))
    reasons = (*_few(invalid), *_few(outages, "connections were missing"))
    if shares_machine and health.taken_cores:
        why = f"the server shares a machine that had no free core ({health.taken_cores})"
        texts.append(f"{why}: it may have answered late; end other processes")
    return ClientVerdict(health=health, invalid=reasons, warnings=tuple(texts))


def _few(texts: Sequence[str], what: str = "the client had such a problem") -> tuple[str, ...]:
    more = len(texts) - NAMED_MAX
    return (*texts[:NAMED_MAX], *([f"{what} {more} more times"] if more > 0 else []))


def worst(healths: Iterable[ClientHealth]) -> ClientHealth:
    """The worst value of each figure."""
    known = list(healths)

    def most(name: str) -> float | None:
        return max((value for health in known if (value := getattr(health, name)) is not None), default=None)

    cores = most("cores")
    return ClientHealth(
        cpu_percent_of_core=most("cpu_percent_of_core"),
        worst_cpu_percent=most("worst_cpu_percent"),
        wakeup_mean_ms=most("wakeup_mean_ms"),
        wakeup_p99_ms=most("wakeup_p99_ms"),
        wakeup_max_ms=most("wakeup_max_ms"),
        gap_percent=most("gap_percent"),
        paused_percent=most("paused_percent"),
        sent_late_mean_ms=most("sent_late_mean_ms"),
        sent_late_p99_ms=most("sent_late_p99_ms"),
        sent_late_max_ms=most("sent_late_max_ms"),
        others_cores=most("others_cores"),
        stolen_cores=most("stolen_cores"),
        cores=None if cores is None else int(cores),
        saturated=any(health.saturated for health in known),
    )


def client_share(
    check: ThresholdCheck, value: float, health: ClientHealth, service_mean_ms: float | None, *, open_loop: bool
) -> float | None:
    """The part of a value that the client may have caused, if it may be why the threshold was missed; else None."""
    missed_by = value - check.limit if check.operator in _AT_MOST else check.limit - value
    bound = _bound(check, value, health, service_mean_ms, open_loop=open_loop)
    return bound if bound is not None and 0.0 <= missed_by < bound else None


def _bound(
    check: ThresholdCheck, value: float, health: ClientHealth, service_mean_ms: float | None, *, open_loop: bool
) -> float | None:
    """The largest error of a value to its disadvantage, in its unit; None: the client causes no such error."""
    late_ms = health.wakeup_mean_ms
    if check.metric is ThresholdMetric.QPS and check.operator in _AT_LEAST:
        if open_loop or late_ms is None or service_mean_ms is None or late_ms >= service_mean_ms:
            return None
        return value * late_ms / (service_mean_ms - late_ms)
    if check.operator not in _AT_MOST:
        return None
    if check.metric is ThresholdMetric.MIN:
        return late_ms
    if check.metric is ThresholdMetric.AVG:
        return _most(late_ms, health.sent_late_mean_ms)
    if check.metric is ThresholdMetric.MAX:
        return _most(health.wakeup_max_ms, health.sent_late_max_ms)
    if check.metric is ThresholdMetric.SERVICE_P95:  # it begins when the statement is sent
        return health.wakeup_p99_ms
    return _most(health.wakeup_p99_ms, health.sent_late_p99_ms) if check.metric in _PERCENTILES else None


def _most(*bounds: float | None) -> float | None:
    return max((bound for bound in bounds if bound is not None), default=None)
