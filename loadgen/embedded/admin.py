"""The endpoints below `/__loadgen/`, the request log, and when a server that a command started may stop."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import orjson

from loadgen.embedded import wire
from loadgen.embedded.fault_injection import FaultRules
from loadgen.embedded.http_exchange import LINES_TYPE, HttpExchange, respond, wait_gone
from loadgen.embedded.sql_types import is_number
from loadgen.embedded.transactions import Executor
from loadgen.embedded.warehouse_models import WarehouseModels

IDLE_S = 3.0
LOOK_S = 0.1


class ServerUsage:
    """Counts the users of the server, and decides when one started with `--until-eof` stops.

    Its stdin is a pipe that only the starting command holds open, so the kernel reports the end of that command, also
    after kill -9. Other commands may use the server by then. After the end of stdin it therefore continues

        while a command holds it    `GET /__loadgen/hold` stays open for as long as that command runs
        while a client works        a session is open, and a request or a waiting client was seen in the last 3 s

    Open sessions alone do not count, because a killed client never logs out. Nor do statements without a connection, or
    requests to `/__loadgen/…`. Owner: the event loop.
    """

    def __init__(self, about: Mapping[str, Any]) -> None:
        self.about = about  # how the server was started
        self.holders = 0
        self.used_s = time.perf_counter()  # when a client was last answered or seen waiting
        self.leaving = False

    async def hold(self, exchange: HttpExchange) -> None:
        """Describe the server, and count as a user until the connection ends. 503: the server is stopping."""
        if self.leaving:
            await respond(exchange, 503, b'{"error": "the server is stopping"}')
            return
        self.holders += 1
        try:
            headers = [(b"content-type", LINES_TYPE)]
            await exchange.send({"type": "http.response.start", "status": 200, "headers": headers})
            line = wire.dumps(self.about) + b"\n"
            await exchange.send({"type": "http.response.body", "body": line, "more_body": True})
            await wait_gone(exchange, None)
        finally:
            self.holders -= 1

    async def unused(self, executor: Executor, connections: Callable[[], int]) -> None:
        """Wait until stdin has ended and the server is unused; from then on `hold` is refused."""
        await _stdin_ended()
        while True:
            now_s = time.perf_counter()
            if executor.history.running and connections():
                self.used_s = now_s
            if may_stop(holders=self.holders, sessions=len(executor.sessions), idle_s=now_s - self.used_s):
                self.leaving = True
                return
            await asyncio.sleep(LOOK_S)


def may_stop(*, holders: int, sessions: int, idle_s: float) -> bool:
    """Whether a server stops whose starting command has ended."""
    return holders == 0 and (sessions == 0 or idle_s >= IDLE_S)


async def _stdin_ended() -> None:
    """Read stdin to its end, in a daemon thread: the event loop cannot watch every kind of file."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()

    def read() -> None:
        with suppress(OSError):  # cannot be read: counts as ended
            while os.read(0, 4096):
                pass
        with suppress(RuntimeError):  # the loop was closed first: a signal stopped the server
            loop.call_soon_threadsafe(ended.set)

    threading.Thread(target=read, name="stdin", daemon=True).start()
    await ended.wait()


ENTRIES_MAX = 100_000
SQL_CHARACTERS_MAX = 1_000
TEXT_CHARACTERS_MAX = 300  # of any other text: a client may send a path of 64 KiB before it logs in


class RequestLogEntry(NamedTuple):
    """One request. Times are epoch milliseconds of the server's clock, and durations."""

    at_ms: float
    method: str
    path: str
    session_id: int | None = None
    request_id: str | None = None
    query_id: str | None = None
    sql_text: str | None = None  # the first 1,000 characters
    bind_count: int = 0
    status: int = 200  # of HTTP; 0: no answer was sent
    outcome: str = "ok"
    duration_ms: float = 0.0
    retry_count: int = 0


