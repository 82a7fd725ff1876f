"""The queue: scenarios packed for it, what they may use on the host that runs them, and its maintenance.

Rows of the queue are data: a user with write access to them must not get secrets or start programs on the hosts of a
pool. So variables, connections, webhooks, programs and clusters that a row names must be allowed by the user of the
pool. The connection of the pool is always allowed.

Several pools maintain one queue at the same time. Every step of the maintenance is safe to repeat.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

from loadgen.clock import Clock
from loadgen.control.location import ControlPlaneLocation
from loadgen.control.session import ControlSession, RowUnreadable
from loadgen.control.setup.installer import ensure_tables
from loadgen.control.tables import pool_workers, prune, run_queue
from loadgen.control.tables.pool_workers import PoolWorker
from loadgen.control.tables.prune import PruneCandidates
from loadgen.control.tables.run_queue import (
    TEXTS_BYTES_MAX,
    EnqueueResult,
    QueueDepth,
    QueuedRun,
    QueueRequest,
    texts_bytes,
)
from loadgen.errors import ConfigurationError, LoadgenError, ScenarioInvalid, UsageError
from loadgen.log import event, printable
from loadgen.model.nightly import UNCLAIMED_AFTER_S, unmet_requirements
from loadgen.model.warehouse import look_credits_per_day
from loadgen.scenario.settings import SpawnerKind
from loadgen.snowflake.profile_lookup import read_config_files
from loadgen.snowflake.session import RetryPolicy
from loadgen.threads import Service
from loadgen.units import NS_PER_S
from loadgen.values import dataclass
from orchestrator.nightly.attempt import AttemptFolder, old_folders, remove

if TYPE_CHECKING:
    from loadgen.scenario.model import Scenario
    from loadgen.scenario.read import LoadedScenario
    from loadgen.scenario.settings import Notification

log = logging.getLogger(__name__)

PERMISSION_KINDS = ("variable", "webhook", "connection", "command", "cluster")
DEFAULT_CLUSTER = "current"  # where spawner.context is not given


class NotAllowed(ConfigurationError):
    """A queued scenario uses something of this host that the user of the pool has not allowed."""

    def __init__(self, kind: str, name: str, where: str) -> None:
        shown = printable(name, 100)
        option = f"--allow-{kind} {shown}"
        super().__init__(
            f"{where} uses the {kind} {shown}, which is not allowed from the queue: pool run {option}",
            remedy=f"If you trust everyone who may queue runs, start the pool with {option}.",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPermissions:
    """What queued scenarios may use on this host. Names are compared exactly; hosts of webhooks are in lower case."""

    variables: frozenset[str] = frozenset()
    webhooks: frozenset[str] = frozenset()
    connections: frozenset[str] = frozenset()
    commands: frozenset[str] = frozenset()
    clusters: frozenset[str] = frozenset()  # contexts of Kubernetes

    @classmethod
    def of_options(cls, given: Mapping[str, Any], *connections: str | None) -> HostPermissions:
        """The permissions of the options --allow-*. `connections` are allowed as well."""
        named = {f"{kind}s": frozenset(given[f"allow_{kind}"]) for kind in PERMISSION_KINDS}
        own = {name for name in connections if name is not None}
        allowed = cls(**named)
        return replace(
            allowed,
            connections=allowed.connections | own,
            webhooks=frozenset(host.lower() for host in allowed.webhooks),
        )

    @property
    def words(self) -> list[str]:
        """The options that give these permissions."""
        return [f"--allow-{kind}={name}" for kind in PERMISSION_KINDS for name in sorted(getattr(self, f"{kind}s"))]


def apply_permissions(scenario: Scenario, allowed: HostPermissions, warn: Callable[[str], None]) -> Scenario:
    """The scenario with the notifications that it may send. Raises NotAllowed for anything else that is not allowed."""
    for name in {scenario.connection, scenario.control.connection or scenario.connection}:
        known = name or default_connection()
        if known not in allowed.connections:
            raise NotAllowed("connection", known or "(default)", "the scenario")
    if scenario.spawner.kind is SpawnerKind.KUBERNETES:
        context = scenario.spawner.context or DEFAULT_CLUSTER
        if context not in allowed.clusters:
            raise NotAllowed("cluster", context, "spawner")
    return restrict_notifications(scenario, allowed, warn)


def restrict_notifications(scenario: Scenario, allowed: HostPermissions, warn: Callable[[str], None]) -> Scenario:
    """The scenario without notifications by programs that are not allowed. Raises NotAllowed for other webhooks."""
    kept: list[Notification] = []
    for number, one in enumerate(scenario.notify):
        where, url = f"notify.{number}", one.webhook or one.ping
        if url is not None and (host := _host(str(url))) not in allowed.webhooks:
            raise NotAllowed("webhook", host, where)
        if one.command and str(one.command[0]) not in allowed.commands:
            warn(f"not sent: {NotAllowed('command', str(one.command[0]), where)}")
        else:
            kept.append(one)
    return replace(scenario, notify=tuple(kept))


def default_connection() -> str | None:
    """The name of the connection that is used if none is named."""
    files = read_config_files(os.environ)
    return files.default_name or ("default" if "default" in files.sections else None)


def _host(url: str) -> str:
    try:
        return (urlsplit(url).hostname or "").lower()
    except ValueError:
        return ""


def pack_scenario(file: Path, connection: str | None, loaded: LoadedScenario) -> QueueRequest:
    """The scenario with the texts of its value files, for a host with other variables and default connection."""
    from loadgen.scenario.model import FilePool
    from loadgen.scenario.read import portable_text

    scenario, text = loaded.scenario, portable_text(loaded)
    if scenario.load.replay is not None:
        raise ScenarioInvalid(
            f"{printable(str(file), 200)} replays a capture, and the queue keeps no captures",
            remedy="Run it with `loadgen run`, from cron for example.",
        )
    if scenario.connection is None:
        connection = _default_connection()
    names = sorted({pool.file for pool in scenario.pools if isinstance(pool, FilePool)})
    files = {name: _text(file.parent, name) for name in names}
    warehouse = scenario.target.warehouse or "its warehouse"
    target = f"{scenario.connection or connection}/{warehouse}"
    wanted = QueueRequest(name=scenario.name, scenario=text, files=files, connection=connection, target=target)
    if (size := texts_bytes(wanted)) > TEXTS_BYTES_MAX:
        raise ScenarioInvalid(
            f"{printable(str(file), 200)} and its value files have {size:,} bytes as the queue stores them;"
            f" its limit is {TEXTS_BYTES_MAX:,}",
            remedy="Let the scenario take the values from a query: values: {NAME: {query: ...}}.",
        )
    return wanted


def enqueue(session: ControlSession, retries: RetryPolicy, wanted: QueueRequest) -> EnqueueResult:
    """Add a run to the queue, once for each idempotency key. UsageError if another run has the key."""
    ensure_tables(session.place, retries)
    added = run_queue.add(session, retries, wanted)
    if added.differs:
        raise UsageError(
            f"{added.queue_id} has the same --idempotency-key, but differs in {', '.join(added.differs)}",
            remedy=f"Choose another key for this run; `loadgen queue show {added.queue_id}` shows the other.",
        )
    return added


def retry_queued(session: ControlSession, retries: RetryPolicy, queue_id: str, reason: str) -> QueuedRun:
    """Queue a run again. UsageError if it has not ended, or has a result."""
    row = run_queue.retry(session, retries, run_queue.find(session, retries, queue_id), reason)
    if not row.follows(reason):
        raise UsageError(
            f"{row.queue_id} is {row.status}, so it cannot be queued again",
            remedy="Only FAILED, CANCELLED and EXHAUSTED runs can; `loadgen queue add` queues a new run.",
        )
    return row


def take_offline(session: ControlSession, retries: RetryPolicy, name: str, by: str) -> PoolWorker:
    """Mark a runner as offline, and let others take its run at once. `by` names the user in the reason."""
    worker_id = pool_workers.find(session, retries, name).identity.worker_id
    pool_workers.offline(session, retries, worker_id)
    run_queue.expire(session, retries, worker_id, f"its runner was marked as offline by {by}")
    return pool_workers.find(session, retries, worker_id)


def _default_connection() -> str:
    """The name of the default connection: the host that executes the run may have another default."""
    name = default_connection()
    if name is None:
        raise UsageError(
            "the scenario names no connection, and this machine has no default connection",
            remedy="Name a connection of the host that executes the run: -c NAME, or connection: in the scenario.",
        )
    return name


def _text(folder: Path, name: str) -> str:
    from loadgen.scenario.file import require_inside

    try:
        require_inside(folder, name)
        return (folder / name).read_text("utf-8-sig")
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ScenarioInvalid(
            f"the value file {printable(name, 200)} cannot be read: {why}",
            remedy="Value files are in the folder of the scenario.",
        ) from error


def with_control_plane_of_queue(scenario: Scenario) -> Scenario:
    """A queued run has the control plane of its queue. Equal settings are not changed, because the scenario's identity
    counts in comparisons."""
    own, of_queue = ControlPlaneLocation.of_scenario(scenario), ControlPlaneLocation.from_environment()
    default = ControlPlaneLocation()
    changed = {
        name: getattr(of_queue, name)
        for name in ("connection", "database", "schema", "warehouse")
        if getattr(of_queue, name) != getattr(own, name)
        and not (name in ("connection", "warehouse") and getattr(of_queue, name) == getattr(default, name))
    }
    return replace(scenario, control=replace(scenario.control, **changed))


# --- Maintenance: how often a pool reads the queue, abandoned runs, runs that no runner can take ----------------------

PRUNE_S = 3600.0
RUNNER_ENDED = "the process of its runner has ended"
IDLE_READS = 2  # consecutive reads without work: one may fall between the fire of a schedule and its run
SOONER_MAX = 4  # number of consecutive failed reads after which the next one comes sooner


@dataclass(frozen=True, slots=True, kw_only=True)
class PollPace:
    """How often a pool reads the tables. Each read keeps the control plane's warehouse running for a minute."""

    poll_s: float = 5.0
    idle_poll_s: float = 5.0  # while there is no work

    @classmethod
    def of(cls, place: ControlPlaneLocation, poll_s: float, idle_poll_s: float) -> Self:
        """On an embedded control plane, whose warehouse costs nothing, an idle pool reads as often as a busy one."""
        return cls(poll_s=poll_s, idle_poll_s=poll_s if place.profile().is_embedded else idle_poll_s)

    def is_idle(self, idle_reads: int) -> bool:
        """Whether the pool is idle after this number of consecutive reads without work."""
        return self.idle_poll_s > self.poll_s and idle_reads >= IDLE_READS

    def pause_s(self, idle_reads: int, failures: int = 0, due_in_s: float | None = None) -> float:
        """The pause before the next read. It is shorter if a queued run is due earlier, and after the first failed
        reads, so that not every read of a long outage comes sooner."""
        pause_s = self.idle_poll_s if self.is_idle(idle_reads) else self.poll_s
        if due_in_s is not None and due_in_s > 0:
            pause_s = min(pause_s, max(due_in_s, self.poll_s))
        return min(pause_s, self.poll_s * 2.0 ** (failures - 1)) if 0 < failures <= SOONER_MAX else pause_s

    def credits_per_day(self) -> float:
        """The cost of an idle pool, with an X-Small warehouse that suspends itself after a minute."""
        return look_credits_per_day(self.idle_poll_s)


