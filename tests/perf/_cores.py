"""Which cores a benchmark's processes run on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True, kw_only=True)
class Cores:
    """The clients get separate cores, if there are more than they need; otherwise all processes use all cores."""

    clients: frozenset[int]
    others: frozenset[int]

    @classmethod
    def of_machine(cls, clients: int = 1) -> Self:
        allowed = sorted(os.sched_getaffinity(0))
        return cls(clients=frozenset(allowed[:clients]), others=frozenset(allowed[clients:] or allowed))


@contextmanager
def on(cores: frozenset[int]) -> Iterator[None]:
    """Processes that are started meanwhile run there."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
