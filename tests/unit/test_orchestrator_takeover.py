"""What a leader knows of a run that another has led so far, and what it says it does not know."""

from __future__ import annotations

from datetime import timedelta
from typing import cast

import pytest

from loadgen.clock import FakeClock
from loadgen.control.session import ControlSession
from loadgen.control.warehouse_poll_snapshots import WarehousePoll
from loadgen.model.run import Phase
from loadgen.scenario.scenario import Guardrails, Threshold, Timing
from loadgen.scenario.threshold import parse_check
from loadgen.snowflake.profile import Profile
from orchestrator.limits import Limits
from orchestrator.progress import Progress
from orchestrator.warehouse import WarehouseWatch


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
