"""Enrichment against a real server: statements that really ran, joined by their ids, compared with the ground truth."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from loadgen.cli.main import main
from loadgen.control.tables import query_executions, run_status, test_results
from loadgen.control.tables.query_executions import Execution
from loadgen.model.run import RowEnrichment as Row
from loadgen.model.run import RunEnrichment
from loadgen.report.exports import FILES
from loadgen.rules.enrichment import EnrichmentResult
from loadgen.scenario.frozen import freeze
from loadgen.scenario.model import EnrichmentMode, Scenario
from loadgen.scenario.read import parse_scenario
from loadgen.snowflake.session import RetryPolicy
from loadgen.snowflake.settings import query_tag
from orchestrator.enrich import EMPTY_SEARCHES_MAX, PAUSE_S, EnrichmentOptions, enrich_run
from tests.control_plane import ControlPlane, result_row, retries
from tests.fake_clock import FakeClock
from tests.unit.orchestrator_builders import merged
from tests.unit.report_builders import summary

SCENARIO = """
version: 1
name: enriched
connection: embedded
control: {database: %s}
target: {warehouse: BENCH_WH, database: BENCH, schema: PUBLIC}
prepare:
  tables:
    - {name: ENRICH_H, type: hybrid, columns: [{name: ID, type: "NUMBER(38,0)", primary_key: true}]}
workload:
  statements:
    - {name: nap, sql: "SELECT SYSTEM$WAIT(5, 'MILLISECONDS')"}
    - {name: hybrid, sql: SELECT ID FROM ENRICH_H}
    - {name: pair, transaction: [{sql: SELECT 1}, {sql: SELECT 2}]}
