"""The delivered load by the record of the target, and the verdicts that it allows.

The plan is the scenario's, at the times that the leader announced by the server's clock. Closed loop: of the
connections that the plan requires at a time, those that execute a statement or log in again. Open loop: arrivals that
reached the target, or waited in vain while every connection executed; and connections that are open or log in again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from loadgen.metrics.window import GAP_NS, PAUSE_NS
from loadgen.model.event import Start, decode_command
from loadgen.model.run import Phase, RunStatus, WorkerStatus, worker_share
from loadgen.rules.client_health import GAP_INVALID_PERCENT, PAUSED_INVALID_PERCENT
from loadgen.rules.plan import PlannedWindow, RunPlan, plan_run, planned_arrivals
from loadgen.rules.validity import (
    LOGIN_INVALID_PERCENT,
    RUN_MIN_PERCENT,
    SAMPLES_MIN,
    UNCERTAIN_MS,
    UNCERTAIN_PERCENT,
    WARMUP_LATE_S,
    WARMUP_MIN_PERCENT,
    WORKER_MIN_PERCENT,
)
from loadgen.scenario.model import LoadMode, Scenario
from loadgen.scenario.settings import QueryLogMode
from loadgen.units import NS_PER_S
from loadgen.worker.flush import EXECUTION, contents
from loadgen.workload.arrivals import window_schedules
from loadgen.workload.ramp import Ramp, follow, initial_connections
from tests.unit.simulation.standard_tables import ZERO
from tests.unit.simulation.tables import STATUS, EventRow

if TYPE_CHECKING:
    from tests.unit.simulation.target import Record, Target
    from tests.unit.simulation.world import World

BAND = 0.005  # around a limit, where either verdict is accepted
LOGIN_BAND = 0.03  # around the limit of logging in: windows shift by the latency of a response, and logins are short
IDLE_BAND_S = 0.5  # between two statements of a busy connection, and the latency of a response
HARVEST_S = 1.0  # a worker notes a pause when it collects samples next, which may be in the next window
SILENCE_MARGIN_S = 4.0  # leaders poll once a second, and heartbeats come every two
SURPLUS_S = 0.5  # around its level a client may begin a statement: how exactly workers know the time of the plan
TOLD_S = 0.002  # the precision of reported times

Part = tuple[str, int | None]  # worker, stage
Stair = tuple[float, float, int]  # since, for how long, how many connections are wanted
Spans = tuple[np.ndarray, np.ndarray]  # begins and ends, in seconds


@dataclass(frozen=True, slots=True)
class Truth:
    """For every worker and window: the planned and the delivered load."""

    planned: Mapping[Part, float]
    delivered: Mapping[Part, float]

    def lowest(self) -> float:
        """The largest missing fraction of run, windows and workers, relative to its limit; below 0: too little was
        delivered."""
        workers, windows = {part[0] for part in self.planned}, {part[1] for part in self.planned}
        groups = [(list(self.planned), RUN_MIN_PERCENT)]
        groups += [([part for part in self.planned if part[1] == step], RUN_MIN_PERCENT) for step in windows]
        groups += [([part for part in self.planned if part[0] == worker], WORKER_MIN_PERCENT) for worker in workers]
        return min(self._fraction(parts) - percent / 100 for parts, percent in groups)

    def _fraction(self, parts: Sequence[Part]) -> float:
        planned = sum(self.planned[part] for part in parts)
        return sum(self.delivered[part] for part in parts) / planned if planned else 1.0


def truth_of(
    scenario: Scenario, target: Target, zero_s: float | None, shifts_s: Mapping[str, float]
) -> tuple[Truth, Truth]:
    """The lower and upper bound of the delivered load. `zero_s`: when the plan began, by the server's clock; None:
    never.

    All windows of a worker deviate from the plan by the same error (`shifts_s`), which shortens none. Within the
    tolerance, the upper bound is counted at the times of the worker's windows.
    """
    found = _truth(scenario, target, zero_s, {})
    if zero_s is None or found.lowest() >= BAND:
        return found, found
    most_s = tolerated_s(scenario)
    within = {worker_id: min(max(shift_s, -most_s), most_s) for worker_id, shift_s in shifts_s.items()}
    most = _truth(scenario, target, zero_s, within)
    if scenario.load.mode is LoadMode.RATE:
        most = _with_overload(most, scenario, target, zero_s)
    return found, most


def tolerated_s(scenario: Scenario) -> float:
    """The tolerated deviation of the windows of a VALID run from the plan."""
    lengths_s = [window.duration_s for window in plan_run(scenario.load).windows]
    return max(UNCERTAIN_MS / 1_000, UNCERTAIN_PERCENT / 100 * min(lengths_s, default=0.0))


def misplaced(world: World, zero_s: float | None, *, valid: bool) -> tuple[dict[str, float], str | None]:
    """The deviation of each worker's windows from the plan, and wrong statements of the worker about it."""
    shifts_s: dict[str, float] = {}
    if zero_s is None or world.is_search:
        return shifts_s, None
    for process in world.workers:
        if process.measured is None:
            continue
        begun_s, told_s = process.measured
        shift_s = begun_s - zero_s - plan_run(world.scenario.load).measures_s
        shifts_s[process.worker_id] = shift_s
        if abs(shift_s) > told_s + TOLD_S:
            return shifts_s, f"{process.name} was off by {shift_s:.3f} s, and told of {told_s:.3f} s"
        if valid and abs(shift_s) > tolerated_s(world.scenario) + TOLD_S:
            return shifts_s, f"{process.name} was off by {shift_s:.3f} s, and it is VALID"
    return shifts_s, None


