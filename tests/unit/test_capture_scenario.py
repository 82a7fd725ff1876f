"""A scenario derived from a capture: it can be read, and its parameters are drawn as they were recorded."""

import random

import pytest

from loadgen.capture.derive import fitted
from loadgen.cli.main import main
from loadgen.model.workload import Choice, PoolValue, Uniform
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


def test_the_first_generator_that_fits_is_taken_and_the_comment_says_how_well():
    draw = random.Random(7)
    ranks = list(range(1, 201))
    skewed = [f"k{rank}" for rank in draw.choices(ranks, [rank**-0.8 for rank in ranks], k=3_000)]
    lumpy = [draw.choice((draw.randint(1, 3), draw.randint(10_000, 10**9))) for _ in range(500)]

    cases = {
        "literal": fitted([5] * 10, "p"),
        "sequence": fitted(list(range(7, 90)), "p"),
        "choice": fitted(["a", "b", "a"], "p"),
        "uniform": fitted([draw.randint(1, 500) for _ in range(400)], "p"),
        "zipfian": fitted(list(skewed), "p"),
        "order": fitted(list(lumpy), "p"),
    }

    assert cases["literal"].generator == "{literal: 5}"
    assert cases["sequence"].generator == "{sequence: {start: 7}}"
    assert cases["choice"].generator == '{choice: {"a": 2, "b": 1}}'
    assert cases["uniform"].generator.startswith("{uniform: {min: ")
    assert "uniform fits: distance 0.0" in cases["uniform"].comment
    assert "distribution: zipfian, theta: 0.8" in cases["zipfian"].generator
    assert "uniform does not fit" in cases["order"].comment
    assert cases["order"].pool == ("p", lumpy)


def test_what_is_no_capture_and_what_exists_is_refused(tmp_path, capsys):
    captured(tmp_path / "captured", [row("SELECT 1 FROM t WHERE a = 'x'")])
    words = ["capture", "--scenario", str(tmp_path / "captured"), "--out", str(tmp_path / "derived")]

    codes = [main(words), main(words), main(["capture", "--scenario", str(tmp_path), "--out", str(tmp_path / "d")])]

    said = capsys.readouterr().err
    assert codes == [0, 2, 2]
    assert "exists already" in said
    assert "is no capture" in said
