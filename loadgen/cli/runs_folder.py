"""Where the files of runs go."""

from __future__ import annotations

import tempfile
from pathlib import Path

from loadgen.errors import UsageError
from loadgen.log import plain


def make_runs_folder(folder: Path) -> None:
    """Before anything is begun: a run whose files cannot be written is none."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        what = f"runs cannot be written to {plain(str(folder))}: {error.strerror}"
        raise UsageError(what, remedy="Choose another directory with --output-dir.") from error
