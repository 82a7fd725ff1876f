"""summary.json: the contract of schema version 1, key by key."""

from __future__ import annotations

import json
import signal
from datetime import timedelta
from typing import Any

import pytest

from loadgen.metrics.connections import ConnectionFailure, LoginCounts, ReconnectReason
from loadgen.model.workload import StatementKind
from loadgen.report.summary import RunFacts, WorkerResult, in_order, summarize, with_unstored
from loadgen.rules.client_health import ClientHealth
from loadgen.rules.thresholds import Checked
from loadgen.rules.validity import Delivered, Portion
from orchestrator.run_result import connections_document
from tests.unit.metrics_builders import statement
from tests.unit.orchestrator_builders import merged, tally
from tests.unit.report_builders import START, stages

LATENCY = ["p50", "p90", "p95", "p99", "p999", "avg", "min", "max"]
# Names and types as design and README promise them; scripts rely on both.
NUMBER = (int, float)
SCHEMA: dict[str, Any] = {
    "schema_version": int,
    "run_id": str,
    "scenario": str,
    "status": str,
    "verdict": str,
    "exit_code": int,
    "exit_reason": str,
    "validity": {"valid": bool, "reasons": list},
    "started_at": str,
    "measured_seconds": float,
    "connections": int,
    "workers": int,
    "totals": {
        "scheduled": int,
        "skipped": int,
        "succeeded": int,
        "failed": int,
        "cancelled": int,
        "reads": int,
        "writes": int,
        "qps": float,
        "error_rate": float,
    },
    "latency_ms": dict.fromkeys(LATENCY, NUMBER),
    "service_ms": dict.fromkeys(LATENCY, NUMBER),
    "lag_ms": dict.fromkeys(LATENCY, NUMBER),
    "statements": {
        "look": {"succeeded": int, "failed": int, "qps": float, "latency_ms": dict.fromkeys(LATENCY, NUMBER)},
        "pay": {"succeeded": int, "failed": int, "qps": float, "latency_ms": dict.fromkeys(LATENCY, NUMBER)},
    },
    "stages": [
        {
            "stage": int,
            "name": str,
            "starts_s": float,
            "measured_seconds": float,
            "connections": (int, type(None)),
            "rate": (float, type(None)),
            "scheduled": int,
            "skipped": int,
            "succeeded": int,
            "failed": int,
            "cancelled": int,
            "qps": float,
            "error_rate": float,
            "latency_ms": dict.fromkeys(LATENCY, NUMBER),
        }
    ],
    "errors": [{"statement": str, "category": str, "code": int, "count": int, "example": str}],
    "thresholds": [{"check": str, "value": float, "passed": bool}],
    "find_max": type(None),
    "worker_results": [
        {
            "worker_id": str,
            "status": str,
            "succeeded": int,
            "failed": int,
            "qps": float,
            "cpu_percent_of_core": float,
            "wakeup_p99_ms": float,
        }
    ],
    "delivered": {
        "planned_connection_seconds": float,
        "delivered_connection_seconds": float,
        "logging_in_connection_seconds": float,
        "fraction": float,
        "by_worker": {"worker-0": dict},
        "by_window": [
            {
                "planned_connection_seconds": float,
                "delivered_connection_seconds": float,
                "logging_in_connection_seconds": float,
                "fraction": float,
                "step_id": int,
            }
        ],
    },
    "stalls": type(None),
    "client": {
        "connections": {
            "opened": int,
            "reopened": {"error": int, "max_age": int, "max_statements": int, "session_lost": int},
            "refused": int,
            "last_refused": [
                {"worker_id": str, "code": int, "count": int, "at": str, "second": float, "slot": int, "text": str}
            ],
            "last_lost": [
                {
                    "worker_id": str,
                    "code": int,
                    "count": int,
                    "reason": str,
                    "at": str,
                    "second": float,
                    "slot": int,
                    "text": str,
                }
            ],
        },
        "cpu_percent_of_core": float,
        "worst_minute_cpu_percent": type(None),
        "wakeup_mean_ms": float,
        "wakeup_p99_ms": float,
        "gap_percent": float,
        "paused_percent": float,
        "others_cores": float,
        "stolen_cores": float,
        "overhead_ms": type(None),
        "saturated": bool,
        "client_lag_avg_ms": type(None),
    },
    "environment": dict,
    "enrichment": dict,
}
SEVENTH = START + timedelta(seconds=7)
LOGINS = LoginCounts(
    opened=8,
    refused=1,
    last_refused=(ConnectionFailure(at=SEVENTH, slot=0, code=390_144, text="no"),),
    last_lost=(ConnectionFailure(at=SEVENTH, slot=0, code=7, text="no", reason=ReconnectReason.SESSION_LOST),),
)
MANY = tuple(1.0 + number / 100 for number in range(2_000))


