"""A verdict is reported and measurements are kept in every failure: files that change or vanish during a run, full
disks, outputs that cannot be written."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from loadgen.control.location import ControlPlaneLocation
from loadgen.control.setup.installer import ensure_tables
from loadgen.snowflake.profile_lookup import EMBEDDED_ADDRESS
from tests.control_plane import retries
from tests.embedded_server import EmbeddedServer
from tests.process.run_harness import MEASURES, Program, RunHarness, history, run_harness
from tests.processes import PROGRAM, reachable_directory

SHORT = {"connections": 8, "warmup": "0s", "duration": "2s"}
pytestmark = pytest.mark.scenario(embedded={"service_time": "200ms"})


def run_folder(run: Program) -> Path:
    return run.folder / "runs" / run.run_id


def check_verdict(run: Program) -> dict[str, Any]:
    """The run passed, and reported it."""
    assert run.ended() == 0, run.said
    told: dict[str, Any] = run.printed
    assert (told["status"], told["verdict"], told["exit_code"]) == ("COMPLETED", "passed", 0), run.said
    return told


# --- the scenario ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_keeps_the_scenario_that_it_was_started_with(harness: RunHarness) -> None:
    files = [harness.home / f"{number}.yaml" for number in (902, 903)]
    texts = [harness.text(number, load=SHORT) for number in (902, 903)]
    for file, text in zip(files, texts, strict=True):
        file.write_text(text, "utf-8")
    runs = [harness.start("run", file, "--format", "json") for file in files]
    for run in runs:
        run.wait_for("STARTING PREPARING")
    files[0].write_text("something: else\n", "utf-8")
    files[1].unlink()

    for run, text in zip(runs, texts, strict=True):
        check_verdict(run)
        assert (run_folder(run) / "scenario.yaml").read_text("utf-8") == text


@pytest.mark.slow
def test_a_scenario_may_come_from_a_pipe(harness: RunHarness) -> None:
    """As in `loadgen run <(make-scenario)`: it can be read once."""
    pipe, text = harness.home / "pipe", harness.text(900, load=SHORT)
    os.mkfifo(pipe)
    threading.Thread(target=lambda: pipe.write_text(text, "utf-8"), name="writer", daemon=True).start()

    run = harness.start("run", pipe, "--format", "json")

    check_verdict(run)
    assert (run_folder(run) / "scenario.yaml").read_text("utf-8") == text


# --- disks -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_files_that_cannot_be_written_do_not_cost_the_verdict(harness: RunHarness) -> None:
    unwritable = {"summary.json", "report.html", "intervals.csv"}
    run = harness.run(load=SHORT)
    run.wait_for("STARTING PREPARING")
    for name in unwritable:
        (run_folder(run) / f".{name}.tmp").mkdir()  # where it is written first

    check_verdict(run)

    for name in unwritable:
        assert f"warning: cannot write runs/{run.run_id}/{name}: Is a directory" in run.said
    written = {file.name for file in run_folder(run).iterdir()}
    assert {"summary.json", "report.html", "report.md", "intervals.csv", "scenario.yaml"} - written == unwritable


@pytest.mark.slow
def test_nothing_more_can_be_written_once_a_run_measures(harness: RunHarness) -> None:
    """Neither by the orchestrator nor by its workers; their query logs end, and the run goes on."""
    run = harness.run(load={"connections": 8, "warmup": "0s", "duration": "5s"}, query_log={"mode": "all"})
    run.wait_for(MEASURES)
    for pid in (run.process.pid, *run.look()):
        _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, hard))
    # What it prints goes to a file as well, and cannot be written either: the exit code is all that is left.
    assert run.ended() == 0, run.said
    assert harness.rows("SELECT VERDICT FROM RUN_STATUS WHERE RUN_ID = ?", run.run_id) == [("passed",)]
    sql = "SELECT MESSAGE FROM TEST_LOGS WHERE RUN_ID = ? AND LEVEL = 'WARNING'"
    assert "the query log ends here, it cannot be written: File too large" in [
        row[0] for row in harness.rows(sql, run.run_id)
    ]


@pytest.mark.slow
def test_a_result_that_cannot_be_printed_is_still_the_exit_code(harness: RunHarness) -> None:
    path = harness.home / "scenario.yaml"
    path.write_text(harness.text(901, load=SHORT), "utf-8")
    with open("/dev/full", "wb") as full:
        ended = subprocess.run(
            [*PROGRAM, "run", str(path), "--format", "json"],
            env=harness.environ,
            cwd=harness.home,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
    (file,) = harness.home.glob("runs/*/summary.json")
    summary = json.loads(file.read_text("utf-8"))

    assert (ended.returncode, summary["exit_code"], summary["verdict"]) == (0, 0, "passed"), ended.stderr
    assert "warning: the result could not be printed: No space left on device" in ended.stderr


@contextmanager
def small_disk(size: str) -> Iterator[Path]:
    """A disk that can be filled."""
    with reachable_directory() as folder:
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True, text=True
        )
        if mounted.returncode:
            pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.strip()}")
        folder.chmod(0o755)
        try:
            yield folder
        finally:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk: Path) -> None:
    with open(disk / "fill", "wb", buffering=0) as file:
        try:
            while file.write(bytes(1 << 16)):
                pass
        except OSError:
            return


def test_a_full_disk_under_the_runs_is_reported_before_the_start(
    harness: RunHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(EMBEDDED_ADDRESS, harness.server.address)
    ensure_tables(ControlPlaneLocation(connection="embedded"), retries())
    with small_disk("1m") as disk:
        fill(disk)

        run = harness.run("--output-dir", disk / "runs")

        assert run.ended() == 2, run.said
        assert f"cannot write {disk}/runs: No space left on device" in run.said
        assert "hint: The disk is full" in run.said
    assert harness.rows("SELECT COUNT(*) FROM RUN_STATUS WHERE STATUS = 'PREPARED'") == [(0,)]


@pytest.mark.slow
def test_a_full_disk_under_the_data_directory_is_named(tmp_path: Path) -> None:
    """Whether the run comes to its verdict depends on what was to be written first; workers spool what they measured,
    and once there is room again nothing is missing."""
    with (
        small_disk("200m") as disk,
        EmbeddedServer("--strict-hybrid", data_dir=disk / "data") as server,
        run_harness(server, tmp_path) as harness,
    ):
        run = harness.run(load={"workers": 2, "warmup": "0s", "duration": "5s"}, query_log={"mode": "all"})
        run.wait_for(MEASURES)
        fill(disk)

        assert run.ended() in (0, 3, 4, 5), run.said
        run.wait_alone()

        assert f"the disk of the data directory {disk}/data is full" in run.said
        if run.process.returncode == 3:
            assert "hint: Free disk space" in run.said
        assert list(run_folder(run).glob(f"spool/{run.run_id}/worker-*/unsent.jsonl"))
        (disk / "fill").unlink()
        upload(harness, run)
        check_complete(harness, run)


# --- what the control plane did not take -----------------------------------------------------------------------------


def upload(harness: RunHarness, run: Program, name: str = "") -> list[dict[str, Any]]:
    """By a user in the folder in which the run was started."""
    done = subprocess.run(
        [*PROGRAM, "upload", name or run.run_id, "-c", "embedded", "--format", "json"],
        env=harness.environ,
        cwd=run.folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    uploaded: list[dict[str, Any]] = json.loads(done.stdout)["workers"]
    return uploaded


def check_complete(harness: RunHarness, run: Program) -> None:
    """Every second, every log line and every statement of the measurement is in the tables, once."""
    sql = "SELECT {} FROM {} WHERE RUN_ID = ?"
    ((windows, keys),) = harness.rows(
        sql.format("COUNT(*), COUNT(DISTINCT WORKER_ID, WINDOW_ID)", "WINDOW_RESULTS"), run.run_id
    )
    assert windows == keys > 0
    for key, table in (
        ("SNAPSHOT_ID", "WORKER_METRICS_SNAPSHOTS"),
        ("LOG_ID", "TEST_LOGS"),
        ("TEST_ID", "TEST_RESULTS"),
    ):
        ((rows, ids),) = harness.rows(sql.format(f"COUNT(*), COUNT(DISTINCT {key})", table), run.run_id)
        assert rows == ids > 0, table
    ended = "SELECT COUNT(DISTINCT WORKER_ID) FROM TEST_LOGS WHERE RUN_ID = ? AND STARTSWITH(MESSAGE, 'ended')"
    workers = harness.rows("SELECT COUNT(*) FROM TEST_RESULTS WHERE RUN_ID = ? AND WORKER_ID IS NOT NULL", run.run_id)
    assert harness.rows(ended, run.run_id) == workers
    executed = sum(history(harness.server, run.run_id).values())
    counted = "SELECT COUNT(DISTINCT EXECUTION_ID) FROM QUERY_EXECUTIONS WHERE RUN_ID = ? AND PHASE = 'MEASUREMENT'"
    assert harness.rows(counted, run.run_id) == [(executed,)]


def test_rows_that_were_not_stored_are_reported_in_the_summary_and_uploaded_later(harness: RunHarness) -> None:
    """The tables that rows are appended to refuse them. Beats arrive: the verdict is made of all that was measured."""
    run = harness.run(load={"connections": 8, "warmup": "0s", "duration": "3s"}, query_log={"mode": "all"})
    run.wait_for(MEASURES)
    tables = "WORKER_METRICS_SNAPSHOTS|TEST_LOGS|QUERY_EXECUTIONS|WINDOW_RESULTS"
    harness.server.fault(match=f"INSERT INTO ({tables})", kind="error", errno=603, sqlstate="53100", message="no room")

    told = check_verdict(run)
    harness.server.clear_faults()

    executed = sum(history(harness.server, run.run_id).values())
    assert told["totals"]["succeeded"] == executed
    assert list(told["unstored"]) == ["worker-0"]
    assert sum(rows["execution"] for rows in told["unstored"].values()) == executed
    assert all(rows.keys() >= {"window", "snapshot", "log_line"} for rows in told["unstored"].values())
    (warning,) = [one for one in told["environment"]["warnings"] if one.startswith("not stored yet: worker-0 ")]
    assert f"`loadgen upload {run.run_id}`" in warning
    assert any("no room" in one for one in told["environment"]["warnings"])
    assert (run.folder / "runs" / run.run_id / "spool").exists()
    uploaded = upload(harness, run, "latest")
    assert not (run.folder / "runs" / run.run_id / "spool").exists()
    assert {one["folder"].rpartition("-")[0]: one["rows"]["execution"] for one in uploaded} == {
        worker: rows["execution"] for worker, rows in told["unstored"].items()
    }
    check_complete(harness, run)
    assert "unstored" not in run.summary
    assert not any(one.startswith("not stored yet") for one in run.summary["environment"]["warnings"])
    assert upload(harness, run) == []


@pytest.mark.slow
def test_a_result_that_the_control_plane_rejects_is_reported_and_uploaded_later(harness: RunHarness) -> None:
    run = harness.run(load=SHORT)
    run.wait_for("STARTING PREPARING")
    harness.server.fault(match="INSERT INTO TEST_RESULTS", kind="error", errno=603, sqlstate="53100", message="no room")

    told = check_verdict(run)
    harness.server.clear_faults()

    ended = harness.rows("SELECT STATUS, VERDICT FROM RUN_STATUS WHERE RUN_ID = ?", run.run_id)
    assert ended == [("COMPLETED", told["verdict"])], "it has ended, whatever became of its result"
    assert {"orchestrator": {"result": 1}}.items() <= told["unstored"].items()
    assert "the control plane did not accept the result" in run.said
    assert [one["rows"]["result"] for one in upload(harness, run)] == [1, 1]


@pytest.mark.slow
def test_a_query_log_is_uploaded_to_its_end(harness: RunHarness) -> None:
    """However long that takes after the drain: each statement of the upload waits longer than the drain may take."""
    run = harness.run(
        load={"connections": 8, "warmup": "0s", "duration": "4s"}, query_log={"mode": "all"}, timing={"drain": "500ms"}
    )
    run.wait_for(MEASURES)
    harness.server.fault(match="INSERT INTO QUERY_EXECUTIONS", kind="latency", ms=4_000)

    told = check_verdict(run)

    assert "unstored" not in told
    check_complete(harness, run)
