"""Models of single warehouses: what `POST /__loadgen/warehouses` sets, whom it binds, and when it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.error import HTTPError

import pytest
from snowflake.connector.errors import ProgrammingError

from loadgen.embedded.client import warehouse_model
from loadgen.errors import Busy, EmbeddedServerError
from tests.embedded_server import EmbeddedServer
from tests.processes import PATIENCE_S, wait_until

pytestmark = pytest.mark.any_driver

PLAIN = {"slots": 8, "service_time": None}  # of a server that was started without options


def wanted_model(slots: int = 0, service_time: str | None = None) -> dict[str, Any]:
    return {"slots": slots, "service_time": service_time}


@pytest.fixture
def name(database: str, connect: Callable[..., Any]) -> str:
    """A warehouse of the test's own."""
    connect(warehouse=f"{database}_WH")
    return f"{database}_WH"


@pytest.fixture
def other(database: str, connect: Callable[..., Any]) -> str:
    connect(warehouse=f"{database}_OTHER_WH")
    return f"{database}_OTHER_WH"


@pytest.fixture
def running() -> Iterator[subprocess.Popen[bytes]]:
    """A process that does nothing."""
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process


def model(server: EmbeddedServer, name: str) -> dict[str, Any]:
    found = server.ask("/__loadgen/stats")["warehouses"][name]
    return {key: found[key] for key in PLAIN}


def refusal(server: EmbeddedServer, body: dict[str, Any], method: str = "POST") -> tuple[int, str]:
    with pytest.raises(HTTPError) as caught:
        server.ask("/__loadgen/warehouses", method=method, body=body)
    with caught.value as answer:
        return answer.code, json.loads(answer.read())["error"]


def executions_ms(server: EmbeddedServer, tag: str) -> list[float]:
    lines = server.history(tag)
    return [line["execution_ms"] for line in lines if line["sql_text"] == "SELECT 1"]


def test_two_warehouses_serve_by_their_own_models_at_once(server, name, other, database, connect):
    server.model(name, service_time="100ms")
    server.model(other, service_time="1h")
    brief, control = (
        connect(warehouse=warehouse, session_parameters={"QUERY_TAG": f"{database} {warehouse}"}).cursor()
        for warehouse in (name, "LOADGEN_CONTROL_WH")
    )
    long = connect(warehouse=other)

    def running() -> int:
        return int(server.ask("/__loadgen/stats")["warehouses"][other]["running"])

    with ThreadPoolExecutor(1, thread_name_prefix="long") as thread:
        cancelled = thread.submit(long.cursor().execute, "SELECT 1")
        wait_until(lambda: running() == 1, "a statement of an hour runs")
        for cursor in (brief, control) * 5:
            cursor.execute("SELECT 1")
        still = running()
        control.execute(f"SELECT SYSTEM$CANCEL_ALL_QUERIES({long.session_id})")
        assert isinstance(cancelled.exception(PATIENCE_S), ProgrammingError)

    assert still == 1
    assert len(executions_ms(server, f"{database} {name}")) == 5
    assert min(executions_ms(server, f"{database} {name}")) >= 100
    assert min(executions_ms(server, f"{database} LOADGEN_CONTROL_WH")) < 100


def test_a_model_may_come_before_its_warehouse_and_survives_its_replacement(server, database, cursor):
    name = f"{database}_LATER_WH"
    server.model(name, slots=3, service_time="20ms")

    cursor.execute(f"CREATE WAREHOUSE {name}")
    first = model(server, name)
    cursor.execute(f"CREATE OR REPLACE WAREHOUSE {name} WITH MAX_CONCURRENCY_LEVEL = 5")

    assert first == model(server, name) == {"slots": 3, "service_time": "20ms"}
    server.ask("/__loadgen/warehouses", method="DELETE", body={"name": name})
    assert model(server, name) == {"slots": 5, "service_time": None}


