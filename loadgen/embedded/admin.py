"""The endpoints below `/__loadgen/`: warehouse models of runs, usage of the server, request log, faults, statistics."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from loadgen.embedded import wire
from loadgen.embedded.datadir import read_private
from loadgen.embedded.fault_injection import FaultRules
from loadgen.embedded.http_exchange import LINES_TYPE, HttpExchange, respond, wait_disconnect
from loadgen.embedded.postgres_names import SNOWFLAKE_NAME_LENGTH
from loadgen.embedded.result import is_number
from loadgen.embedded.session import DEFAULT_WAREHOUSE, stored_name
from loadgen.embedded.sql_errors import SqlError
from loadgen.embedded.transactions import Executor
from loadgen.embedded.warehouse import VirtualWarehouses, WarehouseModel
from loadgen.errors import EmbeddedServerError
from loadgen.files import replace_file
from loadgen.values import dataclass

# --- warehouse models -------------------------------------------------------------------------------------------------
#
# A run sets the slots and the service time of its scenario for its warehouse.
#
#     POST /__loadgen/warehouses      {"name": "BENCH_WH", "slots": 4, "service_time": "20ms", "pid": 4711}
#     DELETE /__loadgen/warehouses    {"name": "BENCH_WH", "pid": 4711}
#     GET /__loadgen/warehouses?name=BENCH_WH
#
# The answer contains the model in force: {"name", "id", "slots", "service_time", "altered_ms"}. `altered_ms` is the
# time of the last ALTER WAREHOUSE … SET (0: none since the creation), on which the slots may depend. A warehouse
# without a posted model has the options of the server (`--slots`, `--service-time`) and no id. A POST without `slots`
# and `service_time` requests these options. The default of `name` is the default warehouse of sessions. Names are
# upper-cased unless they are quoted, as in SQL.
#
# `pid` is the process that measures on the warehouse. While it runs, a different model for the warehouse is rejected
# with 409, because it would change the measured results. A run deletes its model at its end. The model of a killed
# process stays until the next POST: its workers may still measure, and another process may take over the run.
#
# Every new model gets a new `id`, so equal answers at two times prove that the model was in force between them. Models
# are stored in a file of the data directory and survive a restart of the server, unless all their processes have ended.

MODELS_FILE = "warehouse_models.json"
FILE_BYTES_MAX = 4 << 20
MODELS_MAX = 1_000
PROCESSES_MAX = 1_000  # of one model
PID_MAX = 1 << 31
SAME_START_S = 2.0  # tolerance for clock adjustments; a pid is not reused within this time


@dataclass(frozen=True, slots=True, kw_only=True)
class WarehouseModelRequest:
    """A parsed request."""

    name: str
    pid: int | None
    model: WarehouseModel | None  # None: the server's options


@dataclass(frozen=True, slots=True, kw_only=True)
class _PostedModel:
    id: str
    model: WarehouseModel | None
    processes: dict[int, float]  # that measure with it: pid → start of the process in epoch seconds

    @property
    def running(self) -> dict[int, float]:
        return {pid: started_s for pid, started_s in self.processes.items() if _is_running(pid, started_s)}


class WarehouseModels:
    """The posted models, by warehouse. Owner: the event loop."""

    def __init__(self, warehouses: VirtualWarehouses, folder: Path | None) -> None:
        """The models are stored in `folder`, unless it is None."""
        self._warehouses = warehouses
        self._file = folder / MODELS_FILE if folder is not None else None
        self._posted = _load_models(self._file) if self._file is not None else {}
        for name, posted in self._posted.items():
            warehouses.set_model(name, posted.model)

    async def get(self, exchange: HttpExchange) -> bytes:
        return self._in_force(parse_model_request({"name": exchange.first("name")}).name)

    async def post(self, exchange: HttpExchange) -> bytes:
        request = parse_model_request(wire.parse(exchange.body))
        found, others = self._posted.get(request.name), self._other_processes(request)
        same = found is not None and found.model == request.model
        if others and not same:
            raise self._conflict(request.name, others)
        if found is None and len(self._posted) >= MODELS_MAX:
            raise wire.BadRequest(f"there are already {MODELS_MAX} models")
        if len(others) >= PROCESSES_MAX:
            raise wire.BadRequest(f"{PROCESSES_MAX} processes already measure on the warehouse")
        own = {request.pid: _started_s(request.pid)} if request.pid else {}
        posted = _PostedModel(id=secrets.token_hex(8), model=request.model, processes=others | own)
        if found is not None and same:  # also the text of the service time stays
            posted = replace(posted, id=found.id, model=found.model)
        self._change(request.name, posted)
        return self._in_force(request.name)

    async def delete(self, exchange: HttpExchange) -> bytes:
        request = parse_model_request(wire.parse(exchange.body))
        found, others = self._posted.get(request.name), self._other_processes(request)
        if others and request.pid is None:
            raise self._conflict(request.name, others)
        if found is not None:
            self._change(request.name, replace(found, processes=others) if others else None)
        return self._in_force(request.name)

    def _change(self, name: str, posted: _PostedModel | None) -> None:
        """Write the models to the file before they are in force, so that an answered model is durable."""
        before = self._posted.get(name)
        after = {**self._posted, name: posted}
        changed = {key: value for key, value in after.items() if value is not None}
        if self._file is not None:
            try:
                replace_file(self._file, _document(changed), durable=True)
            except OSError as error:
                raise wire.BadRequest(f"the model cannot be stored in {self._file}: {error.strerror}") from None
        self._posted = changed
        if (before and before.id) != (posted and posted.id):
            self._warehouses.set_model(name, posted.model if posted is not None else None)

    def _in_force(self, name: str) -> bytes:
        model, posted = self._warehouses.model_of(name), self._posted.get(name)
        warehouse = self._warehouses.get(name)
        is_altered = warehouse is not None and warehouse.settings.updated_on_ms > warehouse.settings.created_on_ms
        altered_ms = warehouse.settings.updated_on_ms if warehouse is not None and is_altered else 0.0
        shown = {"slots": model.slots, "service_time": model.service_time, "altered_ms": altered_ms}
        return wire.dumps({"name": name, "id": posted.id if posted is not None else None} | shown)

    def _other_processes(self, request: WarehouseModelRequest) -> dict[int, float]:
        """Other running processes that measure on the warehouse."""
        found = self._posted.get(request.name)
        running = found.running if found is not None else {}
        return {pid: started_s for pid, started_s in running.items() if pid != request.pid}

    def _conflict(self, name: str, pids: dict[int, float]) -> wire.Conflict:
        model = self._warehouses.model_of(name)
        how = f"slots {model.slots or 'of its settings'}, service time {model.service_time or 'none'}"
        return wire.Conflict(f"process {min(pids)} measures on warehouse {name} with {how}")


def parse_model_request(message: dict[str, Any]) -> WarehouseModelRequest:
    """Raises BadRequest."""
    name, pid = message.get("name"), message.get("pid")
    if name is None:
        name = DEFAULT_WAREHOUSE
    try:
        stored = stored_name(name) if isinstance(name, str) and len(name) <= 2 * SNOWFLAKE_NAME_LENGTH + 2 else ""
    except SqlError:
        stored = ""
    if not 0 < len(stored) <= SNOWFLAKE_NAME_LENGTH:
        raise wire.BadRequest("name is not the name of a warehouse")
    if pid is not None and not (type(pid) is int and 0 < pid < PID_MAX):
        raise wire.BadRequest("pid is not the number of a process")
    if unknown := sorted(message.keys() - {"name", "pid", "slots", "service_time"}):
        raise wire.BadRequest(f"unknown key {unknown[0]!r}")
    return WarehouseModelRequest(name=stored, pid=pid, model=_model(message))


def _model(message: dict[str, Any]) -> WarehouseModel | None:
    if not message.keys() & {"slots", "service_time"}:
        return None
    slots, service_time = message.get("slots", 0), message.get("service_time")
    if type(slots) is not int or not isinstance(service_time, str | None):
        raise wire.BadRequest("slots is not a number, or service_time is not a text")
    try:
        return WarehouseModel.of(slots, service_time)
    except ValueError as error:
        raise wire.BadRequest(str(error)) from None


# --- the file of the models ------------------------------------------------------------------------------------------


def _document(posted: dict[str, _PostedModel]) -> bytes:
    return json.dumps({name: _entry(one) for name, one in posted.items()}, indent=1).encode()


def _entry(posted: _PostedModel) -> dict[str, Any]:
    model = posted.model
    parameters = {} if model is None else {"slots": model.slots, "service_time": model.service_time}
    return {"id": posted.id, "model": parameters, "processes": {str(pid): at for pid, at in posted.processes.items()}}


def _load_models(file: Path) -> dict[str, _PostedModel]:
    """The models of the file, without those whose processes have all ended. Raises EmbeddedServerError."""
    remedy = f"Remove {file}. Runs that measure with its models become INVALID."
    try:
        content = read_private(file, "file of warehouse models", FILE_BYTES_MAX, remedy)
    except FileNotFoundError:
        return {}
    try:
        posted = {name: _parse_entry(name, entry) for name, entry in json.loads(content).items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, wire.BadRequest) as error:
        what = f"{file} contains no warehouse models of this version ({type(error).__name__})"
        raise EmbeddedServerError(what, remedy=remedy) from None
    return {name: one for name, one in posted.items() if not one.processes or one.running}


def _parse_entry(name: str, entry: dict[str, Any]) -> _PostedModel:
    """Raises various errors if the entry was not written by _entry."""
    processes = {int(pid): float(started_s) for pid, started_s in entry["processes"].items()}
    request = [parse_model_request({"name": name, "pid": pid} | entry["model"]) for pid in (*processes, None)][-1]
    return _PostedModel(id=bytes.fromhex(entry["id"]).hex(), model=request.model, processes=processes)


def _started_s(pid: int) -> float:
    """The start time of a process; 0.0 if it does not exist."""
    import psutil  # imported here because it is slow and rarely needed

    try:
        return float(psutil.Process(pid).create_time())
    except psutil.Error:
        return 0.0


def _is_running(pid: int, started_s: float) -> bool:
    """Whether the process exists and is not a zombie."""
    import psutil

    try:
        process = psutil.Process(pid)
        same = abs(process.create_time() - started_s) < SAME_START_S
        return bool(same and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return True


# --- usage of the server ---------------------------------------------------------------------------------------------

IDLE_S = 3.0
CHECK_S = 0.1


class ServerUsage:
    """Counts the users of the server, and decides when a server with `--until-eof` stops.

    The stdin of such a server is a pipe that only the starting command holds open, so the kernel reports the end of
    that command, also after kill -9. Other commands may use the server at that time. The server stops after the end of
    stdin when neither of these conditions holds:

        a command holds it    `GET /__loadgen/hold` stays open while the command runs
        a client is active    a session is open, and a request or a waiting client was seen in the last 3 s

    Open sessions alone do not count, because a killed client does not log out. Statements without a connection and
    requests to `/__loadgen/…` do not count either. Owner: the event loop.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.options = options  # of the server
        self.holders = 0
        self.used_s = time.perf_counter()  # when a client last got an answer or was waiting
        self.is_stopping = False

    async def hold(self, exchange: HttpExchange) -> None:
        """Answer with the options; the connection counts as a user until its end. 503 if the server is stopping."""
        if self.is_stopping:
            await respond(exchange, 503, b'{"error": "the server is stopping"}')
            return
        self.holders += 1
        try:
            headers = [(b"content-type", LINES_TYPE)]
            await exchange.send({"type": "http.response.start", "status": 200, "headers": headers})
            line = wire.dumps(self.options) + b"\n"
            await exchange.send({"type": "http.response.body", "body": line, "more_body": True})
            await wait_disconnect(exchange, None)
        finally:
            self.holders -= 1

    async def wait_unused(self, executor: Executor, connections: Callable[[], int]) -> None:
        """Wait until stdin has ended and the server is unused; then `hold` is rejected."""
        await _stdin_ended()
        while True:
            now_s = time.perf_counter()
            if executor.history.running and connections():
                self.used_s = now_s
            if may_stop(holders=self.holders, sessions=len(executor.sessions), idle_s=now_s - self.used_s):
                self.is_stopping = True
                return
            await asyncio.sleep(CHECK_S)


