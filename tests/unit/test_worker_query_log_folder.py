"""The query log: its folder, and which statements are kept."""

from __future__ import annotations

import math
import os
import stat

import pytest

from loadgen.metrics.recorder import FailedOutcome, Outcome
from loadgen.model.counts import ErrorCategory
from loadgen.scenario.settings import QueryLogMode
from loadgen.scenario.settings import QueryLogSettings as Policy
from loadgen.worker.query_log import METADATA, RECORDS, ClientQueryLog, QueryLogReader, QueryLogWriter
from tests.unit.query_log_builders import EVERYTHING, HEADER, WINDOWS, entry, write

# --- the folder ------------------------------------------------------------------------------------------------------


def test_the_files_are_for_their_owner_only(tmp_path):
    write(tmp_path / "a" / "b", [entry()])

    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700
    for name in (METADATA, RECORDS):
        assert stat.S_IMODE((tmp_path / "a" / "b" / name).stat().st_mode) == 0o600


@pytest.mark.parametrize("name", [METADATA, RECORDS])
def test_a_symbolic_link_is_rejected_and_not_followed(tmp_path, name):
    folder, victim = tmp_path / "q", tmp_path / "victim"
    folder.mkdir()
    (folder / name).symlink_to(victim)

    with pytest.raises(OSError, match="exists"):
        QueryLogWriter(folder, HEADER, EVERYTHING)

    assert not victim.exists()


def test_files_of_another_worker_are_not_overwritten(tmp_path):
    write(tmp_path / "q", [entry()])
    before = (tmp_path / "q" / RECORDS).read_bytes()

    with pytest.raises(FileExistsError):
        QueryLogWriter(tmp_path / "q", HEADER, EVERYTHING)

    assert (tmp_path / "q" / RECORDS).read_bytes() == before


def test_an_existing_folder_is_used(tmp_path):
    (tmp_path / "q").mkdir()

    assert write(tmp_path / "q", [entry()]).kept == 1


def test_a_full_disk_is_reported_by_keep_and_by_close_and_both_files_are_closed(tmp_path):
    log = QueryLogWriter(tmp_path / "q", HEADER, EVERYTHING)
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
    assert QueryLogReader(tmp_path / "q").header == HEADER


def test_statements_that_a_full_disk_cut_off_are_counted(tmp_path):
    log = QueryLogWriter(tmp_path / "q", HEADER, Policy(mode=QueryLogMode.ALL, max_rows=8))
    slot = log.slot(0)
    slot.entries.extend([entry()] * 3)
    log.keep(WINDOWS)
    with open("/dev/full", "wb") as full:
        os.dup2(full.fileno(), log._records.fileno())

    slot.entries.extend([entry()] * 2)
    with pytest.raises(OSError, match="No space left"):
        log.keep(WINDOWS)
    slot.entries.extend([entry()] * 4)
    log.keep(WINDOWS)

    assert (log.kept, log.unwritten, log.dropped) == (3, 5, 1)
    assert len(list(QueryLogReader(tmp_path / "q").records())) == 3
    assert not slot.entries, "a log that has ended needs no memory"


# --- which statements are kept ---------------------------------------------------------------------------------------


def chosen(policy: Policy, seed: str, statements: int) -> list[int]:
    slot = ClientQueryLog(policy, seed)
    return [n for n in range(statements) if slot.wants(Outcome.SUCCEEDED)]


@pytest.mark.parametrize("rate", [0.5, 0.1, 0.01, 0.99])
def test_a_sample_has_the_requested_rate(rate):
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


def test_a_sample_depends_only_on_its_seed():
    policy = Policy(sample_rate=0.05)

    assert chosen(policy, "a", 5_000) == chosen(policy, "a", 5_000)
    assert chosen(policy, "a", 5_000) != chosen(policy, "b", 5_000)


def test_clients_and_workers_are_sampled_independently(tmp_path):
    log = QueryLogWriter(tmp_path / "q", HEADER, Policy(sample_rate=0.05))

    picks = [tuple(n for n in range(5_000) if slot.wants(Outcome.SUCCEEDED)) for slot in map(log.slot, range(3))]

    assert len(set(picks)) == 3
    log.close()


@pytest.mark.parametrize("rate", [1e-18, 1e-300, 5e-324])
def test_a_rate_near_zero_keeps_nothing(rate):
    assert chosen(Policy(sample_rate=rate), "seed", 1_000) == []


def test_a_rate_of_one_and_mode_all_keep_everything():
    everything = list(range(500))

    assert chosen(Policy(sample_rate=1.0), "seed", 500) == everything
    assert chosen(Policy(mode=QueryLogMode.ALL, sample_rate=0.01), "seed", 500) == everything


def test_mode_errors_keeps_every_statement_that_did_not_succeed():
    slot = ClientQueryLog(Policy(mode=QueryLogMode.ERRORS, sample_rate=0.01), "seed")

    assert not any(slot.wants(Outcome.SUCCEEDED) for _ in range(1_000))
    assert all(slot.wants(FailedOutcome(category, None, "")) for category in ErrorCategory)
    assert slot.wants(Outcome.CANCELLED)
