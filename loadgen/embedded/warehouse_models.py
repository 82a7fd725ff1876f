"""Models of single warehouses: a run gets the slots and the service time of its scenario on its own warehouse only.

    POST /__loadgen/warehouses      {"name": "BENCH_WH", "slots": 4, "service_time": "20ms", "pid": 4711}
    DELETE /__loadgen/warehouses    {"name": "BENCH_WH", "pid": 4711}

A warehouse without a posted model has the server's options (`--slots`, `--service-time`). A post with neither `slots`
nor `service_time` asks for these. Without a name it is the warehouse of sessions that name none.

`pid` is the process that measures there. While it runs, a different model for that warehouse is refused with 409: it
would change what that process measures. A run deletes its model at its end. The model of a process that was killed
stays until the next post: its workers may still measure, and another process may lead them on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from loadgen.embedded import wire
from loadgen.embedded.exchange import Exchange
from loadgen.embedded.login import DEFAULT_WAREHOUSE
from loadgen.embedded.names import SNOWFLAKE_NAME_LENGTH
from loadgen.embedded.warehouse import WarehouseModel, Warehouses

MODELS_MAX = 1_000
PID_MAX = 1 << 31


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request, read."""

    name: str
    pid: int | None
    model: WarehouseModel | None  # None: the server's options


@dataclass(slots=True)
class _Posted:
    model: WarehouseModel | None
    pids: set[int]  # processes that measure by it


class WarehouseModels:
    """What was posted, by warehouse. Only the event loop's thread touches it."""

    def __init__(self, warehouses: Warehouses) -> None:
        self._warehouses = warehouses
        self._posted: dict[str, _Posted] = {}

    async def post(self, exchange: Exchange) -> bytes:
        asked = read(wire.parse(exchange.body, exchange.encoding))
        others = self._others(asked)
        if others and self._posted[asked.name].model != asked.model:
            raise self._conflict(asked.name, others)
        if asked.name not in self._posted and len(self._posted) >= MODELS_MAX:
            raise wire.BadRequest(f"there are {MODELS_MAX} models already")
        self._posted[asked.name] = _Posted(asked.model, others | ({asked.pid} if asked.pid else set()))
        if not others:
            self._warehouses.set_model(asked.name, asked.model)
        return wire.dumps({"name": asked.name})

    async def delete(self, exchange: Exchange) -> bytes:
        asked = read(wire.parse(exchange.body, exchange.encoding))
        others = self._others(asked)
        if others and asked.pid is None:
            raise self._conflict(asked.name, others)
        if others:
            self._posted[asked.name].pids = others
        else:
            self._posted.pop(asked.name, None)
            self._warehouses.set_model(asked.name, None)
        return wire.dumps({"name": asked.name})

    def _others(self, asked: Asked) -> set[int]:
        """Other processes that measure on the warehouse."""
        found = self._posted.get(asked.name)
        return set() if found is None else {pid for pid in found.pids if pid != asked.pid and _is_running(pid)}

    def _conflict(self, name: str, pids: set[int]) -> wire.Conflict:
        model = self._warehouses.model_of(name)
        how = f"slots {model.slots or 'as its settings say'}, service time {model.service_time or 'none'}"
        return wire.Conflict(f"process {min(pids)} measures on warehouse {name} with {how}")


def read(message: dict[str, Any]) -> Asked:
    """Raises BadRequest, with what is wrong."""
    name, pid = message.get("name"), message.get("pid")
    if name is None:
        name = DEFAULT_WAREHOUSE
    if not isinstance(name, str) or not 0 < len(name) <= SNOWFLAKE_NAME_LENGTH:
        raise wire.BadRequest("name is not the name of a warehouse")
    if pid is not None and not (type(pid) is int and 0 < pid < PID_MAX):
        raise wire.BadRequest("pid is not the number of a process")
    if unknown := sorted(message.keys() - {"name", "pid", "slots", "service_time"}):
        raise wire.BadRequest(f"{unknown[0]!r} is not known here")
    return Asked(name=name, pid=pid, model=_model(message))


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


def _is_running(pid: int) -> bool:
    """One that only waits to be noticed by its parent is not."""
    import psutil  # takes long, and is seldom needed

    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return True
