"""The real orchestrators, in simulated worlds where several want to lead a run; and what the simulation notices.

test_simulation_flat, _stages, _rate and _find_max have the verdicts. To see what happened in a world:
`World(seed, "/tmp", contested=True, trace=print).run()`.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from loadgen.control.sql import load_queries
from tests.unit.simulation.histories import history_of, quiet
from tests.unit.simulation.rules import Broken, Rule, Violation
from tests.unit.simulation.scenarios import Kind
from tests.unit.simulation.tables import Tables
from tests.unit.simulation.world import History, World

__all__ = ["quiet"]

pytestmark = pytest.mark.simulation

SEEDS, BLOCK = 150, 50
CALM, CALM_SEARCHES = 20, 8  # worlds without faults
CALM_LATENCY_S = 0.3  # what a control statement takes in them
SEARCHED = 200  # seeds at most, for one that shows what is broken

# What must have happened in a block of contested worlds for it to show anything.
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

# What is broken, and what notices.
NOTICED = {
    Broken.FENCING: {Rule.FENCE},
    Broken.MARGIN: {Rule.FENCE, Rule.TERMS},
    Broken.RENEWAL: {Rule.TERMS},
    Broken.NUMBERS: {Rule.NUMBERS, Rule.ONCE},
    Broken.MEMORY: {Rule.ONCE},
    Broken.LIVENESS: {Rule.OUTAGE},
    Broken.LOSS: {Rule.LOSS},
    Broken.RECOVERY: {Rule.END},
    Broken.CONNECTIONS: {Rule.SHORT},
    Broken.PAUSES: {Rule.SHORT},
    Broken.LATE: {Rule.SHORT},
    Broken.WAITS: {Rule.SHORT},
    Broken.LIMITS: {Rule.SHORT},
    Broken.PLAN: {Rule.SHORT},
    Broken.STRICT: {Rule.WHOLE},
    Broken.BUSY: {Rule.SHORT},
    Broken.QUEUE: {Rule.FOUND},
    Broken.LOG: {Rule.LOG},
    Broken.TOGETHER: {Rule.SHORT, Rule.FOUND},
}
OF_LEADERS = {
    *(Broken.FENCING, Broken.MARGIN, Broken.RENEWAL, Broken.NUMBERS, Broken.MEMORY, Broken.LIVENESS),
}
OF_SEARCHES = {Broken.BUSY, Broken.QUEUE, Broken.TOGETHER}
# Seeds that have shown it: the search begins with them.
SHOWN_BY = {
    Broken.FENCING: 50,
    Broken.MARGIN: 89,
    Broken.RENEWAL: 3,
    Broken.NUMBERS: 156,
    Broken.MEMORY: 1,
    Broken.LIVENESS: 88,
    Broken.LOSS: 129,
    Broken.CONNECTIONS: 22,
    Broken.PAUSES: 73,
    Broken.LATE: 73,
    Broken.WAITS: 112,
    Broken.LIMITS: 22,
    Broken.PLAN: 201,
    Broken.STRICT: 4,
    Broken.BUSY: 0,
    Broken.QUEUE: 37,
    Broken.LOG: 79,
    Broken.TOGETHER: 69,
}


@pytest.mark.parametrize("first", range(0, SEEDS, BLOCK))
def test_one_leads_at_a_time_and_every_run_ends(first: int, tmp_path: Path) -> None:
    happened: Counter[str] = Counter()
    for seed in range(first, first + BLOCK):
        history = history_of(seed, tmp_path, contested=True)
        assert isinstance(history, History), f"seed {seed}: {history}"
        happened["third term"] += history.terms > 2
        happened.update(history.seen.keys())
    assert not [what for what in (*HAPPENED, "third term") if not happened[what]]


@pytest.mark.parametrize("broken", Broken, ids=lambda broken: broken.name)
def test_what_is_broken_is_noticed(broken: Broken, tmp_path: Path) -> None:
    for seed in (SHOWN_BY.get(broken, 0), *range(SEARCHED)):
        kind = Kind.FIND_MAX if broken in OF_SEARCHES else None
        history = history_of(seed, tmp_path, broken, kind=kind, contested=broken in OF_LEADERS)
        if isinstance(history, Violation):
            assert history.rule in NOTICED[broken], f"seed {seed}: {history}"
            return
    pytest.fail(f"{broken}, and nothing showed it in {SEARCHED} histories")


@pytest.mark.parametrize("kind", Kind)
def test_a_run_in_which_nothing_fails_is_valid(kind: Kind, tmp_path: Path) -> None:
    """Apart from verdicts: load that is late because of orchestrator and workers is missing, and would be INVALID."""
    for seed in range(CALM_SEARCHES if kind is Kind.FIND_MAX else CALM):
        history = World(seed, str(tmp_path), kind=kind, calm_latency_s=CALM_LATENCY_S).run()
        assert history.valid or history.forbids, f"seed {seed}: {history.summary['validity']}"


def test_a_seed_has_one_history(tmp_path: Path) -> None:
    def told(seed: int) -> list[str]:
        lines: list[str] = []
        World(seed, str(tmp_path), trace=lines.append).run()
        return lines

    assert told(1) == told(1)
    assert told(1) != told(2)


# --- the tables are written twice: here, and in SQL -------------------------------------------------------------------

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
    "run_status.publish": ["WHERE RUN_ID = ? AND END_TIME IS NULL", LIVING_TERM],
    "run_status.cancel": ["(STATUS = 'PREPARED' OR STATUS = 'STARTING' OR STATUS = 'RUNNING')"],
    "run_control_events.emit": ["COALESCE(MAX(SEQUENCE_ID), 0) + 1", LIVING_TERM],
    "worker_heartbeats.beat": ["AND HOSTNAME = ? AND PID = ? AND HEARTBEAT_COUNT < ?"],
    "worker_heartbeats.replace": ["OR LAST_HEARTBEAT < DATEADD(millisecond, ?, SYSDATE())", LIVING_TERM],
    "test_results.finish": ["WHERE TEST_ID = ? AND RUN_ID = ? AND SUMMARY IS NULL"],
}

# Of the tables that leaders and workers use: statements of other commands.
OF_OTHERS = {
    "run_leases": {"join", "living", "expire", "bury"},
    "run_status": {"newest", "listed", "scenarios", "beginning_with"},
    "worker_heartbeats": {"last_beats"},
    "test_results": {"amend", "of_scenario"},
    "test_logs": {"newest"},
    "worker_metrics_snapshots": {"read", "newest"},
    "value_pools": {"append", "find", "read"},  # scenarios of the simulation have no pools
    "run_control_events": set(),
    "window_results": set(),
    "find_max_step_history": set(),
    "warehouse_poll_snapshots": {"newest", "of_scenario"},
}


@pytest.mark.parametrize("name", GUARDS)
def test_the_simulated_tables_have_the_guards_of_the_real_ones(name: str) -> None:
    """What changes in SQL has to change in simulation/tables.py."""
    table, verb = name.split(".")
    sql = " ".join(load_queries(table)[verb].sql.split())
    assert all(guard in sql for guard in GUARDS[name])


@pytest.mark.parametrize("table", OF_OTHERS)
def test_every_statement_of_leaders_and_workers_is_simulated(table: str) -> None:
    missing = {verb for verb in load_queries(table) if not hasattr(Tables, f"_{table}_{verb}")}
    assert missing == OF_OTHERS[table]
