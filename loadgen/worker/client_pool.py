"""The clients of a worker: more when the target rises, fewer when it falls, and never one that is cut off.

Growing submits clients to the executor, before the moment they are wanted where that is known; shrinking tells the last
ones to leave, which they do after the statement they are at. A slot is taken by one client at a time: a new one begins
when the one before has ended.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from loadgen.clock import monotonic_ns
from loadgen.errors import LoadgenError
from loadgen.metrics.recorder import Outcome
from loadgen.metrics.stalls import InFlightStatement
from loadgen.worker.client import Client
from loadgen.worker.client_context import CLIENTS_MAX, ClientContext, ClientSlots


class ClientPool:
    """resize() and reap(): the ramp controller. Counting, cancelling and abandoning: the main thread."""

    def __init__(self, context: ClientContext, slots: ClientSlots, warn: Callable[[str], None]) -> None:
        self._context, self._slots, self._warn = context, slots, warn
        self._executor = ThreadPoolExecutor(CLIENTS_MAX, thread_name_prefix="client")
        self._lock = threading.Lock()  # guards _clients: one entry per slot that has a client
        self._clients: dict[int, Client] = {}
        self._draining = False
        self._warned = 0  # of this target above the ceiling
        self.wanted = 0
        self.ahead = 0  # clients that are connected: those that work, and those that will be wanted soon

    def resize(self, wanted: int, ahead: int = 0) -> None:
        """Set the number of working clients, up to the limit; and connect up to `ahead` of them, which
        work when they are wanted. Without effect once the pool drains."""
        with self._lock:
            if self._draining:
                return
            most = self._slots.most
            self.wanted, self.ahead = min(wanted, most), min(max(wanted, ahead), most)
            for number, client in self._clients.items():
                if number >= self.ahead:
                    client.leave()
                elif number < self.wanted:
                    client.work()
        if wanted > most and wanted != self._warned:
            self._warned = wanted
            self._warn(
                f"{wanted} clients are wanted and {most} is the most this run may have here: sequences or users need it"
            )
        self.reap()

    def reap(self) -> None:
        """Fill slots that are empty, or whose client has ended, up to what is wanted. Call it now and then."""
        with self._lock:
            for number in [number for number, client in self._clients.items() if client.ended.is_set()]:
                if self._clients[number].error is None or number >= self.ahead:  # a hopeless one is left
                    del self._clients[number]
            for number in range(self.ahead):
                if number not in self._clients:
                    self._start(number)
            self._slots.sweep()

    @property
    def settled(self) -> bool:
        """Are there exactly as many open connections as are wanted?"""
        with self._lock:
            clients = dict(self._clients)
        return len(clients) == self.wanted and all(
            number < self.wanted and client.connected.is_set() for number, client in clients.items()
        )

    @property
    def open(self) -> int:
        return sum(client.connected.is_set() for client in self._all())

    @property
    def executing(self) -> int:
        return sum(len(client.flight) for client in self._all())

    @property
    def flights(self) -> list[InFlightStatement]:
        """What is being executed."""
        return [flight for client in self._all() for flight in tuple(client.flight)]

    def refused(self) -> LoadgenError | None:
        """Why the login of a client failed, if one did that need not be worth another."""
        return next((client.refused for client in self._all() if client.refused is not None), None)

    @property
    def given_up(self) -> LoadgenError | None:
        """Why no client is left, when every client has given up drawing; None while one may still work."""
        clients = self._all()
        hopeless = [client.error for client in clients if client.error is not None]
        return hopeless[0] if hopeless and len(hopeless) == len(clients) >= self.wanted else None

    def drain(self) -> None:
        """No client begins another statement. Safe to call twice."""
        with self._lock:
            self._draining, self.wanted, self.ahead = True, 0, 0
        self._slots.close()
        for client in self._all():
            client.leave()

    def stop_logging(self) -> None:
        """The query log has failed: clients keep no more entries for it."""
        self._slots.stop_logging()

    @property
    def drained(self) -> bool:
        return all(client.ended.is_set() for client in self._all())

    def cancel(self) -> list[int]:
        """The sessions whose statements should be cancelled on the server; their samples will count as cancelled."""
        sessions = []
        for client in self._all():
            session_id = client.session_id
            if client.flight and session_id is not None:
                client.cancelling = True
                sessions.append(session_id)
        return sessions

    def abandon(self) -> int:
        """Record what never came back as cancelled. How many there were."""
        abandoned = 0
        for client in self._all():
            try:
                number, window, due_ns, sent_ns = client.flight.pop()
            except IndexError:
                continue
            client.slot.recorder.append((number, window, due_ns, sent_ns, monotonic_ns(), Outcome.CANCELLED))
            abandoned += 1
        return abandoned

    def _start(self, number: int) -> None:
        client = Client(self._slots.get(number), self._context, waits=number >= self.wanted)
        self._clients[number] = client
        self._executor.submit(client.run)

    def _all(self) -> list[Client]:
        with self._lock:
            return list(self._clients.values())
