"""Decisions of the enrichment: which slices of the history are read, the outcome of each statement, the part of the
summary; and the command where it needs no server."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from loadgen.cli import enrich as command
from loadgen.cli.main import main
from loadgen.control.tables.query_executions import PendingExecution, ServerTimes
from loadgen.model.run import RowEnrichment as Row
from loadgen.model.run import RunEnrichment as Run
from loadgen.report.summary import enrichment_document, with_enrichment
from loadgen.rules.enrichment import (
    SERVER_TIME_KINDS,
    EnrichmentCount,
    EnrichmentResult,
    ServerTimeBreakdown,
    ServerTimeStats,
    counts_of,
    reasons_of,
    status_of,
)
from loadgen.scenario.model import EnrichmentMode, Scenario
from loadgen.scenario.read import parse_scenario
from orchestrator.enrich import (
    CLOCK_SKEW,
    HISTORY_REACH,
    count_not_due,
    decide_enrichment,
    enrichment_scope,
    history_span,
    search_history,
)
from orchestrator.query_history import HISTORY_LATENCY_S, ROWS_MAX, HistoryPage, HistorySlice
from orchestrator.run_folder import rewrite_reports
from tests.unit.report_builders import record

NOW = datetime(2026, 11, 16, 12, 0, 0)  # noqa: DTZ001  naive UTC, as the tables have it
TIMES = ServerTimes(total_ms=7.0, compile_ms=2.0, execution_ms=5.0, bytes_scanned=100, cluster=1)
SCENARIO = """
version: 1
name: mixed
connection: embedded
target: {warehouse: W, database: D, schema: S}
prepare:
  tables:
    - {name: H, type: hybrid, columns: [{name: ID, type: "NUMBER(38,0)", primary_key: true}]}
    - {name: '"Odd h"', type: hybrid, columns: [{name: ID, type: "NUMBER(38,0)", primary_key: true}]}
    - {name: T, type: standard, columns: [{name: ID, type: "NUMBER(38,0)"}]}
    - {name: E, type: existing}
workload:
  statements:
    - {name: hybrid_read, sql: "SELECT ID FROM h"}
    - {name: hybrid_quoted, sql: 'SELECT ID FROM "Odd h"'}
    - {name: standard_read, sql: "SELECT 'H', ID FROM T"}
    - {name: both, sql: "SELECT H.ID FROM H JOIN T ON H.ID = T.ID"}
    - {name: with_existing, sql: "SELECT H.ID FROM H JOIN E ON H.ID = E.ID"}
    - {name: no_table, sql: SELECT 1}
    - {name: pair, transaction: [{sql: "UPDATE H SET ID = 1"}, {sql: "UPDATE H SET ID = 2"}]}