def may_stop(*, holders: int, sessions: int, idle_s: float) -> bool:
    """Whether a server stops after its starting command has ended."""
    return holders == 0 and (sessions == 0 or idle_s >= IDLE_S)


async def _stdin_ended() -> None:
    """Read stdin to its end, in a daemon thread: the event loop cannot watch every kind of file."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()

    def read() -> None:
        with suppress(OSError):  # stdin cannot be read: counts as ended
            while os.read(0, 4096):
                pass
        with suppress(RuntimeError):  # the loop is closed: a signal stopped the server
            loop.call_soon_threadsafe(ended.set)

    threading.Thread(target=read, name="stdin", daemon=True).start()
    await ended.wait()


# --- request log -----------------------------------------------------------------------------------------------------

ENTRIES_MAX = 100_000
SQL_CHARACTERS_MAX = 1_000
TEXT_CHARACTERS_MAX = 300  # of other texts: a client can send a path of 64 KiB before it logs in


class RequestLogEntry(NamedTuple):
    """One request. `at_ms` is in epoch milliseconds of the server's clock."""

    at_ms: float
    method: str
    path: str
    session_id: int | None = None
    request_id: str | None = None
    query_id: str | None = None
    sql_text: str | None = None  # the first 1,000 characters
    bind_count: int = 0
    status: int = 200  # HTTP status; 0: no answer was sent
    outcome: str = "ok"
    duration_ms: float = 0.0
    retry_count: int = 0


