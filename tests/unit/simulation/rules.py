"""The rules that every history must satisfy, and the mutations of the product that these rules must detect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from loadgen.clock import ServerTime, _server_ns
from loadgen.metrics.connections import ConnectionMeter
from loadgen.rules import validity
from loadgen.rules.validity import Key, Portion, delivered_connections
from loadgen.scenario.model import OnWorkerLoss
from loadgen.worker.collector import MetricsCollector
from orchestrator import guardrails, leader, run_result
from orchestrator.lifecycle import LifecycleState, RunPolicy
from orchestrator.warehouse import WarehousePoller
from orchestrator.worker_health import LivenessTracker


class Rule(StrEnum):
    """A rule that holds at every step."""

    STEPS = "a run takes only the steps that it may take, and ends once"
    TERMS = "there is one term at a time, and one that is over does not come back"
    FENCE = "nothing of a term is written once its successor has begun"
    NUMBERS = "events have numbers without gaps, and each is there once"
    RESULT = "the result of a run is there once, as far as readers see, and is what the run says"
    ONCE = "a leader that knows it was heard does not repeat itself"
    LOAD = "load begins after START, and not after the end of the run"
    OUTAGE = "an outage of the control plane kills no worker"
    LOSS = "a run that lost a worker before it began to stop is not completed"
    COLLEAGUE = "a run is recovered only when none of its workers is alive"
    END = "every run and every worker ends in time"
    LOG = "what the query log of a worker has is stored, or told as not stored"
    SHORT = "a run is not VALID when less load was delivered than its plan asks for"
    WHOLE = "a run is VALID when its load was delivered, and nothing else is wrong"
    ABORT = "a threshold ends a run only when the server missed it, and such a run has failed unless it is INVALID"
    MOMENTS = (
        "windows lie as near to the moments of the plan as their worker says, and are far from them in no VALID run"
    )
    FOUND = "a search names no number of connections that the warehouse cannot hold, and TRUE_MAX is the limit"


class Mutation(StrEnum):
    """A defect that is put into the product on purpose."""

    FENCING = "writes are taken from terms that are over"
    MARGIN = "a successor does not wait for statements under way"
    RENEWAL = "a term that is over can be renewed"
    NUMBERS = "neither the number nor the id of an event is a key"
    FORGETTING = "a leader forgets what was carried out"
    LIVENESS = "time without an observation counts as silence"
    LOSS = "a leader misses that a worker was lost"
    RECOVERY = "no orphan is ended"
    CONNECTIONS = "connections that are missing count as open"
    PAUSES = "a pause of a worker's process is not noticed"
    OVERLOAD = "what waits for a missing connection counts as overload of the server"
    LOGINS = "time in which connections log in again has no effect on the verdict"
    ABORT = "a threshold ends a run also when the client may be why it was missed"
    WAITS = "clients that pause after failures count as open"
    PENDING = "a login that has not ended counts as successful, also if it is refused later"
    LIMITS = "load that is missing has no effect on the verdict"
    PLAN = "what a worker did not live to measure was not planned"
    STRICT = "no run has load enough"
    BUSY = "a client that is short of CPU is not noticed"
    QUEUE = "a queue in front of the warehouse is not noticed"
    LOG = "a worker does not tell what of its query log is not stored"
    ARRIVAL = "the server's time is taken for that of the moment at which its answer comes"
    MOMENTS = "windows may be anywhere around the moments of the plan"
    WARMUP = "a warm-up may be of any length"
    WARMTH = "pauses and missing connections shorten no warm-up"
    STANDSTILL = "the clock of a worker stands still while its machine is suspended"


def mutation_patches(mutation: Mutation | None) -> list[tuple[Any, str, Any]]:
    """The patches of the product for a mutation: (where, name, replacement). The tables implement theirs."""
    return _PATCHES.get(mutation, [])


def _forgets(state: LifecycleState, _: object) -> LifecycleState:
    return state


def _never_quiet(*, longest_gap_s: float) -> LivenessTracker:
    return LivenessTracker(longest_gap_s=1e9 * longest_gap_s)


def _careless(**rules: Any) -> RunPolicy:
    return replace(RunPolicy(**rules), on_worker_loss=OnWorkerLoss.CONTINUE)


def _all_open(meter: ConnectionMeter, from_ns: int, to_ns: int) -> None:
    account = None if meter._window is None else meter._accounts[meter._window]
    if account is not None:
        end_ns = to_ns if account.closes_ns is None else min(to_ns, account.closes_ns)
        for planned, length_ns in meter._line.levels(from_ns, end_ns):
            account.planned_ns += planned * length_ns
            account.open_ns += planned * length_ns


def _always_complete(meter: ConnectionMeter, _: int) -> None:
    meter.complete_since_ns = 0


def _on_arrival(known: ServerTime, server_time: datetime, _: int, answered_ns: int) -> None:
    known._ahead = (_server_ns(server_time) - answered_ns,) * 2


def _own_plan(windows: Any, planned: Mapping[Key, int]) -> Any:
    own = {
        (worker_id, one.step_id): one.connections.planned_ms for worker_id, known in windows.items() for one in known
    }
    return delivered_connections(windows, {key: own.get(key, 0) for key in planned})


_PATCHES: dict[Mutation | None, list[tuple[Any, str, Any]]] = {
    Mutation.FORGETTING: [(leader, "after_action", _forgets)],
    Mutation.LIVENESS: [(leader, "LivenessTracker", _never_quiet)],
    Mutation.LOSS: [(leader, "RunPolicy", _careless)],
    Mutation.CONNECTIONS: [(ConnectionMeter, "_count", _all_open)],
    Mutation.OVERLOAD: [
        (ConnectionMeter, "_note_complete", _always_complete),
        (validity, "_unopened", lambda _: []),
    ],
    Mutation.PENDING: [(ConnectionMeter, "is_decided", lambda *_: True)],
    Mutation.WAITS: [(ConnectionMeter, "paused", lambda *_: None)],
    Mutation.ABORT: [(guardrails, "client_part", lambda *_, **__: None)],
    Mutation.LOGINS: [(Portion, "logs_in_more_than", lambda *_: False)],
    Mutation.LIMITS: [(Portion, "is_short", lambda *_: False)],
    Mutation.PLAN: [(run_result, "delivered_connections", _own_plan)],
    Mutation.QUEUE: [(WarehousePoller, "queue_seen", lambda _: False)],
    Mutation.LOG: [(MetricsCollector, "report_unstored", lambda *_: None)],
    Mutation.ARRIVAL: [(ServerTime, "note", _on_arrival)],
    Mutation.MOMENTS: [(validity, "UNCERTAIN_MS", 10**9)],
    Mutation.WARMUP: [(validity, "WARMUP_MIN_PERCENT", 0)],
    Mutation.WARMTH: [(validity, "_warmed_up_s", lambda window: window.seconds)],
    Mutation.STRICT: [(Portion, "is_short", lambda *_: True)],
}


class Violation(AssertionError):
    """The first violation counts, also where the product catches it."""

    first: Violation | None = None

    def __init__(self, rule: Rule, what: str) -> None:
        super().__init__(f"{rule}: {what}")
        self.rule = rule
        Violation.first = Violation.first or self
