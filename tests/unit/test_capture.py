"""A capture: pages of the history, files in bounded memory, resumed, and without anything secret."""

from __future__ import annotations

import csv
import gzip
import json
import random
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlglot
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.capture import recorder as recorder_module
from loadgen.capture.history import (
    _DAY,
    HistoryPart,
    HistoryRow,
    HistoryUnreadable,
    WarehouseHistory,
    backwards,
    bind_values,
)
from loadgen.capture.recorder import CaptureFilter, CaptureOptions, CaptureRecorder
from loadgen.cli.main import main
from loadgen.errors import ConfigurationError, UsageError
from loadgen.model.capture import (
    CaptureManifest,
    InvalidCapture,
    LeftOutReason,
    RecordedStatement,
    StatementRole,
    check_header,
)
from loadgen.snowflake.profile_lookup import EMBEDDED_ADDRESS, find_profile
from loadgen.snowflake.session import RetryPolicy
from tests.unit.test_pseudonyms import TEMPLATES, planted

START = datetime(2026, 11, 15, 8)  # noqa: DTZ001  naive UTC


def row(text: str = "SELECT 1", at_s: float = 0.0, *, session: int = 1, ms: float = 10.0, **more: Any) -> HistoryRow:
    start = START + timedelta(seconds=at_s)
    made = HistoryRow(
        text=text, session_id=session, start=start, end=start + timedelta(milliseconds=ms), elapsed_ms=ms, binds=()
    )
    return replace(made, **more)


def recorder(folder: Path, *, arguments: dict[str, str] | None = None, **options: Any) -> CaptureRecorder:
    made = CaptureOptions(**({"source": "a test"} | options))
    return CaptureRecorder(folder, made, arguments or {})


def captured(folder: Path, rows: Sequence[HistoryRow], **options: Any) -> CaptureManifest:
    work = recorder(folder, **options)
    work.add(rows)
    return work.finish()


def statements_of(folder: Path) -> list[RecordedStatement]:
    with gzip.open(folder / "statements.jsonl.gz", "rt", encoding="utf-8") as file:
        check_header(file.readline())
        return [RecordedStatement.of_line(line) for line in file]


# --- pages -----------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 300), max_size=80), st.integers(8, 20), st.booleans())
def test_every_row_of_a_span_is_read_once(ends_ms, limit, inclusive):
    rows = [row(at_s=0, ms=end_ms, rows=number) for number, end_ms in enumerate(ends_ms)]
    if any(ends_ms.count(end_ms) >= limit - 2 for end_ms in ends_ms):
        return
    first, last = START + timedelta(milliseconds=50), START + timedelta(milliseconds=250)

    def read(start: datetime, end: datetime) -> list[HistoryRow]:
        found = [one for one in rows if start <= one.end and (one.end <= end if inclusive else one.end < end)]
        return sorted(found, key=lambda one: one.end, reverse=True)[:limit]

    parts = list(backwards(read, first, last, limit))

    seen = [one.rows for part in parts for one in part.rows]
    assert sorted(seen, key=str) == sorted((one.rows for one in rows if first <= one.end <= last), key=str)
    *before, last_left = [part.left_until for part in parts]
    assert before == sorted(before, key=str, reverse=True)
    assert last_left is None


class LongHistory(WarehouseHistory):
    """A history of ten days with a statement every hour; records the source of each row."""

    def __init__(self) -> None:
        profile = find_profile("embedded", environ={EMBEDDED_ADDRESS: "127.0.0.1:9"}, overrides={"database": "D"})
        super().__init__(profile, "WH'S", RetryPolicy(stop=threading.Event()))
        self.sql: list[str] = []
        self.all = [row(f"SELECT {hour}", hour * 3600.0, rows=hour) for hour in range(240)]

    def now(self) -> datetime:
        return START + timedelta(days=10)

    def _page(self, start: datetime, end: datetime) -> list[HistoryRow]:
        assert start > self.now() - timedelta(days=7)  # the table function reaches no further
        return self._between("page", start, end)

    def _day(self, start: datetime, end: datetime, *, last: bool) -> Iterator[HistoryPart]:
        self.sql.append(self._sql(_DAY, start, end))
        found = [one for one in self._between("day", start, end) if one.end < end]
        yield HistoryPart(rows=found[:5], left_until=end)
        yield HistoryPart(rows=found[5:], left_until=None if last else start)

    def _between(self, source: str, start: datetime, end: datetime) -> list[HistoryRow]:
        return [replace(one, tag=source) for one in self.all if start <= one.end <= end]


