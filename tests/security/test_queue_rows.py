"""Attacks by rows: a user who can write to the tables of the control plane gains nothing from their readers."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from loadgen.control.session import RowUnreadable, parse_row
from loadgen.control.tables import run_queue, run_status, schedules
from loadgen.control.tables.pool_workers import PoolWorkerIdentity
from loadgen.control.tables.run_queue import QueueDepth, QueuedRun, QueueRequest
from loadgen.control.tables.schedules import NewSchedule
from loadgen.model.nightly import Overlap, QueueStatus
from orchestrator.nightly.queue import HostPermissions, PollPace, QueueMaintenance
from orchestrator.nightly.runner import Runner, RunnerSettings
from orchestrator.nightly.scheduler import fire_due_schedules
from tests.command_line import Ask
from tests.control_plane import ControlPlane, retries
from tests.process.run_harness import MEASURES, run_harness
from tests.processes import wait_until
from tests.security.hostile_rows import DEEP, TABLES, numbers, plant, plant_all

LISTINGS = (
    ("queue", "list", "-n", "10000"),
    ("queue", "show", "good"),
    ("workers", "list", "--page-size", "100"),
    ("pool", "stats"),
    ("schedule", "list"),
    ("schedule", "next"),
    ("schedule", "tick"),
    ("schedule", "show", "good"),
    ("runs", "list", "-n", "10000"),
    ("runs", "show", "good"),
    ("runs", "recover", "--end-only"),
    ("status", "good"),
)


@pytest.fixture
def empty(plane: ControlPlane) -> ControlPlane:
    for table in (*TABLES, "SCHEDULE_FIRES"):
        plane.change(f"DELETE FROM {table}")
    return plane


@pytest.fixture
def ask(ask: Ask, empty: ControlPlane) -> Ask:
    return ask


# --- listings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", TABLES)
def test_no_value_of_any_column_keeps_a_listing_from_showing_the_others(empty, ask, table):
    for other in TABLES:
        if other != table:
            assert plant(empty, other)
    planted = plant_all(empty, table)
    assert planted > len(TABLES[table])
    assert plant(empty, table)

    for words in LISTINGS:
        code, out, err = ask(*words)
        assert code == 0, (words, err)
        if words[1] in ("list", "show", "next", "stats"):
            assert "good" in out, words
        assert "Traceback" not in err


def test_rows_that_cannot_be_read_are_named(empty, ask):
    plant(empty, "RUN_QUEUE", QUEUE_ID="odd", IDEMPOTENCY_KEY="odd", STATUS="LOST")
    plant(empty, "POOL_WORKERS", WORKER_ID="odd", LABELS="{")
    plant(empty, "RUN_STATUS", RUN_ID="odd", PHASE="NAPPING")
    plant(empty, "SCHEDULES", SCHEDULE_ID="odd", NAME="odd", FILES="{", CRON="* * * * * *", LAST_FIRE_AT="2026-01-01")

    assert "row 'odd' of RUN_QUEUE is unreadable: status is 'LOST'" in ask("queue", "list")[2]
    assert "row 'odd' of POOL_WORKERS is unreadable: labels is '{'" in ask("workers", "list")[2]
    assert "row 'odd' of RUN_STATUS is unreadable: phase is 'NAPPING'" in ask("runs", "list")[2]
    assert "row 'odd' of SCHEDULES is unreadable: files: " in ask("schedule", "tick")[2]
    assert "row 'odd' of SCHEDULES is unreadable: files: " in ask("schedule", "list")[1]
    listed = json.loads(ask("queue", "list", "--format", "json")[1])
    assert (listed["queue"], listed["unreadable"]) == ([], [{"id": "odd", "reason": "status is 'LOST'"}])
    code, _, err = ask("queue", "show", "odd")
    assert (code, "hint: " in err) == (4, True)


def test_an_unreadable_heartbeat_is_reported_and_counts_as_none(empty, ask):
    assert plant(empty, "RUN_STATUS")
    assert plant(empty, "WORKER_HEARTBEATS")
    assert plant(empty, "WORKER_HEARTBEATS", WORKER_ID="evilworker", STATUS="\x1b[2J")

    for words in (("runs", "show", "good"), ("status", "good")):
        code, out, err = ask(*words)
        assert (code, "evilworker" in out, "\x1b" in out + err) == (0, False, False), err
        assert "warning: row 'evilworker' of WORKER_HEARTBEATS is unreadable: status is " in err


def test_a_run_goes_on_with_a_hostile_heartbeat_among_its_own(server, tmp_path):
    with run_harness(server, tmp_path, embedded={"slots": 16, "service_time": "20ms"}) as harness:
        run = harness.run(load={"warmup": "0s", "duration": "6s"})
        run.wait_for(MEASURES)
        hostile = TABLES["WORKER_HEARTBEATS"] | {"RUN_ID": run.run_id, "WORKER_ID": "evilworker", "STATUS": "\x1b[2J"}
        binds = [str(value) if isinstance(value, datetime) else value for value in hostile.values()]
        marks = ", ".join("?" * len(hostile))
        harness.rows(f"INSERT INTO WORKER_HEARTBEATS ({', '.join(hostile)}) SELECT {marks}", *binds)

        assert run.ended() in (0, 5), run.said  # on a busy machine its client may be the limit
        assert harness.rows("SELECT STATUS FROM RUN_STATUS WHERE RUN_ID = ?", run.run_id) == [("COMPLETED",)]
        told = [text for text in run.summary["environment"]["warnings"] if "evilworker" in text]
        assert told == ["row 'evilworker' of WORKER_HEARTBEATS is unreadable: status is '\\x1b[2J'"]


@pytest.mark.parametrize(
    "config", ["[" * 100_000, "{", "[]", '{"workload": 7}', '{"labels": 7}', '{"a": ' + DEEP + "}"]
)
def test_a_stored_scenario_that_cannot_be_read_is_an_error_with_a_hint(empty, ask, config):
    for run_id in ("one", "two"):
        assert plant(empty, "RUN_STATUS", RUN_ID=run_id, TEST_ID=run_id, SCENARIO_CONFIG=config)

    code, _, err = ask("compare", "one", "two")

    assert "row 'one' of RUN_STATUS is unreadable: scenario_config is " in err
    assert (code, "hint: " in err) == (4, True)


def test_a_schedule_with_an_unknown_overlap_is_reported_at_a_tick(empty, ask):
    bad = add_schedule(empty, "bad")
    add_schedule(empty, "good")
    empty.change("UPDATE SCHEDULES SET OVERLAP = ? WHERE SCHEDULE_ID = ?", "\x1b[2J", bad)

    _, out, err = ask("schedule", "tick")

    assert "is unreadable: overlap is " in out + err
    assert "unexpected" not in out + err
    assert set(empty.rows("SELECT NAME FROM RUN_QUEUE")) == {("orders",)}  # of the other one


@pytest.mark.parametrize("value", [None, "text", 7, 1.5, Decimal(3), True, b"bytes", [1], float("nan"), object()])
def test_a_row_of_wrong_types_is_unreadable_or_right(value):
    good = list(TABLES["RUN_QUEUE"].values())
    columns = [name.lower() for name in TABLES["RUN_QUEUE"]]
    row = [good[columns.index(name)] if name in columns else 0 for name in QueuedRun.__slots__]

    for number, name in enumerate(QueuedRun.__slots__):
        changed = (*row[:number], value, *row[number + 1 :])
        read: Any = None
        with suppress(RowUnreadable):
            read = parse_row("RUN_QUEUE", QueuedRun, changed)
        assert read is None or isinstance(getattr(read, name), (str, int, tuple, datetime, type(None)))


# --- runners ---------------------------------------------------------------------------------------------------------

FILES = (
    *("{", "[]", "7", '{"a": 1}', '{"/judging": "{"}', '{"/judging": "{\\"x\\": 1}"}', '{"../../x.csv": "k"}'),
    *(json.dumps(files) for files in ({"a" * 300 + ".csv": "x"}, {"a": "x", "a/b": "y"}, {"a/b": "x", "a": "y"})),
    json.dumps({"a/" * 3_000 + "b": "x"}),
)


def one_pass(plane: ControlPlane, folder: Path, until: Callable[[], bool], **settings: Any) -> None:
    """A runner, until something has happened."""
    fields: dict[str, Any] = {"hostname": "host", "pid": next(numbers), "version": "1", "task_queue": "Q"}
    me = PoolWorkerIdentity(worker_id=f"host-{fields['pid']}", labels=(), capabilities=(), **fields)
    chosen: dict[str, Any] = {"lease_s": 60.0, "poll_s": 0.05, "program": ["true"], **settings}
    runner = Runner(plane.open, me, RunnerSettings(runs_folder=folder, **chosen))
    runner.start()
    try:
        wait_until(lambda: until() or runner.done.is_set(), "the runner has done it")
        assert not runner.done.is_set(), runner.error
    finally:
        runner.drain(0.0)
        assert runner.done.wait(60)
    assert runner.error is None


def status_of(plane: ControlPlane, queue_id: str) -> tuple[str, str | None]:
    (found,) = plane.rows("SELECT STATUS, REASON FROM RUN_QUEUE WHERE QUEUE_ID = ?", queue_id)
    return found[0], found[1]


def test_a_runner_survives_hostile_rows_and_does_the_good_one(empty, tmp_path):
    victim = tmp_path / "victim.1"
    victim.mkdir()
    runs = tmp_path / "runs"
    runs.mkdir()
    urgent = {"PRIORITY": 5, "OWNER": None, "ENDED_AT": None}
    hostile: dict[str, dict[str, Any]] = {"../../victim": {}, "epoch": {"EPOCH": 10**38 - 1}}
    deep = ("[" * 100_000, "[" * 15_000, "[" * 1_500 + "]" * 1_500)
    for number, requires in enumerate(deep):
        ids = dict.fromkeys(("QUEUE_ID", "IDEMPOTENCY_KEY"), f"deep{number}")
        assert plant(empty, "RUN_QUEUE", **urgent | ids | {"REQUIRES": requires})
    hostile |= {f"files-{number}": {"FILES": text} for number, text in enumerate(FILES)}
    for queue_id, columns in hostile.items():
        assert plant(empty, "RUN_QUEUE", **urgent | {"QUEUE_ID": queue_id, "IDEMPOTENCY_KEY": queue_id} | columns)
    assert plant(empty, "RUN_QUEUE", OWNER=None, ENDED_AT=None)

    one_pass(empty, runs, lambda: status_of(empty, "good")[0] == "COMPLETED")

    for queue_id in hostile:
        status, reason = status_of(empty, queue_id)
        assert (status, bool(reason)) == ("FAILED", True), (queue_id, reason)
    assert victim.is_dir()
    assert {path.name for path in tmp_path.iterdir()} == {"victim.1", "runs"}
    assert status_of(empty, "../../victim")[1] == (
        "it could not start: the queue id '../../victim' is not made of a-z, 0-9 and -"
    )


def test_the_files_of_a_queued_run_are_for_their_owner_only(empty, tmp_path):
    program = ["sh", "-c", "exit 2"]  # its output is kept
    files = json.dumps({"values/keys.csv": "k"})
    assert plant(empty, "RUN_QUEUE", OWNER=None, ENDED_AT=None, FILES=files)
    before = os.umask(0o022)
    try:
        one_pass(empty, tmp_path, lambda: status_of(empty, "good")[0] == "FAILED", program=program)
    finally:
        os.umask(before)

    made = list((tmp_path / ".queue").rglob("*"))
    assert {"scenario.yaml", "keys.csv", "in", "out", "stdout"} <= {path.name for path in made}
    assert [path for path in (tmp_path / ".queue", *made) if path.stat().st_mode & 0o077] == []


def test_an_end_with_an_unknown_queue_status_is_settled(empty, clock):
    assert plant(empty, "RUN_QUEUE", STATUS="RUNNING", EPOCH=1)
    assert plant(empty, "RUN_ATTEMPTS", STATUS="RUNNING", ENDED_AT=None)
    assert plant(empty, "RUN_ATTEMPT_ENDS", QUEUE_STATUS="NAPPING")
    upkeep = QueueMaintenance(empty.open("queue"), (), share=False, pace=PollPace(poll_s=1.0), clock=clock)

    upkeep.step()
    upkeep.step()

    assert upkeep.take_depth() == QueueDepth()
    assert status_of(empty, "good")[0] == "NAPPING"


def test_a_run_that_requires_more_than_any_claim_reads_fails_with_the_reason(empty, clock):
    requires = json.dumps([f"zone{number}={'x' * 190}" for number in range(90)])
    assert plant(empty, "RUN_QUEUE", QUEUE_ID="long", IDEMPOTENCY_KEY="long", REQUIRES=requires, ENDED_AT=None)
    assert plant(empty, "RUN_QUEUE", ENDED_AT=None)
    upkeep = QueueMaintenance(empty.open("queue"), (), share=False, pace=PollPace(poll_s=1.0), clock=clock)

    upkeep.step()

    assert status_of(empty, "long") == ("FAILED", "it cannot be claimed: REQUIRES has more than 16,000 characters")
    assert status_of(empty, "good")[0] == "QUEUED"


def test_a_run_of_a_queue_gets_the_permissions_of_its_pool(empty, tmp_path):
    """The words of its command line; that of a pool's user, not of the row."""
    words = tmp_path / "words"
    program = ["sh", "-c", 'printf "%s\\n" "$@" > ' + str(words), "sh"]
    assert plant(empty, "RUN_QUEUE", OWNER=None, ENDED_AT=None, CONNECTION="--allow-command=sh")
    options = ("--from-queue", *HostPermissions(connections=frozenset({"embedded"})).words)

    one_pass(empty, tmp_path, lambda: status_of(empty, "good")[0] == "COMPLETED", program=program, options=options)

    given = words.read_text().splitlines()
    assert {"--from-queue", "--allow-connection=embedded", "--connection=--allow-command=sh"} <= set(given)
    assert [word for word in given if word.startswith("--allow-")] == ["--allow-connection=embedded"]


