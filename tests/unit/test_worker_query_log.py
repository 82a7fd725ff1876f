"""The query log: what was kept comes back as it was, what was damaged does not come back at all."""

from __future__ import annotations

import itertools
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loadgen.errors import RunFailed
from loadgen.metrics.recorder import FailedOutcome, Outcome
from loadgen.model.counts import ErrorCategory
from loadgen.scenario.settings import QueryLogMode
from loadgen.scenario.settings import QueryLogSettings as Policy
from loadgen.worker import query_log
from loadgen.worker.query_log import (
    ERROR_TEXTS_MAX,
    METADATA,
    RECORD_BYTES,
    RECORDS,
    QueryLogReader,
    QueryLogRecord,
    QueryLogWriter,
)
from tests.unit.query_log_builders import EVERYTHING, HEADER, QUERY_ID, WINDOWS, entry, write

folders = itertools.count()


def read(folder: Path) -> tuple[list[QueryLogRecord], int]:
    reader = QueryLogReader(folder)
    return list(reader.records()), reader.damaged


failures = st.builds(
    FailedOutcome,
    st.sampled_from(ErrorCategory),
    st.none() | st.integers(-(2**31) + 1, 2**31 - 1),
    st.text(max_size=30),
)
times = st.integers(0, 2**62)
entries = st.builds(
    entry,
    query_id=st.none() | st.just(QUERY_ID) | st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=36),
    statement=st.integers(0, 1),
    window=st.sampled_from([window.window_id for window in WINDOWS]),
    due_ns=times,
    sent_ns=st.integers(0, 10**17),
    done_ns=times,
    rows=st.none() | st.integers(0, 2**63 - 1),
    outcome=st.sampled_from([Outcome.SUCCEEDED, Outcome.CANCELLED, Outcome.SKIPPED]) | failures,
)


