"""A world in which N orchestrators lead a run of M workers, everything fails, and time is a number.

Real: what is decided (course, crew, plan, recover), what is trusted (lease), what is written (control), what a worker
makes of it (agenda, control loop, board). Of the world: clocks, processes that crash and pause, requests that are lost
or late, and the thin shells around the decisions, which are those of orchestrator/leader.py and loadgen/worker.

The same seed gives the same history. A pause may come between any two statements of a process.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

from loadgen.control import run_status
from loadgen.control.run_leases import TAKEOVER_MARGIN_S
from loadgen.errors import LoadgenError
from loadgen.model.run import RunStatus
from loadgen.model.worker import WorkerStatus
from loadgen.scenario.scenario import Load, OnWorkerLoss
from loadgen.snowflake.settings import CONTROL_STATEMENT_S
from loadgen.worker.heartbeat import LAST_BEAT_S
from orchestrator.course import CLOSING_S, STORING_S, Rules
from orchestrator.plan import plan_run
from orchestrator.recover import NEVER_LED_S, TERM_S, recover
from tests.unit.orchestrator_leaders import Orchestrator
from tests.unit.orchestrator_processes import TIMING, Life, Process
from tests.unit.orchestrator_tables import STATUS, Broken, Rule, Tables, Violation
from tests.unit.orchestrator_wires import Fate
from tests.unit.orchestrator_workers import SimulatedWorker

HELD_UP_S = 40.0  # a request may be under way for so long before it begins
RECOVER_S = 10.0  # somebody looks for orphans so often
PAUSES_S = (3.0, 8.0, 12.0, 28.0, 33.0, 45.0, 70.0, 110.0)


def settled_s(rules: Rules, *, was_led: bool, deserted: bool) -> float:
    """How long a run may last when nothing fails any more, and somebody looks for orphans.

    First a term ends that was claimed or renewed just now and whose holder is gone: 2 × TTL, which is as long as that
    of whoever recovers, and the takeover margin. A run that nobody ever led is given NEVER_LED_S. Then it is led on
    from wherever it is; or its workers find that they are alone, drain, and say so; or, deserted, it has only to be
    found when the last of its workers has been silent for long enough.
    """
    timing, plan = rules.timing, rules.plan
    assert 2 * timing.lease_ttl_s >= TERM_S
    assert plan.ends_s is not None
    vacant_s = 2 * timing.lease_ttl_s + TAKEOVER_MARGIN_S if was_led else NEVER_LED_S
    found_s = timing.dead_s + RECOVER_S
    if deserted:
        return vacant_s + found_s
    stopping_s = timing.drain_s + timing.terminate_after_s + STORING_S + 2 * timing.kill_after_s + 8 * timing.tick_s
    led_s = timing.registration_s + plan.ends_s + CLOSING_S + stopping_s
    alone_s = timing.orchestrator_lost_s + timing.drain_interrupt_s + LAST_BEAT_S + found_s
    return vacant_s + max(led_s, alone_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What came of it."""

    status: RunStatus
    terms: int
    lasted_s: float  # from the end of the last fault to the end of the run
    seen: Counter[str]


