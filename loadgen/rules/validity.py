"""Is a finished run valid, and did it pass? Pure.

Validity is judged first and separately: an INVALID run never passes, whatever its numbers are.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from loadgen.metrics.window import MergedWindows
from loadgen.model.threshold import ThresholdMetric
from loadgen.rules.client_health import ClientHealth, ClientVerdict, client_share
from loadgen.rules.delivered_load import Delivered, shortfalls
from loadgen.rules.thresholds import Checked, tally_of
from loadgen.scenario.model import Threshold
from loadgen.units import NS_PER_MS

SAMPLES_MIN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What validity is judged by."""

    merged: MergedWindows
    client: ClientVerdict
    delivered: Delivered | None  # None: it is not known, and the run is not valid
    lost_workers: tuple[str, ...] = ()
    gaps: tuple[str, ...] = ()  # what is missing from the record, or does not add up
    disturbances: tuple[str, ...] = ()  # of the warehouse: by another run, or by a change of its model


def invalid_reasons(evidence: Evidence) -> list[str]:
    """Everything that makes a run's number worthless; empty: it is valid."""
    merged, reasons = evidence.merged, []
    reasons += [f"worker lost: {worker}" for worker in evidence.lost_workers]
    reasons += list(evidence.gaps)
    reasons += list(evidence.disturbances)
    reasons += list(evidence.client.invalid)
    reasons += shortfalls(evidence.delivered)
    if merged.counts.succeeded < SAMPLES_MIN:
        reasons.append(f"too few samples: {merged.counts.succeeded} succeeded, at least {SAMPLES_MIN} are needed")
    return reasons


def surplus_warnings(merged: MergedWindows) -> list[str]:
    """Throughput that the server did not have in the measured time: see MergedWindows.surplus_fraction."""
    fraction = merged.surplus_fraction
    if not fraction:
        return []
    return [
        f"throughput is up to {100 * fraction:.1f} % too high: {merged.surplus:,} statements more were answered after"
        " the measured time than were under way at its beginning; a longer warm-up or longer stages avoid that"
    ]


def undecided(
    thresholds: Sequence[Threshold],
    checked: Sequence[Checked],
    client: ClientHealth,
    merged: MergedWindows,
    *,
    open_loop: bool,
) -> list[str]:
    """Why it is not known whether the run has failed: every threshold that was missed may have been met, but for the
    client or with more samples. Empty: none was missed, or one certainly was."""
    reasons = []
    for threshold, result in zip(thresholds, checked, strict=True):
        if result.passed:
            continue
        if result.unknown:
            reasons.append(result.unknown)
            continue
        check, mean_ns = threshold.check, tally_of(threshold.check, merged).succeeded.service.mean_ns
        mean_ms, share = None if mean_ns is None else mean_ns / NS_PER_MS, None
        if result.value is not None:
            share = client_share(check, result.value, client, mean_ms, open_loop=open_loop)
        if share is None or result.value is None:
            return []
        unit = "/s" if check.metric is ThresholdMetric.QPS else " ms"
        reasons.append(
            f"undecided: {check.text} was missed with {result.value:,.1f}{unit}, of which the client may account for"
            f" {share:,.1f}{unit}; {client.advice}"
        )
    return reasons


class RunVerdict(StrEnum):
    PASSED = "passed"
    FAILED = "failed"  # a threshold
    INVALID = "invalid"
    CANCELLED = "cancelled"
    ERROR = "error"  # the run could not be carried through


class RunOutcome(Protocol):
    """What the verdict of a run is decided by."""

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
    missed = [_missed(checked) for checked in facts.checked if not checked.passed]
    if missed:
        return RunVerdict.FAILED, 10, f"not met: {', '.join(missed)}"
    if facts.find_max is not None and facts.find_max["max_concurrency"] is None:
        return RunVerdict.FAILED, 10, str(facts.find_max["reason"])
    return RunVerdict.PASSED, 0, "every threshold was met" if facts.checked else "done"


def _missed(checked: Checked) -> str:
    known = "not measured" if checked.unmeasured else "only a lower bound is known"
    why = "too few samples" if checked.too_few else known
    marks = [*(["default"] if checked.default else []), *([why] if checked.undecided else [])]
    return f"{checked.check} ({', '.join(marks)})" if marks else checked.check
