"""The result of a run on a terminal: its width, its colours."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.report.run_text import TextLine, columns, summary_lines, wrapped
from loadgen.report.summary import RunFacts, summarize
from loadgen.rules.client_health import ClientHealth
from loadgen.rules.thresholds import Checked
from tests.unit.metrics_builders import statement
from tests.unit.orchestrator_builders import merged, tally
from tests.unit.report_builders import stages
from tests.unit.test_report_text import FOUND, STEP, text

LONG = "the client was the limit: its threads woke up 6.0 ms late (p99); the median statement took 26.1 ms"


@pytest.mark.parametrize("width", [60, 80, 100, 132])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    said = text(
        name="a_statement_with_a_rather_long_name",
        merged=merged({"a_statement_with_a_rather_long_name": tally((99_999.0,) * 200_000, failed=3)}),
        invalid=(LONG, LONG),
        checked=(Checked(check="a_statement_with_a_rather_long_name.p95 < 1ms", value=99_999.0, passed=False),),
        find_max=FOUND | {"reason": LONG, "steps": [STEP | {"reason": LONG}] * 3},
        environment={"warnings": [LONG]},
        client=ClientHealth(cpu_percent_of_core=99.5, wakeup_p99_ms=250.25),
        width=width,
    ).splitlines()

    assert max(map(columns, said)) <= width
    assert "  invalid: the client was the limit:" in "\n".join(said)


def test_what_was_cut_off_is_counted_beside_the_percentiles_that_have_it() -> None:
    rows = {"look": tally((10.0,) * 500, cancelled_ms=(900.0,) * 60), "pay": tally((10.0,) * 500)}

    said = text(merged=merged(rows)).splitlines()

    place = next(number for number, line in enumerate(said) if line.startswith("ms "))
    assert said[place].split()[:5] == ["ms", "ok", "cut", "off", "qps"]
    assert said[place + 1].split()[:3] == ["all", "1,000", "60"]
    assert said[place + 3].split()[:3] == ["pay", "500", "0"]
    assert said[place + 4].startswith("Cut off: timed out, gave up a lock, cancelled or skipped;")


def test_a_narrow_terminal_keeps_the_columns_that_matter() -> None:
    rows = {name: tally((10.0,) * 2_000) for name in ("a_name_of_thirty_characters_xx", "pay")}

    head = next(line for line in text(merged=merged(rows), width=80).splitlines() if line.startswith("ms "))

    assert head.split() == ["ms", "ok", "qps", "p50", "p90", "p95", "p99", "max", "avg"]


def test_a_name_is_cut_only_where_the_terminal_has_no_room_for_it() -> None:
    name = "point_lookup_by_primary_key_of_an_item_of_an_order"
    found: dict[str, Any] = {"name": name, "merged": merged({name: tally((10.0,) * 2_000)}), "stages": stages()}

    assert any(line.startswith(f"{name} ") for line in text(**found).splitlines())
    assert any(line.startswith(f"{name} ") for line in text(**found, width=160).splitlines())
    narrow = text(**found, width=80).splitlines()
    assert any(line.startswith("point_lookup_by_primary") and "… " in line for line in narrow)
    assert max(map(columns, narrow)) <= 80


@given(st.integers(10, 60))
def test_a_number_and_its_unit_stay_together(width: int) -> None:
    line = TextLine("invalid: up to 1 % from the limit 10 %, ≥ 30.5 ms of 3 s, 12 min late")

    pieces = [piece.text for piece in wrapped(line, width)]

    assert " ".join(piece.strip() for piece in pieces) == line.text
    assert not any(piece.split()[0].strip(",") in ("%", "ms", "s", "min", "30.5") for piece in pieces)


def test_a_line_is_cut_between_words_and_goes_on_below_its_text() -> None:
    line = TextLine("  invalid: one two three four", "invalid:", "yellow", indent=11)

    assert [(piece.text, piece.mark) for piece in wrapped(line, 18)] == [
        ("  invalid: one two", "invalid:"),
        ("           three", ""),
        ("           four", ""),
    ]
    assert [piece.text for piece in wrapped(TextLine("files: /a/path/that/is/longer", indent=8), 20)] == [
        "files:",
        "        /a/path/that/is/longer",
    ]


def test_good_and_bad_values_have_a_colour() -> None:
    checked = (
        Checked(check="p95 < 50ms", value=10.0, passed=True),
        Checked(check="p99 < 5ms", value=10.0, passed=False),
    )
    summary = summarize(
        RunFacts(
            run_id="r",
            scenario="s",
            status="COMPLETED",
            started_at=None,
            connections=1,
            statements=(statement("look"),),
            merged=merged({"look": tally((10.0,) * 2_000, failed=2)}),
            invalid=(),
            checked=checked,
            client=ClientHealth(cpu_percent_of_core=None, wakeup_p99_ms=None),
            workers=(),
        )
    )

    marks = {line.mark: line.colour for line in summary_lines(summary) if line.mark}

    assert marks == {"MISSED": "red", "ok": "green", "MISS": "red", "2 × look: SNOWFLAKE_ERROR 100051": "red"}


def test_a_lower_bound_and_the_default_threshold_are_marked() -> None:
    checked = (
        Checked(check="p95 < 50ms", value=30_000.0, passed=False, at_least=True),
        Checked(check="error_rate < 5%", value=0.98, passed=False, default=True),
    )
    said = text(checked=checked).splitlines()
    assert "  MISS p95 < 50ms: measured ≥ 30,000 ms" in said
    assert "  MISS error_rate < 5% (default): measured 98.00 %" in said
