"""Reads SUMMARY of TEST_RESULTS, and checks its shape, because another program may have written the row.

Keys that were added after the first release of schema version 1 may be missing. Unknown keys are ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from loadgen.control.session import ControlSession, RowUnreadable, json_object
from loadgen.control.tables import test_results
from loadgen.errors import RunFailed
from loadgen.log import printable
from loadgen.metrics.json_fields import COUNT_MAX, NUMBER_MAX
from loadgen.metrics.percentile import PERCENTILES
from loadgen.model.run import RowEnrichment, RunStatus
from loadgen.report.summary import SCHEMA_VERSION
from loadgen.rules.comparability import as_written
from loadgen.rules.validity import RunVerdict
from loadgen.snowflake.session import RetryPolicy
from loadgen.values import dataclass

DEPTH_MAX = 16  # nesting of objects and lists; loadgen writes six levels

# A test of a value; an object by its keys, with "?" after optional keys and "*" for any key; a list by its items.
Shape = Callable[[Any], bool] | Mapping[str, Any] | list[Any]


@dataclass(frozen=True, slots=True)
class _Nullable:
    shape: Shape


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= NUMBER_MAX


def _amount(value: Any) -> bool:
    return _number(value) and value >= 0


def _count(value: Any) -> bool:
    return _amount(value) and isinstance(value, int) and value <= COUNT_MAX


def _code(value: Any) -> bool:
    return _number(value) and isinstance(value, int)


def _verdict(value: Any) -> bool:
    return value in list(RunVerdict)


def _status(value: Any) -> bool:
    return value in list(RunStatus) and RunStatus(value).is_terminal


def _exit_code(value: Any) -> bool:
    return _count(value) and value < 256


def _span(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_amount, value)) and value[0] <= value[1]


def _lightened(value: Any) -> bool:
    return value is None or _flag(value) or _text(value)


_TIMES = {
    **{f"{name}?": _Nullable(_amount) for name in (*PERCENTILES, "avg", "min", "max")},
    "at_least?": [_text],
    "cut_off?": _count,
}
_LATENCY = {**_TIMES, **dict.fromkeys(("p50", "p95", "p99", "min", "max"), _Nullable(_amount))}
_ENDED = {"succeeded": _count, "failed": _count, "qps": _amount}
_CONNECTION_FAILURE = {
    **dict.fromkeys(("worker_id", "at", "text"), _text),
    "second": _Nullable(_number),
    "slot?": _Nullable(_count),
    "code": _Nullable(_code),
    "count?": _count,
}
_LOGINS = {
    "reopened?": _Nullable({"*": _count}),
    "refused?": _Nullable(_count),
    "last_refused?": _Nullable([_CONNECTION_FAILURE]),
    "last_lost?": _Nullable([{**_CONNECTION_FAILURE, "reason": _text}]),
}
_CLIENT = {
    **dict.fromkeys(("cpu_percent_of_core", "wakeup_p99_ms"), _Nullable(_amount)),
    **dict.fromkeys(("wakeup_mean_ms?", "gap_percent?", "paused_percent?", "client_lag_avg_ms?"), _Nullable(_amount)),
    "overhead_ms": _Nullable(_number),
    "saturated": _flag,
    "connections?": _Nullable(_LOGINS),
}
_STAGE = {
    **_ENDED,
    "name": _text,
    "starts_s": _number,
    "measured_seconds": _amount,
    "connections": _Nullable(_count),
    "rate": _Nullable(_amount),
    "error_rate": _amount,
    "latency_ms": _TIMES,
}
_STEP = {
    **dict.fromkeys(("step", "target", "failed"), _count),
    **dict.fromkeys(("outcome", "reason"), _text),
    "qps": _Nullable(_amount),
    "succeeded?": _count,
    "error_rate?": _Nullable(_amount),
    "p95_ms?": _Nullable(_amount),
    "latency_ms?": _TIMES,
}
_FIND_MAX = {
    "max_concurrency": _Nullable(_count),
    "reason": _text,
    **dict.fromkeys(("qps", "p95_ms"), _Nullable(_amount)),
    **dict.fromkeys(("confidence", "result", "failed_outcome?"), _Nullable(_text)),
    **dict.fromkeys(("failed_at?", "limited_at?", "decisive_step?"), _Nullable(_count)),
    "steps": [_STEP],
}
_ENRICHMENT = {
    **dict.fromkeys(("status?", "reason?"), _Nullable(_text)),
    **{f"{status.lower()}?": _count for status in RowEnrichment},
    **dict.fromkeys(("total?", "dropped?", "ledger_samples?"), _count),
    "coverage_percent?": _Nullable(_amount),
    "ledger_ms?": _Nullable({"*": {f"{name}?": _Nullable(_number) for name in ("mean", "p50", "p95")}}),
}
_THRESHOLD = {
    "check": _text,
    "value": _Nullable(_number),
    "passed": _Nullable(_flag),
    **dict.fromkeys(("at_least?", "at_most?", "too_few_samples?", "not_measured?", "default?"), _flag),
    "window_seconds?": _amount,
}
_WORKER = {
    **_ENDED,
    **dict.fromkeys(("worker_id", "status"), _text),
    **dict.fromkeys(("cpu_percent_of_core", "wakeup_p99_ms"), _Nullable(_amount)),
}
_ERROR = {"statement?": _Nullable(_text), "category": _text, "code": _Nullable(_code), "count": _count,
          "example": _text}  # fmt: skip
_TOTALS = dict.fromkeys(("scheduled", "skipped", "cancelled", "reads", "writes"), _count)
_SUMMARY = {
    **dict.fromkeys(("run_id", "scenario", "exit_reason"), _text),
    "schema_version": _count,
    "status": _status,
    "verdict": _verdict,
    "exit_code": _exit_code,
    "validity": {"valid": _flag, "reasons": [_text]},
    "started_at": _Nullable(_text),
    "measured_seconds": _amount,
    **dict.fromkeys(("connections", "workers"), _count),
    "totals": {**_TOTALS, **_ENDED, "error_rate": _amount},
    "latency_ms": _LATENCY,
    **dict.fromkeys(("service_ms", "lag_ms"), _TIMES),
    "statements": {"*": {**_ENDED, "latency_ms": _TIMES}},
    "stages?": _Nullable([_STAGE]),
    "errors": [_ERROR],
    "thresholds": [_THRESHOLD],
    "aborted?": _flag,
    "find_max": _Nullable(_FIND_MAX),
    "worker_results": [_WORKER],
    "delivered?": _Nullable({"fraction?": _Nullable(_amount), "overload_arrivals?": _Nullable(_count)}),
    "stalls?": _Nullable({"spans_s?": [_span]}),
    "client": _CLIENT,
    "sessions?": dict.fromkeys(("created", "expired", "current"), _count),
    "environment": {"warnings?": _Nullable([_text]), "cores?": _Nullable(_count), "driver_lightened?": _lightened},
    "enrichment": _ENRICHMENT,
    "unstored?": {"*": {"*": _count}},
}


def read_summary(session: ControlSession, retries: RetryPolicy, run_id: str) -> dict[str, Any] | None:
    """The stored summary of a run, checked; None: it has no result."""
    return parse_summary(run_id, retries.call(lambda: test_results.stored_summary(session, run_id)))


def read_result(
    session: ControlSession, retries: RetryPolicy, run_id: str
) -> tuple[test_results.ResultRow, dict[str, Any]] | None:
    """The stored result of a run, with its summary; None: it has no readable result."""
    rows = retries.call(lambda: test_results.read(session, run_id))
    result = next((row for row, _ in rows if row.test_id == run_id), None)
    try:
        summary = None if result is None else parse_summary(run_id, result.summary)
    except (RowUnreadable, RunFailed):
        return None
    return None if result is None or summary is None or result.status != summary["status"] else (result, summary)


def parse_summary(run_id: str, stored: str | None) -> dict[str, Any] | None:
    """SUMMARY of a run, checked; None: there is none."""
    if stored is None:
        return None
    found = json_object("TEST_RESULTS", run_id, "summary", stored)
    version = found.get("schema_version")
    if _count(version) and version != SCHEMA_VERSION:
        raise RunFailed(
            f"the result of run {run_id} has version {version}, but this loadgen reads version {SCHEMA_VERSION}",
            remedy="Make the report with the version of loadgen that made the run.",
        )
    problem = _problem(found, _SUMMARY, "it") if _is_flat(found, DEPTH_MAX) else "it is nested too deeply"
    if problem is None and found["run_id"] != run_id:
        problem = "it belongs to another run"
    if problem is not None:
        raise RowUnreadable("TEST_RESULTS", run_id, f"summary: {problem}")
    return found


def parse_config(run_id: str, stored: str | None) -> dict[str, Any]:
    """SCENARIO_CONFIG of a run; the parts that comparisons read are checked."""
    found = json_object("RUN_STATUS", run_id, "scenario_config", stored)
    try:
        written = as_written(found)
    except (TypeError, ValueError, AttributeError, LookupError, RecursionError):
        raise RowUnreadable("RUN_STATUS", run_id, "scenario_config is not a scenario") from None
    if not isinstance(written.get("labels", {}), dict) or not _is_flat(found, DEPTH_MAX):
        raise RowUnreadable("RUN_STATUS", run_id, "scenario_config is not a scenario")
    return found


def _problem(value: Any, shape: Any, place: str) -> str | None:
    """Why a value does not have a shape; None: it does."""
    if isinstance(shape, _Nullable):
        return None if value is None else _problem(value, shape.shape, place)
    if isinstance(shape, dict):
        return _object_problem(value, shape, place)
    if isinstance(shape, list):
        if not isinstance(value, list):
            return f"{place} is not a list"
        return next(filter(None, (_problem(one, shape[0], place) for one in value)), None)
    return None if shape(value) else f"{place} is {printable(str(value), 60)}"


def _object_problem(value: Any, shape: Mapping[str, Any], place: str) -> str | None:
    if not isinstance(value, dict):
        return f"{place} is not an object"
    if "*" in shape:
        return next(filter(None, (_problem(one, shape["*"], place) for one in value.values())), None)
    for name, inner in shape.items():
        key = name.removesuffix("?")
        if key not in value:
            if key == name:
                return f"{place} has no {key}"
        elif (problem := _problem(value[key], inner, key)) is not None:
            return problem
    return None


def _is_flat(value: Any, depth: int) -> bool:
    """Whether nothing in the value is nested deeper than this."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return inner is None or (depth > 0 and all(_is_flat(one, depth - 1) for one in inner))
