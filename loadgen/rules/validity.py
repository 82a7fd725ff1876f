"""Is a finished run valid, and did it pass? Pure.

Validity is judged first and separately: an INVALID run never passes, whatever its numbers are.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from enum import StrEnum
from functools import reduce
from operator import add
from typing import Any, Protocol

from loadgen.log import printable
from loadgen.metrics.connections import ConnectionTime
from loadgen.metrics.window import MergedWindows, WindowResult
from loadgen.model.counts import Counts
from loadgen.model.threshold import ThresholdCheck, ThresholdMetric
from loadgen.rules.client_health import ClientHealth, ClientHealthByScope, ClientVerdict, client_share
from loadgen.rules.plan import RunPlan
from loadgen.rules.thresholds import Checked, tally_of
from loadgen.scenario.model import Threshold
from loadgen.units import NS_PER_MS, counted
from loadgen.values import dataclass

# Delivered load: how much of the planned load was delivered, by worker and window, and what is missing. Pure.
#
#     closed loop   connection time: open, or being opened again after it was open or refused
#     open loop     arrivals that were sent. Arrivals that were not sent because every connection was executing or
#                   logging in again are an overload of the server: only thresholds on response times count them, with
#                   their age. Connection time is judged as well, because fewer connections make the server look slower
#                   than it is
#
# The plan is that of the run, not what a worker reported. A surplus never offsets a deficit: deficits are added up.

RUN_MIN_PERCENT = 99  # of the plan of a run, and of each of its windows
WORKER_MIN_PERCENT = 95
NAMED_MAX = 5  # windows; also workers
_ALL_BUSY = "because every connection was executing or logging in"
LOGIN_WARN_PERCENT = 1  # of the planned connection time, in the run or a window
LOGIN_INVALID_PERCENT = 10

Key = tuple[str, int | None]  # worker, and the number of the stage or step; None: there is one window only
ArrivalScope = tuple[int | None, str | None]  # the subject of a threshold: a stage or all (None), a statement or all


@dataclass(frozen=True, slots=True, kw_only=True)
class Portion:
    """Connection-milliseconds, or arrivals, of a worker in a window; portions add."""

    planned: int = 0
    missing: int = 0
    overload: int = 0  # arrivals that found every connection executing or logging in again
    unjudged: int = 0  # overload whose response time no threshold limits
    logging_in: int = 0  # of the connection time that was delivered

    def __add__(self, other: Portion) -> Portion:
        return Portion(
            planned=self.planned + other.planned,
            missing=self.missing + other.missing,
            overload=self.overload + other.overload,
            unjudged=self.unjudged + other.unjudged,
            logging_in=self.logging_in + other.logging_in,
        )

    @property
    def delivered(self) -> int:
        return self.planned - self.missing - self.overload

    @property
    def fraction(self) -> float | None:
        """The delivered fraction; None: nothing was planned."""
        return self.delivered / self.planned if self.planned else None

    def is_short(self, percent: int) -> bool:
        """Is more missing than allowed? Overload does not count as missing."""
        return 100 * self.missing > (100 - percent) * self.planned

    def logs_in_more_than(self, percent: int) -> bool:
        """Were logins more than this share of the planned time?"""
        return 100 * self.logging_in > percent * self.planned > 0

    def is_overloaded(self, percent: int) -> bool:
        """Is more missing than allowed, including overload that no threshold judges?"""
        return self.unjudged > 0 and 100 * (self.missing + self.unjudged) > (100 - percent) * self.planned


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    portions: Mapping[Key, Portion]
    open_loop: bool = False
    connections: Delivered | None = None  # for an open loop: connection time; None: not measured
    window_word: str = "stage"
    because: str = ""  # the known cause
    relief: str = "raise max_connections"  # advice that leaves connections free
    login_cause: str = "raise connections.max_age and connections.max_statements, or find out why logins are slow"

    @property
    def run(self) -> Portion:
        return reduce(add, self.portions.values(), Portion())

    @property
    def workers(self) -> dict[str, Portion]:
        found: dict[str, Portion] = {}
        for (worker_id, _), portion in self.portions.items():
            found[worker_id] = found.get(worker_id, Portion()) + portion
        return found

    @property
    def windows(self) -> dict[int | None, Portion]:
        found: dict[int | None, Portion] = {}
        for (_, step_id), portion in self.portions.items():
            found[step_id] = found.get(step_id, Portion()) + portion
        return found

    def document(self) -> dict[str, Any]:
        """The form of summary.json."""
        own = {
            **self._document(self.run),
            "by_worker": {worker_id: self._document(portion) for worker_id, portion in self.workers.items()},
            "by_window": [{"step_id": step_id, **self._document(portion)} for step_id, portion in self.windows.items()],
        }
        if self.connections is None:
            return own
        of_time = self.connections.document()
        workers, windows = own["by_worker"], own["by_window"]
        return (of_time | own) | {
            "by_worker": {name: of_time["by_worker"].get(name, {}) | one for name, one in workers.items()},
            "by_window": [time | one for time, one in zip(of_time["by_window"], windows, strict=True)],
        }

    def _document(self, portion: Portion) -> dict[str, Any]:
        fraction = None if portion.fraction is None else round(portion.fraction, 6)
        if self.open_loop:
            return {
                "planned_arrivals": portion.planned,
                "sent_arrivals": portion.delivered,
                "overload_arrivals": portion.overload,
                "fraction": fraction,
            }
        return {
            "planned_connection_seconds": portion.planned / 1_000,
            "delivered_connection_seconds": portion.delivered / 1_000,
            "logging_in_connection_seconds": portion.logging_in / 1_000,
            "fraction": fraction,
        }


# --- what was measured, against the plan -----------------------------------------------------------------------------


def delivered_connections(
    windows: Mapping[str, Sequence[WindowResult]], planned: Mapping[Key, int]
) -> dict[Key, Portion]:
    found = {}
    for (worker_id, step_id), plan_ms in planned.items():
        own = _time(windows.get(worker_id, ()), step_id)
        missing_ms = own.planned_ms - own.delivered_ms + max(0, plan_ms - own.planned_ms)
        found[worker_id, step_id] = Portion(
            planned=plan_ms, missing=min(missing_ms, plan_ms), logging_in=min(own.logging_in_ms, plan_ms)
        )
    return found


def delivered_arrivals(
    windows: Mapping[str, Sequence[WindowResult]],
    planned: Mapping[Key, int],
    thresholds: Set[ArrivalScope] = frozenset(),
) -> dict[Key, Portion]:
    """The portions of an open loop. `thresholds`: the subjects of thresholds on response times."""
    found = {}
    for (worker_id, step_id), due in planned.items():
        own = [window for window in windows.get(worker_id, ()) if window.step_id == step_id]
        counts = reduce(add, (window.counts for window in own), Counts())
        unsent = [(name, one.unsent.count) for window in own for name, one in window.tally.statements.items()]
        overload = min(sum(count for _, count in unsent), due)
        unjudged = sum(count for name, count in unsent if not thresholds & _scopes(step_id, name))
        missing = counts.skipped - overload + max(0, due - counts.scheduled)
        found[worker_id, step_id] = Portion(
            planned=due,
            missing=min(max(0, missing), due - overload),
            overload=overload,
            unjudged=min(unjudged, overload),
        )
    return found


def _scopes(step_id: int | None, statement: str) -> set[ArrivalScope]:
    """The subjects that contain an arrival."""
    return {(None, None), (None, statement), (step_id, None)}


def _time(windows: Sequence[WindowResult], step_id: int | None) -> ConnectionTime:
    """The connection time of a window in one worker, of all its processes: one may have replaced another."""
    times = (window.connections for window in windows if window.step_id == step_id)
    return reduce(add, (time for time in times if time is not None), ConnectionTime())


# --- too little load -------------------------------------------------------------------------------------------------


def shortfalls(delivered: Delivered | None, *, has_failed: bool = False) -> list[str]:
    """Why too little load makes a run invalid: windows, workers, amounts. Empty: everything was delivered.
    `has_failed`: a threshold was certainly missed, so it does not matter that none limits some response times."""
    if delivered is None:
        return ["it is not known how much of the planned load was delivered"]
    missing = list(_missing(delivered))
    time = delivered.connections
    unopened = [] if time is None else _unopened(replace(time, because="") if missing else time)
    overloaded = () if has_failed else _overloaded(delivered)
    return [*missing, *unopened, *overloaded, *_logging_in(time or delivered)]


def _missing(delivered: Delivered) -> Iterator[str]:
    run, because = delivered.run, f"; {delivered.because}" if delivered.because else ""
    if run.is_short(RUN_MIN_PERCENT):
        yield f"delivered load was {_share(delivered, run)} of the plan{because}"
    windows, workers = _short(delivered)
    named = [f"{name} had {_share(delivered, one)} of its planned load" for name, one in windows.items()]
    yield from _first(named, f"{delivered.window_word}s were short of load")
    named = [f"{worker_id} delivered {_share(delivered, one)} of its part" for worker_id, one in workers.items()]
    yield from _first(named, "workers were short of their part")


def _unopened(time: Delivered) -> Iterator[str]:
    """Missing connections of an open loop. All arrivals may still have been sent, late, over other connections."""
    run, because = time.run, f"; {time.because}" if time.because else ""
    if run.is_short(RUN_MIN_PERCENT):
        yield f"connections could be used for {_share(time, run)} of the planned time{because}"
    windows, workers = _short(time)
    named = [
        f"{name} could use its connections for {_share(time, one)} of the planned time" for name, one in windows.items()
    ]
    yield from _first(named, f"{time.window_word}s were short of connections")
    named = [
        f"{worker_id} could use its connections for {_share(time, one)} of the time"
        for worker_id, one in workers.items()
    ]
    yield from _first(named, "workers were short of connections")


def _short(delivered: Delivered) -> tuple[dict[str, Portion], dict[str, Portion]]:
    """Windows (unless there is only one) and workers with less than the allowed minimum."""
    windows = {
        f"{delivered.window_word} {step_id}": one
        for step_id, one in delivered.windows.items()
        if len(delivered.windows) > 1 and one.is_short(RUN_MIN_PERCENT)
    }
    workers = {worker_id: one for worker_id, one in delivered.workers.items() if one.is_short(WORKER_MIN_PERCENT)}
    return windows, workers


def _overloaded(delivered: Delivered) -> Iterator[str]:
    every = (delivered.run, *delivered.windows.values())
    if not any(one.is_overloaded(RUN_MIN_PERCENT) for one in every):
        return
    run = delivered.run
    yield (
        f"{run.unjudged:,} of {run.planned:,} arrivals were not sent, {_ALL_BUSY}, and no threshold limits their"
        f" response times: add a threshold on response times, or {delivered.relief}"
    )


def overload_warnings(delivered: Delivered) -> list[str]:
    """The warning about arrivals that were never sent: thresholds count them, but a p50 may be met without many."""
    portion, where = _worst_place(delivered, "overload")
    if portion.overload * 100 <= (100 - RUN_MIN_PERCENT) * portion.planned:
        return []
    share = f"{portion.overload:,} of {portion.planned:,} arrivals ({100 * portion.overload / portion.planned:.1f} %)"
    return [f"{share}{where} were never sent, {_ALL_BUSY}: thresholds count them as slower than their age"]


def login_warnings(delivered: Delivered) -> list[str]:
    """The warning about connections that were logging in; empty: no warning."""
    portion, where = _worst_place(delivered.connections or delivered, "logging_in")
    if portion.logs_in_more_than(LOGIN_INVALID_PERCENT) or not portion.logs_in_more_than(LOGIN_WARN_PERCENT):
        return []
    effect = "throughput is that of fewer connections"
    if delivered.open_loop:
        effect = "arrivals waited for fewer connections, which response times include"
    return [f"{_login_time(portion, where)}: {effect}"]


def _logging_in(time: Delivered) -> Iterator[str]:
    portion, where = _worst_place(time, "logging_in")
    if portion.logs_in_more_than(LOGIN_INVALID_PERCENT):
        most = f"at most {LOGIN_INVALID_PERCENT} %"
        yield f"{_login_time(portion, where)} ({most}): the load was not on the server; {time.login_cause}"


def _worst_place(delivered: Delivered, name: str) -> tuple[Portion, str]:
    """The run, or the window in which this amount is a larger share of the plan."""
    places = [(delivered.run, "")]
    if len(delivered.windows) > 1:
        places += [(one, f" of {delivered.window_word} {step_id}") for step_id, one in delivered.windows.items()]
    return max(places, key=lambda place: getattr(place[0], name) / (place[0].planned or math.inf))


def _login_time(portion: Portion, where: str) -> str:
    share = 100 * portion.logging_in / portion.planned
    return f"connections were logging in for {share:.1f} % of the planned time{where}"


def _first(named: Sequence[str], others: str) -> Iterator[str]:
    yield from named[:NAMED_MAX]
    if len(named) > NAMED_MAX:
        yield f"{len(named) - NAMED_MAX} more {others}"


def _share(delivered: Delivered, portion: Portion) -> str:
    if delivered.open_loop:
        return f"{percent(portion.fraction)} ({portion.delivered:,} of {portion.planned:,} arrivals)"
    amount = f"{portion.delivered / 1_000:,.1f} of {portion.planned / 1_000:,.1f} connection-seconds"
    return f"{percent(portion.fraction)} ({amount})"


def percent(fraction: float | None) -> str:
    """A percentage that is never rounded up."""
    return "–" if fraction is None else f"{math.floor(fraction * 1_000) / 10:.1f} %"


SAMPLES_MIN = 20
ERROR_TEXT_MAX = 200  # characters of an error in the reason of a verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The facts by which validity is judged."""

    merged: MergedWindows
    client: ClientVerdict
    delivered: Delivered | None  # None: not known, so the run is not valid
    lost_workers: tuple[str, ...] = ()
    gaps: tuple[str, ...] = ()  # what is missing from the record, or does not add up
    disturbances: tuple[str, ...] = ()  # of the warehouse, by another run or by a change of its model
    aborted: bool = False  # by a threshold, which was certainly missed


