"""The server about itself: what `/__loadgen/…` answers."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from typing import NamedTuple

import orjson

from loadgen.embedded import wire
from loadgen.embedded.fault_injection import FaultRules
from loadgen.embedded.http_exchange import HttpExchange
from loadgen.embedded.running import Executor
from loadgen.embedded.server_lifetime import ServerUsage
from loadgen.embedded.sql_types import is_number
from loadgen.embedded.warehouse_models import WarehouseModels

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
    status: int = 200  # of HTTP; 0: nothing was answered
    outcome: str = "ok"
    duration_ms: float = 0.0
    retry_count: int = 0


class RequestLog:
    """A bounded list: the oldest entry makes room for the newest."""

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

        Both are plain texts, and the case of `match` does not count. What arrives meanwhile is not included.
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
    """Reads and changes what tests and commands of loadgen need; owns nothing."""

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
        """The lines of a long answer; None: it is no such request."""
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
        posted = wire.parse_any(exchange.body, exchange.encoding)
        return wire.dumps({"ids": self._faults.add(posted)})

    async def _list_faults(self, exchange: HttpExchange) -> bytes:
        return wire.dumps(self._faults.listing())

    async def _clear_faults(self, exchange: HttpExchange) -> bytes:
        return wire.dumps({"cleared": self._faults.clear()})

    async def _list_services(self, exchange: HttpExchange) -> bytes:
        return wire.dumps(self._executor.services.listing())

    async def _report_service(self, exchange: HttpExchange) -> bytes:
        known = self._executor.services.report(wire.parse(exchange.body, exchange.encoding))
        return wire.dumps({"known": known})
