"""Moving the number of clients under load: along the line, and without cutting a statement.

The witness is the server's history of statements and sessions. On a busy machine a worker may be late, but it must
never be ahead of the line: a client that begins too early, or leaves too early, is what these tests look for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from loadgen.control.tables.run_status import server_time
from loadgen.model.event import SetWorkerTarget
from loadgen.model.run import Phase
from tests.embedded_server import EmbeddedServer
from tests.process.worker_driver import Led, Worker, WorkerHarness, adds_up, worker_harness
from tests.processes import wait_until

STATEMENT_MS = 300.0
NAP = {"name": "nap", "kind": "read", "sql": f"SELECT SYSTEM$WAIT({STATEMENT_MS:.0f}, 'MILLISECONDS')"}
RAMP_S = 3.0
WAREHOUSE = "RAMP_WH"
Line = dict[str, Any]


@pytest.fixture(scope="module")
def harness(server: EmbeddedServer) -> Iterator[WorkerHarness]:
    server.model(WAREHOUSE, slots=200)
    yield from worker_harness(server)


@dataclass(frozen=True, slots=True)
class Moved:
    """A ramp as it was ordered; times in milliseconds of the server's clock."""

    first: int
    last: int
    began_ms: float
    reached_ms: float  # seen to be there

    def at(self, moment_ms: float) -> float:
        """The line itself."""
        part = min(1.0, max(0.0, (moment_ms - self.began_ms) / (RAMP_S * 1000)))
        return self.first + (self.last - self.first) * part


@pytest.mark.slow
def test_clients_follow_the_line_up_and_down(harness: WorkerHarness) -> None:
    run = harness.run({"connections": 64}, statements=[NAP], target={"warehouse": WAREHOUSE})
    worker = run.started()
    run.emit(SetWorkerTarget(target_connections=4))
    _hold(run, worker, 4)
    up = _ramp(run, worker, 4, 64)
    down = _ramp(run, worker, 64, 8)
    run.wait_ended(16, worker)
    run.stop()

    assert worker.exit_code() == 0, worker.said
    window = run.seen().of(Phase.MEASUREMENT)
    lines = run.history(Phase.MEASUREMENT)
    # Nothing was cut: every statement that began has ended well, here and there.
    assert adds_up(window)
    assert window.counts.failed == window.counts.cancelled == 0
    assert window.counts.succeeded == len(lines)
    assert all(not line["error_code"] and line["total_ms"] >= STATEMENT_MS * 0.95 for line in lines)
    _never_too_many(lines, up)
    _no_client_leaves_early(harness, lines, down)
    after = {line["session_id"] for line in lines if line["start_ms"] > down.reached_ms}
    assert len(after) <= 8


def _hold(run: Led, worker: Worker, clients: int) -> None:
    run.wait_beat(lambda beat: beat.open_connections == clients, f"{clients} connections are open", worker)


def _ramp(run: Led, worker: Worker, first: int, last: int) -> Moved:
    moment = run.soon(1.0)
    run.emit(SetWorkerTarget(target_connections=last, ramp_s=RAMP_S, effective_at=moment))
    # Connections are open before they are needed: that does not change the ramp.
    end = datetime.fromisoformat(moment) + timedelta(seconds=RAMP_S)
    wait_until(lambda: server_time(run.plane.session) >= end, "the ramp is over", unless=worker.gone)
    _hold(run, worker, last)
    reached = server_time(run.plane.session)
    return Moved(first, last, _epoch_ms(datetime.fromisoformat(moment)), _epoch_ms(reached))


def _epoch_ms(naive_utc: datetime) -> float:
    return naive_utc.replace(tzinfo=UTC).timestamp() * 1000


def _never_too_many(lines: list[Line], moved: Moved) -> None:
    """At the start of each statement of the ramp: how many were under way, this one included?"""
    during = [line for line in lines if moved.began_ms <= line["start_ms"] <= moved.reached_ms]
    assert during
    for line in during:
        moment_ms = line["start_ms"]
        running = sum(other["start_ms"] <= moment_ms < other["end_ms"] for other in lines)
        assert running <= moved.at(moment_ms) + 1


def _no_client_leaves_early(harness: WorkerHarness, lines: list[Line], moved: Moved) -> None:
    """The n-th client to leave closes its session no earlier than the ramp allows."""
    clients = {line["session_id"] for line in lines}
    requests = harness.server.ask(f"/__loadgen/journal?path=/session&since={moved.began_ms}")
    left = sorted(one["at_ms"] for one in requests if one["path"] == "/session" and one["session_id"] in clients)[
        : moved.first - moved.last
    ]  # the others leave at the end of the run
    assert len(left) == moved.first - moved.last
    for gone, at_ms in enumerate(left, start=1):
        assert moved.first - gone >= moved.at(at_ms) - 1