load: {connections: 1, workers: 1, warmup: 0s, duration: 1s}
"""
COLUMNS = "ENRICHMENT_STATUS, SF_TOTAL_MS, SF_EXECUTION_MS, SF_QUEUED_OVERLOAD_MS, SF_COMPILE_MS, SF_CLUSTER"


class EnrichHarness:
    """A run whose statements were executed here, and logged as a worker would."""

    def __init__(self, plane: ControlPlane) -> None:
        text = SCENARIO % plane.place.database
        self.plane = plane
        self.scenario: Scenario = parse_scenario(text, source="enriched.yaml", environ={}).scenario
        self.run_id = plane.new_run(scenario_config=freeze(self.scenario))
        tag = query_tag(run=self.run_id, worker="worker-0", phase="MEASUREMENT")
        self.connection = plane.server.connect(
            database="BENCH", schema="PUBLIC", warehouse="BENCH_WH", session_parameters={"QUERY_TAG": tag}
        )
        self._cursor = self.connection.cursor()

    def execute(self, name: str, sql: str) -> Execution:
        """Execute now, and make the row of the query log."""
        began = datetime.now(UTC).replace(tzinfo=None)
        self._cursor.execute(sql)
        self._cursor.fetchall()
        took = datetime.now(UTC).replace(tzinfo=None) - began
        return self.row(name, self._cursor.sfqid, start_time=began, duration_ms=took / timedelta(milliseconds=1))

    def row(self, name: str, query_id: str | None, **more: Any) -> Execution:
        fields: dict[str, Any] = {"start_time": datetime.now(UTC).replace(tzinfo=None), "duration_ms": 1.0}
        fields |= {"step_id": None, "due_lag_ms": 0.0, "rows_affected": 1, "success": True, "error_category": None}
        return Execution(
            execution_id=str(uuid.uuid4()),
            run_id=self.run_id,
            test_id="t",
            worker_id="worker-0",
            query_id=query_id,
            statement_name=name,
            query_kind="read",
            phase="MEASUREMENT",
            error_code=None,
            error=None,
            **(fields | more),
        )

    def log(self, *rows: Execution) -> None:
        query_executions.append(self.plane.session, retries(), rows)

    def enrich(self, enabled: EnrichmentMode | None = None, **more: Any) -> EnrichmentResult:
        scenario = replace(self.scenario, enrichment=enabled or self.scenario.enrichment)
        return enrich_run(self.plane.session, retries(), self.run_id, scenario, environ=self.plane.environ, **more)

    def stored(self, *, columns: str = COLUMNS) -> dict[str, tuple[Any, ...]]:
        rows = self.plane.rows(f"SELECT EXECUTION_ID, {columns} FROM QUERY_EXECUTIONS WHERE RUN_ID = ?", self.run_id)
        return {row[0]: row[1:] for row in rows}

    def run_row(self) -> run_status.Run:
        run = run_status.read(self.plane.session, self.run_id)
        assert run is not None
        return run

    def end(self) -> None:
        """The run has ended."""
        self.plane.change("UPDATE RUN_STATUS SET STATUS = 'COMPLETED' WHERE RUN_ID = ?", self.run_id)

    def keep_result(self, folder: Path) -> dict[str, Any]:
        """The run has a result, in its table and, judged by a baseline, in its folder. The summary."""
        made = summary(merged(), ("nap",), run_id=self.run_id)
        row = result_row(self.run_id, created_at=self.run_row().created_at, summary=json.dumps(made))
        test_results.append(self.plane.session, retries(), row)
        folder.mkdir(parents=True)
        (folder / "summary.json").write_text(json.dumps({**made, "baseline": {"verdict": "SAME"}}), "utf-8")
        return made

    def ask(self, *words: str) -> int:
        return main(["enrich", self.run_id, "-c", "embedded", "--database", self.plane.place.database, *words])


@pytest.fixture
def harness(plane: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> Iterator[EnrichHarness]:
    for name, value in plane.environ.items():
        monkeypatch.setenv(name, value)
    made = EnrichHarness(plane)
    yield made
    made.connection.close()


def test_executed_statements_get_the_servers_times_and_a_second_enrichment_changes_nothing(harness, server):
    rows = [harness.execute("nap", f"SELECT SYSTEM$WAIT({5 + number}, 'MILLISECONDS')") for number in range(25)]
    unknown = harness.row("nap", "01234567-0000-0000-0000-000000000000")
    no_id = harness.row("nap", None, success=False, error_category="CONNECTION")
    stale = harness.row("nap", rows[-1].query_id, success=False, error_category="CONNECTION")
    pair = harness.row("pair", rows[0].query_id)
    harness.log(*rows, unknown, no_id, stale, pair)
    before = harness.run_row()

    result = harness.enrich()

    truth = {line["query_id"]: line for line in server.ask(f"/__loadgen/history?tag={harness.run_id}")}
    stored = harness.stored()
    for row in rows:
        status, total_ms, execution_ms, queued_ms, _, cluster = stored[row.execution_id]
        line = truth[row.query_id]
        assert (status, cluster) == ("ENRICHED", 1)
        assert [total_ms, execution_ms, queued_ms] == pytest.approx(
            [line["total_ms"], line["execution_ms"], line["queued_ms"]], abs=0.501
        )  # the history has whole milliseconds
    others = {row.execution_id: stored[row.execution_id][:2] for row in (unknown, no_id, stale, pair)}
    assert list(others.values()) == [("NOT_FOUND", None), *[("SKIPPED", None)] * 3]
    assert result.counts == {Row.PENDING: 0, Row.ENRICHED: 25, Row.NOT_FOUND: 1, Row.SKIPPED: 3, Row.FAILED: 0}
    assert (result.status, result.coverage_percent) == (RunEnrichment.PARTIAL, pytest.approx(100 * 25 / 29))
    assert [reason.partition(" ")[0] for reason in result.reasons] == ["2", "1", "1"]
    totals = [stored[row.execution_id][1] for row in rows]
    assert result.ledger is not None
    assert result.ledger.samples == 25
    assert result.ledger.parts["total"].mean_ms == pytest.approx(sum(totals) / 25)
    assert result.ledger.parts["total"].p50_ms == sorted(totals)[12]
    assert result.ledger.parts["total"].p95_ms == sorted(totals)[23]
    added = sorted(row.duration_ms - total for row, total in zip(rows, totals, strict=True))
    assert result.overhead_ms == pytest.approx(added[12], abs=1e-5)
    after = harness.run_row()
    assert (after.status, after.enrichment_status) == (before.status, "PARTIAL")

    again = harness.enrich()

    assert (again.counts, harness.stored(), harness.run_row()) == (result.counts, stored, after)


def test_statements_on_hybrid_tables_are_skipped_with_a_reason_unless_forced(harness, capsys):
    harness._cursor.execute("CREATE HYBRID TABLE IF NOT EXISTS ENRICH_H (ID NUMBER(38,0) PRIMARY KEY)")
    harness.log(harness.execute("hybrid", "SELECT ID FROM ENRICH_H"))

    off = harness.enrich(EnrichmentMode.OFF)
    untouched = [status for (status,) in harness.stored(columns="ENRICHMENT_STATUS").values()]
    auto = harness.enrich(EnrichmentMode.AUTO)
    skipped = [status for (status,) in harness.stored(columns="ENRICHMENT_STATUS").values()]
    harness.end()
    asked = harness.ask("--hybrid", "--format", "json")
    document = json.loads(capsys.readouterr().out)
    on = harness.enrich(EnrichmentMode.ON)

    assert (off.status, untouched, off.reasons) == (
        RunEnrichment.SKIPPED,
        ["PENDING"],
        ("enrichment.enabled is false in the scenario",),
    )
    assert (auto.status, skipped) == (RunEnrichment.SKIPPED, ["SKIPPED"])
    assert "touched only hybrid tables" in auto.reasons[0]
    assert (asked, document["status"], document["not_found"], document["skipped"]) == (0, "PARTIAL", 1, 0)
    assert (on.status, on.counts[Row.NOT_FOUND]) == (RunEnrichment.PARTIAL, 1)
    assert "not typical" in on.reasons[0]
    assert harness.run_row().enrichment_status == "PARTIAL"


def test_a_history_that_cannot_be_read_is_a_result_and_the_next_try_goes_on_from_there(harness, server, capsys):
    harness.log(harness.execute("nap", "SELECT 1"))
    harness.end()
    server.fault(match="INFORMATION_SCHEMA.QUERY_HISTORY", kind="error", errno=3001, probability=1.0)
    try:
        refused = harness.enrich()
        code = harness.ask("--format", "json")
    finally:
        server.clear_faults()
    status_between = harness.run_row().enrichment_status
    server.fault(match="INFORMATION_SCHEMA.QUERY_HISTORY", kind="reset", probability=1.0, count=1)

    result = harness.enrich()

    assert (refused.status, refused.counts[Row.PENDING], status_between) == (RunEnrichment.FAILED, 1, "FAILED")
    out, errors = capsys.readouterr()
    assert code == json.loads(out)["error"]["exit_code"] == 3
    assert "\nhint: Try again with `loadgen enrich RUN`." in errors
    assert refused.error is not None
    assert "query history could not be read" in str(refused.error)
    assert (result.status, result.counts[Row.ENRICHED], result.error) == (RunEnrichment.ENRICHED, 1, None)


def test_recent_statements_that_are_missing_are_searched_again_until_the_time_is_over(harness):
    ahead = datetime.now(UTC).replace(tzinfo=None) + timedelta(hours=1)  # by the clock of its worker
    harness.log(harness.row("nap", "01234567-0000-0000-0000-000000000001", start_time=ahead))
    looks: list[int] = []

    once = harness.enrich(options=EnrichmentOptions(wait=False, on_progress=looks.append))
    in_vain = harness.enrich(options=EnrichmentOptions(limit_s=5 * PAUSE_S, on_progress=looks.append))
    harness.log(harness.execute("nap", "SELECT 1"))
    result = harness.enrich(options=EnrichmentOptions(limit_s=5 * PAUSE_S, on_progress=looks.append))

    assert once.status is in_vain.status is RunEnrichment.PENDING
    assert (result.counts[Row.PENDING], result.counts[Row.ENRICHED]) == (1, 1)
    assert looks == [1] * (1 + EMPTY_SEARCHES_MAX + 5)  # a history that lags shows something at least


def test_its_time_is_limited_and_a_stop_is_obeyed(harness):
    harness.log(harness.execute("nap", "SELECT 1"))
    stopped = RetryPolicy(stop=threading.Event(), attempts=2, clock=FakeClock())
    stopped.stop.set()

    out_of_time = harness.enrich(options=EnrichmentOptions(limit_s=0.0))
    interrupted = enrich_run(
        harness.plane.session, stopped, harness.run_id, harness.scenario, environ=harness.plane.environ
    )

    assert out_of_time.status is interrupted.status is RunEnrichment.PENDING
    assert out_of_time.counts[Row.PENDING] == interrupted.counts[Row.PENDING] == 1
    assert "may still appear" in out_of_time.reasons[0]


def test_the_command_enriches_a_run_that_has_ended_and_prints_its_progress(harness, capsys):
    harness.log(*(harness.execute("nap", "SELECT 1") for _ in range(3)), harness.row("pair", "x"))
    assert harness.ask("--format", "json") == 75  # it has not ended
    assert "is still PREPARED" in json.loads(capsys.readouterr().out)["error"]["message"]
    harness.end()

    assert harness.ask("--wait", "--format", "json") == 0
    document = json.loads(capsys.readouterr().out)
    assert harness.ask() == 0
    text = capsys.readouterr().out

    assert (document["run_id"], document["status"], document["coverage_percent"]) == (harness.run_id, "ENRICHED", 75.0)
    assert (document["total"], document["enriched"], document["skipped"], document["pending"]) == (4, 3, 1, 0)
    assert document["overhead_ms"] is not None
    assert "1 statement consisted of several SQL statements" in document["reason"]
    assert f"run {harness.run_id}: ENRICHED, 75.0 % of 4 logged statements" in text
    assert main(["enrich", "no-such-run", "-c", "embedded", "--database", harness.plane.place.database]) == 2
    assert "hint: " in capsys.readouterr().err


def test_the_files_of_a_run_that_is_here_follow_and_so_does_its_stored_result(harness, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "page.md"))
    folder = tmp_path / "runs" / harness.run_id
    before = harness.keep_result(folder)
    harness.log(*(harness.execute("nap", "SELECT 1") for _ in range(3)))
    harness.end()

    assert harness.ask("--output-dir", str(tmp_path / "elsewhere"), "--format", "json") == 0
    assert "again" not in capsys.readouterr().err
    assert not (tmp_path / "elsewhere").exists()
    assert harness.ask("--output-dir", str(folder.parent), "--format", "json") == 0
    out, errors = capsys.readouterr()
    found = json.loads(out)

    written = json.loads((folder / "summary.json").read_text("utf-8"))
    expected = {**found, "status": "ENRICHED"}
    overhead_ms = expected.pop("overhead_ms")
    del expected["run_id"]
    assert written.pop("baseline") == {"verdict": "SAME"}
    assert (written["enrichment"], written["client"]["overhead_ms"]) == (expected, overhead_ms)
    untouched = before.keys() - {"enrichment", "client"}
    assert {key: written[key] for key in untouched} == {key: before[key] for key in untouched}
    assert f"updated the reports in {folder}" in errors
    assert "coverage" in (folder / "report.html").read_text("utf-8")
    assert {path.name for path in folder.iterdir()} == {"summary.json", *FILES.values()}
    assert not (tmp_path / "page.md").exists()  # it was reported at the end of the run
    assert main(["report", harness.run_id, "-c", "embedded", "--database", harness.plane.place.database,
                 "--format", "json"]) == 0  # fmt: skip
    assert json.loads(capsys.readouterr().out) == written
    assert harness.run_row().status == "COMPLETED"
