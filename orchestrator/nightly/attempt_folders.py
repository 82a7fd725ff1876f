"""The folders of attempts (see `attempt`) that nobody needs any more. Those that came to no result stay for a while:
somebody may want to see what they said."""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FOLDER = ".queue"
_NAME = re.compile(r"([a-z0-9-]+)\.[0-9]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFolder:
    path: Path
    queue_id: str


def old_folders(runs_folder: Path, before_s: float) -> Iterator[AttemptFolder]:
    """Those that nothing was written to since then (seconds since 1970). Who still needs one is known to the queue."""
    try:
        entries = sorted((runs_folder / FOLDER).iterdir())
    except OSError:  # there are none
        return
    for path in entries:
        named = _NAME.fullmatch(path.name)
        if named and not path.is_symlink() and path.is_dir() and _written_s(path) < before_s:
            yield AttemptFolder(path=path, queue_id=named[1])


def remove(folder: AttemptFolder) -> bool:
    """False: it is still there, at least in part."""
    shutil.rmtree(folder.path, ignore_errors=True)
    return not folder.path.exists()


def _written_s(folder: Path) -> float:
    """Output grows without changing the folder itself."""
    try:
        return max(path.lstat().st_mtime for path in (folder, *folder.iterdir()))
    except OSError:  # somebody is at it
        return math.inf
