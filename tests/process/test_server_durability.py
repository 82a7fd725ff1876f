"""What the embedded server acknowledged survives kill -9 of the server and of PostgreSQL."""

import contextlib
import http.client
import itertools
import os
import random
import signal
import threading
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from tests.process.served import Refused, Server, Wire, serving
from tests.processes import PATIENCE_S, wait_until

WRITERS = 16
TABLES = ("HYBRID_ROWS", "PLAIN_ROWS")
# Commits before the kill, at most.
ROUNDS = [300, *(pytest.param(commits, marks=pytest.mark.slow) for commits in (1_000, 1_500))]


class Writers:
    """Sessions that write single rows and pairs of rows until they are stopped, and record what was acknowledged.

    A pair is one transaction: both rows in one of the tables, or one in each.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._stop = threading.Event()
        self._threads = ThreadPoolExecutor(WRITERS, thread_name_prefix="writer")
        self.singles: set[str] = set()
        self.pairs: set[str] = set()
        self.refused = 0
        self._done = [self._threads.submit(self._write, number) for number in range(WRITERS)]

    @property
    def acknowledged(self) -> int:
        return len(self.singles) + len(self.pairs)

    def wait_more(self, more: int) -> None:
        enough = self.acknowledged + more
        wait_until(lambda: self.acknowledged >= enough, f"{more} more commits acknowledged")

    def stop(self) -> None:
        self._stop.set()
        for done in self._done:
            done.result(PATIENCE_S)
        self._threads.shutdown()

    def _write(self, writer: int) -> None:
        with contextlib.suppress(http.client.HTTPException, OSError):  # the server has ended
            wire = Wire(self._server, databaseName="LOADGEN", schemaName="CONTROL")
            for number in itertools.count():
                if self._stop.is_set():
                    return
                name = f"{self._server.process.pid}-{writer}-{number}"
                try:
                    self._one(wire, name) if number % 2 else self._two(wire, name, number)
                except Refused:
                    self.refused += 1
                    with contextlib.suppress(Refused):
                        wire.sql("ROLLBACK")

    def _one(self, wire: Wire, name: str) -> None:
        wire.sql(f"INSERT INTO {random.choice(TABLES)} VALUES ('{name}', 'single')")
        self.singles.add(name)

    def _two(self, wire: Wire, name: str, number: int) -> None:
        first, second = random.choice(TABLES), random.choice(TABLES)
        wire.sql("BEGIN")
        wire.sql(f"INSERT INTO {first} VALUES ('{name}a', '{name}')")
        wire.sql(f"INSERT INTO {second} VALUES ('{name}b', '{name}')")
        wire.sql("COMMIT")
        self.pairs.add(name)


def make_tables(server: Server) -> None:
    wire = Wire(server, databaseName="LOADGEN", schemaName="CONTROL")
    wire.sql("CREATE OR REPLACE HYBRID TABLE HYBRID_ROWS (ID VARCHAR PRIMARY KEY, PAIR VARCHAR NOT NULL)")
    wire.sql("CREATE OR REPLACE TABLE PLAIN_ROWS (ID VARCHAR, PAIR VARCHAR NOT NULL)")
    wire.close()


def assert_kept(server: Server, writers: Writers) -> None:
    wire = Wire(server, databaseName="LOADGEN", schemaName="CONTROL")
    rows = [row for table in TABLES for row in wire.sql(f"SELECT ID, PAIR FROM {table}")]
    ids = {row[0] for row in rows}
    pairs = Counter(row[1] for row in rows if row[1] != "single")

    assert len(ids) == len(rows), "a row is there twice"
    assert writers.singles - ids == set()
    assert writers.pairs - set(pairs) == set()
    assert {pair: count for pair, count in pairs.items() if count != 2} == {}
    for table in TABLES:
        wire.sql(f"INSERT INTO {table} VALUES ('{uuid.uuid4()}', 'single')")


@pytest.mark.parametrize("commits", ROUNDS)
def test_acknowledged_writes_survive_kill_9_of_the_server(home, commits):
    with serving(home) as server:
        make_tables(server)
        writers = Writers(server)
        writers.wait_more(random.randint(100, commits))

        server.process.kill()
        server.process.wait(PATIENCE_S)
        writers.stop()

    assert writers.refused == 0
    with serving(home) as server:
        assert_kept(server, writers)


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["postmaster", "backend"])
def test_acknowledged_writes_survive_kill_9_of_postgresql_and_the_server_continues(home, victim):
    with serving(home) as server:
        make_tables(server)
        bystander = Wire(server)
        bystander.sql("ALTER SESSION SET QUERY_TAG = 'bystander'")
        writers = Writers(server)
        for _ in range(3):
            writers.wait_more(random.randint(100, 700))
            postmaster = server.postmaster
            backends = [process.pid for process in psutil.Process(postmaster).children()]

            os.kill(postmaster if victim == "postmaster" else backends[-1], signal.SIGKILL)

            if victim == "postmaster":
                wait_successor(server, postmaster)
            wait_until(bystander.answers, "the old session served again")
        writers.wait_more(100)
        writers.stop()

        assert_kept(server, writers)
        assert bystander.sql("SHOW PARAMETERS LIKE 'QUERY_TAG' IN SESSION")[0][1] == "bystander"
        assert server.stop() == 0
    with serving(home) as server:
        assert_kept(server, writers)


def one_below(server: Server) -> int | None:
    """The current process of PostgreSQL; it may end during the check."""
    with contextlib.suppress(psutil.NoSuchProcess):
        children = psutil.Process(server.process.pid).children()
        return children[0].pid if children and children[0].name() == "postgres" else None
    return None


def wait_successor(server: Server, old: int) -> None:
    wait_until(lambda: one_below(server) not in (None, old), "a new PostgreSQL")


def kill_postgres(server: Server, witness: Wire) -> None:
    """Kill it and wait until its successor serves the witness."""
    old = server.postmaster
    os.kill(old, signal.SIGKILL)
    wait_successor(server, old)
    wait_until(witness.answers, "statements served again")


@pytest.mark.parametrize("table", [TABLES[0], pytest.param(TABLES[1], marks=pytest.mark.slow)])
def test_a_transaction_cut_in_two_by_the_death_of_postgresql_is_not_committed_in_part(home, table):
    with serving(home) as server:
        make_tables(server)
        wire = Wire(server, databaseName="LOADGEN", schemaName="CONTROL")
        wire.sql("BEGIN")
        wire.sql(f"INSERT INTO {table} VALUES ('a', 'cut')")

        kill_postgres(server, Wire(server))

        told = False  # by either statement: the client must learn that the first half is lost
        for text in (f"INSERT INTO {table} VALUES ('b', 'cut')", "COMMIT"):
            try:
                wire.sql(text)
            except Refused:
                told = True
        assert told
        wire.sql("ROLLBACK")
        assert wire.sql(f"SELECT ID FROM {table}") == []
        wire.sql("BEGIN")
        wire.sql(f"INSERT INTO {table} VALUES ('c', 'later')")
        wire.sql("COMMIT")
        assert wire.sql(f"SELECT ID FROM {table}") == [["c"]]


@pytest.mark.parametrize("verb", ["COMMIT", pytest.param("ROLLBACK", marks=pytest.mark.slow)])
def test_a_transaction_lost_with_postgresql_can_be_rolled_back_but_not_committed(home, verb):
    with serving(home) as server:
        make_tables(server)
        wire = Wire(server, databaseName="LOADGEN", schemaName="CONTROL")
        wire.sql("BEGIN")
        wire.sql("INSERT INTO HYBRID_ROWS VALUES ('a', 'lost')")

        kill_postgres(server, Wire(server))

        with pytest.raises(Refused) if verb == "COMMIT" else contextlib.nullcontext():
            wire.sql(verb)
        assert wire.sql("SELECT COUNT(*) FROM HYBRID_ROWS") == [["0"]]
        assert server.ask("/__loadgen/stats")["open_transactions"] == 0


class Maker:
    """A session that creates tables until it is stopped, and records which were acknowledged."""

    def __init__(self, server: Server) -> None:
        self.made: set[str] = set()
        self._wire = Wire(server, databaseName="LOADGEN", schemaName="DDL")
        self._stop = threading.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="maker")
        self._done = self._thread.submit(self._make)

    def _make(self) -> None:
        for number in itertools.count():
            if self._stop.is_set():
                return
            with contextlib.suppress(Refused):
                self._wire.sql(f"CREATE TABLE T{number} AS SELECT {number} AS X")
                self.made.add(f"T{number}")

    def wait_more(self, more: int) -> None:
        enough = len(self.made) + more
        wait_until(lambda: len(self.made) >= enough, f"{more} more tables made")

    def stop(self) -> None:
        self._stop.set()
        self._done.result(PATIENCE_S)
        self._thread.shutdown()


def assert_whole(server: Server, made: set[str]) -> None:
    """What was acknowledged is there, what is there works, and what is not there can be made."""
    wire = Wire(server, databaseName="LOADGEN", schemaName="DDL")
    listed = {str(row[1]) for row in wire.sql("SHOW TABLES IN SCHEMA LOADGEN.DDL")}
    assert made - listed == set()
    for number in range(len(listed) + 5):
        wire.sql(f"CREATE TABLE IF NOT EXISTS T{number} AS SELECT {number} AS X")
        assert wire.sql(f"SELECT X FROM T{number}") == [[str(number)]]


@pytest.mark.slow
def test_objects_made_while_postgresql_dies_are_there_entirely_or_not_at_all(home):
    with serving(home) as server:
        Wire(server).sql("CREATE OR REPLACE SCHEMA LOADGEN.DDL")
        maker = Maker(server)
        for _ in range(3):
            maker.wait_more(10)
            kill_postgres(server, Wire(server))
        maker.stop()

        assert_whole(server, maker.made)
    with serving(home) as server:
        assert_whole(server, maker.made)


def test_objects_made_while_the_server_dies_are_there_entirely_or_not_at_all(home):
    with serving(home) as server:
        Wire(server).sql("CREATE OR REPLACE SCHEMA LOADGEN.DDL")
        maker = Maker(server)
        maker.wait_more(random.randint(10, 60))
        server.process.kill()
        server.process.wait(PATIENCE_S)
        with contextlib.suppress(http.client.HTTPException, OSError):
            maker.stop()

    with serving(home) as server:
        assert_whole(server, maker.made)


def test_a_postgresql_that_keeps_dying_ends_the_server_with_an_error(home):
    with serving(home) as server:
        wire = Wire(server)

        def kill_again() -> bool:
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                if (pid := one_below(server)) is not None:
                    os.kill(pid, signal.SIGKILL)
            return server.process.poll() is not None

        wait_until(kill_again, "the server gave up")

        assert server.process.wait() == 4
        assert "error: PostgreSQL ended unexpectedly" in server.errors  # warnings of the log may precede it
        assert "\nhint: " in server.errors
        wire.close()
    with serving(home) as server:
        assert Wire(server).answers()


@pytest.mark.slow
def test_two_deaths_in_a_row_are_survived_as_one_is(home):
    with serving(home) as server:
        witness = Wire(server)
        for _ in range(2):
            old = server.postmaster
            os.kill(old, signal.SIGKILL)
            wait_successor(server, old)

        wait_until(witness.answers, "statements served again")