# --- schedules -------------------------------------------------------------------------------------------------------


def add_schedule(plane: ControlPlane, name: str, **more: Any) -> str:
    wanted = QueueRequest(name="orders", scenario="version: 1", files={})
    fields: dict[str, Any] = {"cron": "* * * * * *", "timezone": "UTC", "max_catchup": 1, "overlap": Overlap.QUEUE}
    schedule_id = schedules.add(plane.session, retries(), NewSchedule(name=name, wanted=wanted, **fields | more))
    plane.change("UPDATE SCHEDULES SET LAST_FIRE_AT = DATEADD(hour, -1, SYSDATE()) WHERE SCHEDULE_ID = ?", schedule_id)
    return schedule_id


def test_a_schedule_that_always_fails_neither_blocks_others_nor_fills_the_tick(empty):
    bad, good = add_schedule(empty, "bad"), add_schedule(empty, "good")
    empty.change("UPDATE SCHEDULES SET FILES = '{' WHERE SCHEDULE_ID = ?", bad)
    empty.change(
        "INSERT INTO SCHEDULE_FIRES (SCHEDULE_ID, FIRE_AT, OUTCOME, CREATED_AT)"
        " SELECT ?, DATEADD(second, SEQ4(), SYSDATE()), 'DUE', SYSDATE() FROM TABLE(GENERATOR(ROWCOUNT => 300))",
        bad,
    )
    empty.change(
        "INSERT INTO SCHEDULE_FIRES (SCHEDULE_ID, FIRE_AT, OUTCOME, CREATED_AT)"
        " SELECT ?, DATEADD(day, -1, SYSDATE()), 'DUE', SYSDATE()",
        good,
    )

    done = fire_due_schedules(empty.session, retries(), fires_max=100)

    assert {fired.schedule for fired in done.fired} == {"good"}
    assert {(failure.schedule, failure.is_new) for failure in done.failures} >= {("bad", True)}
    assert len(done.failures) <= 2  # once for what was left, once for what is due
    left = empty.rows("SELECT COUNT(*) FROM SCHEDULE_FIRES WHERE SCHEDULE_ID = ? AND OUTCOME = 'DUE'", good)
    assert left == [(0,)]


