"""What ./bin/test runs: the whole suite in parallel with both connectors, unless a part of it is named."""

from __future__ import annotations

import pytest

from tests.browser.chromium import program
from tests.run import commands, parse

EVERYTHING = [("5", True), ("4", True)]


def planned(*words: str) -> list[tuple[str, bool]]:
    """Each pytest run: its connector, and whether it is spread over processes."""
    runs = commands(*parse(words))
    return [("4" if "-connector4" in command[0] else "5", "--dist" in command) for _, command in runs]


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--slow"],
        ["-x"],
        ["-v", "-ra"],
        ["-rs"],
        ["--durations=20"],
        ["--durations", "20"],
        ["--maxfail=1", "--tb=short"],
        ["--junitxml", "README.md"],
        ["-p", "no:cacheprovider"],
        ["--jobs", "2", "-x"],
    ],
    ids=" ".join,
)
def test_options_narrow_nothing(words):
    assert planned(*words) == EVERYTHING


@pytest.mark.parametrize(
    "words",
    [["tests/unit"], ["tests/unit/test_units.py::test_x"], ["-k", "lease"], ["-klease"], ["-m", "live"], ["-x", "bin"]],
    ids=" ".join,
)
def test_a_named_part_runs_in_one_process_with_the_newer_connector(words):
    assert planned(*words) == [("5", False)]


@pytest.mark.parametrize(
    "words",
    [["-s"], ["-xs"], ["-sv"], ["--capture=no"], ["--pdb"], ["--trace"], ["-p", "no:xdist"], ["-pno:xdist"]],
    ids=" ".join,
)
def test_what_cannot_be_spread_runs_in_one_process(words):
    assert planned(*words) == [("5", False), ("4", False)]


def test_one_connector_is_tested_alone():
    assert planned("--connector", "5") == planned("--connector", "5", "-x") == [("5", True)]
    assert planned("--connector", "4") == planned("--connector", "4", "-x") == [("4", True)]
    assert planned("--connector", "4", "tests/contract/test_leases.py") == [("4", False)]
    assert planned("--connector", "5", "-s") == [("5", False)]


def test_with_connector_4_only_what_the_driver_matters_for_is_tested_by_default():
    for option in ("-x", "-s"):
        (_, first), (_, second) = commands(*parse([option]))

        assert (first[-1], second[-2:]) == (option, [option, "tests/contract"])
        assert "not any_driver" in second[second.index("-m", 3) + 1]


@pytest.mark.parametrize(("ci", "outcome"), [("", pytest.skip.Exception), ("true", pytest.fail.Exception)])
def test_without_a_browser_its_tests_are_skipped_and_fail_in_continuous_integration(ci, outcome, monkeypatch):
    monkeypatch.setenv("CI", ci)
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("LOADGEN_CHROMIUM", raising=False)

    with pytest.raises(outcome, match="needs Chromium"):
        program()
