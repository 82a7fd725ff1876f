"""Workers in the containers of one job: the spawner, which does not depend on the platform, and the platform's job.

One request starts all workers. A thread with a separate connection reads their states every few seconds; the leader
never waits for it. That thread also ends the containers, reads their logs, and removes the job.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from loadgen.clock import Clock
from loadgen.control.location import ControlPlaneLocation
from loadgen.errors import ConfigurationError, LoadgenError
from loadgen.files import open_private
from loadgen.log import event
from loadgen.model.run import ProcessEnd
from loadgen.scenario.model import Scenario
from loadgen.scenario.settings import SpawnerKind
from loadgen.snowflake.profile_lookup import find_profile
from loadgen.threads import Service
from loadgen.units import NS_PER_S
from orchestrator.spawn import kubernetes_job, spcs
from orchestrator.spawn.kubernetes import KubernetesApi, KubernetesWorkerJob
from orchestrator.spawn.kubernetes_job import KubernetesJob, pod_environment, require_kubernetes_settings
from orchestrator.spawn.spawner import LAST_LINES, ContainerLost, WorkerOrder
from orchestrator.spawn.spcs import JobService, JobStatements, SpcsJob, require_spcs_settings

log = logging.getLogger(__name__)

POLL_S = 5.0
LOGS_S = 10.0  # to read the logs of all workers; the removal of the job must not wait for longer
JOIN_S = 60.0
START_PART = 0.9  # of the time to register: a container that has not started by then fails the run with its reason
_RUN_ID = "RUN_ID"  # placeholder in a manifest without a run


class ContainerState(Protocol):
    """The state of the container of one worker."""

    @property
    def index(self) -> int: ...

    @property
    def has_failed(self) -> bool: ...

    @property
    def waits(self) -> str:
        """Why it has not started; empty once it has."""

    @property
    def is_held_up(self) -> bool:
        """Whether it waits for something that is not a usual step of a start."""

    def end(self, worker_id: str, last_lines: tuple[str, ...] = ()) -> ProcessEnd | None:
        """The end of the worker. None: it has not ended."""


class WorkerJob(Protocol):
    """The container job of a run, on one connection. Belongs to one thread."""

    @property
    def name(self) -> str: ...

    @property
    def by_hand(self) -> str:
        """The command with which a user removes the job."""

    @property
    def may_exist(self) -> bool:
        """Valid after start(). The job exists, or the answer to its creation was lost."""

    def start(self, workers: int) -> None:
        """Create the job. Safe to repeat: an existing job is found. Raises LoadgenError with a remedy."""

    def observe(self) -> Sequence[ContainerState] | None:
        """The containers of the job. None: the job does not exist."""

    def read_log(self, index: int) -> str: ...

    def cancel(self) -> None:
        """Send SIGTERM to all containers."""

    def remove(self) -> None:
        """Remove the job with its containers. Without effect if it does not exist."""

    def is_led_by_another(self, run_id: str) -> bool: ...

    def close(self) -> None: ...


class ContainerSpawner:
    """Workers in the containers of one job. If this process dies, the workers end by themselves when the lease of their
    run has expired, and the job ends with them."""

    def __init__(
        self,
        open_job: Callable[[], WorkerJob],
        log_folder: Path,
        *,
        clock: Clock,
        poll_s: float = POLL_S,
        start_limit_s: float | None = None,
    ) -> None:
        """`start_limit_s`: a container that has not started within this time counts as lost."""
        self._open_job, self._log_folder = open_job, log_folder
        self._clock, self._poll_s, self._start_limit_s = clock, poll_s, start_limit_s
        self._started_ns = clock.monotonic_ns()
        self._run_id = ""
        self._workers: dict[int, str] = {}  # by index of the container
        self._ends: Mapping[str, ProcessEnd] = {}  # replaced as a whole: the leader reads it
        self._begun: set[int] = set()  # indexes of containers that have started
        self._logged: set[int] = set()  # indexes of containers whose logs were read
        self._reported: frozenset[str] = frozenset()  # reasons why containers wait that were logged
        self._failed_polls = 0  # since the last successful one
        self._request = ""  # of the leader: cancel, then remove
        self._cancelled = False
        self._to_remove = False  # the job exists or may exist
        self._woken, self._closing = threading.Event(), threading.Event()
        self._thread: Service | None = None

    # --- the leader's side -------------------------------------------------------------------------------------------

    def start(self, orders: tuple[WorkerOrder, ...]) -> None:
        self._note(orders)
        job = self._open_job()
        try:
            job.start(len(orders))
        finally:
            self._to_remove = job.may_exist
            job.close()
        event(log, logging.INFO, "job_started", job=job.name, workers=len(orders))
        self._follow()

    def adopt(self, orders: tuple[WorkerOrder, ...]) -> None:
        """Instead of start(): follow, and finally remove, the job that another orchestrator has started."""
        self._note(orders)
        self._to_remove = True
        self._follow()

    def _note(self, orders: tuple[WorkerOrder, ...]) -> None:
        self._started_ns = self._clock.monotonic_ns()
        self._run_id = orders[0].run_id
        self._workers = {order.worker_group_id: order.worker_id for order in orders}

    def _follow(self) -> None:
        self._thread = Service("container-poll", self._run)
        self._thread.start()

    def ended(self) -> tuple[ProcessEnd, ...]:
        if self._thread is not None:
            self._thread.check()
        return tuple(self._ends.values())

    def running(self) -> int:
        return 0  # containers run on other machines

    def terminate(self, *, hard: bool) -> None:
        self._request = "remove" if hard else self._request or "cancel"
        self._woken.set()

    def close(self) -> None:
        """Read the logs of the workers, and remove the job with its containers."""
        self._closing.set()
        self._woken.set()
        if self._thread is None:
            self._remove(self._open_job())  # start() failed, but the job may have been created
            return
        if not self._thread.join(JOIN_S):
            job = self._open_job()
            event(log, logging.WARNING, "job_not_removed", job=job.name, by_hand=job.by_hand)

    # --- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        job = self._open_job()
        while not self._closing.is_set():
            try:
                self._carry_out_request(job)
                self._poll(job)
                self._note_success(job)
            except Exception as error:  # clients leak exceptions of their libraries; the next poll may succeed
                level = logging.DEBUG if self._failed_polls else logging.WARNING
                event(log, level, "containers_not_seen", job=job.name, what=str(error))
                self._failed_polls += 1
            self._clock.wait(self._woken, self._pause_s())
            self._woken.clear()
        self._remove(job)

    def _pause_s(self) -> float:
        """Time until the next poll, at most until the limit for the start: the reason of a late start must be known
        before the time to register is over."""
        left_s = self._poll_s if self._start_limit_s is None else self._start_limit_s - self._waited_s()
        return min(self._poll_s, left_s) if left_s > 0 else self._poll_s

    def _waited_s(self) -> float:
        return (self._clock.monotonic_ns() - self._started_ns) / NS_PER_S

    def _note_success(self, job: WorkerJob) -> None:
        if self._failed_polls:
            event(log, logging.WARNING, "containers_seen_again", job=job.name, missed=self._failed_polls)
        self._failed_polls = 0

    def _carry_out_request(self, job: WorkerJob) -> None:
        if self._request == "cancel" and not self._cancelled:
            job.cancel()
            self._cancelled = True
        elif self._request == "remove":
            self._remove(job)

    def _poll(self, job: WorkerJob) -> None:
        """Find containers that have ended. The log of a failed container is read before its end is reported."""
        if not self._to_remove:
            return
        containers = job.observe()
        if containers is None:
            self._lose_all("ended with its job" if self._cancelled else "was lost: its job was removed")
            return
        waited_s = self._waited_s()
        for container in containers:
            worker_id = self._workers.get(container.index)
            if worker_id is None or worker_id in self._ends:
                continue
            lines = self._fetch_log(job, container.index) if container.has_failed else ()
            end = container.end(worker_id, lines) or self._overdue(container, worker_id, waited_s)
            if end is not None:
                self._ends = {**self._ends, worker_id: end}
        held_up = frozenset(one.waits for one in containers if one.is_held_up)
        if held_up - self._reported:
            event(log, logging.WARNING, "containers_wait", job=job.name, why="; ".join(sorted(held_up)))
        self._reported |= held_up

    def _overdue(self, container: ContainerState, worker_id: str, waited_s: float) -> ProcessEnd | None:
        """The end of a container that has not started in time. A container that has started once is never overdue."""
        if not container.waits:
            self._begun.add(container.index)
        late = self._start_limit_s is not None and waited_s >= self._start_limit_s
        if not late or container.index in self._begun or self._cancelled:
            return None
        what = f"did not start within {self._start_limit_s:g} s: {container.waits}"
        return ContainerLost(worker_id=worker_id, what=what)

    def _lose_all(self, what: str) -> None:
        lost = [worker_id for worker_id in self._workers.values() if worker_id not in self._ends]
        self._ends = {**self._ends, **{one: ContainerLost(worker_id=one, what=what) for one in lost}}

    def _remove(self, job: WorkerJob) -> None:
        """Read the logs, remove the job once, and close the connection. If another process has taken the run over, the
        job is not removed."""
        try:
            if self._to_remove and not job.is_led_by_another(self._run_id):
                self._fetch_logs(job)
                job.remove()
                self._to_remove = False
                event(log, logging.INFO, "job_removed", job=job.name)
        except LoadgenError as error:
            event(log, logging.WARNING, "job_not_removed", job=job.name, what=str(error), by_hand=job.by_hand)
        finally:
            job.close()

    # --- logs --------------------------------------------------------------------------------------------------------

    def _fetch_logs(self, job: WorkerJob) -> None:
        until_ns = self._clock.monotonic_ns() + round(LOGS_S * NS_PER_S)
        for index in sorted(self._workers.keys() - self._logged):
            if self._clock.monotonic_ns() > until_ns:
                event(log, logging.WARNING, "logs_not_fetched", workers=len(self._workers) - len(self._logged))
                return
            self._fetch_log(job, index)

    def _fetch_log(self, job: WorkerJob, index: int) -> tuple[str, ...]:
        """Write the log of a worker to a file, and return its last lines. A container that never started has no log."""
        try:
            text = job.read_log(index)
            path = self._log_folder / f"{self._workers[index]}.log"
            if text or not path.exists():  # keep an earlier log of a container that does not exist any more
                with open(path, "w", encoding="utf-8", errors="backslashreplace", opener=open_private) as file:
                    file.write(text if not text or text.endswith("\n") else f"{text}\n")
        except (LoadgenError, OSError) as error:
            event(log, logging.WARNING, "log_not_fetched", worker=self._workers[index], what=str(error))
            return ()
        self._logged.add(index)
        return tuple(text.splitlines()[-LAST_LINES:])


class AdoptedContainers(ContainerSpawner):
    """The containers of a run that is taken over. They are observed, ended and removed as if started here."""

    def start(self, orders: tuple[WorkerOrder, ...]) -> None:
        """Follow the containers that another orchestrator has started."""
        self.adopt(orders)


# --- The platform of a scenario --------------------------------------------------------------------------------------


def runs_containers(scenario: Scenario) -> bool:
    return scenario.spawner.kind in (SpawnerKind.SPCS, SpawnerKind.KUBERNETES)


def require_container_settings(
    scenario: Scenario, place: ControlPlaneLocation, environ: Mapping[str, str] = os.environ
) -> None:
    """Reject settings that cannot work, before anything is created."""
    if scenario.spawner.kind is SpawnerKind.SPCS:
        require_spcs_settings(scenario, place, environ)
    elif scenario.spawner.kind is SpawnerKind.KUBERNETES:
        require_kubernetes_settings(scenario, place)
        KubernetesApi(scenario.spawner.context, scenario.spawner.namespace, environ=environ).close()


def job_opener(
    scenario: Scenario,
    place: ControlPlaneLocation,
    run_id: str,
    variables: Mapping[str, str] | None,
    *,
    clock: Clock,
    environ: Mapping[str, str] = os.environ,
) -> Callable[[], WorkerJob]:
    """Returns a function that opens the job of a run, once per thread. `variables`: the environment of the workers.
    None: they have been started."""
    if scenario.spawner.kind is SpawnerKind.SPCS:
        service = JobStatements(name=spcs.job_name(run_id))
        if variables is not None:
            service = SpcsJob.of_scenario(scenario, run_id, variables, environ)
        return lambda: JobService(place, service, clock=clock, environ=environ)
    spawner, job = scenario.spawner, None
    if variables is not None:
        profile = find_profile(scenario.connection, environ=environ)
        job = KubernetesJob.of_scenario(scenario, run_id, pod_environment(scenario, place, variables, profile))
    return lambda: KubernetesWorkerJob(
        place,
        kubernetes_job.job_name(run_id),
        job,
        context=spawner.context,
        namespace=spawner.namespace,
        clock=clock,
        environ=environ,
    )


def remove_job(scenario: Scenario, place: ControlPlaneLocation, run_id: str, clock: Clock) -> None:
    """Remove the job of a run that was recovered. A failure is logged as a warning."""
    job = job_opener(scenario, place, run_id, None, clock=clock)()
    try:
        job.remove()
        event(log, logging.INFO, "job_removed", job=job.name)
    except LoadgenError as error:
        event(log, logging.WARNING, "job_not_removed", job=job.name, what=str(error), by_hand=job.by_hand)
    finally:
        job.close()


def planned_manifest(
    scenario: Scenario,
    variables: Mapping[str, str],
    warn: Callable[[str], None],
    environ: Mapping[str, str] = os.environ,
) -> dict[str, object]:
    """The manifest of the Job of a run that does not exist yet: RUN_ID stands for its id. Opens no connection."""
    place = ControlPlaneLocation.of_scenario(scenario)
    require_kubernetes_settings(scenario, place)
    try:
        profile = find_profile(scenario.connection, environ=environ)
    except ConfigurationError as error:
        warn(str(error))
        profile = None
    job = KubernetesJob.of_scenario(scenario, _RUN_ID, pod_environment(scenario, place, variables, profile))
    return replace(job, name=f"loadgen-{_RUN_ID}").manifest  # Kubernetes rejects this name until RUN_ID is replaced
