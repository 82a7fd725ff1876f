"""Models of single warehouses: a run sets the slots and the service time of its scenario for its warehouse only.

    POST /__loadgen/warehouses      {"name": "BENCH_WH", "slots": 4, "service_time": "20ms", "pid": 4711}
    DELETE /__loadgen/warehouses    {"name": "BENCH_WH", "pid": 4711}
    GET /__loadgen/warehouses?name=BENCH_WH

Each answers with the model that is in force now: {"name", "id", "slots", "service_time"}, and with `altered_ms`, when
ALTER WAREHOUSE last set something (0: never since it was made), from which slots may follow. A warehouse without a
posted model has the server's options (`--slots`, `--service-time`) and no id. A post with neither `slots` nor
`service_time` asks for these. Without a name it is the warehouse of sessions that name none. A name is read as in SQL:
upper-cased unless it is quoted.

`pid` is the process that measures there. While it runs, a different model for that warehouse is refused with 409: it
would change what that process measures. A run deletes its model at its end. The model of a process that was killed
stays until the next post: its workers may still measure, and another process may take over the run.

A model has a new `id` whenever it begins, so equal answers at two moments prove that it was in force between
them. Models are kept in a file of the data directory and survive a restart of the server, unless all of their
processes have ended.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadgen.embedded import wire
from loadgen.embedded.http_exchange import HttpExchange
from loadgen.embedded.login import DEFAULT_WAREHOUSE, read_private, stored_name, write_private
from loadgen.embedded.postgres_names import SNOWFLAKE_NAME_LENGTH
from loadgen.embedded.sql_errors import SqlError
from loadgen.embedded.warehouse import VirtualWarehouses
from loadgen.embedded.warehouse_properties import WarehouseModel
from loadgen.errors import EmbeddedServerError

MODELS_FILE = "warehouse_models.json"
FILE_BYTES_MAX = 4 << 20
MODELS_MAX = 1_000
PROCESSES_MAX = 1_000  # of one model
PID_MAX = 1 << 31
SAME_START_S = 2.0  # clocks are adjusted; a pid is not reused that soon


@dataclass(frozen=True, slots=True, kw_only=True)
class WarehouseModelRequest:
    """A request, read."""

    name: str
    pid: int | None
    model: WarehouseModel | None  # None: the server's options


@dataclass(frozen=True, slots=True, kw_only=True)
class _Posted:
    id: str
    model: WarehouseModel | None
    processes: dict[int, float]  # that measure by it: pid → when it was started, in epoch seconds

    @property
    def running(self) -> dict[int, float]:
        return {pid: started_s for pid, started_s in self.processes.items() if _is_running(pid, started_s)}


class WarehouseModels:
    """What was posted, by warehouse. Only the event loop's thread touches it."""

    def __init__(self, warehouses: VirtualWarehouses, folder: Path | None) -> None:
        """`folder` keeps them over restarts; None: they are not kept."""
        self._warehouses = warehouses
        self._file = folder / MODELS_FILE if folder is not None else None
        self._posted = _kept(self._file) if self._file is not None else {}
        for name, posted in self._posted.items():
            warehouses.set_model(name, posted.model)

    async def get(self, exchange: HttpExchange) -> bytes:
        return self._in_force(read({"name": exchange.first("name")}).name)

    async def post(self, exchange: HttpExchange) -> bytes:
        asked = read(wire.parse(exchange.body))
        found, others = self._posted.get(asked.name), self._others(asked)
        same = found is not None and found.model == asked.model
        if others and not same:
            raise self._conflict(asked.name, others)
        if found is None and len(self._posted) >= MODELS_MAX:
            raise wire.BadRequest(f"there are {MODELS_MAX} models already")
        if len(others) >= PROCESSES_MAX:
            raise wire.BadRequest(f"{PROCESSES_MAX} processes measure there already")
        own = {asked.pid: _started_s(asked.pid)} if asked.pid else {}
        begun = (
            found if found is not None and same else _Posted(id=secrets.token_hex(8), model=asked.model, processes={})
        )
        self._change(asked.name, _Posted(id=begun.id, model=begun.model, processes=others | own))
        return self._in_force(asked.name)

    async def delete(self, exchange: HttpExchange) -> bytes:
        asked = read(wire.parse(exchange.body))
        found, others = self._posted.get(asked.name), self._others(asked)
        if others and asked.pid is None:
            raise self._conflict(asked.name, others)
        if found is not None:
            self._change(asked.name, _Posted(id=found.id, model=found.model, processes=others) if others else None)
        return self._in_force(asked.name)

    def _change(self, name: str, posted: _Posted | None) -> None:
        """Written to the file first, so that an answered model is durable."""
        before = self._posted.get(name)
        after = {**self._posted, name: posted}
        changed = {key: value for key, value in after.items() if value is not None}
        if self._file is not None:
            try:
                write_private(self._file, _document(changed))
            except OSError as error:
                raise wire.BadRequest(f"the model cannot be kept in {self._file}: {error.strerror}") from None
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

    def _others(self, asked: WarehouseModelRequest) -> dict[int, float]:
        """Other processes that measure on the warehouse."""
        found = self._posted.get(asked.name)
        running = found.running if found is not None else {}
        return {pid: started_s for pid, started_s in running.items() if pid != asked.pid}

    def _conflict(self, name: str, pids: dict[int, float]) -> wire.Conflict:
        model = self._warehouses.model_of(name)
        how = f"slots {model.slots or 'as its settings say'}, service time {model.service_time or 'none'}"
        return wire.Conflict(f"process {min(pids)} measures on warehouse {name} with {how}")


