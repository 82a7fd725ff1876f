"""The arithmetic behind ./bin/bench peers, and its message about a peer that cannot be installed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.perf import _peers
from tests.perf._peers import Missing, Recipe, install
from tests.perf.peers import BARE, LOADGEN, Added, Found, Turn, added_to, in_turn, rows_of, text_of


def test_no_peer_is_always_the_first_or_always_after_the_same_one() -> None:
    orders = [in_turn("abc", number) for number in range(6)]

    assert ["".join(order) for order in orders] == ["abc", "bca", "cab", "cba", "acb", "bac"]


def turns(*cpu_us: float, per_s: float) -> list[Turn]:
    return [Turn(per_s=per_s, cpu_us=one, server_share=0.5) for one in cpu_us]


def test_ratios_are_those_of_a_round_and_the_table_begins_with_the_cheapest() -> None:
    added = [Added(p50_ms=1.0, p99_ms=3.0, statements=500), Added(p50_ms=2.0, p99_ms=5.0, statements=400)]
    found = Found(
        turns={LOADGEN: turns(80, 150, 300, per_s=900.0), BARE: turns(100, 100, 250, per_s=600.0)},
        added={LOADGEN: added, BARE: added},
        missing={"go": "needs go"},
    )

    rows = rows_of(found)

    assert [row["peer"] for row in rows] == [BARE, LOADGEN, "go"]
    assert rows[1]["cpu_ratio"] == pytest.approx(1.2)  # the ratio of the medians would be 1.5
    assert rows[1]["cpu_ratio_range"] == pytest.approx([0.8, 1.5])
    assert rows[1]["per_s_ratio"] == pytest.approx(1.5)
    assert (rows[1]["added_p50_ms"], rows[1]["added_p99_ms"]) == (1.5, 4.0)
    assert text_of(rows).splitlines()[-1].endswith("not installed: needs go")


def test_the_latency_added_by_a_tool_is_its_percentile_less_that_of_the_server() -> None:
    server_ms = [float(ms) for ms in range(1, 1001)]

    found = added_to(server_ms, {"p50_ms": 502.0, "p99_ms": 995.5})

    assert (found.p50_ms, found.p99_ms, found.statements) == (2.0, 5.5, 1000)


def recipe(file: Path, *words: str, needs: tuple[str, ...] = ()) -> Recipe:
    commands = ((sys.executable, "-c", *words),)
    return Recipe(what="a peer", needs=needs, files={"a": file}, commands=commands, start=lambda place: [f"{place}/a"])


def test_a_peer_that_cannot_be_installed_has_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "source"
    file.write_text("x")
    for name, one in (
        ("absent", recipe(file, "", needs=("no-such-program",))),
        ("broken", recipe(file, "import sys; sys.exit('no such version')")),
    ):
        monkeypatch.setitem(_peers.RECIPES, name, one)

    assert install("absent", tmp_path) == Missing("needs no-such-program")
    assert install("broken", tmp_path) == Missing(f"{sys.executable} ended with 1: no such version")


def test_an_installed_peer_is_used_again_until_its_files_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "source"
    file.write_text("x")
    count = "import pathlib; p = pathlib.Path('../count'); p.open('a').write('i')"
    monkeypatch.setitem(_peers.RECIPES, "peer", recipe(file, count))

    def installed() -> str:
        assert install("peer", tmp_path) == [f"{tmp_path}/peer/a"]
        return (tmp_path / "count").read_text()

    assert (installed(), installed()) == ("i", "i")
    file.write_text("y")
    assert installed() == "ii"
