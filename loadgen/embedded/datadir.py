"""The data directory of the embedded server: its location, its owner process, and the address of its server.

    loadgen-embedded        marks a data directory, and contains the version of its layout
    lock                    flock'ed by the owner process; contains its pid
    password                of a server that checks passwords (loadgen.embedded.session); readable by its owner only
    warehouse_models.json   slots and service times that runs have set (loadgen.embedded.admin)
    server.json             address of the server: written when it is ready, removed when it stops cleanly
    postgres/               the PostgreSQL cluster, owned by the account that runs PostgreSQL
    postgres.log            PostgreSQL's log, of limited size; postgres.log.1 is the previous part
    run/                    PostgreSQL's socket

Only the flock determines the owner. The kernel releases it when the process ends for any reason, so a lock file or
server.json of an ended process is ignored, even if its pid is in use again.
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
from loadgen.files import open_private, replace_file
from loadgen.values import dataclass

DATA_DIR_VARIABLE = "LOADGEN_EMBEDDED_DATA_DIR"
SYSTEM_DIR = Path("/var/lib/loadgen")  # for root; accessible to all users, unlike root's home directory

MARKER, LOCK, RECORD = "loadgen-embedded", "lock", "server.json"
PASSWORD_FILE = "password"
LAYOUT = "1\n"
PATH_BYTES_MAX = 900  # PostgreSQL allows 1,024 bytes for a path, including files below this directory
PROBE_TIMEOUT_S = 0.5  # readers hold the lock for microseconds, which does not make them owners
COPY_TIMEOUT_S = 60.0  # wait for another process that makes the same copy
_LOCK_STEP_S = 0.02
_CHOOSE_ANOTHER = f"Choose another directory with --data-dir or {DATA_DIR_VARIABLE}."


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenAddress:
    """Host and port of a server."""

    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemUser:
    """The user that PostgreSQL runs as, which cannot be root."""

    uid: int
    gid: int
    name: str


class DataDir:
    """A data directory that this process owns, from `claim` to `release`."""

    def __init__(self, path: Path, account: SystemUser, lock_fd: int) -> None:
        self.path = path
        self.account = account
        self._lock_fd: int | None = lock_fd

    @classmethod
    def claim(cls, path: Path) -> Self:
        """Become the owner of `path`, which is created if missing. Raises Busy if another process owns it."""
        given, path = path, Path(os.path.realpath(path))
        with _os_errors_explained(path):
            _require_safe_path(given)
            account = server_account(path / "postgres")
            _prepare(path, account)
            lock_fd = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
            try:
                if not take_lock(lock_fd, timeout_s=PROBE_TIMEOUT_S):
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
        """Write the address of this process to server.json."""
        record = {
            "pid": os.getpid(),
            "host": address.host,
            "port": address.port,
            "started_at": started_at.isoformat(timespec="milliseconds"),
            "version": version,
        }
        with _os_errors_explained(self.path):
            replace_file(self.path / RECORD, f"{json.dumps(record)}\n".encode(), mode=0o644)

    def release(self) -> None:
        """Safe to call twice."""
        if self._lock_fd is None:
            return
        with suppress(OSError):  # the next owner removes it too
            (self.path / RECORD).unlink(missing_ok=True)
        os.close(self._lock_fd)
        self._lock_fd = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def choose_data_dir(given: Path | None = None, environ: Mapping[str, str] = os.environ) -> Path:
    """The directory given, else the one of the environment, else the user's default."""
    if given is not None:
        return given
    if from_environment := environ.get(DATA_DIR_VARIABLE):
        return Path(from_environment).expanduser()
    if os.geteuid() == 0:
        return SYSTEM_DIR / "embedded"
    data_home = environ.get("XDG_DATA_HOME", "")
    base = Path(data_home) if data_home.startswith("/") else Path("~/.local/share").expanduser()
    return base / "loadgen" / "embedded"


def running_server(path: Path) -> ListenAddress | None:
    """The address of the running owner of `path`; None if it has no owner, or the owner is not ready."""
    given, path = path, Path(os.path.realpath(path))
    with _os_errors_explained(path):
        try:
            _require_safe_path(given)
            _require_unshared(path)
            with open(path / LOCK, "rb", opener=open_private) as lock:
                if take_lock(lock.fileno(), fcntl.LOCK_SH):
                    return None
                owner = lock.read(32)
        except (FileNotFoundError, NotADirectoryError):
            return None
        record = _read_record(path)
        # A record with another pid is of an earlier owner, which the current one has not removed yet.
        if record is None or str(record[0]).encode() != owner:
            return None
        return record[1]


