"""Which kind of job runs the containers of a scenario, to start it, to follow it, and to remove it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace

from loadgen.clock import Clock
from loadgen.control.location import ControlPlaneLocation
from loadgen.errors import ConfigurationError
from loadgen.scenario.model import Scenario
from loadgen.scenario.settings import SpawnerKind
from loadgen.snowflake.profile_lookup import find_profile
from orchestrator.spawn import container_job, kubernetes_job, spcs
from orchestrator.spawn.container_job import WorkerJob
from orchestrator.spawn.kubernetes import KubernetesApi, KubernetesWorkerJob
from orchestrator.spawn.kubernetes_job import KubernetesJob, pod_environment, require_kubernetes_settings
from orchestrator.spawn.spcs import JobService, JobStatements, SpcsJob, require_spcs_settings

START_PART = 0.9  # of the time to register: what has not started by then is reported with its reason
_RUN_ID = "RUN_ID"  # in a manifest for which there is no run yet


def runs_containers(scenario: Scenario) -> bool:
    return scenario.spawner.kind in (SpawnerKind.SPCS, SpawnerKind.KUBERNETES)


def require_container_settings(
    scenario: Scenario, place: ControlPlaneLocation, environ: Mapping[str, str] = os.environ
) -> None:
    """Refuse, before anything is made, what cannot work."""
    if scenario.spawner.kind is SpawnerKind.SPCS:
        require_spcs_settings(scenario, place, environ)
    elif scenario.spawner.kind is SpawnerKind.KUBERNETES:
        require_kubernetes_settings(scenario, place)
        KubernetesApi(scenario.spawner.context, scenario.spawner.namespace, environ=environ).close()


def job_opener(
    scenario: Scenario,
    place: ControlPlaneLocation,
    run_id: str,
    told: Mapping[str, str] | None,
    *,
    clock: Clock,
    environ: Mapping[str, str] = os.environ,
) -> Callable[[], WorkerJob]:
    """Opens the job of a run, once per thread. `told`: what workers must be told; None: they have been started."""
    if scenario.spawner.kind is SpawnerKind.SPCS:
        service = JobStatements(name=spcs.job_name(run_id))
        if told is not None:
            service = SpcsJob.of_scenario(scenario, run_id, told, environ)
        return lambda: JobService(place, service, clock=clock, environ=environ)
    spawner, job = scenario.spawner, None
    if told is not None:
        profile = find_profile(scenario.connection, environ=environ)
        job = KubernetesJob.of_scenario(scenario, run_id, pod_environment(scenario, place, told, profile))
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
    """The job of a run that was ended without its orchestrator. A failure is a warning."""
    container_job.remove_job(job_opener(scenario, place, run_id, None, clock=clock)())


def planned_manifest(
    scenario: Scenario, told: Mapping[str, str], warn: Callable[[str], None], environ: Mapping[str, str] = os.environ
) -> dict[str, object]:
    """The Job of a run that does not exist yet: RUN_ID stands for its id. Connects to nothing."""
    place = ControlPlaneLocation.of_scenario(scenario)
    require_kubernetes_settings(scenario, place)
    try:
        profile = find_profile(scenario.connection, environ=environ)
    except ConfigurationError as error:
        warn(str(error))
        profile = None
    job = KubernetesJob.of_scenario(scenario, _RUN_ID, pod_environment(scenario, place, told, profile))
    return replace(job, name=f"loadgen-{_RUN_ID}").manifest  # which Kubernetes rejects until it is replaced