def _truth(scenario: Scenario, target: Target, zero_s: float | None, shifts: Mapping[str, float]) -> Truth:
    load, workers = scenario.load, scenario.load.workers or 1
    plan = plan_run(load)
    planned: dict[Part, float] = {}
    delivered: dict[Part, float] = {}
    for number in range(workers):
        worker_id = f"worker-{number}"
        records = slots(target, worker_id)
        spans = [_spans(record) for record in records]
        due = (
            planned_arrivals(load, plan, number, workers, seed=scenario.workload.seed)
            if load.mode is LoadMode.RATE
            else {}
        )
        for window in plan.windows:
            part = (worker_id, window.step_id)
            if load.mode is LoadMode.RATE:
                planned[part], delivered[part] = due[window.step_id], _sent(records, window)
            else:
                stairs = _stairs(scenario, plan, window, number)
                planned[part] = sum(length_s * wanted for _, length_s, wanted in stairs)
                begun_s = None if zero_s is None else zero_s + shifts.get(worker_id, 0.0)
                delivered[part] = 0.0 if begun_s is None else _there_s(stairs, spans, begun_s)
    return Truth(planned, delivered)


def plan_zero_s(events: Sequence[EventRow]) -> float | None:
    """When the plan began: START contains the offset from the insertion of its row."""
    for row in events:
        command, _ = decode_command(row.kind, row.data)
        if isinstance(command, Start):
            return row.created_s + (command.lead_ms or 0) / 1000
    return None


def slots(target: Target, worker_id: str) -> list[Record]:
    """The records of a worker, slot by slot."""
    return [record for place, record in sorted(target.records.items()) if place[0] == worker_id and place[1] >= 0]


def _sent(records: Sequence[Record], window: PlannedWindow) -> int:
    return sum(record.sent[Phase.MEASUREMENT.value, window.step_id] for record in records)


def _with_overload(found: Truth, scenario: Scenario, target: Target, zero_s: float) -> Truth:
    """Including the arrivals that may have waited for a busy connection until they were given up."""
    load, workers, delivered = scenario.load, scenario.load.workers or 1, dict(found.delivered)
    for number in range(workers):
        worker_id = f"worker-{number}"
        spans = [working(record) for record in slots(target, worker_id)]
        schedules = window_schedules(load, worker=number, workers=workers, seed=scenario.workload.seed)
        for window in plan_run(load).windows if spans else ():
            schedule, part = schedules[window.step_id or 1], (worker_id, window.step_id)
            from_s, end_s = zero_s + window.starts_s, zero_s + window.starts_s + window.duration_s
            dues_s = (from_s + schedule.due_s(one) for one in range(schedule.first, schedule.end))
            waits = [(due_s, min(end_s, due_s + (load.max_lag_s or window.duration_s))) for due_s in dues_s]
            most = sum(min(overlap_s(own, wait) for own in spans) > wait[1] - wait[0] - IDLE_BAND_S for wait in waits)
            delivered[part] = min(found.planned[part], delivered[part] + most)
    return Truth(found.planned, delivered)


