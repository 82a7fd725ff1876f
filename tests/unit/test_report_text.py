"""The summary for people: what it shows, and what foreign text cannot do to it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from loadgen.metrics.connections import LoginCounts, ReconnectReason
from loadgen.report.run_text import STATEMENTS_MAX, summary_lines, summary_text
from loadgen.report.summary import RunFacts, summarize
from loadgen.rules.client_health import ClientHealth
from loadgen.rules.thresholds import Checked
from loadgen.rules.validity import Delivered, Key, Portion
from tests.unit.metrics_builders import statement
from tests.unit.orchestrator_builders import merged, tally
from tests.unit.report_builders import stages

HOSTILE = "\x1b]0;owned\x07\x1b[2J\r\nPASSED  everything\u202e\u0000\x9b31m"


def text(
    *,
    name: str = "look",
    example: str = "it failed",
    where: str | None = None,
    width: int | None = None,
    report: str | None = None,
    **more: Any,
) -> str:
    known: dict[str, Any] = {
        "run_id": "20261115-0200-orders-7f3a9c",
        "scenario": "orders-mix",
        "status": "COMPLETED",
        "started_at": None,
        "connections": 32,
        "statements": (statement(name),),
        "merged": merged({name: tally((10.0,) * 2_000, failed=2)}, example=example),
        "invalid": (),
        "checked": (),
        "client": ClientHealth(cpu_percent_of_core=12.5, wakeup_p99_ms=0.25),
        "workers": (),
    }
    summary = summarize(RunFacts(**(known | more)))
    if width is not None or report is not None:
        return "\n".join(line.text for line in summary_lines(summary, where, report=report, width=width))
    return summary_text(summary, where)


def test_the_content_of_the_text() -> None:
    said = text(
        checked=(
            Checked(check="p95 < 50ms", value=10.0, passed=True),
            Checked(check="never.p95 < 1ms", value=None, passed=False),
        ),
        where="runs/20261115-0200-orders-7f3a9c",
    ).splitlines()
    assert said[0] == "MISSED  orders-mix  run 20261115-0200-orders-7f3a9c: not met: never.p95 < 1ms (no samples)"
    assert said[1] == "  ok   p95 < 50ms: measured 10.00 ms"
    assert said[2] == "  ○    never.p95 < 1ms: undecided: no samples"
    assert said[4] == "200.0 qps over 10.0 s, 32 connections, 0 workers"
    assert said[5] == "2,000 succeeded, 2 failed (0.10 %)"
    assert said[7].split() == ["ms", "ok", "failed", "qps", "p50", "p90", "p95", "p99", "p99.9", "max", "avg"]
    assert said[8].split() == ["all", "2,000", "2", "200.0", *["10.00"] * 7]
    assert said[11] == "  2 × look: SNOWFLAKE_ERROR 100051: it failed"
    assert said[13] == "client: busiest worker used 12 % of its core, wake-up delay 0.250 ms (p99)"
    assert said[14] == "  percentiles may be up to 0.250 ms too high because of it"
    assert said[15] == "files: runs/20261115-0200-orders-7f3a9c"
    assert [place for place, line in enumerate(said) if not line] == [3, 6, 10, 12]


def test_each_stage_has_a_line() -> None:
    said = text(stages=stages()).splitlines()
    head = next(place for place, line in enumerate(said) if line.startswith("stage "))
    assert said[head].split() == ["stage", "load", "measured", "qps", "error", "rate", "p50", "p95", "p99"]
    assert said[head + 1].split()[:9] == ["stage", "1", "8", "conns", "20.0", "s", "100.0", "0", "%"]
    assert said[head + 2].split()[:8] == ["stage", "2", "100.0/s", "4.0", "s", "500.0", "0.10", "%"]


def test_a_summary_of_an_earlier_version_has_neither_stages_nor_statements_of_errors() -> None:
    summary = {
        "scenario": "s", "run_id": "r", "verdict": "passed", "exit_reason": "done", "measured_seconds": 1.0,
        "connections": 1, "workers": 1, "validity": {"reasons": []}, "environment": {}, "thresholds": [],
        "latency_ms": {}, "lag_ms": {}, "statements": {}, "find_max": None,
        "totals": {"qps": 1.0, "succeeded": 1, "failed": 1, "skipped": 0, "cancelled": 0, "error_rate": 0.5},
        "errors": [{"category": "CHECK", "code": None, "count": 1, "example": "0 rows"}],
        "client": {"cpu_percent_of_core": None, "wakeup_p99_ms": None, "overhead_ms": None, "saturated": False},
    }  # fmt: skip
    assert "  1 × CHECK: 0 rows" in summary_text(summary).splitlines()


def test_delivered_load_and_logins_are_shown_where_something_is_missing() -> None:
    portions: dict[Key, Portion] = {("worker-0", None): Portion(planned=10_000, missing=15)}
    refusal = {"worker_id": "worker-0", "at": "…", "second": 12.5, "code": 390_144, "text": f"no {HOSTILE}"}
    quiet = {**LoginCounts(opened=8).counts(), "last_refused": []}
    logins = LoginCounts(opened=20, reopened={ReconnectReason.MAX_AGE: 10, ReconnectReason.SESSION_LOST: 2}, refused=3)
    lost = {**refusal, "at": ".", "second": 3.0, "code": None, "text": "gone", "reason": "session_lost", "count": 2}
    busy = {**logins.counts(), "last_refused": [refusal], "last_lost": [lost]}

    said = text(delivered=Delivered(portions=portions), logins=quiet).splitlines()
    assert said[4] == "delivered load 99.8 %"
    assert not [line for line in said if line.startswith("connections:")]

    said = text(delivered=Delivered(portions=portions), logins=busy).splitlines()
    assert said[5] == "connections: 10 replaced as planned (10 max age), 2 lost (2 session lost), 3 logins refused"
    assert said[6] == "  at 3.0 s worker-0: 2 connections lost (session lost): gone"
    assert said[7].startswith("  at 12.5 s worker-0: 1 login refused: 390144: no ")
    assert "\x1b" not in said[7]


def test_arrivals_that_found_every_connection_busy_are_shown() -> None:
    portions: dict[Key, Portion] = {("worker-0", None): Portion(planned=1_000, overload=250)}

    said = text(delivered=Delivered(portions=portions, open_loop=True)).splitlines()

    assert "delivered load 75.0 %; 250 arrivals found all connections busy" in said


def test_observations_of_the_whole_run_follow_the_verdict() -> None:
    said = text(environment={"warnings": ["the warehouse was shared", HOSTILE]}).splitlines()

    assert said[1] == "  warning: the warehouse was shared"
    assert said[2].startswith("  warning: ")
    assert "\x1b" not in said[2]


def test_a_threshold_that_was_not_measured_is_neither_met_nor_missed() -> None:
    unknown = Checked(check="longest_stall < 1s", value=None, passed=False, undecided=True, unmeasured="why")

    assert "  ○    longest_stall < 1s: undecided: not measured" in text(
        checked=(unknown,), invalid=(unknown.unmeasured,)
    )


def test_a_threshold_with_too_few_samples_is_neither_met_nor_missed() -> None:
    few = Checked(check="p99 < 50ms", value=None, passed=False, undecided=True, too_few="too few samples for p99 …")
    at_most = Checked(check="p999 < 1s", value=40.0, passed=True, at_most=True)

    lines = text(checked=(few, at_most), invalid=(few.too_few,))

    assert "○    p99 < 50ms: undecided: too few samples" in lines
    assert "ok   p999 < 1s: measured ≤ 40.00 ms" in lines


def test_a_threshold_that_only_a_bound_is_known_for_is_undecided_with_its_reason() -> None:
    bound = Checked(check="p99 < 300ms", value=272.5, passed=False, at_least=True, undecided=True)
    missed = Checked(check="p95 < 200ms", value=272.5, passed=False, at_least=True)

    lines = text(checked=(bound, missed)).splitlines()

    assert "  ○    p99 < 300ms: undecided: only a lower bound is known (≥ 272.5 ms)" in lines
    assert "  MISS p95 < 200ms: measured ≥ 272.5 ms" in lines


def test_a_run_that_measured_nothing_has_neither_a_rate_nor_missed_thresholds() -> None:
    none = Checked(check="p99 < 1s", value=None, passed=False)
    nothing = merged({"look": tally(())}, seconds=0.0)

    lines = text(checked=(none,), merged=nothing, status="CANCELLED", reason="stopped by the user").splitlines()

    assert "  ○    p99 < 1s: undecided: no samples" in lines
    assert "nothing was measured, 32 connections, 0 workers" in lines


def test_a_threshold_with_a_window_names_it_and_the_worst_span() -> None:
    long_name = "x" * 200
    lines = text(
        checked=(
            Checked(check="p99 < 100ms", value=230.2, passed=False, window_s=10.0),
            Checked(check="qps > 500", value=600.0, passed=True, window_s=3_600.0),
            Checked(check="p50 < 1s", value=None, passed=False, undecided=True, too_few="few", window_s=2.0),
            Checked(check=f"{long_name}.p50 < 1s", value=1.0, passed=True, window_s=5.0),
        )
    )

    assert "not met: p99 < 100ms in every 10 s, p50 < 1s in every 2 s (too few samples)" in lines
    assert "MISS p99 < 100ms in every 10 s: worst 230.2 ms" in lines
    assert "ok   qps > 500 in every 3600 s: worst 600.0/s" in lines
    assert "○    p50 < 1s in every 2 s: undecided: too few samples" in lines
    assert f"ok   {'x' * 79}… in every 5 s: worst 1.00 ms" in lines


def test_thresholds_are_in_the_unit_of_their_limit() -> None:
    checked = (
        Checked(check="error_rate < 1%", value=0.0213, passed=False),
        Checked(check="qps > 500", value=1512.34, passed=True),
        Checked(check="errors < 10", value=2.0, passed=True),
        Checked(check="look.p99 < 2s", value=1234.5, passed=True),
    )
    said = text(checked=checked).splitlines()
    assert [line.partition(": ")[2] for line in said[1:5]] == [
        "measured 2.13 %",
        "measured 1,512.3/s",
        "measured 2",
        "measured 1,234 ms",
    ]


def test_an_open_loop_shows_offered_and_delivered_arrivals() -> None:
    counted = tally((10.0,) * 90, failed=5, skipped=15, cancelled_ms=(1.0,) * 10)
    said = text(merged=merged({"look": counted}), open_loop=True).splitlines()
    assert said[2] == "9.0 qps over 10.0 s, 32 connections, 0 workers"
    assert said[3] == "120 offered (12.0/s): 95 delivered (9.5/s), 15 skipped, 10 cancelled"
    assert said[4] == "90 succeeded, 5 failed (5.26 %)"
    (lag,) = [line.split() for line in said if line.startswith("(lag)")]
    assert lag[1:3] == ["–", "–"]


STEP = {"step": 1, "target": 4, "outcome": "STABLE", "reason": "held", "seconds": 5.0, "qps": 175.0, "p95_ms": 25.5,
        "failed": 0, "low_confidence": False}  # fmt: skip
FOUND = {"max_concurrency": 4, "result": "TRUE_MAX", "reason": "4 connections held; 8 did not", "failed_at": 8,
         "failed_outcome": "DEGRADED", "qps": 175.0, "p95_ms": 25.5, "confidence": "high",
         "steps": [STEP, STEP | {"step": 2, "target": 1_008, "outcome": "DEGRADED", "reason": "slow", "p95_ms": None}],
}  # fmt: skip


def test_a_search_shows_its_answer_and_its_steps() -> None:
    said = text(find_max=FOUND).splitlines()
    start = said.index("find-max: 4 connections held; 8 did not")
    assert said[start + 1] == "at 4 connections: 175.0 qps, p95 25.50 ms, confidence high"
    assert [line.split() for line in said[start + 2 : start + 5]] == [
        ["step", "conns", "qps", "p95", "ms", "failed", "outcome"],
        ["1", "4", "175.0", "25.50", "0", "STABLE:", "held"],
        ["2", "1,008", "175.0", "–", "0", "DEGRADED:", "slow"],
    ]
    assert [
        line.index(word) for line, word in zip(said[start + 2 : start + 5], ("out", "STA", "DEG"), strict=True)
    ] == [said[start + 2].index("out")] * 3


def test_a_lower_bound_of_the_maximum_is_in_the_first_line_and_no_reason_of_a_step_is_cut() -> None:
    why = f"the client was the limit: {'worker-1 was paused; ' * 15}end"
    bounded = FOUND | {"result": "BOUNDED_MAX", "confidence": "low", "steps": [STEP | {"reason": why}]}

    first, *others = text(find_max=bounded).splitlines()

    assert first.endswith(": BOUNDED_MAX, at least 4 connections, confidence low; done")
    assert any(line.endswith(f"STABLE: {why}") for line in others)
    assert "TRUE_MAX, 4 connections, confidence high" in text(find_max=FOUND).splitlines()[0]


def test_a_search_without_an_answer_has_a_reason() -> None:
    none = FOUND | {"max_concurrency": None, "result": None, "reason": "not even 4 held", "qps": None, "steps": []}
    said = text(find_max=none)
    assert "\n\nfind-max: not even 4 held\n\n" in said


def test_long_lists_are_cut_and_marked() -> None:
    many = {f"s{number}": tally((10.0,)) for number in range(STATEMENTS_MAX + 7)}
    said = text(merged=merged(many)).splitlines()
    assert "7 more statements: see the report" in said
    assert sum(line.startswith("s") for line in said) == STATEMENTS_MAX


def test_reasons_of_an_invalid_run_come_right_after_the_verdict() -> None:
    said = text(invalid=("too few samples", "worker lost: worker-1")).splitlines()
    assert said[0] == "INVALID  orders-mix  run 20261115-0200-orders-7f3a9c"
    assert said[1:3] == ["  invalid: too few samples", "  invalid: worker lost: worker-1"]


def test_unknown_values_are_dashes_or_left_out() -> None:
    said = text(
        merged=merged({"look": tally((10.0,) * 5)}), client=ClientHealth(cpu_percent_of_core=None, wakeup_p99_ms=None)
    )
    assert "client" not in said
    row = next(line for line in said.splitlines() if line.startswith("look"))
    assert row.split() == ["look", "5", "0.5", "10.00", "–", "–", "–", "–", "10.00", "10.00"]


def test_lower_bounds_are_shown_as_such() -> None:
    ms = tuple(float(value) for value in range(1, 91))
    said = text(merged=merged({"look": tally(ms, cancelled_ms=(95.0,) * 10)}))
    row = next(line for line in said.splitlines() if line.startswith("look"))
    assert "≥" in row
    assert "10 cancelled" in said


@pytest.mark.parametrize(
    "known",
    [
        {"scenario": HOSTILE},
        {"name": HOSTILE},
        {"example": HOSTILE},
        {"status": "FAILED", "reason": HOSTILE},
        {"invalid": (HOSTILE,)},
        {"checked": (Checked(check=HOSTILE, value=1.0, passed=True),)},
        {"find_max": FOUND | {"reason": HOSTILE, "confidence": HOSTILE}},
        {"find_max": FOUND | {"steps": [STEP | {"outcome": HOSTILE, "reason": HOSTILE}] * 2}},
    ],
)
def test_foreign_text_neither_moves_the_cursor_nor_starts_a_line(known: dict[str, Any]) -> None:
    said = text(**known)
    assert not set(said) & set("\x1b\x07\x00\r\u202e\x9b")
    plain = text(**{key: _harmless(value) for key, value in known.items()})
    assert len(said.splitlines()) == len(plain.splitlines())
    assert not any(line.startswith("PASSED  everything") for line in said.splitlines())


def _harmless(value: Any) -> Any:
    if isinstance(value, dict):
        return FOUND
    if isinstance(value, tuple):
        return tuple(Checked(check="x", value=1.0, passed=True) if isinstance(one, Checked) else "x" for one in value)
    return value if value == "FAILED" else "x"


@given(st.text(max_size=300), st.text(max_size=2_000))
def test_no_text_breaks_it(name: str, example: str) -> None:
    said = text(name=name or "x", example=example)
    assert len(said.split("\n")) == 13
    assert all(len(line) <= 200 for line in said.split("\n"))


def test_wide_characters_do_not_move_the_columns() -> None:
    said = text(merged=merged({"snake 🐍 蛇": tally((1.0,) * 20), "e\u0301": tally((1.0,) * 20)})).splitlines()
    table = [line for line in said if line.startswith(("ms ", "all ", "snake ", "e\u0301 "))]
    assert len(table) == 4
    assert len({cell_len(line) for line in table}) == 1


@pytest.mark.parametrize("ms", [0.001, 9.99, 250.0, 99_999.0, 3_600_000.0])
def test_columns_stay_under_their_heads(ms: float) -> None:
    said = text(merged=merged({"look": tally((ms,) * 2_000), "pay": tally((1.0,) * 2_000)})).splitlines()
    table = [line for line in said if line.startswith(("ms ", "all ", "look ", "pay "))]
    assert len({len(line) for line in table}) == 1
    assert ms > 1e5 or len(table[0]) <= 100


def test_the_page_to_open_is_named() -> None:
    said = text(where="runs/r", report="runs/r/report.html").splitlines()

    assert said[-2:] == ["report: runs/r/report.html", "files: runs/r"]
