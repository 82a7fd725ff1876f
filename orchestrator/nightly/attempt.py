"""One attempt at a queued run: its files in a separate folder, and `loadgen run` as a process under process_guard.

    <output folder>/.queue/<queue id>.<epoch>/   output of the run: stdout, stderr
    <output folder>/.queue/…/in/                 scenario.yaml and its value files
    <output folder>/.queue/…/out/<run id>/       files of the run; moved to <output folder>/<run id>/ at its end

The run chooses its id. The id is known as soon as the folder of the run exists.
"""

from __future__ import annotations

import errno
import json
import math
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import IO, Any

from loadgen.control.session import REASON_MAX
from loadgen.control.tables.run_queue import AttemptResult, ClaimedRun, QueueClaim
from loadgen.files import open_private
from loadgen.log import printable
from loadgen.model.nightly import (
    BUSY_PAUSE_S,
    AttemptStatus,
    ExitCodeMeaning,
    QueueStatus,
    exit_code_meaning,
    retry_pause_s,
)
from loadgen.values import dataclass
from orchestrator.nightly import process_guard

FOLDER = ".queue"
_NAME = re.compile(r"([a-z0-9-]+)\.[0-9]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFolder:
    path: Path
    queue_id: str


def old_folders(runs_folder: Path, before_s: float) -> Iterator[AttemptFolder]:
    """The folders of attempts that were not written to since then (seconds since 1970). The queue shows which of them
    are still needed."""
    try:
        entries = sorted((runs_folder / FOLDER).iterdir())
    except OSError:  # there is no attempt
        return
    for path in entries:
        named = _NAME.fullmatch(path.name)
        if named and not path.is_symlink() and path.is_dir() and _written_s(path) < before_s:
            yield AttemptFolder(path=path, queue_id=named[1])


def remove(folder: AttemptFolder) -> bool:
    """Remove the folder of an attempt. Returns False if a part of it could not be removed."""
    shutil.rmtree(folder.path, ignore_errors=True)
    return not folder.path.exists()


def _written_s(folder: Path) -> float:
    """Time of the last change of the folder or of a file in it: writing to a file does not change the folder."""
    try:
        return max(path.lstat().st_mtime for path in (folder, *folder.iterdir()))
    except OSError:  # another process removes it
        return math.inf


STOP_S = 60.0  # for a run to end gracefully, with its results
DEPTH_MAX = 32  # parts in the name of a value file: deeper folders are hard to remove
LOADGEN_COMMAND = (sys.executable, "-P", "-c", "import sys; from loadgen.cli.main import main; sys.exit(main())")
_READ_MAX = 4_000_000  # bytes of a summary
_OUTPUT_NOT_NEEDED = (ExitCodeMeaning.COMPLETED, ExitCodeMeaning.BUSY)  # the output of other attempts is kept


_QUEUE_ID = re.compile(r"[a-z0-9-]{1,36}")
_WARNINGS_MAX = 20
# Errors of file names that cannot exist, or that are a file and a folder at the same time: every attempt would fail.
_NAME_ERRORS = (errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.EILSEQ, errno.EINVAL)


class InvalidQueueRow(Exception):
    """The row has content that loadgen never queues."""


class RunProcess:
    """The process of a run. Belongs to the thread that executes the attempt."""

    def __init__(self, folder: Path, runs_folder: Path, process: subprocess.Popen[bytes]) -> None:
        self._folder, self._runs_folder, self._process = folder, runs_folder, process

    @property
    def exit_code(self) -> int | None:
        """The exit code of the process. None: it has not ended."""
        return self._process.poll()

    @property
    def run_id(self) -> str | None:
        """The id of the run. None: the run is not created yet, or was never created."""
        return min(self._run_ids(), default=None)

    def _run_ids(self) -> list[str]:
        with suppress(OSError):
            return [entry.name for entry in (self._folder / "out").iterdir() if entry.is_dir()]
        return []

    def stop(self) -> None:
        """Request a graceful end. If it takes too long, process_guard kills the process. Safe to repeat."""
        self._request(b"t")

    def interrupt(self) -> None:
        """Request the end within seconds, without results. Safe to repeat."""
        self._request(b"h")

    def kill(self) -> None:
        self._request(b"k")

    def result(self) -> AttemptResult:
        """Wait for the end, and move the files of the run to the folder of all runs. With --confirm there may be two
        runs."""
        code, output = self._process.wait(), _read_output(self._folder)
        runs = self._run_ids()
        decisive = output.get("run_id")  # the run of the summary
        run_id = decisive if decisive in runs else self.run_id
        verdict = output.get("verdict")
        result = AttemptResult(
            run_id=run_id,
            exit_code=code,
            reason=_reason(output, self._folder, code),
            verdict=printable(verdict, 20) if isinstance(verdict, str) else None,
        )
        with suppress(OSError):  # then they are not moved
            for name in runs:
                (self._folder / "out" / name).replace(self._runs_folder / name)
            if exit_code_meaning(code) in _OUTPUT_NOT_NEEDED:
                shutil.rmtree(self._folder, ignore_errors=True)
        return result

    def warnings(self) -> list[str]:
        """The warnings of the run, for the user of the pool."""
        lines = _stderr(self._folder)
        return [printable(line, REASON_MAX) for line in lines if line.startswith("warning: ")][:_WARNINGS_MAX]

    def close(self) -> None:
        """Kill the process if it has not ended, and wait for its end."""
        if self._process.poll() is None:
            self.kill()
            self._process.wait()
        stdin = self._process.stdin
        assert stdin is not None
        with suppress(OSError):
            stdin.close()

    def _request(self, word: bytes) -> None:
        stdin = self._process.stdin
        assert stdin is not None
        with suppress(OSError, ValueError):  # it has just ended
            stdin.write(word)
            stdin.flush()


def start_attempt(
    claim: QueueClaim,
    wanted: ClaimedRun,
    runs_folder: Path,
    options: Sequence[str] = (),
    *,
    program: Sequence[str] = LOADGEN_COMMAND,
    stop_s: float = STOP_S,
) -> RunProcess:
    """Start `loadgen run` for a claimed run. Raises InvalidQueueRow if no attempt can succeed."""
    if not _QUEUE_ID.fullmatch(claim.queue_id):  # it becomes the name of a folder, which is removed first
        raise InvalidQueueRow(f"the queue id {printable(claim.queue_id, 100)!r} is not made of a-z, 0-9 and -")
    folder = runs_folder / FOLDER / f"{claim.queue_id}.{claim.epoch}"
    shutil.rmtree(folder, ignore_errors=True)
    runs_folder.mkdir(parents=True, exist_ok=True)
    _make_private(folder / "out", runs_folder)
    scenario = _write_all(folder / "in", wanted)
    words = [*program, "run", str(scenario), "--quiet", "--format=json", *options, *wanted.judging.words]
    words += [
        f"--output-dir={folder / 'out'}",
        f"--label=queue_id={claim.queue_id}",
        f"--label=attempt={wanted.number}",
    ]
    if wanted.connection is not None:
        words.append(f"--connection={wanted.connection}")
    with _output_file(folder, "stdout") as stdout, _output_file(folder, "stderr") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", process_guard.__file__, f"{stop_s:g}", *words],
            stdin=subprocess.PIPE,
            stdout=stdout,
            stderr=stderr,
            process_group=0,
        )
    return RunProcess(folder, runs_folder, process)


