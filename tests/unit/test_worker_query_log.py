"""The query log: what was kept comes back as it was, what was damaged does not come back at all."""

import itertools
import math
import os
import stat
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loadgen.errors import RunFailed
from loadgen.metrics.outcome import Failed, Outcome
from loadgen.metrics.windows import Window
from loadgen.model.outcome import ErrorCategory
from loadgen.model.run import Phase
from loadgen.model.workload import StatementKind
from loadgen.scenario.scenario import QueryLog as Policy
from loadgen.scenario.scenario import QueryLogMode
from loadgen.worker import query_log
from loadgen.worker.query_log import (
    ERROR_TEXTS_MAX,
    FACTS,
    RECORD_BYTES,
    RECORDS,
    Entry,
    LogHeader,
    QueryLog,
    Record,
    SlotLog,
    SpoolReader,
)

QUERY_ID = "01b2c3d4-0000-1111-2222-333344445555"
HEADER = LogHeader(
    run_id="run",
    worker_id="worker-0",
    test_id="test",
    statements=(("point lookup", StatementKind.READ), ("zahlen‽", StatementKind.WRITE)),
    utc_at_zero=datetime(2026, 11, 15, 2, tzinfo=UTC),
)
WINDOWS = (
    Window(window_id=0, phase=Phase.WARMUP, opened_ns=0),
    Window(window_id=1, phase=Phase.MEASUREMENT, step_id=7, opened_ns=0),
    Window(window_id=2**32 - 1, phase=Phase.MEASUREMENT, opened_ns=0),
)
EVERYTHING = Policy(mode=QueryLogMode.ALL)
folders = itertools.count()


def entry(
    *,
    query_id: str | None = QUERY_ID,
    statement: int = 0,
    window: int = 1,
    due_ns: int = 1_000,
    sent_ns: int = 2_000,
    done_ns: int = 3_000,
    rows: int | None = 1,
    outcome: Outcome | Failed = Outcome.SUCCEEDED,
) -> Entry:
    return query_id, statement, window, due_ns, sent_ns, done_ns, rows, outcome


def write(folder: Path, entries: Sequence[Entry], policy: Policy = EVERYTHING) -> QueryLog:
    log = QueryLog(folder, HEADER, policy)
    log.slot(0).entries.extend(entries)
    log.keep(WINDOWS)
    log.close()
    return log


def read(folder: Path) -> tuple[list[Record], int]:
    reader = SpoolReader(folder)
    return list(reader.records()), reader.damaged


failures = st.builds(
    Failed, st.sampled_from(ErrorCategory), st.none() | st.integers(-(2**31) + 1, 2**31 - 1), st.text(max_size=30)
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


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(entries, max_size=8))
def test_what_was_kept_comes_back_as_it_was(tmp_path, kept):
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
        failed = isinstance(outcome, Failed)
        assert record.code == (outcome.code if failed else None)
        assert record.error == (outcome.text if failed else None)


@pytest.mark.parametrize("category", ErrorCategory)
def test_every_kind_of_failure_comes_back_by_name(tmp_path, category):
    write(tmp_path / "q", [entry(outcome=Failed(category, 604, "text \x1b[31m \ud800 \n"), rows=None)])

    ((record,), _) = read(tmp_path / "q")

    assert record.outcome.name == category.name
    assert (record.code, record.error, record.rows) == (604, "text \x1b[31m \ud800 \n", None)


@pytest.mark.parametrize("query_id", ["", "x" * 37, "ü" * 10, "ü" * 30, "\ud800", QUERY_ID + "0"])
def test_an_id_that_is_none_of_snowflakes_is_left_out_and_never_cut(tmp_path, query_id):
    write(tmp_path / "q", [entry(query_id=query_id), entry()])

    ((odd, usual), damaged) = read(tmp_path / "q")

    assert (odd.query_id, usual.query_id, damaged) == (None, QUERY_ID, 0)


@pytest.mark.parametrize("code", [2**31, -(2**31), 2**63, -(10**30)])
def test_a_code_that_is_no_code_of_snowflakes_is_left_out(tmp_path, code):
    write(tmp_path / "q", [entry(outcome=Failed(ErrorCategory.FATAL, code, "odd"))])

    ((record,), _) = read(tmp_path / "q")

    assert (record.code, record.error) == (None, "odd")


def test_only_so_many_error_texts_are_kept_and_the_rest_by_code(tmp_path):
    many = ERROR_TEXTS_MAX + 5
    kept = [entry(outcome=Failed(ErrorCategory.FATAL, n, f"error {n}")) for n in range(many)]
    write(tmp_path / "q", [*kept, kept[0]])

    records, _ = read(tmp_path / "q")

    assert [record.error for record in records[: ERROR_TEXTS_MAX + 1]] == [
        *(f"error {n}" for n in range(ERROR_TEXTS_MAX)),
        None,
    ]
    assert records[many - 1].code == many - 1
    assert records[-1].error == "error 0"


