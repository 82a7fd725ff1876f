"""The newest requests the server answered, for `GET /__loadgen/journal`.

Unlike the history it has one entry per HTTP request: logins, heartbeats, retries and refused ones too. Only the event
loop's thread touches it.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import orjson

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
