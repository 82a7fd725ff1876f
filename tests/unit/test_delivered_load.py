"""Delivered load from plan to verdict, in simulated time: the real plan, events, ramp controller, meter, verdict and
connections that are lost, refused and opened again, and workers that leave. The truth is counted beside it, slot by
slot in steps of a tenth of a second."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from loadgen.metrics.connections import ConnectionFailure, ConnectionTime, ReconnectReason
from loadgen.metrics.live_metrics import read_live, write_live
from loadgen.metrics.window import WindowResult
from loadgen.model.run import Phase, WorkerStatus, worker_share
from loadgen.results.run_snapshot import WorkerHealth
from loadgen.rules.plan import RunPlan, plan_run, planned_connection_ms
from loadgen.rules.validity import (
    Delivered,
    Key,
    Portion,
    delivered_connections,
    login_warnings,
    shortfalls,
)
from loadgen.scenario.model import Load
from loadgen.scenario.model import LoadStage as Level
from loadgen.units import NS_PER_S
from loadgen.worker.arguments import WorkerArguments
from orchestrator.event_publisher import start_event
from orchestrator.run_result import MeasuredWindows, missing_load_causes, with_login_cause
from tests.unit.orchestrator_builders import live, view, window
from tests.unit.worker_builders import Pool, Stage

LEAD_S = 2.0  # connections are open before the plan begins
LOGIN_NS = NS_PER_S // 2
ZERO = datetime.fromisoformat("2026-11-15T02:00:00")
NO = ConnectionFailure(at=ZERO, code=390_144, text="JWT token is invalid.")
STEP_S = 0.1
BAND = 0.005  # around a limit, that is left out


@dataclass(frozen=True)
class Outage:
    """The connection of a slot is lost, and logging in again is refused until it works."""

    slot: int
    from_s: float
    to_s: float


@dataclass(frozen=True)
class WorkerFaults:
    """What happens to one worker."""

    outages: tuple[Outage, ...] = ()
    leaves_s: float | None = None
    joins_s: float = 0.0
    knows_plan: bool = True  # False: it joins a run in its measurement, without a plan of windows


@dataclass
class Connecting(Pool):
    """Clients whose first login begins when they are wanted."""

    stage: Stage | None = None
    opened: set[int] = field(default_factory=set)
    opening: dict[int, int] = field(default_factory=dict)  # when the first login of a slot is done
    away: set[int] = field(default_factory=set)  # slots whose logins are refused

    def __post_init__(self) -> None:
        Pool.__init__(self)

    def resize(self, wanted: int, ahead: int = 0) -> None:
        super().resize(wanted, ahead)
        assert self.stage is not None
        meter, now_ns = self.stage.connections, self.stage.clock.now_ns
        for slot in range(self.ahead):
            if slot not in self.opened | self.away:
                meter.login_began(slot, now_ns, again=False)
                self.opening[slot] = now_ns + LOGIN_NS
                self.opened.add(slot)
        for slot in [slot for slot in self.opened if slot >= self.ahead]:
            meter.gone(slot, now_ns)
            self.opened.discard(slot)
            self.opening.pop(slot, None)

    def run_to(self, second: float) -> None:
        """The meter counts a login when it has succeeded. A step is no longer than a login: none ends unseen in it."""
        stage = self.stage
        assert stage is not None
        end_ns = stage.zero_ns + round(second * NS_PER_S)
        while stage.clock.now_ns < end_ns:
            next_ns = min([end_ns, stage.clock.now_ns + LOGIN_NS, *self.opening.values()])
            stage.run_to((next_ns - stage.zero_ns) / NS_PER_S)
            for slot in [slot for slot, done_ns in self.opening.items() if done_ns <= stage.clock.now_ns]:
                stage.connections.login_succeeded(slot, self.opening.pop(slot), None)


def play(load: Load, plan: RunPlan, worker: int, workers: int, faults: WorkerFaults) -> list[WindowResult]:
    """One worker's life; the windows it has measured."""
    me = WorkerArguments(run_id="run", worker_id=f"worker-{worker}", worker_group_id=worker, worker_group_count=workers)
    stage = Stage(load, arguments=me)
    clients = Connecting(stage=stage)
    stage.pool = stage.ramp_controller._pool = clients  # type: ignore[assignment]
    stage.zero_ns += round(LEAD_S * NS_PER_S)
    first = next(iter(planned_levels(load, plan, worker, workers)))[1]
    stage.clock.advance(LEAD_S + faults.joins_s if faults.joins_s else 0.0)
    stage.ramp_controller.set_first_target(first)
    if faults.knows_plan:
        stage.say(start_event(plan, workers, 0).command, at_s=0.0)
    stage.ramp_controller.begin(plan.first_phase, load.duration_s if plan.first_phase is Phase.MEASUREMENT else None)
    assert plan.ends_s is not None
    moments = [(outage.from_s, outage.slot, False) for outage in faults.outages]
    moments += [(outage.to_s, outage.slot, True) for outage in faults.outages]
    ends_s = plan.ends_s + 1.0 if faults.leaves_s is None else min(faults.leaves_s, plan.ends_s + 1.0)
    for at_s, slot, back in sorted(moments):
        if at_s < ends_s:
            clients.run_to(at_s)
            _strike(stage, slot, back=back)
    clients.run_to(ends_s)
    stage.ramp_controller.finish()
    return [window for window in stage.results() if window.phase is Phase.MEASUREMENT]


