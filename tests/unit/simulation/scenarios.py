"""Random scenarios: closed loops, stages, rates and searches, small enough for a thousand simulations."""

from __future__ import annotations

import random
from dataclasses import replace
from enum import StrEnum

from loadgen.model.threshold import parse_threshold
from loadgen.scenario.model import (
    ArrivalProcess,
    FindMaxSettings,
    Load,
    LoadMode,
    LoadStage,
    OnWorkerLoss,
    Scenario,
    Threshold,
)
from loadgen.scenario.read import parse_scenario
from loadgen.scenario.settings import ConnectionPolicy, QueryLogMode, TimingSettings

_BASE = parse_scenario(
    """
version: 1
name: simulated
connection: embedded
workload: {statements: [{name: read, sql: SELECT 1}]}
query_log: {mode: none}
enrichment: {enabled: false}
""",
    source="simulated.yaml",
    environ={},
).scenario
_WATCHED = replace(_BASE.target, warehouse="WH")
_LOGGED = replace(_BASE.query_log, mode=QueryLogMode.ALL)

_LIMITED = Threshold(check=parse_threshold("max < 1h"))  # judges the arrivals that were given up
# More than any statement takes without a fault. Of the faults, only stalls of the server make one take that long.
_ABORTING = Threshold(check=parse_threshold("max < 1s"), abort=True)
MAX_LAG_S = 2.0

# Waits for lost processes are shorter: the same histories, with fewer seconds in which nothing happens.
QUICK = TimingSettings(
    tick_s=1.0,
    heartbeat_s=2.0,
    flush_s=60.0,
    warehouse_poll_s=3.0,
    registration_s=20.0,
    start_s=30.0,
    stale_s=6.0,
    dead_s=12.0,
    no_connection_s=12.0,
    orchestrator_lost_s=30.0,
    drain_s=10.0,
    drain_interrupt_s=5.0,
    lease_ttl_s=8.0,
    lease_renew_s=2.0,
    lease_margin_s=2.0,
)


class Kind(StrEnum):
    FLAT = "a closed loop with one level"
    STAGES = "a closed loop with several"
    ABORT = "a closed loop with one level, which a threshold may end"
    RATE = "an open loop"
    FIND_MAX = "a search for the maximum"


FIXED = (Kind.FLAT, Kind.STAGES, Kind.RATE)  # their plan is known at the start


def random_scenario(rng: random.Random, kind: Kind, workers: int | None = None) -> Scenario:
    """None: a few workers."""
    workers = workers or rng.choice((1, 1, 1, 2, 2, 3))
    return replace(
        _BASE,
        load=_load(rng, kind, workers),
        timing=QUICK,
        connections=ConnectionPolicy(
            open_parallel=rng.choice((1, 4, 16)),
            max_age_s=rng.choice((None, None, 5.0)),
            max_statements=rng.choice((None, None, 15)),
        ),
        on_worker_loss=rng.choice((OnWorkerLoss.FAIL, OnWorkerLoss.CONTINUE)),
        target=rng.choice((_WATCHED, _BASE.target, _BASE.target)),
        query_log=rng.choice((_LOGGED, *(_BASE.query_log,) * 4)),
        thresholds={Kind.RATE: (_LIMITED,), Kind.ABORT: (_ABORTING,)}.get(kind, ()),
    )


def search_scenario(rng: random.Random) -> Scenario:
    """A search that needs half a dozen steps; the warehouse is polled every second."""
    workers = rng.choice((1, 2, 2))
    maximum = rng.choice((6, 7, 8))
    search = FindMaxSettings(start=2, increment=2, maximum=maximum, step_s=5.0, settle_s=0.5, refine=rng.random() < 0.7)
    return replace(
        _BASE,
        load=Load(
            mode=LoadMode.FIND_MAX,
            connections=maximum,
            workers=workers,
            warmup_s=0.0,
            duration_s=None,
            find_max=search,
        ),
        target=_WATCHED,
        timing=replace(QUICK, announce_s=0.5, warehouse_poll_s=1.0, metrics_missing_s=8.0),
        on_worker_loss=rng.choice((OnWorkerLoss.FAIL, OnWorkerLoss.CONTINUE)),
    )


def contested_scenario(rng: random.Random) -> Scenario:
    """The smallest run."""
    workers = rng.choice((1, 1, 2))
    load = Load(
        connections=workers, workers=workers, warmup_s=rng.choice((0.0, 3.0)), duration_s=rng.choice((5.0, 25.0))
    )
    return replace(_BASE, load=load, timing=QUICK)


def _load(rng: random.Random, kind: Kind, workers: int) -> Load:
    warmup_s = rng.choice((0.0, 1.0, 3.0))
    if kind in (Kind.FLAT, Kind.ABORT):
        connections, duration_s = workers * rng.randint(1, 3), rng.choice((5.0, 8.0, 12.0))
        return Load(connections=connections, workers=workers, warmup_s=warmup_s, duration_s=duration_s)
    if kind is Kind.STAGES:
        levels = [max(workers, rng.randint(1, 3) * workers) for _ in range(rng.choice((2, 2, 3)))]
        ramps = [rng.choice((0.0, 0.0, 2.0)) for _ in levels]
        stages = tuple(
            LoadStage(duration_s=rng.choice((4.0, 6.0)), connections=level, ramp_s=ramp)
            for level, ramp in zip(levels, ramps, strict=True)
        )
        return Load(
            connections=max(levels),
            workers=workers,
            warmup_s=warmup_s,
            duration_s=sum(stage.duration_s for stage in stages),
            stages=stages,
        )
    is_flat, arrival = rng.random() < 0.5, rng.choice((ArrivalProcess.POISSON, ArrivalProcess.UNIFORM))
    rates = tuple(
        LoadStage(duration_s=rng.choice((4.0, 6.0)), rate_per_second=rng.choice((4.0, 6.0))) for _ in range(2)
    )
    return Load(
        mode=LoadMode.RATE,
        connections=4 + workers,
        workers=workers,
        warmup_s=warmup_s,
        duration_s=rng.choice((6.0, 10.0)) if is_flat else sum(stage.duration_s for stage in rates),
        rate_per_second=rng.choice((4.0, 6.0)) if is_flat else None,
        stages=() if is_flat else rates,
        arrival=arrival,
        max_lag_s=rng.choice((None, MAX_LAG_S)),
    )
