"""report.md: a comment with everything important, and always well-formed."""

from __future__ import annotations

from loadgen.report import formatting
from loadgen.report.exports import report_markdown
from loadgen.rules.thresholds import Checked
from tests.unit.report_builders import hostile, record, stages

LIMIT = 60_000  # characters; a comment may have 65,536


def test_verdict_thresholds_totals_and_times_are_there() -> None:
    run = record()
    text = report_markdown(run)
    latency = run.summary["latency_ms"]
    assert text.startswith("## ✅ `orders-mix`: PASSED\n")
    assert "| ✅ met | `p95 < 50ms` | 29.12 ms |" in text
    assert "| **400.0** | 4,004 | 4,000 | 4 | 0 | 0 | 0.10 % |" in text
    assert " | ".join(formatting.time_of(latency, name) for name in formatting.TIMES) in text
    assert "| `look` | 2,000 | 2 | 200.0 |" in text


def test_warnings_are_listed_where_there_are_any() -> None:
    warned = report_markdown(record(facts={"environment": {"warnings": ["connections were logging in"]}}))

    assert "**Warnings:**\n\n- `connections were logging in`\n" in warned
    assert "Warnings" not in report_markdown(record(facts={"environment": {"warnings": []}}))


def test_a_threshold_with_a_window_names_it_and_the_worst_span() -> None:
    sliding = Checked(check="p99 < 100ms", value=230.2, passed=False, window_s=10.0)
    lines = report_markdown(record(facts={"checked": (sliding,)})).splitlines()

    assert "| ❌ missed | `p99 < 100ms in every 10 s` | worst 230.2 ms |" in lines


def test_a_missed_threshold_and_an_invalid_run_cannot_be_overlooked() -> None:
    missed = report_markdown(record(facts={"checked": (Checked(check="p99 < 1ms", value=29.0, passed=False),)}))
    assert missed.startswith("## ❌ `orders-mix`: MISSED\n")
    assert "| ❌ missed | `p99 < 1ms` | 29.00 ms |" in missed
    invalid = report_markdown(record(facts={"invalid": ("the client was the limit",)}))
    assert invalid.startswith("## ⚠️ `orders-mix`: INVALID\n")
    assert "- `the client was the limit`" in invalid


def test_percentiles_that_are_not_supported_are_dashes() -> None:
    run = record()
    run.summary["latency_ms"]["p999"] = None
    row = next(line for line in report_markdown(run).splitlines() if line.startswith("| **all**"))
    assert row.split(" | ")[8] == "–"


def test_stages_and_the_statements_of_errors_are_there() -> None:
    text = report_markdown(record(facts={"stages": stages()}))
    assert "| `stage 1` | 8 connections | 10.0 s to 30.0 s | 2,000 | 100.0 | 0 % |" in text
    assert "| `stage 2` | 100.0/s | 30.0 s to 34.0 s | 2,000 | 500.0 | 0.10 % |" in text
    assert "| 2 | `look` | `SNOWFLAKE_ERROR` | 100051 | `it failed` |" in text


def test_every_table_keeps_its_shape_with_any_texts() -> None:
    for text in (report_markdown(hostile()), report_markdown(record())):
        blocks = [block.splitlines() for block in text.split("\n\n")]
        for block in blocks:
            if block[0].startswith("|"):
                assert len({line.count("|") for line in block}) == 1, block


def test_it_fits_into_a_comment() -> None:
    names = tuple(f"{number:03d} {'n' * 200}" for number in range(300))
    assert len(report_markdown(record(names))) < LIMIT
    assert len(report_markdown(hostile())) < LIMIT


def test_a_search_for_the_maximum_gives_its_answer() -> None:
    found = {"max_concurrency": 19, "result": "TRUE_MAX", "reason": "20 did not hold", "qps": 769.274, "p95_ms": 27.6}
    assert "**19 connections** held, the maximum" in report_markdown(record(facts={"find_max": found}))
    nothing = {**found, "max_concurrency": None}
    assert "**No number of connections held:**" in report_markdown(record(facts={"find_max": nothing}))
