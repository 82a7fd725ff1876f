"""Where the files of runs go."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from loadgen.errors import cannot_write
from loadgen.log import printable

LOGS = "logs"
SPOOL = "spool"  # what workers have not stored yet
SCENARIO = "scenario.yaml"
_NEEDED_BYTES = 1 << 20  # a run's files are larger than this


def make_runs_folder(folder: Path) -> None:
    """Before anything is begun: a run whose files cannot be written is refused."""
    with _told(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(_NEEDED_BYTES))
            file.flush()


def make_run_folder(folder: Path, scenario: str | None = None) -> None:
    """The folder of one run, with the text of its scenario as it was read: the file may change before the run ends."""
    with _told(folder):
        (folder / LOGS).mkdir(parents=True, exist_ok=True)
        if scenario is not None:
            with (folder / SCENARIO).open("w", encoding="utf-8", newline="") as file:
                file.write(scenario)
                file.flush()
                os.fsync(file.fileno())


def remove_run_folder(folder: Path) -> None:
    """Of a run that could not be created."""
    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _told(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise cannot_write(printable(str(folder)), error, "Choose another directory with --output-dir.") from error
