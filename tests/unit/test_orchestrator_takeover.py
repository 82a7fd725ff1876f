"""What a leader knows of a run that another has led so far, and what it says it does not know."""

from __future__ import annotations

from datetime import timedelta
from typing import cast

import pytest

from loadgen.clock import FakeClock
from loadgen.control.session import ControlSession
from loadgen.control.warehouse_poll_snapshots import WarehousePoll
from loadgen.metrics.result import WindowResult, merge
from loadgen.model.run import Phase
from loadgen.scenario.scenario import FindMax, Guardrails, Threshold, Timing
from loadgen.scenario.threshold import parse_check
from loadgen.snowflake.profile import Profile
from orchestrator.limits import Limits
from orchestrator.progress import Progress
from orchestrator.seeker import Seeker, step_record
from orchestrator.warehouse import WarehouseWatch
from tests.unit.orchestrator_builders import live, tally, view, window
from tests.unit.worker_builders import SERVER_TIME

CONFIG = FindMax(start=5, increment=10, step_s=10.0, maximum=100, refine=False)
CALM = tally((20.0,) * 500)
UNCLEAR = tally((20.0,) * 90 + (30.0,) * 10)  # the bounds of its p95 are on both sides of the limit
BAD = tally((99.0,) * 500)


def searched(*shown: WindowResult) -> Seeker:
    """A search that has judged these steps."""
    seeker = Seeker(CONFIG, (), missing_s=30.0)
    for step in shown:
        seeker.look([view()], 0.0, queue_seen=False)  # asks for the step
        judged, _ = seeker.look([view(live=live(step))], 1.0, queue_seen=False)
        assert judged is not None
    return seeker


def test_a_search_that_is_led_on_knows_how_sure_its_steps_were() -> None:
    steps = (
        window({"s": CALM}, step_id=1, seconds=10.0),
        window({"s": UNCLEAR}, step_id=2, seconds=30.0),
        window({"s": BAD}, step_id=3, seconds=10.0),
    )
    before = searched(*steps)
    rows = [step_record("run", judged, SERVER_TIME) for judged in before.search.steps]
    successor = Seeker(CONFIG, (), missing_s=30.0)

    unknown = successor.go_on(rows, lambda number: [[steps[number - 1]]])

    assert unknown == ()
    assert successor.search == before.search
    assert [judged.low_confidence for judged in successor.search.steps] == [False, True, False]
    decisive = merge([[steps[1]]])
    assert successor.result(decisive) == before.result(decisive)


def test_a_step_whose_measurement_is_lost_counts_as_unsure() -> None:
    before = searched(window({"s": CALM}, step_id=1, seconds=10.0))
    rows = [step_record("run", judged, SERVER_TIME) for judged in before.search.steps]
    successor = Seeker(CONFIG, (), missing_s=30.0)

    assert successor.go_on(rows, lambda number: []) == (1,)
    assert [judged.low_confidence for judged in successor.search.steps] == [True]


@pytest.mark.parametrize(
    ("phase", "told"),
    [(Phase.PREPARING, 0), (Phase.WARMUP, 0), (Phase.MEASUREMENT, 1), (Phase.COOLDOWN, 1), (Phase.PROCESSING, 1)],
)
def test_spans_that_nobody_judges_again_are_named(phase: Phase, told: int) -> None:
    thresholds = [Threshold(check=parse_check("p95 < 50ms"), window_s=10.0), Threshold(check=parse_check("qps > 1"))]
    limits = Limits(thresholds, Guardrails(), Timing(), Progress(thresholds))

    limits.go_on(phase, unsure_steps=(7,))

    text = "p95 < 50ms over 10 s: spans before the run was taken over were not judged again"
    assert limits.warnings.count(text) == told
    assert "step 7" in limits.warnings[-1]
    assert len(limits.warnings) == told + 1


def test_what_the_warehouse_has_cost_so_far_is_known_from_the_looks_at_it() -> None:
    clock = FakeClock()
    now = clock.utc_now().replace(tzinfo=None)
    polls = [
        WarehousePoll(
            run_id="run",
            timestamp=now - timedelta(seconds=ago_s),
            running=1,
            queued=0,
            started_clusters=clusters,
            size="X-Small",
            raw=None,
        )
        for ago_s, clusters in ((3_600, 2), (1_800, 1), (0, 1))
    ]
    profile, session = cast(Profile, None), cast(ControlSession, None)  # it looks at nothing here
    watch = WarehouseWatch(profile, "WH", "run", session, clock=clock, period_s=5.0, environ={})

    watch.go_on(polls)

    assert watch.credits == pytest.approx(2 * 0.5 + 1 * 0.5)
    assert watch.polls == tuple(polls)
