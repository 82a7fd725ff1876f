"""What a leader knows of a run that another has led so far, and what it says it does not know."""

from __future__ import annotations

from datetime import timedelta
from typing import cast

import pytest

from loadgen.clock import FakeClock
from loadgen.control.session import ControlSession
from loadgen.control.tables.warehouse_poll_snapshots import WarehousePoll
from loadgen.scenario.settings import GuardrailSettings, TimingSettings
from loadgen.snowflake.profile import ConnectionProfile
from orchestrator.aggregation import RunAggregator
from orchestrator.guardrails import LimitMonitor
from orchestrator.warehouse import WarehousePoller


def test_steps_of_a_search_that_another_leader_judged_are_named() -> None:
    limits = LimitMonitor((), GuardrailSettings(), TimingSettings(), RunAggregator(()))

    limits.go_on((7,))

    assert len(limits.warnings) == 1
    assert "step 7" in limits.warnings[-1]


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
    profile, session = cast(ConnectionProfile, None), cast(ControlSession, None)  # it looks at nothing here
    watch = WarehousePoller(profile, "WH", "run", session, clock=clock, period_s=5.0, environ={})

    watch.go_on(polls)

    assert watch.credits == pytest.approx(2 * 0.5 + 1 * 0.5)
    assert watch.polls == tuple(polls)
