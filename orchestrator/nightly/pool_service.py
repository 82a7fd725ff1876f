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
from loadgen.control.setup.installer import ensure_tables
from loadgen.errors import UsageError
from loadgen.snowflake.session import RetryPolicy
from loadgen.threads import Service, exit_code_after
from loadgen.values import dataclass
from orchestrator.nightly.pool import AT_ONCE, PoolManager, PoolRules, RunnerProcess, serve_manager
from orchestrator.nightly.queue import HostPermissions, PollPace, QueueMaintenance, notify_unclaimed_runs
from orchestrator.nightly.runner import Runner, RunnerSettings, runner_identity
from orchestrator.nightly.scheduler import SchedulerHooks, run_scheduler

JOIN_S = 15.0
LEASE_MIN_S = 1.0
FIRST_CONTACT = 3  # attempts


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


def check_times(lease_s: float, poll_s: float) -> None:
    """UsageError if a lease would expire, or the queue would be polled, too often."""
    if lease_s < LEASE_MIN_S or poll_s <= 0:
        raise UsageError("--lease or --poll is too short", remedy="Leave it out, or write --lease 60s --poll 5s.")


def require_tables(place: ControlPlaneLocation, clock: Clock) -> None:
    """Check the control plane before the pool begins. Calls the driver."""
    ensure_tables(place, RetryPolicy(stop=threading.Event(), attempts=FIRST_CONTACT, clock=clock))


def serve_runner(
    place: ControlPlaneLocation,
    labels: tuple[str, ...],
    settings: RunnerSettings,
    received: Sequence[int],
    *,
    grace_s: float,
) -> None:
    """Execute queued runs until the manager, a signal or the registry ends the runner."""
    runner = Runner(lambda role: ControlSession(place, role=role), runner_identity(place, labels), settings)
    runner.start()
    serve_manager(runner, received, grace_s=grace_s)
    if runner.error is not None:
        raise runner.error


def serve_pool(
    place: ControlPlaneLocation,
    settings: PoolSettings,
    received: Sequence[int],
    tell: Callable[[str], None],
    *,
    clock: Clock,
) -> int:
    """Keep the pool until a signal is `received` and every runner has ended. Each event is a line for `tell`. Returns
    the exit code: 0, unless signals have ended the pool at once."""
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
    return 0 if len(received) < AT_ONCE else exit_code_after(received)


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