def test_statements_out_of_reach_of_the_table_function_come_from_account_usage():
    history = LongHistory()

    parts = list(history.parts(START + timedelta(hours=12), START + timedelta(days=9)))

    rows = [one for part in parts for one in part.rows]
    sources = Counter(one.tag for one in rows)
    assert sorted(one.rows or 0 for one in rows) == list(range(12, 216))
    assert sources["day"] == pytest.approx(60, abs=2)
    assert sources["page"] == 204 - sources["day"]
    left = [part.left_until for part in parts]
    assert left[-1] is None
    assert left[:-1] == sorted((moment for moment in left[:-1] if moment is not None), reverse=True)
    assert all(sqlglot.parse_one(sql, dialect="snowflake").key == "select" for sql in history.sql)
    assert "WAREHOUSE_NAME = 'WH''S'" in history.sql[0]


def test_a_moment_with_more_rows_than_a_page_is_refused():
    rows = [row(ms=5.0)] * 10

    with pytest.raises(HistoryUnreadable, match="more than 10 statements ended"):
        list(backwards(lambda start, end: rows, START, START + timedelta(milliseconds=5), 10))


@pytest.mark.parametrize(
    ("stored", "values"),
    [
        (
            '{"1": {"type": "FIXED", "value": "5"}, "2": {"type": "TEXT", "value": null}}',
            (("FIXED", "5"), ("TEXT", None)),
        ),
        ('[{"type": "TEXT", "value": "x"}]', (("TEXT", "x"),)),
        ('[7, "seven"]', (("FIXED", 7), ("TEXT", "seven"))),
        ("[]", ()),
        (None, None),
        ('{"name": {"type": "TEXT", "value": "x"}}', None),
        ('{"1": {"type": "FIXED", "value": ["1", "2"]}}', None),
        ("no JSON", None),
    ],
)
def test_bind_values_are_read_in_the_order_of_their_positions(stored, values):
    assert bind_values(stored) == values


# --- files -----------------------------------------------------------------------------------------------------------


def test_statements_are_stored_in_order_with_numbered_sessions(tmp_path):
    rows = [row("SELECT 3", 3, session=77), row("SELECT 1", 1, session=99), row("SELECT 2", 2, session=77)]

    manifest = captured(tmp_path, rows)

    found = statements_of(tmp_path)
    assert [(one.session, one.at_ms) for one in found] == [(0, 0.0), (1, 1000.0), (1, 2000.0)]
    assert (manifest.statements, manifest.sessions, manifest.session_overlap) == (3, 2, 1)
    assert CaptureManifest.of_text((tmp_path / "capture.json").read_text("utf-8")) == manifest
    assert sorted(path.name for path in tmp_path.iterdir()) == ["README.md", "capture.json", "statements.jsonl.gz"]


def test_many_parts_are_merged_a_few_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(recorder_module, "PART_ROWS", 7)
    monkeypatch.setattr(recorder_module, "MERGED_AT_ONCE", 3)
    moments = random.Random(3).sample(range(1000), 200)

    captured(tmp_path, [row(f"SELECT {moment}", moment / 10, session=moment % 5) for moment in moments])

    found = statements_of(tmp_path)
    assert [one.at_ms for one in found] == sorted(one.at_ms for one in found)
    assert len(found) == 200


