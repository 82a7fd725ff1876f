"""How workers are started as programs, asked to end, and ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from loadgen.cli.runs import _as_json as pruned_json
from loadgen.cli.runs import _as_text as pruned_text
from loadgen.control.tables.prune import PruneCandidates
from loadgen.worker import main as worker_main
from orchestrator.nightly.attempt import AttemptFolder
from orchestrator.nightly.queue import PruneResult
from orchestrator.spawn import local as programs
from orchestrator.spawn.local import ExternalSpawner, SubprocessSpawner, find_python, worker_command
from orchestrator.spawn.spawner import WorkerOrder, last_lines
from tests.processes import PATIENCE_S, alive, wait_until
from tests.unit.run_builders import RUN

ORDER = WorkerOrder(run_id=RUN.run_id, worker_id="worker-1", worker_group_id=1, worker_group_count=2)


def test_the_command_for_a_worker_elsewhere_survives_any_shell():
    odd = {"LOADGEN_CONNECTION": "it's $HOME; `x`", "LOADGEN_CONTROL_DATABASE": '"My Db"'}
    line = worker_command(ORDER, odd).replace(
        " loadgen worker ", f" {sys.executable} -c 'import os; print(os.environ)' "
    )

    said = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=True).stdout

    assert all(repr(value) in said for value in odd.values())


def test_everything_that_users_must_start_is_printed():
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


def test_users_who_start_workers_are_told_which_secrets_they_need():
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
    """Its arguments are invalid, which it reports before it opens any connection."""
    bad = replace(ORDER, worker_group_id=7)
    spawner = SubprocessSpawner({"PATH": "/nonexistent"} | project_path(), tmp_path)
    spawner.start((bad,))
    try:
        spawner._children["worker-1"].wait(PATIENCE_S)

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
    assert programs.PARENT_FD_VARIABLE == worker_main.PARENT_VARIABLE


def project_path() -> dict[str, Any]:
    return {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}


def test_a_folder_that_prune_could_not_delete_is_reported():
    stuck = AttemptFolder(path=Path("runs/.queue/orders-1.1"), queue_id="orders-1")
    found = PruneCandidates(before=datetime(2026, 11, 15), runs=(), queued=())  # noqa: DTZ001 (as the tables have it: naive UTC)

    pruned = PruneResult(found=found, folders=(), stuck=(stuck,), deleted={}, dry_run=False)

    assert pruned_text(pruned) == "nothing else is old enough"
    assert pruned_json(pruned)["stuck"] == ["runs/.queue/orders-1.1"]
