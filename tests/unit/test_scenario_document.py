"""Reading YAML: every value knows its place, YAML's surprises are refused, and nothing can exhaust the machine."""

import itertools
import sys
import tracemalloc

import pytest

from loadgen.scenario.document import Problem, ScenarioProblems, SourcePosition, resolve
from loadgen.scenario.read import BYTES_MAX, compose, read_scenario, read_text

STEPS_MAX = 10_000_000  # calls and returns: a second or so of work; an alias bomb that goes off has 9 to the 30th


def alias_bomb(levels):
    return "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, levels))


def problems(text):
    return [str(problem) for problem in compose(text, "f.yaml").problems]


def test_every_value_and_every_key_knows_its_place():
    document = compose("load:\n  stages:\n    - {duration: 5s}\n  # nothing\n  connections:   8\n", "f.yaml")

    duration = document.entry(("load", "stages", 0, "duration"))
    connections = document.entry(("load", "connections"))

    assert duration is not None
    assert connections is not None
    assert (duration.mark, duration.node.mark) == (SourcePosition(3, 8), SourcePosition(3, 18))
    assert (connections.mark, connections.node.mark) == (SourcePosition(5, 3), SourcePosition(5, 18))
    assert connections.node.value == 8


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("no", "no"),
        ("on", "on"),
        ("10:30", "10:30"),
        ("0644", 644),
        ("0o17", 15),
        ("0x1F", 31),
        ("1e3", 1000.0),
        ("-1.5", -1.5),
        ("~", None),
        ("", None),
        ("True", True),
        ("1_000", "1_000"),
        ("1.2.3", "1.2.3"),
    ],
)
def test_unquoted_texts_have_their_meaning_in_yaml_1_2(text, value):
    assert resolve(text) == value
    assert type(resolve(text)) is type(value)


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("a: 1\na: 2", "2:1", "given twice, first on line 1"),
        ("a: &x 1", "1:4", "anchors"),
        ("a: *x", "1:4", "aliases"),
        ("<<: {a: 1}", "1:1", "merge keys"),
        ("a: !!str 1", "1:4", "tags"),
        ("a: !odd {}", "1:4", "tags"),
        ("1: a", "1:1", "is not a text"),
        ("true: a", "1:1", "is not a text"),
        ("? [a]\n: b", "1:3", "a key must be a text"),
        ("a: 2026-01-01", "1:4", "a date must be quoted"),
        ("a: .inf", "1:4", "infinity"),
        ("a: " + "9" * 50, "1:4", "digits"),
        ("a: 1\n---\nb: 2", "2:1", "more than one document"),
        ("%YAML 1.1\n---\na: 1", "2:1", "directive"),
        ("a:\n\t- b", "2:1", "spaces, never with tabs"),
        ("a: b: c", "1:5", "quote a text that contains"),
        ("cron: */5 * * * *", "1:7", "quote a text with a * first"),
        ('a: "x', "1:6", "a quote is not closed"),
        ('a: "\\U99999999"', "1:1", "cannot be read as YAML"),
        ("a: x\x07y", "1:5", "control character"),
    ],
)
def test_what_a_scenario_may_not_hold_is_refused_where_it_stands(text, place, words):
    found = problems(text)

    assert any(f"f.yaml:{place}" in problem and words in problem for problem in found), found


def test_reading_goes_on_behind_a_problem():
    found = problems("a: &x 1\nb: *x\na: 3\nc: 2026-01-01\n")

    assert [problem.split(" ")[0].rstrip(":") for problem in found] == [
        "f.yaml:1:4",
        "f.yaml:2:4",
        "f.yaml:3:1",
        "f.yaml:4:4",
    ]


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "null"])
def test_an_empty_file_has_a_hint_how_to_begin(text):
    assert problems(text) == ["f.yaml: is empty; `loadgen init` writes a scenario to start from"]


def test_json_is_yaml_also_for_characters_in_two_halves():
    entry = compose('{"a": "\\ud83d\\ude00"}', "f.yaml").entry(("a",))

    assert entry is not None
    assert entry.node.value == "😀"


def test_an_unreadable_file_is_reported_with_the_reason(tmp_path):
    (tmp_path / "latin.yaml").write_bytes(b"version: 1\nname: caf\xe9\n")
    (tmp_path / "bom.yaml").write_bytes(b"\xef\xbb\xbfversion: 1\n")

    latin, missing = read_text(tmp_path / "latin.yaml"), read_text(tmp_path / "none.yaml")

    assert isinstance(latin, Problem)
    assert "is not UTF-8 text: line 2 has the byte 0xe9" in str(latin)
    assert isinstance(missing, Problem)
    assert "No such file" in str(missing)
    assert "Is a directory; name a scenario in it" in str(read_text(tmp_path))
    assert isinstance(read_text(tmp_path), Problem)
    assert read_text(tmp_path / "bom.yaml") == "version: 1\n"


def test_the_hint_of_a_file_that_cannot_be_read_names_no_lines(tmp_path):
    with pytest.raises(ScenarioProblems) as missing:
        read_scenario(tmp_path / "none.yaml", environ={})

    assert str(missing.value) == f"{tmp_path}/none.yaml cannot be read: No such file or directory"
    assert missing.value.remedy == "`loadgen init` writes a scenario to start from."


@pytest.mark.parametrize(
    ("content", "words"),
    [
        pytest.param("x" * 50_000_000, "larger than 1 MB", id="50 MB"),
        pytest.param("[" * 10_000, "nested more than 32 levels", id="brackets"),
        pytest.param("{a: " * 10_000, "nested more than 32 levels", id="braces"),
        pytest.param("- " * 10_000, "nested more than 32 levels", id="dashes"),
        pytest.param("? " * 10_000, "nested more than 32 levels", id="keys of keys"),
        pytest.param("\n".join(" " * n + "a:" for n in range(1_300)), "nested more than 32 levels", id="indentation"),
        pytest.param(alias_bomb(200), "aliases", id="alias bomb"),
        pytest.param("[" + "a," * 400_000, "more than 20,000 keys and values", id="many values"),
        pytest.param("a: '" + "${LONG}" * 100_000 + "'", "longer than 1,000,000 characters", id="variables"),
    ],
)
def test_hostile_files_fail_and_the_message_stays_short(tmp_path, content, words):
    file = tmp_path / "hostile.yaml"
    file.write_text(content)

    with pytest.raises(ScenarioProblems) as found:
        read_scenario(file, environ={"LONG": "y" * 10_000})

    assert any(words in str(problem) for problem in found.value.problems)
    assert len(str(found.value)) < 100_000


@pytest.mark.parametrize(
    "content", ["x" * 50_000_000, "[" * 10_000, alias_bomb(30)], ids=["50 MB", "nesting", "aliases"]
)
def test_hostile_files_fail_with_little_work_and_bounded_memory(tmp_path, content):
    file = tmp_path / "hostile.yaml"
    file.write_text(content)
    steps = itertools.count()

    sys.setprofile(lambda *_: next(steps))
    try:
        with pytest.raises(ScenarioProblems):
            read_scenario(file, environ={})
    finally:
        sys.setprofile(None)
    tracemalloc.start()
    with pytest.raises(ScenarioProblems):
        read_scenario(file, environ={})
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert next(steps) < STEPS_MAX
    assert peak_bytes < 20 * BYTES_MAX
