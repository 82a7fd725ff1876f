"""What a successor knows of a run, and what it reports as unknown."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, cast

import pytest

from loadgen.control.session import ControlSession, ParsedRows, RowUnreadable
from loadgen.control.tables.run_measurements import WarehousePoll
from loadgen.metrics.window import WindowRow
from loadgen.scenario.settings import GuardrailSettings, TimingSettings
from loadgen.snowflake.profile import ConnectionProfile
from orchestrator.aggregation import RunAggregator
from orchestrator.guardrails import LimitMonitor
from orchestrator.run_result import gather_windows
from orchestrator.warehouse import WarehousePoller
from tests.fake_clock import FakeClock
from tests.unit.orchestrator_builders import tally, view, window


def test_steps_of_a_search_that_another_leader_judged_are_named() -> None:
    limits = LimitMonitor((), GuardrailSettings(), TimingSettings(), RunAggregator(()))

    limits.warn_of_uncertain_steps((7,))

    assert len(limits.warnings) == 1
    assert "step 7" in limits.warnings[-1]


def test_the_cost_so_far_is_known_from_the_polls_of_the_warehouse() -> None:
    clock = FakeClock()
    now = clock.utc_now().replace(tzinfo=None)
    polls = ParsedRows(
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
    )
    profile, session = cast(ConnectionProfile, None), cast(ControlSession, None)  # it polls nothing here
    watch = WarehousePoller(profile, "WH", "run", session, clock=clock, period_s=5.0, environ={})

    assert watch.restore(polls) == []

    assert watch.credits == pytest.approx(2 * 0.5 + 1 * 0.5)
    assert watch.polls == tuple(polls)


def test_a_poll_of_another_century_costs_nothing_and_is_reported() -> None:
    clock = FakeClock()
    now = clock.utc_now().replace(tzinfo=None)
    known = {"run_id": "run", "running": 1, "queued": 0, "started_clusters": 1, "size": "X-Small", "raw": None}
    moments = (datetime(1, 1, 1), now - timedelta(hours=1), now, datetime(9999, 12, 31))  # noqa: DTZ001
    polls = ParsedRows(WarehousePoll(timestamp=moment, **known) for moment in moments)  # type: ignore[arg-type]
    profile, session = cast(ConnectionProfile, None), cast(ControlSession, None)  # it polls nothing here
    watch = WarehousePoller(profile, "WH", "run", session, clock=clock, period_s=5.0, environ={})

    told = watch.restore(polls)

    assert watch.credits == pytest.approx(1.0)
    assert [line.startswith("a poll of ") for line in told] == [True, True]


def test_stored_windows_that_cannot_be_read_are_gaps_and_the_others_count() -> None:
    good = window({"s": tally()}, window_id=1)
    row = WindowRow.of(good, worker_id="worker-0", epoch=1)
    error = RowUnreadable("WINDOW_RESULTS", "worker-0, window 9", "seconds is 'many'")
    changes: tuple[dict[str, Any], ...] = ({"counts": "{"}, {"buckets": "[]"}, {"phase": "NAPPING"}, {"seconds": -1.0})
    changes += ({"counts": "[" * 9_999}, {"buckets": row.counts})
    broken = [replace(row, window_id=number, **change) for number, change in enumerate(changes, start=2)]

    gathered = gather_windows([view(number=0)], ParsedRows([row, *broken], [error]))

    assert gathered.windows == {"worker-0": (good,)}
    assert len(gathered.gaps) == 1 + len(broken)
    assert str(error) in gathered.gaps
    progress = RunAggregator(())
    progress.remember_stored([row, *broken])
    assert progress.measured_s("worker-0") == good.seconds