class RequestLog:
    """A bounded list: the newest entry replaces the oldest."""

    def __init__(self, entries_max: int = ENTRIES_MAX) -> None:
        self._entries: deque[RequestLogEntry] = deque(maxlen=entries_max)

    def __len__(self) -> int:
        return len(self._entries)

    def append(self, entry: RequestLogEntry) -> None:
        self._entries.append(
            entry._replace(
                method=entry.method[:TEXT_CHARACTERS_MAX],
                path=entry.path[:TEXT_CHARACTERS_MAX],
                request_id=entry.request_id and entry.request_id[:TEXT_CHARACTERS_MAX],
                query_id=entry.query_id and entry.query_id[:TEXT_CHARACTERS_MAX],
                sql_text=entry.sql_text and entry.sql_text[:SQL_CHARACTERS_MAX],
                outcome=entry.outcome[:TEXT_CHARACTERS_MAX],
            )
        )

    def lines(self, *, since_ms: float = 0.0, path: str = "", match: str = "") -> Iterator[bytes]:
        """JSON lines, oldest first: at or after `since_ms`, with `path` in the path and `match` in the SQL text.

        Both are plain texts, and `match` ignores case. Requests that arrive meanwhile are not included.
        """
        wanted = match.lower()
        for entry in tuple(self._entries):
            if entry.at_ms < since_ms or path not in entry.path:
                continue
            if not wanted or wanted in (entry.sql_text or "").lower():
                yield _line(entry)

    def clear(self) -> None:
        self._entries.clear()


def _line(entry: RequestLogEntry) -> bytes:
    shown = entry._asdict() | {"at_ms": round(entry.at_ms, 3), "duration_ms": round(entry.duration_ms, 3)}
    try:
        return orjson.dumps(shown, option=orjson.OPT_APPEND_NEWLINE)
    except TypeError:  # half a surrogate pair, which only the standard library writes
        return json.dumps(shown).encode() + b"\n"


PREFIX = "/__loadgen"


class Admin:
    """Answers requests below `/__loadgen/`; owns no state."""

    def __init__(
        self,
        executor: Executor,
        usage: ServerUsage,
        models: WarehouseModels,
        faults: FaultRules,
        journal: RequestLog,
        now_ms: Callable[[], float],
    ) -> None:
        self._executor, self._usage, self._faults, self._journal = executor, usage, faults, journal
        self._now_ms = now_ms
        self.routes: dict[tuple[str, str], Callable[[HttpExchange], Awaitable[bytes]]] = {
            ("GET", "/__loadgen/stats"): self._stats,
            ("POST", "/__loadgen/faults"): self._add_fault,
            ("GET", "/__loadgen/faults"): self._list_faults,
            ("DELETE", "/__loadgen/faults"): self._clear_faults,
            ("GET", "/__loadgen/warehouses"): models.get,
            ("POST", "/__loadgen/warehouses"): models.post,
            ("DELETE", "/__loadgen/warehouses"): models.delete,
            ("GET", "/__loadgen/services"): self._list_services,
            ("POST", "/__loadgen/services"): self._report_service,
        }

    def stream(self, exchange: HttpExchange) -> Iterator[bytes] | None:
        """The lines of a long answer; None for other requests."""
        if exchange.method != "GET":
            return None
        since = exchange.first("since") or "0"
        since_ms = float(since) if is_number(since.replace(".", "", 1)) else 0.0
        if exchange.path == "/__loadgen/history":
            return self._executor.history.ground_truth(exchange.first("tag") or "", since_ms)
        if exchange.path == "/__loadgen/journal":
            path, match = exchange.first("path") or "", exchange.first("match") or ""
            return self._journal.lines(since_ms=since_ms, path=path, match=match)
        return None

    async def _stats(self, exchange: HttpExchange) -> bytes:
        executor = self._executor
        warehouses = {w.settings.name: w.now() for w in executor.warehouses}
        return wire.dumps(
            {
                "open_sessions": len(executor.sessions),
                "running": sum(w.running for w in executor.warehouses),
                "queued": sum(w.queued for w in executor.warehouses),
                "statements": executor.history.ended,
                "under_way": len(executor.history.running),
                "open_transactions": sum(1 for s in executor.sessions.by_number.values() if s.transaction is not None),
                "warehouses": warehouses,
                "holders": self._usage.holders,
                "options": self._usage.about,
                "now_ms": self._now_ms(),
            }
        )

    async def _add_fault(self, exchange: HttpExchange) -> bytes:
        posted = wire.parse_any(exchange.body)
        return wire.dumps({"ids": self._faults.add(posted)})

    async def _list_faults(self, exchange: HttpExchange) -> bytes:
        return wire.dumps(self._faults.listing())

    async def _clear_faults(self, exchange: HttpExchange) -> bytes:
        return wire.dumps({"cleared": self._faults.clear()})

    async def _list_services(self, exchange: HttpExchange) -> bytes:
        return wire.dumps(self._executor.services.listing())

    async def _report_service(self, exchange: HttpExchange) -> bytes:
        known = self._executor.services.report(wire.parse(exchange.body))
        return wire.dumps({"known": known})