def _write_all(folder: Path, wanted: ClaimedRun) -> Path:
    """Write the scenario and its value files. Returns the path of the scenario."""
    files = {_inside(folder, name): (name, content) for name, content in wanted.files.items()}
    scenario = folder / "scenario.yaml"
    while scenario in files:
        scenario = scenario.with_name(f"_{scenario.name}")
    _write(scenario, wanted.scenario, folder.parent)
    for path, (name, content) in files.items():
        try:
            _write(path, content, folder.parent)
        except OSError as error:
            if error.errno not in _NAME_ERRORS:
                raise
            reason = f"the value file {printable(name, 200)!r} cannot be written: {error.strerror}"
            raise InvalidQueueRow(reason) from None
    return scenario


def _inside(folder: Path, name: str) -> Path:
    """The path of a value file. The name comes from a table: it must not lead out of the folder."""
    path = PurePosixPath(name)
    if path.is_absolute() or not path.parts or ".." in path.parts or "\0" in name:
        raise InvalidQueueRow(f"the value file {printable(name, 200)!r} would be outside the folder of the scenario")
    if len(path.parts) > DEPTH_MAX:
        raise InvalidQueueRow(f"the value file {printable(name, 200)!r} has more than {DEPTH_MAX} parts")
    return folder / path


def _write(path: Path, content: str, top: Path) -> None:
    _make_private(path.parent, top)
    with open(path, "w", encoding="utf-8", newline="", opener=open_private) as file:
        file.write(content)