def _strike(stage: Stage, slot: int, *, back: bool) -> None:
    pool, meter, now_ns = stage.pool, stage.connections, stage.clock.now_ns
    assert isinstance(pool, Connecting)
    if back:
        pool.away.discard(slot)
    else:
        pool.away.add(slot)
        pool.opened.discard(slot)
        pool.opening.pop(slot, None)
    if slot >= pool.ahead:
        return
    meter.login_began(slot, now_ns, again=True)
    if back:
        meter.login_succeeded(slot, now_ns, ReconnectReason.SESSION_LOST)
        pool.opened.add(slot)
    else:
        meter.login_refused(slot, now_ns, NO)


def planned_levels(load: Load, plan: RunPlan, worker: int, workers: int) -> list[tuple[float, int]]:
    """(second, connections) of a worker, in steps of the truth; written down apart from the product's own line."""
    level = worker_share(load.min_connections if load.ramp_s else load.levels[0].connections or 0, worker, workers)
    lines = [(0.0, 0.0, level, level)]
    for target in plan.targets:
        goal = worker_share(target.connections, worker, workers)
        lines.append((target.at_s, target.ramp_s, lines[-1][3], goal))
    assert plan.ends_s is not None
    found = []
    for tick in range(round((plan.ends_s + 1) / STEP_S)):
        at_s = (tick + 0.5) * STEP_S
        began_s, ramp_s, origin, goal = [line for line in lines if line[0] <= at_s][-1]
        moved = 1.0 if not ramp_s else min(1.0, (at_s - began_s) / ramp_s)
        found.append((at_s, int(origin + (goal - origin) * moved + 1e-9)))
    return found


def truth(load: Load, plan: RunPlan, all_faults: list[WorkerFaults]) -> dict[tuple[str, int | None], tuple[int, int]]:
    """(planned, delivered) in steps, by worker and window."""
    found: dict[tuple[str, int | None], tuple[int, int]] = {}
    for number, faults in enumerate(all_faults):
        for at_s, planned in planned_levels(load, plan, number, len(all_faults)):
            inside = [one for one in plan.windows if one.starts_s <= at_s < one.starts_s + one.duration_s]
            if not inside:
                continue
            away = {one.slot for one in faults.outages if one.from_s <= at_s < one.to_s}
            there = planned - len([slot for slot in away if slot < planned])
            there = 0 if faults.leaves_s is not None and at_s >= faults.leaves_s else there
            key = (f"worker-{number}", inside[0].step_id)
            before = found.get(key, (0, 0))
            found[key] = before[0] + planned, before[1] + there
    return found


def judged(load: Load, plan: RunPlan, all_faults: list[WorkerFaults]) -> Delivered:
    workers = len(all_faults)
    windows = {
        f"worker-{number}": play(load, plan, number, workers, faults) for number, faults in enumerate(all_faults)
    }
    planned = {
        (f"worker-{number}", step_id): planned_ms
        for number in range(workers)
        for step_id, planned_ms in planned_connection_ms(load, plan, number, workers).items()
    }
    return Delivered(portions=delivered_connections(windows, planned))