def is_claimed(path: Path) -> bool:
    """Whether a process owns `path`, even if it is starting or stopping and running_server() returns None."""
    path = Path(os.path.realpath(path))
    with _os_errors_explained(path):
        try:
            with open(path / LOCK, "rb", opener=open_private) as lock:
                return not take_lock(lock.fileno(), fcntl.LOCK_SH)
        except (FileNotFoundError, NotADirectoryError):
            return False


def server_account(cluster: Path) -> SystemUser:
    """The user that PostgreSQL runs as: this user; for root the cluster's owner, else `postgres`, else `nobody`."""
    uid = os.geteuid()
    try:
        owner = cluster.stat().st_uid
    except (FileNotFoundError, NotADirectoryError):
        owner = 0
    if uid != 0:
        if owner not in (0, uid):
            raise EmbeddedServerError(f"{cluster} belongs to user id {owner}", remedy=_CHOOSE_ANOTHER)
        return account_of(uid)
    if owner:
        return account_of(owner)
    for name in ("postgres", "nobody"):
        with suppress(KeyError):
            return account_of(pwd.getpwnam(name).pw_uid)
    raise EmbeddedServerError(
        "PostgreSQL cannot run as root, and neither user `postgres` nor user `nobody` exists",
        remedy="Run as an ordinary user, or add one: useradd --system postgres.",
    )


def account_of(uid: int) -> SystemUser:
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        raise EmbeddedServerError(
            f"user id {uid} has no name on this system, which PostgreSQL requires",
            remedy="Add the id to /etc/passwd, or run as another user.",
        ) from None
    return SystemUser(uid=uid, gid=entry.pw_gid, name=entry.pw_name)


def first_closed(path: Path, account: SystemUser) -> Path | None:
    """The first directory of `path`, itself included, that `account` cannot traverse; None if it can traverse all.

    Directories that do not exist are skipped. Access control lists are ignored.
    """
    for directory in (*reversed(path.parents), path):
        with suppress(FileNotFoundError):
            if not stat.S_ISDIR(directory.stat().st_mode):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(directory))
            if not may_access(directory, account, stat.S_IXOTH):
                return directory
    return None


def may_access(path: Path, account: SystemUser, wanted: int) -> bool:
    """Whether the mode bits of `path` grant `account` the permissions `wanted`, which are bits of the "other" class."""
    info = path.stat()
    shift = 6 if info.st_uid == account.uid else 3 if info.st_gid == account.gid else 0
    return info.st_mode >> shift & wanted == wanted