# --- round trip ------------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(entries, max_size=8))
def test_stored_entries_are_read_back_unchanged(tmp_path, kept):
    folder = tmp_path / str(next(folders))
    assert write(folder, kept).kept == len(kept)

    records, damaged = read(folder)

    assert damaged == 0
    assert [record.number for record in records] == list(range(len(kept)))
    windows = {window.window_id: window for window in WINDOWS}
    for record, (query_id, statement, window, due_ns, sent_ns, done_ns, rows, outcome) in zip(
        records, kept, strict=True
    ):
        assert record.query_id == (query_id or None)
        assert (record.statement, record.kind) == (HEADER.statements[statement][0], HEADER.statements[statement][1])
        assert (record.phase, record.step_id) == (windows[window].phase, windows[window].step_id)
        assert record.start_time == datetime(2026, 11, 15, 2) + timedelta(microseconds=sent_ns // 1_000)  # noqa: DTZ001
        assert record.due_lag_ms == (sent_ns - due_ns) / 1e6
        assert record.duration_ms == (done_ns - sent_ns) / 1e6
        assert record.rows == rows
        assert record.outcome == outcome.__index__()
        failed = isinstance(outcome, FailedOutcome)
        assert record.code == (outcome.code if failed else None)
        assert record.error == (outcome.text if failed else None)


@pytest.mark.parametrize("category", ErrorCategory)
def test_every_kind_of_failure_is_read_back_by_name(tmp_path, category):
    write(tmp_path / "q", [entry(outcome=FailedOutcome(category, 604, "text \x1b[31m \ud800 \n"), rows=None)])

    ((record,), _) = read(tmp_path / "q")

    assert record.outcome.name == category.name
    assert (record.code, record.error, record.rows) == (604, "text \x1b[31m \ud800 \n", None)


@pytest.mark.parametrize("query_id", ["", "x" * 37, "ü" * 10, "ü" * 30, "\ud800", QUERY_ID + "0"])
def test_an_invalid_query_id_is_left_out_and_never_cut(tmp_path, query_id):
    write(tmp_path / "q", [entry(query_id=query_id), entry()])

    ((odd, usual), damaged) = read(tmp_path / "q")

    assert (odd.query_id, usual.query_id, damaged) == (None, QUERY_ID, 0)


@pytest.mark.parametrize("code", [2**31, -(2**31), 2**63, -(10**30)])
def test_an_invalid_error_code_is_left_out(tmp_path, code):
    write(tmp_path / "q", [entry(outcome=FailedOutcome(ErrorCategory.FATAL, code, "odd"))])

    ((record,), _) = read(tmp_path / "q")

    assert (record.code, record.error) == (None, "odd")


def test_only_a_limited_number_of_error_texts_is_kept_and_the_rest_by_code(tmp_path):
    many = ERROR_TEXTS_MAX + 5
    kept = [entry(outcome=FailedOutcome(ErrorCategory.FATAL, n, f"error {n}")) for n in range(many)]
    write(tmp_path / "q", [*kept, kept[0]])

    records, _ = read(tmp_path / "q")

    assert [record.error for record in records[: ERROR_TEXTS_MAX + 1]] == [
        *(f"error {n}" for n in range(ERROR_TEXTS_MAX)),
        None,
    ]
    assert records[many - 1].code == many - 1
    assert records[-1].error == "error 0"


def test_the_header_is_read_back(tmp_path):
    write(tmp_path / "q", [])

    assert QueryLogReader(tmp_path / "q").header == HEADER


def test_several_rounds_and_several_clients_end_up_in_one_file(tmp_path):
    log = QueryLogWriter(tmp_path / "q", HEADER, EVERYTHING)
    slots = [log.slot(number) for number in range(3)]
    for n in range(9):
        slots[n % 3].entries.append(entry(rows=n))
        log.keep(WINDOWS if n < 5 else ())  # a window that is held no more is known all the same
    log.close()

    records, _ = read(tmp_path / "q")

    assert [record.rows for record in records] == list(range(9))
    assert all(not slot.entries for slot in slots)


def test_an_entry_that_comes_after_its_window_was_removed_is_kept(tmp_path):
    log = QueryLogWriter(tmp_path / "q", HEADER, EVERYTHING)
    slot = log.slot(0)
    log.keep(WINDOWS)
    slot.entries.append(entry(window=1))

    log.keep(())
    log.close()

    ((record,), _) = read(tmp_path / "q")
    assert record.step_id == 7


def test_beyond_the_maximum_of_rows_entries_are_dropped_and_counted(tmp_path):
    log = write(tmp_path / "q", [entry(rows=n) for n in range(10)], Policy(mode=QueryLogMode.ALL, max_rows=4))

    records, _ = read(tmp_path / "q")

    assert (log.kept, log.dropped) == (4, 6)
    assert [record.rows for record in records] == [0, 1, 2, 3]


# --- damage ----------------------------------------------------------------------------------------------------------


def test_of_a_truncated_file_all_complete_records_are_read(tmp_path):
    write(tmp_path / "q", [entry(rows=n) for n in range(4)])
    whole = (tmp_path / "q" / RECORDS).read_bytes()
    assert len(whole) == 4 * RECORD_BYTES

    for length in range(len(whole) + 1):
        (tmp_path / "q" / RECORDS).write_bytes(whole[:length])
        records, damaged = read(tmp_path / "q")
        assert [record.rows for record in records] == list(range(length // RECORD_BYTES))
        assert damaged == bool(length % RECORD_BYTES)


def test_a_flipped_bit_costs_its_record_and_nothing_else(tmp_path):
    write(tmp_path / "q", [entry(rows=n) for n in range(3)])
    whole = (tmp_path / "q" / RECORDS).read_bytes()
    records, _ = read(tmp_path / "q")

    for at in range(len(whole)):
        bad = bytearray(whole)
        bad[at] ^= 1 << (at % 8)
        (tmp_path / "q" / RECORDS).write_bytes(bad)
        left, damaged = read(tmp_path / "q")
        assert damaged == 1
        assert left == [record for record in records if record.number != at // RECORD_BYTES]


def test_damaged_facts_are_never_read_as_valid(tmp_path):
    """Every byte in turn: a record either comes back as it was, or it is counted as damaged, or the file is refused."""
    failed = FailedOutcome(ErrorCategory.FATAL, 5, "oops")
    write(tmp_path / "q", [entry(window=0), entry(window=1, outcome=failed)])
    whole = (tmp_path / "q" / METADATA).read_bytes()
    good, _ = read(tmp_path / "q")

    for at in range(len(whole)):
        bad = bytearray(whole)
        bad[at] ^= 1 << (at % 7)
        (tmp_path / "q" / METADATA).write_bytes(bad)
        try:
            left, damaged = read(tmp_path / "q")
        except RunFailed:
            assert at <= whole.index(b"\n")  # in the header
            continue
        assert len(left) + damaged == 2
        for record in left:
            original = good[record.number]
            assert record == original or (record.error is None and original.error == "oops")


def test_truncated_facts_cost_only_the_records_that_need_them(tmp_path):
    write(tmp_path / "q", [entry(window=0), entry(window=1)])
    lines = (tmp_path / "q" / METADATA).read_bytes().splitlines(keepends=True)
    assert len(lines) == 3

    (tmp_path / "q" / METADATA).write_bytes(b"".join(lines[:2]) + lines[2][:-5])

    records, damaged = read(tmp_path / "q")
    assert ([record.phase for record in records], damaged) == (["WARMUP"], 1)


def test_a_worker_that_was_killed_before_its_first_entry_left_an_empty_log(tmp_path):
    log = QueryLogWriter(tmp_path / "q", HEADER, EVERYTHING)

    assert read(tmp_path / "q") == ([], 0)
    log.close()


@pytest.mark.parametrize("content", [b"", b"\n", b"{}", b"\x00" * 500, b"00000000 {}\n"])
def test_a_file_that_is_no_query_log_is_rejected_with_a_hint(tmp_path, content):
    (tmp_path / METADATA).write_bytes(content)
    (tmp_path / RECORDS).write_bytes(b"")

    with pytest.raises(RunFailed) as caught:
        QueryLogReader(tmp_path)

    assert caught.value.remedy


def test_a_log_of_another_version_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(query_log, "VERSION", 2)
    write(tmp_path / "q", [entry()])
    monkeypatch.undo()

    with pytest.raises(RunFailed):
        QueryLogReader(tmp_path / "q")


def test_reading_twice_gives_the_same(tmp_path):
    write(tmp_path / "q", [entry(), entry()])
    data = bytearray((tmp_path / "q" / RECORDS).read_bytes())
    data[3] ^= 1
    (tmp_path / "q" / RECORDS).write_bytes(data)
    reader = QueryLogReader(tmp_path / "q")

    assert (len(list(reader.records())), reader.damaged) == (len(list(reader.records())), reader.damaged) == (1, 1)
