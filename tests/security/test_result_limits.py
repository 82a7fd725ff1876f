"""Results and intermediate results without an end: rejected while they arrive, without harm to other clients."""

from __future__ import annotations

import asyncio
import json
import uuid
from typing import Any

import pytest

from loadgen.embedded import http_exchange as exchanges
from loadgen.embedded import result, session, statement_history
from loadgen.embedded.result import Charge, ResultMemory, ResultMemoryMeter
from loadgen.embedded.sql_errors import SqlError
from tests.embedded_server import EmbeddedServer
from tests.process.served import Refused, Wire

TOO_LARGE = "200011: Result is too large"
OUT_OF_RESOURCES = "200012: SQL execution error: the statement needs more memory or temporary files"
ENDLESS = "WITH RECURSIVE R AS (SELECT 1 AS N UNION ALL SELECT N + 1 FROM R) SELECT N FROM R"
MIB_TEXT = "REPEAT('x', 1048576)"


def rows(count: int) -> str:
    return f"TABLE(GENERATOR(ROWCOUNT => {count}))"


@pytest.mark.parametrize(
    "sql",
    [
        ENDLESS,
        f"SELECT {MIB_TEXT} FROM {rows(1_000)}",
        f"SELECT {', '.join([MIB_TEXT] * 150)}",
        f"SELECT 1 FROM (SELECT SEQ4() FROM {rows(3_000)}) A CROSS JOIN (SELECT SEQ4() FROM {rows(3_000)}) B",
    ],
    ids=["endless recursion", "long rows", "one long row", "cross join"],
)
def test_a_result_that_is_too_large_is_refused_while_it_arrives(server: EmbeddedServer, sql: str):
    wire, other = Wire(server), Wire(server)

    with pytest.raises(Refused, match=TOO_LARGE):
        wire.sql(sql)

    assert wire.answers()
    assert other.answers()


def test_a_large_result_is_not_charged_to_the_next_statement(server: EmbeddedServer):
    wire = Wire(server)

    wire.sql(f"SELECT {MIB_TEXT} FROM {rows(3)}")

    assert [wire.sql("SELECT SYSTEM$WAIT(0)") for _ in range(3)]  # its argument may be of a few bytes


def test_a_result_that_is_too_large_does_not_end_its_transaction(server: EmbeddedServer):
    wire, other = Wire(server), Wire(server)
    name = f"LARGE_{uuid.uuid4().hex}.PUBLIC.T"
    wire.sql(f"CREATE DATABASE {name.partition('.')[0]}")
    wire.sql(f"CREATE TABLE {name} (X NUMBER)")
    wire.sql("BEGIN")
    wire.sql(f"INSERT INTO {name} VALUES (1)")

    with pytest.raises(Refused, match=TOO_LARGE):
        wire.sql(f"SELECT {MIB_TEXT} FROM {rows(1_000)}")
    wire.sql("COMMIT")

    assert other.sql(f"SELECT X FROM {name}") == [["1"]]


@pytest.mark.parametrize(
    "sql",
    [
        f"SELECT LENGTH(LISTAGG({MIB_TEXT}, '')) FROM {rows(3_000)}",
        f"SELECT ARRAY_SIZE(ARRAY_AGG({MIB_TEXT} || SEQ4())) FROM {rows(3_000)}",
        f"SELECT COUNT(*) FROM (SELECT REPEAT('x', 10000) || SEQ4() AS V FROM {rows(200_000)} ORDER BY V LIMIT 190000)",
    ],
    ids=["LISTAGG", "ARRAY_AGG", "sort"],
)
def test_a_statement_that_needs_too_much_is_refused_and_the_database_lives_on(server: EmbeddedServer, sql: str):
    wire, other = Wire(server), Wire(server)
    other.sql("BEGIN")

    with pytest.raises(Refused, match=OUT_OF_RESOURCES):
        wire.sql(sql)

    assert wire.answers()
    other.sql("COMMIT")  # of a database that restarted it would be lost


