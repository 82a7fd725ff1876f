"""The command lines of `loadgen worker` and `loadgen upload`: what is rejected, the message, and the exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loadgen.cli.main import main
from loadgen.model.run import chosen_id
from loadgen.worker.arguments import InvalidWorkerArguments, WorkerArguments
from orchestrator import upload

PLACE = ["--worker-group-id", "0", "--worker-group-count", "1"]


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("LOADGEN_RUN_ID", "SNOWFLAKE_JOB_INDEX", "SNOWFLAKE_JOBS_COUNT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LOADGEN_SPOOL_DIR", str(tmp_path / "spool"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "missing: --run-id, --worker-group-id, --worker-group-count"),
        (["--run-id", "r1"], "missing: --worker-group-id, --worker-group-count"),
        (["--run-id", "r1", "--worker-group-id", "one"], "'one' is not a valid integer"),
        (["--run-id"], "requires an argument"),
        (["--run", "r1", *PLACE], "No such option"),
        (["--run-id", "r1", *PLACE, "surplus"], "unexpected extra argument"),
        (["--run-id", "../r1", *PLACE], "--run-id is '../r1'"),
        (["--run-id", "r" * 37, *PLACE], "it needs 1 to 36"),
        (["--run-id", "r1", "--worker-id", "a b", *PLACE], "--worker-id is 'a b'"),
        (["--run-id", "r1", "--worker-group-id", "2", "--worker-group-count", "2"], "the last one is 1"),
        (["--run-id", "r1", "--worker-group-id", "0", "--worker-group-count", "0"], "--worker-group-count is 0"),
    ],
)
def test_invalid_arguments_end_with_1(capfd: pytest.CaptureFixture[str], arguments: list[str], said: str) -> None:
    assert main(["worker", *arguments]) == 1
    out, err = capfd.readouterr()
    assert out == ""
    error, hint = err.splitlines()
    assert error.startswith("error: ")
    assert said in error
    assert hint.startswith("hint: loadgen worker --run-id RUN")


@pytest.mark.parametrize(("runs", "code"), [(("r1",), 0), ((), 2), (("r11", "r12"), 2)])
def test_an_empty_upload_of_an_unknown_or_ambiguous_run_is_bad_usage(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], runs: tuple[str, ...], code: int
) -> None:
    monkeypatch.setattr(
        upload, "stored_run_id", lambda _, name: chosen_id(name, runs, noun="run", remedy="Look at the runs.")
    )

    assert main(["upload", "r1", "-c", "nowhere"]) == code

    assert ("nothing to upload" in capfd.readouterr().out) is (code == 0)


def test_a_container_identifies_itself() -> None:
    environ = {"LOADGEN_RUN_ID": "r1", "SNOWFLAKE_JOB_INDEX": "3", "SNOWFLAKE_JOBS_COUNT": "8"}
    assert WorkerArguments.of(None, None, None, None, environ) == WorkerArguments(
        run_id="r1", worker_id="worker-3", worker_group_id=3, worker_group_count=8
    )
    assert WorkerArguments.of("r2", "w", 1, 2, environ).run_id == "r2"
    with pytest.raises(InvalidWorkerArguments, match="SNOWFLAKE_JOB_INDEX is 'x', not a number"):
        WorkerArguments.of(None, None, None, None, environ | {"SNOWFLAKE_JOB_INDEX": "x"})


def test_an_empty_upload_is_reported_if_the_control_plane_cannot_be_asked(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["upload", "r1", "-c", "nowhere"]) == 0
    assert capfd.readouterr().out == (
        f"nothing to upload: no spooled results of run r1 in {tmp_path / 'spool'} or runs\n"
    )
    assert main(["upload", "r1", "-c", "nowhere", "--format", "json"]) == 0
    assert json.loads(capfd.readouterr().out) == {"run_id": "r1", "workers": []}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "Missing argument 'RUN'"),
        (["../r1"], "'../r1' is not a run id"),
        (["20261115"], "20261115 is the beginning of several runs: 20261115-a, 20261115-b"),
    ],
)
def test_a_folder_that_cannot_be_uploaded_is_wrong_usage(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, arguments: list[str], said: str
) -> None:
    for name in ("20261115-a", "20261115-b"):
        (tmp_path / "spool" / name / "worker-0-abcd").mkdir(parents=True)
    assert main(["upload", *arguments]) == 2
    error, hint = capfd.readouterr().err.splitlines()
    assert error.startswith("error: ")
    assert said in error
    assert hint.startswith("hint: ")
