"""Captures that are damaged or made by hand: refused with a reason before a run begins, never a crash."""

from __future__ import annotations

import csv
import gzip
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loadgen.capture import history
from loadgen.capture.pseudonyms import KEY_BYTES, Pseudonyms
from loadgen.capture.statement_text import FreshValues
from loadgen.cli.main import main
from loadgen.errors import LoadgenError
from tests.unit.test_capture import row
from tests.unit.test_replay import dealt, loaded, recorded, texts
from tests.unit.test_replay_users import CAPTURE, statement

BOTH = ("users: 3", "users: 2, sessions: spread, writes: replay")


def describe(folder: Path, **changed: Any) -> None:
    path = folder / "captured" / "capture.json"
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | changed), "utf-8")


def write(folder: Path, lines: list[str]) -> None:
    """The statements, with their checksum in the description."""
    path = folder / "captured" / "statements.jsonl.gz"
    path.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode()))
    describe(folder, statements_sha256=hashlib.sha256(path.read_bytes()).hexdigest())


def lines_of(folder: Path) -> list[str]:
    return gzip.decompress((folder / "captured" / "statements.jsonl.gz").read_bytes()).decode().splitlines()


def refused(folder: Path, more: str) -> str:
    with pytest.raises(LoadgenError) as caught:
        dealt(folder, more)
    return str(caught.value)


@pytest.mark.parametrize("more", BOTH)
@pytest.mark.parametrize(
    "changed",
    [
        {"sessions": 0},
        {"sessions": -5},
        {"sessions": "x"},
        {"sessions": 10**6},
        {"span_ms": float("nan")},
        {"span_ms": float("inf")},
        {"span_ms": -1},
        {"span_ms": None},
        {"roles": {"read": 1}},
        {"roles": {"read": "many"}},
        {"roles": [1]},
        {"pseudonyms": "maybe"},
        {"statements_sha256": 5},
        {"templates": 5},
        {"templates": [5]},
        {"new_key": 1},
    ],
)
def test_a_description_that_cannot_be_is_refused(tmp_path, changed, more):
    recorded(tmp_path)
    describe(tmp_path, **changed)

    assert "load.capture: is no capture" in refused(tmp_path, more)


@pytest.mark.parametrize(
    "changed", [{"count": -3}, {"count": "x"}, {"name": "\x1b[31m<b>"}, {"name": 5}, {"id": "one"}]
)
def test_templates_that_cannot_be_are_refused(tmp_path, changed):
    manifest = recorded(tmp_path)
    templates = json.loads(manifest.text())["templates"]
    describe(tmp_path, templates=[one | changed for one in templates])

    assert "load.capture: is no capture" in refused(tmp_path, "users: 3")


@pytest.mark.parametrize("more", BOTH)
@pytest.mark.parametrize(
    "changed",
    [
        {"session": 99},
        {"session": -1},
        {"session": "x"},
        {"session": 1.5},
        {"session": True},
        {"at_ms": "x"},
        {"at_ms": -100.0},
        {"at_ms": 1e12},
        {"at_ms": 0.0},  # not in order
        {"at_ms": float("nan")},
        {"at_ms": float("inf")},
        {"ms": "x"},
        {"ms": float("nan")},
        {"rows": "x"},
        {"rows": -5},
        {"rows": 10**30},
        {"sql": 5},
        {"sql": None},
        {"template": 5},
        {"template": "unknown"},
        {"binds": {"a": 1}},
        {"binds": [["TEXT", {"a": 1}]]},
        {"binds": [[5, "x"]]},
        {"binds": 7},
        {"role": "boss"},
        {"boss": 1},
    ],
)
def test_a_statement_that_cannot_be_is_refused(tmp_path, changed, more):
    recorded(tmp_path)
    lines = lines_of(tmp_path)
    lines[8] = json.dumps(json.loads(lines[8]) | changed)
    write(tmp_path, lines)

    assert "capture" in refused(tmp_path, more)


@pytest.mark.parametrize("more", BOTH)
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda lines: lines[:20], "other numbers of statements than its description"),
        (lambda lines: lines[:1], "other numbers of statements than its description"),
        (lambda lines: [*lines, *lines[1:]], "not in order"),
        (lambda lines: [lines[0], *lines[:0:-1]], "not in order"),
        (lambda lines: lines[1:], "not a capture of loadgen"),
        (lambda lines: [*lines[:5], "", *lines[5:]], "not a line of a capture"),
    ],
)
def test_other_statements_than_described_are_refused(tmp_path, change: Callable[[list[str]], list[str]], reason, more):
    recorded(tmp_path)
    write(tmp_path, change(lines_of(tmp_path)))

    assert reason in refused(tmp_path, more)