def invalid_reasons(evidence: Evidence) -> list[str]:
    """All reasons why a run is invalid; empty: it is valid."""
    merged, reasons = evidence.merged, []
    reasons += [f"worker lost: {worker}" for worker in evidence.lost_workers]
    reasons += list(evidence.gaps)
    reasons += list(evidence.disturbances)
    reasons += list(evidence.client.invalid)
    reasons += shortfalls(evidence.delivered, has_failed=evidence.aborted)
    samples = merged.counts.succeeded + merged.counts.failed
    if samples < SAMPLES_MIN:
        reasons.append(f"too few samples: {samples} statements ended, at least {SAMPLES_MIN} are needed")
    return reasons


def surplus_warnings(merged: MergedWindows, *, replay: bool) -> list[str]:
    """The warning about statements that were answered after the measured time: see MergedWindows.surplus_fraction."""
    fraction = merged.surplus_fraction
    if not fraction:
        return []
    avoided = "a longer warm-up or longer stages avoid that"
    if replay:  # a replay has neither
        avoided = "a capture of a longer span or a lower load.speed makes that less"
    more = f"{counted(merged.surplus, 'more statement')} {'was' if merged.surplus == 1 else 'were'}"
    return [
        f"throughput is up to {100 * fraction:.1f} % too high: {more} answered after the measured time than were under"
        f" way at its beginning; {avoided}"
    ]