load: {connections: 1, workers: 1, warmup: 0s, duration: 1s}
"""


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    return parse_scenario(SCENARIO, source="mixed.yaml", environ={}).scenario


def logged(
    name: str = "q", *, ago_s: float = 10.0, duration_ms: float = 1_000.0, status: Row = Row.PENDING
) -> PendingExecution:
    """Ended so long ago."""
    ended = NOW - timedelta(seconds=ago_s)
    return PendingExecution(
        execution_id=f"e-{name}",
        query_id=name,
        statement_name="s",
        start_time=ended - timedelta(milliseconds=duration_ms),
        duration_ms=duration_ms,
        status=status,
    )


def counted(*rows: tuple[str, Row, int], identified: bool = True) -> list[EnrichmentCount]:
    return [
        EnrichmentCount(statement_name=name, identified=identified, status=status, count=count)
        for name, status, count in rows
    ]


# --- what is looked for ----------------------------------------------------------------------------------------------


def test_statements_on_hybrid_tables_alone_are_left_out_unless_the_scenario_insists(scenario):
    auto, on = enrichment_scope(scenario, EnrichmentMode.AUTO), enrichment_scope(scenario, EnrichmentMode.ON)

    assert auto.hybrid == on.hybrid == {"hybrid_read", "hybrid_quoted"}
    assert auto.skipped == {"hybrid_read", "hybrid_quoted", "pair"}
    assert on.skipped == {"pair"}


# --- where -----------------------------------------------------------------------------------------------------------


def test_the_span_holds_every_end_and_what_clocks_may_differ_by():
    rows = [logged("a", ago_s=600), logged("b", ago_s=300, duration_ms=5_000)]

    span = history_span(rows, NOW)

    assert span is not None
    assert span.start == (rows[0].start_time - CLOCK_SKEW).replace(tzinfo=UTC)
    assert span.end == (NOW - timedelta(seconds=300) + CLOCK_SKEW).replace(tzinfo=UTC)


def test_the_span_ends_now_and_begins_where_the_history_does():
    span = history_span([logged("a", ago_s=8 * 86_400), logged("b", ago_s=0)], NOW)

    assert span is not None
    assert (span.start, span.end) == ((NOW - HISTORY_REACH).replace(tzinfo=UTC), NOW.replace(tzinfo=UTC))
    assert history_span([logged(ago_s=8 * 86_400)], NOW) is None
    assert history_span([], NOW) is None


class Served:
    """A history with this many statements, evenly spread, that shows the newest ROWS_MAX of a slice."""

    def __init__(self, count: int, span: HistorySlice) -> None:
        width_ms = (span.end_ms - span.start_ms) / count
        self.ends_ms = {f"q{number}": span.start_ms + number * width_ms for number in range(count)}
        self.reads: list[HistorySlice] = []

    def read(self, part: HistorySlice) -> HistoryPage:
        self.reads.append(part)
        inside = [query_id for query_id, end_ms in self.ends_ms.items() if part.start_ms <= end_ms <= part.end_ms]
        return HistoryPage(found=dict.fromkeys(inside[-ROWS_MAX:], TIMES), seen=min(len(inside), ROWS_MAX))


SPAN = HistorySlice(start_ms=1_000, end_ms=61_000)


def never() -> bool:
    return False


def after(looks: int) -> Callable[[], bool]:
    left = iter([False] * looks)
    return lambda: next(left, True)


def test_full_slices_are_halved_until_everything_was_seen():
    history = Served(35_000, SPAN)

    found, complete = search_history(frozenset([*history.ends_ms, "unknown"]), SPAN, history.read, never)

    assert complete
    assert found.keys() == history.ends_ms.keys()
    assert len(history.reads) == 7  # one, its two halves, their four: 8,750 each
    assert history.reads[0] == SPAN
    assert history.reads[2].start_ms == SPAN.start_ms  # the oldest first


def test_only_what_is_wanted_is_kept_and_nothing_is_read_once_it_is_found():
    history = Served(35_000, SPAN)

    found, complete = search_history(frozenset({"q34999"}), SPAN, history.read, never)

    assert (list(found), complete, len(history.reads)) == (["q34999"], True, 1)


def test_a_millisecond_that_is_full_leaves_the_answer_open():
    crowded = HistorySlice(start_ms=5_000, end_ms=5_001)
    history = Served(10_001, crowded)

    found, complete = search_history(frozenset({"q0", "q9000"}), crowded, history.read, never)

    assert (list(found), complete) == (["q9000"], False)


def test_a_search_that_runs_out_of_time_gives_what_it_has():
    history = Served(35_000, SPAN)

    found, complete = search_history(frozenset(history.ends_ms), SPAN, history.read, after(3))

    assert not complete
    assert len(history.reads) == 3
    assert 0 < len(found) < 35_000
    assert search_history(frozenset({"a"}), None, history.read, never) == ({}, True)


@pytest.mark.parametrize(("start_ms", "end_ms"), [(0, 2), (0, 3), (10, 1_000_001)])
def test_halves_cover_the_whole_and_end(start_ms, end_ms):
    whole = HistorySlice(start_ms=start_ms, end_ms=end_ms)
    newer, older = whole.halves()

    assert (older.start_ms, older.end_ms, newer.end_ms) == (start_ms, newer.start_ms, end_ms)
    while whole.halves():
        assert whole.halves()[0].end_ms - whole.halves()[0].start_ms < whole.end_ms - whole.start_ms
        whole = whole.halves()[0]
    assert whole.end_ms - whole.start_ms == 1


# --- what becomes of it ----------------------------------------------------------------------------------------------


def decided(row: PendingExecution, *, found: ServerTimes | None = None, complete: bool = True) -> Row:
    """The status after a look."""
    history = {} if found is None else {row.query_id: found}
    changes = decide_enrichment([row], history, NOW, HISTORY_LATENCY_S, complete=complete)
    return changes[0].status if changes else row.status


def test_found_statements_are_enriched_with_their_times():
    (change,) = decide_enrichment([logged("a")], {"a": TIMES, "other": TIMES}, NOW, HISTORY_LATENCY_S, complete=False)

    assert (change.execution_id, change.status, change.times) == ("e-a", Row.ENRICHED, TIMES)
    assert decided(logged(status=Row.NOT_FOUND, ago_s=900), found=TIMES) is Row.ENRICHED
    assert decided(logged(), found=ServerTimes(total_ms=None)) is Row.FAILED


@pytest.mark.parametrize(
    ("ago_s", "complete", "status"),
    [
        (HISTORY_LATENCY_S - 1, True, Row.PENDING),
        (HISTORY_LATENCY_S, True, Row.NOT_FOUND),
        (HISTORY_LATENCY_S, False, Row.PENDING),
        (6 * 86_400, True, Row.NOT_FOUND),
        (8 * 86_400, True, Row.SKIPPED),
    ],
)
def test_a_statement_is_missing_only_after_a_complete_search_of_a_late_enough_history(ago_s, complete, status):
    assert decided(logged(ago_s=ago_s), complete=complete) is status


def test_a_second_search_without_new_rows_changes_nothing():
    rows = [
        logged("a", ago_s=900, status=Row.NOT_FOUND),
        logged("b"),
        logged("c", ago_s=8 * 86_400, status=Row.SKIPPED),
    ]

    assert decide_enrichment(rows, {}, NOW, HISTORY_LATENCY_S, complete=True) == ()
    assert count_not_due(rows, {}, NOW, HISTORY_LATENCY_S) == 1
    assert count_not_due(rows, {"b": TIMES}, NOW, HISTORY_LATENCY_S) == 0


# --- what is reported ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "status"),
    [
        ([], Run.SKIPPED),
        ([("s", Row.SKIPPED, 3)], Run.SKIPPED),
        ([("s", Row.ENRICHED, 3)], Run.ENRICHED),
        ([("s", Row.ENRICHED, 3), ("h", Row.SKIPPED, 2)], Run.ENRICHED),
        ([("s", Row.ENRICHED, 3), ("s", Row.NOT_FOUND, 1)], Run.PARTIAL),
        ([("s", Row.FAILED, 3)], Run.PARTIAL),
        ([("s", Row.ENRICHED, 3), ("s", Row.NOT_FOUND, 1), ("s", Row.PENDING, 1)], Run.PENDING),
    ],
)
def test_the_run_is_what_its_statements_are(rows, status):
    assert status_of(counts_of(counted(*rows))) is status


def test_every_statement_that_is_not_enriched_has_a_reason_that_counts_it():
    tally = [
        *counted(("s", Row.SKIPPED, 2), identified=False),
        *counted(("pair", Row.SKIPPED, 3), ("h", Row.SKIPPED, 4), ("s", Row.SKIPPED, 5), ("h", Row.NOT_FOUND, 6)),
        *counted(("s", Row.NOT_FOUND, 7), ("s", Row.FAILED, 8), ("s", Row.PENDING, 1_009), ("s", Row.ENRICHED, 99)),
    ]

    reasons = reasons_of(tally, transactions=frozenset({"pair"}), hybrid=frozenset({"h"}))

    words = ["query id", "transactions", "AGGREGATE_QUERY_HISTORY", "7 days", "not typical", "in the history; it"]
    assert [reason.partition(" ")[0] for reason in reasons] == ["2", "3", "4", "5", "6", "7", "8", "1,009"]
    assert all(word in reason for word, reason in zip(words, reasons, strict=False))
    assert reasons_of(counted(("s", Row.ENRICHED, 1)), transactions=frozenset(), hybrid=frozenset()) == ()
    assert reasons_of([], transactions=frozenset(), hybrid=frozenset()) == ("the query log kept no statement",)


def ledger(samples: int) -> ServerTimeBreakdown:
    return ServerTimeBreakdown(
        samples=samples,
        overhead_ms=1.23,
        parts=dict.fromkeys(SERVER_TIME_KINDS, ServerTimeStats(mean_ms=3.0, p50_ms=2.0, p95_ms=9.0)),
    )


RESULT = EnrichmentResult(
    run_id="r\x1b[31m",
    status=Run.PARTIAL,
    counts=counts_of(counted(("s", Row.ENRICHED, 30), ("s", Row.NOT_FOUND, 10))),
    reasons=("10 are\x1b[2J not in the history",),
    ledger=ledger(30),
)


def test_the_document_has_counts_that_add_up_coverage_reason_and_ledger():
    document = enrichment_document(RESULT)

    assert (document["status"], document["coverage_percent"], document["total"]) == ("PARTIAL", 75.0, 40)
    parts = ("enriched", "not_found", "pending", "skipped", "failed")
    assert sum(document[name] for name in parts) == document["total"]
    assert document["reason"] == "10 are\x1b[2J not in the history"
    assert document["ledger_ms"] == {part: {"mean": 3.0, "p50": 2.0, "p95": 9.0} for part in SERVER_TIME_KINDS}
    assert (document["ledger_samples"], RESULT.overhead_ms) == (30, 1.23)
    json.dumps(document, allow_nan=False)


def test_statements_that_are_missing_in_the_query_log_are_not_covered():
    tally = counted(("s", Row.ENRICHED, 100))
    reasons = reasons_of(tally, transactions=frozenset(), hybrid=frozenset(), dropped=194)
    cut = EnrichmentResult(run_id="r", status=Run.ENRICHED, counts=counts_of(tally), dropped=194, reasons=reasons)
    document = enrichment_document(cut)
    known = [document[name] for name in ("total", "enriched", "dropped", "coverage_percent")]
    assert known == [294, 100, 194, pytest.approx(100 * 100 / 294, abs=0.001)]
    assert document["reason"].startswith("194 statements did not reach the query log")


def test_percentiles_that_the_samples_cannot_support_are_not_stated():
    few = EnrichmentResult(run_id="r", status=Run.ENRICHED, counts={Row.ENRICHED: 19}, ledger=ledger(19))
    one = EnrichmentResult(run_id="r", status=Run.ENRICHED, counts={Row.ENRICHED: 1}, ledger=ledger(1))

    assert enrichment_document(few)["ledger_ms"]["total"] == {"mean": 3.0, "p50": 2.0, "p95": None}
    assert enrichment_document(one)["ledger_ms"]["total"] == {"mean": 3.0, "p50": None, "p95": None}


def test_nothing_logged_has_no_coverage():
    nothing = EnrichmentResult(run_id="r", status=Run.SKIPPED, counts=counts_of([]))

    document = enrichment_document(nothing)

    assert (document["coverage_percent"], document["total"], document["ledger_ms"]) == (None, 0, {})
    assert nothing.overhead_ms is None
    assert "nothing was logged" in "\n".join(command._lines(nothing))


# --- the files of the run --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ['{"schema_ver', "[]", "{}", '{"client": 5}', "without totals"])
def test_a_damaged_summary_in_the_folder_is_written_again_from_the_stored_one(tmp_path, damage):
    stored = record()
    without = {key: part for key, part in stored.summary.items() if key != "totals"}
    (tmp_path / "summary.json").write_text(json.dumps(without) if damage == "without totals" else damage)

    assert rewrite_reports(tmp_path, stored, lambda summary: with_enrichment(summary, RESULT))

    written = json.loads((tmp_path / "summary.json").read_text())
    assert written == json.loads(json.dumps(with_enrichment(stored.summary, RESULT)))
    assert (tmp_path / "report.html").exists()


def test_a_summary_with_more_in_it_than_the_stored_one_keeps_it_and_no_folder_is_made(tmp_path):
    stored = record()
    told = {**stored.summary, "verdict": "failed", "baseline": {"verdict": "worse"}}
    (tmp_path / "summary.json").write_text(json.dumps(told))

    assert rewrite_reports(tmp_path, stored, lambda summary: with_enrichment(summary, RESULT))
    assert not rewrite_reports(tmp_path / "nowhere", stored, lambda summary: with_enrichment(summary, RESULT))

    written = json.loads((tmp_path / "summary.json").read_text())
    assert (written["verdict"], written["baseline"]) == ("failed", {"verdict": "worse"})
    assert written["enrichment"]["total"] == 40
    assert not (tmp_path / "nowhere").exists()


# --- the command -----------------------------------------------------------------------------------------------------


def test_the_text_has_progress_gaps_and_the_breakdown_of_times():
    text = "\n".join(command._lines(RESULT))

    assert "PARTIAL, 75.0 % of 40 logged statements" in text
    assert "ENRICHED 30" in text
    assert "NOT_FOUND 10" in text
    assert "queued provisioning" in text
    assert "the client added 1.23 ms" in text
    assert "\x1b" not in text


def test_an_unreachable_server_is_reported_in_text_and_json_with_exit_code_3(capsys, monkeypatch):
    monkeypatch.setenv("LOADGEN_EMBEDDED_ADDRESS", "127.0.0.1:1")

    code = main(["enrich", "latest", "-c", "embedded", "--format", "json"])

    out, errors = capsys.readouterr()
    assert code == json.loads(out)["error"]["exit_code"] == 3
    assert "error: " in errors
    assert "\nhint: " in errors


def test_a_run_must_be_named(capsys):
    assert main(["enrich", "--format", "json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["exit_code"] == 2
