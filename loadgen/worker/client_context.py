"""What all clients of a worker share. Nothing here is locked by a client: it is read, or each has its own part."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from loadgen.clock import Clock, SystemClock
from loadgen.metrics.connections import ConnectionMeter
from loadgen.metrics.recorder import Recorder
from loadgen.metrics.sample_collector import SampleCollector
from loadgen.metrics.window_registry import WindowRegistry
from loadgen.model.outcome import ErrorCategory
from loadgen.model.split import worker_share
from loadgen.model.workload import ClientPosition, Sequence
from loadgen.scenario.model import LoadMode, Scenario
from loadgen.worker.arguments import WorkerArguments
from loadgen.worker.arrival_queue import ArrivalQueue
from loadgen.worker.query_log import ClientQueryLog, QueryLogWriter
from loadgen.worker.sessions import LoadSessions
from loadgen.worker.statements import StatementExecutor, compile_statement
from loadgen.worker.users import LogicalUsers, SlotUsers, in_session
from loadgen.workload.draw import StatementStream
from loadgen.workload.pools import Pool

CLIENTS_MAX = 10_000


@dataclass(slots=True)
class ClientSlot:
    """The place of one client. It outlives the client: who comes next goes on with the draws, and with the records."""

    number: int
    drawer: StatementStream | SlotUsers
    recorder: Recorder
    log: ClientQueryLog | None
    k: int = 0  # draws so far; in an open loop, statements

    def tagged(self, tag: str) -> None:
        """Its connection has this QUERY_TAG now."""
        if isinstance(self.drawer, SlotUsers):
            self.drawer.tag = tag

    def disconnected(self) -> None:
        if isinstance(self.drawer, SlotUsers):
            self.drawer.disconnected()


@dataclass(slots=True, kw_only=True)
class ClientContext:
    """The conductor changes windows and arrivals; clients only read."""

    scenario: Scenario
    windows: WindowRegistry
    sessions: LoadSessions
    runs: tuple[StatementExecutor, ...]
    opening: threading.Semaphore  # so many connections are opened at the same time
    failed: Callable[[str, ErrorCategory, int | None, str], None]  # (statement, …, code, text): for log and beats
    go: threading.Event = field(default_factory=threading.Event)  # set while a window is open
    arrivals: ArrivalQueue | None = None  # open loop: those of the window that is open
    tags: dict[int | None, str] = field(default_factory=dict)  # QUERY_TAG by window
    connections: ConnectionMeter = field(default_factory=ConnectionMeter)
    clock: Clock = field(default_factory=SystemClock)

    @property
    def open_loop(self) -> bool:
        return self.scenario.load.mode is LoadMode.RATE

    def tag(self, window: int | None) -> str:
        """QUERY_TAG of a session in this window; None: in none."""
        return self.tags.get(window) or self.sessions.tag(None, None)


class ClientSlots:
    """Makes the slots of a worker, each when it is first needed. One thread."""

    def __init__(
        self,
        scenario: Scenario,
        arguments: WorkerArguments,
        pools: Mapping[str, Pool],
        harvester: SampleCollector,
        query_log: QueryLogWriter | None,
        users: LogicalUsers | None = None,
    ) -> None:
        self._scenario, self._arguments, self._users = scenario, arguments, users
        self._pools, self._harvester, self._query_log = pools, harvester, query_log
        self._made: dict[int, ClientSlot] = {}
        self._shared: StatementStream | None = None
        self.ceiling = max_clients(scenario, arguments)

    @property
    def most(self) -> int:
        """How many there may be. Beyond the ceiling of the run sequences would draw the same numbers twice, and there
        are no users left."""
        if self._users is not None:
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
                drawer=self._drawer(number) if self._users is None else self._users.seat(number, self._drawer(number)),
                recorder=self._harvester.recorder(),
                log=None if self._query_log is None else self._query_log.slot(number),
            )
        return self._made[number]

    def sweep(self) -> None:
        """Let user sessions expire whose time is over. Call it now and then."""
        if self._users is not None:
            self._users.sweep()

    def close(self) -> None:
        """Any thread: the load ends."""
        if self._users is not None:
            self._users.close()

    def stop_logging(self) -> None:
        """Any thread: a client that has just looked may append one more entry."""
        self._query_log = None
        for slot in tuple(self._made.values()):
            slot.log = None

    def spare(self) -> ClientSlot:
        """A slot for nobody: it draws as the first one does, and has a recorder of its own."""
        return ClientSlot(number=-1, drawer=self._drawer(0), recorder=self._harvester.recorder(), log=None)

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
    """The most clients this worker should have: its part of the run's ceiling."""
    load = scenario.load
    if load.per_worker_connections is not None:
        return load.per_worker_connections
    return worker_share(load.connections, arguments.worker_group_id, arguments.worker_group_count)


def compile_statements(scenario: Scenario) -> tuple[StatementExecutor, ...]:
    statements = scenario.workload.statements
    return tuple(in_session(compile_statement(one)) if one.session else compile_statement(one) for one in statements)