def undecided(
    thresholds: Sequence[Threshold],
    checked: Sequence[Checked],
    client: ClientHealthByScope,
    merged: MergedWindows,
    *,
    open_loop: bool,
) -> list[str]:
    """Why it is not known whether the run has failed: every threshold that was missed may have been met without the
    client's influence or with more samples. Empty: none was missed, or one certainly was."""
    reasons = []
    for threshold, result in zip(thresholds, checked, strict=True):
        if result.passed:
            continue
        if result.unknown:
            reasons.append(result.unknown)
            continue
        check, health = threshold.check, client.of(threshold.check.statement)
        share = client_part(check, result, health, merged, open_loop=open_loop)
        if share is None or result.value is None:
            return []
        unit = "/s" if check.metric is ThresholdMetric.QPS else " ms"
        reasons.append(
            f"undecided: {result.words} was missed with {result.value:,.1f}{unit}, of which the client may account for"
            f" {share:,.1f}{unit}; {health.advice}"
        )
    return reasons


def client_part(
    check: ThresholdCheck, checked: Checked, client: ClientHealth, merged: MergedWindows, *, open_loop: bool
) -> float | None:
    """The part of the value of a missed threshold that the client may have caused. None: it was certainly missed."""
    mean_ns = tally_of(check, merged).succeeded.service.mean_ns
    mean_ms = None if mean_ns is None else mean_ns / NS_PER_MS
    if checked.value is None:
        return None
    return client_share(check, checked.value, client, mean_ms, open_loop=open_loop)


