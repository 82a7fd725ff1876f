"""The stored state of an experiment, and the lease of the process that leads it.

The lease has the key `experiment:<id>` in RUN_LEASES. It prevents a second process from resuming an experiment that is
still led. That a measurement counts once is ensured by the keys of the tables, not by the lease.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, TypeVar

from loadgen.clock import Clock, utc_iso
from loadgen.control.lease import LeaseKeeper, LeaseTimes
from loadgen.control.location import ControlPlaneLocation
from loadgen.control.session import ControlSession
from loadgen.control.tables import experiments, run_leases, run_measurements
from loadgen.control.tables.experiments import ExperimentRun
from loadgen.control.tables.run_leases import Lease
from loadgen.control.tables.run_measurements import WarehousePoll
from loadgen.errors import Busy, RunFailed, UsageError
from loadgen.model.warehouse import CreditRates, kind_shown, shown_row
from loadgen.results.run_record import resumed_s
from loadgen.rules.experiment import makes_warehouse
from loadgen.rules.measurement import Measurement, MeasurementOutcome
from loadgen.rules.price import WarehouseSample, billed_credits
from loadgen.scenario.experiment import ArmSection, LoadedExperiment
from loadgen.scenario.frozen import template_id
from loadgen.scenario.model import LoadMode, Scenario
from loadgen.snowflake.session import RetryPolicy
from loadgen.values import dataclass

Result = TypeVar("Result")


class ControlAccess(Protocol):
    """Calls an action in a thread with a session of the control plane, and returns the result."""

    def __call__(self, action: Callable[[ControlSession, RetryPolicy], Result], /) -> Result: ...


class LeaseLost(RunFailed):
    """Another process may lead the experiment."""

    remedy = "`loadgen experiments list` shows it; `loadgen experiment FILE --resume ID` continues it."


def config_of(loaded: LoadedExperiment) -> dict[str, Any]:
    """The settings that identify the experiment. Budget and credit prices are not among them: they may be changed."""
    file = loaded.file
    return {
        "arms": {name: _arm_config(file.arms[name], arm.scenario) for name, arm in loaded.arms.items()},
        "reference": file.reference,
        "metrics": dict(file.metrics),
        "limits": [check.text for check in file.limits],
        "blocks": [file.blocks.minimum, file.blocks.maximum],
        "washout_s": file.washout_s,
        "seed": file.seed,
    }


def _arm_config(arm: ArmSection, scenario: Scenario) -> dict[str, Any]:
    """The settings of one arm. The name of its warehouse is part of the scenario."""
    is_made = makes_warehouse(arm)
    return {"scenario": template_id(scenario), "settings": arm.settings, "create": is_made}


def only_connections_differ(loaded: LoadedExperiment) -> bool:
    """Whether arms differ in `connections` only: a scaling curve is fitted to such arms only."""
    same = [replace(arm.scenario, load=replace(arm.scenario.load, connections=1)) for arm in loaded.arms.values()]
    configs = [_arm_config(loaded.file.arms[name], one) for name, one in zip(loaded.arms, same, strict=True)]
    return all(config == configs[0] for config in configs)


def arm_connections(loaded: LoadedExperiment) -> dict[str, int]:
    """The connections of the arms with a closed loop, for the scaling curve."""
    loads = {name: arm.scenario.load for name, arm in loaded.arms.items()}
    return {name: load.connections for name, load in loads.items() if load.mode is LoadMode.CONCURRENCY}


def fingerprint_of(config: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentState:
    """The progress of an experiment."""

    experiment_id: str
    created_at: str
    begun: int  # number of the last block that was begun
    measured: tuple[Measurement, ...]

    def with_block(self, number: int) -> ExperimentState:
        return replace(self, begun=number)

    def with_measurement(self, one: Measurement) -> ExperimentState:
        return replace(self, measured=(*self.measured, one))


class ExperimentStore:
    """Reads and writes the state of one experiment. Every call is one action in a thread."""

    def __init__(self, control: ControlAccess, experiment_id: str) -> None:
        self._control, self.experiment_id = control, experiment_id
        self.lease: Lease | None = None
        self._keeper: LeaseKeeper | None = None

    def create(self, loaded: LoadedExperiment) -> None:
        config = config_of(loaded)

        def act(session: ControlSession, retries: RetryPolicy) -> None:
            price = loaded.file.price
            shown = {
                "scenario": next(iter(loaded.arms.values())).scenario.name,
                "connections": arm_connections(loaded),
                "only_connections_differ": only_connections_differ(loaded),
                "price": {"credit": price.credit, "currency": price.currency, "rates_date": price.table.date},
            }
            texts = (self.experiment_id, loaded.file.name, json.dumps(config | shown), fingerprint_of(config))
            experiments.create(session, retries, *texts)

        self._control(act)

    def read(self) -> ExperimentState:
        def act(session: ControlSession, retries: RetryPolicy) -> ExperimentState:
            row = retries.call(lambda: experiments.read(session, self.experiment_id))
            assert row is not None, "it was created, or found"
            begun = retries.call(lambda: experiments.blocks(session, self.experiment_id))
            measured = retries.call(lambda: experiments.measurements(session, self.experiment_id))
            if measured.unreadable:
                raise measured.unreadable[0]  # without it a block would be incomplete, or compare wrong values
            return ExperimentState(
                experiment_id=self.experiment_id,
                created_at=utc_iso(row.created_at),
                begun=max(begun, default=0),
                measured=tuple(measured),
            )

        return self._control(act)

    def left_runs(self, state: ExperimentState, rates: CreditRates) -> list[Measurement]:
        """Runs that a killed process has begun and not recorded."""
        recorded = {one.run_id for one in state.measured}
        taken = {(one.block, one.arm, one.attempt) for one in state.measured}

        def act(session: ControlSession, retries: RetryPolicy) -> list[Measurement]:
            runs = retries.call(lambda: experiments.runs(session, self.experiment_id))
            found = []
            for run in runs:
                if run.run_id not in recorded and (run.block, run.arm, run.attempt) not in taken:
                    polls = retries.call(partial(run_measurements.read_polls, session, run.run_id))
                    found.append(_left_run(run, polls, rates))
            return found

        return self._control(act)

    def begin_block(self, number: int) -> None:
        """Record that a block begins. Raises LeaseLost if another process has begun it."""
        epoch = self._trusted().epoch
        if not self._control(partial(self._begin, number=number, epoch=epoch)):
            raise LeaseLost(f"block {number} of experiment {self.experiment_id} was begun by another process")

    def _begin(self, session: ControlSession, retries: RetryPolicy, *, number: int, epoch: int) -> bool:
        return experiments.begin_block(session, retries, self.experiment_id, number, epoch)

    def record(self, one: Measurement) -> None:
        """Store a measurement. Raises LeaseLost if another process has stored it."""
        self._trusted()
        if not self._control(lambda session, retries: experiments.record(session, retries, self.experiment_id, one)):
            what = f"{one.arm} in block {one.block} of experiment {self.experiment_id}"
            raise LeaseLost(f"{what} was recorded by another process")

    def finish(self, result: dict[str, Any]) -> None:
        assert self.lease is not None
        epoch = self.lease.epoch
        self._control(lambda session, retries: experiments.finish(session, retries, self.experiment_id, epoch, result))

    def _trusted(self) -> Lease:
        assert self.lease is not None
        assert self._keeper is not None
        if not self._keeper.trusted:
            raise LeaseLost(f"the lease of experiment {self.experiment_id} may have expired")
        return self.lease

    @contextmanager
    def leading(self, place: ControlPlaneLocation, *, clock: Clock) -> Iterator[None]:
        """Hold the lease of the experiment during the block. Raises Busy if another process leads it."""
        times = LeaseTimes()
        key = f"{experiments.LEASE_PREFIX}{self.experiment_id}"
        claimed_ns = clock.monotonic_ns()

        def act(session: ControlSession, retries: RetryPolicy) -> Lease:
            holder = retries.call(lambda: run_leases.read(session, key))
            if holder is not None and not holder.may_be_succeeded and run_leases.is_owner_dead(holder.owner):
                retries.call(partial(run_leases.release_of_dead, session, key, holder))
            claimed = run_leases.claim(session, retries, key, run_leases.new_owner(), times.ttl_s)
            if claimed is None:
                holder = retries.call(lambda: run_leases.read(session, key))
                by = "another process" if holder is None else run_leases.describe_owner(holder.owner)
                raise Busy(f"experiment {self.experiment_id} is led by {by}", remedy="Wait until it has ended.")
            return claimed

        self.lease = self._control(act)
        session = ControlSession(place, role="experiment-lease")
        self._keeper = LeaseKeeper(session, self.lease, times, claimed_ns=claimed_ns, clock=clock)
        self._keeper.start()
        try:
            yield
        finally:
            self._keeper.stop(releasing=True)


def _left_run(run: ExperimentRun, polls: Sequence[WarehousePoll], rates: CreditRates) -> Measurement:
    """The measurement of a run that was not recorded. It counts as observed until its last stored poll."""
    samples = [
        WarehouseSample(
            at_s=(poll.timestamp - run.created_at).total_seconds(),
            size=poll.size,
            kind=kind_shown(shown := shown_row(poll.raw)),
            clusters=poll.started_clusters or 0,
            resumed_s=resumed_s(shown, run.created_at),
        )
        for poll in polls
    ]
    seconds = max((sample.at_s for sample in samples), default=0.0)
    return Measurement(
        block=run.block,
        arm=run.arm,
        attempt=run.attempt,
        run_id=run.run_id,
        outcome=MeasurementOutcome.FAILED,
        seconds=max(0.0, seconds),
        billed=billed_credits(samples, seconds, rates),
        reason="the process that measured it has ended",
    )


def find_experiment(control: ControlAccess, name: str, loaded: LoadedExperiment) -> str:
    """The id of the experiment to resume, which must be the one that the file describes."""

    def act(session: ControlSession, retries: RetryPolicy) -> str:
        row = experiments.find(session, retries, name)
        if row.fingerprint != fingerprint_of(config_of(loaded)):
            raise UsageError(
                f"experiment {row.experiment_id} was begun with other arms, metrics, limits, blocks or seed",
                remedy="Use the file as it was then; only budget and price may change. Or begin a new experiment.",
            )
        end = retries.call(lambda: experiments.last_end(session, row.experiment_id))
        if end is not None and end.verdict == "decided":
            raise UsageError(
                f"experiment {row.experiment_id} is decided", remedy="`loadgen experiments show` has its result."
            )
        return row.experiment_id

    return control(act)
