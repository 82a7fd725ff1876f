"""A search with a leader: measurements of workers become steps, with every fault of workers, and steps become a
result."""

from __future__ import annotations

import pytest

from loadgen.metrics.window import WindowRow
from loadgen.results.run_record import measured_windows
from loadgen.results.run_snapshot import WorkerHealth
from loadgen.scenario.model import OnWorkerLoss
from orchestrator.lifecycle import (
    MetricsMissing,
    SearchFinished,
    StartStep,
)
from tests.unit.find_max_builders import BAD, CALM, CONFIG, MISSING_S, Led
from tests.unit.orchestrator_builders import end, live, tally, view, window


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


def test_a_failed_level_above_a_client_limit_decides_nothing() -> None:
    led = Led()
    for shown, cpu_percent in ((CALM, 20), (CALM, 20), (CALM, 20), (BAD, 20), (BAD, 97), (BAD, 97)):
        led.step(shown, cpu_percent=cpu_percent)

    assert [(step["target"], step["outcome"]) for step in led.result()["steps"]][3:] == [
        (35, "DEGRADED"), (25, "CLIENT_LIMIT"), (25, "CLIENT_LIMIT")
    ]  # fmt: skip
    assert (led.result()["max_concurrency"], led.result()["result"]) == (15, "BOUNDED_MAX")
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
