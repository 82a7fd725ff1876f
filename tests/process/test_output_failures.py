"""Output that cannot be written: a full disk is reported and has exit code 4, a closed pipe is no error, and a finished
run keeps its verdict and its files in both cases."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import psutil
import pytest

from loadgen.snowflake.profile_lookup import EMBEDDED_ADDRESS
from orchestrator.run_folder import write_run_files
from tests.control_plane import ControlPlane
from tests.embedded_server import EmbeddedServer
from tests.process.run_harness import MEASURES, run_harness, scenario
from tests.process.stored_runs import Store
from tests.processes import PATIENCE_S, PROGRAM, ROOT

FULL = Path("/dev/full")
EXAMPLE = str(ROOT / "examples" / "quickstart.yaml")
TOLD = (
    "error: cannot write the output: No space left on device\nhint: Free space there, or send the output elsewhere.\n"
)

pytestmark = pytest.mark.skipif(not FULL.exists(), reason="needs a device that is always full")


@pytest.fixture
def full() -> Iterator[IO[bytes]]:
    with FULL.open("wb") as file:
        yield file


@pytest.fixture
def no_reader() -> Iterator[IO[bytes]]:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb", buffering=0) as file:
        yield file


def printed_to(stdout: IO[bytes], *words: str, environ: dict[str, str], folder: Path) -> tuple[int, str]:
    """Exit code and stderr."""
    given = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "HOME": str(folder)} | environ
    done = subprocess.run(
        [*PROGRAM, *words], stdout=stdout, stderr=subprocess.PIPE, env=given, cwd=folder, text=True, timeout=PATIENCE_S
    )
    return done.returncode, done.stderr


ENOUGH = [["--help"], ["run", EXAMPLE, "--dry-run"]]
OTHERS = [
    ["--version"],
    ["run", "--help"],
    ["schema"],
    ["validate", EXAMPLE, "--plan"],
    ["validate", EXAMPLE, "--format", "json"],
    ["grants", EXAMPLE],
    ["connections", "list"],
]


@pytest.mark.parametrize(
    "words", [*ENOUGH, *(pytest.param(words, marks=pytest.mark.slow) for words in OTHERS)], ids=" ".join
)
def test_a_full_disk_is_reported_and_a_closed_pipe_is_not(full, no_reader, words, tmp_path):
    assert printed_to(full, *words, environ={}, folder=tmp_path) == (4, TOLD)
    assert printed_to(no_reader, *words, environ={}, folder=tmp_path) == (141, "")


def test_a_closed_stdout_is_reported(tmp_path):
    given = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)}
    words = shlex.join([*PROGRAM, "grants", EXAMPLE])

    done = subprocess.run(["sh", "-c", f"{words} >&-"], capture_output=True, env=given, timeout=PATIENCE_S)

    assert (done.returncode, done.stdout) == (4, b"")
    assert b"cannot write the output: stdout is closed" in done.stderr


def test_files_are_written_though_it_cannot_be_printed(full, tmp_path):
    code, said = printed_to(full, "init", "made", environ={}, folder=tmp_path)

    assert (code, said) == (4, TOLD)
    assert sorted(path.name for path in (tmp_path / "made").iterdir()) == ["scenario.schema.json", "scenario.yaml"]


def test_a_closed_stderr_fails_no_command(full, tmp_path):
    given = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)}

    done = subprocess.run(
        [*PROGRAM, "init", "made"], stdout=subprocess.PIPE, stderr=full, env=given, cwd=tmp_path, timeout=PATIENCE_S
    )

    assert (done.returncode, done.stdout) == (0, b"wrote made/scenario.schema.json\nwrote made/scenario.yaml\n")


@pytest.mark.slow
def test_reading_commands_report_a_full_disk_and_keep_their_verdict(
    plane: ControlPlane, capsys: pytest.CaptureFixture[str], full, no_reader, tmp_path
):
    store = Store(plane, capsys)
    first, again = store.run("20261114-0200-orders-aaaa"), store.run("20261115-0200-orders-bbbb")
    slow = store.run("20261116-0200-orders-cccc", slower=1.2)
    place = ("-c", "embedded", "--database", plane.place.database)

    def printed(stdout: IO[bytes], *words: str) -> tuple[int, str]:
        return printed_to(stdout, *words, *place, environ=plane.environ, folder=tmp_path)

    for words in (
        ["runs", "list"],
        ["runs", "show", first],
        ["report", first, "--format", "md"],
        ["compare", first, again],
    ):
        assert printed(full, *words) == (4, TOLD), words
        assert printed(no_reader, *words) == (141, ""), words
    assert printed(full, "runs", "list", "--format", "json") == (4, TOLD)
    worse = "warning: the result could not be printed: No space left on device\n"
    assert printed(full, "compare", first, slow) == (11, worse)
    assert printed(no_reader, "compare", first, slow) == (11, "")


@pytest.mark.slow
@pytest.mark.parametrize("threshold", ["error_rate < 1%", "p95 < 1ms"])
def test_a_run_whose_result_cannot_be_printed_has_its_files_and_its_verdict(
    server: EmbeddedServer, full, no_reader, tmp_path, threshold
):
    load = {"connections": 8, "warmup": "0s", "duration": "2s"}
    made = scenario(9_100, embedded={"service_time": "100ms"}, load=load, thresholds=[threshold])
    file = tmp_path / "scenario.yaml"
    file.write_text(json.dumps(made), "utf-8")
    environ = {EMBEDDED_ADDRESS: server.address}

    for stdout, name in ((full, "full"), (no_reader, "left")):
        words = ("run", str(file), "--quiet", "--output-dir", str(tmp_path / name))
        ended, said = printed_to(stdout, *words, environ=environ, folder=tmp_path)

        (summary,) = (tmp_path / name).glob("*/summary.json")
        verdict = json.loads(summary.read_text("utf-8"))["exit_code"]  # 5 on a busy machine
        assert ended == verdict, said
        assert (summary.parent / "report.html").exists()
        assert ("No space left on device" in said) == (name == "full")
        assert "error:" not in said


@pytest.mark.slow
def test_reports_without_room_leave_nothing_behind_and_are_named_last(server: EmbeddedServer, tmp_path):
    """The room is a limit on the size of files, set while the run measures: small files fit, the page does not."""
    with run_harness(server, tmp_path / "bench", embedded={"service_time": "200ms"}) as harness:
        path = tmp_path / "scenario.yaml"
        path.write_text(harness.text(9_101, load={"connections": 8, "warmup": "0s", "duration": "3s"}), "utf-8")
        harness.environ["PYTHONDONTWRITEBYTECODE"] = "1"  # Python would leave parts of modules that are imported later
        run = harness.start("run", path)
        run.wait_for(MEASURES)
        psutil.Process(run.process.pid).rlimit(psutil.RLIMIT_FSIZE, (20_000, 20_000))
        code = run.ended()

    folder = run.folder / "runs" / run.run_id
    assert code == run.summary["exit_code"], run.said
    assert [one.name for one in folder.iterdir() if one.name.startswith(".")] == []
    assert not (folder / "report.html").exists()
    assert "report:" not in run.out
    last = [line for line in run.said.splitlines() if line.startswith("warning:")][-1]
    assert last.startswith(f"warning: not written in runs/{run.run_id}: report.html")
    assert last.endswith(f"; `loadgen report {run.run_id} --out FILE` makes each of them, once there is room")


@pytest.mark.parametrize(
    ("written", "missing"),
    [
        (None, ["summary.json"]),
        ({"verdict": "passed"}, []),  # it is there already
        ({"verdict": "failed"}, ["summary.json with the baseline"]),
    ],
)
def test_a_summary_is_named_as_missing_only_when_it_is(tmp_path, written, missing):
    warnings: list[str] = []

    found = write_run_files(tmp_path / "gone", {"verdict": "passed"}, None, warnings.append, written=written)

    assert found == missing
    assert len(warnings) == len(missing)


@pytest.mark.parametrize(("verdict", "code"), [(0, 4), (5, 5), (10, 10)])
def test_only_a_verdict_of_0_gives_way_to_the_failure_of_the_output(full, verdict, code, tmp_path):
    script = (
        "import sys, click\n"
        "from loadgen.cli import main\n"
        "from loadgen.cli.common import echo, print_verdict\n"
        f"body = lambda: print_verdict({verdict}, lambda: echo('result'))\n"
        "main.cli.get_command = lambda *_: click.Command('probe', callback=body)\n"
        "main.cli.resolve_command = lambda ctx, args: ('probe', main.cli.get_command(), args[1:])\n"
        "sys.exit(main.main(['probe']))"
    )
    given = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [PROGRAM[0], "-c", script], stdout=full, stderr=subprocess.PIPE, env=given, timeout=PATIENCE_S
    )

    assert done.returncode == code, done.stderr
    assert b"No space left on device" in done.stderr
