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
from loadgen.prepare import prepare
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

    assert "load.capture: is not a capture" in refused(tmp_path, more)


@pytest.mark.parametrize(
    "changed", [{"count": -3}, {"count": "x"}, {"name": "\x1b[31m<b>"}, {"name": 5}, {"id": "one"}]
)
def test_templates_that_cannot_be_are_refused(tmp_path, changed):
    manifest = recorded(tmp_path)
    templates = json.loads(manifest.text())["templates"]
    describe(tmp_path, templates=[one | changed for one in templates])

    assert "load.capture: is not a capture" in refused(tmp_path, "users: 3")


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


@pytest.mark.parametrize("more", ["writes: skip", "writes: replay"])
@pytest.mark.parametrize(
    ("sql", "told"),
    [
        ("DELETE FROM t0", "its text is a write"),
        ("SELECT s.NEXTVAL", "its text is a write"),
        ("COMMIT", "its text is a transaction"),
        ("USE ROLE ACCOUNTADMIN", "its text is a context"),
        ("SELECT 1; DELETE FROM t0", "several statements"),
        ("SELECT 1 ->> DELETE FROM t0", "several statements"),
        ("SELECT 1 INTO t9", "it is not a query, DML or session statement"),
        ("DROP TABLE t0", "it is not a query, DML or session statement"),
        ("CALL p()", "it is not a query, DML or session statement"),
        ("SELECT SYSTEM$CANCEL_ALL_QUERIES(1)", "SYSTEM$ function"),
        ("/* /* */ DELETE FROM t0 -- */ */ SELECT 1", "cannot be parsed"),
        ("SELEC 1", "cannot be parsed"),
    ],
)
def test_a_label_that_contradicts_the_text_is_refused_with_its_line(tmp_path, sql, told, more):
    recorded(tmp_path)
    lines = lines_of(tmp_path)
    lines[8] = json.dumps(json.loads(lines[8]) | {"sql": sql})
    write(tmp_path, lines)

    said = refused(tmp_path, more)

    assert 'statements.jsonl.gz cannot be read: line 9 has the role "read"' in said
    assert told in said


def test_a_context_statement_hides_in_no_comment(tmp_path):
    recorded(tmp_path, [row("SET v = 5"), row("SELECT 1", 1)])
    lines = lines_of(tmp_path)
    lines[1] = json.dumps(json.loads(lines[1]) | {"sql": "/**/USE ROLE ACCOUNTADMIN"})
    write(tmp_path, lines)

    assert 'line 2 has the role "context"' in refused(tmp_path, "writes: skip")


def test_a_description_with_other_roles_is_refused(tmp_path):
    manifest = recorded(tmp_path, [row("SELECT 1 FROM a"), row("DELETE FROM b", 1)])
    templates = json.loads(manifest.text())["templates"]
    describe(tmp_path, templates=[one | {"role": "read"} for one in templates])

    assert "a write that its description calls a read" in refused(tmp_path, "writes: replay")


def test_more_statements_than_described_are_refused_when_they_are_read(tmp_path):
    recorded(tmp_path)
    lines = lines_of(tmp_path)
    write(tmp_path, [*lines, *lines[-1:] * 3])

    assert "other numbers of statements than its description" in refused(tmp_path, "users: 3")


DAMAGES = {
    "truncated": (lambda content: content[:-20], "is damaged or was changed"),
    "flipped": (lambda content: content[:50] + bytes([content[50] ^ 1]) + content[51:], "is damaged or was changed"),
    "another": (lambda _: gzip.compress(b"hello", mtime=0), "is damaged or was changed"),
}


@pytest.mark.parametrize("checked", [100_000, 5])  # large captures: the digest only
@pytest.mark.parametrize(("damage", "told"), DAMAGES.values(), ids=DAMAGES)
def test_validate_finds_damaged_statements(tmp_path, capsys, monkeypatch, damage, told, checked):
    monkeypatch.setattr(prepare, "CHECKED_STATEMENTS_MAX", checked)
    recorded(tmp_path)
    loaded(tmp_path)
    assert main(["validate", str(tmp_path / "again.yaml")]) == 0
    path = tmp_path / "captured" / "statements.jsonl.gz"
    path.write_bytes(damage(path.read_bytes()))

    assert main(["validate", str(tmp_path / "again.yaml")]) == 2

    assert f"{tmp_path}/again.yaml:6:" in (said := capsys.readouterr().out)
    assert told in said


def test_validate_reads_the_statements(tmp_path, capsys):
    recorded(tmp_path)
    loaded(tmp_path)
    write(tmp_path, lines_of(tmp_path)[:20])

    assert main(["validate", str(tmp_path / "again.yaml")]) == 2

    assert "load.capture: the capture has other numbers of statements" in capsys.readouterr().out


def test_a_line_of_a_capture_that_does_not_end_is_refused_before_it_fills_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(prepare, "LINE_CHARACTERS_MAX", 10_000)
    recorded(tmp_path)
    write(tmp_path, [*lines_of(tmp_path), "x" * 20_000])

    assert "has a line of more than 10,000 characters" in refused(tmp_path, "users: 1")


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


def test_a_missing_file_is_reported(tmp_path):
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


@pytest.mark.parametrize(
    ("session", "start", "elapsed", "told"),
    [
        ("2", "1969-12-31 23:59:59", "5", "START_TIME is 1969-12-31 23:59:59 UTC, and there is no history before 1970"),
        ("2", "0001-01-01 00:00:00 +0100", "5", "a time is not in the years 1970 to 9999"),
        ("2", "9999-12-31 23:59:59", "5000", "a time is not in the years 1970 to 9999"),
        ("2", "2026-11-15 02:00:00", "1e18", "the statement took 11,574,074,074 days; the maximum is 365 days"),
        ("2", "2026-11-15 02:00:00", "nan", "TOTAL_ELAPSED_TIME is 'nan', and must be milliseconds"),
        ("2", "2026-11-15 02:00:00", "inf", "TOTAL_ELAPSED_TIME is 'inf', and must be milliseconds"),
        ("2", "2026-11-15 02:00:00", "1e999", "the statement took inf days"),
        ("9" * 5_000, "2026-11-15 02:00:00", "5", "SESSION_ID is '999"),
    ],
)
def test_invalid_rows_are_reported_with_their_line(tmp_path, capsys, session, start, elapsed, told):
    file = tmp_path / "history.csv"
    file.write_text(
        f"QUERY_TEXT,SESSION_ID,START_TIME,TOTAL_ELAPSED_TIME\nSELECT 1,1,2026-11-15 02:00:00,5\n"
        f"SELECT 2,{session},{start},{elapsed}\n"
    )

    assert main(["capture", "import", str(file), "--out", str(tmp_path / "captured")]) == 2

    assert f"history.csv:3: {told}" in capsys.readouterr().err
