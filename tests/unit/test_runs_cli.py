"""Commands about runs where they need no server, and what they show; who may be recovered; how workers are started."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import click
import pytest

from loadgen.cli import run_view, runs
from loadgen.cli.main import cli, main
from loadgen.cli.prune import Pruned
from loadgen.cli.prune import _as_json as pruned_json
from loadgen.cli.prune import _as_text as pruned_text
from loadgen.cli.run_view import Look, as_json, as_lines, outcome
from loadgen.cli.stop import Asked, _as_json, _as_text
from loadgen.cli.who import who
from loadgen.control import run_leases
from loadgen.control.prune import Found
from loadgen.control.run_leases import Holder
from loadgen.control.run_status import Run, RunFigures, Unfinished
from loadgen.control.test_logs import LogRow
from loadgen.control.worker_heartbeats import Beat, WorkerIdentity, WorkerRow
from loadgen.model.run import Phase, RunStatus
from loadgen.model.worker import WorkerStatus
from loadgen.snowflake.lookup import find_profile
from loadgen.worker import main as worker_main
from orchestrator.crew import Health
from orchestrator.pool.attempt_folders import AttemptFolder
from orchestrator.recover import NEVER_LED_S, obstacle, signs_of_life, silent_crew
from orchestrator.spawn import subprocess as programs
from orchestrator.spawn.external import ExternalSpawner, worker_command
from orchestrator.spawn.spawner import WorkerOrder, last_lines
from orchestrator.spawn.subprocess import SubprocessSpawner, find_python
from orchestrator.warehouse_lease import KEY_MAX, Warehouse, busy_text
from tests.processes import ROOT, alive, wait_until

T0 = datetime(2026, 11, 16, 6, 0, 0)  # noqa: DTZ001  naive UTC, as the tables have it
RUN = Run(
    run_id="20261116-0600-orders-7f3a9c",
    template_id="t",
    test_name="orders",
    status=RunStatus.RUNNING,
    phase=Phase.MEASUREMENT,
    start_time=T0,
    warmup_start_time=T0,
    warmup_end_time=T0 + timedelta(seconds=5),
    end_time=None,
    workers_expected=2,
    workers_registered=2,
    workers_active=2,
    workers_completed=0,
    total_ops=12_345,
    error_count=6,
    current_qps=789.5,
    find_max_state='{"step": 2}',
    worker_targets=None,
    next_sequence_id=4,
    lease_epoch=1,
    reason=None,
    verdict=None,
    enrichment_status=None,
    created_at=T0,
    updated_at=T0,
)
ENDED = replace(
    RUN, status=RunStatus.FAILED, end_time=T0 + timedelta(seconds=75), reason="a\x1b[31m reason", verdict="error"
)
HOLDER = Holder(epoch=1, owner="build-7:4711:abc", remaining_ms=20_000)
WORKER = WorkerRow(
    identity=WorkerIdentity(
        run_id=RUN.run_id, worker_id="worker-0", worker_group_id=0, hostname="build-7", pid=4712, version="1"
    ),
    beat=Beat(
        status=WorkerStatus.RUNNING,
        phase=Phase.MEASUREMENT,
        count=9,
        active_connections=3,
        open_connections=4,
        target_connections=8,
        last_error="it\x1b[2J hurt",
        cpu_percent=41.6,
    ),
    age_ms=412,
)
LOOK = Look(run=RUN, holder=HOLDER, workers=(WORKER,), now=T0 + timedelta(seconds=65))
ORDER = WorkerOrder(run_id=RUN.run_id, worker_id="worker-1", worker_group_id=1, worker_group_count=2)
QUICKSTART = str(ROOT / "examples" / "quickstart.yaml")
COMMANDS = [["status"], ["stop"], *(["runs", name] for name in ("list", "show", "logs", "recover", "prune"))]


# --- the command line ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_help_has_an_example_that_the_command_accepts(words, capsys):
    assert main([*words, "--help"]) == 0

    text = capsys.readouterr().out
    examples = [line.strip() for line in text.partition("Example:")[2].splitlines() if line.strip()]
    assert examples
    for example in examples:
        accepted(shlex.split(example)[1:])


def accepted(words: list[str]) -> None:
    """The words make a context of the command: nothing is run."""
    context = click.Context(cli)
    command: click.Command = cli
    while isinstance(command, click.Group):
        found = command.get_command(context, words[0])
        assert found is not None, words
        command, words = found, words[1:]
    command.make_context(None, list(words))


@pytest.mark.parametrize(
    "words",
    [
        ["status"],
        ["stop", "latest"],
        ["runs", "list"],
        ["runs", "show", "x"],
        ["runs", "logs", "x"],
        ["runs", "recover"],
        ["runs", "prune", "--older-than", "1d"],
    ],
    ids=" ".join,
)
def test_without_a_server_it_is_told_in_text_and_json_with_exit_code_3(words, capsys, monkeypatch):
    monkeypatch.setenv("LOADGEN_EMBEDDED_ADDRESS", "127.0.0.1:1")

    code = main([*words, "-c", "embedded", "--format", "json"])

    out, errors = capsys.readouterr()
    assert code == json.loads(out)["error"]["exit_code"] == 3
    assert errors.startswith("error: no embedded server answers at 127.0.0.1:1")
    assert "\nhint: " in errors


@pytest.mark.parametrize(
    "words",
    [
        ["stop"],
        ["runs", "show"],
        ["runs", "list", "-n", "0"],
        ["runs", "list", "--status", "SLEEPING"],
        ["runs", "list", "--within", "soon"],
        ["runs", "logs", "x", "-n", "many"],
        ["runs", "prune"],
        ["runs", "prune", "--older-than", "long"],
        ["runs", "prune", "--older-than", "99999999999999999999d"],
        ["runs", "list", "--within", "36501d"],
        ["run", QUICKSTART, "--wait", "--share-warehouse"],
        ["run", QUICKSTART, "--confirm"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_exit_code_2_in_text_and_json(words, capsys):
    code = main([*words, "--format", "json"])

    out, errors = capsys.readouterr()
    assert code == json.loads(out)["error"]["exit_code"] == 2
    assert errors.startswith("error: ")
    assert "\nhint: " in errors


# --- what is shown ---------------------------------------------------------------------------------------------------


def as_text(seen: Look, width: int | None = None) -> str:
    return "\n".join(line.text for line in as_lines(seen, width, result=True))


def test_a_running_run_as_text():
    assert as_text(LOOK) == (
        "20261116-0600-orders-7f3a9c  RUNNING MEASUREMENT\n"
        "  scenario orders, started 2026-11-16 06:00:00 UTC, running for 1:05\n"
        "  led by build-7:4711:abc in term 1\n"
        "  12,345 statements, 6 errors, 789.5/s now\n"
        "  worker-0  RUNNING MEASUREMENT, 4 of 8 connections, 3 busy, heard 0.4 s ago, CPU 42 %\n"
        "            it[2J hurt"
    )


def test_an_ended_run_as_text_has_its_reason_and_nobody_who_leads_it():
    text = as_text(replace(LOOK, run=ENDED, workers=()))

    assert text == (
        "20261116-0600-orders-7f3a9c  FAILED, error\n"
        "  scenario orders, started 2026-11-16 06:00:00 UTC, took 1:15\n"
        "  reason: a[31m reason\n"
        "  12,345 statements, 6 errors"
    )


def test_a_run_without_a_leader_says_what_to_do():
    assert "nobody leads it yet" in as_text(replace(LOOK, holder=None))
    text = as_text(replace(LOOK, holder=replace(HOLDER, remaining_ms=-42_000)))
    assert "nobody has led it for 42 s" in text
    assert "`loadgen runs recover`" in text


def test_a_run_as_json():
    shown = json.loads(json.dumps(as_json(LOOK)))

    assert shown["leader"] == {"owner": "build-7:4711:abc", "term": 1, "lease_left_ms": 20_000}
    assert shown["run"]["started_at"] == "2026-11-16T06:00:00.000Z"
    assert shown["run"]["ended_at"] is None
    assert shown["run"]["find_max"] == {"step": 2}
    assert shown["run"]["workers"] == {"expected": 2, "registered": 2, "active": 2, "completed": 0}
    assert (shown["workers"][0]["worker_id"], shown["workers"][0]["beat_age_ms"]) == ("worker-0", 412)


SUMMARY = {
    "totals": {"succeeded": 12_990, "failed": 10, "qps": 216.5},
    "latency_ms": {"p95": 38.25},
}
FIGURES = RunFigures(operations=13_000, errors=10, qps=216.5, p95_ms=38.25)


def test_once_there_is_a_result_its_counts_are_shown_everywhere():
    seen = replace(LOOK, run=ENDED, summary=SUMMARY)
    state = "\n".join(line.text for line in as_lines(seen, None, result=False))

    assert seen.figures == FIGURES
    assert "13,000 statements, 10 errors, 216.5/s" in state
    shown = as_json(seen)["run"]
    assert [shown[key] for key in ("operations", "errors", "qps", "p95_ms", "duration_s")] == [
        13_000, 10, 216.5, 38.25, 75.0
    ]  # fmt: skip


def listed(width: int | None, *found: tuple[Run, RunFigures | None]) -> list[str]:
    return [line.text for line in runs._table(found, LOOK.now, width)]


def test_the_list_of_runs_has_start_duration_throughput_p95_and_verdict():
    assert listed(80, (RUN, None), (ENDED, FIGURES)) == [
        "RUN                          START (UTC)  LASTED    QPS  P95 MS  VERDICT",
        "20261116-0600-orders-7f3a9c  11-16 06:00    1:05  789.5       -  running",
        "20261116-0600-orders-7f3a9c  11-16 06:00    1:15  216.5    38.2  error",
    ]
    assert run_view.lasted(replace(RUN, start_time=None), LOOK.now) == "-"
    assert run_view.lasted(replace(RUN, start_time=T0 - timedelta(hours=2)), LOOK.now) == "2:01:05"


def test_a_wide_terminal_and_a_pipe_show_more_of_each_run():
    everything = [
        "RUN                          SCENARIO  START (UTC)  LASTED    QPS  P95 MS  STATEMENTS  ERRORS  VERDICT",
        "20261116-0600-orders-7f3a9c  orders    11-16 06:00    1:15  216.5    38.2      13,000      10  error",
    ]

    assert listed(None, (ENDED, FIGURES)) == listed(120, (ENDED, FIGURES)) == everything
    assert "SCENARIO" not in listed(95, (ENDED, FIGURES))[0]
    assert "ERRORS" in listed(95, (ENDED, FIGURES))[0]


def test_the_list_of_the_longest_names_and_numbers_fits_80_columns():
    longest = replace(
        RUN,
        run_id="20261116-0600-payments-for-al-7f3a9c",
        status=RunStatus.COMPLETED,
        verdict="cancelled",
        start_time=T0 - timedelta(hours=9, minutes=59),
        end_time=T0,
    )
    huge = RunFigures(operations=10**12, errors=10**9, qps=99_999.0, p95_ms=99_999.0)

    lines = listed(80, (longest, huge), (replace(RUN, status=RunStatus.CANCELLING), None))

    assert len(longest.run_id) == 36
    assert max(map(len, lines)) <= 80
    assert lines[1].split() == [longest.run_id, "11-15", "20:01", "9:59:00", "99,999", "99,999", "cancelled"]
    assert lines[2].endswith(" stopping")


def test_the_state_of_a_run_fits_80_columns():
    seen = replace(LOOK, run=replace(RUN, reason="a long reason " * 20, test_name="orders " * 10))

    assert max(len(line.text) for line in as_lines(seen, 80, result=True)) <= 80


def test_the_outcome_of_a_run_without_a_verdict_is_its_status():
    assert outcome(replace(ENDED, verdict=None)) == "failed"
    assert outcome(replace(RUN, status=RunStatus.STARTING)) == "starting"


def test_a_line_of_the_log_is_safe_to_print():
    row = LogRow(
        run_id="r", test_id=None, worker_id=None, level="INFO", message="a\x1b[31m\nb", details={"n": 1}, timestamp=T0
    )

    assert runs._line(row) == '2026-11-16 06:00:00.000  orchestrator  INFO     a[31m\n    b  {"n": 1}'


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (
            Asked(run=replace(RUN, status=RunStatus.CANCELLING, reason="by me"), by_us=True, holder=HOLDER),
            f"run {RUN.run_id} was asked to end: CANCELLING, by me",
        ),
        (
            Asked(run=replace(RUN, status=RunStatus.CANCELLING, reason="by her"), by_us=False, holder=HOLDER),
            f"run {RUN.run_id} is ending already: CANCELLING, by her",
        ),
        (
            Asked(run=replace(RUN, status=RunStatus.CANCELLING, reason="by me"), by_us=True, holder=None),
            f"run {RUN.run_id} was asked to end: CANCELLING, by me\n"
            "nobody leads it: its workers end by themselves, then `loadgen runs recover` ends the run",
        ),
        (Asked(run=ENDED, by_us=False, holder=None), f"nothing to stop: run {RUN.run_id} is FAILED"),
    ],
    ids=["asked", "ending", "not led", "ended"],
)
def test_what_stop_says(asked, said):
    assert _as_text(asked) == said
    assert _as_json(asked)["asked"] is asked.by_us


def test_who_has_a_name_and_a_machine():
    name, _, machine = who().partition(" on ")

    assert name
    assert machine


# --- who may be recovered --------------------------------------------------------------------------------------------


def unfinished(lease_over_ms: int | None, beat_age_ms: int | None, update_age_ms: int = 10**9) -> Unfinished:
    return Unfinished(
        run_id="r",
        status=RunStatus.RUNNING,
        lease_over_ms=lease_over_ms,
        beat_age_ms=beat_age_ms,
        update_age_ms=update_age_ms,
    )


@pytest.mark.parametrize(
    ("run", "said"),
    [
        (unfinished(-5_000, 10**9), "it is led"),
        (unfinished(0, 10**9), "it is led"),
        (unfinished(9_000, 10**9), "its leader may still write for 1 s"),
        (unfinished(10_000, 10**9), "its leader may still write"),
        (unfinished(None, None, 599_000), "not led yet"),
    ],
)
def test_a_run_that_somebody_may_still_care_for_is_no_orphan(run, said):
    assert said in (obstacle(run) or "")


def test_what_is_said_of_a_lease_that_lasts_is_known():
    here = Holder(epoch=1, owner=run_leases.new_owner(), remaining_ms=5_000)
    name, _, token = here.owner.rpartition(":")
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    gone = replace(here, owner=f"{name.rpartition(':')[0]}:{ended.pid}:{token}")
    elsewhere = replace(gone, owner=f"{gone.owner.rpartition(':')[0]}:{'0' * 20}")

    assert obstacle(unfinished(-5_000, 0), here) == (
        f"it is led by {run_leases.process_of(here.owner)}: its lease lasts 5 s more, and longer when it is renewed"
    )
    assert obstacle(unfinished(-5_000, 0), gone) == (
        f"{run_leases.process_of(gone.owner)}, which led it, is gone: it can be recovered in 15 s"
    )
    assert f"it is led by process {ended.pid} on " in (obstacle(unfinished(-5_000, 0), elsewhere) or "")
    assert obstacle(unfinished(10_001, 0), gone) is None


@pytest.mark.parametrize(
    "run",
    [
        unfinished(10_001, 60_001),
        unfinished(10_001, None),
        unfinished(None, None, round(NEVER_LED_S * 1000) + 1),
    ],
)
def test_a_run_that_everybody_has_left_is_an_orphan(run):
    assert obstacle(run) is None


@pytest.mark.parametrize(
    ("status", "age_ms", "alive"),
    [
        (WorkerStatus.RUNNING, 60_000, True),
        (WorkerStatus.RUNNING, 60_001, False),
        (WorkerStatus.DRAINING, 0, True),
        (WorkerStatus.COMPLETED, 0, False),
        (WorkerStatus.DEAD, 0, False),
    ],
)
def test_a_worker_lives_until_it_ends_or_is_silent_for_too_long(status, age_ms, alive):
    row = replace(WORKER, beat=replace(WORKER.beat, status=status), age_ms=age_ms)

    assert (signs_of_life([row], 60.0) is not None) == alive


def test_of_a_lost_run_only_workers_that_said_so_are_done():
    done = replace(WORKER, beat=replace(WORKER.beat, status=WorkerStatus.COMPLETED))

    assert [worker.health for worker in silent_crew(RUN, [done])] == [Health.DONE, Health.MISSING]
    assert [worker.health for worker in silent_crew(RUN, [WORKER])] == [Health.DEAD, Health.MISSING]


# --- one run at a time on a warehouse --------------------------------------------------------------------------------


def test_the_key_of_a_warehouse_fits_its_column_and_stays_different():
    short = Warehouse(account="ACME", name="BENCH_WH").key
    long = {Warehouse(account="A" * 60, name="W" * 200 + str(number)).key for number in range(3)}

    assert short == "warehouse:ACME/BENCH_WH"
    assert {len(key) for key in long} == {KEY_MAX}
    assert len(long) == 3


@pytest.mark.parametrize(
    ("named", "name"), [("bench_wh", "BENCH_WH"), ('"bench_wh"', "bench_wh"), (None, "default of loadgen")]
)
def test_a_warehouse_is_known_by_the_name_that_snowflake_knows(named, name):
    environ = {"LOADGEN_EMBEDDED_ADDRESS": "127.0.0.1:1"}
    profile = find_profile("embedded", environ=environ, overrides={"warehouse": named})

    assert Warehouse.of_profile(profile) == Warehouse(account="EMBEDDED", name=name)


def test_whoever_has_the_warehouse_is_named():
    warehouse = Warehouse(account="A", name="W")
    holder = Holder(epoch=3, owner="build-7:4711:abc nightly load", remaining_ms=10_000)

    assert busy_text(warehouse, holder) == (
        "warehouse W is in use by another run: scenario nightly load, process 4711 on build-7"
    )
    gone = busy_text(warehouse, replace(holder, remaining_ms=-4_000))
    assert gone.endswith("process 4711 on build-7; it is free in 6 s")


# --- starting workers ------------------------------------------------------------------------------------------------


def test_the_command_for_a_worker_elsewhere_survives_any_shell():
    odd = {"LOADGEN_CONNECTION": "it's $HOME; `x`", "LOADGEN_CONTROL_DATABASE": '"My Db"'}
    line = worker_command(ORDER, odd).replace(
        " loadgen worker ", f" {sys.executable} -c 'import os; print(os.environ)' "
    )

    said = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=True).stdout

    assert all(repr(value) in said for value in odd.values())


def test_all_that_somebody_else_must_start_is_told():
    told: list[str] = []
    spawner = ExternalSpawner({"LOADGEN_CONTROL_DATABASE": "L"}, 600.0, told.append)

    spawner.start((ORDER, replace(ORDER, worker_id="worker-0", worker_group_id=0)))

    assert told == [
        "start these workers within 600 s, anywhere:",
        f"env LOADGEN_CONTROL_DATABASE=L loadgen worker --run-id={RUN.run_id} --worker-id=worker-1"
        " --worker-group-id=1 --worker-group-count=2",
        f"env LOADGEN_CONTROL_DATABASE=L loadgen worker --run-id={RUN.run_id} --worker-id=worker-0"
        " --worker-group-id=0 --worker-group-count=2",
    ]
    assert spawner.ended() == ()


def test_whoever_starts_workers_is_told_which_secrets_they_need():
    told: list[str] = []

    ExternalSpawner({}, 600.0, told.append, ("A_TOKEN", "B_TOKEN")).start((ORDER,))

    assert told[1] == "with these variables set there as they are here: A_TOKEN, B_TOKEN"


def uv(folder: Path, *lines: str) -> dict[str, str]:
    file = folder / "uv"
    file.write_text("\n".join(["#!/bin/sh", *lines, ""]), "utf-8")
    file.chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin"}


def test_uv_is_used_only_where_it_runs_this_very_loadgen(tmp_path):
    root = str(Path(__file__).resolve().parents[2])
    run = 'while [ "$1" != python ]; do shift; done; shift'

    ours = find_python(uv(tmp_path, run, f'exec {sys.executable} "$@"') | {"PYTHONPATH": root})
    assert ours[:2] == [str(tmp_path / "uv"), "run"]
    assert ours[-1] == "python"
    for other in ("exit 1", "echo /elsewhere/loadgen/__init__.py"):
        assert find_python(uv(tmp_path, other)) == [sys.executable]
    assert find_python({"PATH": "/nonexistent"}) == [sys.executable]


def test_a_worker_that_cannot_start_is_seen_with_its_last_lines(tmp_path):
    """Its arguments make no sense to it, which it says before it reaches for anything."""
    bad = replace(ORDER, worker_group_id=7)
    spawner = SubprocessSpawner({"PATH": "/nonexistent"} | project_path(), tmp_path)
    spawner.start((bad,))
    try:
        spawner._children["worker-1"].wait(60)

        ends = spawner.ended()
    finally:
        spawner.close()

    assert [(end.worker_id, end.code) for end in ends] == [("worker-1", 1)]
    assert ends[0].last_lines[0].startswith("error: --worker-group-id is 7")
    assert last_lines(tmp_path / "nobody.log") == ()


@pytest.mark.parametrize(("hard", "code"), [(False, -signal.SIGTERM), (True, -signal.SIGKILL)], ids=["soft", "hard"])
def test_workers_are_asked_to_end_or_ended_with_their_whole_group(tmp_path, hard, code):
    """Through a uv that starts a child in place of a worker: only a hard end is for the child as well."""
    child = tmp_path / "child"
    asked = f'case "$*" in *--run-id=*) sleep 600 & echo $! > {child}.new && mv {child}.new {child}; wait;; esac'
    skip = 'while [ "$1" != python ]; do shift; done; shift'
    spawner = SubprocessSpawner(uv(tmp_path, asked, skip, f'exec {sys.executable} "$@"') | project_path(), tmp_path)
    spawner.start((ORDER,))
    try:
        wait_until(child.exists, "it runs")
        pid = int(child.read_text("utf-8"))

        spawner.terminate(hard=hard)

        wait_until(spawner.ended, "it has ended")
        assert [end.code for end in spawner.ended()] == [code]
        if hard:
            wait_until(lambda: not alive({pid}), "its child has ended")
        else:
            assert alive({pid}) == {pid}
            os.kill(pid, signal.SIGKILL)
    finally:
        spawner.close()


def test_worker_and_spawner_mean_the_same_variable():
    assert programs.PARENT_VARIABLE == worker_main.PARENT_VARIABLE


def project_path() -> dict[str, Any]:
    return {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}


def test_a_folder_that_prune_could_not_delete_is_told():
    stuck = AttemptFolder(path=Path("runs/.queue/orders-1.1"), queue_id="orders-1")
    found = Found(before=datetime(2026, 11, 15), runs=(), queued=())  # noqa: DTZ001 (as the tables have it: naive UTC)

    pruned = Pruned(found=found, folders=(), stuck=(stuck,), deleted={}, dry_run=False)

    assert pruned_text(pruned) == "nothing else is that old"
    assert pruned_json(pruned)["stuck"] == ["runs/.queue/orders-1.1"]
