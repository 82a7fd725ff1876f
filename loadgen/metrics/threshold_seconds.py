"""Seconds of a worker for thresholds over a span: full tallies of what they ask for, counted from a common zero.

The zero is the moment for which the measurement was announced, so second k of one worker adds to second k of another.
What ends while the measurement goes on counts in the second in which it ended: a stalled server is seen at once. What
ends after it, in the drain, counts in the second in which it started.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from loadgen.metrics.json_fields import JsonFields, parse
from loadgen.metrics.tally import StatementTally, Tally
from loadgen.metrics.window import ALL_STATEMENTS
from loadgen.metrics.window_codec import VERSION, read_statement, statement_data
from loadgen.scenario.model import Threshold

KEY = "judged"  # in LIVE_METRICS and CUSTOM_METRICS


@dataclass(frozen=True, slots=True, kw_only=True)
class ThresholdSecond:
    """What ended in one interval of the measurement, of the statements asked for; EVERYTHING: of all together. Or, of
    an interval of the drain: what ended in it, by the number of the second in which it started."""

    until_s: float  # since the common zero
    seconds: float
    tallies: Mapping[str, StatementTally]
    drained: Mapping[int, Mapping[str, StatementTally]] = field(default_factory=dict)

    @classmethod
    def of(cls, tally: Tally, subjects: Iterable[str], *, from_s: float, until_s: float) -> ThresholdSecond:
        """Of the part of an interval that lies in the measurement."""
        tallies = {name: subject_tally(tally, name) for name in subjects}
        return cls(until_s=until_s, seconds=until_s - max(0.0, from_s), tallies=tallies)

    @classmethod
    def of_drain(cls, drained: Mapping[int, Tally], subjects: Collection[str], *, until_s: float) -> ThresholdSecond:
        started = {second: {name: subject_tally(one, name) for name in subjects} for second, one in drained.items()}
        return cls(until_s=until_s, seconds=0.0, tallies={}, drained=started)

    @property
    def from_s(self) -> float:
        return self.until_s - self.seconds

    @property
    def number(self) -> int:
        """Of the second that it ends, from 1."""
        return max(1, round(self.until_s))


def threshold_subjects(thresholds: Iterable[Threshold]) -> frozenset[str]:
    """What thresholds over a span are about."""
    return frozenset(one.check.statement or ALL_STATEMENTS for one in thresholds if one.window_s is not None)


def subject_tally(tally: Tally, name: str) -> StatementTally:
    return tally.whole if name == ALL_STATEMENTS else tally.statements.get(name, StatementTally())


def judged_data(second: ThresholdSecond) -> dict[str, Any]:
    drained = {str(number): _tallies_data(tallies) for number, tallies in second.drained.items()}
    return {
        "until_s": second.until_s,
        "seconds": second.seconds,
        "statements": _tallies_data(second.tallies),
        **({"drained": drained} if drained else {}),
    }


def _tallies_data(tallies: Mapping[str, StatementTally]) -> dict[str, Any]:
    return {name: {"skipped": tally.skipped, "times": statement_data(tally)} for name, tally in tallies.items()}


def read_judged(fields: JsonFields) -> ThresholdSecond:
    return ThresholdSecond(
        until_s=fields.number("until_s"),
        seconds=fields.number("seconds"),
        tallies=_read_tallies(fields.part("statements")),
        drained=_read_drained(fields.part("drained")) if fields.has("drained") else {},
    )


def _read_drained(written: JsonFields) -> dict[int, dict[str, StatementTally]]:
    if not all(number.isdecimal() and len(number) < 10 for number in written.names()):
        written.refuse("has seconds that are no numbers")
    return {int(number): _read_tallies(written.part(number)) for number in written.names()}


def _read_tallies(written: JsonFields) -> dict[str, StatementTally]:
    parts = {name: written.part(name) for name in written.names()}
    return {name: read_statement(part.part("times"), skipped=part.whole("skipped")) for name, part in parts.items()}


def stored_judged(custom_metrics: str | None) -> ThresholdSecond | None:
    """Of a row of WORKER_METRICS_SNAPSHOTS; None: it has none."""
    fields = parse(custom_metrics or "", "CUSTOM_METRICS", version=VERSION)
    return read_judged(fields.part(KEY)) if fields.has(KEY) else None