def take_lock(fd: int, kind: int = fcntl.LOCK_EX, *, timeout_s: float = 0.0) -> bool:
    """Take a flock; False if another process has held it for `timeout_s`."""
    for _ in range(round(timeout_s / _LOCK_STEP_S) + 1):
        try:
            fcntl.flock(fd, kind | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if timeout_s:
                threading.Event().wait(_LOCK_STEP_S)
    return False


def read_private(path: Path, what: str, bytes_max: int, remedy: str) -> bytes:
    """The first `bytes_max` bytes of a file that only this user can access.

    Raises FileNotFoundError, and EmbeddedServerError for every other problem.
    """
    try:
        with open(path, "rb", opener=open_private) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
                access = f"owner {status.st_uid}, mode {status.st_mode & 0o777:04o}"
                raise EmbeddedServerError(f"the {what} {path} is accessible to other users ({access})", remedy=remedy)
            return file.read(bytes_max)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise EmbeddedServerError(f"cannot read the {what} {path}: {error.strerror}", remedy=remedy) from error


def make_directories(path: Path) -> None:
    """Like `mkdir -p`, independent of the umask: mode 0755 for root, 0700 for other users."""
    mode = 0o755 if os.geteuid() == 0 else 0o700
    for directory in (*reversed(path.parents), path):
        if not directory.exists():
            with suppress(FileExistsError):
                directory.mkdir()
                directory.chmod(mode)


def reachable_copy(base: Path, parts: Iterable[Path], account: SystemUser, copy_path: Callable[[], Path]) -> Path:
    """`base` if `account` can read the `parts` below it, else a copy of the parts, made once at `copy_path()`."""
    trees = [part for part in parts if (base / part).is_dir()]
    if os.geteuid() != 0 or all(_readable(base / tree, account) for tree in trees):
        return base
    copy = copy_path()
    make_directories(copy.parent)
    if (closed := first_closed(copy.parent, account)) is not None:
        raise PermissionError(errno.EACCES, f"user `{account.name}` cannot reach PostgreSQL's programs", str(closed))
    lock_fd = os.open(copy.parent / "copy.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        if not take_lock(lock_fd, timeout_s=COPY_TIMEOUT_S):
            raise TimeoutError(errno.ETIMEDOUT, "another process did not finish it in time", str(copy))
        if not copy.is_dir():
            draft = copy.with_name(f".{copy.name}.draft")
            shutil.rmtree(draft, ignore_errors=True)  # left by a killed process
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
    """Checks two levels only: a restrictive umask during the installation affects all files."""
    entries = (tree, *tree.glob("*"), *tree.glob("*/*"))
    return first_closed(tree, account) is None and all(may_access(entry, account, stat.S_IROTH) for entry in entries)


def _prepare(path: Path, account: SystemUser) -> None:
    """Create the directory if missing; check that it belongs to this user and that PostgreSQL's user can reach it."""
    if len(os.fsencode(path)) > PATH_BYTES_MAX:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
    _require_open(path.parent, account)
    make_directories(path)
    if os.geteuid() == 0 and (owner := path.stat().st_uid) != 0:
        remedy = f"Run as that user, or change the owner: chown root {path}."
        raise EmbeddedServerError(f"{path} belongs to user id {owner}, not to root", remedy=remedy)
    _require_unshared(path)
    present = {name for name in os.listdir(path) if name != "lost+found" and not name.startswith(f".{MARKER}.")}
    if MARKER in present:
        if (layout := (path / MARKER).read_text("utf-8")) != LAYOUT:
            what = f"{path} was made by another version of loadgen (layout {layout.strip()[:20]!r})"
            raise EmbeddedServerError(what, remedy=_CHOOSE_ANOTHER)
    elif present:
        raise EmbeddedServerError(
            f"{path} is not empty and was not made by loadgen (it contains {min(present)!r})",
            remedy=f"It was not changed. {_CHOOSE_ANOTHER}",
        )
    else:
        replace_file(path / MARKER, LAYOUT.encode(), mode=0o644)
    if os.geteuid() == 0:
        path.chmod(path.stat().st_mode | 0o011)  # PostgreSQL's user has to reach its subdirectories
    _require_open(path, account)


def _require_unshared(path: Path) -> None:
    """Other users with write permission could redirect loadgen to another server, or replace the cluster."""
    info = path.stat()
    mode = stat.S_IMODE(info.st_mode)
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise EmbeddedServerError(
            f"the data directory {path} can be changed by others (mode {mode:04o})", remedy=f"Run: chmod go-w {path}"
        )
    if os.geteuid() != 0 and info.st_uid not in (0, os.geteuid()):
        raise EmbeddedServerError(f"{path} belongs to user id {info.st_uid}", remedy=_CHOOSE_ANOTHER)


def _require_safe_path(given: Path) -> None:
    """Reject paths that other users could redirect: through a link of theirs, or in a parent that all may write to."""
    if given.is_symlink() and (owner := given.lstat().st_uid) not in (0, os.geteuid()):
        raise EmbeddedServerError(f"{given} is a link of user id {owner}", remedy=_CHOOSE_ANOTHER)
    for folder in {*Path(os.path.abspath(given)).parents, *Path(os.path.realpath(given)).parents}:
        mode = folder.stat().st_mode if folder.is_dir() else 0
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise EmbeddedServerError(
                f"the data directory {given} could be replaced by others: they have write permission for {folder}"
                f" (mode {stat.S_IMODE(mode):04o})",
                remedy=f"Run: chmod o-w {folder}",
            )


def _require_open(path: Path, account: SystemUser) -> None:
    closed = first_closed(path, account) if os.geteuid() == 0 else None
    if closed is not None:
        raise EmbeddedServerError(
            f"user `{account.name}`, who runs PostgreSQL for root, cannot reach {path}: {closed} denies access",
            remedy=f"{_CHOOSE_ANOTHER} The default, {SYSTEM_DIR / 'embedded'}, is reachable.",
        )


@contextmanager
def _os_errors_explained(path: Path) -> Iterator[None]:
    """Turn an error of the operating system into one about the data directory."""
    try:
        yield
    except OSError as error:
        meaning = {
            errno.EACCES: "permission denied",
            errno.EPERM: "permission denied",
            errno.EROFS: "the file system is read-only",
            errno.ENOTDIR: "it or a parent of it is a file",
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
        owner = f"Process {record[0]} serves it at {record[1].host}:{record[1].port}. Use that server, or stop it."
    else:
        owner = f"Process {lock_text.decode('ascii', 'replace') or '(unknown)'} owns it and is starting or stopping."
    return Busy(f"the data directory {path} is in use", remedy=f"{owner} {_CHOOSE_ANOTHER}")


def _read_record(path: Path) -> tuple[int, ListenAddress] | None:
    """Pid and address of server.json; None if it is missing or malformed."""
    try:
        record = json.loads((path / RECORD).read_text("utf-8"))
        return int(record["pid"]), ListenAddress(host=str(record["host"]), port=int(record["port"]))
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
