"""What a pool without work costs: its real threads in simulated time, on a queue that counts their statements."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, cast

import pytest

from loadgen.control.session import ControlSession, NamedQuery
from loadgen.control.tables.pool_workers import PoolWorkerIdentity
from loadgen.model.warehouse import LOOK_AWAKE_S, look_credits_per_day
from loadgen.units import DAY_S
from orchestrator.nightly import runner
from orchestrator.nightly.pool import PING_S
from orchestrator.nightly.queue import PollPace, QueueMaintenance
from orchestrator.nightly.runner import Runner, RunnerSettings
from orchestrator.nightly.scheduler import SchedulerHooks, run_scheduler
from tests.fake_clock import FakeClock
from tests.unit.simulation.scheduler import Scheduler, simulated

POLL_S, IDLE_POLL_S, HOUR_S = 5.0, 600.0, 3600.0
LATENCY_S = 0.3  # of a statement
# From the look that finds a run to the runner that asks for it: a ping, the runner's look, and the statements between.
HEARD_S = 2 * PING_S + POLL_S + 10 * LATENCY_S
SETTLED_S = 60.0  # then a new pool has found that there is no work


@dataclass
class Pool:
    """A pool process with one runner. `due_s` is when each queued run may begin; a runner that asks takes it."""

    due_s: list[float] = field(default_factory=list)
    begun_s: list[float] = field(default_factory=list)
    sent: list[tuple[float, str]] = field(default_factory=list)
    nightly: bool = False  # there is a schedule
    in_use: bool = False  # the target of all runs, by a run outside of the queue
    gone: bool = False
    paused_until_ns: int = 0
    scheduler: Scheduler = field(default_factory=Scheduler)

    def run(self, seconds: float, *, idle_poll_s: float = IDLE_POLL_S) -> None:
        """The life of the pool, which is then stopped."""
        pace, end = PollPace(poll_s=POLL_S, idle_poll_s=idle_poll_s), threading.Event()
        self.scheduler.spawn(self, lambda: self._live(pace, end), "pool")
        self.scheduler.at(seconds, end.set)
        with simulated():
            self.scheduler.run()

    def _live(self, pace: PollPace, end: threading.Event) -> None:
        clock = Simulated(self.scheduler)
        upkeep = QueueMaintenance(self._session(), (), share=False, pace=pace, clock=clock)
        me = PoolWorkerIdentity(
            worker_id="host-1", hostname="host", pid=1, version="1", task_queue="Q", labels=(), capabilities=()
        )
        settings = RunnerSettings(runs_folder=Path("/nowhere"), poll_s=POLL_S)
        one = Runner(lambda _: self._session(), me, settings, clock=clock)
        hooks = SchedulerHooks(idle_s=upkeep.idle_beat_s, fired=upkeep.wake)
        schedules = threading.Thread(
            target=lambda: run_scheduler(self._session(), end, clock=clock, hooks=hooks), name="schedules"
        )
        for thread in (upkeep, one, schedules):
            thread.start()
        while not clock.wait(end, PING_S):  # as its manager does with every ping
            one.set_idle(upkeep.idle_beat_s())
        upkeep.stop()
        one.drain(0.0)
        one.done.wait()
        for ended in (upkeep, schedules):
            ended.join(IDLE_POLL_S)
        assert one.error is None
        self.scheduler.stopped = True

    def _session(self) -> ControlSession:
        return cast(ControlSession, self)

    def statements(self, from_s: float, until_s: float) -> list[str]:
        return [name for at_s, name in self.sent if from_s <= at_s < until_s]

    def awake_s(self, from_s: float, until_s: float) -> float:
        """How long a warehouse runs that suspends itself after a minute without a statement."""
        total_s, until = 0.0, from_s
        for at_s, _ in self.sent:
            if from_s <= at_s < until_s:
                total_s += at_s + LOOK_AWAKE_S - max(until, at_s)
                until = at_s + LOOK_AWAKE_S
        return total_s

    # --- the tables --------------------------------------------------------------------------------------------------

    def fetch(self, query: NamedQuery, *_: Any) -> list[tuple[Any, ...]]:
        self._note(query)
        now_s = self.scheduler.now_s
        due = [at_s for at_s in self.due_s if at_s <= now_s]
        if query.name == "run_queue.open_runs":
            next_ms = None if not self.due_s else round((min(self.due_s) - now_s) * 1000)
            return [(None, len(self.due_s), next_ms)]
        if query.name == "run_queue.depth":
            return [(len(due), len(due))]
        if query.name == "run_queue.candidates" and due and not self.in_use:
            self.due_s.remove(due[0])
            self.begun_s.append(now_s)
        if query.name == "schedules.enabled" and self.nightly:
            now = Simulated(self.scheduler).utc_now().replace(tzinfo=None)
            return [_schedule(now)]
        return []

    def execute(self, query: NamedQuery, *_: Any) -> int:
        self._note(query)
        return int(query.name in ("pool_workers.register", "pool_workers.beat"))

    def close(self) -> None:
        pass

    def _note(self, query: NamedQuery) -> None:
        self.sent.append((self.scheduler.now_s, query.name))
        self.scheduler.sleep(LATENCY_S)


class Simulated(FakeClock):
    """The clock of the simulation's threads."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__()
        self._scheduler = scheduler

    def monotonic_ns(self) -> int:
        self.now_ns = self._scheduler.now_ns
        return self.now_ns

    def utc_now(self) -> datetime:
        self.monotonic_ns()
        return super().utc_now()

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        return event.wait(timeout_s)


