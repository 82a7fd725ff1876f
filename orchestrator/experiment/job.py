"""One experiment from its file to its report. Its measurements are ordinary runs.

It runs in the main thread. Statements on the control plane and on warehouses, and runs, are executed in other threads.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from loadgen.clock import Clock, utc_iso
from loadgen.control.location import ControlPlaneLocation
from loadgen.control.setup.installer import ensure_tables
from loadgen.errors import LoadgenError, RunFailed
from loadgen.log import printable
from loadgen.model.experiment import ExperimentEnding
from loadgen.model.warehouse import CreditRates
from loadgen.report.experiment import (
    ExperimentFacts,
    ExperimentStatus,
    MeasuredNow,
    block_lines,
    experiment_document,
    experiment_status,
    pair_text,
    spent_text,
)
from loadgen.report.records import RunRecord
from loadgen.rules.experiment import (
    REPEATS,
    BlockValues,
    ExperimentBudget,
    ExperimentDesign,
    ExperimentProgress,
    block_order,
    compare_arms,
    design_of,
    next_step,
)
from loadgen.rules.measurement import (
    Measurement,
    MeasurementOutcome,
    MeasurementSource,
    complete_blocks,
    figures_of,
)
from loadgen.rules.price import WarehouseSample, billed_credits
from loadgen.rules.scenario_plan import longest_s
from loadgen.scenario.experiment import LoadedExperiment
from loadgen.scenario.model import Scenario
from loadgen.scenario.read import portable_text
from loadgen.snowflake.session import RetryPolicy
from loadgen.threads import Service, exit_code_after, run_in_thread
from loadgen.units import NS_PER_S, counted
from loadgen.values import dataclass
from orchestrator.experiment.state import (
    ControlAccess,
    ExperimentState,
    ExperimentStore,
    arm_connections,
    find_experiment,
    only_connections_differ,
)
from orchestrator.experiment.warehouse_settings import ArmWarehouseSettings, worst_cases
from orchestrator.job import JobRoles, RunJob
from orchestrator.run_folder import make_run_folder, make_runs_folder, new_run_id, write_experiment_files

# --- measuring block by block, until the rules end it ----------------------------------------------------------------

ATTEMPTS = 2  # to measure an arm in a block
# Exit codes after which a measurement is repeated: no connection, failed, INVALID. Others end the experiment.
REPEATABLE = (3, 4, 5)
FIRST_SIGNAL = 128  # higher exit codes: stopped by a signal
_UNDECIDED = 12
_ENDINGS = {
    ExperimentEnding.DECIDED: "every pair is decided in every metric",
    ExperimentEnding.BLOCKS: "all blocks are done",
    ExperimentEnding.TIME: "another block may exceed budget.time",
    ExperimentEnding.CREDITS: "another block may exceed budget.credits",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmRun:
    """A run of an arm that has ended."""

    summary: Mapping[str, Any]
    record: RunRecord | None  # None: it could not be read


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentActions:
    """The functions that the loop calls: runs, warehouse settings, pauses, output, clock."""

    measure: Callable[[str, Scenario, ExperimentStatus], ArmRun]  # an ordinary run of this arm; raises LoadgenError
    set_up: Callable[[str], None]  # applies the settings of the arm's warehouse; raises LoadgenError
    restore: Callable[[], None]  # restores the settings of all warehouses; raises LoadgenError
    worst_case: Callable[[], Mapping[str, float | None]]  # credits of one measurement at most, by arm; None: not known
    pause: Callable[[float], int | None]  # waits these seconds; returns the signal that came, now or before
    print_line: Callable[[str], None]  # progress
    clock: Clock


class Interrupted(Exception):
    """A signal requests the end of the experiment."""

    def __init__(self, number: int) -> None:
        super().__init__(f"signal {number}")
        self.number = number


class MeasurementStore(Protocol):
    """The stored state of one experiment: an ExperimentStore."""

    @property
    def experiment_id(self) -> str: ...
    def read(self) -> ExperimentState: ...
    def left_runs(self, state: ExperimentState, rates: CreditRates) -> Sequence[Measurement]: ...
    def begin_block(self, number: int) -> None: ...
    def record(self, one: Measurement) -> None: ...
    def finish(self, result: dict[str, Any]) -> None: ...


class ExperimentLoop:
    """Measures one experiment: call run() once."""

    def __init__(
        self,
        loaded: LoadedExperiment,
        scenarios: Mapping[str, Scenario],
        store: MeasurementStore,
        actions: ExperimentActions,
    ) -> None:
        """`scenarios` by arm, with their number of workers resolved."""
        self._loaded, self._scenarios, self._store, self._actions = loaded, scenarios, store, actions
        self._design: ExperimentDesign = design_of(loaded.file)
        budget = loaded.file.budget
        self._budget = ExperimentBudget(time_s=budget.time_s, credits=budget.credits)
        self._worst: Mapping[str, float | None] = {}  # credits of one measurement at most, by arm
        self._warned = 0  # measurements of unknown cost that were reported
        self._lost = 0  # consecutive blocks without a usable measurement of every arm
        self._last_failure = (4, "")  # exit code and reason

    def run(self) -> dict[str, Any]:
        """Measure, and store the result. Returns the result. Settings of warehouses are restored in every case."""
        try:
            result = self._lead()
        except BaseException:
            with suppress(LoadgenError):  # restore() has reported it
                self._actions.restore()
            raise
        try:
            self._actions.restore()
        except LoadgenError as error:
            why = f"the settings of a warehouse are not restored: {error}"
            result |= {"verdict": "failed", "exit_code": RunFailed.exit_code, "exit_reason": why}
        try:
            self._store.finish(result)
        except LoadgenError as error:  # the measurements are stored already, and the caller prints the result
            self._actions.print_line(f"the result could not be stored: {error}")
        return result

    def _lead(self) -> dict[str, Any]:
        self._state = self._store.read()
        if self._state.begun:
            self._record_left_runs()
        if self._budget.credits is not None:
            self._worst = self._actions.worst_case()
            self._warn_of_unknown_costs()
        try:
            while (ending := self._next()) is None:
                self._block(self._state.begun + 1)
        except Interrupted as signal:
            return self._result("cancelled", FIRST_SIGNAL + signal.number, "stopped by a signal")
        return self._ended(ending)

    def _record_left_runs(self) -> None:
        """Record the runs of a process that was killed: they do not count as measurements, but their cost counts."""
        for one in self._store.left_runs(self._state, self._loaded.file.price.table):
            self._record(one)

    def _warn_of_unknown_costs(self) -> None:
        unknown = [arm for arm in self._design.arms if self._worst.get(arm) is None]
        if unknown:
            what = f"budget.credits: the cost of a measurement is not known for {', '.join(unknown)}"
            self._actions.print_line(f"warning: {what}; the first block may exceed the budget")

    def _next(self) -> ExperimentEnding | None:
        state = self._state
        blocks = complete_blocks(self._design, state.measured)
        found = compare_arms(self._design, blocks, final=state.begun >= self._design.blocks_max)
        if state.begun:
            for line in block_lines(self._design, blocks, self._loaded.file.price.currency):
                self._actions.print_line(line)
            self._actions.print_line(f"{counted(len(blocks), 'block')} complete:")
            for one in found:
                self._actions.print_line(f"  {pair_text(self._design, one)}")
        return next_step(self._design, blocks, found, self._progress(blocks), self._budget)

    def _progress(self, blocks: Sequence[BlockValues]) -> ExperimentProgress:
        spent = spending_of(self._state.measured, self._worst)
        if self._budget.credits is not None and spent.unknown > self._warned:
            self._warned = spent.unknown
            what = f"the credits of {counted(spent.unknown, 'measurement')} are not known"
            counts = "for budget.credits they count with the worst case, if it is known"
            self._actions.print_line(f"warning: {what}; {counts}")
        planned_s = sum(
            self._loaded.file.washout_s + longest_s(scenario, None) - scenario.timing.drain_s
            for scenario in self._scenarios.values()
        )
        return progress_of(
            spent,
            begun=self._state.begun,
            complete=[block.number for block in blocks],
            lost_in_a_row=self._lost,
            planned_block_s=planned_s,
            worst=self._worst,
        )

    def _status(self, now: MeasuredNow) -> ExperimentStatus:
        """The status of the experiment, for the live view of a run."""
        measured = self._state.measured
        found = compare_arms(self._design, complete_blocks(self._design, measured), final=False)
        spent = spending_of(measured, self._worst)
        spent_line = spent_text(spent.total_s, spent.total_credits, self._budget)
        currency = self._loaded.file.price.currency
        return experiment_status(self._design, measured, found, now, spent=spent_line, currency=currency)

    def _block(self, number: int) -> None:
        """Measure every arm once. The block ends and does not count when an arm has no usable measurement."""
        self._store.begin_block(number)
        self._state = self._state.with_block(number)
        order = block_order(self._design, number)
        self._actions.print_line(f"block {number} of at most {self._design.blocks_max}: {', '.join(order)}")
        for arm in order:
            for attempt in range(1, ATTEMPTS + 1):
                one = self._measure(number, arm, attempt)
                self._record(one)
                if one.outcome is MeasurementOutcome.OK:
                    break
                self._actions.print_line(f"block {number}, arm {arm}, attempt {attempt} is not usable: {one.reason}")
            else:
                self._lost += 1
                self._actions.print_line(f"block {number} does not count")
                return
        self._lost = 0

    def _record(self, one: Measurement) -> None:
        self._store.record(one)
        self._state = self._state.with_measurement(one)

    def _measure(self, block: int, arm: str, attempt: int) -> Measurement:
        clock, begun_ns = self._actions.clock, self._actions.clock.monotonic_ns()
        self._pause(self._loaded.file.washout_s)
        labels = {
            "experiment": self._store.experiment_id,
            "arm": arm,
            "block": str(block),
            "attempt": str(attempt),
        }
        scenario = self._scenarios[arm]
        scenario = dataclasses.replace(scenario, labels={**scenario.labels, **labels})
        self._actions.print_line(f"block {block}, arm {arm}{', again' if attempt > 1 else ''}")
        run: ArmRun | None = None
        billed: float | None = 0.0  # as long as no run has begun
        try:
            self._actions.set_up(arm)
            self._pause(0.0)  # a signal that came while the settings were applied
            billed = None
            run = self._actions.measure(arm, scenario, self._status(MeasuredNow(block=block, arm=arm, attempt=attempt)))
            code, reason = int(run.summary["exit_code"]), str(run.summary["exit_reason"])
        except LoadgenError as error:
            code, reason = error.exit_code, str(error)
            if code <= FIRST_SIGNAL and code not in REPEATABLE:
                raise
        one = Measurement(
            block=block,
            arm=arm,
            attempt=attempt,
            run_id=None if run is None else str(run.summary["run_id"]),
            outcome=MeasurementOutcome.FAILED,
            seconds=(clock.monotonic_ns() - begun_ns) / NS_PER_S,
            billed=billed if run is None or run.record is None else _billed(run.record, self._loaded.file.price.table),
            reason=reason,
        )
        one = self._judged(one, run, code)
        if one.outcome is not MeasurementOutcome.OK:
            self._end_if_signalled(one, code)
        return one

    def _end_if_signalled(self, one: Measurement, code: int) -> None:
        """Raises Interrupted if a signal has ended the run, which is not repeated then. Its cost is recorded."""
        signal = code - FIRST_SIGNAL if code > FIRST_SIGNAL else self._actions.pause(0.0)
        if signal is None:
            return
        if one.run_id is not None:
            try:
                self._record(one)
            except LoadgenError as error:
                self._actions.print_line(f"the interrupted measurement could not be recorded: {error}")
        raise Interrupted(signal)

    def _pause(self, seconds: float) -> None:
        signal = self._actions.pause(seconds)
        if signal is not None:
            raise Interrupted(signal)

    def _judged(self, one: Measurement, run: ArmRun | None, code: int) -> Measurement:
        """The measurement with its outcome, and with its figures if it is usable."""
        file, rates = self._loaded.file, self._loaded.file.price.table
        if code in REPEATABLE or code > FIRST_SIGNAL or run is None:
            self._last_failure = (code, one.reason)
            outcome = MeasurementOutcome.INVALID if code == 5 else MeasurementOutcome.FAILED
            return dataclasses.replace(one, outcome=outcome)
        missing = ["its result could not be read from the control plane"]
        source = _source(run)
        if source is not None:
            figures, missing = figures_of(source, list(self._design.margins), file.limits, rates, file.price.credit)
            if not missing:
                return dataclasses.replace(one, outcome=MeasurementOutcome.OK, reason="", figures=figures)
        self._last_failure = (5, "; ".join(missing))
        return dataclasses.replace(one, outcome=MeasurementOutcome.INVALID, reason="; ".join(missing))

    # --- the end -----------------------------------------------------------------------------------------------------

    def _ended(self, ending: ExperimentEnding) -> dict[str, Any]:
        if ending is ExperimentEnding.DECIDED:
            return self._result("decided", 0, _ENDINGS[ending])
        if ending is ExperimentEnding.LOST_BLOCKS:
            code, reason = self._last_failure
            verdict = "invalid" if code == 5 else "failed"
            return self._result(verdict, code, f"{self._lost} blocks in a row were lost: {reason}")
        return self._result("undecided", _UNDECIDED, _ENDINGS[ending])

    def _result(self, verdict: str, exit_code: int, reason: str) -> dict[str, Any]:
        file, state = self._loaded.file, self._state
        return experiment_document(
            ExperimentFacts(
                experiment_id=state.experiment_id,
                name=file.name,
                scenario=next(iter(self._scenarios.values())).name,
                design=self._design,
                limits=tuple(check.text for check in file.limits),
                credit_price=file.price.credit,
                currency=file.price.currency,
                rates_date=file.price.table.date,
                started_at=state.created_at,
                ended_at=utc_iso(self._actions.clock.utc_now(), "seconds"),
                begun=state.begun,
                measured=state.measured,
                connections=arm_connections(self._loaded),
                only_connections_differ=only_connections_differ(self._loaded),
                verdict=verdict,
                exit_code=exit_code,
                reason=reason,
            )
        )


def _source(run: ArmRun) -> MeasurementSource | None:
    record = run.record
    if record is None or record.merged is None or record.scenario is None:
        return None
    measures_s = record.scenario.load.warmup_s
    return MeasurementSource(merged=record.merged, samples=_samples(record), measures_s=measures_s)


def _billed(record: RunRecord, rates: CreditRates) -> float | None:
    """Credits of the whole run, also of one without a result."""
    measured_s = 0.0
    if record.merged is not None and record.scenario is not None:
        measured_s = record.scenario.load.warmup_s + record.merged.seconds
    return billed_credits(_samples(record), max(measured_s, _ended_s(record)), rates)


def _samples(record: RunRecord) -> list[WarehouseSample]:
    return [
        WarehouseSample(
            at_s=poll.at_s,
            size=poll.size,
            kind=poll.kind,
            clusters=poll.started_clusters or 0,
            resumed_s=poll.resumed_s,
        )
        for poll in record.polls
    ]


def _ended_s(record: RunRecord) -> float:
    if record.ended is None or record.started is None:
        return 0.0
    return (record.ended - record.started).total_seconds()


# --- Time and credits that were spent, and that the next block may need ----------------------------------------------
#
# Credits are estimates from polls. Where a run could not be observed, the worst case of its arm counts: a budget that
# ignores unknown costs would not limit anything.


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentSpending:
    """Seconds and credits by block."""

    seconds: Mapping[int, float]
    credits: Mapping[int, float]
    unknown: int  # measurements whose credits are not known

    @property
    def total_s(self) -> float:
        return sum(self.seconds.values())

    @property
    def total_credits(self) -> float:
        return sum(self.credits.values())


def spending_of(measured: Sequence[Measurement], worst: Mapping[str, float | None]) -> ExperimentSpending:
    """The spending of all measurements, usable or not. `worst`: credits of one measurement at most, by arm."""
    seconds: dict[int, float] = {}
    credits: dict[int, float] = {}
    for one in measured:
        spent = one.billed if one.billed is not None else worst.get(one.arm) or 0.0
        seconds[one.block] = seconds.get(one.block, 0.0) + one.seconds
        credits[one.block] = credits.get(one.block, 0.0) + spent
    return ExperimentSpending(seconds=seconds, credits=credits, unknown=sum(one.billed is None for one in measured))


def progress_of(
    spent: ExperimentSpending,
    *,
    begun: int,
    complete: Sequence[int],
    lost_in_a_row: int,
    planned_block_s: float,
    worst: Mapping[str, float | None],
) -> ExperimentProgress:
    """The progress that the next decision needs. `complete`: numbers of complete blocks. Before the first complete
    block, the next one is assumed to cost the worst case: every measurement repeated."""
    costliest = max(spent.credits.values(), default=0.0)
    if not complete:
        costliest = max(costliest, REPEATS * sum(credits or 0.0 for credits in worst.values()))
    return ExperimentProgress(
        begun=begun,
        lost_in_a_row=lost_in_a_row,
        elapsed_s=spent.total_s,
        credits=spent.total_credits,
        longest_block_s=max([planned_block_s, *spent.seconds.values()]),
        costliest_block_credits=costliest,
    )


# --- the experiment --------------------------------------------------------------------------------------------------

TICK_S = 0.1


@dataclass(slots=True, kw_only=True)
class ExperimentJob:
    """Call open(), then run()."""

    loaded: LoadedExperiment
    scenarios: Mapping[str, Scenario]  # of the arms, with their number of workers resolved
    runs_folder: Path
    control: ControlAccess
    clock: Clock
    roles: JobRoles
    follow: Callable[[RunJob, ExperimentStatus], dict[str, Any]]  # runs a measurement, and returns its summary
    say: Callable[[str], None]  # progress
    warn: Callable[[str], None]
    wait: bool = False  # wait for another run on the same warehouse
    _store: ExperimentStore | None = None
    _begun: bool = False  # after its first run the experiment waits for a warehouse that another run uses

    def open(self, resume: str | None) -> None:
        """Create the experiment, or find the one to `resume`."""
        make_runs_folder(self.runs_folder)
        retries = RetryPolicy(stop=threading.Event(), clock=self.clock)
        run_in_thread(lambda: ensure_tables(self._place, retries), name="setup")
        if resume is not None:
            self._store = ExperimentStore(self.control, find_experiment(self.control, resume, self.loaded))
        else:
            experiment_id = new_run_id(self.loaded.file.name, self.clock.utc_now())
            self._store = ExperimentStore(self.control, experiment_id)
            self._store.create(self.loaded)
        self.say(f"experiment {self._store.experiment_id}")

    def run(self, received: Sequence[int]) -> dict[str, Any]:
        """Measure block by block, and write the files. Signals that are `received` meanwhile end the current step."""
        store = self._store
        assert store is not None, "open() comes first"

        def print_progress(text: str) -> None:
            self.say(printable(f"experiment {store.experiment_id}: {text}", 500))

        settings = ArmWarehouseSettings(
            self.loaded, self.scenarios, self._place, clock=self.clock, tell=print_progress, wait=self.wait
        )
        with store.leading(self._place, clock=self.clock):
            assert store.lease is not None
            epoch = store.lease.epoch
            actions = ExperimentActions(
                measure=self._measure,
                set_up=lambda arm: stoppable(
                    lambda stop: settings.apply(arm, store.experiment_id, epoch, stop), received
                ),
                restore=lambda: stoppable(settings.restore, received),
                worst_case=lambda: run_in_thread(lambda: worst_cases(self.loaded, self.scenarios), name="settings"),
                pause=lambda seconds: self._pause(seconds, received),
                print_line=print_progress,
                clock=self.clock,
            )
            result = ExperimentLoop(self.loaded, self.scenarios, store, actions).run()
            folder = self.runs_folder / store.experiment_id
            make_run_folder(folder)
            write_experiment_files(folder, result, self.warn)
        return result

    @property
    def _place(self) -> ControlPlaneLocation:
        return ControlPlaneLocation.of_scenario(next(iter(self.scenarios.values())))

    def _measure(self, arm: str, scenario: Scenario, status: ExperimentStatus) -> ArmRun:
        job = RunJob(
            scenario=scenario,
            folder=self.loaded.folder,
            runs_folder=self.runs_folder,
            clock=self.clock,
            roles=self.roles,
            text=portable_text(self.loaded.arms[arm]),
            wait=self.wait or self._begun,
        )
        self._begun = True
        return ArmRun(summary=self.follow(job, status), record=job.record)

    def _pause(self, seconds: float, received: Sequence[int]) -> int | None:
        """Wait. Returns the first signal that was received, if any."""
        never, until_ns = threading.Event(), self.clock.monotonic_ns() + round(seconds * NS_PER_S)
        while not received and self.clock.monotonic_ns() < until_ns:
            self.clock.wait(never, TICK_S)
        return received[0] if received else None


def stoppable(action: Callable[[threading.Event], None], received: Sequence[int]) -> None:
    """Run `action` in a thread. A signal sets its event, and becomes the exit code of the error that follows. Earlier
    signals do not count: settings are also restored after a signal."""
    before, stop, done = len(received), threading.Event(), threading.Event()

    def watch() -> None:
        while not done.wait(TICK_S):
            if len(received) > before:
                stop.set()

    Service("signals", watch, stopping=done).start()
    try:
        run_in_thread(lambda: action(stop), name="settings")
    except LoadgenError as error:
        if len(received) > before:
            error.exit_code = exit_code_after(received[before:])
        raise
    finally:
        done.set()
