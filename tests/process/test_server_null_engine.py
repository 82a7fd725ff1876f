"""The null engine answers anything with one row."""

import json
import signal
import uuid
from collections.abc import Iterator

import pytest

from tests.process.served import Server, Wire, serving
from tests.processes import reachable_directory


@pytest.fixture(scope="module")
def null_server() -> Iterator[Server]:
    with reachable_directory() as path, serving(path / "unused", "--engine", "null") as server:
        yield server


def test_the_null_engine_needs_neither_directory_nor_database(null_server):
    assert null_server.tree == {null_server.process.pid}
    assert not null_server.data_dir.exists()


@pytest.mark.parametrize("text", ["SELECT 1", "INSERT INTO nowhere VALUES (?)", "BEGIN", "??? no SQL at all '", ""])
def test_the_null_engine_answers_anything_with_one_row(null_server, text):
    wire = Wire(null_server)

    assert wire.sql(text) == [["1"]]
    assert wire.sql(text, bindings={"1": {"type": "TEXT", "value": "x"}}) == [["1"]]


def test_the_null_engine_serves_the_driver(null_server):
    with null_server.connect(database="ANY", schema="WHERE", warehouse="SOME_WH") as connection:
        cursor = connection.cursor()

        assert cursor.execute("SELECT * FROM nowhere WHERE x = ?", (5,)).fetchall() == [(1,)]
        connection.cursor().execute_async("SELECT 1")
        connection.commit()
    assert null_server.ask("/__loadgen/history")[-1]["error_code"] == 0


def test_the_null_engine_postpones_an_asynchronous_answer(scratch):
    with serving(scratch / "unused", "--engine", "null", "--service-time", "200ms") as server:
        wire = Wire(server)

        status, body = wire.post(
            f"/queries/v1/query-request?requestId={uuid.uuid4()}", {"sqlText": "SELECT 1", "asyncExec": True}
        )

        assert status == 200, body
        reply = json.loads(body)
        assert reply["code"] == "333334"
        status, body = wire.post(reply["data"]["getResultUrl"], b"", "GET")
        assert json.loads(body)["data"]["rowset"] == [["1"]]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_the_null_engine_ends_like_the_other(scratch, number):
    with serving(scratch / "unused", "--engine", "null") as server:
        assert Wire(server).answers()

        assert server.stop(number) == (-number if number == signal.SIGKILL else 0)
        assert server.errors == ""
