"""Private files: links are not followed, other users cannot read them. Files that are replaced at once."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def open_private(path: str | Path, flags: int) -> int:
    """Opener for open(): rejects symbolic links; new files are readable by their owner only."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def replace_file(
    path: Path,
    content: bytes,
    *,
    mode: int = 0o600,
    keeps_mode: bool = False,
    owner: tuple[int, int] | None = None,
    durable: bool = False,
) -> None:
    """Replace a file: readers see the old content or the new one; if `durable`, also after a power failure.

    `mode` and `owner` (user and group) are those of the new file; with `keeps_mode` an existing file keeps its mode. A
    symbolic link at `path` is replaced, not followed. Raises OSError, and leaves no partial file.
    """
    kept = stat.S_IMODE(path.stat().st_mode) if keeps_mode and path.is_file() else None
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    draft.unlink(missing_ok=True)
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        with open(fd, "wb") as file:
            if kept is not None:
                os.fchmod(fd, kept)
            file.write(content)
            if durable:
                file.flush()
                os.fsync(fd)
            if owner is not None:
                os.fchown(fd, *owner)
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