class QueueMaintenance(Service):
    """The thread that reads and maintains the queue for all runners of a pool. Owns `session`, which it closes."""

    def __init__(
        self, session: ControlSession, offers: tuple[str, ...], *, share: bool, pace: PollPace, clock: Clock
    ) -> None:
        self._session, self._offers, self._share = session, offers, share
        self._pace, self._clock = pace, clock
        self._idle_reads = 0  # consecutive reads that found no work
        self._failures = 0  # consecutive failed reads
        self._ended: deque[tuple[str, str]] = deque()  # runners of this pool whose processes have ended, with reasons
        self._woken = threading.Event()  # read the queue now
        self._due_ns: int | None = None  # when the next queued run is due
        self.open_runs = 0  # number of runs that are queued or executed, of all pools
        self._depth: QueueDepth | None = None
        self._lock = threading.Lock()  # guards _depth
        super().__init__("queue", self._maintain)
        self._retries = RetryPolicy(stop=self.stopping, attempts=1, clock=clock)
        self._prune_ns = clock.monotonic_ns()

    def take_depth(self) -> QueueDepth | None:
        """The number of waiting runs. None: not read since the last call."""
        with self._lock:
            depth, self._depth = self._depth, None
            return depth

    def idle_beat_s(self) -> float | None:
        """The heartbeat interval of runners while there is no work. None: there may be work."""
        return self._pace.idle_poll_s if self._pace.is_idle(self._idle_reads) else None

    def wake(self) -> None:
        """Read the queue now: a run was queued."""
        self._idle_reads = 0
        self._woken.set()

    def release(self, worker_id: str, why: str) -> None:
        """The process of this runner has ended: other runners can take its run at once."""
        self._ended.append((worker_id, why))
        self.wake()

    def stop(self) -> None:
        super().stop()
        self._woken.set()

    def step(self) -> None:
        """Read the queue once, and do the maintenance that is due."""
        session, retries = self._session, self._retries
        self._release_ended()
        if self._clock.monotonic_ns() >= self._prune_ns:
            pool_workers.prune(session, retries)
            pool_workers.silent_offline(session, retries)
            self._prune_ns = self._clock.monotonic_ns() + round(PRUNE_S * NS_PER_S)
        found = run_queue.open_runs(session, self._offers)
        self.open_runs = found.total
        self._due_ns = None
        if found.due_in_s is not None:
            self._due_ns = self._clock.monotonic_ns() + round(found.due_in_s * NS_PER_S)
        if not found.is_work:
            self._idle_reads += 1
            self._set_depth(QueueDepth())
            return
        self._idle_reads = 0
        self._set_depth(run_queue.depth(session, self._offers, share=self._share))
        self._expire_ended()
        pool_workers.silent_offline(session, retries)
        ended = run_queue.end_abandoned(session, retries)
        ended += run_queue.refuse_unclaimable(session, retries)
        if ended:
            event(log, logging.INFO, "queue_tidied", runs=ended)

    def _release_ended(self) -> None:
        while self._ended:
            self._expire(*self._ended[0])
            self._ended.popleft()

    def _set_depth(self, depth: QueueDepth) -> None:
        with self._lock:
            self._depth = depth

    def _expire_ended(self) -> None:
        """Expire the leases of runners whose process has ended on this machine."""
        for owner in filter(pool_workers.is_gone, run_queue.owners(self._session)):
            self._expire(owner, RUNNER_ENDED)

    def _expire(self, owner: str, why: str) -> None:
        run_queue.expire(self._session, self._retries, owner, why)
        pool_workers.offline(self._session, self._retries, owner)
        event(log, logging.INFO, "claims_expired", runner=owner, why=why)

    def _maintain(self) -> None:
        while not self.stopping.is_set():
            self._failures += 1
            try:
                self.step()
                self._failures = 0
            except LoadgenError as error:
                event(log, logging.WARNING, "queue_read_failed", why=str(error))
            except Exception as error:  # the top of a thread: an error must be visible in the log of the pool
                event(log, logging.ERROR, "queue_read_failed", why=f"{type(error).__name__}: {error}")
            self._clock.wait(self._woken, self._pause_s())
            self._woken.clear()
        with suppress(LoadgenError):  # on a failure the leases expire by themselves
            self._release_ended()
        self._session.close()

    def _pause_s(self) -> float:
        due_in_s = None if self._due_ns is None else (self._due_ns - self._clock.monotonic_ns()) / NS_PER_S
        return self._pace.pause_s(self._idle_reads, self._failures, due_in_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnclaimedRun:
    """A queued run that no online runner can take."""

    queue_id: str
    reason: str


def find_unclaimed_runs(session: ControlSession, retries: RetryPolicy, *, after_s: int = 0) -> tuple[UnclaimedRun, ...]:
    """The runs that have waited for at least `after_s` and that no online runner can take."""
    waiting = retries.call(lambda: run_queue.waiting(session))
    offers = retries.call(lambda: pool_workers.offers(session)) if waiting else ()
    found = ((one, unmet_requirements(one.requires, offers)) for one in waiting if one.waited_s >= after_s)
    return tuple(UnclaimedRun(queue_id=one.queue_id, reason=why) for one, why in found if why is not None)


def notify_unclaimed_runs(
    session: ControlSession, retries: RetryPolicy, allowed: HostPermissions, warn: Callable[[str], None]
) -> tuple[UnclaimedRun, ...]:
    """Report runs that have waited for too long, once each: in the row, and by the notifications of the scenario that
    this host allows. Returns these runs."""
    reported = []
    for one in find_unclaimed_runs(session, retries, after_s=UNCLAIMED_AFTER_S):
        if run_queue.note(session, retries, one.queue_id, f"it waits: {one.reason}"):
            reported.append(one)
            _notify(session, retries, one, allowed, warn)
    return tuple(reported)


def _notify(
    session: ControlSession,
    retries: RetryPolicy,
    one: UnclaimedRun,
    allowed: HostPermissions,
    warn: Callable[[str], None],
) -> None:
    from loadgen.scenario.read import parse_scenario  # both take long to import, and are rarely needed
    from orchestrator.nightly.notify import notify_not_started

    try:
        text = retries.call(lambda: run_queue.read_scenario_text(session, one.queue_id))
        loaded = parse_scenario(text or "", source=one.queue_id, environ=os.environ, variables=allowed.variables)
        scenario = restrict_notifications(loaded.scenario, allowed, warn)
    except LoadgenError as error:
        warn(f"{one.queue_id}: no notification was sent: {error}")
        return
    notify_not_started(scenario, one.queue_id, one.reason, warn)


# --- old runs are deleted --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneResult:
    """What is old enough to be deleted, and what was deleted."""

    found: PruneCandidates
    folders: tuple[AttemptFolder, ...]
    stuck: tuple[AttemptFolder, ...]  # could not be deleted
    deleted: dict[str, int]  # rows by table; empty after a dry run
    dry_run: bool


def prune_old_runs(
    session: ControlSession,
    retries: RetryPolicy,
    age_s: float,
    runs_folder: Path,
    *,
    clock: Clock,
    dry_run: bool,
) -> PruneResult:
    """Delete runs, queued runs, experiments and folders of attempts that ended longer ago than `age_s`."""
    found = prune.find_old(session, retries, age_s)
    before_s = clock.utc_now().timestamp() - age_s
    folders = [one for one in old_folders(runs_folder, before_s) if _has_ended(session, retries, one.queue_id)]
    stuck: tuple[AttemptFolder, ...] = ()
    deleted: dict[str, int] = {}
    if not dry_run:
        stuck = tuple(folder for folder in folders if not remove(folder))
        deleted = prune.delete(session, retries, found)
    kept = tuple(folder for folder in folders if folder not in stuck)
    return PruneResult(found=found, folders=kept, stuck=stuck, deleted=deleted, dry_run=dry_run)


def _has_ended(session: ControlSession, retries: RetryPolicy, queue_id: str) -> bool:
    """Whether the queued run has ended or was deleted: then the folders of its attempts are not needed."""
    try:
        row = retries.call(lambda: run_queue.read(session, queue_id))
    except RowUnreadable:
        return False
    return row is None or row.status.is_terminal
