"""`loadgen schedule tick` between two polls of the tables: the file with the time of the next poll."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.control.location import ControlPlaneLocation
from loadgen.model.nightly import UNCLAIMED_AFTER_S, FireOutcome
from orchestrator.nightly.scheduler import (
    SIZE_MAX,
    FireResult,
    NextLook,
    NextLookFile,
    ScheduleFailure,
    SchedulerPass,
    after_tick,
    fire_due_schedules,
    place_key,
)
from tests.control_plane import retries
from tests.unit.schedule_tables import NEW_YEAR, Row, Tables, Wire

IDLE_POLL_S = 600.0
NOW = datetime(2026, 11, 16, 6, 0, tzinfo=UTC)
PLACE = "f" * 64
NIGHT = SchedulerPass(schedules=1, next_s=7200.0)
FIRED = FireResult(schedule="a", at=NOW, outcome=FireOutcome.QUEUED, queue_id="q")
BROKEN = ScheduleFailure(schedule="a", reason="no", is_new=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state" / "schedules"


def noted(folder: Path, done: SchedulerPass = NIGHT) -> Path:
    """The file after a tick that found this."""
    NextLookFile(PLACE, folder).note(NOW, done, IDLE_POLL_S)
    (path,) = folder.iterdir()
    return path


def pending(folder: Path, seconds: float = 60.0, *, place: str = PLACE, idle_poll_s: float = IDLE_POLL_S) -> Any:
    return NextLookFile(place, folder).pending(NOW + timedelta(seconds=seconds), idle_poll_s)


@pytest.mark.parametrize(
    ("done", "wait_s"),
    [
        (NIGHT, 600.0),
        (SchedulerPass(), 600.0),
        (SchedulerPass(schedules=1, next_s=59.5), 59.5),
        (SchedulerPass(schedules=1, next_s=7200.0, fired=(FIRED,)), UNCLAIMED_AFTER_S),
        (SchedulerPass(schedules=1, next_s=30.0, fired=(FIRED,)), 30.0),
        (SchedulerPass(schedules=2, next_s=7200.0, failures=(BROKEN,)), 600.0),
    ],
)
def test_the_next_poll_is_at_the_next_fire_and_after_the_idle_interval(folder, done, wait_s):
    noted(folder, done)

    assert pending(folder, 0.0) == NOW + timedelta(seconds=wait_s)
    assert pending(folder, wait_s - 0.1) == NOW + timedelta(seconds=wait_s)
    assert pending(folder, wait_s) is None


@pytest.mark.parametrize(
    "done",
    [
        SchedulerPass(schedules=1, next_s=7200.0, more=True),
        SchedulerPass(schedules=1, next_s=7200.0, failures=(ScheduleFailure(schedule="a", reason="no", is_new=True),)),
    ],
    ids=["more runs are due", "a fire has just failed"],
)
def test_a_tick_that_left_something_undone_is_followed_by_another(folder, done):
    noted(folder)

    NextLookFile(PLACE, folder).note(NOW, done, IDLE_POLL_S)

    assert pending(folder) is None
    assert after_tick(PLACE, NOW, done, IDLE_POLL_S) is None


def test_a_tick_polls_after_changes_of_the_clock_of_the_interval_and_of_the_schedules(folder):
    noted(folder)
    assert pending(folder) is not None

    assert pending(folder, -1.0) is None, "the clock was set back"
    assert pending(folder, 86_400.0) is None, "the clock was set forward"
    assert pending(folder, idle_poll_s=300.0) is None, "the interval is shorter now"
    assert pending(folder, idle_poll_s=0.0) is None
    assert pending(folder, place="e" * 64) is None, "another control plane"
    NextLookFile(PLACE, folder).forget()
    assert pending(folder) is None
    NextLookFile(PLACE, folder).forget()


GOOD = {"place": PLACE, "looked_at": NOW.timestamp(), "look_at": NOW.timestamp() + 500}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        "{",
        "[" * 500,
        "\udcff",
        json.dumps(GOOD | {"look_at": "soon"}),
        json.dumps(GOOD | {"look_at": True}),
        json.dumps(GOOD | {"look_at": None}),
        json.dumps(GOOD | {"look_at": float("nan")}),
        json.dumps(GOOD | {"look_at": float("inf")}),
        json.dumps(GOOD | {"look_at": 1e300}),
        json.dumps(GOOD | {"look_at": NOW.timestamp() + 86_400}),
        json.dumps(GOOD | {"looked_at": -1e300}),
        json.dumps(GOOD | {"looked_at": NOW.timestamp() + 100}),
        json.dumps(GOOD | {"place": "e" * 64}),
        json.dumps(GOOD | {"more": 1}),
        json.dumps({"look_at": NOW.timestamp() + 500}),
        json.dumps(GOOD) + " " * SIZE_MAX,
    ],
)
def test_an_invalid_file_makes_a_tick_poll(folder, text):
    path = noted(folder)
    path.write_text(json.dumps(GOOD), "utf-8")
    assert pending(folder) is not None

    path.write_text(text, "utf-8", "surrogateescape")

    assert pending(folder) is None


@settings(max_examples=30)
@given(
    text=st.binary(max_size=200)
    | st.recursive(st.none() | st.floats() | st.text(), st.lists).map(json.dumps).map(str.encode)
)
def test_no_text_of_the_file_ends_a_tick(text):
    found = NextLook.parse(text)

    assert found is None or isinstance(found.is_before(NOW, IDLE_POLL_S), bool)


@pytest.mark.parametrize("what", ["a link", "a folder", "a pipe", "others may write it"])
def test_a_file_that_another_could_have_made_is_not_read(folder, tmp_path, what):
    path = noted(folder)
    elsewhere = path.rename(tmp_path / "elsewhere")
    if what == "a link":
        path.symlink_to(elsewhere)
    elif what == "a folder":
        path.mkdir()
    elif what == "a pipe":
        os.mkfifo(path)
    else:
        elsewhere.rename(path).chmod(0o620)

    assert pending(folder) is None


def test_the_file_is_private_small_and_complete(folder):
    path = noted(folder)

    assert path.stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o777 == 0o700
    assert path.stat().st_size < SIZE_MAX / 2
    assert json.loads(path.read_text("utf-8")).keys() == {"place", "looked_at", "look_at"}


def test_an_unwritable_folder_costs_polls_and_nothing_else(tmp_path):
    (tmp_path / "file").write_text("", "utf-8")
    folder = tmp_path / "file" / "schedules"

    NextLookFile(PLACE, folder).note(NOW, NIGHT, IDLE_POLL_S)

    assert pending(folder) is None


def test_each_control_plane_has_its_own_file(monkeypatch, tmp_path):
    def key(account: str, database: str) -> str:
        monkeypatch.setenv("SNOWFLAKE_HOME", str(tmp_path))
        (tmp_path / "connections.toml").write_text(f'[prod]\naccount = "{account}"\nuser = "u"\npassword = "p"\n')
        (tmp_path / "connections.toml").chmod(0o600)
        return place_key(ControlPlaneLocation(connection="prod", database=database))

    assert key("one", "LOADGEN") == key("one", "loadgen")
    assert len({key("one", "LOADGEN"), key("two", "LOADGEN"), key("one", "OTHER")}) == 3


@pytest.mark.parametrize("skew_s", [0.0, -45.0, 1800.0], ids="server {}s ahead".format)
def test_days_of_ticks_fire_everything_in_time_and_poll_rarely(folder, skew_s):
    """A tick every minute, on a machine whose clock is not the server's; its statements take three seconds."""
    start = NEW_YEAR.replace(tzinfo=None)
    crons = {
        "a": Row("0 2 * * *", "UTC", 1, "queue", start),
        "b": Row("30 6 * * FRI", "Europe/Berlin", 1, "queue", start),
    }
    tables, memory, looks, late = Tables(start, crons), NextLookFile(PLACE, folder), 0, list[timedelta]()
    days = 2

    for minute in range(days * 24 * 60):
        now = NEW_YEAR + timedelta(minutes=minute, seconds=0.4)
        if memory.pending(now, IDLE_POLL_S) is not None:
            continue
        looks += 1
        tables.now = start + timedelta(minutes=minute, seconds=3.4 + skew_s)
        done = fire_due_schedules(Wire(tables).session, retries())
        memory.note(now, done, IDLE_POLL_S)
        late += [tables.now - fired.at.replace(tzinfo=None) for fired in done.fired]

    assert len(tables.runs("a")) + len(tables.runs("b")) == len(late) == days + 1
    assert max(late) < timedelta(minutes=2)
    assert looks <= days * (24 * 6 + 4)