def test_slots_of_a_model_make_the_others_queue(server, name, connect):
    server.model(name, slots=2)
    sessions = [connect(warehouse=name) for _ in range(5)]

    def load() -> tuple[int, int]:
        found = server.ask("/__loadgen/stats")["warehouses"][name]
        return found["running"], found["queued"]

    with ThreadPoolExecutor(5, thread_name_prefix="client") as clients:
        ended = [clients.submit(one.cursor().execute, "SELECT SYSTEM$WAIT(600)") for one in sessions]
        wait_until(lambda: load() == (2, 3), "2 run, 3 queue")
        server.model(name, slots=4)
        wait_until(lambda: load() == (4, 1), "more slots, for those that wait as well")
        for one in sessions:
            connect().cursor().execute(f"SELECT SYSTEM$CANCEL_ALL_QUERIES({one.session_id})")
        assert all(one.exception(PATIENCE_S) is not None for one in ended)


def test_a_run_has_its_model_for_as_long_as_it_lasts(server, name):
    with warehouse_model(server.address, name, wanted_model(slots=2, service_time="5ms")):
        during = model(server, name)

    assert during == {"slots": 2, "service_time": "5ms"}
    assert model(server, name) == PLAIN


def test_a_run_without_a_model_gets_the_options_of_the_server_whatever_was_left(server, name, running):
    server.ask("/__loadgen/warehouses", method="POST", body={"name": name, "slots": 1, "pid": running.pid})
    running.kill()
    running.wait()
    left = model(server, name)

    with warehouse_model(server.address, name, {}):
        during = model(server, name)

    assert left == {"slots": 1, "service_time": None}, "workers of a killed run may still measure"
    assert during == model(server, name) == PLAIN


def test_a_scenario_that_asks_for_no_service_time_gets_none_on_any_server(server, name):
    server.model(name, service_time="20ms")

    with warehouse_model(server.address, name, wanted_model(service_time="0ms")):
        assert model(server, name) == {"slots": 8, "service_time": "0ms"}


@pytest.mark.parametrize("wanted", [{}, wanted_model(slots=3)], ids=["nothing", "something else"])
def test_a_warehouse_where_another_process_measures_keeps_its_model(server, name, running, wanted):
    held = {"name": name, "slots": 2, "service_time": "20ms", "pid": running.pid}
    server.ask("/__loadgen/warehouses", method="POST", body=held)

    with pytest.raises(Busy) as caught, warehouse_model(server.address, name, wanted):
        pass

    text = f"process {running.pid} measures on warehouse {name} with slots 2, service time 20ms"
    assert str(caught.value).endswith(text)
    assert "target.warehouse" in caught.value.remedy
    assert refusal(server, {"name": name}, "DELETE") == (409, text)
    assert model(server, name) == {"slots": 2, "service_time": "20ms"}


def test_processes_that_ask_for_the_same_share_a_model_until_the_last_has_ended(server, name, running):
    held = {"name": name, "slots": 0, "service_time": "20ms", "pid": running.pid}
    server.ask("/__loadgen/warehouses", method="POST", body=held)

    with warehouse_model(server.address, name, wanted_model(service_time="0.02s")):
        pass
    shared = model(server, name)
    server.ask("/__loadgen/warehouses", method="DELETE", body={"name": name, "pid": running.pid})

    assert shared == {"slots": 8, "service_time": "20ms"}
    assert model(server, name) == PLAIN


def test_without_a_name_it_is_the_warehouse_of_sessions_that_name_none(server, connect):
    default = connect().cursor().execute("SELECT CURRENT_WAREHOUSE()").fetchone()[0]

    with warehouse_model(server.address, None, wanted_model(slots=7)):
        during = model(server, default)

    assert during == {"slots": 7, "service_time": None}
    assert model(server, default) == PLAIN


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({"name": ""}, "name is not the name of a warehouse"),
        ({"name": 7}, "name is not the name of a warehouse"),
        ({"name": "W" * 256}, "name is not the name of a warehouse"),
        ({"pid": 0}, "pid is not the number of a process"),
        ({"pid": True}, "pid is not the number of a process"),
        ({"slots": -1}, "slots -1 is not within 0 to 10000"),
        ({"slots": "4"}, "slots is not a number, or service_time is not a text"),
        ({"service_time": 20}, "slots is not a number, or service_time is not a text"),
        ({"service_time": "fast"}, "service time 'fast': 'fast' is not a duration"),
        ({"slot": 4}, "unknown key 'slot'"),
    ],
    ids=str,
)
def test_what_is_no_model_is_refused(server, body, why):
    before = server.ask("/__loadgen/stats")["warehouses"]

    status, said = refusal(server, body)

    assert (status, said.startswith(why)) == (400, True), said
    assert server.ask("/__loadgen/stats")["warehouses"] == before