def test_excluded_statements_are_counted_by_their_reason(tmp_path):
    rows = [
        row("SELEC 1 FRO"),
        row("SELECT ?", binds=None),
        row("SELECT ?, ?", binds=(("FIXED", "1"),)),
        row("CREATE TABLE t (a INT)"),
        row("SELECT 1", succeeded=False),
        row("SELECT 1", -5),
        row("SELECT '" + "x" * 99_991 + "'"),
        row("SELECT 1", user="OTHER"),
        row("SELECT 1", user="ME", ms=1.0),
        row("SELECT 1", user="ME"),
    ]
    rows = [replace(one, user=one.user or "ME") for one in rows]

    manifest = captured(tmp_path, rows, start=START, filters=CaptureFilter(user="me", min_ms=5.0))

    left = {LeftOutReason[name.upper()]: count for name, count in manifest.left_out.items() if count}
    assert manifest.statements == 1
    assert left == {
        LeftOutReason.UNPARSED: 1,
        LeftOutReason.NO_BINDS: 2,
        LeftOutReason.NOT_REPLAYABLE: 1,
        LeftOutReason.FAILED: 1,
        LeftOutReason.EARLIER: 1,
        LeftOutReason.TRUNCATED: 1,
        LeftOutReason.FILTERED: 2,
    }
    assert "coverage: 1 of 10" in (tmp_path / "README.md").read_text("utf-8")


@pytest.mark.parametrize(
    ("filters", "kept"),
    [
        (CaptureFilter(role="r"), {"a"}),
        (CaptureFilter(database="D"), {"a", "b"}),
        (CaptureFilter(tag="etl"), {"b"}),
        (CaptureFilter(max_ms=20.0), {"a"}),
        (CaptureFilter(kinds=frozenset([StatementRole.WRITE])), {"b"}),
    ],
)
def test_filters_choose_statements(tmp_path, filters, kept):
    rows = [
        row("SELECT * FROM a", role="R", database="D"),
        row("DELETE FROM b", role="S", database="D", tag='{"job": "etl"}', ms=30.0),
    ]

    captured(tmp_path, rows, filters=filters)

    assert {one.sql.split()[-1] for one in statements_of(tmp_path)} == kept


def test_templates_are_listed_with_names_and_counts(tmp_path):
    rows = [row(f"SELECT a FROM s.Orders WHERE id = {number}", number, ms=number) for number in range(2, 6)]

    manifest = captured(tmp_path, [*rows, row("DELETE FROM t")])

    first, second = manifest.templates
    assert first.name.startswith("select_orders_")
    assert (first.count, first.total_ms, first.sql) == (4, 14.0, "SELECT a FROM s.Orders WHERE id = ?")
    assert (second.role, second.count) == (StatementRole.WRITE, 1)


def test_an_interrupted_capture_goes_on_with_the_same_pseudonyms(tmp_path, monkeypatch):
    monkeypatch.setattr(recorder_module, "PART_ROWS", 100)
    first = recorder(tmp_path, arguments={"from": "2h"}, start=START)
    first.add([row("SELECT 'Catherine'", 9)])
    first.save(START + timedelta(seconds=8))
    first.add([row("SELECT 'lost'", 7)] * 300)  # written, but not complete

    again = recorder(tmp_path, arguments={"from": "2h"}, start=START + timedelta(hours=1))
    again.add([row("SELECT 'Catherine'", 5)])
    manifest = again.finish()

    assert again.left_until == START + timedelta(seconds=8)
    assert again.options.start == START
    assert manifest.statements == 2
    assert len({one.sql for one in statements_of(tmp_path)}) == 1
    assert len(manifest.templates) == 1


def test_an_unfinished_capture_of_other_options_is_refused(tmp_path):
    recorder(tmp_path, arguments={"from": "1h"})  # nothing was saved
    recorder(tmp_path, arguments={"from": "2h"}).save(START)

    with pytest.raises(ConfigurationError, match="unfinished capture with other options"):
        recorder(tmp_path, arguments={"from": "3h"})


def test_a_finished_capture_is_never_overwritten(tmp_path):
    captured(tmp_path, [row()])

    with pytest.raises(UsageError, match="contains a capture already"):
        recorder(tmp_path)


def test_the_key_can_be_read_by_its_owner_only_and_is_deleted(tmp_path):
    work = recorder(tmp_path)
    state = tmp_path / "unfinished" / "state.json"

    assert state.stat().st_mode & 0o077 == 0
    key = json.loads(state.read_text("utf-8"))["key"]
    work.add([row()])
    work.finish()
    assert all(key.encode() not in content for content in contents(tmp_path))


def contents(folder: Path) -> list[bytes]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes() for path in files]


