"""Which spooled rows `loadgen upload` finds for a name, without a connection."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from loadgen.cli import enrich
from loadgen.cli.enrich import spool_access
from loadgen.control.location import ControlPlaneLocation
from loadgen.errors import Busy, UsageError
from loadgen.worker.flush import LOCK, SPOOL_VARIABLE
from orchestrator import upload
from orchestrator.upload import SpooledRun, find_spooled, upload_spooled

RUNS = ("20261115-0200-orders-7f3a", "20261115-0300-orders-8a1b")


@pytest.fixture
def runs_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two runs with spooled rows: one in the folder of the run, one in the default spool and in that of its run."""
    monkeypatch.setenv(SPOOL_VARIABLE, str(tmp_path / "spool"))
    runs = tmp_path / "runs"
    for spool, run_id in ((runs / RUNS[0] / "spool", RUNS[0]), (runs / RUNS[1] / "spool", RUNS[1])):
        (spool / run_id / "worker-0-1234").mkdir(parents=True)
    (tmp_path / "spool" / RUNS[1] / "worker-1-5678").mkdir(parents=True)
    return runs


def test_a_run_is_found_by_its_id_or_a_unique_prefix_in_every_spool(runs_folder: Path) -> None:
    first = find_spooled(spool_access(), runs_folder, RUNS[0][:15])
    second = find_spooled(spool_access(), runs_folder, RUNS[1])

    assert (first.run_id, [path.name for path in first.folders]) == (RUNS[0], ["worker-0-1234"])
    assert (second.run_id, [path.name for path in second.folders]) == (RUNS[1], ["worker-1-5678", "worker-0-1234"])


def test_a_run_without_spooled_rows_keeps_its_name(runs_folder: Path) -> None:
    assert find_spooled(spool_access(), runs_folder, "other") == SpooledRun(run_id="other", folders=())


@pytest.mark.parametrize(("name", "what"), [("20261115", "beginning of several"), ("../x", "not a run id")])
def test_an_ambiguous_or_invalid_name_is_an_error(runs_folder: Path, name: str, what: str) -> None:
    with pytest.raises(UsageError, match=what):
        find_spooled(spool_access(), runs_folder, name)


def test_the_folder_of_a_process_that_still_runs_is_reported_and_the_others_are_stored(
    runs_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = find_spooled(spool_access(), runs_folder, RUNS[1])
    held = os.open(found.folders[0] / LOCK, os.O_RDWR | os.O_CREAT)
    fcntl.flock(held, fcntl.LOCK_EX)
    monkeypatch.setattr(upload, "update_stored_summary", lambda *_: pytest.fail("rows are still missing"))
    place: Any = ControlPlaneLocation(connection="embedded")

    with pytest.raises(Busy, match="worker-1-5678"):
        upload_spooled(place, spool_access(), found, lambda _: None)
    os.close(held)

    assert [path.exists() for path in found.folders] == [True, False]


def test_damaged_records_are_a_warning_of_the_upload(runs_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    damaged = upload.UploadedFolder(folder="worker-0-1234", rows={"execution": 5}, damaged=2)
    monkeypatch.setattr(upload, "upload_spooled", lambda *_: ([damaged], None))
    command = ["--output-dir", str(runs_folder), "-c", "embedded", RUNS[0]]
    monkeypatch.setattr(enrich, "embedded_server_if_needed", contextlib.nullcontext)

    done = CliRunner().invoke(enrich.upload, [*command, "--format", "json"], catch_exceptions=False)

    assert done.stderr == "warning: worker-0-1234: 2 records of the query log could not be read, and are lost\n"
    assert [one["damaged"] for one in json.loads(done.stdout)["workers"]] == [2]
