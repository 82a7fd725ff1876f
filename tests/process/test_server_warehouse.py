"""The warehouse model of the embedded server: slots, queue, service time."""

import itertools
import math
import statistics
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from snowflake.connector.errors import ProgrammingError

from tests.embedded_server import EmbeddedServer
from tests.process.served import Server, Wire, serving
from tests.processes import PATIENCE_S, reachable_directory, wait_until

CONNECTIONS, SLOTS, SERVICE_MS = 16, 4, 20.0
TOLERANCE_MS = 3.0  # between a request's arrival and its entry into the queue; nothing of it adds up


def load(server: Server, statements: int, text: str = "SELECT ? + 1") -> list[dict[str, Any]]:
    """Run `statements` on each of 16 connections at once; the server's record of them, in order of their arrival."""
    tag = uuid.uuid4().hex
    warm_ms: list[float] = []
    warm = threading.Barrier(CONNECTIONS, lambda: warm_ms.append(server.ask("/__loadgen/stats")["now_ms"]))

    def client() -> None:
        with server.connect(session_parameters={"QUERY_TAG": tag}) as connection:
            cursor = connection.cursor()
            cursor.execute(text, (1,))
            warm.wait(PATIENCE_S)
            for _ in range(statements):
                cursor.execute(text, (1,))

    with ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="client") as clients:
        for done in [clients.submit(client) for _ in range(CONNECTIONS)]:
            done.result(100)
    lines = server.ask(f"/__loadgen/history?tag={tag}&since={warm_ms[0]}")
    history = [line for line in lines if line["sql_text"] == text]
    assert len(history) == CONNECTIONS * statements
    return sorted(history, key=lambda line: line["start_ms"])


@pytest.fixture(scope="module", params=["postgres", "null"])
def history(request: pytest.FixtureRequest) -> Iterator[list[dict[str, Any]]]:
    arguments = ["--engine", request.param, "--slots", str(SLOTS), "--service-time", f"{SERVICE_MS:g}ms"]
    with reachable_directory() as path, serving(path / "data", *arguments) as server:
        yield load(server, statements=40)


def begins_ms(history: list[dict[str, Any]]) -> list[float]:
    """When each got its slot; what was queued before is not part of the execution."""
    return [line["end_ms"] - line["execution_ms"] for line in history]


@pytest.mark.slow
def test_a_statement_takes_the_service_time(history):
    times_ms = [line["execution_ms"] for line in history]

    assert statistics.median(times_ms) == pytest.approx(SERVICE_MS, rel=0.05)
    assert min(times_ms) > SERVICE_MS * 0.95


@pytest.mark.slow
def test_never_more_statements_execute_than_there_are_slots(history):
    begins = sorted(begins_ms(history))

    apart_ms = [later - earlier for earlier, later in zip(begins, begins[SLOTS:], strict=False)]

    assert min(apart_ms) > SERVICE_MS - TOLERANCE_MS


@pytest.mark.slow
def test_the_queue_is_first_come_first_served(history):
    overtakings_ms = [earlier - later for earlier, later in itertools.pairwise(begins_ms(history))]

    assert max(overtakings_ms) < TOLERANCE_MS


@pytest.mark.slow
def test_queued_and_executed_time_are_the_whole(history):
    wrong = [line for line in history if abs(line["queued_ms"] + line["execution_ms"] - line["total_ms"]) > 1]

    assert wrong == []
    assert all(abs(line["end_ms"] - line["start_ms"] - line["total_ms"]) < 0.01 for line in history)
    assert statistics.median(line["queued_ms"] for line in history) > SERVICE_MS


@pytest.mark.slow
def test_while_there_is_a_queue_the_slots_deliver_their_full_rate(history):
    """Over the longest stretch in which every statement had to queue: then no slot can have been idle."""
    stretches = [list(run) for queued, run in itertools.groupby(history, lambda line: line["queued_ms"] > 1) if queued]
    begins = sorted(begins_ms(max(stretches, key=len)))

    assert len(begins) > 100
    rate_per_s = (len(begins) - 1) / (begins[-1] - begins[0]) * 1000
    assert rate_per_s == pytest.approx(SLOTS / SERVICE_MS * 1000, rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["postgres", "null"])
def test_a_lognormal_service_time_has_its_quantiles(home, engine):
    arguments = ["--engine", engine, "--slots", str(CONNECTIONS), "--service-time", "lognormal(40ms,0.5)"]
    with serving(home, *arguments) as server:
        times_ms = [line["execution_ms"] for line in load(server, statements=60)]

    found = statistics.quantiles(times_ms, n=20)
    normal = statistics.NormalDist()
    for twentieth in (2, 5, 10, 15, 18):
        expected_ms = 40 * math.exp(0.5 * normal.inv_cdf(twentieth / 20))
        assert found[twentieth - 1] == pytest.approx(expected_ms, rel=0.1), f"{5 * twentieth} %"


@contextmanager
def busy(server: EmbeddedServer, warehouse: str, statements: int) -> Iterator[None]:
    """This number of statements on a warehouse, each on a separate connection, until the block ends."""
    opened = [server.connect(warehouse=warehouse) for _ in range(statements)]
    with ThreadPoolExecutor(statements, thread_name_prefix="client") as clients:
        waiting = [clients.submit(one.cursor().execute, "SELECT SYSTEM$WAIT(600)") for one in opened]
        yield
        with server.connect() as other:
            for one in opened:
                other.cursor().execute(f"SELECT SYSTEM$CANCEL_ALL_QUERIES({one.session_id})")
        assert all(isinstance(one.exception(PATIENCE_S), ProgrammingError) for one in waiting)
    for one in opened:
        one.close()


def test_show_warehouses_shows_what_runs_and_what_queues_now(server, connection):
    where = "SHOWN_WH"
    server.model(where, slots=4)

    def shown() -> dict[str, tuple[int, int]]:
        cursor = connection.cursor().execute("SHOW WAREHOUSES")
        names = [column.name for column in cursor.description]
        rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
        return {row["name"]: (row["running"], row["queued"]) for row in rows}

    with busy(server, where, 16):
        wait_until(lambda: shown()[where] == (4, 12), "4 running, 12 queued")
        assert {load for name, load in shown().items() if name != where} == {(0, 0)}
    assert shown()[where] == (0, 0)


def test_without_a_model_a_warehouse_has_its_own_number_of_slots(server, cursor):
    cursor.execute("CREATE OR REPLACE WAREHOUSE NARROW_WH WITH MAX_CONCURRENCY_LEVEL = 3")

    def load() -> dict[str, Any]:
        found: dict[str, Any] = server.ask("/__loadgen/stats")["warehouses"]["NARROW_WH"]
        return found

    with busy(server, "NARROW_WH", 8):
        wanted = {"running": 3, "queued": 5, "slots": 3, "service_time": None}
        wait_until(lambda: load() == wanted, "3 running, 5 queued")


def test_the_options_of_a_server_are_the_model_of_every_warehouse_but_the_control_plane_s(scratch):
    arguments = ["--engine", "null", "--slots", "4", "--service-time", "20ms"]
    with serving(scratch / "unused", *arguments) as server:
        names = ["COMPUTE_WH", "BENCH_WH", "LOADGEN_CONTROL_WH"]
        sessions = [Wire(server, warehouse=name) for name in names]
        found = server.ask("/__loadgen/stats")["warehouses"]
        for one in sessions:
            one.close()

    given = {"running": 0, "queued": 0, "slots": 4, "service_time": "20ms"}
    assert [found[name] for name in names] == [given, given, given | {"slots": 8, "service_time": None}]