def facts(**more: Any) -> RunFacts:
    lags = (0.5,) * 2_000
    service = tuple(ms - 0.5 for ms in MANY)
    statements = {
        "look": tally(MANY, lag_ms=lags, service_ms=service),
        "pay": tally(MANY, failed=4, lag_ms=(*lags, 0.5, 0.5, 0.5, 0.5), service_ms=service, skipped=3),
    }
    known: dict[str, Any] = {
        "run_id": "20261115-0200-orders-7f3a9c",
        "scenario": "orders-mix",
        "status": "COMPLETED",
        "started_at": "2026-11-15T02:00:00.000Z",
        "connections": 32,
        "statements": (statement("look"), statement("pay", StatementKind.WRITE)),
        "merged": merged(statements),
        "invalid": (),
        "checked": (Checked(check="p95 < 50ms", value=19.5, passed=True),),
        "client": ClientHealth(
            cpu_percent_of_core=12.5,
            wakeup_mean_ms=0.1,
            wakeup_p99_ms=0.25,
            gap_percent=0.0,
            paused_percent=0.0,
            others_cores=0.5,
            stolen_cores=0.1,
        ),
        "workers": (
            WorkerResult(
                worker_id="worker-0",
                status="DONE",
                succeeded=4_000,
                failed=4,
                qps=400.0,
                cpu_percent_of_core=12.5,
                wakeup_p99_ms=0.25,
            ),
        ),
        "open_loop": True,
        "stages": stages(),
        "delivered": Delivered(portions={("worker-0", 1): Portion(planned=10_000, missing=7)}),
        "logins": connections_document({"worker-0": LOGINS}, START),
    }
    return RunFacts(**(known | more))


def check(value: Any, wanted: Any, where: str) -> None:
    if isinstance(wanted, dict):
        assert isinstance(value, dict), where
        assert list(value) == list(wanted), where
        for key, part in wanted.items():
            check(value[key], part, f"{where}.{key}")
    elif isinstance(wanted, list):
        assert isinstance(value, list), where
        assert value, where
        for item in value:
            check(item, wanted[0], f"{where}[]")
    else:
        assert isinstance(value, wanted), (where, value)
        assert wanted is bool or not isinstance(value, bool), where


def test_the_document_is_exactly_what_was_promised() -> None:
    check(summarize(facts()), SCHEMA, "summary")


def test_it_survives_json_unchanged_and_without_nan() -> None:
    for known in (facts(), facts(merged=merged({})), facts(open_loop=False, started_at=None)):
        summary = summarize(known)
        assert json.loads(json.dumps(summary, allow_nan=False)) == summary


STEP = {"step": 1, "target": 4, "outcome": "STABLE", "reason": "held", "seconds": 10.0, "qps": 40.0, "p95_ms": 20.0,
        "failed": 0, "low_confidence": False}  # fmt: skip
FOUND = {"max_concurrency": 4, "result": "TRUE_MAX", "reason": "8 did not hold", "failed_at": 8, "qps": 40.0,
         "failed_outcome": "DEGRADED", "p95_ms": 20.0, "confidence": "high", "steps": [STEP, STEP]}  # fmt: skip


