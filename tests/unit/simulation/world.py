"""One run of a random scenario in a world with faults. The same seed gives the same history."""

from __future__ import annotations

import json
import random
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

from loadgen.control.tables.worker_heartbeats import WorkerIdentity
from loadgen.metrics.live_metrics import read_live
from loadgen.model.event import EventType
from loadgen.model.run import RunStatus, WorkerStatus
from loadgen.results.run_snapshot import RunSnapshot, WorkerHealth
from loadgen.rules.validity import RunVerdict
from loadgen.scenario.frozen import thaw
from loadgen.scenario.model import OnWorkerLoss, Scenario
from loadgen.scenario.settings import ConnectionPolicy
from loadgen.snowflake import account_history
from loadgen.snowflake.profile_lookup import EMBEDDED_ADDRESS
from loadgen.threads import ThreadDied
from loadgen.worker import client, collector, ramp_controller, sessions, startup, worker
from loadgen.worker.flush import SPOOL_VARIABLE
from loadgen.worker.heartbeat import identity_of
from orchestrator import warehouse, worker_health
from orchestrator.recover import RecoveredRun
from orchestrator.spawn.spawner import WorkerOrder
from tests.unit.simulation.faults import plan_faults
from tests.unit.simulation.processes import (
    RECOVER_S,
    OrchestratorProcess,
    Process,
    Recovery,
    SimulatedMonitor,
    WorkerProcess,
)
from tests.unit.simulation.rules import Mutation, Rule, Violation, mutation_patches
from tests.unit.simulation.scenarios import FIXED, Kind, contested_scenario, random_scenario, search_scenario
from tests.unit.simulation.scheduler import Killed, Scheduler, here, simulated
from tests.unit.simulation.search_truth import other_search_reasons, truth_of_search, wrong_answer
from tests.unit.simulation.tables import STATUS, Tables
from tests.unit.simulation.target import Target, Warehouse
from tests.unit.simulation.truth import BAND, Truth, misplaced, other_reasons, plan_zero_s, truth_of, unreported_log
from tests.unit.simulation.wires import RequestOutcome