def _make_private(folder: Path, top: Path) -> None:
    """Create a folder and its parents below `top`, for the owner only. mkdir(parents=True) would give the mode to the
    last folder only."""
    path = top
    for part in folder.relative_to(top).parts:
        path /= part
        with suppress(FileExistsError):
            path.mkdir(mode=0o700)


def _output_file(folder: Path, name: str) -> IO[bytes]:
    return open(folder / name, "wb", opener=open_private)


def _read_output(folder: Path) -> dict[str, Any]:
    """The summary or the error that the run has printed. Empty: neither was printed."""
    with suppress(OSError, ValueError):
        with (folder / "stdout").open("rb") as file:
            output = json.loads(file.read(_READ_MAX))
        if isinstance(output, dict):
            return output
    return {}


def _reason(output: Mapping[str, Any], folder: Path, code: int) -> str | None:
    """The reason in the summary or the error of the run, else the last line of its stderr."""
    with suppress(TypeError, LookupError):  # the output is not a summary
        why = output["error"]["message"] if "error" in output else output.get("exit_reason")
        if why:
            return printable(str(why), REASON_MAX)
    line = next((line for line in reversed(_stderr(folder)) if line.strip()), None)
    if line is not None:
        return printable(line, REASON_MAX)
    return None if code == 0 else f"it ended with {code} and printed nothing"


def _stderr(folder: Path) -> list[str]:
    with suppress(OSError):
        return (folder / "stderr").read_bytes()[-_READ_MAX:].decode("utf-8", "replace").split("\n")
    return []


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptOutcome:
    """`final`: the final status of the queued run. None: it is queued again, for at least `pause_s`."""

    attempt: AttemptStatus
    final: QueueStatus | None
    pause_s: float = 0.0
    counts: bool = True  # against the maximum of attempts


def judge_attempt(
    exit_code: int, *, attempts: int, cancelled: bool, interrupted: bool, chance: float
) -> AttemptOutcome:
    """The outcome of an attempt. `cancelled`: a user has requested its end; `interrupted`: its runner was asked to end.
    A run that has completed nevertheless counts as completed."""
    judgement = exit_code_meaning(exit_code)
    if judgement is ExitCodeMeaning.COMPLETED:
        return AttemptOutcome(attempt=AttemptStatus.COMPLETED, final=QueueStatus.COMPLETED)
    if cancelled:
        return AttemptOutcome(attempt=AttemptStatus.CANCELLED, final=QueueStatus.CANCELLED)
    if judgement is ExitCodeMeaning.HOPELESS:
        return AttemptOutcome(attempt=AttemptStatus.FAILED, final=QueueStatus.FAILED)
    if interrupted:
        return AttemptOutcome(attempt=AttemptStatus.INTERRUPTED, final=None, counts=False)
    if judgement is ExitCodeMeaning.STOPPED:
        return AttemptOutcome(attempt=AttemptStatus.CANCELLED, final=QueueStatus.CANCELLED)
    if judgement is ExitCodeMeaning.BUSY:
        pause_s = BUSY_PAUSE_S * (0.5 + chance)
        return AttemptOutcome(attempt=AttemptStatus.SKIPPED, final=None, pause_s=pause_s, counts=False)
    return AttemptOutcome(attempt=AttemptStatus.FAILED, final=None, pause_s=retry_pause_s(attempts, chance))