def test_a_thousand_planted_secrets_are_in_no_file(tmp_path):
    random_ = random.Random(21)
    secrets: list[str] = []
    rows: list[HistoryRow] = []
    while len(secrets) < 1_000:
        template = random_.choice(TEMPLATES)
        new = [planted(random_, "card" in template and place > 0) for place in range(template.count("{}"))]
        bound, user, tag = (planted(random_, number=False) for _ in range(3))
        text = template.format(*new)
        given: dict[str, Any] = {"binds": (("TEXT", bound),)} if "users" in template else {}
        rows.append(
            row(text.replace("-- asked", "AND b = ? -- asked"), len(rows), user=f"{user}@acme.org", tag=tag, **given)
        )
        secrets += [*new, user, tag, *([bound] if given else [])]

    manifest = captured(tmp_path, rows, filters=CaptureFilter(tag=""))

    everything = b"\n".join(contents(tmp_path)).decode()
    assert manifest.statements == len(rows)
    assert [secret for secret in secrets if secret in everything] == []


@settings(max_examples=30)
@given(st.text(max_size=200))
def test_no_line_is_taken_for_a_statement_that_is_none(text):
    with pytest.raises(InvalidCapture):
        RecordedStatement.of_line(text)
    with pytest.raises(InvalidCapture):
        CaptureManifest.of_text(text)


# --- CSV -------------------------------------------------------------------------------------------------------------

HEADER = ["query_text", "SESSION_ID", "START_TIME", "TOTAL_ELAPSED_TIME", "BIND_VALUES", "USER_NAME"]


def csv_file(path: Path, *rows: Sequence[str], header: Sequence[str] = HEADER) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def test_a_csv_file_is_imported(tmp_path, capsys):
    binds = '{"1": {"type": "FIXED", "value": "4711"}}'
    file = csv_file(
        tmp_path / "history.csv",
        ["SELECT a FROM t\nWHERE b = ?", "12", "2026-11-15 02:00:00.250 -0800", "15", binds, "BOB"],
        ["SELECT 1", "13", "2026-11-15T10:00:00Z", "5", "", ""],
    )

    code = main(["capture", "import", str(file), "--out", str(tmp_path / "captured"), "--format", "json"])

    said = json.loads(capsys.readouterr().out)
    first, second = statements_of(tmp_path / "captured")
    assert code == 0
    assert (said["statements"], said["span_from"]) == (2, "2026-11-15T10:00:00.000Z")
    assert (first.at_ms, second.at_ms, second.ms) == (0.0, 250.0, 15.0)
    assert second.binds[0][0] == "FIXED"
    assert second.binds[0][1] != "4711"
    assert str(second.user).startswith("user_")


@pytest.mark.parametrize(
    ("rows", "header", "what"),
    [
        ([], ["QUERY_TEXT", "START_TIME"], "there is no column SESSION_ID"),
        ([["SELECT 1", "x", "2026-11-15 02:00:00", "5", "", ""]], HEADER, "history.csv:2: SESSION_ID is 'x'"),
        ([["SELECT 1", "1", "yesterday", "5", "", ""]], HEADER, "history.csv:2: 'yesterday' is not a time"),
        ([["SELECT 1", "1", "2026-11-15 02:00:00", "", "", ""]], HEADER, "neither TOTAL_ELAPSED_TIME nor END_TIME"),
    ],
)
def test_a_csv_file_that_is_no_history_is_refused(tmp_path, capsys, rows, header, what):
    file = csv_file(tmp_path / "history.csv", *rows, header=header)

    code = main(["capture", "import", str(file), "--out", str(tmp_path / "captured")])

    said = capsys.readouterr().err
    assert code == 2
    assert what in said
    assert "hint: Export the rows" in said


@pytest.mark.parametrize("missing", ["--warehouse", "--from", "--out"])
def test_missing_options_are_named(capsys, tmp_path, missing):
    given = {"--warehouse": "WH", "--from": "2h", "--out": str(tmp_path / "captured")}
    words = [word for option, value in given.items() if option != missing for word in (option, value)]

    code = main(["capture", *words])

    assert code == 2
    assert f"error: the option {missing} is missing" in capsys.readouterr().err