def test_of_large_results_for_later_only_the_newest_is_kept(server: EmbeddedServer):
    wire = Wire(server)
    ids = []
    for _ in range(2):
        asked = {"sqlText": f"SELECT {MIB_TEXT} FROM {rows(3)}", "asyncExec": True}
        body = wire.post(f"/queries/v1/query-request?requestId={uuid.uuid4()}", asked)[1]
        ids.append(json.loads(body)["data"]["queryId"])
        last = json.loads(wire.post(f"/queries/{ids[-1]}/result", b"", "GET")[1])
        assert len(last["data"]["rowset"]) == 3
        # A small one in between does not count.
        assert wire.answers()

    newest = json.loads(wire.post(f"/queries/{ids[1]}/result", b"", "GET")[1])

    assert newest["success"]


# --- the count -------------------------------------------------------------------------------------------------------


class Transport(asyncio.Transport):
    """Of a connection whose driver takes everything."""

    def __init__(self) -> None:
        super().__init__()
        self.protocol: asyncio.BaseProtocol = asyncio.Protocol()
        self.aborted = False

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self.protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def abort(self) -> None:
        self.aborted = True


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in (
        ("RESULT_BYTES_MAX", 100),
        ("RESULTS_BYTES_MAX", 150),
        ("UNCOUNTED_BYTES", 10),
        ("OVERSHOOT_BYTES", 20),
    ):
        monkeypatch.setattr(result, name, size)


def arriving(memory: ResultMemory, *sizes: int) -> tuple[Transport, ResultMemoryMeter, list[SqlError]]:
    transport, refused = Transport(), list[SqlError]()
    meter = ResultMemoryMeter(transport, memory)
    meter.begin(refused.append)
    for size in sizes:
        meter.data_received(b"x" * size)
    return transport, meter, refused


def test_small_results_count_for_nothing(small: None):
    memory = ResultMemory()
    _, meter, refused = arriving(memory, 5, 5)

    assert (memory.used, meter.end(), refused) == (0, None, [])


def test_a_statement_is_refused_once_and_loses_its_connection_when_it_goes_on_sending(small: None):
    within, _, once = arriving(ResultMemory(), 60, 50, 5)
    beyond, _, _ = arriving(ResultMemory(), 60, 50, 50)

    assert [error.message for error in once] == [result.result_too_large().message]
    assert (within.aborted, beyond.aborted) == (False, True)


def test_all_results_together_are_limited_until_one_is_released(small: None):
    memory = ResultMemory()
    _, first, _ = arriving(memory, 90)
    charge = first.end()
    _, _, refused = arriving(memory, 90)
    assert [error.message for error in refused] == [result.results_too_large().message]

    del charge
    _, last, fits = arriving(memory, 90)

    assert fits == []
    last.end(failed=True)
    assert memory.used == 0


def test_a_client_that_does_not_read_a_large_answer_is_cut_off(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(exchanges, "READ_S", 0.0)
    transport = Transport()

    class Flow:
        async def drain(self) -> None:
            await asyncio.Event().wait()

    class Connection:
        flow = Flow()

    async def send(_: dict[str, Any]) -> None:
        return

    async def respond() -> None:
        made = exchanges.HttpExchange(
            "GET", "/", {}, b"", b"", "", lambda: asyncio.sleep(0, {}), send, transport, Connection()
        )
        made.charge = Charge(ResultMemory())
        await exchanges.respond(made, 200, b"large")

    asyncio.run(respond())

    assert transport.aborted


def test_answers_that_a_session_keeps_for_repeated_requests_do_not_fill_the_memory():
    kept = session.ServerSession(1, "U", "R", {})

    for number in range(session.REPLIES_KEPT):
        kept.remember(str(number), b"x" * session.REPLY_BYTES_KEPT)

    assert list(kept.replies) == ["14", "15"]
    assert sum(map(len, kept.replies.values())) <= session.REPLIES_BYTES_KEPT


def test_a_history_of_long_statements_is_refused_before_it_is_built(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(statement_history, "ROWS_CHARACTERS_MAX", 1_000)
    kept = statement_history.StatementHistory(now_ms=lambda: 1.0, records_max=100)
    for _ in range(10):
        kept.end(kept.begin(statement_history.StatementContext(1, "U"), "x" * 300, 0.0))

    assert len(kept.query_history(result_limit=3)) == 3
    with pytest.raises(ValueError, match="use a lower RESULT_LIMIT"):
        kept.query_history(result_limit=10)
