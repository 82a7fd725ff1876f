"""Measures the arms of an experiment, block by block, until the rules end it.

It runs in the main thread; the callables that it is given execute runs and statements in other threads.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from loadgen.clock import Clock
from loadgen.errors import LoadgenError
from loadgen.model.experiment import ExperimentEnding
from loadgen.report.experiment import ExperimentFacts, block_lines, experiment_document, progress_text
from loadgen.report.records import RunRecord
from loadgen.rules.experiment import (
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
    billed_of,
    complete_blocks,
    figures_of,
)
from loadgen.rules.price import WarehouseSample
from loadgen.rules.scenario_plan import longest_s
from loadgen.scenario.experiment import LoadedExperiment
from loadgen.scenario.model import Scenario
from loadgen.units import NS_PER_S, counted
from orchestrator.experiment.state import ExperimentState, ExperimentStore, arm_connections

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
    """A run that has ended."""

    summary: Mapping[str, Any]
    record: RunRecord | None  # None: it could not be read


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentActions:
    """What the loop calls: runs, warehouse settings, pauses, output, clock."""

    measure: Callable[[str, Scenario], ArmRun]  # an ordinary run of this arm; raises LoadgenError
    set_up: Callable[[str], None]  # applies the settings of the arm's warehouse; raises LoadgenError
    restore: Callable[[], None]  # restores the settings of all warehouses; raises LoadgenError
    pause: Callable[[float], int | None]  # waits these seconds; returns the signal that ended the wait
    print_line: Callable[[str], None]  # progress
    clock: Clock


class Interrupted(Exception):
    """A signal asks the experiment to end."""

    def __init__(self, number: int) -> None:
        super().__init__(f"signal {number}")
        self.number = number


class ExperimentLoop:
    """Measures one experiment: call run() once."""

    def __init__(
        self,
        loaded: LoadedExperiment,
        scenarios: Mapping[str, Scenario],
        store: ExperimentStore,
        actions: ExperimentActions,
    ) -> None:
        """`scenarios` by arm, with their number of workers resolved."""
        self._loaded, self._scenarios, self._store, self._actions = loaded, scenarios, store, actions
        self._design: ExperimentDesign = design_of(loaded.file)
        budget = loaded.file.budget
        self._budget = ExperimentBudget(time_s=budget.time_s, credits=budget.credits)
        self._lost = 0  # consecutive blocks without a usable measurement of every arm
        self._last_failure = (4, "")  # exit code and reason

    def run(self) -> dict[str, Any]:
        """The result, which is also stored. Settings of warehouses are restored in every case."""
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
            result |= {"verdict": "failed", "exit_code": error.exit_code, "exit_reason": why}
        try:
            self._store.finish(result)
        except LoadgenError as error:  # the measurements are stored, and the caller prints the result
            self._actions.print_line(f"the result could not be stored: {error}")
        return result

    def _lead(self) -> dict[str, Any]:
        state = self._store.read()
        try:
            while (ending := self._next(state)) is None:
                state = self._block(state)
        except Interrupted as signal:
            return self._result(self._store.read(), "cancelled", 128 + signal.number, "stopped by a signal")
        return self._ended(state, ending)

    def _next(self, state: ExperimentState) -> ExperimentEnding | None:
        blocks = complete_blocks(self._design, state.measured)
        found = compare_arms(self._design, blocks, final=state.begun >= self._design.blocks_max)
        if state.begun:
            for line in block_lines(self._design, blocks, self._loaded.file.price.currency):
                self._actions.print_line(line)
            self._actions.print_line(f"{counted(len(blocks), 'block')} complete: {progress_text(self._design, found)}")
        return next_step(self._design, blocks, found, self._progress(state), self._budget)

    def _progress(self, state: ExperimentState) -> ExperimentProgress:
        seconds: dict[int, float] = {}
        credits: dict[int, float] = {}
        for one in state.measured:
            seconds[one.block] = seconds.get(one.block, 0.0) + one.seconds
            credits[one.block] = credits.get(one.block, 0.0) + (one.billed or 0.0)
        planned_s = sum(
            self._loaded.file.washout_s + longest_s(scenario, None) - scenario.timing.drain_s
            for scenario in self._scenarios.values()
        )
        return ExperimentProgress(
            begun=state.begun,
            lost_in_a_row=self._lost,
            elapsed_s=sum(seconds.values()),
            credits=sum(credits.values()),
            longest_block_s=max([planned_s, *seconds.values()]),
            costliest_block_credits=max(credits.values(), default=0.0),
        )

    def _block(self, state: ExperimentState) -> ExperimentState:
        """Measure every arm once. The block ends and does not count when an arm has no usable measurement."""
        number = state.begun + 1
        self._store.begin_block(number)
        state = state.with_block(number)
        order = block_order(self._design, number)
        self._actions.print_line(f"block {number} of at most {self._design.blocks_max}: {', '.join(order)}")
        for arm in order:
            for attempt in range(1, ATTEMPTS + 1):
                one = self._measure(number, arm, attempt)
                self._store.record(one)
                state = state.with_measurement(one)
                if one.outcome is MeasurementOutcome.OK:
                    break
                self._actions.print_line(f"block {number}, arm {arm}, attempt {attempt} is not usable: {one.reason}")
            else:
                self._lost += 1
                self._actions.print_line(f"block {number} does not count")
                return state
        self._lost = 0
        return state

    def _measure(self, block: int, arm: str, attempt: int) -> Measurement:
        clock, begun_ns = self._actions.clock, self._actions.clock.monotonic_ns()
        signal = self._actions.pause(self._loaded.file.washout_s)
        if signal is not None:
            raise Interrupted(signal)
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
        try:
            self._actions.set_up(arm)
            run = self._actions.measure(arm, scenario)
            code, reason = int(run.summary["exit_code"]), str(run.summary["exit_reason"])
        except LoadgenError as error:
            code, reason = error.exit_code, str(error)
            if code <= FIRST_SIGNAL and code not in REPEATABLE:
                raise
        if code > FIRST_SIGNAL:
            raise Interrupted(code - FIRST_SIGNAL)
        seconds = (clock.monotonic_ns() - begun_ns) / NS_PER_S
        one = Measurement(
            block=block,
            arm=arm,
            attempt=attempt,
            run_id=None if run is None else str(run.summary["run_id"]),
            outcome=MeasurementOutcome.FAILED,
            seconds=seconds,
            reason=reason,
        )
        return self._judged(one, run, code)

    def _judged(self, one: Measurement, run: ArmRun | None, code: int) -> Measurement:
        """The measurement with its outcome, and with figures if it is usable."""
        source = None if run is None else _source(run)
        file, rates = self._loaded.file, self._loaded.file.price.table
        if source is not None:
            one = dataclasses.replace(one, billed=billed_of(source, rates))
        if code in REPEATABLE or run is None:
            self._last_failure = (code, one.reason)
            outcome = MeasurementOutcome.INVALID if code == 5 else MeasurementOutcome.FAILED
            return dataclasses.replace(one, outcome=outcome)
        missing = ["its result could not be read from the control plane"]
        if source is not None:
            figures, missing = figures_of(source, list(self._design.margins), file.limits, rates, file.price.credit)
            if not missing:
                return dataclasses.replace(one, outcome=MeasurementOutcome.OK, reason="", figures=figures)
        self._last_failure = (5, "; ".join(missing))
        return dataclasses.replace(one, outcome=MeasurementOutcome.INVALID, reason="; ".join(missing))

    # --- the end -----------------------------------------------------------------------------------------------------

    def _ended(self, state: ExperimentState, ending: ExperimentEnding) -> dict[str, Any]:
        if ending is ExperimentEnding.DECIDED:
            return self._result(state, "decided", 0, _ENDINGS[ending])
        if ending is ExperimentEnding.LOST_BLOCKS:
            code, reason = self._last_failure
            verdict = "invalid" if code == 5 else "failed"
            return self._result(state, verdict, code, f"{self._lost} blocks in a row were lost: {reason}")
        return self._result(state, "undecided", _UNDECIDED, _ENDINGS[ending])

    def _result(self, state: ExperimentState, verdict: str, exit_code: int, reason: str) -> dict[str, Any]:
        file = self._loaded.file
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
                ended_at=f"{self._actions.clock.utc_now():%Y-%m-%dT%H:%M:%S}Z",
                begun=state.begun,
                measured=state.measured,
                connections=arm_connections(self._loaded),
                verdict=verdict,
                exit_code=exit_code,
                reason=reason,
            )
        )


def _source(run: ArmRun) -> MeasurementSource | None:
    record = run.record
    if record is None or record.merged is None or record.scenario is None:
        return None
    samples = [
        WarehouseSample(at_s=poll.at_s, size=poll.size, kind=poll.kind, clusters=poll.started_clusters or 0)
        for poll in record.polls
    ]
    measures_s = record.scenario.load.warmup_s
    ended_s = measures_s + record.merged.seconds
    if record.ended is not None and record.started is not None:
        ended_s = max(ended_s, (record.ended - record.started).total_seconds())
    return MeasurementSource(merged=record.merged, samples=samples, measures_s=measures_s, ended_s=ended_s)