# --- signals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_every_process_of_a_pool_queues_its_run_again(empty, tmp_path, number):
    """As systemd ends a service by default: the run gets the signal too, and may end before its runner handles it."""
    queue_id = run_queue.add(
        empty.session, retries(), QueueRequest(name="orders", scenario="version: 1", files={})
    ).queue_id
    program = ["sh", "-c", f"kill -{number.value} $$; sleep 60"]
    fields: dict[str, Any] = {"hostname": "h", "pid": next(numbers), "version": "1", "task_queue": "Q"}
    me = PoolWorkerIdentity(worker_id=f"host-{fields['pid']}", labels=(), capabilities=(), **fields)
    runner = Runner(empty.open, me, RunnerSettings(runs_folder=tmp_path, poll_s=0.05, program=program))
    told = threading.Event()
    claimed = runner._tell

    def tell(line: str) -> None:
        claimed(line)
        if line.startswith("claimed") and not told.is_set():
            told.set()
            runner.drain(60.0)

    runner._tell = tell  # type: ignore[method-assign]
    runner.start()

    assert runner.done.wait(60)
    row = run_queue.read(empty.session, queue_id)
    assert row is not None
    assert (row.status, row.attempts, row.exit_code) == (QueueStatus.QUEUED, 0, 128 + number)
    assert row.reason == "its runner was asked to end"
    assert any(line.endswith(f"INTERRUPTED, exit code {128 + number}; queued again") for line in runner.take_events())


def test_a_run_that_alone_gets_a_signal_is_cancelled(empty, tmp_path):
    queue_id = run_queue.add(
        empty.session, retries(), QueueRequest(name="orders", scenario="version: 1", files={})
    ).queue_id

    one_pass(
        empty, tmp_path, lambda: status_of(empty, queue_id)[0] == "CANCELLED", program=["sh", "-c", "kill -TERM $$"]
    )


def test_a_run_id_that_is_no_name_for_a_folder_is_never_led_on(empty, ask, tmp_path):
    assert plant(empty, "RUN_STATUS", RUN_ID="../evil", STATUS="RUNNING", PHASE="MEASUREMENT", END_TIME=None)

    code, _, _ = ask("runs", "recover", "--output-dir", str(tmp_path / "runs"))

    assert code == 0
    assert list(tmp_path.iterdir()) == []
    assert run_status.read(empty.session, "../evil") is not None
