"""Schedules through the real driver: what is stored, what is due, and that racing and dying schedulers fire once."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from loadgen.cli.main import main
from loadgen.control.session import ControlFailed
from loadgen.control.tables import run_queue, run_status, schedules
from loadgen.control.tables.run_queue import QueueRequest
from loadgen.control.tables.schedules import FireRow, NewSchedule, ScheduleRow
from loadgen.errors import UsageError
from loadgen.model.nightly import BaselineCheck, FireOutcome, Overlap, QueueStatus, ScheduleFire
from orchestrator.nightly.scheduler import fire_due_schedules
from tests.control_plane import ControlPlane, retries
from tests.processes import ROOT

pytestmark = pytest.mark.any_driver

HOSTILE = 'it\'s "odd" \\ ; -- ? 😀 \x1b[31m'
numbers = itertools.count(1)


@pytest.fixture(autouse=True)
def no_schedules_left(plane: ControlPlane) -> Iterator[None]:
    yield
    for table in ("SCHEDULES", "SCHEDULE_FIRES", "SCHEDULE_PROGRESS", "RUN_QUEUE"):
        plane.change(f"DELETE FROM {table} WHERE 1 = 1")


def new(plane: ControlPlane, **more: Any) -> ScheduleRow:
    """A schedule that comes due every hour, next in half an hour: nothing is due by chance, and what is due is late."""
    minute = (run_status.server_time(plane.session).minute + 30) % 60
    wanted = QueueRequest(name="orders", scenario="version: 1", files={"a.csv": "ID\n1\n"}, target="embedded/BENCH_WH")
    fields: dict[str, Any] = {
        "name": f"schedule-{next(numbers)}",
        "cron": f"{minute} * * * *",
        "timezone": "UTC",
        "max_catchup": 1,
        "overlap": Overlap.QUEUE,
        "wanted": wanted,
    }
    made = NewSchedule(**(fields | more))
    schedules.add(plane.session, retries(), made)
    return schedules.find(plane.session, retries(), made.name)


def move_back(plane: ControlPlane, row: ScheduleRow, hours: int) -> None:
    """Let its last settlement be this many hours ago."""
    sql = "UPDATE SCHEDULES SET LAST_FIRE_AT = DATEADD(hour, ?, LAST_FIRE_AT) WHERE SCHEDULE_ID = ?"
    plane.change(sql, -hours, row.schedule_id)


def fires(plane: ControlPlane, row: ScheduleRow) -> tuple[FireRow, ...]:
    return schedules.newest_fires(plane.session, row.schedule_id, 100)


def keys(plane: ControlPlane) -> list[str]:
    return [key for (key,) in plane.rows("SELECT IDEMPOTENCY_KEY FROM RUN_QUEUE ORDER BY IDEMPOTENCY_KEY")]


def test_a_schedule_comes_back_as_it_was_added(plane):
    wanted = QueueRequest(
        name="orders",
        scenario=f"version: 1 # {HOSTILE}",
        files={"values/a.csv": HOSTILE},
        connection="prod",
        target="prod/BENCH_WH",
        requires=("size=large", "region=eu"),
        priority=7,
        judging=BaselineCheck(baseline="trend"),
    )

    row = new(plane, name=HOSTILE, cron="30 0 2 * * *", timezone="Europe/Berlin", overlap=Overlap.SKIP, wanted=wanted)

    stored = schedules.wanted(plane.session, row.schedule_id)
    assert (row.name, row.cron, row.timezone, row.scenario_name) == (HOSTILE, "30 0 2 * * *", "Europe/Berlin", "orders")
    assert (row.enabled, row.overlap, row.max_catchup, row.reason) == (True, "skip", 1, None)
    assert stored is not None
    assert (stored.scenario, stored.files, stored.connection) == (wanted.scenario, wanted.files, "prod")
    assert stored.judging == wanted.judging
    assert (stored.target, stored.requires, stored.priority) == ("prod/BENCH_WH", ("region=eu", "size=large"), 7)
    with pytest.raises(UsageError, match="already"):
        new(plane, name=HOSTILE)


def test_adding_is_done_once_when_the_answer_is_lost(plane, server):
    server.fault(match="INSERT INTO SCHEDULES", kind="drop_reply", count=1)

    row = new(plane)

    assert [found.name for found in schedules.by_name(plane.session)] == [row.name]


def test_due_fires_are_queued_once_with_their_key_and_missed_ones_are_recorded(plane):
    row = new(plane)
    move_back(plane, row, 3)

    first = fire_due_schedules(plane.session, retries())
    again = fire_due_schedules(plane.session, retries())

    newest, *missed = fires(plane, row)
    assert [fired.outcome for fired in first.fired] == ["QUEUED", "MISSED", "MISSED"]
    assert again.fired == ()
    assert keys(plane) == [f"schedule:{row.schedule_id}:{newest.at:%Y-%m-%dT%H:%M:%SZ}"]
    assert (newest.outcome, newest.queue_status) == (FireOutcome.QUEUED, QueueStatus.QUEUED)
    assert [(fire.outcome, fire.queue_id) for fire in missed] == [(FireOutcome.MISSED, None)] * 2
    assert schedules.find(plane.session, retries(), row.name).last_fire_at == newest.at
    queued = run_queue.read(plane.session, str(newest.queue_id))
    assert queued is not None
    assert (queued.name, queued.target) == ("orders", "embedded/BENCH_WH")


def test_two_schedulers_at_once_fire_once(plane):
    rows = [new(plane, max_catchup=3) for _ in range(6)]
    for row in rows:
        move_back(plane, row, 3)

    def scheduler(number: int) -> int:
        session = plane.open(f"scheduler-{number}")
        return len(fire_due_schedules(session, retries()).fired)

    with ThreadPoolExecutor(4, thread_name_prefix="scheduler") as pool:
        told = sum(pool.map(scheduler, range(4)))

    recorded = [fire for row in rows for fire in fires(plane, row)]
    assert {fire.outcome for fire in recorded} == {FireOutcome.QUEUED}
    assert len(keys(plane)) == len(set(keys(plane))) == len(recorded) == 6 * 3
    assert len({fire.queue_id for fire in recorded}) == len(recorded)
    assert told >= len(recorded)  # one that is being queued may be finished by another: the same run


@pytest.mark.parametrize("statement", ["INSERT INTO RUN_QUEUE", "UPDATE SCHEDULE_FIRES", "INTO SCHEDULE_PROGRESS"])
@pytest.mark.parametrize("executed", [False, True])
def test_a_scheduler_that_dies_between_two_writes_neither_loses_nor_doubles_a_run(plane, server, statement, executed):
    row = new(plane, max_catchup=2)
    move_back(plane, row, 2)
    kind = {"kind": "drop_reply"} if executed else {"kind": "http_status", "status": 503}
    server.fault(match=statement, count=1, **kind)

    with pytest.raises(ControlFailed):
        fire_due_schedules(plane.session, retries(attempts=1))
    left = len(fires(plane, row))
    fire_due_schedules(plane.session, retries())

    recorded = fires(plane, row)
    assert left == (2 if "PROGRESS" in statement else 1)
    assert [fire.outcome for fire in recorded] == [FireOutcome.QUEUED] * 2
    assert len(keys(plane)) == len({fire.queue_id for fire in recorded}) == 2


def test_while_its_run_has_not_ended_a_schedule_is_skipped(plane):
    row = new(plane, overlap=Overlap.SKIP)
    move_back(plane, row, 1)
    fire_due_schedules(plane.session, retries())
    (queued,) = (fire for fire in fires(plane, row) if fire.outcome is FireOutcome.QUEUED)

    busy = schedules.has_open_run(plane.session, row.schedule_id)
    run_queue.cancel(plane.session, retries(), str(queued.queue_id), "enough")

    assert busy
    assert not schedules.has_open_run(plane.session, row.schedule_id)


def test_enabling_again_does_not_fire_what_was_missed_unless_it_is_asked_for(plane):
    rows = [new(plane), new(plane)]
    for row in rows:
        schedules.disable(plane.session, retries(), row.schedule_id)
        move_back(plane, row, 5)

    disabled = fire_due_schedules(plane.session, retries())
    for row, catch_up in zip(rows, (False, True), strict=True):
        schedules.enable(plane.session, retries(), row.schedule_id, catch_up=catch_up)
    enabled = fire_due_schedules(plane.session, retries())

    assert (disabled.schedules, enabled.schedules) == (0, 2)
    assert fires(plane, rows[0]) == ()
    assert [fire.outcome for fire in fires(plane, rows[1])] == ["QUEUED"] + 4 * ["MISSED"]


def test_enabling_what_is_enabled_loses_nothing(plane):
    row = new(plane)
    move_back(plane, row, 5)

    schedules.enable(plane.session, retries(), row.schedule_id, catch_up=False)

    assert fire_due_schedules(plane.session, retries()).fired


@pytest.mark.parametrize("change", ["disable", "enable", "remove"])
def test_a_scheduler_that_was_paused_fires_nothing_of_the_past(plane, change):
    """It had decided before a user changed the schedule."""
    row = new(plane)
    fire = ScheduleFire(at=datetime.now(UTC).replace(microsecond=0) - timedelta(hours=1), outcome=FireOutcome.DUE)
    move_back(plane, row, 5)

    if change == "remove":
        schedules.remove(plane.session, retries(), row.schedule_id)
    else:
        schedules.disable(plane.session, retries(), row.schedule_id)
    if change == "enable":
        schedules.enable(plane.session, retries(), row.schedule_id, catch_up=False)

    assert not schedules.record_fire(plane.session, retries(), row.schedule_id, fire)
    assert fires(plane, row) == ()


def test_an_invalid_schedule_is_reported_and_stops_no_other(plane):
    rows = [new(plane) for _ in range(3)]
    for row in rows:
        move_back(plane, row, 1)
    first = min(rows, key=lambda row: row.schedule_id)
    plane.change("UPDATE SCHEDULES SET CRON = 'whenever' WHERE SCHEDULE_ID = ?", first.schedule_id)

    done = fire_due_schedules(plane.session, retries())

    assert {fired.schedule for fired in done.fired} == {row.name for row in rows} - {first.name}
    reason = schedules.find(plane.session, retries(), first.name).reason or ""
    assert reason.startswith("the cron expression 'whenever' has 1 fields")


def test_old_fires_are_forgotten_and_a_removed_schedule_leaves_none(plane):
    row = new(plane)
    move_back(plane, row, 1)
    fire_due_schedules(plane.session, retries())
    plane.change(
        "UPDATE SCHEDULE_FIRES SET FIRE_AT = DATEADD(day, -91, FIRE_AT) WHERE SCHEDULE_ID = ?", row.schedule_id
    )
    assert fires(plane, row)

    schedules.delete_old_fires(plane.session, retries(), row.schedule_id)
    assert fires(plane, row) == ()

    schedules.remove(plane.session, retries(), row.schedule_id)
    plane.change(
        "INSERT INTO SCHEDULE_FIRES (SCHEDULE_ID, FIRE_AT, OUTCOME, CREATED_AT) SELECT ?, SYSDATE(), 'DUE', SYSDATE()",
        row.schedule_id,
    )
    assert fire_due_schedules(plane.session, retries()).fired == ()
    assert fires(plane, row) == ()


# --- ticks of a crontab ----------------------------------------------------------------------------------------------


def test_a_tick_before_the_next_poll_opens_no_connection(plane, tmp_path, monkeypatch, capsys):
    """On an account; and a change of the schedules on this machine is seen by the next tick."""
    server, file = plane.server, tmp_path / "connections.toml"
    file.write_text(
        f'[account]\naccount = "a"\nuser = "u"\npassword = "any"\nhost = "{server.host}"\nport = {server.port}\n'
        'protocol = "http"\n'
    )
    file.chmod(0o600)
    monkeypatch.setenv("SNOWFLAKE_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def ask(*words: str) -> tuple[int, str]:
        """How many requests the server saw, and what was printed."""
        began_ms = server.now_ms()
        code = main(["schedule", *words, "-c", "account", "--database", plane.place.database])
        said = capsys.readouterr()
        assert code == 0, said.err
        lines = server.ask(f"/__loadgen/journal?since={began_ms}")
        return sum(not line["path"].startswith("/__loadgen/") for line in lines), said.out

    first, second, quiet = ask("tick"), ask("tick"), ask("tick", "--quiet")
    now = ask("tick", "--idle-poll=0s")
    ask("add", "nightly", str(ROOT / "examples" / "quickstart.yaml"), "--cron=0 0 1 1 *")
    after_change, after_that = ask("tick", "--format=json"), ask("tick", "--format=json")

    assert first[0] > 0
    assert first[1] == "nothing is due (0 schedules)\n"
    assert second[0] == 0
    assert re.fullmatch(r"nothing is due before [-0-9]{10} [:0-9]{8} UTC; --idle-poll 0s polls now\n", second[1])
    assert quiet == (0, "")
    assert now[0] > 0
    assert (after_change[0] > 0, after_that[0]) == (True, 0)
    looked, not_looked = json.loads(after_change[1]), json.loads(after_that[1])
    assert (looked["looked"], looked["schedules"]) == (True, 1)
    assert (not_looked["looked"], not_looked["schedules"], not_looked["fired"]) == (False, None, [])