CONTENTS = {
    "empty": b"",
    "not gzip": b"hello",
    "not UTF-8": gzip.compress(b"\xff\xfe\n", mtime=0),
    "nested": gzip.compress(b"[" * 100_000, mtime=0),
}


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
def test_a_file_that_is_no_capture_is_refused(tmp_path, content):
    recorded(tmp_path)
    (tmp_path / "captured" / "statements.jsonl.gz").write_bytes(content)
    assert "is damaged or was changed" in refused(tmp_path, "users: 3")

    describe(tmp_path, statements_sha256=hashlib.sha256(content).hexdigest())
    assert "cannot be read" in refused(tmp_path, "users: 3")


def test_a_missing_file_is_told(tmp_path):
    recorded(tmp_path)
    (tmp_path / "captured" / "statements.jsonl.gz").unlink()

    assert "statements.jsonl.gz cannot be read: No such file" in refused(tmp_path, "users: 3")


def test_a_replay_that_takes_longer_than_a_run_may_is_refused(tmp_path):
    recorded(tmp_path)
    describe(tmp_path, span_ms=8 * 86_400_000.0)

    assert "takes 8d, and a run takes at most 7d" in refused(tmp_path, "users: 1")
    assert loaded(tmp_path, "speed: 2").scenario.load.duration_s == 4 * 86_400.0


TEXTS = {
    "nested": "SELECT " + "(" * 5_000 + "1" + ")" * 5_000,
    "marks": "\x00'\"$$",
    "too long": "SELECT '" + "x" * 1_100_000 + "'",
    "empty": "",
    "no SQL": "SELEC 1 FRO 'x'",
}


@pytest.mark.parametrize("sql", TEXTS.values(), ids=TEXTS)
def test_a_text_that_cannot_be_parsed_is_sent_as_it_was_recorded(sql):
    assert FreshValues(CAPTURE, 2).of_user(1, statement(sql)).sql == sql


VALUES = {
    "digits": ("FIXED", "9" * 100_000),
    "exponent": ("FIXED", "1e999999999"),
    "word": ("TEXT", "a1" * 100_000),
    "letters": ("TEXT", "é" * 100_000),
    "bytes": ("BINARY", "0f" * 100_000),
    "infinite": ("REAL", float("inf")),
    "no bytes": ("BINARY", "zz"),
    "no date": ("DATE", "9" * 40),
}


@pytest.mark.parametrize(("kind", "value"), VALUES.values(), ids=VALUES)
def test_odd_and_huge_values_have_pseudonyms_too(kind, value):
    made = Pseudonyms(bytes(KEY_BYTES)).bound(value, kind)
    again = FreshValues(CAPTURE, 2).of_user(1, statement("SELECT ?", (kind, value))).binds[0][1]

    assert type(made) is type(again) is type(value)
    assert not isinstance(value, str) or kind == "DATE" or len(str(made)) == len(str(again)) == len(value)


def test_two_templates_with_one_name_are_both_counted(tmp_path):
    manifest = recorded(tmp_path, [row(f"SELECT a FROM t{number % 3}", number) for number in range(9)])
    first, second, third = json.loads(manifest.text())["templates"]
    describe(tmp_path, templates=[first, second | {"name": first["name"]}, third])

    scenario, streams = dealt(tmp_path)

    counts = {one.name: one.weight for one in scenario.workload.statements}
    assert counts == {first["name"]: 3, third["name"]: 3, "other_reads": 3}
    assert sum(len(texts(stream)) for stream in streams) == 9


@pytest.mark.parametrize("content", [b"\0", b"a", b'"a', b"\xc3\xa9"], ids=["zeros", "letters", "a quote", "not ascii"])
def test_a_line_without_an_end_is_refused_before_it_fills_the_memory(tmp_path, capsys, monkeypatch, content):
    before = csv.field_size_limit()
    monkeypatch.setattr(history, "FIELD_CHARACTERS_MAX", 10_000)
    file = tmp_path / "endless.csv"
    file.write_bytes(content * 100_000)

    assert main(["capture", "import", str(file), "--out", str(tmp_path / "captured")]) == 2

    told = capsys.readouterr().err
    assert "has a line of more than 10,000 characters" in told
    assert "hint: Export the rows of QUERY_HISTORY as CSV" in told
    assert csv.field_size_limit() == before  # it is one for the whole process
