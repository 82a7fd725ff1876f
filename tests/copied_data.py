"""Data directories of embedded servers as their first start leaves them. A copy takes a tenth of the time of initdb.

The original is made once for each version of the server, in the environment of the interpreter.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from pathlib import Path

from tests.processes import ROOT, reachable_directory

ORIGINALS = Path(sys.prefix) / "embedded-data"


def copy_data_dir(path: Path, serve: Callable[[Path], None]) -> Path:
    """Make this directory. `serve` starts a server on a directory and stops it."""
    original = _original()
    if original is None:
        return path  # the server makes it
    if not original.exists():
        with reachable_directory() as folder:
            serve(folder / "data")
            _publish(folder / "data", original)
    subprocess.run(["cp", "-a", str(original), str(path)], check=True)
    return path


def _publish(made: Path, original: Path) -> None:
    """Another process may have been faster."""
    ORIGINALS.mkdir(exist_ok=True)
    draft = ORIGINALS / f"draft-{os.getpid()}"
    subprocess.run(["cp", "-a", str(made), str(draft)], check=True)
    try:
        draft.rename(original)
    except OSError:
        shutil.rmtree(draft)


@cache
def _original() -> Path | None:
    """None: the interpreter has no environment that can be written to."""
    if sys.prefix == sys.base_prefix or not os.access(sys.prefix, os.W_OK):
        return None
    key = sha256()
    for file in sorted((ROOT / "loadgen" / "embedded").rglob("*")):
        if file.suffix in (".py", ".sql"):
            key.update(file.read_bytes())
    return ORIGINALS / f"{key.hexdigest()[:16]}-{os.geteuid()}"
