"""The state that all clients of a worker share. Clients take no locks: they only read, or use separate parts."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field
from itertools import count

from loadgen.clock import Clock, SystemClock
from loadgen.metrics.connections import ConnectionMeter
from loadgen.metrics.recorder import Recorder, ReplayedEntry, WindowRegistry
from loadgen.metrics.sample_collector import SampleCollector
from loadgen.model.counts import ErrorCategory
from loadgen.model.run import worker_share
from loadgen.model.workload import ClientPosition, Sequence
from loadgen.scenario.model import LoadMode, Scenario
from loadgen.units import NS_PER_S
from loadgen.values import dataclass
from loadgen.worker.arguments import WorkerArguments
from loadgen.worker.query_log import ClientQueryLog, QueryLogWriter
from loadgen.worker.sessions import (
    LoadSessions,
    LogicalUsers,
    SlotUsers,
    StatementExecutor,
    compile_recorded,
    compile_statement,
    in_session,
)
from loadgen.workload.arrivals import ArrivalSchedule
from loadgen.workload.draw import StatementStream
from loadgen.workload.pools import Pool
from loadgen.workload.replay import RecordedStream, SessionArrivals


class ArrivalQueue:
    """The arrivals of a window. Clients call take() without a lock; the ramp controller calls close().

    Each number is given out once: to a client, or to the ramp controller after the window has closed.
    """

    def __init__(
        self,
        window_id: int,
        schedule: ArrivalSchedule | RecordedStream,
        opened_ns: int,
        *,
        since_ns: int | None = None,
        until_ns: int | None = None,
    ) -> None:
        """Due times count from `opened_ns`. Arrivals before `since_ns` are left out. `until_ns`: the known end of the
        window, so that no client waits for a later arrival and sends it in the next window."""
        self.window_id = window_id
        self._schedule = schedule
        self._opened_ns = opened_ns
        self._end = schedule.end if until_ns is None else self._due_by(until_ns)
        first = schedule.first if since_ns is None or since_ns <= opened_ns else self._due_by(since_ns - 1)
        self._next = count(first).__next__  # atomic

    def take(self, slot: int = 0) -> int | None:
        """The number of the next arrival, for the caller only. None: the window has no more arrivals."""
        number = self._next()
        return number if number < self._end else None

    def due_ns(self, number: int) -> int:
        return self._opened_ns + round(self._schedule.due_s(number) * NS_PER_S)

    def close(self, closed_ns: int) -> Iterator[int]:
        """Close the window. Returns the arrivals that were due in it and that no client has taken."""
        # Clients may call take() at the same time. The end is only lowered to the last due arrival, and each number
        # below it goes to one caller, so none is lost and none is given out twice.
        self._end = min(self._end, self._due_by(closed_ns))
        return iter(self.take, None)

    def _due_by(self, moment_ns: int) -> int:
        """The first number that is due after this time."""
        schedule = self._schedule
        if moment_ns >= self._opened_ns + round(schedule.duration_s * NS_PER_S):
            return schedule.end
        return schedule.first + bisect_right(range(schedule.first, schedule.end), moment_ns, key=self.due_ns)


CLIENTS_MAX = 10_000


@dataclass(slots=True)
class ClientSlot:
    """The place of one client. It outlives the client: the next client continues its draws and its records."""

    number: int
    drawer: StatementStream | SlotUsers | RecordedStream
    recorder: Recorder
    log: ClientQueryLog | None
    k: int = 0  # draws so far; in an open loop, statements

    @property
    def follows(self) -> StatementStream | SlotUsers | None:
        """The drawer, if its statements read the keys that others insert."""
        return self.drawer if isinstance(self.drawer, (StatementStream, SlotUsers)) and self.drawer.follows else None

    def tagged(self, tag: str) -> None:
        """Note the current QUERY_TAG of the connection."""
        if isinstance(self.drawer, SlotUsers):
            self.drawer.tag = tag

    def disconnected(self) -> None:
        if isinstance(self.drawer, SlotUsers):
            self.drawer.disconnected()


@dataclass(slots=True, kw_only=True)
class ClientContext:
    """The ramp controller changes `windows`, `arrivals` and `tags`; clients only read them."""

    scenario: Scenario
    windows: WindowRegistry
    sessions: LoadSessions
    runs: tuple[StatementExecutor, ...]
    opening: threading.Semaphore  # limits how many connections are opened at the same time
    failed: Callable[[str, ErrorCategory, int | None, str], None]  # (statement, …, code, text): for log and heartbeats
    go: threading.Event = field(default_factory=threading.Event)  # set while a window is open
    arrivals: ArrivalQueue | SessionArrivals | None = None  # open loop: those of the window that is open
    recorded: RecordedStream | None = None  # mode replay: the recorded statements
    replayed: deque[ReplayedEntry] = field(default_factory=deque)  # mode replay: their lags and row counts
    client_lags: deque[tuple[int, int]] = field(default_factory=deque)  # open loop, of each statement: window, ns
    tags: dict[int | None, str] = field(default_factory=dict)  # QUERY_TAG by window
    connections: ConnectionMeter = field(default_factory=ConnectionMeter)
    clock: Clock = field(default_factory=SystemClock)

    @contextmanager
    def login_turn(self, waits: Callable[[], None]) -> Iterator[None]:
        """Limits concurrent logins. `waits` is called if the client has to wait."""
        if not self.opening.acquire(blocking=False):
            waits()
            self.opening.acquire()
        try:
            yield
        finally:
            self.opening.release()

    @property
    def open_loop(self) -> bool:
        return self.scenario.load.is_open_loop

    def tag(self, window: int | None) -> str:
        """QUERY_TAG of a session in this window. None: outside of windows."""
        return self.tags.get(window) or self.sessions.tag(None, None)


class ClientSlots:
    """Makes the slots of a worker, each when it is first needed. Belongs to one thread, except where noted."""

    def __init__(
        self,
        scenario: Scenario,
        arguments: WorkerArguments,
        pools: Mapping[str, Pool],
        harvester: SampleCollector,
        query_log: QueryLogWriter | None,
        users: LogicalUsers | None = None,
        recorded: RecordedStream | None = None,
    ) -> None:
        self._scenario, self._arguments, self._users, self._recorded = scenario, arguments, users, recorded
        self._pools, self._harvester, self._query_log = pools, harvester, query_log
        self._made: dict[int, ClientSlot] = {}
        self._shared: StatementStream | None = None
        self.ceiling = max_clients(scenario, arguments)

    @property
    def most(self) -> int:
        """The maximum number of slots. It is the ceiling of the run if there are users or recorded statements, or if a
        sequence is drawn: more slots would have no users, or draw the same numbers twice."""
        if self._users is not None or self._recorded is not None:
            return self.ceiling
        parameters = (
            parameter
            for statement in self._scenario.workload.statements
            for query in statement.queries
            for parameter in query.parameters
        )
        return self.ceiling if any(isinstance(parameter, Sequence) for parameter in parameters) else CLIENTS_MAX

    def get(self, number: int) -> ClientSlot:
        if number not in self._made:
            self._made[number] = ClientSlot(
                number=number,
                drawer=self._recorded or self._seat(number),
                recorder=self._harvester.recorder(),
                log=None if self._query_log is None else self._query_log.slot(number),
            )
        return self._made[number]

    def _seat(self, number: int) -> StatementStream | SlotUsers:
        return self._drawer(number) if self._users is None else self._users.seat(number, self._drawer(number))

    def sweep(self) -> None:
        """Expire user sessions whose time is over. Called regularly."""
        if self._users is not None:
            self._users.sweep()

    def close(self) -> None:
        """End the load. Any thread."""
        if self._users is not None:
            self._users.close()

    def spare(self) -> ClientSlot:
        """A slot without a client, for unsent arrivals: it draws as the first slot, and has a separate recorder."""
        drawer = self._recorded or self._drawer(0)
        return ClientSlot(number=-1, drawer=drawer, recorder=self._harvester.recorder(), log=None)

    def _drawer(self, number: int) -> StatementStream:
        workload, arguments = self._scenario.workload, self._arguments
        worker, workers = arguments.worker_group_id, arguments.worker_group_count
        if self._scenario.load.mode is LoadMode.RATE:  # all clients draw from one schedule
            place = ClientPosition(worker=worker, workers=workers)
            self._shared = self._shared or StatementStream(workload, place, self._pools, open_loop=True)
            return self._shared
        clients = max(self.ceiling, number + 1)
        lanes = self._scenario.load.connections if clients == self.ceiling else clients * workers
        place = ClientPosition(worker=worker, workers=workers, client=number, clients=clients, lanes=lanes)
        return StatementStream(workload, place, self._pools)


def max_clients(scenario: Scenario, arguments: WorkerArguments) -> int:
    """The maximum number of clients of this worker: its share of the connections of the run."""
    load = scenario.load
    if load.per_worker_connections is not None:
        return load.per_worker_connections
    return worker_share(load.connections, arguments.worker_group_id, arguments.worker_group_count)


def compile_statements(scenario: Scenario) -> tuple[StatementExecutor, ...]:
    statements = scenario.workload.statements
    if scenario.load.mode is LoadMode.REPLAY:
        return tuple(compile_recorded(one.kind) for one in statements)
    return tuple(in_session(compile_statement(one)) if one.session else compile_statement(one) for one in statements)
