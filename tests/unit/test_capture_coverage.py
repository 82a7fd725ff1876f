"""What a capture does not hold, and what cannot be captured: other databases, failed statements, empty spans, what the
history lacks, and a lost connection."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise

import pytest

from loadgen.capture import history as history_module
from loadgen.capture.history import HistoryRow, HistoryUnreadable, WarehouseHistory
from loadgen.capture.job import span_of
from loadgen.capture.pseudonyms import SECRET
from loadgen.capture.recorder import CaptureExists, CaptureFilter, NothingCaptured
from loadgen.cli.capture import _moment
from loadgen.errors import ConfigurationError, UsageError
from loadgen.model.capture import CaptureManifest
from loadgen.model.counts import ErrorCategory
from loadgen.snowflake.failure import Failure
from loadgen.snowflake.profile_lookup import EMBEDDED_ADDRESS, find_profile
from loadgen.snowflake.session import RetryPolicy
from tests.unit.test_capture import START, captured, recorder, row, statements_of
from tests.unit.test_replay import dealt, recorded

LOST = Failure(category=ErrorCategory.CONNECTION, retryable=True, session_lost=True)


def test_statements_of_other_databases_have_a_reason(tmp_path):
    other = (row(database="B", user="OTHER"), row(database="A", user="OTHER"))
    rows = [row(database="A"), row(database="B"), row(database=None), *other]

    manifest = captured(tmp_path, rows, filters=CaptureFilter(database="a"))

    assert (manifest.statements, manifest.left_out["other_database"], manifest.left_out["filtered"]) == (2, 3, 0)
    both = captured(tmp_path / "both", rows, filters=CaptureFilter(database="a", user="other"))
    assert (both.statements, both.left_out["other_database"], both.left_out["filtered"]) == (1, 1, 3)


def test_no_name_is_left_in_any_file_of_a_capture_with_hidden_names(tmp_path):
    rows = [row("SELECT * FROM payroll_db.hr.payroll_people", role="PAYROLL_ROLE", database="PAYROLL_DB")]
    filters = CaptureFilter(role="PAYROLL_ROLE", database="PAYROLL_DB")

    manifest = captured(tmp_path / "made", rows, filters=filters, source="warehouse PAYROLL_WH", hide_names=True)

    assert manifest.filters == {"role": "one", "database": "one"}
    for path in (tmp_path / "made").iterdir():
        text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        assert b"payroll" not in text.lower(), path.name


def test_a_span_without_statements_is_reported_and_leaves_no_capture(tmp_path):
    span = {"start": START, "end": START + timedelta(hours=1)}

    with pytest.raises(NothingCaptured, match=r"a test has no statement that ended from .* 08:00:00 to .* UTC") as told:
        captured(tmp_path / "new", [], **span)
    assert "MONITOR" in told.value.remedy
    with pytest.raises(NothingCaptured, match="Left out: 1 because it failed; 2 because a filter excludes it"):
        captured(tmp_path / "new", [row(succeeded=False), *[row(ms=11.0)] * 2], filters=CaptureFilter(max_ms=10.0))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_other_files_is_left_alone(tmp_path):
    (tmp_path / "mine").write_text("mine")

    with pytest.raises(CaptureExists, match="is not empty"):
        recorder(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_an_unfinished_capture_of_another_version_is_refused(tmp_path):
    recorder(tmp_path).save(START)
    state = tmp_path / "unfinished" / "state.json"
    state.write_text(json.dumps(json.loads(state.read_text()) | {"version": 1}))

    with pytest.raises(ConfigurationError, match="another version of loadgen"):
        recorder(tmp_path)


NOW = datetime(2026, 11, 15, 12)  # noqa: DTZ001  naive UTC


@pytest.mark.parametrize(
    ("since", "until", "told"),
    [
        ("1h", "2h", r"--from \(2026-11-15 11:00:00 UTC\) is not before --to \(2026-11-15 10:00:00 UTC\)"),
        ("2099-01-01", None, r"--from \(2099-01-01 00:00:00 UTC\) is not before --to \(2026-11-15 12:00:00 UTC\)"),
        ("400d", None, "more than 365 days ago"),
        ("99999d", None, "--from '99999d' is not a time|more than 365 days ago"),
        ("yesterday", None, "--from 'yesterday' is not a time"),
        ("2h", "noon", "--to 'noon' is not a time"),
    ],
)
def test_an_impossible_span_is_reported(since, until, told):
    with pytest.raises(UsageError, match=told):
        span_of(_moment(since, "--from"), _moment(until or "0s", "--to"), NOW)


def test_a_span_ends_now_at_the_latest_and_times_may_have_an_offset():
    since, until = _moment("2026-11-15T12:00+02:00", "--from"), _moment("2099-01-01", "--to")

    assert span_of(since, until, NOW) == (NOW - timedelta(hours=2), NOW)


def test_failed_statements_are_counted_with_their_template(tmp_path):
    rows = [row(f"SELECT a FROM t WHERE b = {number}", number, succeeded=number > 1) for number in range(5)]
    recorded(tmp_path, [*rows, row("SELEC nonsense", 9, succeeded=False)])

    scenario, _ = dealt(tmp_path)

    assert scenario.load.replay is not None
    (times,) = scenario.load.replay.recorded
    assert (times.count, times.failed) == (3, 2)
    coverage = scenario.load.replay.coverage
    assert coverage is not None
    assert (coverage.statements, coverage.left_out, coverage.total) == (3, {"failed": 3}, 6)


def test_failures_of_an_interrupted_capture_are_not_forgotten(tmp_path):
    first = recorder(tmp_path)
    first.add([row("SELECT 1 FROM t", succeeded=False), row("SELECT 1 FROM t", 2)])
    first.save(START)

    manifest = recorder(tmp_path).finish()

    assert [one.failed for one in manifest.templates] == [1]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((), "hybrid tables that the history lacks: not counted"),
        ((None, "not granted"), "hybrid tables that the history lacks: not counted (not granted)"),
        ((1_234, ""), "not in the history, most of them short statements on hybrid tables: 1,234"),
    ],
)
def test_missing_parts_of_the_history_are_reported(tmp_path, given, said):
    work = recorder(tmp_path)
    work.add([row()])

    manifest = work.finish(*given)

    assert said in (tmp_path / "README.md").read_text("utf-8")
    assert CaptureManifest.of_text((tmp_path / "capture.json").read_text("utf-8")) == manifest
    assert manifest.coverage.unrecorded == (given[0] if given else None)


class LosingHistory(WarehouseHistory):
    """A day of ACCOUNT_USAGE with several rows at each moment; the connection is lost after each second batch."""

    def __init__(self) -> None:
        profile = find_profile("embedded", environ={EMBEDDED_ADDRESS: "127.0.0.1:9"}, overrides={"database": "D"})
        super().__init__(profile, "WH", RetryPolicy(stop=threading.Event(), first_pause_s=0.0))
        self.all = [row(f"SELECT {number}", number // 3, rows=number) for number in range(100)]
        self.read = 0

    def now(self) -> datetime:
        return START + timedelta(days=100)

    def _sql(self, template: str, start: datetime, end: datetime) -> str:
        return f"{start.isoformat()} {end.isoformat()}"

    def _batches(self, sql: str) -> Iterator[list[HistoryRow]]:
        start, end = map(datetime.fromisoformat, sql.split())
        found = sorted((one for one in self.all if start <= one.end < end), key=lambda one: one.end, reverse=True)
        for first in range(0, len(found), history_module.PAGE_ROWS):
            self.read += 1
            if self.read % 3 == 0:
                raise HistoryUnreadable("the connection was lost", LOST)
            yield found[first : first + history_module.PAGE_ROWS]


def test_a_connection_lost_inside_a_day_loses_and_repeats_nothing(monkeypatch):
    monkeypatch.setattr(history_module, "PAGE_ROWS", 8)
    history = LosingHistory()

    parts = list(history.parts(START, START + timedelta(hours=10)))

    assert sorted(one.rows or 0 for part in parts for one in part.rows) == list(range(100))
    assert history.read > 100 // 8 + 1
    for part, after in pairwise(parts):  # what was read is complete down to where it goes on
        assert part.left_until is not None
        assert all(one.end >= part.left_until for one in part.rows)
        assert all(one.end < part.left_until for one in after.rows)


@pytest.mark.parametrize(
    ("sql", "binds"),
    [
        ("SELECT 1 FROM users WHERE password = 'Geheim9'", ()),
        ("INSERT INTO users (id, password) VALUES (1, 'Geheim9')", ()),
        ("UPDATE users SET api_token = ? WHERE id = 1", (("TEXT", "Geheim9"),)),
        ("SET api_key = 'Geheim9'", ()),
        ("SELECT DECRYPT(c, 'Geheim9') FROM t", ()),
        ("SELECT v:password FROM t WHERE v:password = 'Geheim9'", ()),
        ('SELECT PARSE_JSON(\'{"password": "Geheim9"}\')', ()),
        ("SELECT 1 FROM t WHERE url = 'https://me:Geheim9@host/'", ()),
        ("SELECT 1 FROM t WHERE url = 'https://host/?sig=Geheim9'", ()),
        ("SELECT 1 FROM t WHERE a = ?", (("TEXT", "AccountKey=Geheim9"),)),
        ("SELECT OBJECT_CONSTRUCT('password', 'Geheim9')", ()),
        ("SELECT {'token': 'Geheim9'}", ()),
        ("SELECT 1 FROM t WHERE p['password'] = 'Geheim9'", ()),
        ("SELECT 1 FROM t WHERE p['password'] = ?", (("TEXT", "Geheim9"),)),
        ("SELECT 1 FROM t WHERE user_pass = 'Geheim9'", ()),
        ("SELECT 1 FROM t WHERE pw_hash = SHA2('Geheim9')", ()),
        ("SELECT 1 FROM t WHERE a = '<password>Geheim9</password>'", ()),
        ('SELECT 1 FROM t WHERE a = \'<add key="pw" value="Geheim9"/>\'', ()),
        ("SELECT 1 FROM t WHERE a = 'mysql --password Geheim9'", ()),
        ('SELECT 1 FROM t WHERE a = \'{"name":"password","value":"Geheim9"}\'', ()),
        ("SELECT 1 FROM t WHERE a = 'glpat-Geheim9Geheim9Geheim9'", ()),
        ("SELECT 1 FROM t WHERE a = 'sk_live_Geheim9Geheim9Geheim9'", ()),
        ("SELECT 1 FROM t WHERE a = 'Geheim9/K7MDENG/bPxRfiCYEXAMPLEKEYwJalrXUtn'", ()),
    ],
)
def test_values_that_are_kept_hold_no_secret(tmp_path, sql, binds):
    captured(
        tmp_path, [replace(row(sql), binds=binds), row("SELECT 1 FROM t WHERE a = 'Freitag'", 1)], keep_values=True
    )

    secret, other = statements_of(tmp_path)
    assert "Geheim9" not in secret.sql + str(secret.binds)
    assert other.sql == "SELECT 1 FROM t WHERE a = 'Freitag'"


def test_long_texts_are_searched_for_secrets_in_one_pass():
    """Matched from each of their characters, each of these would take hours."""
    for text in ("a" * 10**6, "://" + ":" * 10**6, "A1a/" * 250_000, "a." * 500_000, "token " * 200_000):
        assert SECRET.search(text) is None or text.startswith("A1a")
