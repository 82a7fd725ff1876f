"""The data directory of the embedded server: its place, its owner, and the address of its server.

    loadgen-embedded   marks a data directory, and names its layout
    lock               flock'ed by the owner while it lives; holds its pid
    password           of a server that checks one (loadgen.embedded.session); readable for its owner only
    warehouse_models.json   slots and service times that runs have set (loadgen.embedded.admin)
    server.json        where the owner listens: written when it is ready, removed when it stops cleanly
    postgres/          the PostgreSQL cluster, owned by the account that runs it
    postgres.log       PostgreSQL's log, bounded (and postgres.log.1, the part before)
    run/               its socket

Only the flock decides ownership: the kernel drops it when the process ends, however it ended. So a lock file or a
server.json of a dead owner is no obstacle, and a reused pid means nothing.
"""

import errno
import fcntl
import json
import os
import pwd
import shutil
import stat
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Self

from loadgen.errors import Busy, EmbeddedServerError
from loadgen.values import dataclass

DATA_DIR_VARIABLE = "LOADGEN_EMBEDDED_DATA_DIR"
SYSTEM_DIR = Path("/var/lib/loadgen")  # for root: every user may traverse it, unlike root's home

MARKER, LOCK, RECORD = "loadgen-embedded", "lock", "server.json"
PASSWORD_FILE = "password"
LAYOUT = "1\n"
PATH_BYTES_MAX = 900  # PostgreSQL allows 1,024 bytes for a path, with the part below this directory
PROBE_PATIENCE_S = 0.5  # a reader's probe holds the lock for microseconds; that is no second owner
COPY_PATIENCE_S = 60.0  # for another process that makes the same copy
_LOCK_STEP_S = 0.02
_CHOOSE_ANOTHER = f"Choose another directory with --data-dir or {DATA_DIR_VARIABLE}."


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenAddress:
    """Where a server listens."""

    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemUser:
    """The system user PostgreSQL runs as. It refuses to run as root."""

    uid: int
    gid: int
    name: str


class DataDir:
    """A data directory this process owns. Made by `claim`; `release` gives it back, safe to call twice."""

    def __init__(self, path: Path, account: SystemUser, lock_fd: int) -> None:
        self.path = path
        self.account = account
        self._lock_fd: int | None = lock_fd

    @classmethod
    def claim(cls, path: Path) -> Self:
        """Own `path`, made if it is missing. Raises Busy when another process does."""
        asked, path = path, Path(os.path.realpath(path))
        with _explained(path):
            _require_safe_way(asked)
            account = server_account(path / "postgres")
            _prepare(path, account)
            lock_fd = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
            try:
                if not take_lock(lock_fd, patience_s=PROBE_PATIENCE_S):
                    raise _busy(path, os.pread(lock_fd, 32, 0))
                os.ftruncate(lock_fd, 0)
                os.pwrite(lock_fd, str(os.getpid()).encode(), 0)
                (path / RECORD).unlink(missing_ok=True)
            except BaseException:
                os.close(lock_fd)
                raise
        return cls(path, account, lock_fd)

    @property
    def cluster(self) -> Path:
        return self.path / "postgres"

    @property
    def held(self) -> bool:
        return self._lock_fd is not None

    def publish(self, address: ListenAddress, *, started_at: datetime, version: str) -> None:
        """Publish that this process serves the directory."""
        record = {
            "pid": os.getpid(),
            "host": address.host,
            "port": address.port,
            "started_at": started_at.isoformat(timespec="milliseconds"),
            "version": version,
        }
        with _explained(self.path):
            write_atomically(self.path / RECORD, json.dumps(record) + "\n")

    def release(self) -> None:
        if self._lock_fd is None:
            return
        with suppress(OSError):  # the next owner removes it as well
            (self.path / RECORD).unlink(missing_ok=True)
        os.close(self._lock_fd)
        self._lock_fd = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def choose_data_dir(asked: Path | None = None, environ: Mapping[str, str] = os.environ) -> Path:
    """The directory asked for, else the one of the environment, else the user's own."""
    if asked is not None:
        return asked
    if from_environment := environ.get(DATA_DIR_VARIABLE):
        return Path(from_environment).expanduser()
    if os.geteuid() == 0:
        return SYSTEM_DIR / "embedded"
    data_home = environ.get("XDG_DATA_HOME", "")
    base = Path(data_home) if data_home.startswith("/") else Path("~/.local/share").expanduser()
    return base / "loadgen" / "embedded"