def read(message: dict[str, Any]) -> WarehouseModelRequest:
    """Raises BadRequest with the problem."""
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
        raise wire.BadRequest(f"{unknown[0]!r} is not known here")
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


# --- over restarts ---------------------------------------------------------------------------------------------------


def _document(posted: dict[str, _Posted]) -> bytes:
    return json.dumps({name: _entry(one) for name, one in posted.items()}, indent=1).encode()


def _entry(posted: _Posted) -> dict[str, Any]:
    model = posted.model
    asked = {} if model is None else {"slots": model.slots, "service_time": model.service_time}
    return {"id": posted.id, "model": asked, "processes": {str(pid): at for pid, at in posted.processes.items()}}


def _kept(file: Path) -> dict[str, _Posted]:
    """The models of the file, except those whose processes have all ended. Raises EmbeddedServerError."""
    remedy = f"Remove {file}: runs that measure by the models in it become INVALID."
    try:
        content = read_private(file, "file of warehouse models", FILE_BYTES_MAX, remedy)
    except FileNotFoundError:
        return {}
    try:
        posted = {name: _posted(name, entry) for name, entry in json.loads(content).items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, wire.BadRequest) as error:
        what = f"{file} holds no warehouse models of this version ({type(error).__name__})"
        raise EmbeddedServerError(what, remedy=remedy) from None
    return {name: one for name, one in posted.items() if not one.processes or one.running}


def _posted(name: str, entry: dict[str, Any]) -> _Posted:
    """Raises one of many errors when it was not written by _entry."""
    processes = {int(pid): float(started_s) for pid, started_s in entry["processes"].items()}
    asked = [read({"name": name, "pid": pid} | entry["model"]) for pid in (*processes, None)][-1]
    return _Posted(id=bytes.fromhex(entry["id"]).hex(), model=asked.model, processes=processes)


def _started_s(pid: int) -> float:
    """When the process was started; 0.0: there is none."""
    import psutil  # slow, and rarely needed

    try:
        return float(psutil.Process(pid).create_time())
    except psutil.Error:
        return 0.0


def _is_running(pid: int, started_s: float) -> bool:
    """A zombie does not run."""
    import psutil

    try:
        process = psutil.Process(pid)
        same = abs(process.create_time() - started_s) < SAME_START_S
        return bool(same and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return True
