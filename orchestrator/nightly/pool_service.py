"""One pool on this machine, until a signal ends it.

thread      does                                                     owns
main        the manager: starts, pings and ends runners              the runner processes
queue       reads and maintains the queue                            its session
schedules   queues the runs of due schedules, reports unclaimed runs its session
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

from loadgen.clock import Clock
from loadgen.control.location import ControlPlaneLocation
from loadgen.control.session import ControlSession
from loadgen.snowflake.session import RetryPolicy
from loadgen.threads import Service
from loadgen.values import dataclass
from orchestrator.nightly.pool import AT_ONCE, PoolManager, PoolRules, RunnerProcess
from orchestrator.nightly.queue import HostPermissions, PollPace, QueueMaintenance, notify_unclaimed_runs
from orchestrator.nightly.scheduler import SchedulerHooks, run_scheduler

JOIN_S = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSettings:
    """The settings of a pool."""

    rules: PoolRules
    offers: tuple[str, ...]  # capabilities and labels of its runners
    runner_command: tuple[str, ...]
    runner_environment: Mapping[str, str]
    allowed: HostPermissions
    share: bool  # several runs may measure on one warehouse
    pace: PollPace
    grace_s: float


def serve_pool(
    place: ControlPlaneLocation,
    settings: PoolSettings,
    received: Sequence[int],
    tell: Callable[[str], None],
    *,
    clock: Clock,
) -> None:
    """Keep the pool until a signal is `received` and every runner has ended. Each event is a line for `tell`."""
    stop = threading.Event()
    maintenance = QueueMaintenance(
        ControlSession(place, role="queue"), settings.offers, share=settings.share, pace=settings.pace, clock=clock
    )

    def start(name: str) -> RunnerProcess:
        return RunnerProcess(name, settings.runner_command, settings.runner_environment, clock)

    def fire_schedules() -> None:
        _fire_schedules(place, stop, maintenance, settings.allowed, tell)

    scheduler = Service("schedules", fire_schedules, stopping=stop)
    manager = PoolManager(
        settings.rules,
        start,
        maintenance.take_depth,
        clock=clock,
        idle_beat_s=maintenance.idle_beat_s,
        release=maintenance.release,
        tell=tell,
        threads=(maintenance, scheduler),
    )
    maintenance.start()
    scheduler.start()
    try:
        manager.run(received, grace_s=settings.grace_s)
    finally:
        stop.set()
        maintenance.stop()
        if len(received) < AT_ONCE:
            maintenance.join(JOIN_S)
            scheduler.join(JOIN_S)


def _fire_schedules(
    place: ControlPlaneLocation,
    stop: threading.Event,
    maintenance: QueueMaintenance,
    allowed: HostPermissions,
    tell: Callable[[str], None],
) -> None:
    session, retries = ControlSession(place, role="schedules"), RetryPolicy(stop=stop, attempts=1)

    def report_unclaimed() -> None:
        if not maintenance.open_runs:
            return
        for one in notify_unclaimed_runs(session, retries, allowed, tell):
            tell(f"{one.queue_id} waits: {one.reason}")

    try:
        hooks = SchedulerHooks(idle_s=maintenance.idle_beat_s, then=report_unclaimed, fired=maintenance.wake)
        run_scheduler(session, stop, hooks=hooks)
    finally:
        session.close()
