"""The real orchestrators in simulated worlds where several try to lead a run; and the detection of mutations.

test_simulation_flat, _stages, _rate, _find_max and _ends check the verdicts. To print the history of a world:
`World(seed, "/tmp", contested=True, trace=print).run()`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadgen.control.session import load_queries, parse_row
from loadgen.metrics.window import WindowRow
from loadgen.model.event import EventType
from loadgen.model.run import Phase, RunStatus
from tests.unit.simulation.histories import history_of, quiet
from tests.unit.simulation.rules import Mutation, Rule, Violation
from tests.unit.simulation.scenarios import Kind
from tests.unit.simulation.tables import Tables
from tests.unit.simulation.truth import plan_zero_s, surplus
from tests.unit.simulation.world import TICK_ENDS, History, World

__all__ = ["quiet"]

pytestmark = pytest.mark.simulation

SEEDS, BLOCK = 150, 50
CALM, CALM_SEARCHES = 15, 4  # worlds without faults
CROWDS = 2  # of eight workers
ABORTABLE = range(210, 280)  # in them a server stalls, and clients pause
CALM_LATENCY_S = 0.3  # the latency of a control statement in them
CLOSED_WITHIN_MS = 50
SEARCHED = 200  # the most seeds that are tried to detect a mutation

# The minimum of events in a block of contested worlds for its check to be meaningful.
HAPPENED = (
    "leader killed",
    "leader paused",
    "lease",
    "away",
    "cancel",
    "AWAY",
    "LATE",
    "SLOW",
    "takes over",
    "gave up",
)

# Mutations, and the rules that detect them.
NOTICED = {
    Mutation.FENCING: {Rule.FENCE},
    Mutation.MARGIN: {Rule.FENCE, Rule.TERMS},
    Mutation.RENEWAL: {Rule.TERMS},
    Mutation.NUMBERS: {Rule.NUMBERS, Rule.ONCE},
    Mutation.FORGETTING: {Rule.ONCE},
    Mutation.LIVENESS: {Rule.OUTAGE},
    Mutation.LOSS: {Rule.LOSS},
    Mutation.RECOVERY: {Rule.END},
    Mutation.CONNECTIONS: {Rule.SHORT},
    Mutation.PAUSES: {Rule.SHORT},
    Mutation.OVERLOAD: {Rule.SHORT},
    Mutation.LOGINS: {Rule.SHORT},
    Mutation.ABORT: {Rule.ABORT},
    Mutation.WAITS: {Rule.SHORT},
    Mutation.PENDING: {Rule.SHORT},
    Mutation.LIMITS: {Rule.SHORT},
    Mutation.PLAN: {Rule.SHORT},
    Mutation.STRICT: {Rule.WHOLE},
    Mutation.BUSY: {Rule.SHORT},
    Mutation.QUEUE: {Rule.FOUND},
    Mutation.LOG: {Rule.LOG},
    Mutation.ARRIVAL: {Rule.MOMENTS},
    Mutation.MOMENTS: {Rule.MOMENTS},
    Mutation.WARMUP: {Rule.SHORT},
    Mutation.WARMTH: {Rule.SHORT},
    Mutation.STANDSTILL: {Rule.MOMENTS, Rule.SHORT},
}
OF_LEADERS = {
    *(Mutation.FENCING, Mutation.MARGIN, Mutation.RENEWAL, Mutation.NUMBERS, Mutation.FORGETTING, Mutation.LIVENESS),
}
KINDS = {
    **dict.fromkeys((Mutation.BUSY, Mutation.QUEUE), Kind.FIND_MAX),
    **dict.fromkeys((Mutation.OVERLOAD, Mutation.LOGINS), Kind.RATE),
    Mutation.ABORT: Kind.ABORT,
    **dict.fromkeys((Mutation.WARMTH, Mutation.PENDING), Kind.FLAT),
}
# Seeds that have detected the mutation: the search begins with them. A change of the simulation may need other ones; a
# search takes up to a minute.
SHOWN_BY = {
    Mutation.FENCING: 50,
    Mutation.MARGIN: 344,
    Mutation.RENEWAL: 19,
    Mutation.NUMBERS: 455,
    Mutation.FORGETTING: 1,
    Mutation.LIVENESS: 79,
    Mutation.LOSS: 46,
    Mutation.RECOVERY: 1,
    Mutation.CONNECTIONS: 21,
    Mutation.PAUSES: 28,
    Mutation.OVERLOAD: 36,
    Mutation.LOGINS: 203,
    Mutation.ABORT: 28,
    Mutation.WAITS: 347,
    Mutation.PENDING: 855,
    Mutation.LIMITS: 21,
    Mutation.PLAN: 270,
    Mutation.STRICT: 1,
    Mutation.BUSY: 0,
    Mutation.QUEUE: 87,
    Mutation.LOG: 45,
    Mutation.MOMENTS: 67,
    Mutation.WARMUP: 629,
    Mutation.WARMTH: 563,
    Mutation.STANDSTILL: 7,
}


@pytest.mark.parametrize("first", range(0, SEEDS, BLOCK))
def test_one_leader_at_a_time_and_every_run_ends(first: int, tmp_path: Path) -> None:
    happened: Counter[str] = Counter()
    for seed in range(first, first + BLOCK):
        history = history_of(seed, tmp_path, contested=True)
        assert isinstance(history, History), f"seed {seed}: {history}"
        happened["third term"] += history.terms > 2
        happened.update(history.seen.keys())
    assert not [what for what in (*HAPPENED, "third term") if not happened[what]]


@pytest.mark.parametrize("mutation", Mutation, ids=lambda mutation: mutation.name)
def test_every_mutation_is_detected(mutation: Mutation, tmp_path: Path) -> None:
    for seed in (SHOWN_BY.get(mutation, 0), *range(SEARCHED)):
        history = history_of(seed, tmp_path, mutation, kind=KINDS.get(mutation), contested=mutation in OF_LEADERS)
        if isinstance(history, Violation):
            assert history.rule in NOTICED[mutation], f"seed {seed}: {history}"
            return
    pytest.fail(f"{mutation}, and nothing showed it in {SEARCHED} histories")


@pytest.mark.parametrize("kind", Kind)
def test_a_run_without_faults_is_valid(kind: Kind, tmp_path: Path) -> None:
    """Apart from verdicts: load that is late because of orchestrator and workers is missing, and would be INVALID."""
    for seed in range(CALM_SEARCHES if kind is Kind.FIND_MAX else CALM):
        history = World(seed, str(tmp_path), kind=kind, calm_latency_s=CALM_LATENCY_S).run()
        assert history.valid or history.forbids, f"seed {seed}: {history.summary['validity']}"


def test_a_threshold_ends_no_run_that_only_the_client_has_missed(tmp_path: Path) -> None:
    happened: Counter[str] = Counter()
    for seed in ABORTABLE:
        history = history_of(seed, tmp_path, kind=Kind.ABORT)
        assert isinstance(history, History), f"seed {seed}: {history}"
        happened["aborted"] += "aborted" in history.summary
        reasons = (history.summary.get("validity") or {}).get("reasons", ())
        happened["undecided"] += any(reason.startswith("undecided: max < 1s") for reason in reasons)
    assert happened["aborted"]
    assert happened["undecided"]


def test_no_more_connections_send_than_a_stage_has(tmp_path: Path) -> None:
    """Also where the next stage has more, and its connections are kept open."""
    for seed in range(CALM):
        world = World(seed, str(tmp_path), kind=Kind.STAGES, calm_latency_s=CALM_LATENCY_S)
        world.run()
        zero_s = plan_zero_s(world.tables.events)
        assert zero_s is not None
        assert surplus(world, zero_s) == [], f"seed {seed}"


def test_eight_workers_on_a_slow_control_plane_keep_their_stages_together(tmp_path: Path) -> None:
    for seed in range(CROWDS):
        world = World(seed, str(tmp_path), kind=Kind.STAGES, calm_latency_s=CALM_LATENCY_S, workers=8)
        history = world.run()
        assert (history.status, history.valid) == (RunStatus.COMPLETED, True), (
            f"seed {seed}: {history.summary['validity']}"
        )
        assert [row.kind for row in world.tables.events] == [EventType.START, EventType.STOP], "one event has the plan"


def test_all_workers_close_the_windows_of_a_search_together(tmp_path: Path) -> None:
    """Else the slowest to read STOP would measure the last step alone, and its qps would be too low."""
    world = World(0, str(tmp_path), kind=Kind.FIND_MAX, calm_latency_s=CALM_LATENCY_S, workers=2)
    world.run()
    rows = world.tables._window_results_read("")
    stored = [parse_row("WINDOW_RESULTS", WindowRow, row, key="") for row in rows]

    ends: dict[int | None, dict[str, int]] = {}
    for row in stored:
        window = row.result()
        if window.phase is Phase.MEASUREMENT and window.stalls is not None:
            ends.setdefault(window.step_id, {})[row.worker_id] = window.stalls.until_ms

    assert len(ends) > 2
    assert all(len(of_step) == 2 for of_step in ends.values())
    assert max(max(of_step.values()) - min(of_step.values()) for of_step in ends.values()) <= CLOSED_WITHIN_MS


# What a tick of the leader costs at most, by what it does; statements are named as in schemas/queries.
STATEMENTS_MAX = {
    "nothing": 2,  # heartbeats, and either the run or its figures
    "START": 4,  # the run, heartbeats, the event, its publication
    "MOVE": 4,  # the run, heartbeats, the move, figures
    "STEP": 5,  # as START, and the row of the step before
    "SET_PHASE": 5,  # the end of a search: likewise
    "STOP": 6,  # as STEP, and the move
}


def ticks_of(world: World) -> list[list[str]]:
    """The statements of each tick of the leader, without those before its first tick and after its last one."""
    ticks: list[list[str]] = [[]]
    for statement in world.statements:
        if statement == TICK_ENDS:
            ticks.append([])
        elif statement[:2] == ("orchestrator-0", "orchestrator"):
            ticks[-1].append(statement[2])
    return ticks[1:-1]


def done_in(tick: list[str], said: Iterator[str]) -> str:
    if "run_control_events.emit" in tick:
        return next(said)
    return "MOVE" if "run_status.move" in tick else "nothing"


@pytest.mark.parametrize(
    ("kind", "said"), [(Kind.FLAT, {"START", "STOP"}), (Kind.FIND_MAX, {"START", "STEP", "SET_PHASE", "STOP"})]
)
def test_a_tick_makes_two_statements_and_few_more_when_it_says_something(
    kind: Kind, said: set[str], tmp_path: Path
) -> None:
    world = World(1, str(tmp_path), kind=kind, calm_latency_s=CALM_LATENCY_S)
    world.run()
    events = ("STEP" if row.kind == EventType.SET_WORKER_TARGET else row.kind for row in world.tables.events)

    ticks = [(done_in(tick, events), tick) for tick in ticks_of(world)]

    assert {what for what, _ in ticks} == {"nothing", "MOVE", *said}
    assert [(what, tick) for what, tick in ticks if len(tick) > STATEMENTS_MAX[what]] == []


def test_no_look_up_follows_successful_writes(tmp_path: Path) -> None:
    world = World(1, str(tmp_path), kind=Kind.FIND_MAX, calm_latency_s=CALM_LATENCY_S)
    world.run()

    names = Counter(name for _, _, name in world.statements)

    assert [name for name in names if name.endswith((".find", ".any", ".last", ".server_time"))] == []
    assert names["run_control_events.emit"] == len(world.tables.events) > 3
    assert names["window_results.append"] > 1
    assert names["find_max_step_history.append"] > 1


def test_a_seed_has_exactly_one_history(tmp_path: Path) -> None:
    def told(seed: int) -> list[str]:
        lines: list[str] = []
        World(seed, str(tmp_path), trace=lines.append).run()
        return lines

    assert told(1) == told(1)
    assert told(1) != told(2)


# --- the statements exist twice: here, and in SQL --------------------------------------------------------------------

LIVING_TERM = "WHERE RUN_ID = ? AND EPOCH = ? AND OWNER = ? AND EXPIRES_AT > SYSDATE()"
GUARDS = {
    "run_leases.claim_next": ["WHERE RUN_ID = ? AND EPOCH = ? AND EXPIRES_AT < DATEADD(millisecond, ?, SYSDATE())"],
    "run_leases.renew": [LIVING_TERM],
    "run_leases.release": [LIVING_TERM],
    "run_status.move": [
        "WHERE RUN_ID = ? AND (STATUS = ? OR ? = 'CANCELLING' AND STATUS IN ('PREPARED', 'STARTING', 'RUNNING'))",
        "AND PHASE = ? AND END_TIME IS NULL",
        LIVING_TERM,
    ],
    "run_status.publish": [
        "WHERE RUN_ID = ? AND STATUS IN ('PREPARED', 'STARTING', 'RUNNING', 'STOPPING', 'CANCELLING')",
        LIVING_TERM,
    ],
    "run_status.cancel": ["(STATUS = 'PREPARED' OR STATUS = 'STARTING' OR STATUS = 'RUNNING')"],
    "run_control_events.emit": ["SELECT RUN_ID, ?, ?, EPOCH, ?, ?, SYSDATE()", LIVING_TERM],
    "worker_heartbeats.beat": ["AND HOSTNAME = ? AND PID = ? AND HEARTBEAT_COUNT < ?"],
    "worker_heartbeats.replace": ["OR LAST_HEARTBEAT < DATEADD(millisecond, ?, SYSDATE())", LIVING_TERM],
    "test_results.finish": ["WHERE TEST_ID = ? AND RUN_ID = ? AND SUMMARY IS NULL"],
}

# Of the tables that leaders and workers use: statements of other commands.
OF_OTHERS = {
    "run_leases": {"join", "unexpired", "every", "expire", "release_of_dead"},
    "run_status": {"newest", "listed", "scenarios", "beginning_with"},
    "worker_heartbeats": {"last_beats"},
    "test_results": {"of_scenario"},
    "test_logs": {"newest"},
    "worker_metrics_snapshots": set(),
    "value_pools": {"append", "find", "read"},  # scenarios of the simulation have no pools
    "run_control_events": set(),
    "window_results": set(),
    "find_max_step_history": set(),
    "warehouse_poll_snapshots": {"newest", "of_scenario"},
}


@pytest.mark.parametrize("name", GUARDS)
def test_the_simulated_tables_have_the_guards_of_the_real_ones(name: str) -> None:
    """A change of the SQL needs the same change in simulation/tables.py."""
    table, verb = name.split(".")
    sql = " ".join(load_queries(table)[verb].sql.split())
    assert all(guard in sql for guard in GUARDS[name])


@pytest.mark.parametrize("table", OF_OTHERS)
def test_every_statement_of_leaders_and_workers_is_simulated(table: str) -> None:
    missing = {verb for verb in load_queries(table) if not hasattr(Tables, f"_{table}_{verb}")}
    assert missing == OF_OTHERS[table]
