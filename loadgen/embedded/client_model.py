"""The model of a run's warehouse on the embedded server: set for the run, and checked at its end.

A run measures by one model. The server keeps it over restarts; but it may be restarted with another data directory or
other options, and any client may delete a model. So the answer to the first request, which carries the id of the model,
is compared with the model in force at the end of the measurement. So is the moment of the last change of the
warehouse's settings, from which slots and speed may follow.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from loadgen.embedded.client import not_ours, request
from loadgen.errors import Busy, EmbeddedServerError, LoadgenError
from loadgen.log import printable
from loadgen.snowflake.profile_lookup import EMBEDDED_PASSWORD_FILE

PATH = "/__loadgen/warehouses"


@dataclass(frozen=True, slots=True, kw_only=True)
class InForce:
    """What the server says of a warehouse."""

    name: str
    id: str | None  # None: no model was set
    slots: int
    service_time: str | None
    altered_ms: float  # when the warehouse's settings were last changed; 0: never since it was made

    def __str__(self) -> str:
        slots = self.slots or "as the warehouse's settings say"
        return f"slots {slots}, service time {printable(self.service_time or 'none', 100)}"


@contextmanager
def warehouse_model(
    address: str, warehouse: str | None, model: Mapping[str, Any], *, begun: bool = False
) -> Iterator[Callable[[], str | None]]:
    """Set the slots and the service time of a warehouse until the block ends; without a name, of the default one.

    The block gets a function that returns why the model may not have been in force all the time; None: it was. With
    `begun` that covers the time since the start of a run that this process has taken over.

    An empty model is the one the server was started with, whatever a killed run has left behind.
    Raises Busy when another process measures there with another model.
    """
    whose: dict[str, Any] = {"name": warehouse, "pid": os.getpid()}
    before = _look(address, warehouse) if begun else None
    first = _ask(address, "POST", PATH, {**whose, **model})
    try:
        yield lambda: _changed(address, warehouse, before or first)
    finally:
        with suppress(LoadgenError):  # the server is gone: it forgets the model of a process that has ended
            _ask(address, "DELETE", PATH, whose)


def _changed(address: str, warehouse: str | None, first: InForce) -> str | None:
    """Why it is not known that the model was in force all the time."""
    try:
        now = _look(address, warehouse)
    except LoadgenError as error:
        return f"the model of warehouse {printable(first.name, 100)} could not be checked: {error}"
    if now == first and first.id is not None:
        return None
    if now == replace(first, altered_ms=now.altered_ms) and first.id is not None:
        return f"the settings of warehouse {printable(first.name, 100)} were changed while the run measured"
    return (
        f"the model of warehouse {printable(first.name, 100)} was changed or lost while the run measured:"
        f" {first} at the beginning, {now} at the end"
    )


def _look(address: str, warehouse: str | None) -> InForce:
    return _ask(address, "GET", PATH if warehouse is None else f"{PATH}?name={quote(warehouse, safe='')}")


def _ask(address: str, method: str, path: str, message: Mapping[str, Any] | None = None) -> InForce:
    told = os.environ.get(EMBEDDED_PASSWORD_FILE)
    status, body = request(address, method, path, Path(told) if told else None, message)
    try:
        answer = json.loads(body)
        if status == 200:
            return _read(answer)
        why = printable(str(answer["error"]))
    except (ValueError, TypeError, KeyError):
        raise not_ours(address) from None
    if status == 409:
        remedy = "Wait for it; or give the scenario another target.warehouse, or the same options under embedded."
        raise Busy(f"the embedded server serves by one model per warehouse: {why}", remedy=remedy)
    raise EmbeddedServerError(f"the embedded server refused the options under embedded: {why}")


def _read(answer: dict[str, Any]) -> InForce:
    """Raises KeyError or TypeError when it is not what the server says."""
    kinds: dict[str, Any] = {
        "name": str,
        "id": str | None,
        "slots": int,
        "service_time": str | None,
        "altered_ms": float,
    }
    if not all(isinstance(answer[name], kind) for name, kind in kinds.items()):
        raise TypeError("a field is of another type")
    return InForce(**{name: answer[name] for name in kinds})