CONSTANT = Load(connections=4, warmup_s=0.0, duration_s=6.0)
WARM = Load(connections=6, warmup_s=5.0, duration_s=10.0)
RAMPED = Load(connections=8, min_connections=2, warmup_s=2.0, duration_s=10.0, ramp_s=6.0)
STAGED = Load(
    connections=8,
    warmup_s=3.0,
    duration_s=15.0,
    stages=(
        Level(duration_s=5.0, connections=2),
        Level(duration_s=5.0, connections=8, ramp_s=2.0),
        Level(duration_s=5.0, connections=4),
    ),
)
LOADS = [CONSTANT, WARM, RAMPED, STAGED]


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("workers", [1, 3])
def test_without_faults_everything_is_delivered(load: Load, workers: int) -> None:
    """Connections of a higher level are open before it begins, and worker and orchestrator have the same plan."""
    delivered = judged(load, plan_run(load), [WorkerFaults()] * workers)

    assert shortfalls(delivered) == []
    assert delivered.run.missing <= workers * 3  # milliseconds that were rounded off
    assert delivered.run.planned > 0


def test_a_worker_that_leaves_is_named_with_what_it_left_undone() -> None:
    load = Load(connections=4, warmup_s=0.0, duration_s=60.0)

    delivered = judged(load, plan_run(load), [WorkerFaults(), WorkerFaults(leaves_s=6.0)])

    assert shortfalls(delivered) == [
        "delivered load was 55.0 % (132.0 of 240.0 connection-seconds) of the plan",
        "worker-1 delivered 10.0 % (12.0 of 120.0 connection-seconds) of its part",
    ]


def test_a_worker_that_a_signal_ended_is_named_with_the_signal() -> None:
    windows = {"worker-0": (window(seconds=60.0),), "worker-1": (window(seconds=6.2),)}
    beats = [live(), read_live(write_live(replace(live(), signal="SIGTERM")))]
    views = [
        view(WorkerHealth.DONE, WorkerStatus.COMPLETED, number=number, live=beat) for number, beat in enumerate(beats)
    ]
    plan = plan_run(Load(connections=4, warmup_s=5.0, duration_s=60.0))

    because = missing_load_causes(
        {"refused": 0, "last_refused": []}, views, MeasuredWindows(windows=windows, gaps=()), plan
    )

    assert because == "worker-1 received SIGTERM after 6 of 60 s"


@pytest.mark.parametrize("knows_plan", [True, False])
@pytest.mark.parametrize(("joins_s", "short"), [(0.2, False), (10.0, True), (30.0, True), (59.0, True)])
def test_a_worker_that_joins_late_has_not_delivered_what_was_before_it(
    joins_s: float, short: bool, knows_plan: bool
) -> None:
    """A replacement or a delayed worker that claims to have measured from the beginning."""
    load = Load(connections=4, warmup_s=0.0, duration_s=60.0)

    delivered = judged(load, plan_run(load), [WorkerFaults(), WorkerFaults(joins_s=joins_s, knows_plan=knows_plan)])

    assert bool(shortfalls(delivered)) is short
    assert delivered.workers["worker-1"].missing == pytest.approx(2_000 * joins_s if short else 0, abs=2_500)


tenths = st.integers(0, 200).map(lambda tenth: tenth / 10)
outages = st.builds(
    lambda slot, from_s, length_s: Outage(slot, from_s, from_s + length_s),
    st.integers(0, 7),
    tenths,
    st.integers(1, 60).map(lambda tenth: tenth / 10),
)
all_faults = st.builds(
    WorkerFaults,
    outages=st.lists(outages, max_size=3, unique_by=lambda outage: outage.slot).map(tuple),
    leaves_s=st.none() | tenths,
)


@settings(deadline=None, max_examples=100)
@example(RAMPED, [WorkerFaults(), WorkerFaults(), WorkerFaults(outages=(Outage(0, 3.5, 4.4),))])
@given(st.sampled_from(LOADS), st.lists(st.just(WorkerFaults()) | all_faults, min_size=1, max_size=3))
def test_the_verdict_is_the_truth(load: Load, drawn: list[WorkerFaults]) -> None:
    plan = plan_run(load)
    true = truth(load, plan, drawn)

    def fraction(*keys: tuple[str, int | None]) -> float:
        planned, there = (sum(true[key][part] for key in keys) for part in (0, 1))
        return there / planned if planned else 1.0

    everything = fraction(*true)
    windows = [fraction(*(key for key in true if key[1] == step)) for step in {key[1] for key in true}]
    workers = [fraction(*(key for key in true if key[0] == one)) for one in {key[0] for key in true}]
    margins = [everything - 0.99, *(part - 0.99 for part in windows), *(part - 0.95 for part in workers)]

    said = shortfalls(judged(load, plan, drawn))

    if min(margins) < -BAND:
        assert said, f"{min(margins):.4f} below a limit, and not detected"
    elif min(margins) > BAND:
        assert said == []


