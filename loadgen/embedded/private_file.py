"""Files of the data directory that only the server's own account may read and write.

What is read is checked as foreign input: a link, a file of another account or one that others may open is refused.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from loadgen.embedded.datadir import no_link
from loadgen.errors import EmbeddedServerError


def read_private(path: Path, what: str, bytes_max: int, remedy: str) -> bytes:
    """The first `bytes_max` bytes. Raises EmbeddedServerError, FileNotFoundError when there is none."""
    try:
        with open(path, "rb", opener=no_link) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
                who = f"owner {status.st_uid}, mode {status.st_mode & 0o777:04o}"
                raise EmbeddedServerError(f"the {what} {path} is not yours alone ({who})", remedy=remedy)
            return file.read(bytes_max)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise EmbeddedServerError(f"cannot read the {what} {path}: {error.strerror}", remedy=remedy) from error


def write_private(path: Path, content: bytes) -> None:
    """Readers see the old content or the new one, also after a power loss. Raises OSError."""
    draft = path.with_name(f".{path.name}.tmp")  # the data directory has one owner: nobody else writes this
    draft.unlink(missing_ok=True)
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(fd, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(fd)
        draft.replace(path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