class RunVerdict(StrEnum):
    PASSED = "passed"
    FAILED = "failed"  # a threshold
    INVALID = "invalid"
    CANCELLED = "cancelled"
    ERROR = "error"  # the run could not be completed


class RunOutcome(Protocol):
    """The facts that decide the verdict of a run."""

    @property
    def status(self) -> str: ...
    @property
    def reason(self) -> str: ...
    @property
    def signal(self) -> int | None: ...  # that ended it
    @property
    def invalid(self) -> Sequence[str]: ...
    @property
    def checked(self) -> Sequence[Checked]: ...
    @property
    def merged(self) -> MergedWindows: ...
    @property
    def aborted(self) -> bool: ...  # by a threshold
    @property
    def find_max(self) -> Mapping[str, Any] | None: ...


def verdict_of(facts: RunOutcome) -> tuple[RunVerdict, int, str]:
    """The verdict, the exit code and the reason, in the order that decides when several apply."""
    if facts.status == "FAILED":
        return RunVerdict.ERROR, 4, facts.reason
    if facts.status == "CANCELLED":
        return RunVerdict.CANCELLED, 128 + (facts.signal or signal.SIGINT), facts.reason
    if facts.signal is not None:  # the measurement was complete, and a user stopped what follows it
        name = signal.Signals(facts.signal).name
        return RunVerdict.CANCELLED, 128 + facts.signal, f"stopped by {name} after the measurement ({facts.reason})"
    if facts.invalid:
        return RunVerdict.INVALID, 5, "; ".join(facts.invalid)
    missed = sorted((one for one in facts.checked if not one.passed), key=lambda one: one.is_empty)
    if missed:
        return RunVerdict.FAILED, 10, f"{_only_errors(facts.merged)}not met: {', '.join(map(_missed, missed))}"
    if facts.aborted:  # the leader that judged the threshold was replaced
        return RunVerdict.FAILED, 10, facts.reason
    if facts.find_max is not None and facts.find_max["max_concurrency"] is None:
        return RunVerdict.FAILED, 10, str(facts.find_max["reason"])
    return RunVerdict.PASSED, 0, "every threshold was met" if facts.checked else "done"


