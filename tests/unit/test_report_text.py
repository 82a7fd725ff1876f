"""The summary for people: what it shows, and what foreign text cannot do to it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.report.summary import RunFacts, summarize
from loadgen.report.text import summary_text
from loadgen.report.verdict import Checked, ClientHealth
from tests.unit.metrics_builders import statement
from tests.unit.orchestrator_builders import merged, tally

HOSTILE = "\x1b]0;owned\x07\x1b[2J\r\nPASSED  everything\u202e\u0000\x9b31m"


def text(*, name: str = "look", example: str = "it failed", where: str | None = None, **more: Any) -> str:
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
    return summary_text(summarize(RunFacts(**(known | more))), where)


def test_what_it_says() -> None:
    said = text(
        checked=(
            Checked(check="p95 < 50ms", value=10.0, passed=True),
            Checked(check="never.p95 < 1ms", value=None, passed=False),
        ),
        where="runs/20261115-0200-orders-7f3a9c",
    ).splitlines()
    assert said[0] == "FAILED  orders-mix  run 20261115-0200-orders-7f3a9c: not met: never.p95 < 1ms"
    assert said[1] == "  ok   p95 < 50ms (measured 10)"
    assert said[2] == "  MISS never.p95 < 1ms (nothing measured)"
    assert said[3] == "200.0 statements/s over 10.0 s, 32 connections, 0 workers: 2,000 succeeded, 2 failed"
    assert said[4].split() == ["ms", "count", "per", "s", "p50", "p90", "p95", "p99", "p999", "max", "avg"]
    assert said[5].split() == ["all", "2,000", "200.0", *["10.00"] * 7]
    assert said[7] == "  2 × SNOWFLAKE_ERROR 100051: it failed"
    assert said[8] == "client: busiest worker used 12 % of its core, threads woke 0.2 ms late (p99)"
    assert said[9] == "files: runs/20261115-0200-orders-7f3a9c"


def test_reasons_of_an_invalid_run_come_right_after_the_verdict() -> None:
    said = text(invalid=("too few samples", "worker lost: worker-1")).splitlines()
    assert said[0].startswith("INVALID")
    assert said[1:3] == ["  invalid: too few samples", "  invalid: worker lost: worker-1"]


def test_what_is_not_known_is_not_made_up() -> None:
    said = text(
        merged=merged({"look": tally((10.0,) * 5)}), client=ClientHealth(cpu_percent_of_core=None, wakeup_p99_ms=None)
    )
    assert "client" not in said
    row = next(line for line in said.splitlines() if line.startswith("look"))
    assert row.split() == ["look", "5", "0.5", "10.00", "-", "-", "-", "-", "10.00", "10.00"]


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
    ],
)
def test_foreign_text_neither_moves_the_cursor_nor_writes_a_line_of_its_own(known: dict[str, Any]) -> None:
    said = text(**known)
    assert not set(said) & set("\x1b\x07\x00\r\u202e\x9b")
    plain = text(**{key: _harmless(value) for key, value in known.items()})
    assert len(said.splitlines()) == len(plain.splitlines())
    assert not any(line.startswith("PASSED  everything") for line in said.splitlines())


def _harmless(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(Checked(check="x", value=1.0, passed=True) if isinstance(one, Checked) else "x" for one in value)
    return value if value == "FAILED" else "x"


@given(st.text(max_size=300), st.text(max_size=2_000))
def test_no_text_breaks_it(name: str, example: str) -> None:
    said = text(name=name or "x", example=example)
    assert len(said.split("\n")) == 7
    assert all(len(line) <= 200 for line in said.split("\n"))


@pytest.mark.parametrize("ms", [0.001, 9.99, 250.0, 99_999.0, 3_600_000.0])
def test_columns_stay_under_their_heads(ms: float) -> None:
    said = text(merged=merged({"look": tally((ms,) * 2_000), "pay": tally((1.0,) * 2_000)})).splitlines()
    table = [line for line in said if line.startswith(("ms ", "all ", "look ", "pay "))]
    assert len({len(line) for line in table}) == 1
    assert ms > 1e5 or len(table[0]) <= 100
