"""Thresholds: `[statement.]metric op value[unit]`, such as `p95 < 50ms`, `pay.p99 <= 0.2s`, `error_rate < 1%`.

metric                                                unit of the limit, as written      and inside
p50 p90 p95 p99 p999 avg min max lag_p99 service_p95  a duration: 50ms, 0.2s             milliseconds
longest_stall                                         a duration; of all statements      milliseconds
error_rate                                            percent: 1%                        a fraction
qps                                                   a number or a rate: 500, 10k/m     per second
errors queries                                        a count: 0, 10k                    the same
"""

from __future__ import annotations

import difflib
import re
from enum import StrEnum

from loadgen.units import parse_count, parse_duration_ns, parse_rate_per_second
from loadgen.values import dataclass

LENGTH_MAX = 500  # characters of a threshold

_HOW = "write [statement.]metric op value, such as p95 < 50ms, pay.p99 < 100ms, error_rate < 1% or qps > 500"


class ThresholdMetric(StrEnum):
    """Metrics of thresholds; names as in summary.json."""

    P50 = "p50"
    P90 = "p90"
    P95 = "p95"
    P99 = "p99"
    P999 = "p999"
    AVG = "avg"
    MIN = "min"
    MAX = "max"
    QPS = "qps"
    ERROR_RATE = "error_rate"
    ERRORS = "errors"
    QUERIES = "queries"
    LAG_P99 = "lag_p99"
    SERVICE_P95 = "service_p95"
    LONGEST_STALL = "longest_stall"


class Operator(StrEnum):
    LT = "<"
    LE = "<="
    GT = ">"
    GE = ">="
    EQ = "=="


@dataclass(frozen=True, slots=True, kw_only=True)
class ThresholdCheck:
    """One comparison. `limit` is in milliseconds, a fraction, per second or a count, depending on the metric."""

    text: str  # as written
    statement: str | None
    metric: ThresholdMetric
    operator: Operator
    limit: float


def threshold_words(text: str, window_s: float | None) -> str:
    """The text of a threshold for displays, with the span in which it must hold, if it has one."""
    return text if window_s is None else f"{text} in every {window_s:g} s"


class InvalidThreshold(ValueError):
    """A text that is not a threshold. The message does not repeat the text."""

    def __init__(self, what: str, hint: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint


def parse_threshold(text: str) -> ThresholdCheck:
    """Parse a threshold. The last operator counts, so the name of a statement may contain a <."""
    if len(text) > LENGTH_MAX:
        raise InvalidThreshold(f"has more than {LENGTH_MAX} characters")
    operators = list(re.finditer(r"<=|>=|==|<|>", text))
    if not operators:
        raise InvalidThreshold("is not a threshold: it compares nothing", _HOW)
    operator = operators[-1]
    subject, limit = text[: operator.start()].strip(), text[operator.end() :].strip()
    statement, dot, word = subject.rpartition(".")
    if word not in list(ThresholdMetric):
        near = difflib.get_close_matches(word, list(ThresholdMetric))
        hint = f"did you mean {' or '.join(near)}?" if near else f"metrics are {' '.join(ThresholdMetric)}"
        raise InvalidThreshold("has an unknown metric", hint)
    if dot and not statement:
        raise InvalidThreshold("is not a threshold: no statement is named before the dot", _HOW)
    metric = ThresholdMetric(word)
    return ThresholdCheck(
        text=text,
        statement=statement or None,
        metric=metric,
        operator=Operator(operator[0]),
        limit=_limit(metric, limit),
    )


def _limit(metric: ThresholdMetric, text: str) -> float:
    try:
        match metric:
            case ThresholdMetric.ERROR_RATE:
                return _fraction(text)
            case ThresholdMetric.QPS:
                return parse_rate_per_second(text) if "/" in text else _number(text)
            case ThresholdMetric.ERRORS | ThresholdMetric.QUERIES:
                return float(parse_count(text))
            case _:
                return parse_duration_ns(text) / 1_000_000
    except (ValueError, OverflowError):
        raise InvalidThreshold(
            f"has a limit that does not fit {metric}", _LIMIT_HOW.get(metric, _DURATION_HOW)
        ) from None


_DURATION_HOW = "write a duration, such as 50ms or 1.5s"
_LIMIT_HOW = {
    ThresholdMetric.ERROR_RATE: "write percent from 0% to 100%, such as 1% or 0.1%",
    ThresholdMetric.QPS: "write a number per second, such as 500 or 10k, or a rate such as 30k/m",
    ThresholdMetric.ERRORS: "write a count, such as 0 or 10k",
    ThresholdMetric.QUERIES: "write a count, such as 1000 or 10k",
}


def _fraction(text: str) -> float:
    match = re.fullmatch(r"([0-9]{1,3}(?:\.[0-9]{1,12})?)\s*%", text)
    if match is None or float(match[1]) > 100:
        raise ValueError
    return float(match[1]) / 100


def _number(text: str) -> float:
    return float(text) if re.fullmatch(r"[0-9]{1,15}\.[0-9]{1,12}", text) else float(parse_count(text))