HELD_UP_S = 20.0  # the longest delay of a request before it begins
EXECUTES_S = 8.0  # the longest execution
CHECK_S = 1.0
TICK_ENDS = ("", "", "tick ends")
ROOM = 10**6  # slots of a warehouse that does not limit the load


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The result of a history."""

    status: RunStatus | None  # None: no run was created
    valid: bool
    least: Truth  # the delivered load
    most: Truth
    forbids: tuple[str, ...]
    leaves_open: tuple[str, ...]
    summary: Mapping[str, Any]
    terms: int
    ended_s: float
    seen: Counter[str]


class World:
    """run() is the whole history."""

    def __init__(
        self,
        seed: int,
        spool: str,
        mutation: Mutation | None = None,
        *,
        kind: Kind | None = None,
        contested: bool = False,
        calm_latency_s: float | None = None,
        workers: int | None = None,
        trace: Callable[[str], None] | None = None,
    ) -> None:
        """`kind` of its load, None: any. `contested`: a small run, and four orchestrators try to lead it over a faulty
        control plane. `calm_latency_s`: no faults, and this latency for control statements."""
        self.rng, self.mutation, self._trace, self.contested = random.Random(seed), mutation, trace, contested
        self.seed = seed
        self.scheduler = Scheduler()
        self.tables = Tables(lambda: self.scheduler.now_s, mutation)
        self.run_id = "run"
        self.spool = Path(spool, uuid.uuid4().hex)  # of this world alone
        self.environ = {EMBEDDED_ADDRESS: "127.0.0.1:1", SPOOL_VARIABLE: str(self.spool)}
        self.seen: Counter[str] = Counter()
        self.statements: list[tuple[str, str, str]] = []  # process, role of the session, name; and the ends of ticks
        self._thawed: Scenario | None = None
        rng = self.rng
        self.is_search = kind is Kind.FIND_MAX
        if self.is_search:
            self.scenario = search_scenario(rng)
        else:
            self.scenario = (
                contested_scenario(rng) if contested else random_scenario(rng, kind or rng.choice(FIXED), workers)
            )
        self.elsewhere = contested or rng.random() < 0.5
        if calm_latency_s is not None:  # waiting for a turn to log in again is missing load too
            self.scenario = replace(self.scenario, connections=ConnectionPolicy())
        service_s = rng.choice((0.15, 0.3, 0.6)) if calm_latency_s is None else 0.15
        login_s = rng.choice((0.05, 0.2, 0.5))
        limited = None
        self.watched = Warehouse(ROOM, rejects=False)
        if self.is_search:
            service_s, login_s = 0.15, min(login_s, 0.2)
            limited = self.watched = Warehouse(rng.randint(3, 7), rejects=rng.random() < 0.4)
        self.service_s = service_s
        self.disturbances: list[tuple[float, float]] = []
        self.target = Target(
            lambda: service_s * rng.uniform(0.7, 1.3), lambda: login_s * rng.uniform(0.5, 1.5), limited
        )
        self._latency_s = rng.choice((0.0, 0.0, 0.02, 0.1, 0.3)) if calm_latency_s is None else calm_latency_s
        self._is_calm = calm_latency_s is not None
        self.trouble = 0.0
        self.trouble_until_s = 0.0
        self.away_until_s = 0.0
        self.log_refused_until_s = 0.0
        self.outages: list[tuple[float, float]] = []
        self.calm_s = 0.0  # no fault is injected after that
        self.workers: list[WorkerProcess] = []
        self.orchestrators: list[OrchestratorProcess] = []

    # --- calls of processes -------------------------------------------------------------------------------------------

    def latency_s(self) -> float:
        return self._latency_s * self.rng.uniform(0.5, 1.5)

    def outcome(self, *, changes: bool) -> RequestOutcome:
        if self.scheduler.now_s >= self.trouble_until_s or self.rng.random() >= self.trouble:
            return RequestOutcome.ANSWERED
        outcome = (
            self.rng.choice((RequestOutcome.AWAY, RequestOutcome.LOST, RequestOutcome.LATE, RequestOutcome.SLOW))
            if changes
            else RequestOutcome.AWAY
        )
        self.seen[outcome.name] += 1
        return outcome

    def later(self, outcome: RequestOutcome, happens: Callable[[], None]) -> None:
        at_s = self.scheduler.now_s + self.rng.uniform(0.0, EXECUTES_S if outcome is RequestOutcome.SLOW else HELD_UP_S)
        self.calm_s = max(self.calm_s, at_s)
        self.scheduler.at(at_s, happens)

    def start_worker(self, order: WorkerOrder) -> WorkerProcess:
        process = WorkerProcess(self, order, pid=100 + len(self.workers))
        self.workers.append(process)
        process.begin(self.rng.uniform(0.1, 1.0))
        return process

    def seen_by(self, snapshot: RunSnapshot) -> None:
        """After a poll of a leader: a worker that it declared lost was silent while the leader could have seen its
        heartbeats."""
        now_s, timing = self.scheduler.now_s, self.scenario.timing
        self.statements.append(TICK_ENDS)
        for view in snapshot.workers:
            by_silence = view.end is None and view.status not in (WorkerStatus.DEAD, WorkerStatus.COMPLETED, None)
            if view.health is WorkerHealth.DEAD and by_silence and view.row is not None:
                beaten_s = now_s - view.row.age_ms / 1_000
                away_s = sum(max(0.0, min(to_s, now_s) - max(from_s, beaten_s)) for from_s, to_s in self.outages)
                if now_s - beaten_s - away_s < timing.dead_s - 2 * timing.tick_s:
                    raise Violation(Rule.OUTAGE, f"{view.worker_id} was taken for dead after {now_s - beaten_s:.0f} s")

    def process_ended(self, process: Process) -> None:
        self._look()

    def note(self, what: str, *facts: str) -> None:
        self.seen[what] += 1
        if self._trace is not None:
            self._trace(f"{self.scheduler.now_s:8.3f} {what} {' '.join(facts)}")

    # --- until the end ------------------------------------------------------------------------------------------------

    def run(self) -> History:
        random.seed(self.seed)
        Violation.first = None
        with self._simulated():
            first = OrchestratorProcess(self, "orchestrator-0", begun=False)
            self.orchestrators.append(first)
            first.begin()
            for number in range(1, 1 if self.mutation is Mutation.RECOVERY else 4 if self.contested else 2):
                self.orchestrators.append(Recovery(self, f"orchestrator-{number}", begun=True))
                self.orchestrators[-1].begin(RECOVER_S * self.rng.uniform(1.0, 2.0))
            if not self._is_calm:
                plan_faults(self)
            self._check()
            self.scheduler.run()
        if Violation.first is not None:
            raise Violation.first
        history = self._judged(self._history())
        if untold := unreported_log(self, history.summary):
            raise Violation(Rule.LOG, untold)
        return history

    def may_lead(self, process: OrchestratorProcess) -> bool:
        """An orchestrator is about to continue the run; one at a time, unless it is contested."""
        others = [one for one in self.orchestrators if one is not process and not isinstance(one, Recovery)]
        if not self.contested and not all(one.gone for one in others):
            return False
        self.note("takes over", process.name)
        return True

    def recovered(self, run: RecoveredRun) -> None:
        """The run was ended: none of its workers was visibly alive."""
        self.note("recovered", run.status)
        for worker_id, beat in self.tables.beats.items():
            silent_s = self.tables.leases[-1].claimed_s - self.tables.beaten_s[worker_id]  # below 0: it came back later
            if not WorkerStatus(beat[STATUS]).is_terminal and 0 <= silent_s < self.scenario.timing.dead_s:
                raise Violation(Rule.COLLEAGUE, f"{worker_id} was heard {silent_s:.0f} s before")

    def _check(self) -> None:
        self._look()
        self.scheduler.at(self.scheduler.now_s + CHECK_S, self._check)

    def _look(self) -> None:
        """Whether the history is complete."""
        if self.scheduler.now_s > max(self.calm_s, 60.0) + 900.0:
            there = [process.name for process in (*self.workers, *self.orchestrators) if not process.gone]
            raise Violation(Rule.END, f"{self.tables.status}/{self.tables.phase}, and {there} are there")
        leading = [one for one in self.orchestrators if one.is_leading]
        if not all(process.gone for process in (*self.workers, *leading)):
            return
        if self.tables.status.is_terminal or not self.tables.created:
            self.scheduler.stopped = True

    def _judged(self, history: History) -> History:
        """The verdict is one that the truth allows."""
        if history.summary.get("aborted"):  # the plan ended there; its load is judged in other tests
            if not self.seen["stall"] or history.valid != (history.summary["verdict"] == RunVerdict.FAILED):
                raise Violation(Rule.ABORT, f"{history.summary['verdict']}: {history.summary['exit_reason']}")
            return history
        least, most = history.least.lowest(), history.most.lowest()
        if history.valid and (most < -BAND or history.forbids):
            raise Violation(Rule.SHORT, f"{most:.4f} above the limit, {history.forbids}, and it is VALID")
        found = history.summary.get("find_max") or {}
        if found.get("result") == "TRUE_MAX" and most < -BAND:
            raise Violation(Rule.SHORT, f"{most:.4f} above the limit, and it is TRUE_MAX")
        if self.is_search and (wrong := wrong_answer(self, found, valid=history.valid)):
            raise Violation(Rule.FOUND, wrong)
        if not history.valid and least > BAND and not history.forbids and not history.leaves_open:
            reasons = (history.summary.get("validity") or {}).get("reasons")
            raise Violation(Rule.WHOLE, f"{least:.4f} above the limit, and it is {history.status}: {reasons}")
        return history

    def _history(self) -> History:
        self._check_end()
        row = self.tables.run_result()
        summary = json.loads(row[17]) if row is not None else {}
        zero_s = plan_zero_s(self.tables.events)
        forbids, leaves_open = other_reasons(self, zero_s)
        status = self.tables.status if self.tables.created else None
        if self.is_search:
            found = summary.get("find_max") or {}
            least = most = truth_of_search(self, found)
            forbids, left = other_search_reasons(self, found)
            leaves_open += left
        valid = status is RunStatus.COMPLETED and bool(summary["validity"]["valid"])
        shifts_s, wrong = misplaced(self, zero_s, valid=valid)
        if wrong is not None:
            raise Violation(Rule.MOMENTS, wrong)
        if not self.is_search:
            least, most = truth_of(self.scenario, self.target, zero_s, shifts_s)
        return History(
            status=status,
            valid=valid,
            least=least,
            most=most,
            forbids=tuple(forbids),
            leaves_open=tuple(leaves_open),
            summary=summary,
            terms=len(self.tables.leases),
            ended_s=self.scheduler.now_s,
            seen=self.seen,
        )

    def _check_end(self) -> None:
        tables, first_s = self.tables, self.target.first_sent_s
        said_s = [event.created_s for event in tables.events if event.kind == EventType.START]
        said_s += [] if tables.started_s is None else [tables.started_s]
        began_s = min(said_s, default=None)
        if first_s is not None and (began_s is None or first_s < began_s):
            raise Violation(Rule.LOAD, f"a statement was sent at {first_s:.3f} s")
        stopping_s = tables.stopping_s or 0.0
        lost = [one.name for one in self.workers if one.code and one.ended_s is not None and one.ended_s < stopping_s]
        is_replaced = len(self.workers) > (self.scenario.load.workers or 1)
        must_fail = self.scenario.on_worker_loss is OnWorkerLoss.FAIL and not is_replaced
        if lost and must_fail and tables.status is RunStatus.COMPLETED:
            raise Violation(Rule.LOSS, ", ".join(lost))

    def _thaw(self, text: str, environ: Mapping[str, str]) -> Scenario:
        self._thawed = self._thawed or thaw(text, environ)
        return self._thawed

    @contextmanager
    def _simulated(self) -> Iterator[None]:
        def now_ns() -> int:
            process = here().current.owner
            assert isinstance(process, Process)
            return process.clock.monotonic_ns()

        def identity(*arguments: Any) -> WorkerIdentity:
            process = here().current.owner
            assert isinstance(process, WorkerProcess)
            return replace(identity_of(*arguments), pid=process.pid)

        def died(_: worker.Worker, error: ThreadDied) -> None:
            if not isinstance(error.__cause__, Killed):
                self.scheduler.failure = self.scheduler.failure or error.__cause__

        with simulated(), ExitStack() as stack:
            for module, name, value in (
                (client, "monotonic_ns", now_ns),
                (client, "monotonic", lambda: now_ns() / 1e9),
                (client, "ThreadPoolExecutor", Executor),
                (sessions, "connect", self.target.connect),
                (warehouse, "connect", self.watched.connect),
                (account_history, "connect", self.watched.connect),
                (startup, "gc", Mock()),
                (worker.Worker, "_died", died),  # an unexpected error in one of its threads ends the simulation
                (worker, "SelfMonitor", SimulatedMonitor),
                (worker, "HARVEST_S", 2.0),  # paces: half as many steps, and the same history otherwise
                (worker, "LOOK_S", 0.2),
                (ramp_controller, "REAP_S", 1.0),
                (collector, "SECONDS_PER_HEARTBEAT", 1),
                (client, "IDLE_S", 1.0),
                (client, "EXHAUSTED_S", 0.1),
                (worker_health, "read_live", lru_cache(64)(read_live)),  # every heartbeat is read more than once
                (worker, "thaw", self._thaw),  # all workers have the same scenario
                (worker, "identity_of", identity),
                *mutation_patches(self.mutation),
            ):
                stack.enter_context(patch.object(module, name, value))
            yield


class Executor:
    """A task for each client."""

    def __init__(self, *_: Any, **__: Any) -> None:
        """As many as are wanted."""

    def submit(self, work: Callable[[], None]) -> None:
        scheduler = here()
        assert scheduler.current.owner is not None
        scheduler.spawn(scheduler.current.owner, work, "client")
