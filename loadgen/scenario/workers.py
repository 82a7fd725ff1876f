"""How many workers a run has, and what each of them gets."""

from __future__ import annotations

import dataclasses

from loadgen.scenario.model import Load, Scenario, WorkerProfile

CONNECTIONS_PER_WORKER = 25  # more in one process cost throughput: the interpreter runs one thread at a time


def workers_of(load: Load, cores: int) -> int:
    """The number of workers; `auto` is one per 25 connections, as many as there are cores, at least one."""
    if load.workers is not None:
        return load.workers
    if load.profile is WorkerProfile.PROCESS:
        return load.connections
    if load.per_worker_connections is not None:
        return load.connections // load.per_worker_connections
    return max(1, min(cores, -(-load.connections // CONNECTIONS_PER_WORKER)))


def with_workers(scenario: Scenario, cores: int) -> Scenario:
    """The scenario with its number of workers settled, as it must be before a run is created."""
    load = dataclasses.replace(scenario.load, workers=workers_of(scenario.load, cores))
    return dataclasses.replace(scenario, load=load)