def running_server(path: Path) -> ListenAddress | None:
    """Where the living owner of `path` listens; None: it has no owner, or the owner is not ready."""
    asked, path = path, Path(os.path.realpath(path))
    with _explained(path):
        try:
            _require_safe_way(asked)
            _require_unshared(path)
            with open(path / LOCK, "rb", opener=no_link) as lock:
                if take_lock(lock.fileno(), fcntl.LOCK_SH):
                    return None
                owner = lock.read(32)
        except (FileNotFoundError, NotADirectoryError):
            return None
        record = _read_record(path)
        # The pid tells this owner's record from one that a dead owner left and this one has not removed yet.
        if record is None or str(record[0]).encode() != owner:
            return None
        return record[1]


def is_claimed(path: Path) -> bool:
    """Whether a living process owns `path`, also while it starts or stops and running_server() returns None."""
    path = Path(os.path.realpath(path))
    with _explained(path):
        try:
            with open(path / LOCK, "rb", opener=no_link) as lock:
                return not take_lock(lock.fileno(), fcntl.LOCK_SH)
        except (FileNotFoundError, NotADirectoryError):
            return False


def server_account(cluster: Path) -> SystemUser:
    """The account PostgreSQL runs as: this user; for root the cluster's owner, else `postgres`, else `nobody`."""
    uid = os.geteuid()
    try:
        owner = cluster.stat().st_uid
    except (FileNotFoundError, NotADirectoryError):
        owner = 0
    if uid != 0:
        if owner not in (0, uid):
            raise EmbeddedServerError(f"{cluster} belongs to user id {owner}, not to you", remedy=_CHOOSE_ANOTHER)
        return account_of(uid)
    if owner:
        return account_of(owner)
    for name in ("postgres", "nobody"):
        with suppress(KeyError):
            return account_of(pwd.getpwnam(name).pw_uid)
    raise EmbeddedServerError(
        "PostgreSQL refuses to run as root, and there is neither a user `postgres` nor a user `nobody`",
        remedy="Run as an ordinary user, or add one: useradd --system postgres.",
    )


def account_of(uid: int) -> SystemUser:
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        raise EmbeddedServerError(
            f"user id {uid} has no name on this system, and PostgreSQL runs only for users with one",
            remedy="Add the id to /etc/passwd, or run as another user.",
        ) from None
    return SystemUser(uid=uid, gid=entry.pw_gid, name=entry.pw_name)


def first_closed(path: Path, account: SystemUser) -> Path | None:
    """The first directory of `path`, itself included, that `account` may not traverse; None: there is none.

    Directories that do not exist yet count as open. Access control lists are ignored.
    """
    for directory in (*reversed(path.parents), path):
        with suppress(FileNotFoundError):
            if not stat.S_ISDIR(directory.stat().st_mode):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(directory))
            if not may_access(directory, account, stat.S_IXOTH):
                return directory
    return None


def may_access(path: Path, account: SystemUser, wanted: int) -> bool:
    """Whether the mode bits of `path` give `account` the rights `wanted`, written as bits of the "other" class."""
    info = path.stat()
    shift = 6 if info.st_uid == account.uid else 3 if info.st_gid == account.gid else 0
    return info.st_mode >> shift & wanted == wanted