def _missing_s(world: World, span: tuple[float, float], wanted_s: float) -> float:
    """Connection-seconds of an open loop in which a connection was neither open nor logging in again."""
    records = [record for place, record in world.target.records.items() if place[1] >= 0]
    there = [[*record.sessions.values(), *record.logins[1:]] for record in records]
    return wanted_s - sum(overlap_s(spans, span) for spans in there)


def _stairs(scenario: Scenario, plan: RunPlan, window: PlannedWindow, number: int) -> list[Stair]:
    """The planned load of a worker in a window."""
    workers = scenario.load.workers or 1
    level = worker_share(initial_connections(scenario.load), number, workers)
    targets = sorted(plan.targets, key=lambda target: target.at_s)
    steps = ((_ns(one.at_s), worker_share(one.connections, number, workers), one.ramp_s) for one in targets)
    lines = follow(Ramp(origin=level, target=level), steps)
    return _staircase(lines, window.starts_s, window.starts_s + window.duration_s)


def surplus(world: World, zero_s: float) -> list[tuple[str, int, float]]:
    """Statements of slots that the plan did not want when they began: worker, slot, and time of the plan."""
    plan, found = plan_run(world.scenario.load), []
    for number in range(world.scenario.load.workers or 1):
        worker_id = f"worker-{number}"
        stairs = [stair for window in plan.windows for stair in _stairs(world.scenario, plan, window, number)]
        for slot, record in enumerate(slots(world.target, worker_id)):
            for begun_s in (begin_s - zero_s for begin_s, _ in record.executions):
                near = [n for at_s, long_s, n in stairs if at_s - SURPLUS_S <= begun_s <= at_s + long_s + SURPLUS_S]
                if near and slot >= max(near):
                    found.append((worker_id, slot, begun_s))
    return found


def _there_s(stairs: Sequence[Stair], spans: Sequence[Spans], zero_s: float) -> float:
    """The delivered part of the planned connection-seconds."""
    there_s = 0.0
    for at_s, length_s, wanted in stairs:
        from_s, to_s = zero_s + at_s, zero_s + at_s + length_s
        for begin_s, end_s in spans[:wanted]:
            both_s = np.minimum(end_s, to_s) - np.maximum(begin_s, from_s)
            there_s += float(both_s[both_s > 0.0].sum())
    return there_s


def _spans(record: Record) -> Spans:
    pairs = np.array(working(record), dtype=float).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def _staircase(lines: Sequence[Ramp], from_s: float, to_s: float) -> list[Stair]:
    found, ends = [], [*(line.began_ns for line in lines[1:]), _ns(to_s)]
    for place, (line, end_ns) in enumerate(zip(lines, ends, strict=True)):
        at_ns = max(line.began_ns if place else 0, _ns(from_s))
        for wanted, length_ns in line.levels(at_ns, min(end_ns, _ns(to_s))):
            found.append((at_ns / NS_PER_S, length_ns / NS_PER_S, wanted))
            at_ns += length_ns
    return found


def working(record: Record) -> list[tuple[float, float]]:
    """Executing, or logging in again."""
    return [*record.executions, *record.logins[1:]]


def overlap_s(spans: Sequence[tuple[float, float]], within: tuple[float, float]) -> float:
    return sum(max(0.0, min(end_s, within[1]) - max(begin_s, within[0])) for begin_s, end_s in spans)


def _ns(seconds: float) -> int:
    return round(seconds * NS_PER_S)


_POLLED_AT = 2  # the place of TIMESTAMP in a row of WAREHOUSE_POLL_SNAPSHOTS

# --- accepted verdicts -----------------------------------------------------------------------------------------------


