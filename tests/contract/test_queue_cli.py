"""`loadgen queue`, `workers` and `pool stats` as a user types them, with their messages about invalid input."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from loadgen.cli.main import main
from loadgen.control.tables import run_queue
from loadgen.control.tables.pool_workers import PoolWorkerIdentity
from loadgen.control.tables.run_queue import AttemptResult
from loadgen.model.nightly import QueueStatus
from tests.command_line import Ask
from tests.contract.queue_builders import LEASE_S, register, shift_queue_times
from tests.control_plane import ControlPlane, retries

pytestmark = pytest.mark.any_driver

SCENARIO = """
version: 1
name: Night Orders
connection: embedded
target: {warehouse: WH, database: BENCH, schema: PUBLIC}
values: {keys: {file: data/keys.csv, column: K}}
workload: {statements: [{name: one, sql: "SELECT ?", params: [{pool: keys}]}]}
load: {connections: 1, workers: 1, warmup: 0s, duration: 1s}
"""


@pytest.fixture
def ask(ask: Ask, plane: ControlPlane) -> Ask:
    """With an empty queue."""
    for table in ("RUN_QUEUE", "RUN_ATTEMPTS", "RUN_ATTEMPT_ENDS", "POOL_WORKERS", "STOP_REQUESTS"):
        plane.change(f"DELETE FROM {table}")
    return ask


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "keys.csv").write_text("K\n1\n2\n", "utf-8")
    file = tmp_path / "night.yaml"
    file.write_text(SCENARIO, "utf-8")
    return file


def answer(asked: tuple[int, str, str]) -> dict[str, Any]:
    code, out, err = asked
    assert code == 0, err
    told: dict[str, Any] = json.loads(out)
    return told


def add_runner(plane: ControlPlane, worker_id: str, *labels: str) -> None:
    me = PoolWorkerIdentity(
        worker_id=worker_id, hostname=worker_id, pid=1, version="1", task_queue="Q", labels=labels, capabilities=labels,
        capacity=10,
    )  # fmt: skip
    register(plane, me)


def test_a_queued_run_holds_its_files_and_no_path(plane, ask, scenario):
    options = ("--priority=7", "--requires=b=2,a=1", "--baseline=trend", "--confirm")
    added = answer(ask("queue", "add", str(scenario), *options, "--format=json"))

    (files, text, target), *_ = plane.rows("SELECT FILES, SCENARIO, TARGET FROM RUN_QUEUE")
    assert json.loads(files)["data/keys.csv"] == "K\n1\n2\n"
    assert json.loads(text)["control"] == {"database": plane.place.database}  # as in the option: for the run too
    assert str(scenario.parent) not in files + text
    assert target == "embedded/WH"
    shown = answer(ask("queue", "show", added["queue_id"], "--format=json"))
    assert (shown["priority"], shown["requires"], shown["history"]) == (7, ["a=1", "b=2"], [])
    assert (shown["baseline"], shown["confirm"]) == ("trend", True)
    assert "judged by   --baseline=trend --confirm" in ask("queue", "show", added["queue_id"])[1]


def test_a_run_whose_lease_has_expired_is_shown_as_such(plane, ask):
    add_runner(plane, "bench-1")
    living, stale = (
        run_queue.add(plane.session, retries(), run_queue.QueueRequest(name=name, scenario="s", files={})).queue_id
        for name in ("living", "stale")
    )
    for _ in range(2):
        assert run_queue.claim(plane.session, retries(), "bench-1", (), LEASE_S) is not None
    shift_queue_times(plane, LEASE_S + 90, stale)

    rows = {row["queue_id"]: row for row in answer(ask("queue", "list", "--format=json"))["queue"]}
    _, listed, _ = ask("queue", "list")
    _, shown, _ = ask("queue", "show", stale)

    assert rows[living]["lease_expired_s"] is None
    assert 90 <= rows[stale]["lease_expired_s"] < 600
    assert re.search(rf"{stale} +RUNNING .* lease expired \d+ s ago, by bench-1", listed)
    assert re.search(rf"{living} +RUNNING .* by bench-1", listed)
    assert listed.count("lease expired") == 1
    assert re.search(r"lease +expired \d+ s ago", shown)


@pytest.mark.parametrize("words", [("queue", "add"), ("schedule", "add", "nightly", "--cron=0 2 * * *")])
def test_texts_that_are_too_long_for_a_statement_are_refused(plane, ask, scenario, words):
    values = "K\n" + "é" * (run_queue.TEXTS_BYTES_MAX // 6 + 1)  # \u00e9 as the queue stores it
    (scenario.parent / "data" / "keys.csv").write_text(values, "utf-8")

    code, out, err = ask(*words, str(scenario))

    assert (code, out) == (2, "")
    error, hint = err.strip().splitlines()[-2:]
    assert re.fullmatch(r"error: .*night.yaml and its value files have 90\d,\d{3} bytes .* its limit is 900,000", error)
    assert hint == "hint: Let the scenario take the values from a query: values: {NAME: {query: ...}}."
    assert plane.rows("SELECT COUNT(*) FROM RUN_QUEUE") == [(0,)]


def test_texts_that_just_fit_are_queued_with_a_statement_below_a_megabyte(plane, ask, scenario):
    (scenario.parent / "data" / "keys.csv").write_text("K\n" + "1\n" * 290_000, "utf-8")

    added = answer(ask("queue", "add", str(scenario), "--format=json"))

    ((files,),) = plane.rows("SELECT FILES FROM RUN_QUEUE WHERE QUEUE_ID = ?", added["queue_id"])
    assert 800_000 < len(files) < run_queue.TEXTS_BYTES_MAX
    assert json.loads(files)["data/keys.csv"].count("\n") == 290_001


@pytest.mark.parametrize("words", [("queue", "add"), ("schedule", "add", "nightly", "--cron=0 2 * * *")])
def test_what_is_queued_is_what_was_meant_where_it_was_typed(plane, ask, scenario, monkeypatch, tmp_path, words):
    """The host that does the run has other variables, and another default connection."""
    text = SCENARIO.replace("connection: embedded", "connection: ${TARGET:-embedded}")
    text = text.replace("SELECT ?", "SELECT ?, '${A_TOKEN}'")
    scenario.write_text(text, "utf-8")
    for name, value in {"TARGET": "prod", "A_TOKEN": "s3cret-s3cret", "HOME": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    place = ("-c", "embedded", "--database", plane.place.database)

    head, file = [*words[:3]], str(scenario)
    code = main([*head, file, *words[3:], *place, "--format=json"])

    assert code == 0
    table = words[0].upper().replace("QUEUE", "RUN_QUEUE").replace("SCHEDULE", "SCHEDULES")
    ((stored, connection),) = plane.rows(f"SELECT SCENARIO, CONNECTION FROM {table}")
    assert connection == "embedded"  # -c has priority over the scenario
    assert "s3cret" not in stored
    assert json.loads(stored)["connection"] == "prod"
    assert json.loads(stored)["workload"]["statements"][0]["sql"] == "SELECT ?, '${A_TOKEN}'"
    plane.change(f"DELETE FROM {table}")


def test_a_connection_that_was_not_given_is_named_or_rejected(plane, ask, scenario, monkeypatch, tmp_path, capsys):
    scenario.write_text(SCENARIO.replace("connection: embedded\n", "control: {connection: embedded}\n"), "utf-8")
    folder = tmp_path / ".snowflake"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    words = ["queue", "add", str(scenario), "--database", plane.place.database]

    assert main(words) == 2
    assert "this machine has no default connection" in capsys.readouterr().err
    (folder / "config.toml").write_text('default_connection_name = "prod"\n', "utf-8")
    (folder / "config.toml").chmod(0o600)
    assert main(words) == 0
    assert plane.rows("SELECT CONNECTION, TARGET FROM RUN_QUEUE") == [("prod", "prod/WH")]


def test_a_run_is_listed_shown_cancelled_and_tried_again(ask, scenario):
    code, out, _ = ask("queue", "add", str(scenario), "--not-before=2999-01-01T02:00+01:00")
    queue_id = out.split()[-1]

    (listed,) = answer(ask("queue", "list", "--status=queued", "--format=json"))["queue"]
    table, shown = ask("queue", "list")[1], ask("queue", "show", queue_id)[1]
    cancelled, again = ask("queue", "cancel", queue_id)[1], ask("queue", "retry", queue_id)[1]

    assert (code, listed["queue_id"], listed["available_at"]) == (0, queue_id, "2999-01-01T01:00:00.000Z")
    assert table.splitlines()[0].split()[:2] == ["ID", "STATUS"]
    assert queue_id in table
    assert "not before  2999-01-01 01:00:00" in shown
    assert "no attempts yet" in shown
    assert (cancelled, again) == (f"{queue_id} is CANCELLED\n", f"{queue_id} is QUEUED\n")


def test_attempts_are_shown(plane, ask, scenario):
    queue_id = answer(ask("queue", "add", str(scenario), "--format=json"))["queue_id"]
    add_runner(plane, "bench-1")
    claim = run_queue.claim(plane.session, retries(), "bench-1", (), LEASE_S)
    assert claim is not None
    run_queue.finish(plane.session, retries(), claim, QueueStatus.COMPLETED, AttemptResult(exit_code=10, run_id="r-1"))

    text = ask("queue", "show", queue_id)[1]
    code, _, err = ask("queue", "retry", queue_id)

    assert "bench-1" in text
    assert "exit code   10" in text
    assert (code, "is COMPLETED, so it cannot be queued again" in err, "hint: " in err) == (2, True, True)


def test_another_run_with_a_used_key_is_refused(ask, scenario):
    words = ("queue", "add", str(scenario), "--idempotency-key=once")
    queue_id = ask(*words)[1].split()[-1]

    again = ask(*words)
    scenario.write_text(scenario.read_text("utf-8").replace("SELECT ?", "SELECT ? + 1"), "utf-8")
    code, _, err = ask(*words)

    assert again[:2] == (0, f"already queued with this key: {queue_id}\n")
    assert code == 2
    assert f"{queue_id} has the same --idempotency-key, but differs in its scenario" in err
    assert "hint: Choose another key" in err


MANY_LABELS = ",".join(f"zone{number}={'x' * 190}" for number in range(90))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["queue", "add", "FILE", "--requires=zone"], "--requires 'zone' is not"),
        (["queue", "add", "FILE", f"--requires={MANY_LABELS}"], "--requires has more than 16,000 characters"),
        (["queue", "add", "FILE", "--not-before=tomorrow"], "--not-before 'tomorrow' is not a time"),
        (["queue", "add", "FILE", f"--idempotency-key={'k' * 201}"], "has 201 characters"),
        (["queue", "add", "missing.yaml"], "missing.yaml"),
        (["queue", "add", "FILE", "--confirm"], "--confirm needs --baseline trend"),
        (["queue", "add", "FILE", "--baseline=nothing"], "there is no run nothing"),
        (["queue", "list", "--status=done"], "there is no status 'done'"),
        (["queue", "show", "nothing"], "there is no queued run nothing"),
        (["queue", "cancel", "nothing"], "there is no queued run nothing"),
        (["workers", "list", "--status=gone"], "there is no status 'gone'"),
        (["workers", "list", "--label=zone"], "--label 'zone' is not KEY=VALUE"),
        (["workers", "list", "--page-size=101"], "101"),
        (["workers", "list", "--page-size=0"], "0 is not in the range"),
        (["workers", "list", "--page-token=bench-1"], "'bench-1' is not a page token"),
        (["workers", "list", "--page-token="], "'' is not a page token"),
        (["workers", "drain", "absent"], "there is no runner absent"),
        (["pool", "run", "--min=3", "--max=2"], "a pool of 3 to 2 runners is not possible"),
        (["pool", "run", "--output-dir=/dev/null/runs"], "cannot write /dev/null/runs"),
        (["pool", "run", "--idle=soon"], "--idle 'soon' is not a duration"),
        (["pool", "run", "--lease=10ms"], "--lease or --poll is too short"),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, list) else None,
)
def test_invalid_input_is_an_error_with_a_hint(ask, scenario, words, said):
    code, _, err = ask(*[str(scenario) if word == "FILE" else word for word in words])

    assert code == 2
    assert said in err
    assert "hint: " in err


def test_a_value_file_that_is_no_text_is_refused(ask, scenario):
    (scenario.parent / "data" / "keys.csv").write_bytes(b"K\n\xff\xfe\n")

    code, _, err = ask("queue", "add", str(scenario))

    assert code == 2
    assert "hint: " in err


def test_runners_are_listed_in_pages_shown_drained_and_given_up(plane, ask):
    for number in range(3):
        add_runner(plane, f"bench-{number}", "zone=eu", f"n={number}")
    run_queue.add(plane.session, retries(), run_queue.QueueRequest(name="n", scenario="s", files={}))
    claim = run_queue.claim(plane.session, retries(), "bench-2", (), LEASE_S)
    assert claim is not None

    first = answer(ask("workers", "list", "--page-size=2", "--label=zone=eu", "--format=json"))
    rest = answer(ask("workers", "list", f"--page-token={first['next_page_token']}", "--format=json"))
    drained, gone = ask("workers", "drain", "bench-1")[1], ask("workers", "offline", "bench-2")[1]
    shown, stats = ask("workers", "show", "bench-1")[1], answer(ask("pool", "stats", "--format=json"))

    assert [one["worker_id"] for one in first["workers"]] == ["bench-0", "bench-1"]
    assert (first["total_count"], first["workers"][0]["labels"]) == (3, ["n=0", "zone=eu"])
    assert ([one["worker_id"] for one in rest["workers"]], rest["next_page_token"]) == (["bench-2"], None)
    assert (drained, gone) == ("bench-1 is DRAINING\n", "bench-2 is OFFLINE\n")
    assert run_queue.claim_status(plane.session, claim) is None
    assert "zone=eu" in shown
    assert stats == {
        "total_workers": 2,
        "idle_workers": 2,
        "processing_workers": 0,
        "total_completed": 0,
        "total_failed": 0,
        "idle_credits_per_day": None,
        "workers": {
            "bench-0": {"status": "ONLINE", "current_run": None, "completed": 0, "failed": 0},
            "bench-1": {"status": "DRAINING", "current_run": None, "completed": 0, "failed": 0},
        },
        "unreadable": [],
    }
    assert "bench-0  ONLINE  idle" in ask("pool", "stats")[1]


def test_old_ended_runs_are_pruned_and_waiting_or_running_ones_are_not(plane, ask, scenario, tmp_path):
    add_runner(plane, "bench-1")
    queued = [answer(ask("queue", "add", str(scenario), "--format=json"))["queue_id"] for _ in range(3)]
    ended, running = (run_queue.claim(plane.session, retries(), "bench-1", (), LEASE_S, share=True) for _ in range(2))
    assert ended is not None
    assert running is not None
    waits = next(one for one in queued if one not in (ended.queue_id, running.queue_id))
    run_queue.finish(plane.session, retries(), ended, QueueStatus.FAILED, AttemptResult(exit_code=2, reason="no"))
    left = {one: tmp_path / "runs" / ".queue" / f"{one}.1" for one in (*queued, "forgotten-1")}
    strange = tmp_path / "runs" / ".queue" / "notes"
    for folder in (*left.values(), strange):
        folder.mkdir(parents=True)
        (folder / "stderr").write_text("error: no\n", "utf-8")
    words = ("runs", "prune", f"--output-dir={tmp_path / 'runs'}", "--format=json")

    young = answer(ask(*words, "--older-than=1h"))
    plane.change(
        "UPDATE RUN_QUEUE SET ENDED_AT = DATEADD(hour, -2, ENDED_AT), CREATED_AT = DATEADD(day, -2, CREATED_AT)"
    )
    for path in (tmp_path / "runs" / ".queue").rglob("*"):
        os.utime(path, (0, 0))
    os.utime(left["forgotten-1"] / "stderr")  # it has just been written
    asked = answer(ask(*words, "--older-than=1h", "--dry-run"))
    done = answer(ask(*words, "--older-than=1h"))
    again, text = answer(ask(*words, "--older-than=1h")), ask("runs", "prune", "--older-than=1h")[1]

    assert (young["queued"], young["folders"], young["deleted"]) == ([], [], {})
    assert [one["queue_id"] for one in asked["queued"]] == [ended.queue_id]
    assert (asked["folders"], asked["deleted"]) == ([str(left[ended.queue_id])], {})
    assert (done["queued"], done["folders"]) == (asked["queued"], asked["folders"])
    assert (done["deleted"]["RUN_QUEUE"], done["deleted"]["RUN_ATTEMPTS"], done["deleted"]["RUN_ATTEMPT_ENDS"]) == (
        1,
        1,
        1,
    )
    assert (again["queued"], again["folders"], again["deleted"]) == ([], [], {})
    assert text == "nothing is old enough\n"
    kept = answer(ask("queue", "list", "--format=json"))["queue"]
    assert {one["queue_id"] for one in kept} == {running.queue_id, waits}
    assert sorted(path for path in (*left.values(), strange) if path.exists()) == sorted(
        [left[running.queue_id], left[waits], left["forgotten-1"], strange]
    )


def test_a_run_that_no_runner_takes_is_reported_by_the_list_by_a_tick_and_by_its_notifications(
    plane, ask, scenario, tmp_path
):
    told = tmp_path / "told.json"
    command = ["sh", "-c", f"cat > {told}"]
    scenario.write_text(SCENARIO + f"notify: [{{command: {json.dumps(command)}}}]\n", "utf-8")
    zone, free = (
        answer(ask("queue", "add", str(scenario), *words, "--format=json"))["queue_id"]
        for words in (("--requires=zone=eu",), ())
    )
    plane.change("UPDATE RUN_QUEUE SET AVAILABLE_AT = DATEADD(minute, -5, SYSDATE())")

    assert f"warning: {free} waits: no runner is online\n" in ask("queue", "list")[2]
    add_runner(plane, "bench-9", "zone=us")
    missing = f"{zone} waits: no runner that is online offers zone=eu\n"
    assert ask("queue", "list")[2] == f"warning: {missing}"
    waiting = answer(ask("queue", "list", "--format=json"))["waiting"]
    assert waiting == [{"queue_id": zone, "reason": "no runner that is online offers zone=eu"}]
    first, second = (ask("schedule", "tick", "--quiet", "--allow-command=sh")[2] for _ in range(2))

    assert (first, second) == (f"warning: {missing}", "")
    document = json.loads(told.read_text("utf-8"))
    assert (document["verdict"], document["queue_id"]) == ("not_run", zone)
    assert "zone=eu" in document["text"]


def test_a_tick_starts_no_program_that_it_was_not_allowed_to(plane, ask, scenario, tmp_path):
    evil = tmp_path / "evil"
    scenario.write_text(SCENARIO + f"notify: [{{command: [touch, {evil}]}}]\n", "utf-8")
    answer(ask("queue", "add", str(scenario), "--format=json"))
    plane.change("UPDATE RUN_QUEUE SET AVAILABLE_AT = DATEADD(minute, -5, SYSDATE())")

    code, _, err = ask("schedule", "tick")

    assert (code, evil.exists()) == (0, False)
    assert "--allow-command touch" in err