def test_the_header_comes_back(tmp_path):
    write(tmp_path / "q", [])

    assert SpoolReader(tmp_path / "q").header == HEADER


def test_several_rounds_and_several_clients_end_up_in_one_file(tmp_path):
    log = QueryLog(tmp_path / "q", HEADER, EVERYTHING)
    slots = [log.slot(number) for number in range(3)]
    for n in range(9):
        slots[n % 3].entries.append(entry(rows=n))
        log.keep(WINDOWS if n < 5 else ())  # a window that is held no more is known all the same
    log.close()

    records, _ = read(tmp_path / "q")

    assert [record.rows for record in records] == list(range(9))
    assert all(not slot.entries for slot in slots)


def test_an_entry_that_comes_after_its_window_was_forgotten_is_kept(tmp_path):
    log = QueryLog(tmp_path / "q", HEADER, EVERYTHING)
    slot = log.slot(0)
    log.keep(WINDOWS)
    slot.entries.append(entry(window=1))

    log.keep(())
    log.close()

    ((record,), _) = read(tmp_path / "q")
    assert record.step_id == 7


def test_beyond_the_most_rows_entries_are_dropped_and_counted(tmp_path):
    log = write(tmp_path / "q", [entry(rows=n) for n in range(10)], Policy(mode=QueryLogMode.ALL, max_rows=4))

    records, _ = read(tmp_path / "q")

    assert (log.kept, log.dropped) == (4, 6)
    assert [record.rows for record in records] == [0, 1, 2, 3]


# --- damage ----------------------------------------------------------------------------------------------------------