class World:
    """run() lets a seed happen; a Violation says what must not have."""

    def __init__(self, seed: int, broken: Broken | None = None, trace: Callable[[str], None] | None = None) -> None:
        self.rng = rng = random.Random(seed)
        self.broken, self.trace = broken, trace
        self.workers_expected = rng.randint(1, 5)
        self.tables = Tables(self.workers_expected, broken)
        self.adopts = rng.random() < 0.6  # workers outlive their orchestrator, and others may take over
        load = Load(
            connections=8, workers=self.workers_expected, warmup_s=rng.choice((0.0, 4.0)), duration_s=rng.uniform(6, 30)
        )
        self.rules = Rules(plan=plan_run(load), timing=TIMING, on_worker_loss=OnWorkerLoss.FAIL)
        self.seen: Counter[str] = Counter()
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self.faults_until_s = self.calm_s = self.away_until_s = self.renewals_fail_until_s = 0.0
        self._left_s = 0.0  # when somebody was still there
        self.away_s = 0.0  # for how long the control plane was away until now
        self._trouble, self._hiccups = rng.choice((0.0, 0.01, 0.05, 0.2)), rng.choice((0.0, 0.0, 0.02, 0.08))
        self.orchestrators = [Orchestrator(self, f"orchestrator-{number}") for number in range(self._candidates())]
        self.workers = [SimulatedWorker(self, number) for number in range(self.workers_expected)]
        self._user = Process(self, "user")
        self._plan_life()
        self._plan_faults()

    def _candidates(self) -> int:
        return self.rng.randint(1, 3) if self.adopts else 1

    def _plan_life(self) -> None:
        first, *others = self.orchestrators
        first.thread(first.life())
        for other in others:
            other.thread(other.life(), self.rng.uniform(0, 60))
        if self.adopts:  # somebody else starts the workers
            for worker in self.workers:
                if self.rng.random() > 0.01:
                    worker.begin(self.rng.uniform(0, 15))
        if self.broken is not Broken.RECOVERY:
            self._user.thread(self._recover(), self.rng.uniform(0, RECOVER_S))

    def _plan_faults(self) -> None:
        rng, processes = self.rng, [*self.orchestrators, *self.workers]
        ends_s = 0.0
        for _ in range(rng.choice((0, 1, 1, 2, 3, 4, 6))):
            at_s, lasts_s, process = rng.uniform(0, 90), rng.choice(PAUSES_S), rng.choice(processes)
            kind = rng.choice(("crash", "crash", "pause", "pause", "sleep", "outage", "partition", "lease"))
            lasts_s *= kind != "crash"
            ends_s = max(ends_s, at_s + lasts_s)
            self.at(at_s, self._fault(kind, process, lasts_s))
        if rng.random() < 0.3:
            self.at(rng.uniform(0, 70), lambda: self._user.thread(self._cancel()))
        for _ in range(rng.choice((0, 0, 0, 0, 1, 1, 2))):
            self.at(rng.uniform(0, 70), rng.choice(self.orchestrators).interrupt)
        self.faults_until_s = max(ends_s, 90.0 if self._trouble or self._hiccups else 0.0)
        self.troubled_until(self.faults_until_s)

    # --- what happens --------------------------------------------------------------------------------------------

    def _fault(self, kind: str, process: Process, lasts_s: float) -> Callable[[], None]:
        def happen() -> None:
            self.note(kind, process.name if kind != "outage" else "", f"{lasts_s:g} s")
            if kind == "crash":
                process.crash()
            elif kind in ("pause", "sleep"):
                process.pause(lasts_s, asleep=kind == "sleep")
            elif kind == "partition":
                process.cut_off_until_s = max(process.cut_off_until_s, self.now_s + lasts_s)
            elif kind == "lease":  # only the connection on which it is renewed
                self.renewals_fail_until_s = self.now_s + lasts_s
            else:
                until_s = self.now_s + lasts_s
                self.away_s += max(0.0, until_s - max(self.away_until_s, self.now_s))
                self.away_until_s = max(self.away_until_s, until_s)

        return happen

    def draw_fate(self, changes: bool) -> Fate:
        if self.rng.random() >= self._trouble:
            return Fate.ANSWERED
        fate = self.rng.choice((Fate.AWAY, Fate.LOST, Fate.LATE, Fate.SLOW)) if changes else Fate.AWAY
        self.seen[fate.name] += 1
        return fate

    def later(self, fate: Fate, happens: Callable[[], None]) -> None:
        at_s = self.now_s + self.rng.uniform(0.0, CONTROL_STATEMENT_S if fate is Fate.SLOW else HELD_UP_S)
        self.troubled_until(at_s)
        self.at(at_s, happens)

    def hiccup(self, process: Process) -> None:
        """Orchestrators have few steps, and every one of them is a good place to fall asleep."""
        chance = self._hiccups if process in self.orchestrators else self._hiccups / 20
        if chance and self.now_s < self.faults_until_s and self.rng.random() < chance:
            lasts_s = self.rng.choice(PAUSES_S)
            self.note("hiccup", process.name, f"{lasts_s:g} s")
            process.pause(lasts_s, asleep=self.rng.random() < 0.2)

    def troubled_until(self, at_s: float) -> None:
        self.calm_s = max(self.calm_s, at_s)

    def _cancel(self) -> Life:
        while True:
            try:
                run_status.cancel(self._user.session, self._user.patience, "run", "enough")
            except LoadgenError:
                yield 3.0
            else:
                self.note("cancel")
                return

    def _recover(self) -> Life:
        while True:
            try:
                done, _ = recover(self._user.session, self._user.patience, by="somebody")
                if done:
                    self.note("recovered", done[0].status)
                    self._check_workers()
            except LoadgenError as error:
                self.note("recovery failed", str(error))
            yield RECOVER_S

    def _check_workers(self) -> None:
        tables = self.tables
        for worker_id, beaten_s in tables.beaten_s.items():
            ended = tables.beats[worker_id][STATUS] in (WorkerStatus.COMPLETED, WorkerStatus.DEAD)
            if not ended and tables.now_s - beaten_s < TIMING.dead_s:
                raise Violation(Rule.COLLEAGUE, f"{worker_id} was heard {tables.now_s - beaten_s:.0f} s before")

    # --- time ----------------------------------------------------------------------------------------------------

    @property
    def now_s(self) -> float:
        return self.tables.now_s

    def at(self, at_s: float, happens: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (at_s, next(self._order), happens))

    def note(self, what: str, *facts: str) -> None:
        self.seen[what] += 1
        if self.trace is not None:
            self.trace(f"{self.now_s:7.2f} {what} {' '.join(facts)}")

    def up_s(self) -> float:
        """For how long the control plane was there until now."""
        return self.now_s - self.away_s + max(0.0, self.away_until_s - self.now_s)

    # --- to the end ----------------------------------------------------------------------------------------------

    def run(self) -> History:
        tables = self.tables
        while not tables.status.is_terminal or any(worker.working for worker in self.workers):
            if not self._heap:
                raise Violation(Rule.END, f"{tables.status}/{tables.phase}, and nobody is left")
            tables.now_s, _, happens = heapq.heappop(self._heap)
            happens()
            self._check_time()
        lost = [worker.name for worker in self.workers if worker.is_lost]
        if lost and tables.status is RunStatus.COMPLETED:
            raise Violation(Rule.LOSS, ", ".join(lost))
        assert tables.ended_s is not None
        lasted_s = max(0.0, tables.ended_s - self.calm_s)
        return History(status=tables.status, terms=len(tables.leases), lasted_s=lasted_s, seen=self.seen)

    def _check_time(self) -> None:
        if self.now_s <= self.calm_s:
            return
        tables, working = self.tables, [worker.name for worker in self.workers if worker.working]
        if working or any(orchestrator.alive for orchestrator in self.orchestrators):
            self._left_s = tables.now_s
        was_led, deserted = self.seen["claimed"] > 0, self._left_s < tables.now_s
        since_s = max(self.calm_s, self._left_s) if deserted else self.calm_s
        if tables.now_s > since_s + settled_s(self.rules, was_led=was_led, deserted=deserted):
            where = f"{tables.status}/{tables.phase} ({tables.reason})"
            raise Violation(Rule.END, f"{where}; calm since {self.calm_s:.0f} s; there: {working}")