class RequestLog:
    """A list of limited length: the newest entry replaces the oldest."""

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
        """JSON lines, oldest first, of entries since `since_ms` with `path` in the path and `match` in the SQL text.

        Both are plain texts; `match` ignores case. Requests during the iteration are not included.
        """
        wanted = match.lower()
        for entry in tuple(self._entries):
            if entry.at_ms < since_ms or path not in entry.path:
                continue
            if not wanted or wanted in (entry.sql_text or "").lower():
                yield _line(entry)


def _line(entry: RequestLogEntry) -> bytes:
    shown = entry._asdict() | {"at_ms": round(entry.at_ms, 3), "duration_ms": round(entry.duration_ms, 3)}
    try:
        return orjson.dumps(shown, option=orjson.OPT_APPEND_NEWLINE)
    except TypeError:  # an unpaired surrogate, which orjson does not write
        return json.dumps(shown).encode() + b"\n"


# --- endpoints -------------------------------------------------------------------------------------------------------

PREFIX = "/__loadgen"


class Admin:
    """Answers requests below `/__loadgen/`; owns no state."""

    def __init__(
        self,
        executor: Executor,
        usage: ServerUsage,
        models: WarehouseModels,
        faults: FaultRules,
        request_log: RequestLog,
        now_ms: Callable[[], float],
    ) -> None:
        self._executor, self._usage, self._faults, self._request_log = executor, usage, faults, request_log
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
        """The lines of a long answer; None for requests with a short one."""
        if exchange.method != "GET":
            return None
        since = exchange.first("since") or "0"
        since_ms = float(since) if is_number(since.replace(".", "", 1)) else 0.0
        if exchange.path == "/__loadgen/history":
            return self._executor.history.ground_truth(exchange.first("tag") or "", since_ms)
        if exchange.path == "/__loadgen/journal":
            path, match = exchange.first("path") or "", exchange.first("match") or ""
            return self._request_log.lines(since_ms=since_ms, path=path, match=match)
        return None

    async def _stats(self, exchange: HttpExchange) -> bytes:
        executor = self._executor
        warehouses = {w.settings.name: w.stats() for w in executor.warehouses}
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
                "options": self._usage.options,
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