def _only_errors(merged: MergedWindows) -> str:
    """The most frequent error, if no statement succeeded: the cause of every threshold that was not met."""
    errors = merged.tally.errors
    if merged.counts.succeeded or not errors:
        return ""
    key, group = max(errors.items(), key=lambda one: one[1].count)
    code, statement = "" if key.code is None else f" {key.code}", "" if key.statement is None else f"{key.statement}: "
    what = f"{group.count:,} × {statement}{key.category}{code}: {printable(group.example, ERROR_TEXT_MAX)}"
    return f"no statement succeeded ({what}); "


def _missed(checked: Checked) -> str:
    known = "not measured" if checked.unmeasured else "only a lower bound is known"
    why = "no samples" if checked.is_empty else "too few samples" if checked.too_few else known
    marks = [*(["default"] if checked.default else []), *([why] if checked.undecided or checked.is_empty else [])]
    return f"{checked.words} ({', '.join(marks)})" if marks else checked.words


# --- Were the windows of a run at the planned times? -----------------------------------------------------------------
# times     by the server's clock. The slower the control plane answers, the less exactly a worker knows them. A window
#           that may be off by more than 1 % of its planned length: a warning; by more than 200 ms as well: INVALID,
#           because load of this worker may have been missing at one end of it. An abort does not change the limit;
#           steps of a search have no planned length, so theirs is the measured one
# warm-up   a worker that reads START late begins late; while its process is paused, and on connections that are
#           missing, nothing is sent. With less than 95 % of the planned warm-up, and more than 200 ms of it missing:
#           INVALID