@pytest.mark.parametrize("names", [("look", "pay"), ("pay", "look"), ("totals", "_", "run_id")])
def test_what_a_table_gives_back_is_written_as_before(names: tuple[str, ...]) -> None:
    made = summarize(
        facts(
            statements=tuple(map(statement, names)),
            merged=merged({name: tally((20.0,) * 100) for name in names}),
            find_max=FOUND,
            checked=(Checked(check="p95 < 50ms", value=20.0, passed=True, window_s=10.0),),
            environment={"loadgen": "0.1.0", "cores": 2, "warnings": ["one"], "driver": {"name": "c", "age": 1.5}},
            enrichment={"status": "done", "found": 3},
        )
    )
    stored = json.loads(json.dumps(made, sort_keys=True), parse_float=as_a_variant_has_it)

    assert json.dumps(stored) != json.dumps(made)
    assert json.dumps(in_order(stored, names)) == json.dumps(made)
    assert list(made["statements"]) == list(names)


def as_a_variant_has_it(number: str) -> float | int:
    value = float(number)
    return int(value) if value.is_integer() else value


def test_a_threshold_has_the_length_of_its_window_if_it_has_one() -> None:
    whole = Checked(check="p95 < 50ms", value=19.5, passed=True)
    sliding = Checked(check="p99 < 100ms", value=230.2, passed=False, window_s=10.0)

    assert summarize(facts(checked=(whole, sliding)))["thresholds"] == [
        {"check": "p95 < 50ms", "value": 19.5, "passed": True},
        {"check": "p99 < 100ms", "value": 230.2, "passed": False, "window_seconds": 10.0},
    ]


def test_totals_add_up_and_kinds_are_separate() -> None:
    totals = summarize(facts())["totals"]
    assert totals["scheduled"] == totals["skipped"] + totals["succeeded"] + totals["failed"] + totals["cancelled"]
    assert (totals["reads"], totals["writes"]) == (2_000, 2_004)
    assert totals["error_rate"] == pytest.approx(4 / 4_004)
    assert totals["qps"] == 400.0


def test_an_open_loop_shows_service_and_lag_beside_the_response() -> None:
    summary = summarize(facts())
    assert summary["latency_ms"]["max"] == pytest.approx(summary["service_ms"]["max"] + 0.5)
    assert summary["lag_ms"]["avg"] == pytest.approx(0.5)


def test_a_closed_loop_has_no_lag() -> None:
    summary = summarize(facts(open_loop=False))
    assert summary["lag_ms"] == {}
    assert summary["service_ms"] == summary["latency_ms"]


@pytest.mark.parametrize(
    ("samples", "hidden"),
    [(0, LATENCY), (1, LATENCY[:5]), (19, ["p95", "p99", "p999"]), (21, ["p99", "p999"]), (101, ["p999"]), (1_001, [])],
)
def test_percentiles_that_the_samples_cannot_support_are_null(samples: int, hidden: list[str]) -> None:
    latency = summarize(facts(merged=merged({"look": tally((5.0,) * samples)}), open_loop=False))["latency_ms"]
    assert list(latency) == LATENCY
    assert [name for name in LATENCY if latency[name] is None] == hidden


@pytest.mark.parametrize(
    ("cancelled_ms", "at_least"),
    [
        (30.0, ["p99", "p999", "avg", "max"]),
        (1.5, ["p50", "p90", "p95", "p99", "p999", "avg", "max"]),
    ],  # after all others ended, and early
)
def test_percentiles_among_cancelled_statements_are_marked_as_lower_bounds(
    cancelled_ms: float, at_least: list[str]
) -> None:
    known = facts(merged=merged({"look": tally(MANY, cancelled_ms=(cancelled_ms,) * 60)}), open_loop=False)
    summary = summarize(known)
    assert list(summary["latency_ms"]) == [*LATENCY, "at_least", "cut_off"]
    assert summary["latency_ms"]["cut_off"] == 60
    assert summary["latency_ms"]["at_least"] == at_least
    assert summary["statements"]["look"]["latency_ms"]["at_least"] == at_least
    assert summary["totals"]["cancelled"] == 60