def test_a_file_that_was_cut_anywhere_gives_all_whole_records(tmp_path):
    write(tmp_path / "q", [entry(rows=n) for n in range(4)])
    whole = (tmp_path / "q" / RECORDS).read_bytes()
    assert len(whole) == 4 * RECORD_BYTES

    for length in range(len(whole) + 1):
        (tmp_path / "q" / RECORDS).write_bytes(whole[:length])
        records, damaged = read(tmp_path / "q")
        assert [record.rows for record in records] == list(range(length // RECORD_BYTES))
        assert damaged == bool(length % RECORD_BYTES)


def test_a_flipped_bit_anywhere_costs_its_record_and_nothing_else(tmp_path):
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


def test_facts_that_were_damaged_anywhere_are_never_taken_for_true(tmp_path):
    """Every byte in turn: a record either comes back as it was, or it is counted as damaged, or the file is refused."""
    failed = Failed(ErrorCategory.FATAL, 5, "oops")
    write(tmp_path / "q", [entry(window=0), entry(window=1, outcome=failed)])
    whole = (tmp_path / "q" / FACTS).read_bytes()
    good, _ = read(tmp_path / "q")

    for at in range(len(whole)):
        bad = bytearray(whole)
        bad[at] ^= 1 << (at % 7)
        (tmp_path / "q" / FACTS).write_bytes(bad)
        try:
            left, damaged = read(tmp_path / "q")
        except RunFailed:
            assert at <= whole.index(b"\n")  # in the header
            continue
        assert len(left) + damaged == 2
        for record in left:
            original = good[record.number]
            assert record == original or (record.error is None and original.error == "oops")


def test_facts_that_were_cut_cost_only_the_records_that_need_them(tmp_path):
    write(tmp_path / "q", [entry(window=0), entry(window=1)])
    lines = (tmp_path / "q" / FACTS).read_bytes().splitlines(keepends=True)
    assert len(lines) == 3

    (tmp_path / "q" / FACTS).write_bytes(b"".join(lines[:2]) + lines[2][:-5])

    records, damaged = read(tmp_path / "q")
    assert ([record.phase for record in records], damaged) == (["WARMUP"], 1)


def test_a_worker_that_was_killed_before_its_first_entry_left_an_empty_log(tmp_path):
    log = QueryLog(tmp_path / "q", HEADER, EVERYTHING)

    assert read(tmp_path / "q") == ([], 0)
    log.close()


@pytest.mark.parametrize("content", [b"", b"\n", b"{}", b"\x00" * 500, b"00000000 {}\n"])
def test_what_is_no_query_log_is_refused_with_a_remedy(tmp_path, content):
    (tmp_path / FACTS).write_bytes(content)
    (tmp_path / RECORDS).write_bytes(b"")

    with pytest.raises(RunFailed) as caught:
        SpoolReader(tmp_path)

    assert caught.value.remedy


def test_a_log_of_another_version_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(query_log, "VERSION", 2)
    write(tmp_path / "q", [entry()])
    monkeypatch.undo()

    with pytest.raises(RunFailed):
        SpoolReader(tmp_path / "q")


def test_reading_twice_gives_the_same(tmp_path):
    write(tmp_path / "q", [entry(), entry()])
    data = bytearray((tmp_path / "q" / RECORDS).read_bytes())
    data[3] ^= 1
    (tmp_path / "q" / RECORDS).write_bytes(data)
    reader = SpoolReader(tmp_path / "q")

    assert (len(list(reader.records())), reader.damaged) == (len(list(reader.records())), reader.damaged) == (1, 1)


# --- the folder ------------------------------------------------------------------------------------------------------


def test_the_files_are_for_their_owner_only(tmp_path):
    write(tmp_path / "a" / "b", [entry()])

    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700
    for name in (FACTS, RECORDS):
        assert stat.S_IMODE((tmp_path / "a" / "b" / name).stat().st_mode) == 0o600


@pytest.mark.parametrize("name", [FACTS, RECORDS])
def test_a_link_that_lies_in_the_way_is_refused_and_not_followed(tmp_path, name):
    folder, victim = tmp_path / "q", tmp_path / "victim"
    folder.mkdir()
    (folder / name).symlink_to(victim)

    with pytest.raises(OSError, match="exists"):
        QueryLog(folder, HEADER, EVERYTHING)

    assert not victim.exists()


def test_what_another_worker_left_is_not_overwritten(tmp_path):
    write(tmp_path / "q", [entry()])
    before = (tmp_path / "q" / RECORDS).read_bytes()

    with pytest.raises(FileExistsError):
        QueryLog(tmp_path / "q", HEADER, EVERYTHING)

    assert (tmp_path / "q" / RECORDS).read_bytes() == before


def test_an_existing_folder_is_used(tmp_path):
    (tmp_path / "q").mkdir()

    assert write(tmp_path / "q", [entry()]).kept == 1


def test_a_disk_that_takes_no_more_is_told_by_keep_and_by_close_and_both_files_are_closed(tmp_path):
    log = QueryLog(tmp_path / "q", HEADER, EVERYTHING)
    records = log._records
    with open(os.devnull, "rb") as unwritable:
        os.dup2(unwritable.fileno(), records.fileno())
    log.slot(0).entries.append(entry())

    with pytest.raises(OSError, match="Bad file descriptor"):
        log.keep(WINDOWS)
    with pytest.raises(OSError, match="Bad file descriptor"):
        log.close()

    assert records.closed
    assert log._facts.closed
    assert SpoolReader(tmp_path / "q").header == HEADER


# --- which statements are kept ---------------------------------------------------------------------------------------


def chosen(policy: Policy, seed: str, statements: int) -> list[int]:
    slot = SlotLog(policy, seed)
    return [n for n in range(statements) if slot.wants(Outcome.SUCCEEDED)]


@pytest.mark.parametrize("rate", [0.5, 0.1, 0.01, 0.99])
def test_a_sample_has_the_asked_rate(rate):
    statements = 200_000

    kept = len(chosen(Policy(sample_rate=rate), "seed", statements))

    deviation = math.sqrt(statements * rate * (1 - rate))
    assert abs(kept - statements * rate) < 5 * deviation  # one of two million seeds would fail


def test_every_statement_has_the_same_chance():
    """Over many clients each position is kept as often as the others, the first and the last included."""
    clients, length, rate = 4_000, 20, 0.2
    hits = [0] * length
    for client in range(clients):
        for n in chosen(Policy(sample_rate=rate), f"run/worker/{client}", length):
            hits[n] += 1

    deviation = math.sqrt(clients * rate * (1 - rate))
    assert all(abs(count - clients * rate) < 5 * deviation for count in hits)


def test_a_sample_depends_on_nothing_but_its_seed():
    policy = Policy(sample_rate=0.05)

    assert chosen(policy, "a", 5_000) == chosen(policy, "a", 5_000)
    assert chosen(policy, "a", 5_000) != chosen(policy, "b", 5_000)


def test_clients_and_workers_are_sampled_apart(tmp_path):
    log = QueryLog(tmp_path / "q", HEADER, Policy(sample_rate=0.05))

    picks = [tuple(n for n in range(5_000) if slot.wants(Outcome.SUCCEEDED)) for slot in map(log.slot, range(3))]

    assert len(set(picks)) == 3
    log.close()


@pytest.mark.parametrize("rate", [1e-18, 1e-300, 5e-324])
def test_a_rate_of_almost_nothing_keeps_nothing(rate):
    assert chosen(Policy(sample_rate=rate), "seed", 1_000) == []


def test_a_rate_of_one_and_mode_all_keep_everything():
    everything = list(range(500))

    assert chosen(Policy(sample_rate=1.0), "seed", 500) == everything
    assert chosen(Policy(mode=QueryLogMode.ALL, sample_rate=0.01), "seed", 500) == everything


def test_mode_errors_keeps_whatever_did_not_succeed():
    slot = SlotLog(Policy(mode=QueryLogMode.ERRORS, sample_rate=0.01), "seed")

    assert not any(slot.wants(Outcome.SUCCEEDED) for _ in range(1_000))
    assert all(slot.wants(Failed(category, None, "")) for category in ErrorCategory)
    assert slot.wants(Outcome.CANCELLED)