def _schedule(now: datetime) -> tuple[Any, ...]:
    """Every night at two; settled."""
    row = ("s", "nightly", "0 2 * * *", "UTC", "s", None, "", "[]", 0, True, 1, "skip", now, None, now, now)
    return (*row, now)


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Pool:
    monkeypatch.setattr(runner, "IDLE_CHECK_S", PING_S)  # a quarter of the steps; its input comes with pings
    return Pool()


@pytest.mark.parametrize("waits", ["nothing", "a run for later", "a schedule"])
def test_an_idle_hour_has_few_statements(pool, waits):
    pool.due_s = [10 * HOUR_S] if waits == "a run for later" else []
    pool.nightly = waits == "a schedule"

    pool.run(2 * HOUR_S)

    hour = pool.statements(HOUR_S / 2, 1.5 * HOUR_S)
    assert 12 <= len(hour) < 30, hour
    assert {"run_queue.open_runs", "pool_workers.beat"} <= set(hour)


def test_an_idle_pool_costs_what_is_documented(pool):
    """Its looks, beats and schedules wake the warehouse together, also after hours."""
    pool.due_s, spent_s = [DAY_S], 6 * HOUR_S

    pool.run(SETTLED_S + spent_s)

    per_day = pool.awake_s(SETTLED_S, SETTLED_S + spent_s) / HOUR_S * DAY_S / spent_s
    assert per_day == pytest.approx(look_credits_per_day(IDLE_POLL_S), rel=0.15)


@pytest.mark.parametrize("after_s", [7.0, 23.0, 60.0, 599.0, 2000.0, HOUR_S])
def test_a_run_for_later_begins_at_its_time(pool, after_s):
    """Of `queue add --not-before`, and one whose attempt failed or found its warehouse in use."""
    pool.due_s = [SETTLED_S + after_s]

    pool.run(SETTLED_S + after_s + 2 * IDLE_POLL_S)

    (begun_s,) = pool.begun_s
    assert 0 <= begun_s - (SETTLED_S + after_s) <= HEARD_S


@pytest.mark.parametrize("after_s", [1.0, 300.0, 599.0])
def test_a_run_that_is_queued_while_the_pool_is_idle_begins_within_the_idle_interval(pool, after_s):
    pool.scheduler.at(SETTLED_S + after_s, lambda: pool.due_s.append(0.0))

    pool.run(SETTLED_S + after_s + 2 * IDLE_POLL_S)

    (begun_s,) = pool.begun_s
    assert begun_s - (SETTLED_S + after_s) <= IDLE_POLL_S + HEARD_S


def test_with_an_embedded_control_plane_there_is_no_back_off(pool):
    pool.due_s = [10 * HOUR_S]

    pool.run(HOUR_S, idle_poll_s=POLL_S)

    assert len(pool.statements(0.0, HOUR_S)) > HOUR_S / POLL_S


def test_a_run_that_is_due_keeps_the_pool_awake(pool):
    """No runner takes it: its target is in use by another run."""
    pool.due_s, pool.in_use = [0.0], True

    pool.run(HOUR_S)

    looks = pool.statements(SETTLED_S, HOUR_S).count("run_queue.open_runs")
    assert looks > 0.9 * HOUR_S / (POLL_S + 6 * LATENCY_S)
