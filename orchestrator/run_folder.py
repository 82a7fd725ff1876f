"""The folders and files of runs and experiments on this machine, the reports in them, and the ids of new runs."""

from __future__ import annotations

import json
import os
import re
import secrets
import shlex
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadgen.errors import ConfigurationError, LoadgenError, cannot_write
from loadgen.files import replace_file
from loadgen.log import printable

if TYPE_CHECKING:
    from loadgen.report.records import RunRecord

LOGS = "logs"
SPOOL = "spool"  # rows that workers have not stored yet
SCENARIO = "scenario.yaml"
SUMMARY = "summary.json"
STEP_SUMMARY = "GITHUB_STEP_SUMMARY"  # a file that GitHub Actions shows as Markdown
_NEEDED_BYTES = 1 << 20  # a run's files are larger than this


def make_runs_folder(folder: Path) -> None:
    """Create the folder of all runs before anything else begins. Raises ConfigurationError if it cannot be written."""
    with _folder_errors(folder):
        folder.mkdir(parents=True, exist_ok=True, mode=0o755)
        _refuse_shared(folder)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(_NEEDED_BYTES))
            file.flush()


def make_run_folder(folder: Path, scenario: str | None = None) -> None:
    """Create the folder of one run with a copy of its scenario, whose file may change before the run ends."""
    with _folder_errors(folder):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        (folder / LOGS).mkdir(exist_ok=True, mode=0o700)
        if scenario is not None:
            replace_file(folder / SCENARIO, scenario.encode(), durable=True)


def _refuse_shared(folder: Path) -> None:
    """Reject a folder in which other users can rename and replace the folder of a run. A sticky folder is safe."""
    mode = stat.S_IMODE(folder.stat().st_mode)
    if mode & (stat.S_IWGRP | stat.S_IWOTH) and not mode & stat.S_ISVTX:
        raise ConfigurationError(
            f"the folder of runs {printable(str(folder))} can be changed by others (mode {mode:04o})",
            remedy=f"Run: chmod go-w {printable(shlex.quote(str(folder)))}; or choose another with --output-dir.",
        )


def remove_run_folder(folder: Path) -> None:
    """Remove the folder of a run that could not be created."""
    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _folder_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except FileExistsError as error:
        what = f"{printable(str(folder))} is not a directory"
        raise ConfigurationError(what, remedy="Choose another directory with --output-dir.") from error
    except OSError as error:
        raise cannot_write(printable(str(folder)), error, "Choose another directory with --output-dir.") from error


def remove_if_empty(folder: Path) -> None:
    """Remove a folder if it is empty."""
    with suppress(OSError):  # it is not empty, or does not exist
        folder.rmdir()


_SLUG_MAX = 15  # so that an id has at most 36 characters


def new_run_id(scenario: str, utc_now: datetime) -> str:
    """A unique id that sorts by the start of the run and contains the name of the scenario."""
    slug = re.sub(r"[^a-z0-9]+", "-", scenario.lower()).strip("-")[:_SLUG_MAX].strip("-")
    parts = [utc_now.strftime("%Y%m%d-%H%M"), *([slug] if slug else []), secrets.token_hex(3)]
    return "-".join(parts)


# --- reports ---------------------------------------------------------------------------------------------------------
#
# The modules that make reports are imported when one is written: they take longer to import than all others.

Writers = Mapping[str, Callable[[], None]]  # by the name of the file
Warn = Callable[[str], None]


def write_file(path: Path, content: str) -> None:
    """Replace a file at once: readers see the old or the new content, and a full disk leaves no partial file. A new
    file is readable by its owner only; an existing one keeps its mode."""
    with _write_errors(path):
        if path.exists() and not path.is_file():  # /dev/stdout, a pipe: it cannot be replaced
            path.write_text(content, "utf-8", newline="")
            return
        replace_file(path, content.encode(), keeps_mode=True, durable=True)


@contextmanager
def _write_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise cannot_write(path, error, "Choose another file or folder that you may write to.") from error


def write_each(writers: Writers, warn: Warn) -> list[str]:
    """Write all files. A file that cannot be written is a warning and does not prevent the others; its name is
    returned."""
    missing = []
    for name, write in writers.items():
        try:
            write()
        except LoadgenError as error:
            missing.append(name)
            warn(f"{printable(str(error))}. {printable(error.remedy)}")
        except Exception as error:  # a bug in a report
            missing.append(name)
            warn(f"{name} was not written: {type(error).__name__}: {printable(str(error))}")
    return missing


def write_summary(folder: Path, summary: Mapping[str, Any]) -> None:
    write_file(folder / SUMMARY, f"{json.dumps(summary, indent=2)}\n")


def write_run_files(
    folder: Path,
    summary: Mapping[str, Any],
    record: RunRecord | None,
    warn: Warn,
    *,
    written: Mapping[str, Any] | None = None,
) -> list[str]:
    """The files of a run: its summary, unless it is `written` already, and its reports. Returns what is missing."""
    writers: dict[str, Callable[[], None]] = {}
    if summary != written:
        name = SUMMARY if written is None else f"{SUMMARY} with the baseline"
        writers[name] = partial(write_summary, folder, summary)
    if record is not None:
        writers |= report_writers(folder, replace(record, summary=summary))
    return write_each(writers, warn)


def write_reports(folder: Path, record: RunRecord, environ: Mapping[str, str] = os.environ) -> None:
    for write in report_writers(folder, record, environ).values():
        write()


def report_writers(folder: Path, record: RunRecord, environ: Mapping[str, str] = os.environ) -> Writers:
    """Writers of every report of a run; in GitHub Actions also of the job's summary page."""
    from loadgen.report.exports import FILES, RENDERERS

    def write(kind: str) -> None:
        write_file(folder / FILES[kind], RENDERERS[kind](record))

    def append(path: Path) -> None:
        with _write_errors(path), path.open("a", encoding="utf-8") as page:
            page.write(RENDERERS["md"](record))

    writers: dict[str, Callable[[], None]] = {name: partial(write, kind) for kind, name in FILES.items()}
    if page := environ.get(STEP_SUMMARY):
        writers[f"${STEP_SUMMARY}"] = partial(append, Path(page))
    return writers


def rewrite_reports(folder: Path, record: RunRecord, change: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> bool:
    """Amend the summary in the folder of a run, and make its reports again. False: the folder is not here. The verdict
    of a baseline is in these files only."""
    path = folder / SUMMARY
    if not path.exists():
        return False
    summary = change(_read_summary(path, record.summary))
    write_summary(folder, summary)
    write_reports(folder, replace(record, summary=summary), environ={})  # the summary page of a CI job has it already
    return True


def _read_summary(path: Path, stored: Mapping[str, Any]) -> Mapping[str, Any]:
    """The summary in the folder; if it is damaged, the stored one."""
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return stored
    return found if isinstance(found, dict) and _is_complete(found, stored) else stored


def _is_complete(found: Mapping[str, Any], stored: Mapping[str, Any]) -> bool:
    """Does it have every part that the stored summary has?"""
    parts = (key for key, value in stored.items() if isinstance(value, (dict, list)))
    return stored.keys() <= found.keys() and all(type(found[part]) is type(stored[part]) for part in parts)


def write_experiment_files(folder: Path, result: Mapping[str, Any], warn: Warn) -> None:
    """The files of an experiment, whose result is stored in the tables."""
    from loadgen.report.exports import EXPERIMENT_FILES

    def write(name: str, render: Callable[[Mapping[str, Any]], str]) -> None:
        write_file(folder / name, render(result))

    write_each({name: partial(write, name, render) for name, render in EXPERIMENT_FILES.items()}, warn)