# --- logging in ------------------------------------------------------------------------------------------------------


FEWER = "throughput is that of fewer connections"
WAITED = "arrivals waited for fewer connections, which response times include"


def arrivals_over(time: Delivered) -> Delivered:
    """An open loop with this connection time, all arrivals of which were sent."""
    sent = {part: Portion(planned=6_000) for part in time.portions}
    return Delivered(portions=sent, open_loop=True, connections=time)


@pytest.mark.parametrize(
    ("logging_in", "warned", "invalid"),
    [
        (1_000, [], []),
        (1_100, [f"connections were logging in for 1.1 % of the planned time: {FEWER}"], []),
        (10_000, [f"connections were logging in for 10.0 % of the planned time: {FEWER}"], []),
        (
            45_000,
            [],
            [
                "connections were logging in for 45.0 % of the planned time (at most 10 %): the load was not on the"
                " server; why"
            ],
        ),
    ],
)
@pytest.mark.parametrize("open_loop", [False, True])
def test_time_spent_logging_in_is_shown_and_too_much_of_it_is_no_load(logging_in, warned, invalid, open_loop) -> None:
    """Also of an open loop, although all its arrivals were sent: they waited for connections."""
    portions: dict[Key, Portion] = {("worker-0", None): Portion(planned=100_000, logging_in=logging_in)}
    delivered = Delivered(portions=portions, login_cause="why")
    if open_loop:
        delivered = arrivals_over(delivered)
        warned = [one.replace(FEWER, WAITED) for one in warned]

    assert login_warnings(delivered) == warned
    assert shortfalls(delivered) == invalid


def test_the_stage_with_the_most_logins_decides() -> None:
    portions: dict[Key, Portion] = {
        ("worker-0", 1): Portion(planned=90_000),
        ("worker-0", 2): Portion(planned=10_000, logging_in=500),
    }
    assert login_warnings(Delivered(portions=portions)) == [
        f"connections were logging in for 5.0 % of the planned time of stage 2: {FEWER}"
    ]
    portions["worker-0", 2] = Portion(planned=10_000, logging_in=5_000)
    (said,) = shortfalls(Delivered(portions=portions))
    assert said == (
        "connections were logging in for 50.0 % of the planned time of stage 2 (at most 10 %): the load was not on the"
        " server; raise connections.max_age and connections.max_statements, or find out why logins are slow"
    )
    assert shortfalls(arrivals_over(Delivered(portions=portions))) == [said]
    assert login_warnings(Delivered(portions={})) == []


def test_the_key_that_replaces_connections_is_named() -> None:
    plain = Delivered(portions={})

    named = with_login_cause(plain, {"reopened": {"max_age": 0, "max_statements": 812, "error": 3}})

    assert named.login_cause == (
        "connections.max_statements replaced 812 connections: raise it, or find out why logins are slow"
    )
    assert with_login_cause(plain, {"reopened": {"error": 3}}) == plain
    time = Delivered(portions={("worker-0", None): Portion(planned=100_000, logging_in=45_000)})
    of_arrivals = with_login_cause(arrivals_over(time), {"reopened": {"max_age": 1}})
    assert shortfalls(of_arrivals)[0].endswith(
        "connections.max_age replaced 1 connection: raise it, or find out why logins are slow"
    )


def test_logins_in_a_stage_that_was_cancelled_before_it_began_are_no_share_of_anything() -> None:
    logging_in_ms = {1: 0, 2: 30, 3: 600}
    windows = [
        window(
            step_id=step_id, connections=ConnectionTime(planned_ms=1_000, delivered_ms=1_000, logging_in_ms=again_ms)
        )
        for step_id, again_ms in logging_in_ms.items()
    ]
    plan: dict[Key, int] = {("worker-0", 1): 1_000, ("worker-0", 2): 0}

    delivered = Delivered(portions=delivered_connections({"worker-0": windows}, plan))
    assert shortfalls(delivered) == login_warnings(delivered) == []

    delivered = Delivered(portions=delivered_connections({"worker-0": windows}, {**plan, ("worker-0", 3): 1_000}))
    (said,) = shortfalls(delivered)
    assert said.startswith("connections were logging in for 60.0 % of the planned time of stage 3")
