"""`loadgen schedule` where it needs no server: what it refuses, what it prints for cron and systemd, what it shows."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from loadgen.cli.main import main
from loadgen.cli.schedule import (
    as_json,
    as_text,
    next_as_json,
    next_as_text,
    schedule_as_json,
    table,
    ticked_as_text,
    upcoming_text,
)
from loadgen.control.tables.schedules import FireRow, ScheduleRow
from loadgen.model.nightly import BaselineCheck, FireOutcome, QueueStatus, parse_cron
from orchestrator.nightly.scheduler import (
    LIMIT_S,
    FireResult,
    ScheduleFailure,
    SchedulerPass,
    crontab,
    program,
    systemd_units,
    tick_document,
)

NOW = datetime(2026, 11, 16, 6, 0, tzinfo=UTC)
JUDGING = BaselineCheck(baseline="trend", confirm=True)
NIGHTLY = ScheduleRow(
    schedule_id="4711",
    name="nightly",
    cron="30 2 * * *",
    timezone="Europe/Berlin",
    scenario_name="orders",
    connection=None,
    target="embedded/BENCH_WH",
    requires='["zone=eu"]',
    priority=0,
    enabled=True,
    max_catchup=1,
    overlap="skip",
    last_fire_at=NOW - timedelta(hours=5),
    reason=None,
    created_at=NOW - timedelta(days=9),
    updated_at=NOW,
)
BAD = replace(
    NIGHTLY, name="b\x1b[31mad", cron="whenever", requires="{", reason="the cron expression 'whenever' has 1 fields"
)
FIRES = (
    FireRow(
        at=NOW - timedelta(hours=5),
        outcome=FireOutcome.QUEUED,
        queue_id="orders-7f3a",
        queue_status=QueueStatus.COMPLETED,
        run_id="20261116-0130-orders-7f3a",
        exit_code=10,
    ),
    FireRow(
        at=NOW - timedelta(hours=29),
        outcome=FireOutcome.SKIPPED,
        queue_id=None,
        queue_status=None,
        run_id=None,
        exit_code=None,
    ),
)

# --- what is refused -------------------------------------------------------------------------------------------------

MANY_LABELS = ",".join(f"zone{number}={'x' * 190}" for number in range(90))
ADD = ["schedule", "add", "nightly", "examples/quickstart.yaml", "--cron", "0 2 * * *"]


@pytest.mark.parametrize(
    ("words", "error", "hint"),
    [
        (["schedule", "add", "a b", "x.yaml", "--cron", "0 2 * * *"], "not a valid name for a schedule", "nightly-eu"),
        (["schedule", "add", "x" * 101, "x.yaml", "--cron", "0 2 * * *"], "not a valid name for a schedule", "100"),
        (["schedule", "add", "nightly", "x.yaml", "--cron", "0 2 * *"], "4 fields", "every night at two"),
        (["schedule", "add", "nightly", "x.yaml", "--cron", "0 25 * * *"], "bad hour", "Correct its hour"),
        ([*ADD, "--tz", "Berlin"], "no time zone 'Berlin'", "Did you mean Europe/Berlin?"),
        ([*ADD, "--requires", "fast"], "--requires 'fast' is not KEY=VALUE", "zone=eu"),
        ([*ADD, "--requires", MANY_LABELS], "--requires has more than 16,000 characters", "fewer"),
        ([*ADD, "--overlap", "kill"], "--overlap", "--help"),
        ([*ADD, "--max-catchup", "501"], "--max-catchup", "--help"),
        ([*ADD, "--max-catchup", "3"], "--overlap skip allows one", "--overlap queue"),
        ([*ADD, "--max-catchup", "-1"], "--max-catchup", "--help"),
        (["schedule", "add", "nightly", "nowhere.yaml", "--cron", "0 2 * * *"], "nowhere.yaml", "loadgen init"),
        (["schedule", "add", "nightly", "examples/quickstart.yaml"], "--cron", "--help"),
        (["schedule", "next", "-n", "0"], "-n", "--help"),
        (["schedule", "print"], "neither --cron nor --systemd", "Add one"),
        (["schedule", "print", "--cron", "--out", "x"], "--out works with --systemd only", "crontab -e"),
        (["schedule", "print", "--cron", "-c", "a\nb"], "control character", "Remove it"),
        (["schedule", "print", "--systemd", "--out", "/dev/null/x"], "cannot be written", "another directory"),
    ],
)
def test_invalid_input_is_an_error_with_a_hint(words, error, hint, capsys, monkeypatch):
    monkeypatch.chdir(Path(__file__).resolve().parents[2])

    code = main(words)

    said = capsys.readouterr().err
    assert code == 2
    assert said.startswith("error: ")
    assert error in said
    assert "\nhint: " in said
    assert hint in said


# --- for cron and systemd --------------------------------------------------------------------------------------------


def test_a_line_for_cron_holds_a_lock_has_a_limit_and_is_silent(capsys):
    assert main(["schedule", "print", "--cron", "-c", "prod", "--database", "BENCH_CONTROL"]) == 0

    lines = capsys.readouterr().out.splitlines()
    entry = lines[-1]
    fields, command = entry.split()[:5], entry.split(maxsplit=5)[5]
    parse_cron(" ".join(fields))
    assert all(line.startswith(("#", "SHELL=/bin/sh")) for line in lines[:-1])
    assert shlex.split(command) == [
        *("flock", "-n", "-E", "75", "$HOME/.loadgen-schedule.lock", "timeout", "-k", "10", str(LIMIT_S), program()),
        *("schedule", "tick", "--quiet", "--connection=prod", "--database=BENCH_CONTROL"),
    ]
    assert Path(program()).is_absolute()


@pytest.mark.parametrize(
    ("options", "every", "cost", "word"),
    [
        ((), "10m", "2.4", None),
        (("--idle-poll", "1h"), "1h", "0.4", "--idle-poll=1h"),
        (("--idle-poll", "5s"), "5s", "24.0", "--idle-poll=5s"),
    ],
)
@pytest.mark.parametrize("kind", ["--cron", "--systemd"])
def test_the_output_contains_the_cost_per_day(capsys, kind, options, every, cost, word):
    assert main(["schedule", "print", kind, "-c", "prod", *options]) == 0

    printed = " ".join(capsys.readouterr().out.replace("#", "").split())
    assert f"warehouse once per {every}, and when a schedule fires" in printed
    assert f"about {cost} credits a day (X-Small)" in printed
    assert ("--idle-poll" in printed) == (word is not None)
    assert word is None or word in printed


def test_names_are_written_as_cron_and_systemd_read_them():
    words = ["loadgen", '--connection=50% of $HOME; it\'s "odd" \\']

    line = crontab(words).splitlines()[-1]
    service = systemd_units(words)["loadgen-schedule.service"]

    assert "%" not in line.replace("\\%", "")
    assert shlex.split(line.replace("\\%", "%"))[-1] == words[1]
    assert 'ExecStart=loadgen "--connection=50%% of $$HOME; it\'s \\"odd\\" \\\\"' in service


def test_units_are_printed_or_written(capsys, tmp_path):
    assert main(["schedule", "print", "--systemd", "-c", "prod"]) == 0
    printed = capsys.readouterr().out
    assert main(["schedule", "print", "--systemd", "-c", "prod", "--out", str(tmp_path / "new")]) == 0

    units = {path.name: path.read_text("utf-8") for path in (tmp_path / "new").iterdir()}
    assert sorted(units) == ["loadgen-schedule.service", "loadgen-schedule.timer"]
    assert printed == "\n".join(units[name] for name in sorted(units))
    assert f"TimeoutStartSec={LIMIT_S}" in printed
    assert "schedule tick --quiet --connection=prod" in printed


# --- what is shown ---------------------------------------------------------------------------------------------------


def test_the_list_shows_the_next_fire_of_each_and_its_problems():
    off = replace(NIGHTLY, name="off", enabled=False)

    lines = table([NIGHTLY, off, BAD], NOW).splitlines()

    assert " ".join(lines[1].split()) == "nightly 30 2 * * * Europe/Berlin orders 2026-11-17 01:30:00 enabled"
    assert lines[2].split()[-2:] == ["-", "disabled"]
    assert "cannot be fired: the cron expression 'whenever' has 1 fields" in lines[3]
    assert "\x1b" not in "".join(lines)


def test_a_schedule_is_shown_with_the_outcome_of_its_fires():
    text = as_text(NIGHTLY, JUDGING, FIRES, NOW)

    assert "next         Tue 2026-11-17 02:30:00 Europe/Berlin  (2026-11-17 01:30:00 UTC)" in text
    assert "requires     zone=eu" in text
    assert "judged by    --baseline=trend --confirm" in text
    queued, skipped = (" ".join(line.split()) for line in text.splitlines()[-2:])
    assert queued == "2026-11-16 01:00:00 QUEUED orders-7f3a COMPLETED 10 20261116-0130-orders-7f3a"
    assert skipped == "2026-11-15 01:00:00 SKIPPED - - - -"
    assert as_text(NIGHTLY, JUDGING, (), NOW).endswith("no fires yet")
    assert "it will not fire" in as_text(BAD, BaselineCheck(), (), NOW)


def test_json_contains_the_same():
    shown = json.loads(json.dumps(as_json(NIGHTLY, JUDGING, FIRES, NOW)))

    assert shown["next_fire_at"] == "2026-11-17T01:30:00Z"
    assert shown["requires"] == ["zone=eu"]
    assert (shown["baseline"], shown["confirm"]) == ("trend", True)
    assert shown["fires"][0]["queue_status"] == "COMPLETED"
    assert shown["fires"][1]["queue_id"] is None
    assert schedule_as_json(BAD, NOW)["next_fire_at"] is None
    assert "whenever" in schedule_as_json(BAD, NOW)["reason"]
    assert schedule_as_json(replace(NIGHTLY, enabled=False), NOW)["reason"] is None


def test_next_fires_are_in_the_zone_and_in_utc():
    before = datetime(2026, 10, 23, 12, tzinfo=UTC)  # clocks are set back on the 25th

    october = replace(NIGHTLY, last_fire_at=before)

    assert next_as_text(october, before, 3).splitlines()[1:] == [
        "  Sat 2026-10-24 02:30:00 Europe/Berlin  (2026-10-24 00:30:00 UTC)",
        "  Sun 2026-10-25 02:30:00 Europe/Berlin  (2026-10-25 00:30:00 UTC)",
        "  Mon 2026-10-26 02:30:00 Europe/Berlin  (2026-10-26 01:30:00 UTC)",
    ]
    assert next_as_json(BAD, NOW, 3)["next"] == []
    assert "none: the cron expression" in next_as_text(BAD, NOW, 3)
    assert upcoming_text(replace(NIGHTLY, timezone="UTC"), NOW) == "next Tue 2026-11-17 02:30:00 UTC"


def test_the_output_of_a_tick():
    done = SchedulerPass(
        schedules=2,
        fired=(FireResult(schedule="nightly", at=NOW, outcome=FireOutcome.QUEUED, queue_id="orders-7f3a"),),
        failures=(ScheduleFailure(schedule="bad", reason="no", is_new=True),),
        more=True,
    )

    assert ticked_as_text(done).splitlines() == [
        "2026-11-16 06:00:00 UTC  QUEUED   nightly  orders-7f3a",
        "more runs are due than one tick may queue: tick again",
    ]
    assert ticked_as_text(SchedulerPass(schedules=2)) == "nothing is due (2 schedules)"
    assert tick_document(done)["complaints"] == [{"schedule": "bad", "reason": "no"}]
    assert tick_document(done)["fired"][0]["fire_at"] == "2026-11-16T06:00:00Z"
