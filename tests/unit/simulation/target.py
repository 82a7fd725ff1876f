"""The system under test: logins and statements take time, sessions are lost, logins are rejected. It records
what was executed. Verdicts are compared with this record.
"""

from __future__ import annotations

import math
import re
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from snowflake.connector.errors import OperationalError, ProgrammingError

from loadgen.errors import ConnectFailed
from loadgen.model.run import Phase
from loadgen.snowflake.profile import ConnectionProfile
from loadgen.snowflake.settings import ConnectionSettings
from loadgen.worker.client import Client
from tests.unit.simulation.scheduler import here

TAG_S = 0.005  # setting QUERY_TAG
LOGIN_GIVEN_UP_S = 0.3  # until a rejected login is answered
REJECTED_S = 0.05  # until the error that the warehouse is full is returned
BUSY_FACTOR = 0.6  # of its time: by how much a statement takes longer in a busy client

Place = tuple[str, int]  # worker, slot
Window = tuple[str | None, int | None]  # phase and stage in QUERY_TAG
_TAG = re.compile(r'"phase":(?:"(\w+)"|null),"step":(?:(\d+)|null)')


@dataclass(slots=True)
class Record:
    """What was executed for one slot, in seconds: successful logins, executions, and statements of the load by
    window."""

    logins: list[tuple[float, float]] = field(default_factory=list)
    sessions: dict[int, tuple[float, float]] = field(default_factory=dict)  # until its client closed it
    executions: list[tuple[float, float]] = field(default_factory=list)
    sent: Counter[Window] = field(default_factory=Counter)
    succeeded: Counter[Window] = field(default_factory=Counter)
    sent_s: dict[Window, tuple[float, float]] = field(default_factory=dict)  # the first statement, and the last

    @property
    def tried(self) -> int:
        """Statements of the measurement."""
        return _measured(self.sent)

    @property
    def answered(self) -> int:
        """Statements of the measurement that succeeded."""
        return _measured(self.succeeded)


def _measured(counts: Counter[Window]) -> int:
    return sum(count for (phase, _), count in counts.items() if phase == Phase.MEASUREMENT.value)


@dataclass(frozen=True, slots=True)
class Span:
    """A condition that holds for some workers during a time span."""

    from_s: float
    to_s: float
    workers: frozenset[str]

    def holds(self, now_s: float, worker_id: str) -> bool:
        return self.from_s <= now_s < self.to_s and worker_id in self.workers


class Warehouse:
    """Executes `slots` statements at a time. Further statements are queued or rejected."""

    def __init__(self, slots: int, *, rejects: bool) -> None:
        self.slots, self.rejects = slots, rejects
        self.running = 0
        self.line: deque[Connection] = deque()
        self.unseen: list[tuple[float, float]] = []  # the times between which polls of it fail
        self._row: tuple[Any, ...] = ()  # of the last response

    def enter(self, connection: Connection) -> bool:
        """Take a slot, possibly after waiting. False: rejected, or the session was lost meanwhile."""
        if self.running < self.slots:
            self.running += 1
            return True
        if self.rejects:
            connection.lost.wait(REJECTED_S)
            return False
        connection.turn.clear()
        self.line.append(connection)
        try:
            connection.turn.wait()
        finally:  # its process may have been killed
            if connection in self.line:
                self.line.remove(connection)
        return not connection.lost.is_set()

    def leave(self) -> None:
        """A statement has ended: the first one in the queue takes its slot."""
        self.running -= 1
        if self.line:
            self.running += 1
            self.line.popleft().turn.set()

    # --- the connection and cursor for SHOW WAREHOUSES and the query history ------------------------------------------

    description = tuple(
        (name,) for name in ("name", "running", "queued", "started_clusters", "max_cluster_count", "size")
    )

    def connect(self, *_: Any, **__: Any) -> Warehouse:
        self._answer()
        return self

    def cursor(self) -> Warehouse:
        return self

    def execute(self, sql: str, _: object = None) -> Warehouse:
        self._answer()
        # There are no other users: the history has no statements of others.
        shown = ("WH", self.running, len(self.line), 1, 1, "X-Small")
        self._row = (0, 0.0, 0, 0.0, 0) if "QUERY_HISTORY" in sql else shown
        return self

    def _answer(self) -> None:
        here().sleep(TAG_S)
        if any(from_s <= here().now_s < to_s for from_s, to_s in self.unseen):
            raise OperationalError("no answer", errno=250003)

    def fetchall(self) -> list[tuple[Any, ...]]:
        return [self._row]

    def close(self) -> None:
        """Nothing to release."""


