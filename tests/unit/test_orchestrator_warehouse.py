"""Polls of the warehouse under test: conclusions from two consecutive ones, and a failed one."""

from __future__ import annotations

import threading
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from snowflake.connector.errors import OperationalError

from loadgen.control.session import ControlFailed, ControlSession
from loadgen.model.warehouse import WarehouseKind
from loadgen.snowflake.failure import classify
from loadgen.snowflake.profile import ConnectionProfile
from orchestrator import warehouse
from orchestrator.guardrails import costs_too_much
from orchestrator.warehouse import CreditMeter, WarehousePoller
from tests.fake_clock import FakeClock
from tests.unit.simulation.target import Warehouse

FULL, EMPTY = 5, 0  # statements that wait


class Shown(Warehouse):
    """Shows one number of waiting statements after the other; None: the look fails."""

    def __init__(self, *queued: int | None) -> None:
        super().__init__(1, rejects=False)
        self.queued = list(queued)

    def connect(self, *_: object, **__: object) -> Warehouse:
        return self

    def execute(self, sql: str, _: object = None) -> Warehouse:
        if self.queued[0] is None:
            self.queued.pop(0)
            raise OperationalError("no answer", errno=250003)
        return self

    def fetchall(self) -> list[tuple[object, ...]]:
        return [("WH", 1, self.queued.pop(0), 1, 1, "X-Small")]


class Looks(FakeClock):
    """Time for as many looks as there are."""

    def __init__(self, shown: Shown) -> None:
        super().__init__()
        self._shown = shown

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        self.advance(timeout_s)
        return not self._shown.queued


class Closed:
    """Stores nothing."""

    def close(self) -> None:
        """Nothing is held."""

    def append(self, *_: object) -> int:
        return 0

    def fetch(self, *_: object) -> list[tuple[int]]:
        return [(1,)]