def take_lock(fd: int, kind: int = fcntl.LOCK_EX, *, patience_s: float = 0.0) -> bool:
    """Take a flock; False when another process holds it for `patience_s`."""
    for _ in range(round(patience_s / _LOCK_STEP_S) + 1):
        try:
            fcntl.flock(fd, kind | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if patience_s:
                threading.Event().wait(_LOCK_STEP_S)
    return False


def write_atomically(path: Path, text: str, owner: SystemUser | None = None) -> None:
    """Readers see the old text or the new one. A symlink in its place is replaced, never followed."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    draft.unlink(missing_ok=True)
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    with open(fd, "w", encoding="utf-8") as file:
        file.write(text)
        if owner is not None and os.geteuid() == 0:
            os.fchown(fd, owner.uid, owner.gid)
    draft.replace(path)


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
    draft = path.with_name(f".{path.name}.tmp")  # the data directory has one owner: no other process writes this
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


def make_directories(path: Path) -> None:
    """`mkdir -p` that does not depend on the umask: open to traverse for root, closed for other users."""
    mode = 0o755 if os.geteuid() == 0 else 0o700
    for directory in (*reversed(path.parents), path):
        if not directory.exists():
            with suppress(FileExistsError):
                directory.mkdir()
                directory.chmod(mode)


def reachable_copy(base: Path, parts: Iterable[Path], account: SystemUser, place: Callable[[], Path]) -> Path:
    """`base`, if `account` can read the `parts` below it; else a copy at `place`, which gets them, once."""
    trees = [part for part in parts if (base / part).is_dir()]
    if os.geteuid() != 0 or all(_readable(base / tree, account) for tree in trees):
        return base
    copy = place()
    make_directories(copy.parent)
    if (closed := first_closed(copy.parent, account)) is not None:
        raise PermissionError(errno.EACCES, f"user `{account.name}` cannot reach PostgreSQL's programs", str(closed))
    lock_fd = os.open(copy.parent / "copy.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        if not take_lock(lock_fd, patience_s=COPY_PATIENCE_S):
            raise TimeoutError(errno.ETIMEDOUT, "another process has been making it for too long", str(copy))
        if not copy.is_dir():
            draft = copy.with_name(f".{copy.name}.draft")
            shutil.rmtree(draft, ignore_errors=True)  # of a process that was killed
            for tree in trees:
                shutil.copytree(base / tree, draft / tree, ignore=shutil.ignore_patterns("include", "*.a", "pgxs"))
            for entry in (draft, *draft.rglob("*")):
                entry.chmod(0o755 if entry.stat().st_mode & stat.S_IXUSR else 0o644)
            os.sync()
            draft.rename(copy)
    finally:
        os.close(lock_fd)
    return copy


def _readable(tree: Path, account: SystemUser) -> bool:
    """Two levels are enough: a narrow umask at installation closes all files."""
    entries = (tree, *tree.glob("*"), *tree.glob("*/*"))
    return first_closed(tree, account) is None and all(may_access(entry, account, stat.S_IROTH) for entry in entries)


def _prepare(path: Path, account: SystemUser) -> None:
    """Make sure the directory exists, belongs to this user, and can be used by the account of PostgreSQL."""
    if len(os.fsencode(path)) > PATH_BYTES_MAX:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
    _require_open(path.parent, account)
    make_directories(path)
    if os.geteuid() == 0 and (owner := path.stat().st_uid) != 0:
        remedy = f"Run as that user, or give it to root: chown root {path}."
        raise EmbeddedServerError(f"{path} belongs to user id {owner}, who could mislead root there", remedy=remedy)
    _require_unshared(path)
    present = {name for name in os.listdir(path) if name != "lost+found" and not name.startswith(f".{MARKER}.")}
    if MARKER in present:
        if (layout := (path / MARKER).read_text("utf-8")) != LAYOUT:
            what = f"{path} was made by another version of loadgen (layout {layout.strip()[:20]!r})"
            raise EmbeddedServerError(what, remedy=_CHOOSE_ANOTHER)
    elif present:
        raise EmbeddedServerError(
            f"{path} is not empty and was not made by loadgen (it holds {min(present)!r})",
            remedy=f"Nothing in it was touched. {_CHOOSE_ANOTHER}",
        )
    else:
        write_atomically(path / MARKER, LAYOUT)
    if os.geteuid() == 0:
        path.chmod(path.stat().st_mode | 0o011)  # this user's, so it may be opened: PostgreSQL must reach its part
    _require_open(path, account)


def _require_unshared(path: Path) -> None:
    """A user who can write there could redirect loadgen to another server, or replace the cluster."""
    info = path.stat()
    mode = stat.S_IMODE(info.st_mode)
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise EmbeddedServerError(
            f"the data directory {path} can be changed by others (mode {mode:04o})", remedy=f"Run: chmod go-w {path}"
        )
    if os.geteuid() != 0 and info.st_uid not in (0, os.geteuid()):
        raise EmbeddedServerError(f"{path} belongs to user id {info.st_uid}, not to you", remedy=_CHOOSE_ANOTHER)


def _require_safe_way(asked: Path) -> None:
    """A link of another user, or a folder on the way in which every user may rename, could lead elsewhere tomorrow."""
    if asked.is_symlink() and (owner := asked.lstat().st_uid) not in (0, os.geteuid()):
        raise EmbeddedServerError(f"{asked} is a link of user id {owner}, not yours", remedy=_CHOOSE_ANOTHER)
    for folder in {*Path(os.path.abspath(asked)).parents, *Path(os.path.realpath(asked)).parents}:
        mode = folder.stat().st_mode if folder.is_dir() else 0
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise EmbeddedServerError(
                f"the data directory {asked} could be replaced by others: they may write to {folder}"
                f" (mode {stat.S_IMODE(mode):04o})",
                remedy=f"Run: chmod o-w {folder}",
            )


def no_link(path: str, flags: int) -> int:
    """For open(): a symbolic link is refused, and a new file is readable by its owner only."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _require_open(path: Path, account: SystemUser) -> None:
    closed = first_closed(path, account) if os.geteuid() == 0 else None
    if closed is not None:
        raise EmbeddedServerError(
            f"{path} cannot be reached by user `{account.name}`, who runs PostgreSQL for root: {closed} is closed",
            remedy=f"{_CHOOSE_ANOTHER} The default, {SYSTEM_DIR / 'embedded'}, is reachable.",
        )


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn an operating system error into one about the data directory."""
    try:
        yield
    except OSError as error:
        meaning = {
            errno.EACCES: "you may not write there",
            errno.EPERM: "you may not write there",
            errno.EROFS: "the file system is read-only",
            errno.ENOTDIR: "it, or a part of its path, is a file",
            errno.ENAMETOOLONG: f"its path is too long (at most {PATH_BYTES_MAX} bytes)",
            errno.ENOLCK: "its file system cannot lock files",
            errno.ENOTSUP: "its file system cannot lock files",
        }.get(error.errno or 0, error.strerror or str(error))
        shown = str(path) if len(str(path)) <= 200 else f"{str(path)[:200]}…"
        what = f"cannot use {shown} as the data directory of the embedded server: {meaning}"
        raise EmbeddedServerError(what, remedy=_CHOOSE_ANOTHER) from error


def _busy(path: Path, lock_text: bytes) -> Busy:
    record = _read_record(path)
    if record is not None and str(record[0]).encode() == lock_text:
        owner = f"Process {record[0]} serves it at {record[1].host}:{record[1].port}: use that server, or stop it."
    else:
        owner = f"Process {lock_text.decode('ascii', 'replace') or '(unknown)'} has it and is starting or stopping."
    return Busy(f"the data directory {path} is in use", remedy=f"{owner} {_CHOOSE_ANOTHER}")


def _read_record(path: Path) -> tuple[int, ListenAddress] | None:
    """Pid and address of server.json; None: missing or malformed."""
    try:
        record = json.loads((path / RECORD).read_text("utf-8"))
        return int(record["pid"]), ListenAddress(host=str(record["host"]), port=int(record["port"]))
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