class Target:
    """One account with every load connection of every worker."""

    def __init__(
        self, service_s: Callable[[], float], login_s: Callable[[], float], warehouse: Warehouse | None = None
    ) -> None:
        """`warehouse` None: concurrency is not limited."""
        self._service_s, self._login_s, self.warehouse = service_s, login_s, warehouse
        self.records: defaultdict[Place, Record] = defaultdict(Record)
        self.refusals: list[Span] = []
        self.hangs: list[Span] = []  # logins hang until its end, and are rejected then
        self.stalls: list[Span] = []
        self.silences: list[Span] = []  # statements are not answered
        self.busy: list[Span] = []  # clients that are short of CPU
        self._open: dict[int, Connection] = {}
        self._numbers = count(1)
        self.first_sent_s: float | None = None
        self.last_sent_s = 0.0

    def connect(self, _: ConnectionProfile, settings: ConnectionSettings, **__: Any) -> Connection:
        """Replaces loadgen.snowflake.connect for load sessions."""
        scheduler, place = here(), _place()
        began_s = scheduler.now_s
        ends_s = [began_s + LOGIN_GIVEN_UP_S for span in self.refusals if span.holds(began_s, place[0])]
        ends_s += [span.to_s for span in self.hangs if span.holds(began_s, place[0])]
        if ends_s:
            scheduler.sleep(max(ends_s) - began_s)
            raise ConnectFailed("no more sessions") from OperationalError("no more sessions", errno=251011)
        scheduler.sleep(self._login_s())
        session: Any = settings.arguments["session_parameters"]
        connection = Connection(self, place, next(self._numbers), _window(session["QUERY_TAG"]))
        self._open[connection.session_id] = connection
        self.records[place].logins.append((began_s, scheduler.now_s))
        self.records[place].sessions[connection.session_id] = (scheduler.now_s, math.inf)
        return connection

    def drop(self, worker_id: str, most: int | None = None) -> None:
        """Sessions of a worker end, up to `most` of them."""
        found = [one for one in self._open.values() if one.place[0] == worker_id and one.place[1] >= 0]
        for connection in found[:most]:
            connection.lost.set()
            connection.turn.set()

    def executed(self, connection: Connection, sql: str, window: Window) -> None:
        scheduler, record = here(), self.records[connection.place]
        began_s = scheduler.now_s
        is_load = not sql.startswith(("ALTER", "SELECT SYSTEM"))
        if is_load:
            self.first_sent_s = began_s if self.first_sent_s is None else self.first_sent_s
            self.last_sent_s = began_s
            record.sent[window] += 1
            record.sent_s[window] = (record.sent_s.get(window, (began_s, began_s))[0], began_s)
        silent = is_load and any(span.holds(began_s, connection.place[0]) for span in self.silences)
        takes_s = self._takes_s(connection.place[0], began_s) if is_load and not silent else TAG_S
        place = len(record.executions)
        record.executions.append((began_s, began_s + takes_s))
        warehouse = self.warehouse if is_load and not silent else None
        entered = self._executes(connection, takes_s, warehouse)
        record.executions[place] = (began_s, scheduler.now_s)
        if connection.lost.is_set():
            raise OperationalError("session gone", errno=390111)
        if not entered:
            raise ProgrammingError("the warehouse is full", errno=90073)
        if silent:
            raise OperationalError("no answer", errno=250003)
        if is_load:
            record.succeeded[window] += 1
        elif sql.startswith("ALTER"):
            connection.window = _window(sql)

    def _executes(self, connection: Connection, takes_s: float, warehouse: Warehouse | None) -> bool:
        """Wait for this time, or until the session is lost. False: no slot was available."""
        if warehouse is None:
            connection.lost.wait(takes_s)
            return True
        if not warehouse.enter(connection):
            return False
        try:
            connection.lost.wait(takes_s)
        finally:
            warehouse.leave()
        if any(span.holds(here().now_s, connection.place[0]) for span in self.busy):
            connection.lost.wait(BUSY_FACTOR * takes_s)
        return True

    def closed(self, connection: Connection) -> None:
        if self._open.pop(connection.session_id, None) is not None:
            sessions = self.records[connection.place].sessions
            sessions[connection.session_id] = (sessions[connection.session_id][0], here().now_s)

    def _takes_s(self, worker_id: str, now_s: float) -> float:
        takes_s = self._service_s()
        return takes_s + sum(span.to_s - now_s for span in self.stalls if span.holds(now_s, worker_id))


class Connection:
    """The part of the driver's connection and cursor that a client uses."""

    def __init__(self, target: Target, place: Place, number: int, window: Window) -> None:
        self._target, self.place, self.session_id, self.window = target, place, number, window
        self.lost = threading.Event()
        self.turn = threading.Event()  # it was queued, and a slot is free now
        self.rowcount, self.sfqid = 1, None

    def cursor(self) -> Connection:
        return self

    def execute(self, sql: str, _: Any = (), *, _statement_params: Mapping[str, str] | None = None) -> Connection:
        tag = (_statement_params or {}).get("QUERY_TAG")
        self._target.executed(self, sql, self.window if tag is None else _window(tag))
        return self

    def fetchmany(self, _: int) -> list[tuple[int]]:
        return [(1,)]

    def describe(self, sql: str, _: Any) -> None:
        """The metadata of every statement is known."""

    def close(self) -> None:
        self._target.closed(self)


def _window(tag: str) -> Window:
    found = _TAG.search(tag)
    assert found is not None, tag
    return found[1], None if found[2] is None else int(found[2])


def _place() -> Place:
    """The owner of a connection: the worker, and the slot of the client; -1: not a client."""
    task = here().current
    client = getattr(task.work, "__self__", None)
    worker_id: str = task.owner.worker_id  # type: ignore[union-attr]
    return worker_id, client.slot.number if isinstance(client, Client) else -1
