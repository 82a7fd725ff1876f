"""A search with a leader: measurements of workers become steps, with every fault of workers, and steps become a
result."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from loadgen.control.session import ParsedRows, RowUnreadable
from loadgen.control.tables.run_measurements import StepRecord
from loadgen.metrics.connections import ConnectionTime
from loadgen.metrics.tally import StatementTally
from loadgen.metrics.window import ClientResourceUse, WindowResult, WindowRow, merge
from loadgen.results.run_record import measured_windows
from loadgen.scenario.model import FindMaxSettings, OnWorkerLoss
from orchestrator.find_max_controller import FindMaxController, step_record
from orchestrator.lifecycle import (
    MetricsMissing,
    SearchDecision,
    SearchFinished,
    StartStep,
)
from orchestrator.worker_health import WorkerHealth, WorkerView
from tests.unit.orchestrator_builders import end, live, tally, view, window
from tests.unit.worker_builders import SERVER_TIME

CONFIG = FindMaxSettings(start=5, increment=10, step_s=10.0, settle_s=2.0, maximum=100, refine=False)
MISSING_S = 30.0
CALM = tally((20.0,) * 500)
UNCLEAR = tally((20.0,) * 45 + (30.0,) * 5)  # the bounds of its p95 are on both sides of the limit
BAD = tally((99.0,) * 500)


class Led:
    """A search over two workers, and the time."""

    def __init__(self, on_worker_loss: OnWorkerLoss = OnWorkerLoss.FAIL) -> None:
        self.controller = FindMaxController(CONFIG, (), missing_s=MISSING_S, on_worker_loss=on_worker_loss)
        self.now_s = 100.0
        self.records: list[StepRecord] = []
        self.windows: dict[int, list[list[WindowResult]]] = {}

    def worker(
        self, number: int, shown: StatementTally, seconds: float, health: WorkerHealth = WorkerHealth.ALIVE, **more: Any
    ) -> WorkerView:
        step = self.controller.number
        elapsed_ms = round(seconds * 1000)
        cpu_percent, delivered = more.pop("cpu_percent", 20), more.pop("delivered", 1.0)
        own = replace(
            window({"s": shown}, step_id=step, seconds=seconds, window_id=step),
            client=ClientResourceUse(elapsed_ms=elapsed_ms, cpu_ms=elapsed_ms * cpu_percent // 100),
            connections=ConnectionTime(planned_ms=elapsed_ms, delivered_ms=round(elapsed_ms * delivered)),
        )
        return view(health, number=number, live=live(own), **more)

    def look(self, *views: WorkerView, later_s: float = 1.0) -> SearchDecision | None:
        self.now_s += later_s
        number = self.controller.number
        judged, order = self.controller.observe(views, self.now_s, queue_seen=False)
        if judged is not None:
            step, measured = judged
            self.records.append(step_record("run", step, measured, SERVER_TIME))
            self.windows[number] = [list(worker.live.windows) for worker in views if worker.live is not None]
        return order

    def step(self, shown: StatementTally = CALM, seconds: float = 10.0, **more: Any) -> SearchDecision | None:
        """Request the next step where the search did not, and judge it."""
        if not self.records:
            self.look(view(number=0), view(number=1))
        self.look(*(self.worker(number, shown, 1.5, **more) for number in range(2)))
        return self.look(*(self.worker(number, shown, seconds, **more) for number in range(2)))

    @property
    def outcomes(self) -> list[tuple[int, str]]:
        return [(record.target_connections, record.outcome) for record in self.records]

    def result(self, *, valid: bool = True) -> dict[str, Any]:
        found = self.controller.result(lambda step: merge(self.windows.get(step or 0, [])), valid=valid)
        json.dumps(found)
        return found


def searched() -> Led:
    """5 holds and is confirmed; 15 fails, and fails again."""
    led = Led()
    for shown in (CALM, BAD, CALM, BAD):
        order = led.step(shown)
    assert isinstance(order, SearchFinished)
    return led


# --- the result ------------------------------------------------------------------------------------------------------


def test_the_result_names_the_decisive_step() -> None:
    led = searched()

    found = led.result()

    assert led.outcomes == [(5, "STABLE"), (15, "DEGRADED"), (5, "STABLE"), (15, "DEGRADED")]
    assert (found["max_concurrency"], found["result"], found["confidence"]) == (5, "TRUE_MAX", "high")
    assert (found["decisive_step"], found["failed_at"], found["failed_outcome"]) == (3, 15, "DEGRADED")
    assert found["p95_ms"] == pytest.approx(20.0, rel=0.02)
    assert [step["step"] for step in found["steps"]] == [1, 2, 3, 4]
    assert led.controller.connections == 5
    assert led.controller.obstacle is None


def test_the_result_shows_all_that_was_measured_in_a_step() -> None:
    led = searched()
    for number, seconds, times in ((3, 12.0, (20.0,) * 600), (4, 11.0, (99.0,) * 550)):
        led.windows[number] = [[window({"s": tally(times)}, step_id=number, seconds=seconds)] for _ in range(2)]

    found = led.result()

    assert found["qps"] == found["steps"][2]["qps"] == 100.0
    assert (found["steps"][3]["qps"], found["steps"][3]["seconds"]) == (100.0, 11.0)


def test_an_invalid_run_is_not_sure_of_its_maximum() -> None:
    assert searched().result(valid=False)["confidence"] == "low"


def test_a_report_is_made_of_the_windows_of_the_decisive_step() -> None:
    """Not of another step at the same level with as many samples."""
    led = searched()
    stored = [
        WindowRow.of(own, worker_id=f"worker-{number}", epoch=1)
        for step in (1, 2, 3, 4)
        for number, (own,) in enumerate(led.windows[step])
    ]
    summary = {"totals": {"succeeded": 1_000, "failed": 0}, "find_max": led.result()}

    found, missing = measured_windows(summary, stored, [])
    other, why = measured_windows(summary | {"totals": {"succeeded": 999, "failed": 0}}, stored, [])

    assert missing is None
    assert found is not None
    assert found.counts.succeeded == 1_000
    assert other is None
    assert "have 1000 samples, but the result has 999" in (why or "")


def test_a_search_that_the_user_ends_reports_it() -> None:
    led = Led()
    for _ in range(3):
        led.step()
    led.controller.stop("stopped by the user")
    assert led.result()["reason"] == "at least 15 connections held: stopped by the user"


def test_the_state_is_what_is_known_so_far() -> None:
    led = Led()
    assert led.controller.state() == {
        "step": 1,
        "target": 5,
        "best": None,
        "failed": None,
        "baseline_p95_ms": None,
        "next": "climb",
        "reason": "",
    }
    led.step()
    led.step()
    state = led.controller.state()
    assert (state["step"], state["target"], state["best"], state["next"]) == (3, 25, 15, "climb")


# --- the client as the limit -----------------------------------------------------------------------------------------


def test_a_step_with_a_saturated_client_is_repeated_and_then_bounds_the_search() -> None:
    led = Led()
    led.step()
    led.step()
    assert led.step(BAD, cpu_percent=97) == StartStep(number=4, target=25)
    assert led.step(BAD, cpu_percent=97) == StartStep(number=5, target=15)
    assert isinstance(led.step(), SearchFinished)
    found = led.result()
    assert led.outcomes[2:] == [(25, "CLIENT_LIMIT"), (25, "CLIENT_LIMIT"), (15, "STABLE")]
    assert (found["max_concurrency"], found["result"], found["limited_at"]) == (15, "BOUNDED_MAX", 25)
    assert found["confidence"] == "high"
    assert "at least 15 connections held: limited by the client at 25" in found["reason"]
    assert led.controller.obstacle is None, "the baseline and the best step are fine, and they are what counts"
    assert [step.target for step in led.controller.deciding_steps] == [5, 15]


def test_validity_rests_on_the_step_that_took_the_place_of_a_disturbed_baseline() -> None:
    led = Led()
    led.step(tally((40.0,) * 500))  # disturbed
    led.step()  # 15 connections, and clearly faster: it is what the next ones are compared with
    led.step(tally((39.0,) * 500))

    assert led.outcomes == [(5, "STABLE"), (15, "STABLE"), (25, "DEGRADED")]
    assert led.controller.search.baseline_p95_ms == pytest.approx(20.0, rel=0.02)
    assert [step.number for step in led.controller.deciding_steps] == [2, 1, 3], "not the first one"


def test_a_first_level_that_the_client_limits_makes_the_search_worthless() -> None:
    led = Led()
    led.step(cpu_percent=97)
    assert isinstance(led.step(cpu_percent=97), SearchFinished)
    assert led.result()["max_concurrency"] is None
    assert "the client was the limit at 5 connections" in (led.controller.obstacle or "")


def test_connections_that_are_not_open_are_load_that_was_not_delivered() -> None:
    led = Led()
    led.step()
    assert led.step(delivered=0.6) == StartStep(number=3, target=15)
    assert led.records[-1].outcome == "CLIENT_LIMIT"
    assert "delivered load was 60.0 %" in led.records[-1].reason


def test_load_is_short_in_a_step_by_the_limits_of_a_run() -> None:
    """One of fifty connections missing exceeds the limit, also where each worker has nearly all of its connections."""
    led = Led()
    led.step()
    led.step(delivered=0.98)
    assert led.outcomes[-1] == (15, "CLIENT_LIMIT")


def test_an_invalid_search_does_not_claim_the_limit_itself() -> None:
    found = searched().result(valid=False)
    assert (found["max_concurrency"], found["result"], found["confidence"]) == (5, "BOUNDED_MAX", "low")


# --- workers that are lost -------------------------------------------------------------------------------------------


def test_a_lost_worker_ends_the_search_with_what_is_known() -> None:
    led = Led(OnWorkerLoss.CONTINUE)
    for _ in range(3):
        led.step()
    gone = led.worker(1, CALM, 3.0, WorkerHealth.DEAD, ended=end("worker-1"))

    order = led.look(led.worker(0, CALM, 4.0), gone)

    assert isinstance(order, SearchFinished)
    assert "a worker was lost (worker-1" in order.reason
    found = led.result()
    assert (found["max_concurrency"], found["result"], found["confidence"]) == (15, "BOUNDED_MAX", "low")
    assert led.controller.obstacle is not None
    assert led.look(led.worker(0, CALM, 9.0), gone) == order, "it stays so"


def test_a_worker_lost_after_the_last_step_changes_nothing() -> None:
    led = searched()
    gone = led.worker(1, CALM, 3.0, WorkerHealth.DEAD, ended=end("worker-1"))

    assert isinstance(led.look(led.worker(0, CALM, 4.0), gone), SearchFinished)
    assert (led.result()["result"], led.result()["confidence"]) == ("TRUE_MAX", "high")


@pytest.mark.parametrize(("on_worker_loss", "ends"), [(OnWorkerLoss.FAIL, True), (OnWorkerLoss.CONTINUE, False)])
def test_a_silent_worker_is_waited_for_where_the_run_may_go_on_without_it(
    on_worker_loss: OnWorkerLoss, ends: bool
) -> None:
    led = Led(on_worker_loss)
    led.step()
    led.look(led.worker(0, CALM, 3.0), led.worker(1, CALM, 3.0))

    for passed in range(4, 60):
        silent = led.worker(1, CALM, 3.0, WorkerHealth.STALE, silent_s=float(passed))
        order = led.look(led.worker(0, CALM, float(passed)), silent)
        assert order is None or (ends and isinstance(order, MetricsMissing) and passed > MISSING_S)
        if order is not None:
            return
    assert not ends
    dead = led.worker(1, CALM, 3.0, WorkerHealth.DEAD, silent_s=61.0)
    assert isinstance(led.look(led.worker(0, CALM, 60.0), dead), SearchFinished)
    assert led.result()["max_concurrency"] == 5


@pytest.mark.parametrize("on_worker_loss", OnWorkerLoss)
def test_without_heartbeats_nothing_is_known(on_worker_loss: OnWorkerLoss) -> None:
    led = Led(on_worker_loss)
    led.step()
    silent = [led.worker(number, CALM, 3.0, WorkerHealth.STALE, silent_s=40.0) for number in range(2)]
    led.look(*silent)
    assert isinstance(led.look(*silent, later_s=MISSING_S + CONFIG.settle_s + 1), MetricsMissing)


def test_a_worker_that_lives_but_does_not_get_to_its_level_has_not_delivered_it() -> None:
    led = Led()
    led.step()
    ready, stuck = led.worker(0, CALM, 3.0), view(number=1, live=live())
    assert led.look(ready, stuck) is None

    order = led.look(led.worker(0, CALM, 40.0), stuck, later_s=MISSING_S + CONFIG.settle_s + 1)

    assert order == StartStep(number=3, target=15)
    assert led.outcomes[-1] == (15, "CLIENT_LIMIT")
    assert "worker-1: the load of the step was not delivered for" in led.records[-1].reason


# --- another leader --------------------------------------------------------------------------------------------------


def test_a_search_that_is_led_on_knows_how_sure_its_steps_were() -> None:
    before = Led()
    for shown, seconds in ((CALM, 10.0), (UNCLEAR, 30.0), (CALM, 10.0), (BAD, 10.0)):
        before.step(shown, seconds)
    successor = FindMaxController(CONFIG, (), missing_s=MISSING_S)

    unknown = successor.restore(before.records, before.windows.__getitem__)

    assert unknown == ()
    assert successor.search == before.controller.search
    assert [step.low_confidence for step in successor.search.steps] == [False, True, False, False]
    assert successor.result(lambda step: merge(before.windows[step or 0]), valid=True) == before.result()


@pytest.mark.parametrize(("lost", "unsure"), [((2,), (2,)), ((2, 3), (2, 3)), ((1,), (1, 2, 3, 4))])
def test_a_search_whose_measurements_are_partly_lost_is_restored(
    lost: tuple[int, ...], unsure: tuple[int, ...]
) -> None:
    """A window may be unreadable. Without that of step 1, the baseline, no step can be judged again."""
    before = Led()
    for shown in (CALM, CALM, CALM, BAD):
        before.step(shown)
    successor = FindMaxController(CONFIG, (), missing_s=MISSING_S)

    unknown = successor.restore(before.records, lambda number: [] if number in lost else before.windows[number])

    assert unknown == unsure
    assert tuple(step.number for step in successor.search.steps if step.low_confidence) == unsure
    assert successor.search.target == before.controller.search.target
    assert successor.result(lambda step: merge(before.windows[step or 0]), valid=False) is not None


def test_a_client_limit_that_another_leader_found_stands() -> None:
    before = Led()
    before.step()
    before.step(cpu_percent=97)
    before.step(cpu_percent=97)
    successor = FindMaxController(CONFIG, (), missing_s=MISSING_S)

    assert successor.restore(before.records, before.windows.__getitem__) == ()
    assert successor.search.target == before.controller.search.target == 5


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"outcome": "\x1b[2J"}, "step 2 has an unknown outcome"),
        ({"target_connections": 10**37}, f"step 2 has {10**37} connections"),
        ({"target_connections": -1}, "step 2 has -1 connections"),
        ({"step_number": 10**37}, "step 2 is missing"),
        (None, "row 'run, step 2' of FIND_MAX_STEP_HISTORY is unreadable: qps is 'many'"),
    ],
)
def test_an_unreadable_step_ends_the_search_and_the_run_reports_it(change: Any, why: str) -> None:
    before = Led()
    for _ in range(3):
        before.step()
    first, second, third = before.records
    if change is None:
        error = RowUnreadable("FIND_MAX_STEP_HISTORY", "run, step 2", "qps is 'many'")
        records = ParsedRows([first, third], [error])
    else:
        records = ParsedRows([first, replace(second, **change), third])
    successor = FindMaxController(CONFIG, (), missing_s=MISSING_S)

    successor.restore(records, lambda number: before.windows.get(number, []))

    assert len(successor.search.steps) == 1
    assert why in (successor.obstacle or "")
    judged, order = successor.observe([view(number=0), view(number=1)], 1.0, queue_seen=False)
    assert judged is None
    assert isinstance(order, SearchFinished)
    found = successor.result(lambda step: merge(before.windows.get(step or 0, [])), valid=False)
    assert (found["max_concurrency"], found["result"], found["confidence"]) == (5, "BOUNDED_MAX", "low")


def test_a_search_whose_leader_was_lost_has_a_result_of_its_known_steps() -> None:
    """As recovery makes it, when no process leads the run any more."""
    before = Led()
    for _ in range(3):
        before.step()
    successor = FindMaxController(CONFIG, (), missing_s=MISSING_S)
    successor.restore(before.records, before.windows.__getitem__)

    successor.stop("its orchestrator was lost")

    found = successor.result(lambda step: merge(before.windows.get(step or 0, [])), valid=False)
    assert (found["max_concurrency"], found["result"], found["confidence"]) == (15, "BOUNDED_MAX", "low")
    assert (found["decisive_step"], len(found["steps"])) == (2, 3)
    assert found["reason"] == "at least 15 connections held: its orchestrator was lost"


def test_a_search_that_measured_nothing_has_no_decisive_step() -> None:
    controller = FindMaxController(CONFIG, (), missing_s=MISSING_S)
    controller.stop("its orchestrator was lost")
    found = controller.result(lambda _: merge([]), valid=False)
    assert (found["max_concurrency"], found["result"], found["decisive_step"]) == (None, None, None)
    assert "its orchestrator was lost" in found["reason"]
