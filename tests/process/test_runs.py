"""Runs seen, stopped and recovered from other processes; workers started as programs, and by hand; one run at a time
on a warehouse."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from loadgen.control.tables import run_status, test_results
from loadgen.control.tables.run_status import NewRun, StatusChange
from loadgen.errors import UsageError
from loadgen.model.run import Phase, RunStatus
from orchestrator.leadership import SkippedRun
from orchestrator.recover import recover_runs
from tests.control_plane import ControlPlane, result_row, retries
from tests.process.run_commands import CommandHarness, read_until, result, script
from tests.processes import PATIENCE_S, PROGRAM, alive, wait_until
from tests.unit.orchestrator_builders import merged, tally
from tests.unit.report_builders import summary

SHARED = "the warehouse was shared: other runs may have measured on it at the same time"


@pytest.fixture
def harness(
    plane: ControlPlane, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[CommandHarness]:
    for name, value in plane.environ.items():
        monkeypatch.setenv(name, value)
    made = CommandHarness(plane, tmp_path, capsys)
    yield made
    made.close()


def test_a_run_is_seen_and_stopped_from_elsewhere_while_another_waits_for_its_warehouse(harness):
    first = harness.run(warehouse="SHARED_WH")
    run_id = harness.wait_new(first, "", "MEASUREMENT")

    seen = harness.json("status", run_id)
    assert (seen["run"]["status"], seen["run"]["phase"]) == ("RUNNING", "MEASUREMENT")
    assert seen["leader"]["lease_left_ms"] > 0
    assert [(one["worker_id"], one["target_connections"]) for one in seen["workers"]] == [("worker-0", 8)]
    code, text = harness.ask("status")
    assert code == 0
    assert f"{run_id}  RUNNING MEASUREMENT" in text
    assert "led by " in text
    assert [run["run_id"] for run in harness.json("runs", "list")["runs"]] == [run_id]
    assert harness.json("runs", "show", run_id[:13])["summary"] is None
    assert harness.json("runs", "logs", "latest")["run_id"] == run_id

    refused = result(harness.run(warehouse="SHARED_WH"))
    assert refused["code"] == refused["error"]["exit_code"] == 75
    assert f"warehouse SHARED_WH is in use by another run: scenario nap, process {first.pid}" in refused["said"]
    assert "hint: Add --wait" in refused["said"]
    beside = result(harness.run("--share-warehouse", "--quiet", warehouse="SHARED_WH", duration="1s"))
    assert (beside["status"], beside["environment"]["shared_warehouse"]) == ("COMPLETED", True)
    assert SHARED in beside["environment"]["warnings"]
    code, text = harness.ask("runs", "recover", run_id, "--format", "json")
    assert (code, "it is led" in json.loads(text)["error"]["message"]) == (75, True)
    assert [one["run_id"] for one in harness.json("runs", "recover")["left"]] == [run_id]
    assert harness.state(run_id) == ("RUNNING", "MEASUREMENT")

    waiting = harness.run("--wait", warehouse="SHARED_WH", duration="2s")
    read_until(waiting, lambda line: "waiting: warehouse SHARED_WH is in use" in line)
    impatient = harness.run("--wait", warehouse="SHARED_WH")
    read_until(impatient, lambda line: " waiting: " in line)
    impatient.send_signal(signal.SIGTERM)
    given_up = result(impatient)
    assert given_up["code"] == given_up["error"]["exit_code"] == 143
    stopped = harness.json("stop", run_id, "--reason", "enough seen")
    assert (stopped["asked"], stopped["status"], stopped["led"]) == (True, "CANCELLING", True)

    ended = result(first)
    assert (ended["code"], ended["status"], ended["verdict"]) == (130, "CANCELLED", "cancelled")
    assert any("another run shares it" in reason for reason in ended["validity"]["reasons"])
    assert ended["totals"]["succeeded"] > 0
    row = harness.json("runs", "show", run_id)
    assert row["run"]["status"] == "CANCELLED"
    assert row["run"]["reason"].startswith("stopped by ")
    assert row["run"]["reason"].endswith(" UTC: enough seen")
    assert row["summary"]["totals"] == ended["totals"]
    assert harness.ask("stop", run_id)[1] == f"nothing to stop: run {run_id} is CANCELLED\n"

    after = result(waiting)
    assert (after["code"], after["status"]) == (0, "COMPLETED"), after
    assert harness.json("runs", "show", "latest")["run"]["run_id"] == after["run_id"]
    assert harness.json("runs", "show", "latest~2")["run"]["run_id"] == run_id
    code, text = harness.ask("runs", "show", after["run_id"])
    assert "qps over" in text
    assert len(harness.json("runs", "logs", after["run_id"], "-n", "1")["lines"]) == 1
    check_listed(harness, after, beside, ended)


def check_listed(harness: CommandHarness, *summaries: dict[str, Any]) -> None:
    """The list of runs has these, the newest first, with the numbers of their summaries."""
    lines = harness.ask("runs", "list")[1].splitlines()
    assert [(line.split()[0], line.split()[-1]) for line in lines[1:]] == [
        (one["run_id"], one["verdict"]) for one in summaries
    ]
    for shown, told in zip(harness.json("runs", "list")["runs"], summaries, strict=True):
        totals = told["totals"]
        assert (shown["operations"], shown["errors"]) == (totals["succeeded"] + totals["failed"], totals["failed"])
        assert (shown["qps"], shown["p95_ms"]) == (totals["qps"], told["latency_ms"]["p95"])


def test_a_run_that_still_waits_for_its_workers_can_be_stopped(harness):
    before = harness.newest()
    process = harness.run("--set", "spawner.kind=external", warehouse="EARLY_WH")
    run_id = harness.wait_new(process, before, "STARTING")

    code, text = harness.ask("stop", "latest")

    assert code == 0
    assert text.startswith(f"run {run_id} was asked to end: CANCELLING, stopped by ")
    ended = result(process)
    assert (ended["code"], ended["status"]) == (130, "CANCELLED")
    assert harness.json("runs", "show", run_id)["run"]["reason"].startswith("stopped by ")


@pytest.mark.slow
def test_workers_as_programs_through_uv(harness):
    orphan = harness.plane.new_run()
    harness.plane.claim(orphan)
    harness.plane.expire(orphan, since_s=100)
    mark = harness.folder / "uv-was-here"
    path = script(
        harness.folder,
        "uv",
        f"echo once >> {mark}",
        'while [ "$1" != python ]; do shift; done',
        "shift",
        f'exec {sys.executable} "$@"',
    )

    ended = result(harness.run("--set", "spawner.kind=subprocess", warehouse="UV_WH", duration="2s", **path))

    assert (ended["code"], ended["status"]) == (0, "COMPLETED"), ended
    assert ended["totals"]["succeeded"] > 0
    assert mark.read_text("utf-8").count("once") == 2  # asked, then started
    assert (harness.folder / "runs" / ended["run_id"] / "logs" / "worker-0.log").exists()
    # Starting a run ends those that were left behind.
    assert harness.state(orphan) == ("FAILED", "PROCESSING")


@pytest.mark.slow
def test_a_worker_started_by_hand_with_the_command_that_was_printed(harness):
    process = harness.run("--quiet", "--set", "spawner.kind=external", warehouse="HAND_WH", duration="2s")
    line = read_until(process, lambda line: " loadgen worker " in line)
    path = script(harness.folder, "loadgen", f"exec {PROGRAM[0]} -P -c '{PROGRAM[-1]}' \"$@\"")
    bare = {name: harness.environ[name] for name in ("HOME", "PYTHONPATH")} | path

    worker = subprocess.Popen(
        ["sh", "-c", f"exec {line.strip()}"], env=bare, cwd=harness.folder, start_new_session=True
    )
    try:
        ended = result(process)
        code = worker.wait(PATIENCE_S)
    finally:
        worker.kill()
        worker.wait()

    assert (ended["code"], ended["status"]) == (0, "COMPLETED"), ended
    assert ended["totals"]["succeeded"] > 0
    assert code == 0


@pytest.mark.slow
def test_a_killed_orchestrator_leaves_no_worker_and_its_run_is_recovered_once(harness):
    before = harness.newest()
    process = harness.run("--set", "spawner.kind=subprocess", warehouse="KILLED_WH")
    run_id = harness.wait_new(process, before, "MEASUREMENT")
    plane = harness.plane
    wait_until(
        lambda: plane.rows("SELECT TOTAL_OPS FROM RUN_STATUS WHERE RUN_ID = ?", run_id)[0][0] > 0, "it has measured"
    )
    workers = {int(one["pid"]) for one in harness.json("status", run_id)["workers"]}
    assert alive(workers) == workers

    process.send_signal(signal.SIGKILL)
    process.communicate()

    wait_until(lambda: not alive(workers), "its workers end by themselves")

    recovered = harness.json("runs", "recover")["recovered"]

    assert [(one["run_id"], one["status"]) for one in recovered] == [(run_id, "FAILED")]
    shown = harness.json("runs", "show", run_id)
    assert shown["run"]["status"] == "FAILED"
    assert shown["run"]["ended_at"] is not None
    assert "its orchestrator was lost" in shown["run"]["reason"]
    assert (shown["summary"]["verdict"], shown["summary"]["exit_code"]) == ("error", 4)
    assert shown["summary"]["totals"]["succeeded"] > 0
    assert not shown["summary"]["validity"]["valid"]
    row = shown["run"]
    assert harness.json("runs", "recover") == {"recovered": [], "left": [], "led_on": [], "settings": []}
    assert harness.ask("runs", "recover", run_id) == (0, f"run {run_id} was not changed: it has ended\n")
    assert harness.json("runs", "show", run_id)["run"] == row


@pytest.mark.slow  # test_lease_processes.py pauses holders of leases
def test_an_orchestrator_that_was_declared_dead_ends_when_it_resumes(harness):
    before = harness.newest()
    process = harness.run(warehouse="ASLEEP_WH")
    run_id = harness.wait_new(process, before, "MEASUREMENT")
    (worker,) = (int(one["pid"]) for one in harness.json("status", run_id)["workers"])
    for pid in (process.pid, worker):
        os.kill(pid, signal.SIGSTOP)
    try:
        harness.plane.expire(run_id, since_s=100)

        def recovered() -> bool:
            harness.silence(run_id)  # again and again: a beat may have been under way
            return run_id in [one["run_id"] for one in harness.json("runs", "recover", "--end-only")["recovered"]]

        wait_until(recovered, "it is taken for dead")
    finally:
        for pid in (worker, process.pid):
            os.kill(pid, signal.SIGCONT)

    ended = result(process)

    assert ended["code"] == ended["error"]["exit_code"] == 4
    assert "was ended by another process: FAILED" in ended["error"]["message"]
    assert harness.state(run_id)[0] == "FAILED"
    assert not alive({worker})


def test_a_run_whose_result_was_stored_ends_with_that_result(plane):
    """Its orchestrator died between the last two statements of its life."""
    run_id = plane.new_run()
    term = plane.claim(run_id)
    for before, after in itertools.pairwise(
        (RunStatus.PREPARED, RunStatus.STARTING, RunStatus.RUNNING, RunStatus.STOPPING)
    ):
        phase = Phase.PREPARING
        assert run_status.move(
            plane.session, retries(), term, StatusChange(status=before, phase=phase, to=after, to_phase=phase)
        )
    found = json.dumps(summary(merged({"look": tally((5.0,))}), ("look",), run_id=run_id))
    test_results.append(plane.session, retries(), result_row(run_id, summary=found))
    plane.expire(run_id, since_s=100)

    done, left = recover_runs(plane.session, retries(), by="me on here", only=run_id)

    assert [(one.run_id, one.status) for one in done] == [(run_id, RunStatus.COMPLETED)]
    assert left == []
    run = run_status.read(plane.session, run_id)
    assert run is not None
    assert (run.status, run.verdict) == (RunStatus.COMPLETED, "passed")
    assert run.end_time is not None
    again = recover_runs(plane.session, retries(), by="me on here", only=run_id)
    assert again == ([], [SkippedRun(run_id=run_id, why="it has ended", has_ended=True)])


def test_runs_are_named_by_their_beginning(server):
    plane = ControlPlane(server)
    find = partial(run_status.find_run, plane.session, retries())
    with pytest.raises(UsageError, match="there are no runs yet"):
        find("latest")
    for run_id in ("20260101-a", "20260101-a-1", "20260101-b", "20260102-c"):
        new = NewRun(run_id=run_id, template_id="t", test_name="n", scenario_config="{}", workers=1)
        run_status.create(plane.session, retries(), new)

    assert find("20260101-a").run_id == "20260101-a"  # though another begins so
    assert find("20260101-b").run_id == find("latest~1").run_id == "20260101-b"
    assert find("20260102").run_id == find("latest").run_id == find("latest~0").run_id == "20260102-c"
    for name, said in (
        ("2026", "beginning of several runs: 20260101-a, 20260101-a-1, 20260101-b, 20260102-c"),
        ("2026010_", "there is no run 2026010_"),
        ("%", "there is no run %"),
        ("LATEST", "there is no run LATEST"),
        ("", "is empty"),
        ("latest~4", "the oldest run is latest~3: there is no latest~4"),
        ("latest~99999", "too far back"),
    ):
        with pytest.raises(UsageError, match=re.escape(said)):
            find(name)
    plane.close()