def other_reasons(world: World, zero_s: float | None) -> tuple[list[str], list[str]]:
    """Reasons other than load that forbid VALID, and reasons that allow either verdict."""
    forbids, leaves_open = [], []
    stored = world.tables.completed_workers()
    records = world.target.records.values()
    if sum(record.tried for record in records) < SAMPLES_MIN:
        forbids.append("too few samples")
    elif sum(record.answered for record in records) < SAMPLES_MIN:
        leaves_open.append("few statements were answered")
    for worker in world.workers:
        if worker.code != 0:
            leaves_open.append(f"{worker.name} ended with {worker.code}")
        beat = world.tables.beats.get(worker.worker_id)
        if (beat is None or beat[STATUS] != WorkerStatus.COMPLETED) and worker.worker_id not in stored:
            leaves_open.append(f"neither the last beat nor the result of {worker.name} arrived")
        if world.tables.longest_silence_s[worker.worker_id] > world.scenario.timing.dead_s - SILENCE_MARGIN_S:
            leaves_open.append(f"{worker.name} was silent for as long as a dead worker is")
    if world.tables.status is RunStatus.CANCELLED:
        leaves_open.append("it was cancelled")
    if world.seen["recovered"]:
        leaves_open.append("its orchestrator was lost")
    if len(world.workers) > (world.scenario.load.workers or 1):
        leaves_open.append("a worker was replaced")
    if zero_s is not None:
        for told, late_s in _short_warmups(world, zero_s):
            (forbids if late_s > BAND else leaves_open).append(told)
    shifts_s, _ = misplaced(world, zero_s, valid=False)
    told_s = [worker.measured[1] for worker in world.workers if worker.measured is not None]
    if max(told_s, default=0.0) > tolerated_s(world.scenario) - TOLD_S:
        leaves_open.append(f"a worker knew the moments of the plan within {max(told_s):.3f} s only")
    windows = [] if zero_s is None else plan_run(world.scenario.load).windows
    if zero_s is not None and windows:
        end_s = zero_s + windows[-1].starts_s + windows[-1].duration_s
        leaves_open += polls_missing(world, (zero_s + windows[0].starts_s, end_s))
    for window in windows:
        assert zero_s is not None
        span = (zero_s + window.starts_s, zero_s + window.starts_s + window.duration_s)
        planned_s, again_s = _login_time_s(world, window, zero_s, shifts_s)
        if world.scenario.load.mode is LoadMode.RATE:
            missing_s = _missing_s(world, span, planned_s)
            if missing_s > 0.001 or world.seen["unanswered"]:  # clients pause after that
                leaves_open.append(f"{missing_s:.2f} of {planned_s:.0f} connection-seconds were missing")
            if missing_s > (1 - RUN_MIN_PERCENT / 100 + LOGIN_BAND) * planned_s:
                forbids.append(f"{missing_s:.2f} of {planned_s:.0f} connection-seconds were missing")
        if again_s > (LOGIN_INVALID_PERCENT / 100 - LOGIN_BAND) * planned_s:
            leaves_open.append(f"connections were logging in for {again_s:.1f} of {planned_s:.1f} s")
        if again_s > (LOGIN_INVALID_PERCENT / 100 + LOGIN_BAND) * planned_s:
            forbids.append(f"connections were logging in for {again_s:.1f} of {planned_s:.1f} s")
        for worker in world.workers:
            gap_s = paused_s(worker.pauses, span)
            if gap_s > (GAP_INVALID_PERCENT / 100 + BAND) * window.duration_s:
                forbids.append(f"{worker.name} was paused for {gap_s:.2f} s")
            every_s = paused_s(worker.pauses, span, shortest_ns=PAUSE_NS * 3 // 2)
            if every_s > (PAUSED_INVALID_PERCENT / 100 + BAND) * window.duration_s:
                forbids.append(f"{worker.name} was paused again and again, for {every_s:.2f} s")
            if worker.pauses and paused_s(worker.pauses, (span[0] - HARVEST_S, span[1]), shortest_ns=0) > 0:
                leaves_open.append(f"{worker.name} was paused")
    return forbids, leaves_open


def _login_time_s(
    world: World, window: PlannedWindow, zero_s: float, shifts_s: Mapping[str, float]
) -> tuple[float, float]:
    """The planned connection-seconds of a window, and those in which connections were logging in again."""
    planned_s = again_s = 0.0
    for number in range(world.scenario.load.workers or 1):
        worker_id = f"worker-{number}"
        begun_s, records = zero_s + shifts_s.get(worker_id, 0.0), slots(world.target, worker_id)
        for at_s, length_s, wanted in _stairs(world.scenario, plan_run(world.scenario.load), window, number):
            stair = (begun_s + at_s, begun_s + at_s + length_s)
            planned_s += length_s * wanted
            again_s += sum(overlap_s(record.logins[1:], stair) for record in records[:wanted])
    return planned_s, again_s


def _short_warmups(world: World, zero_s: float) -> Iterator[tuple[str, float]]:
    """Workers whose warm-up is too short (or nearly) by their own estimate, and by how much."""
    warmup_s = plan_run(world.scenario.load).measures_s
    most_s = max((100 - WARMUP_MIN_PERCENT) * warmup_s / 100, WARMUP_LATE_S)
    for worker in world.workers if warmup_s else ():
        begins_s = zero_s if worker.measured is None else worker.measured[0] - warmup_s
        joined_s = begins_s if worker.joined_s is None else worker.joined_s
        late_s, span = joined_s - begins_s, (max(begins_s, joined_s), begins_s + warmup_s)
        gaps_s, pauses_s = (paused_s(worker.pauses, span, shortest) for shortest in (GAP_NS * 11 // 10, 0))
        unopened_s = _unopened_share(world, worker.worker_id, span) * (span[1] - span[0])
        least_s, highest_s = late_s + max(gaps_s, unopened_s), late_s + pauses_s + unopened_s
        if highest_s > most_s - BAND * warmup_s or world.seen["unanswered"]:  # clients pause after that
            told = f"{worker.name} began to warm up {late_s:.2f} of {warmup_s:g} s late"
            yield f"{told}, and lacks {least_s:.2f} to {highest_s:.2f} s", (least_s - most_s) / warmup_s


def _unopened_share(world: World, worker_id: str, span: tuple[float, float]) -> float:
    """The share of the connections of a warm-up that were neither open nor logging in again."""
    wanted = worker_share(
        initial_connections(world.scenario.load),
        int(worker_id.removeprefix("worker-")),
        world.scenario.load.workers or 1,
    )
    there = [[*record.sessions.values(), *record.logins[1:]] for record in slots(world.target, worker_id)[:wanted]]
    planned_s = wanted * max(0.0, span[1] - span[0])
    return 1.0 - sum(overlap_s(spans, span) for spans in there) / planned_s if planned_s else 0.0


def polls_missing(world: World, span: tuple[float, float]) -> list[str]:
    """Whether a span has too few polls to know who used the warehouse. Three may be missing."""
    polled_s = [(row[_POLLED_AT] - ZERO).total_seconds() for row in world.tables.polls]
    polls = sum(span[0] <= at_s <= span[1] for at_s in polled_s)
    expected = (span[1] - span[0]) / world.scenario.timing.warehouse_poll_s
    return [f"{polls} of {expected:.0f} polls of the warehouse are stored"] if polls < expected - 2 else []


def paused_s(
    pauses: Sequence[tuple[int, int]], span: tuple[float, float], shortest_ns: int = GAP_NS * 11 // 10
) -> float:
    gaps = [(since / NS_PER_S, until / NS_PER_S) for since, until in pauses if until - since >= shortest_ns]
    return overlap_s(gaps, span)


# --- the query log ---------------------------------------------------------------------------------------------------

_WORKER = 3  # the place of WORKER_ID in a row of QUERY_EXECUTIONS


def unreported_log(world: World, summary: Mapping[str, Any]) -> str | None:
    """Rows missing in the query log that the result does not report; None if there are none."""
    is_replaced = len(world.workers) > (world.scenario.load.workers or 1)
    if world.scenario.query_log.mode is QueryLogMode.NONE or is_replaced or not summary:
        return None
    for worker in world.workers:
        beat = world.tables.beats.get(worker.worker_id)
        if worker.code != 0 or beat is None or beat[STATUS] != WorkerStatus.COMPLETED:
            continue  # undetectable
        left = sum(contents(folder).get(EXECUTION, 0) for folder in world.spool.glob(f"*/{worker.worker_id}-*"))
        stored = len({row[0] for row in world.tables.executions if row[_WORKER] == worker.worker_id})
        answered = sum(
            record.answered for place, record in world.target.records.items() if place[0] == worker.worker_id
        )
        if stored + left < answered:
            return f"{worker.name}: {answered} were answered, {stored} are stored and {left} left"
        told = (summary.get("unstored") or {}).get(worker.worker_id, {}).get(EXECUTION, 0)
        if left != told:
            return f"{worker.name}: {left} are left, and the result tells of {told}"
    return None
