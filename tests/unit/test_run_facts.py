"""A run is judged by the same rules whether its leader, a successor or the recovery makes its result."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from loadgen.control.session import ControlSession
from loadgen.control.tables import run_measurements, run_status, worker_heartbeats
from loadgen.control.tables.run_status import Run
from loadgen.control.tables.worker_heartbeats import HeartbeatRow
from loadgen.metrics.window import WindowRow
from loadgen.model.threshold import parse_threshold
from loadgen.report.summary import RunFacts, summarize
from loadgen.results.run_record import stored_windows
from loadgen.scenario.frozen import thaw
from loadgen.scenario.model import Threshold
from loadgen.snowflake.session import RetryPolicy
from orchestrator import recover, service
from orchestrator.run_environment import UNPOLLED, UNREAD_BY_RECOVERY
from orchestrator.run_facts import EndedRun, judge_run
from tests.fake_clock import FakeClock
from tests.unit.simulation.histories import quiet
from tests.unit.simulation.scenarios import Kind
from tests.unit.simulation.wires import RequestOutcome, Wire
from tests.unit.simulation.world import World

__all__ = ["quiet"]

pytestmark = pytest.mark.simulation

# What only the leader has observed: it is in no table.
OBSERVED = (
    *("did not acknowledge", "was replaced:", "the query history of the warehouse could not be read"),
    "the search ended early: ",  # with another reason
)
# Parts of a result that say how the run ended, and who judged it.
OF_THE_LEADER = ("status", "verdict", "exit_code", "exit_reason", "validity", "environment", "enrichment", "find_max")
SLIDING = tuple(
    Threshold(check=parse_threshold(text), window_s=2.0)
    for text in ("p95 < 30s", "qps > 0.1", "qps > 20", "max < 250ms")
)
SEARCHED = ("max_concurrency", "failed_at", "failed_outcome", "qps", "p95_ms", "decisive_step", "steps")
SEEDS = {Kind.STAGES: range(24), Kind.FLAT: range(12), Kind.RATE: range(12), Kind.FIND_MAX: range(6)}


class Undisturbed:
    """A network for reading the tables of a world that has ended."""

    def note(self, query: object) -> None: ...

    def refuses(self, query: object) -> bool:
        return False

    def outcome(self, *, changes: bool) -> RequestOutcome:
        return RequestOutcome.ANSWERED

    def latency_s(self) -> float:
        return 0.0

    silence_s = held_s = latency_s

    def later(self, outcome: object, happens: Callable[[], None]) -> None:
        happens()

    def sleep(self, seconds: float) -> None: ...


class Judgements:
    """The runs that were judged, with their facts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[tuple[EndedRun, RunFacts]] = []
        self.rows: tuple[Sequence[WindowRow], Sequence[HeartbeatRow]] = ((), ())  # that a recovery has read
        for module in (service, recover):
            monkeypatch.setattr(module, "judge_run", self._judge)

    def _judge(self, ended: EndedRun, *known: Any) -> RunFacts:
        self.made.append((ended, judge_run(ended, *known)))
        return self.made[-1][1]

    def recovered(self, world: World) -> tuple[EndedRun, RunFacts]:
        """As a recovery judges the rows of the run."""
        session = cast(ControlSession, Wire(world.tables, Undisturbed()))
        retries = RetryPolicy(stop=threading.Event(), clock=FakeClock())
        run = cast(Run, run_status.read(session, world.run_id))
        scenario = thaw(cast(str, run_status.read_config(session, world.run_id)), None)
        beats = worker_heartbeats.read(session, world.run_id)
        self.rows = run_measurements.read_windows(session, world.run_id), beats
        recover._make_result(session, retries, run, scenario, beats, "lost")
        return self.made.pop()


def rows_of(ended: EndedRun) -> tuple[object, ...]:
    """The rows that were read. Late ones may have arrived since then."""
    workers = [(one.worker_id, one.health, one.live) for one in ended.workers]
    results = [row for row in ended.results if row.worker_id is not None]
    return ended.gathered, results, ended.events, workers


def said(summary: dict[str, Any]) -> list[str]:
    return [*summary["validity"]["reasons"], *summary["environment"]["warnings"]]


def alike(summary: dict[str, Any]) -> dict[str, Any]:
    """What must not depend on who made the result."""
    lost = (*recover.LOST_FACTS, UNREAD_BY_RECOVERY, UNPOLLED)
    known = [one for one in said(summary) if one not in lost and not any(words in one for words in OBSERVED)]
    found = {name: summary["find_max"][name] for name in SEARCHED} if summary["find_max"] else None
    judged = {name: part for name, part in summary.items() if name not in OF_THE_LEADER}
    return judged | {"said": known, "search": found}


@pytest.mark.parametrize("kind", list(SEEDS))
def test_the_same_rows_give_the_same_result_to_a_leader_and_to_a_recovery(
    kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judgements = Judgements(monkeypatch)
    happened: Counter[str] = Counter()
    for seed in SEEDS[kind]:
        judgements.made.clear()
        world = World(seed, str(tmp_path), kind=kind)
        if not world.is_search:
            world.scenario = replace(world.scenario, thresholds=(*world.scenario.thresholds, *SLIDING))
        world.run()
        if not judgements.made or world.seen["recovered"]:
            continue
        ended, facts = judgements.made[-1]

        again, facts_again = judgements.recovered(world)

        if rows_of(ended) != rows_of(again):
            continue
        by_leader, by_recovery = summarize(facts), summarize(facts_again)
        assert alike(by_recovery) == alike(by_leader), f"seed {seed}"
        assert stored_windows(*judgements.rows) == again.gathered.windows, f"seed {seed}"  # those of reports
        assert set(recover.LOST_FACTS) <= set(said(by_recovery)), f"seed {seed}"
        happened["VALID"] += by_leader["validity"]["valid"]
        happened["INVALID"] += not by_leader["validity"]["valid"]
        happened["warned"] += bool(by_leader["environment"]["warnings"])
        happened["span missed"] += any(
            not one["passed"] and one.get("window_seconds") for one in by_leader["thresholds"]
        )
        happened["span met"] += any(one["passed"] and one.get("window_seconds") for one in by_leader["thresholds"])
    expected = {"VALID", "INVALID", "warned"} | (set() if kind is Kind.FIND_MAX else {"span missed", "span met"})
    assert all(happened[what] for what in expected), happened
