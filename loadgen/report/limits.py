"""What can be compared, which direction is bad, and how much change is tolerated: `[statement.]metric=PERCENT`.

metric                  tolerated    a change of
qps                     5 %          the value
p50 p90 p95 avg         10 %         the value
p99                     15 %         the value
error_rate              0.5 %        percentage points: from 0.1 % to 0.6 %
max_concurrency         10 %         the value; of a search for the maximum
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from loadgen.errors import UsageError
from loadgen.log import printable

_LIMIT = re.compile(r"([0-9]{1,4}(?:\.[0-9]{1,6})?)\s*%")
_HOW = "Write [statement.]metric=percent, such as --limit p95=10% or --limit pay.p99=25%."


class Measure(StrEnum):
    """Names as in summary.json."""

    QPS = "qps"
    AVG = "avg"
    P50 = "p50"
    P90 = "p90"
    P95 = "p95"
    P99 = "p99"
    ERROR_RATE = "error_rate"
    MAX_CONCURRENCY = "max_concurrency"

    @property
    def more_is_worse(self) -> bool:
        return self not in (Measure.QPS, Measure.MAX_CONCURRENCY)

    @property
    def per_mille(self) -> int | None:
        """Of a percentile."""
        return int(self.value[1:]) * 10 if re.fullmatch(r"p[0-9]{2}", self.value) else None


DEFAULTS: Mapping[Measure, float] = {
    Measure.QPS: 0.05,
    Measure.AVG: 0.10,
    Measure.P50: 0.10,
    Measure.P90: 0.10,
    Measure.P95: 0.10,
    Measure.P99: 0.15,
    Measure.ERROR_RATE: 0.005,
    Measure.MAX_CONCURRENCY: 0.10,
}

Subject = tuple[str | None, Measure]  # of one statement, or of all together


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeLimits:
    """The defaults, and what was said instead."""

    given: Mapping[Subject, float] = field(default_factory=dict)

    def of(self, statement: str | None, measure: Measure) -> float:
        """A statement has the limit of all together unless it has its own."""
        own = self.given.get((statement, measure))
        return self.given.get((None, measure), DEFAULTS[measure]) if own is None else own


def parse_limits(texts: Iterable[str]) -> ChangeLimits:
    """What --limit says; the last one counts."""
    return ChangeLimits(given=dict(map(_parsed, texts)))


def _parsed(text: str) -> tuple[Subject, float]:
    subject, _, limit = text.rpartition("=")
    statement, _, word = subject.strip().rpartition(".")
    if word not in list(Measure):
        near = difflib.get_close_matches(word, list(Measure), n=1)
        meant = f"Did you mean {near[0]}? " if near else ""
        raise UsageError(
            f"--limit {printable(text, 100)}: there is no such metric", remedy=f"{meant}{_metrics()} {_HOW}"
        )
    match = _LIMIT.fullmatch(limit.strip())
    if match is None or float(match[1]) == 0:
        raise UsageError(f"--limit {printable(text, 100)}: the limit is not a percentage above 0", remedy=_HOW)
    return (statement or None, Measure(word)), float(match[1]) / 100


def _metrics() -> str:
    return f"Metrics are {' '.join(Measure)}."
