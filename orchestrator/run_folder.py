"""Where the files of runs go."""

from __future__ import annotations

import os
import re
import secrets
import shlex
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import TextIO

from loadgen.errors import ConfigurationError, cannot_write
from loadgen.log import printable

LOGS = "logs"
SPOOL = "spool"  # what workers have not stored yet
SCENARIO = "scenario.yaml"
_NEEDED_BYTES = 1 << 20  # a run's files are larger than this


def make_runs_folder(folder: Path) -> None:
    """Before anything is begun: a run whose files cannot be written is refused."""
    with _told(folder):
        folder.mkdir(parents=True, exist_ok=True, mode=0o755)
        _refuse_shared(folder)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(_NEEDED_BYTES))
            file.flush()


def make_run_folder(folder: Path, scenario: str | None = None) -> None:
    """The folder of one run, with the text of its scenario as it was read: the file may change before the run ends."""
    with _told(folder):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        (folder / LOGS).mkdir(exist_ok=True, mode=0o700)
        if scenario is not None:
            with open_private(folder / SCENARIO) as file:
                file.write(scenario)
                file.flush()
                os.fsync(file.fileno())


def open_private(path: Path, mode: int = 0o600) -> TextIO:
    """A text file to write anew, by default for its owner alone; whatever link is in its place is removed, not
    followed."""
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    os.fchmod(descriptor, mode)
    return os.fdopen(descriptor, "w", encoding="utf-8", newline="")


def _refuse_shared(folder: Path) -> None:
    """Where others may rename and replace a run's folder, its results cannot be trusted; a sticky folder is safe."""
    mode = stat.S_IMODE(folder.stat().st_mode)
    if mode & (stat.S_IWGRP | stat.S_IWOTH) and not mode & stat.S_ISVTX:
        raise ConfigurationError(
            f"the folder of runs {printable(str(folder))} can be changed by others (mode {mode:04o})",
            remedy=f"Run: chmod go-w {printable(shlex.quote(str(folder)))}; or choose another with --output-dir.",
        )


def remove_run_folder(folder: Path) -> None:
    """Of a run that could not be created."""
    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _told(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise cannot_write(printable(str(folder)), error, "Choose another directory with --output-dir.") from error


def remove_if_empty(folder: Path) -> None:
    """A folder that is there only while something is in it."""
    with suppress(OSError):  # it is not empty, or not there
        folder.rmdir()


LENGTH_MAX = 36
_SLUG_MAX = 15


def new_run_id(scenario: str, utc_now: datetime) -> str:
    """A name that sorts by its beginning and says what ran; the end makes it unique."""
    slug = re.sub(r"[^a-z0-9]+", "-", scenario.lower()).strip("-")[:_SLUG_MAX].strip("-")
    parts = [utc_now.strftime("%Y%m%d-%H%M"), *([slug] if slug else []), secrets.token_hex(3)]
    return "-".join(parts)
