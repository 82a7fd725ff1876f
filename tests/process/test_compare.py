"""`loadgen compare` over a real control plane."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.control_plane import ControlPlane
from tests.process.stored_runs import PER_SECOND, SECONDS, Store

OTHER_SCENARIO = """
version: 1
name: rates
connection: embedded
target: {warehouse: %s, database: BENCH, schema: PUBLIC}
workload: {statements: [{name: read, sql: SELECT 1}]}
load: {mode: rate, rate: 50/s, max_connections: 64, workers: 2, warmup: 1s, duration: 30s}
"""
WIDE_SCENARIO = """
version: 1
name: orders
seed: 7
connection: embedded
target: {warehouse: %s, database: BENCH, schema: OTHER, statement_timeout: 60s}
workload: {statements: [{name: look, weight: 2, sql: SELECT 1}, {name: pay, weight: 1, kind: write, sql: SELECT 3}]}
load: {connections: 16, workers: 2, warmup: 1s, duration: 30s}
"""


@pytest.fixture
def store(plane: ControlPlane, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Store:
    for name, value in plane.environ.items():
        monkeypatch.setenv(name, value)
    return Store(plane, capsys)


def test_runs_in_the_tables_are_compared_and_incomparable_runs_are_reported(store: Store, tmp_path: Path) -> None:
    first, again = store.run("20261114-0200-orders-aaaa"), store.run("20261115-0200-orders-bbbb")
    slow = store.run("20261116-0200-orders-cccc", slower=1.2)
    big = store.run("20261116-0300-orders-dddd", warehouse="BIG_WH")
    bad = store.run("20261116-0400-orders-eeee", invalid=("worker lost: worker-1",))
    begun = store.run("20261116-0500-orders-ffff", ended=False)

    check_same_scenario(store, first, again, tmp_path / "compare.html")
    check_slower(store, first, slow)
    check_other_warehouse(store, first, big)
    check_other_scenario(store, first)
    check_wide_differences(store, first)
    for other, why in (
        (bad, "is INVALID: worker lost: worker-1"),
        (begun, "has the status PREPARED, and not COMPLETED"),
    ):
        code, data = store.json(first, other)
        assert (code, data["verdict"]) == (2, "not comparable")
        assert data["reasons"] == [f"B ({other}) {why}"]
    check_wrong_usage(store, first, again, tmp_path / "no" / "x.html")


def check_same_scenario(store: Store, first: str, again: str, page: Path) -> None:
    """As text, as JSON, and as a page."""
    code, out, errors = store.compare(first, again, "--html", str(page))
    assert (code, errors) == (0, "")
    assert out.startswith("EQUIVALENT  ")
    assert "same scenario, same environment" in out
    assert page.read_text("utf-8").startswith("<!DOCTYPE html>")
    code, data = store.json(first, again)
    assert (code, data["verdict"], data["exit_code"]) == (0, "equivalent", 0)
    assert (data["a"]["run_id"], data["b"]["run_id"]) == (first, again)
    assert data["a"]["measured_seconds"] == SECONDS
    assert data["a"]["compared_seconds"] == SECONDS - 1  # the first row began before the measurement
    (qps,) = [one for one in data["metrics"] if (one["statement"], one["metric"]) == (None, "qps")]
    assert qps["a"] == pytest.approx(2 * PER_SECOND * (SECONDS + 1) / SECONDS)


def check_slower(store: Store, first: str, slow: str) -> None:
    """A fifth slower, in both directions, and with a limit that tolerates it."""
    code, data = store.json(first, slow)
    assert (code, data["verdict"], data["exit_code"]) == (11, "worse", 11)
    (p95,) = [one for one in data["metrics"] if (one["statement"], one["metric"]) == ("look", "p95")]
    assert p95["low"] < p95["change"] < p95["high"]
    assert p95["change"] == pytest.approx(0.2, abs=0.06)
    assert store.compare(slow, first)[1].startswith("BETTER  ")
    tolerant = [word for metric in ("p50", "p95") for word in ("--limit", f"{metric}=40%")]
    assert store.json(first, slow, *tolerant)[1]["verdict"] == "equivalent"


def check_other_warehouse(store: Store, first: str, big: str) -> None:
    code, data = store.json(first, big)
    assert (code, data["verdict"], data["exit_code"]) == (2, "not comparable", 2)
    assert [one["key"] for one in data["configuration"]] == ["target.warehouse"]
    code, out, errors = store.compare(first, big)
    assert (code, out) == (2, "")
    assert errors == (
        "error: not comparable: they differ in target.warehouse\n  target.warehouse: WH → BIG_WH\n"
        "hint: To compare runs with this difference, add --vary target.warehouse\n"
    )
    code, out, _ = store.compare(first, big, "--vary", "target.warehouse")
    assert code == 0
    assert "target.warehouse: WH → BIG_WH" in out


def check_other_scenario(store: Store, first: str) -> None:
    """A short list in its own words."""
    other = OTHER_SCENARIO % "WH"
    foreign = store.run("20261116-0600-rates-gggg", scenario=other)
    code, out, errors = store.compare(first, foreign)
    assert (code, out) == (2, "")
    message, *lines, hint = errors.splitlines()
    assert message == (
        "error: not comparable: A is a run of orders, B of rates; they have no statement in common;"
        " response times of different load modes have different meanings; they differ in 8 settings"
    )
    assert lines == [
        "  load.mode: concurrency → rate",
        "  load.connections: 8 → not set",
        "  load.duration: 20s → 30s",
        "  load.max_connections: not set → 64",
        "  load.rate: not set → 50/s",
        "  workload.statements.look: only in A",
        "  workload.statements.pay: only in A",
        "  workload.statements.read: only in B",
    ]
    assert hint == "hint: Compare runs of one scenario. `loadgen runs list` shows all runs."
    code, data = store.json(first, foreign)
    assert {one["key"] for one in data["configuration"] if one["matters"]} == {
        line.split()[0].strip(":") for line in lines
    }


def check_wide_differences(store: Store, first: str) -> None:
    wide = store.run("20261116-0700-orders-hhhh", scenario=WIDE_SCENARIO % "WH")
    said, _, options = store.compare(first, wide)[2].splitlines()[-1].partition(", add ")
    assert said == "hint: To compare runs with this difference"
    assert options == "--vary load --vary workload --vary target --vary seed"
    code, out, _ = store.compare(first, wide, *options.split())
    assert code == 0
    assert "load.duration: 20s → 30s" in out


def check_wrong_usage(store: Store, first: str, again: str, unwritable: Path) -> None:
    for words, said in (
        ((first, "nosuchrun"), "there is no run nosuchrun"),
        ((first, first), f"A and B are the same run: {first}"),
        ((first, again, "--vary", "target"), "--vary target does not differ between the two runs"),
        ((first, again, "--limit", "ghost.p95=1%"), "--limit: the runs have no common statement ghost"),
        ((first, again, "--html", str(unwritable)), f"cannot write {unwritable}: No such file"),
    ):
        code, data = store.json(*words)
        assert code == data["error"]["exit_code"] == 2
        assert data["error"]["message"].startswith(said)
        assert data["error"]["hint"]
