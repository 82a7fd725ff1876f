"""What to do about a schedule that came due: pure, so that a year of it can be tried in a second.

    settled ──────────────────────────────────────── now − GRACE ────────── now
              missed: the newest `max_catchup` of       on time: all are
              them are fired, the others are not        fired

Every fire in (settled, now] gets one outcome; then all of them are settled. A clock that goes back finds nothing due
until it has passed that moment again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from loadgen.model.cron import CronExpression

GRACE = timedelta(seconds=120)  # two ticks of a crontab: one that comes before its minute by the server's clock is late
MAX_CATCHUP = 500
MISSED_RECORDED_MAX = 100  # of one schedule at once; those before are only settled
FIRES_PER_TICK_MAX = 1_000
BATCH = 100  # schedules
TICK_S = 5.0

# One schedule's fires fit into one tick, even when it fires every second.
assert GRACE.total_seconds() + MAX_CATCHUP + MISSED_RECORDED_MAX < FIRES_PER_TICK_MAX


class Overlap(StrEnum):
    """What to do when the run of the last fire has not ended."""

    SKIP = "skip"
    QUEUE = "queue"


class FireOutcome(StrEnum):
    """What became of a fire."""

    DUE = "DUE"  # to be queued, by whoever sees it
    QUEUED = "QUEUED"
    SKIPPED = "SKIPPED"  # the run before had not ended
    MISSED = "MISSED"  # nobody was there in time, and it is too late


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Of a schedule, what decides when it fires. `settled`: up to then everything is decided."""

    cron: CronExpression
    max_catchup: int
    overlap: Overlap
    settled: datetime  # aware, UTC


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleFire:
    at: datetime  # aware, UTC
    outcome: FireOutcome


def due_fires(schedule: Schedule, now: datetime, *, busy: bool) -> tuple[ScheduleFire, ...]:
    """What came due in (settled, now], the newest first. `busy`: the run of the last fire has not ended."""
    fires: list[ScheduleFire] = []
    for at, wanted in _chosen(schedule, now):
        if not wanted:
            outcome = FireOutcome.MISSED
        elif busy and schedule.overlap is Overlap.SKIP:
            outcome = FireOutcome.SKIPPED
        else:
            outcome, busy = FireOutcome.DUE, True
        fires.append(ScheduleFire(at=at, outcome=outcome))
    return tuple(fires)


def _chosen(schedule: Schedule, now: datetime) -> Iterator[tuple[datetime, bool]]:
    """Each fire, the newest first, and whether it is to be fired at all."""
    catchup, missed = schedule.max_catchup, 0
    for at in schedule.cron.before(now):
        if at <= schedule.settled or missed == MISSED_RECORDED_MAX:
            return
        on_time = at > now - GRACE
        yield at, on_time or catchup > 0
        if not on_time:
            catchup, missed = catchup - 1, missed + (catchup <= 0)


def fire_key(schedule_id: str, at: datetime) -> str:
    """The idempotency key of a fire's run."""
    return f"schedule:{schedule_id}:{at:%Y-%m-%dT%H:%M:%SZ}"