def test_values_that_no_worker_reported_are_null_and_not_zero() -> None:
    client = summarize(facts(client=ClientHealth()))["client"]
    assert client.pop("connections") is not None
    assert client.pop("saturated") is False
    assert set(client.values()) == {None}


def test_what_was_planned_and_is_not_known_is_null() -> None:
    summary = summarize(facts(delivered=None, logins=None))

    assert summary["delivered"] is None
    assert summary["stalls"] is None
    assert summary["client"]["connections"] is None


def test_errors_are_listed_most_frequent_first_each_with_its_statement() -> None:
    failing = merged({"look": tally(failed=3), "pay": tally(failed=4)})
    errors = summarize(facts(merged=failing))["errors"]
    kind = {"category": "SNOWFLAKE_ERROR", "code": 100_051, "example": "it failed"}
    assert errors == [{"statement": "pay", "count": 4, **kind}, {"statement": "look", "count": 3, **kind}]


def test_a_stage_has_the_numbers_of_its_windows() -> None:
    first, second = summarize(facts())["stages"]
    assert (first["name"], first["connections"], first["rate"]) == ("stage 1", 8, None)
    assert (first["starts_s"], first["measured_seconds"], first["qps"], first["error_rate"]) == (10.0, 20.0, 100.0, 0.0)
    assert (second["connections"], second["rate"], second["qps"], second["failed"]) == (None, 100.0, 500.0, 2)
    assert second["error_rate"] == 2 / 2_002
    assert second["latency_ms"] == first["latency_ms"]  # the same samples, and no word of the other stage


def test_a_run_without_stages_has_an_empty_list() -> None:
    assert summarize(facts(stages=()))["stages"] == []


def test_an_invalid_run_has_a_reason() -> None:
    summary = summarize(facts(invalid=("too few samples",)))
    assert summary["validity"] == {"valid": False, "reasons": ["too few samples"]}
    assert (summary["verdict"], summary["exit_code"]) == ("invalid", 5)


@pytest.mark.parametrize(
    ("number", "known", "verdict", "code"),
    [
        (signal.SIGINT, {}, "cancelled", 130),
        (signal.SIGHUP, {"invalid": ("too few samples",)}, "cancelled", 129),
        (signal.SIGTERM, {"status": "CANCELLED", "reason": "stopped by the user"}, "cancelled", 143),
        (signal.SIGQUIT, {"status": "FAILED", "reason": "worker-0 died"}, "error", 4),
    ],
)
def test_verdict_and_exit_code_of_a_run_that_a_signal_stopped_agree(
    number: int, known: dict[str, Any], verdict: str, code: int
) -> None:
    summary = summarize(facts(signal=number, reason=known.pop("reason", "the plan is complete"), **known))
    assert (summary["verdict"], summary["exit_code"]) == (verdict, code)
    if summary["status"] == "COMPLETED":
        name = signal.Signals(number).name
        assert summary["exit_reason"] == f"stopped by {name} after the measurement (the plan is complete)"


def test_unstored_rows_are_reported_until_they_are_stored() -> None:
    unstored = {"worker-1": {"window": 1, "execution": 2_000}, "worker-0": {"log_line": 2}}
    known = facts(unstored=unstored, environment={"cores": 2, "warnings": ["one"]})
    summary = summarize(known)

    assert summary["unstored"] == unstored
    assert summary["environment"]["warnings"] == [
        "one",
        f"not stored yet: worker-0 2 log lines; worker-1 1 window, 2,000 executions: `loadgen upload {known.run_id}`"
        " stores them (with the --output-dir of the run)",
    ]
    assert with_unstored(summary, {}) == summarize(facts(environment={"cores": 2, "warnings": ["one"]}))
    assert with_unstored(summary, unstored) == summary