def test_the_server_s_refusal_reaches_the_user(server, name):
    with (
        pytest.raises(EmbeddedServerError, match="'fast' is not a duration"),
        warehouse_model(server.address, name, wanted_model(service_time="fast")),
    ):
        pass


def in_force(server: EmbeddedServer, name: str) -> dict[str, Any]:
    found: dict[str, Any] = server.ask(f"/__loadgen/warehouses?name={name}")
    return found


def test_each_model_has_a_new_id_until_it_is_removed(server, name, running):
    none = in_force(server, name)
    held = {"name": name, "slots": 2, "service_time": "20ms", "pid": running.pid}
    first = server.ask("/__loadgen/warehouses", method="POST", body=held)
    shared = server.ask("/__loadgen/warehouses", method="POST", body=held | {"service_time": "0.02s", "pid": 1})
    server.ask("/__loadgen/warehouses", method="DELETE", body=held)
    left = in_force(server, name)
    server.ask("/__loadgen/warehouses", method="DELETE", body={"name": name, "pid": 1})
    second = server.ask("/__loadgen/warehouses", method="POST", body=held)

    assert none == {"name": name, "id": None, "slots": 0, "service_time": None, "altered_ms": 0.0}
    assert first == shared == left == none | {"id": first["id"], "slots": 2, "service_time": "20ms"}
    assert second["id"] not in (None, first["id"])


def test_a_run_notices_a_model_that_was_replaced_by_an_equal_one(server, name):
    model = {"slots": 2, "service_time": "5ms"}
    with warehouse_model(server.address, name, wanted_model(slots=2, service_time="5ms")) as changed:
        before = changed()
        own = {"name": name, "pid": os.getpid()}
        server.ask("/__loadgen/warehouses", method="DELETE", body=own)
        gone = changed()
        server.ask("/__loadgen/warehouses", method="POST", body=own | model)
        replaced = changed()

    assert before is None
    assert gone is not None
    assert gone.endswith(
        f"the model of warehouse {name} was changed or lost while the run measured: slots 2, service time 5ms at the"
        " beginning, slots of the warehouse's settings, service time none at the end"
    )
    assert replaced is not None


def test_a_server_that_is_unreachable_at_the_end_does_not_confirm_the_model():
    """What is not known is not taken for true."""
    with (
        EmbeddedServer("--engine", "null") as brief,
        warehouse_model(brief.address, "W", {}) as changed,
    ):
        before = changed()
        brief.stop()
        after = changed()

    assert before is None
    assert after is not None
    assert "the model of warehouse W could not be checked: no embedded server answers" in after


@pytest.mark.parametrize("lost", [False, True], ids=["the same model", "it was lost in between"])
def test_a_successor_learns_whether_the_model_was_still_in_force(server, name, running, lost):
    model = {"name": name, "slots": 2, "service_time": "5ms", "pid": running.pid}
    server.ask("/__loadgen/warehouses", method="POST", body=model)
    running.kill()
    running.wait()
    if lost:
        server.ask("/__loadgen/warehouses", method="DELETE", body={"name": name})

    with warehouse_model(server.address, name, wanted_model(slots=2, service_time="5ms"), begun=True) as changed:
        assert (changed() is not None) is lost


def test_the_name_of_a_model_is_read_as_in_sql(server, name):
    server.model(name.lower(), slots=3)
    server.model(f'"{name.lower()}"', slots=5)

    assert in_force(server, name)["slots"] == in_force(server, name.lower())["slots"] == 3
    assert in_force(server, f"%22{name.lower()}%22") | {"id": None} == {
        "name": name.lower(), "id": None, "slots": 5, "service_time": None, "altered_ms": 0.0
    }  # fmt: skip
    assert refusal(server, {"name": '"A', "slots": 1}) == (400, "name is not the name of a warehouse")