@pytest.mark.parametrize(
    ("queued", "seen"),
    [
        ([FULL, FULL], True),
        ([FULL, EMPTY], False),
        ([EMPTY, FULL], False),
        ([FULL, None, FULL], False),  # unknown what was between them
        ([None, FULL, FULL], True),
        ([FULL, FULL, None], False),
    ],
)
def test_a_queue_is_seen_by_two_consecutive_polls(
    queued: list[int | None], seen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = Shown(*queued)
    monkeypatch.setattr(warehouse, "connect", shown.connect)
    store, profile = cast(ControlSession, Closed()), ConnectionProfile(name="x", fields={})
    watch = WarehousePoller(profile, "WH", "run", store, clock=Looks(shown), period_s=1.0, environ={})

    watch.run()

    assert watch.queue_seen() is seen


class Stored(Closed):
    """Keeps the number of rows of each INSERT that succeeds; `fails` of them do not."""

    def __init__(self, fails: int = 0) -> None:
        self.inserts: list[int] = []
        self._fails = fails

    def append(self, *arguments: Any) -> int:
        rows = arguments[-1]
        if self._fails:
            self._fails -= 1
            raise ControlFailed("no answer", classify(OperationalError("no answer", errno=250003)))
        self.inserts.append(len(rows))
        return len(rows)


@pytest.mark.parametrize(
    ("fails", "period_s", "inserts"),
    [
        (0, 5.0, [1, 1, 1]),
        (1, 5.0, [3]),  # at the end
        (1, 30.0, [2, 1]),  # the next attempt comes after 30 s
    ],
)
def test_each_poll_is_stored_at_once_because_a_successor_knows_only_what_is_stored(
    fails: int, period_s: float, inserts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown, store = Shown(EMPTY, EMPTY, EMPTY), Stored(fails)
    monkeypatch.setattr(warehouse, "connect", shown.connect)
    profile, session = ConnectionProfile(name="x", fields={}), cast(ControlSession, store)
    watch = WarehousePoller(profile, "WH", "run", session, clock=Looks(shown), period_s=period_s, environ={})

    watch.run()

    assert store.inserts == inserts


def test_a_leader_polls_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    shown, clock = Shown(EMPTY), FakeClock()
    monkeypatch.setattr(warehouse, "connect", shown.connect)
    store, profile = cast(ControlSession, Closed()), ConnectionProfile(name="x", fields={})
    watch = WarehousePoller(profile, "WH", "run", store, clock=clock, period_s=1800.0, environ={})
    watch.stop()

    watch.run()

    assert len(watch.observed) == 1


class SingleCluster(Shown):
    """The warehouse of an account without multi-cluster warehouses: no columns of clusters."""

    description = tuple((name,) for name in ("name", "state", "running", "queued", "size"))

    def __init__(self, state: str) -> None:
        super().__init__(FULL, FULL)
        self._state = state

    def fetchall(self) -> list[tuple[object, ...]]:
        return [("WH", self._state, 8, self.queued.pop(0), "X-Large")]


@pytest.mark.parametrize(("state", "clusters"), [("STARTED", 1), ("RESIZING", 1), ("SUSPENDED", 0)])
def test_a_warehouse_that_shows_no_clusters_has_one_while_it_is_started(
    state: str, clusters: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = SingleCluster(state)
    monkeypatch.setattr(warehouse, "connect", shown.connect)
    store, profile, clock = cast(ControlSession, Closed()), ConnectionProfile(name="x", fields={}), Looks(shown)
    watch = WarehousePoller(profile, "WH", "run", store, clock=clock, period_s=1800.0, environ={})

    watch.run()

    assert watch.credits == pytest.approx(16 * clusters), "after an hour"
    assert watch.queue_seen() is (clusters == 1), "the only cluster is started, and statements wait"


class Resized(Shown):
    """A warehouse whose size becomes one without a known price."""

    description = tuple((name,) for name in ("name", "running", "queued", "started_clusters", "size"))

    def __init__(self, *rows: tuple[str, int]) -> None:
        super().__init__(*(EMPTY for _ in rows))
        self._rows = list(rows)

    def fetchall(self) -> list[tuple[object, ...]]:
        size, clusters = self._rows.pop(0)
        return [("WH", 1, self.queued.pop(0), clusters, size)]


@pytest.mark.parametrize(
    ("rows", "ends"),
    [
        ([("X-Small", 1), ("10X-Large", 1), ("10X-Large", 1), ("10X-Large", 1)], True),
        ([("X-Small", 1), ("10X-Large", 1), ("10X-Large", 1), ("X-Small", 1)], False),
        ([("X-Small", 1), ("10X-Large", 0), ("10X-Large", 0), ("10X-Large", 0)], False),  # it is suspended
    ],
)
def test_a_cost_limit_ends_a_run_whose_warehouse_shows_no_cost_for_a_minute(
    rows: list[tuple[str, int]], ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = Resized(*rows)
    monkeypatch.setattr(warehouse, "connect", shown.connect)
    store, profile, clock = cast(ControlSession, Closed()), ConnectionProfile(name="x", fields={}), Looks(shown)
    watch = WarehousePoller(profile, "WH", "run", store, clock=clock, period_s=25.0, environ={})

    watch.run()

    assert (costs_too_much(watch, 100.0) is not None) is ends


@given(st.lists(st.tuples(st.integers(1, 60), st.sampled_from(["X-Small", "Medium", "?", None]), st.integers(0, 3))))
def test_an_unknown_size_counts_as_a_failed_poll(polls: list[tuple[int, str | None, int]]) -> None:
    every, known, now_ns = CreditMeter(), CreditMeter(), 0
    for seconds, size, clusters in polls:
        now_ns += seconds * 10**9
        shows_cost = size not in ("?", None) or clusters == 0
        assert every.observe(size, WarehouseKind.GEN1, clusters, now_ns) is shows_cost
        if shows_cost:
            known.observe(size, WarehouseKind.GEN1, clusters, now_ns)

    assert every.credits_at(now_ns) == pytest.approx(known.credits_at(now_ns))
