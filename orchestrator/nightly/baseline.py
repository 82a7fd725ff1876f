"""`loadgen run --baseline`: compares a run that has just ended with an earlier run, or with the trend."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from loadgen.errors import LoadgenError, UsageError

if TYPE_CHECKING:
    from loadgen.control.session import ControlSession
    from loadgen.snowflake.session import RetryPolicy

TREND = "trend"  # in the place of a run: the trend of the same scenario
REGRESSION, NOT_COMPARABLE = 11, 2  # exit codes

# Calls a function with a control session, and returns its result.
ControlReader = Callable[[Callable[["ControlSession", "RetryPolicy"], Any]], Any]


def check_baseline(baseline: str, read: ControlReader) -> str:
    """Before the run: the id of the run to compare with (`latest` is resolved), or TREND. Raises UsageError if that run
    cannot be a baseline."""
    if baseline == TREND:
        return TREND
    run_id: str = read(lambda session, retries: _fit(session, retries, baseline))
    return run_id


def baseline_judge(baseline: str | None, read: ControlReader) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Check the baseline before the run. Returns a function that judges the summary after the run."""
    if baseline is None:
        return lambda summary: summary
    exact = check_baseline(baseline, read)
    return lambda summary: judge_against_baseline(exact, read, summary)


def judge_against_baseline(baseline: str, read: ControlReader, summary: Mapping[str, Any]) -> dict[str, Any]:
    """The summary with the key `baseline`. A nonzero exit code of the run is kept. The summary of a run that is not
    comparable does not change. It never raises: a failed comparison must not cost the result of the run."""
    if summary["status"] != "COMPLETED" or not summary["validity"]["valid"]:
        return dict(summary)

    def judge(session: ControlSession, retries: RetryPolicy) -> dict[str, Any]:
        if baseline == TREND:
            return _beside_trend(session, retries, summary)
        return _beside_run(session, retries, baseline, summary)

    try:
        found = read(judge)
    except Exception as error:  # also a bug: the run has its result already
        kind = {"kind": TREND} if baseline == TREND else {"kind": "run", "run_id": baseline}
        code = error.exit_code if isinstance(error, LoadgenError) else LoadgenError.exit_code
        found = {**kind, "verdict": "not judged", "reason": str(error), "exit_code": code}
    exit_code = found.pop("exit_code")
    judged = {**summary, "baseline": found}
    if summary["exit_code"] or not exit_code:
        return judged
    verdict = "failed" if exit_code == REGRESSION else "error"
    return {**judged, "verdict": verdict, "exit_code": exit_code, "exit_reason": baseline_text(found)}


def wants_second_run(summary: Mapping[str, Any]) -> bool:
    """Whether a regression is suspected, which a second run would confirm or refute."""
    found = summary.get("baseline")
    return found is not None and found["kind"] == TREND and found["verdict"] == "suspected"


def baseline_text(found: Mapping[str, Any]) -> str:
    """The verdict of the comparison, in one line."""
    compared_with = "trend" if found["kind"] == TREND else f"baseline {found['run_id']}"
    return f"{compared_with}: {found['verdict']}: {found['reason']}"


def _beside_run(
    session: ControlSession, retries: RetryPolicy, baseline: str, summary: Mapping[str, Any]
) -> dict[str, Any]:
    from loadgen.results.comparisons import ComparisonRefusal, read_pair
    from loadgen.rules.comparability import ChangeLimits
    from loadgen.rules.comparison import compare

    pair = read_pair(session, retries, (baseline, summary["run_id"]), ())
    if isinstance(pair, ComparisonRefusal):
        verdict, reason, exit_code = "not comparable", "; ".join(pair.reasons), NOT_COMPARABLE
    else:
        comparison = compare(pair.a, pair.b, ChangeLimits(), pair.configuration)
        verdict, reason, exit_code = comparison.verdict.value, comparison.reason, comparison.exit_code
    return {"kind": "run", "run_id": baseline, "verdict": verdict, "reason": reason, "exit_code": exit_code}


def _beside_trend(session: ControlSession, retries: RetryPolicy, summary: Mapping[str, Any]) -> dict[str, Any]:
    from loadgen.report.trend import reason_text
    from loadgen.results.comparisons import read_trend

    trend = read_trend(session, retries, summary["scenario"], until=summary["run_id"])
    found = {"kind": TREND, "runs": len(trend.runs)}
    if not trend.runs or trend.runs[-1].run_id != summary["run_id"]:
        return {**found, "verdict": "not judged", "reason": "the trend does not include this run", "exit_code": 0}
    return {**found, "verdict": trend.verdict.value, "reason": reason_text(trend), "exit_code": trend.exit_code}


def _fit(session: ControlSession, retries: RetryPolicy, name: str) -> str:
    from loadgen.control.tables import run_status
    from loadgen.results.stored_summary import read_summary
    from loadgen.rules.comparability import why_not_comparable

    run = run_status.find_run(session, retries, name)
    summary = read_summary(session, retries, run.run_id)
    why = why_not_comparable("it", run.run_id, run.status.value, summary)
    if why is not None:
        raise UsageError(
            f"--baseline {name}: {why}",
            remedy="Choose a run that was completed and is valid: `loadgen runs list --status COMPLETED`.",
        )
    return run.run_id