UNCERTAIN_PERCENT = 1  # of a window
UNCERTAIN_MS = 200
WARMUP_MIN_PERCENT = 95  # of the plan
WARMUP_LATE_S = 0.2
WARMUP_CAUSE_S = 0.05  # shorter causes are not named
MORE_WORKERS = "workers had such a problem"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimingVerdict:
    invalid: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Uncertain:
    window: WindowResult
    length_s: float

    @property
    def fraction(self) -> float:
        return self.window.uncertain_ms / max(1.0, 1_000 * self.length_s)

    def words(self, worker_id: str, part: str) -> str:
        where = "" if self.window.step_id is None else f" in {part} {self.window.step_id}"
        return (
            f"{worker_id} may have been {self.window.uncertain_ms:,} ms away from the planned times{where}, more than"
            f" {UNCERTAIN_PERCENT} % of {self.length_s:.1f} s: the control plane answered slowly"
        )


def judge_timing(
    windows: Mapping[str, Sequence[WindowResult]],
    warmups: Mapping[str, Sequence[WindowResult]],
    plan: RunPlan,
    *,
    steps: Collection[int] | None = None,
) -> TimingVerdict:
    """Judge `windows` and `warmups` of every worker; of a search, only the windows of these `steps`."""
    planned_s = {one.step_id: one.duration_s for one in plan.windows}
    judged = {
        worker_id: [
            _Uncertain(one, planned_s.get(one.step_id, one.seconds))
            for one in known
            if steps is None or one.step_id in steps
        ]
        for worker_id, known in windows.items()
    }
    part = "stage" if steps is None else "step"
    invalid: list[str] = []
    warnings: list[str] = []
    for worker_id, known in judged.items():
        wide = [one for one in known if one.fraction > UNCERTAIN_PERCENT / 100]
        far = [one for one in wide if one.window.uncertain_ms > UNCERTAIN_MS]
        if wide:
            worst = max(far or wide, key=lambda one: one.fraction)
            (invalid if far else warnings).append(worst.words(worker_id, part))
    measured = [worker_id for worker_id, known in judged.items() if known]
    invalid += _short_warmups({worker_id: warmups.get(worker_id, ()) for worker_id in measured}, plan.measures_s)
    return TimingVerdict(invalid=tuple(_first(invalid, MORE_WORKERS)), warnings=tuple(_first(warnings, MORE_WORKERS)))


def _short_warmups(warmups: Mapping[str, Sequence[WindowResult]], planned_s: float) -> Iterator[str]:
    for worker_id, known in warmups.items():
        own = [one for one in known if one.step_id is None]  # not the settling time of a step
        own_s = math.fsum(map(_warmed_up_s, own))
        if 100 * own_s < WARMUP_MIN_PERCENT * planned_s and planned_s - own_s > WARMUP_LATE_S:
            share = f"{100 * own_s / planned_s:.0f} %, at least {WARMUP_MIN_PERCENT} %"
            why = ", ".join(_warmup_causes(own, planned_s))
            yield f"{worker_id} warmed up for {own_s:.1f} of {planned_s:.1f} s ({share}): {why}"


def _warmed_up_s(window: WindowResult) -> float:
    """The length of a window, without the share of its planned connection time in which nothing could be sent."""
    time = window.connections
    return window.seconds * (time.delivered_ms / time.planned_ms if time is not None and time.planned_ms else 1.0)


def _warmup_causes(windows: Sequence[WindowResult], planned_s: float) -> Iterator[str]:
    lasted_s = math.fsum(one.seconds for one in windows)
    gap_s = sum(one.client.gap_ms for one in windows if one.client is not None) / 1_000
    lost_s = lasted_s - math.fsum(map(_warmed_up_s, windows))
    if planned_s - lasted_s > WARMUP_CAUSE_S:
        yield "it began late"
    if gap_s > WARMUP_CAUSE_S:
        yield f"its process was paused for {gap_s:.1f} s"
    if lost_s - gap_s > WARMUP_CAUSE_S:
        yield "connections were missing"
