"""A scenario derived from a capture: it can be read, and its parameters are drawn as they were recorded."""

import random
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace

import pytest

from loadgen.capture import derive as derive_module
from loadgen.capture.derive import derive, fitted, read_manifest
from loadgen.cli.main import main
from loadgen.errors import UsageError
from loadgen.model.capture import RecordedStatement, StatementRole
from loadgen.model.workload import Choice, PoolValue, Sequence, Uniform
from loadgen.scenario.model import LoadMode
from loadgen.scenario.read import read_scenario
from tests.unit.test_capture import captured, row


def test_a_derived_scenario_can_be_read_and_has_the_recorded_mix(tmp_path):
    draw = random.Random(5)
    rows = [
        row(
            f"SELECT a FROM t WHERE b = {draw.randint(1, 1000)} AND c = '{draw.choice('xy')}' LIMIT 5",
            number / 10,
            session=number % 4,
        )
        for number in range(400)
    ]
    rows += [row("SELECT z FROM u WHERE name = ?", number, binds=(("TEXT", f"n{number}"),)) for number in range(40)]
    rows += [row("DELETE FROM t", 1)]
    captured(tmp_path / "captured", rows, keep_values=True)

    code = main(["capture", "--scenario", str(tmp_path / "captured"), "--out", str(tmp_path / "derived")])

    scenario = read_scenario(tmp_path / "derived" / "scenario.yaml", environ={}).scenario
    first, second = scenario.workload.statements
    assert code == 0
    assert scenario.load.mode is LoadMode.RATE
    assert len(scenario.load.stages) == 3
    assert sum((stage.rate_per_second or 0.0) * stage.duration_s for stage in scenario.load.stages) == pytest.approx(
        440, rel=0.01
    )
    assert (first.weight, second.weight) == (400, 40)
    assert first.queries[0].sql == "SELECT a FROM t WHERE b = ? AND c = ? LIMIT 5"
    assert isinstance(first.queries[0].parameters[0], Uniform)
    assert isinstance(first.queries[0].parameters[1], Choice)
    assert isinstance(second.queries[0].parameters[0], PoolValue)


def test_the_first_generator_that_fits_is_used_and_the_comment_gives_its_fit():
    draw = random.Random(7)
    ranks = list(range(1, 201))
    skewed = [f"k{rank}" for rank in draw.choices(ranks, [rank**-0.8 for rank in ranks], k=3_000)]
    lumpy = [draw.choice((draw.randint(1, 3), draw.randint(10_000, 10**9))) for _ in range(500)]

    cases = {
        "literal": fitted([5] * 10, "p"),
        "sequence": fitted(list(range(7, 90)), "p"),
        "shared sequence": fitted([8, 7, 10, 9, *range(11, 60)], "p", [1, 2, 1, 2, *([1, 2] * 25)[:49]]),
        "with gaps": fitted([number for number in range(200) if number % 40], "p"),
        "down": fitted(list(range(90, 7, -1)), "p"),
        "too sparse": fitted(list(range(0, 900, 10)), "p"),
        "choice": fitted(["a", "b", "a"], "p"),
        "uniform": fitted([draw.randint(1, 500) for _ in range(400)], "p"),
        "zipfian": fitted(list(skewed), "p"),
        "order": fitted(list(lumpy), "p"),
    }

    assert cases["literal"].generator == "{literal: 5}"
    assert cases["sequence"].generator == "{sequence: {start: 7}}"
    assert cases["shared sequence"].generator == "{sequence: {start: 7}}"
    assert "53 of the 53 numbers from 7 on, each once, increasing in each session" in cases["shared sequence"].comment
    assert cases["with gaps"].generator == "{sequence: {start: 1}}"
    assert "sequence" not in cases["down"].generator
    assert "sequence" not in cases["too sparse"].generator
    assert cases["choice"].generator == '{choice: {"a": 2, "b": 1}}'
    assert cases["uniform"].generator.startswith("{uniform: {min: ")
    assert "uniform fits: distance 0.0" in cases["uniform"].comment
    assert "distribution: zipfian, theta: 0.8" in cases["zipfian"].generator
    assert "uniform does not fit" in cases["order"].comment
    assert cases["order"].pool == ("p", lumpy)


def test_think_time_is_derived_from_the_pauses_of_sessions(tmp_path):
    rows = [
        row(f"SELECT a FROM t WHERE b = {number}", number // 4 * 0.25 + number % 4 / 100, session=number % 4, ms=50.0)
        for number in range(400)
    ]
    captured(tmp_path / "captured", [*rows, row("DELETE FROM t", 1, session=2)], keep_values=True)

    code = main(["capture", "--scenario", str(tmp_path / "captured"), "--out", str(tmp_path / "derived")])

    scenario = read_scenario(tmp_path / "derived" / "sessions.yaml", environ={}).scenario
    assert code == 0
    assert scenario.load.mode is LoadMode.CONCURRENCY
    assert scenario.workload.think_time_s == pytest.approx(0.2)
    assert scenario.load.connections == 4  # 16 statements per second × (200 ms + 50 ms)
    assert isinstance(scenario.workload.statements[0].queries[0].parameters[0], Sequence)


def test_memory_of_a_derived_scenario_does_not_grow_with_the_capture(tmp_path, monkeypatch):
    monkeypatch.setattr(derive_module, "SESSIONS_MAX", 100)
    monkeypatch.setattr(derive_module, "PAUSES_MAX", 50)
    monkeypatch.setattr(derive_module, "VALUES_MAX", 100)
    manifest = captured(tmp_path / "captured", [row("SELECT a FROM t WHERE b = 5", 0), row(at_s=9_000)])
    template = next(one for one in manifest.templates if "b = " in one.sql)
    sent = 100_000
    manifest = replace(manifest, templates=(replace(template, count=sent),))

    def statements(count: int) -> Iterator[RecordedStatement]:
        for number in range(count):
            yield RecordedStatement(
                session=number // 4, at_ms=number * 90.0, role=StatementRole.READ, template=template.id,
                sql=f"SELECT a FROM t WHERE b = {number}", ms=10.0,
            )  # fmt: skip

    def peak_bytes(count: int) -> int:
        tracemalloc.start()
        derive(manifest, statements(count), "big")
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    peak_bytes(10)  # imports and caches
    few, many = peak_bytes(500), peak_bytes(5_000)
    assert many < 2 * few


def test_what_is_no_capture_and_what_exists_is_refused(tmp_path, capsys):
    captured(tmp_path / "captured", [row("SELECT 1 FROM t WHERE a = 'x'")])
    words = ["capture", "--scenario", str(tmp_path / "captured"), "--out", str(tmp_path / "derived")]

    codes = [main(words), main(words), main(["capture", "--scenario", str(tmp_path), "--out", str(tmp_path / "d")])]

    said = capsys.readouterr().err
    assert codes == [0, 2, 2]
    assert "already exists" in said
    assert "is not a capture" in said


def test_a_capture_that_does_not_exist_cannot_be_read(tmp_path):
    with pytest.raises(UsageError, match=r"nope cannot be read: No such file or directory$"):
        read_manifest(tmp_path / "nope")
