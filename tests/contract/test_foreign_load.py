"""What others use of the warehouse under test, by its query history."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import Any

import pytest
from snowflake.connector import DictCursor
from snowflake.connector.errors import ProgrammingError

from loadgen.snowflake.profile_lookup import EMBEDDED_ADDRESS, find_profile
from loadgen.snowflake.settings import APPLICATION, control_tag
from orchestrator.query_history import HistorySlice, QueryHistory
from tests.contract.test_query_history import history
from tests.embedded_server import EmbeddedServer
from tests.processes import PATIENCE_S, wait_until

pytestmark = pytest.mark.any_driver


@pytest.fixture
def named(connect: Callable[..., Any]) -> Any:
    return connect().cursor(DictCursor)


@pytest.fixture
def of_run(server: EmbeddedServer, database: str) -> Iterator[QueryHistory]:
    environ = {EMBEDDED_ADDRESS: server.address}
    profile = find_profile("embedded", environ=environ, overrides={"database": database})
    with closing(QueryHistory(profile, "r", environ)) as found:
        yield found


def test_statements_of_others_count_with_their_overlap_with_a_span(connect, server, named, database, of_run):
    """Also while they execute, and when they began before the span or end after it."""
    warehouse, tag = f"WH_{database}", f'{{"app":"{APPLICATION}","run":"r","window":1}}'
    other, run = (connect(warehouse=warehouse, session_parameters={"QUERY_TAG": of}) for of in ("", tag))
    run.cursor().execute("SELECT SYSTEM$WAIT(300, 'MILLISECONDS')")

    def wait() -> None:
        with suppress(ProgrammingError):  # it is cancelled below
            other.cursor().execute("SELECT SYSTEM$WAIT(240)")

    thread = threading.Thread(target=wait, name="other")
    thread.start()
    mine, it = f"SESSION_ID => {other.session_id}", "QUERY_TEXT LIKE '%WAIT(240)'"
    (row,) = wait_until(lambda: history(named, mine, function="_BY_SESSION", where=it), "it executes")
    start_ms = server.now_ms()
    run.cursor().execute("SELECT SYSTEM$WAIT(500, 'MILLISECONDS')")
    span = HistorySlice(start_ms=round(start_ms), end_ms=round(server.now_ms()))

    while_it_executes = of_run.use(warehouse, span)
    named.execute("SELECT SYSTEM$CANCEL_QUERY(?)", (row["QUERY_ID"],))
    thread.join(PATIENCE_S)
    afterwards = of_run.use(warehouse, span)

    for use in (while_it_executes, afterwards):
        assert (use.own, use.others, use.left_out_ms) == (1, 1, 0.0)
        assert 500 <= use.own_ms <= span.end_ms - span.start_ms
        assert use.others_ms == span.end_ms - span.start_ms


def test_statements_with_a_tag_of_the_control_plane_are_foreign_where_it_does_not_execute(
    connect, server, database, of_run
):
    """A capture beside a run is load, and so is what only looks like loadgen's."""
    warehouse, start_ms = f"WH_{database}", server.now_ms()
    for role in ("capture", "heartbeat", "enrich", "warehouse-poll"):
        connection = connect(warehouse=warehouse, session_parameters={"QUERY_TAG": control_tag(role)})
        connection.cursor().execute("SELECT SYSTEM$WAIT(20, 'MILLISECONDS')")
    span = HistorySlice(start_ms=round(start_ms), end_ms=round(server.now_ms()) + 1)

    apart = of_run.use(warehouse, span)
    shared = of_run.use(warehouse, span, has_control_plane=True)

    assert (apart.others, shared.others) == (2, 0)
    assert apart.others_ms >= 40
