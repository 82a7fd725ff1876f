"""Seconds of a worker for thresholds over a span: full tallies of what they ask for, counted from a common zero.

The zero is the moment for which the measurement was announced, so second k of one worker adds to second k of another.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from loadgen.metrics.document import VERSION, read_statement, statement_data
from loadgen.metrics.fields import Fields, parse
from loadgen.metrics.result import EVERYTHING
from loadgen.metrics.tally import StatementTally, Tally
from loadgen.scenario.scenario import Threshold

KEY = "judged"  # in LIVE_METRICS and CUSTOM_METRICS


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedSecond:
    """What ended in one interval of the measurement, of the statements asked for; EVERYTHING: of all together."""

    until_s: float  # since the common zero
    seconds: float
    tallies: Mapping[str, StatementTally]

    @classmethod
    def of(cls, tally: Tally, subjects: Iterable[str], *, from_s: float, until_s: float) -> JudgedSecond:
        """Of the part of an interval that lies in the measurement."""
        tallies = {name: subject_tally(tally, name) for name in subjects}
        return cls(until_s=until_s, seconds=until_s - max(0.0, from_s), tallies=tallies)

    @property
    def from_s(self) -> float:
        return self.until_s - self.seconds

    @property
    def number(self) -> int:
        """Of the second that it ends, from 1."""
        return max(1, round(self.until_s))


def subjects_of(thresholds: Iterable[Threshold]) -> frozenset[str]:
    """What thresholds over a span are about."""
    return frozenset(one.check.statement or EVERYTHING for one in thresholds if one.window_s is not None)


def subject_tally(tally: Tally, name: str) -> StatementTally:
    return tally.whole if name == EVERYTHING else tally.statements.get(name, StatementTally())


def judged_data(second: JudgedSecond) -> dict[str, Any]:
    statements = {
        name: {"skipped": tally.skipped, "times": statement_data(tally)} for name, tally in second.tallies.items()
    }
    return {"until_s": second.until_s, "seconds": second.seconds, "statements": statements}


def read_judged(fields: Fields) -> JudgedSecond:
    written = fields.part("statements")
    tallies = {}
    for name in written.names():
        part = written.part(name)
        tallies[name] = read_statement(part.part("times"), skipped=part.whole("skipped"))
    return JudgedSecond(until_s=fields.number("until_s"), seconds=fields.number("seconds"), tallies=tallies)


def stored_judged(custom_metrics: str | None) -> JudgedSecond | None:
    """Of a row of WORKER_METRICS_SNAPSHOTS; None: it has none."""
    fields = parse(custom_metrics or "", "CUSTOM_METRICS", version=VERSION)
    return read_judged(fields.part(KEY)) if fields.has(KEY) else None
