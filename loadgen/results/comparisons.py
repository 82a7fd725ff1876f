"""The input of comparisons, read from the tables: two runs, the runs of a scenario over time, and experiments."""

from __future__ import annotations

import difflib
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import numpy as np

from loadgen.clock import utc_iso
from loadgen.control.session import ControlSession, RowUnreadable, json_object
from loadgen.control.tables import experiments, run_measurements, run_status, test_results, worker_heartbeats
from loadgen.control.tables.experiments import ExperimentRow
from loadgen.control.tables.run_measurements import MetricsSnapshot
from loadgen.control.tables.run_status import Run
from loadgen.control.tables.test_results import ScenarioResult
from loadgen.errors import RunFailed, UsageError
from loadgen.log import printable
from loadgen.metrics.histogram import BUCKETS
from loadgen.metrics.interval import CustomMetrics, read_custom_metrics
from loadgen.metrics.window import WindowResult, merge
from loadgen.model.experiment import ExperimentMetric
from loadgen.model.run import Phase, RunStatus
from loadgen.report.experiment import RUNNING, ExperimentFacts, experiment_document, with_metering
from loadgen.report.formatting import setting_name
from loadgen.results.run_details import outcome_word
from loadgen.results.run_record import stored_windows
from loadgen.results.stored_summary import parse_config, parse_summary, read_summary
from loadgen.rules.comparability import (
    FORBIDDING_KEYS,
    RunConditions,
    SettingDifference,
    differences,
    driver_lightened,
    driver_major,
    is_setting,
    unmatched_keys,
    why_not_comparable,
)
from loadgen.rules.comparison import MeasuredRun
from loadgen.rules.confidence_intervals import SecondSeries
from loadgen.rules.experiment import ExperimentDesign
from loadgen.rules.trend import OtherSeries, SeriesKey, Trend, TrendRun, series_of, trend_of, values_of
from loadgen.snowflake.session import RetryPolicy
from loadgen.values import dataclass

MODE = "load.mode"  # the mode defines response times, so runs of different modes are never comparable
KEYS_NAMED = 3  # keys named in a sentence; more are only counted
HINT_KEYS = 5

_LIST = "`loadgen runs list` shows all runs."


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonRefusal:
    """Why two runs are not comparable, and a hint."""

    a: str
    b: str
    reasons: tuple[str, ...]
    hint: str
    configuration: tuple[SettingDifference, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparablePair:
    a: MeasuredRun
    b: MeasuredRun
    configuration: tuple[SettingDifference, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """A run before its measurements are read."""

    run: Run
    summary: Mapping[str, Any] | None
    setting: RunConditions


def read_pair(
    session: ControlSession, retries: RetryPolicy, names: Sequence[str], varied: Sequence[str]
) -> ComparablePair | ComparisonRefusal:
    """The two runs with their measurements, or why they are not comparable."""
    a, b = (_known(session, retries, name) for name in names)
    if a.run.run_id == b.run.run_id:
        raise UsageError(f"A and B are the same run: {a.run.run_id}", remedy=f"Name two runs. {_LIST}")
    found = (
        differences(a.setting, b.setting, varied) if a.summary and b.summary else ()
    )  # without a summary, settings are not compared
    reasons = _reasons(a, b, found)
    if reasons:
        return ComparisonRefusal(
            a=a.run.run_id, b=b.run.run_id, reasons=reasons, hint=_hint(a, b, found), configuration=found
        )
    strange = unmatched_keys(varied, found)
    if strange:
        known = is_setting(strange[0], a.setting, b.setting)
        what = "does not differ between the two runs" if known else "is not a setting of these runs"
        differing = ", ".join(one.key for one in found[:HINT_KEYS])
        raise UsageError(
            f"--vary {printable(strange[0], 100)} {what}",
            remedy=f"Their differences: {differing}." if differing else "They have the same settings.",
        )
    first, second = (_measured(session, retries, known) for known in (a, b))
    return ComparablePair(a=first, b=second, configuration=found)


def _known(session: ControlSession, retries: RetryPolicy, name: str) -> _Known:
    run = run_status.find_run(session, retries, name)
    config = retries.call(lambda: run_status.read_config(session, run.run_id))
    summary = read_summary(session, retries, run.run_id)
    polls = retries.call(lambda: run_measurements.read_polls(session, run.run_id))
    return _Known(
        run=run,
        summary=summary,
        setting=RunConditions(
            config=parse_config(run.run_id, config),
            environment=(summary or {}).get("environment", {}),
            workers=run.workers_expected,
            warehouse_sizes=tuple(dict.fromkeys(poll.size for poll in polls if poll.size)),
        ),
    )


def _reasons(a: _Known, b: _Known, found: Sequence[SettingDifference]) -> tuple[str, ...]:
    runs = (("A", a), ("B", b))
    reasons = [
        why
        for letter, known in runs
        if (why := why_not_comparable(letter, known.run.run_id, known.run.status.value, known.summary)) is not None
    ]
    if reasons:
        return tuple(reasons)
    forbidding = [one for one in found if one.forbids]
    names = a.run.test_name, b.run.test_name
    if forbidding and names[0] != names[1]:
        reasons.append(f"A is a run of {printable(names[0], 60)}, B of {printable(names[1], 60)}")
    statements = [known.summary["statements"] for _, known in runs if known.summary is not None]
    if not set.intersection(*map(set, statements)):
        reasons.append("they have no statement in common")
    if any(one.key == MODE for one in found):
        reasons.append("response times of different load modes have different meanings")
    if forbidding:
        keys = ", ".join(setting_name(one.key) for one in forbidding)
        reasons.append(f"they differ in {keys if len(forbidding) <= KEYS_NAMED else f'{len(forbidding)} settings'}")
    return tuple(reasons)


def _hint(a: _Known, b: _Known, found: Sequence[SettingDifference]) -> str:
    if any(why_not_comparable("", "", known.run.status.value, known.summary) for known in (a, b)):
        return f"Choose runs that are COMPLETED and valid. {_LIST}"
    forbidding = [one.key for one in found if one.forbids]
    statements = [set(known.summary["statements"]) for known in (a, b) if known.summary is not None]
    if any(one.key == MODE for one in found) or not set.intersection(*statements):
        return f"Compare runs of one scenario. {_LIST}"
    keys = forbidding if len(forbidding) <= HINT_KEYS else dict.fromkeys(key.partition(".")[0] for key in forbidding)
    options = " ".join(f"--vary {shlex.quote(key)}" for key in keys)
    return f"To compare runs with this difference, add {options}"


def _measured(session: ControlSession, retries: RetryPolicy, known: _Known) -> MeasuredRun:
    run_id, summary = known.run.run_id, known.summary or {}
    stored = retries.call(lambda: run_measurements.read_windows(session, run_id))
    beats = retries.call(lambda: worker_heartbeats.read(session, run_id))
    seconds = retries.call(lambda: run_measurements.read_snapshots(session, run_id))
    for error in (*stored.unreadable, *seconds.unreadable):
        raise error
    windows = {worker_id: own for worker_id, own in stored_windows(stored, beats).items() if own}
    merged, totals = merge(windows.values()), summary["totals"]
    wanted = totals["succeeded"], totals["failed"]
    if not summary["find_max"] and (merged.counts.succeeded, merged.counts.failed) != wanted:
        raise RunFailed(
            f"run {run_id} is not comparable: its windows have {merged.counts.succeeded:,} samples that succeeded and"
            f" {merged.counts.failed:,} that failed, and its result {wanted[0]:,} and {wanted[1]:,}",
            remedy="`loadgen upload` stores spooled results; otherwise rows of WINDOW_RESULTS were changed.",
        )
    return MeasuredRun(
        run_id=run_id,
        scenario=known.run.test_name,
        started_at=summary.get("started_at"),
        merged=merged,
        series=measured_seconds(seconds, windows),
        find_max=summary.get("find_max"),
    )


# --- seconds of the measurement --------------------------------------------------------------------------------------
# A row of WORKER_METRICS_SNAPSHOTS contains samples since the previous row of the worker. So the first row of the
# measurement begins before it, and the last rows end after it. Only rows inside the measurement are used. The rows of
# several workers are added up by index: they differ by less than a second, which blocks of several seconds tolerate.


@dataclass(frozen=True, slots=True)
class _Second:
    ended_s: float  # since the beginning of the measurement; up to one row too early
    metrics: CustomMetrics


def measured_seconds(
    snapshots: Iterable[MetricsSnapshot], windows: Mapping[str, Sequence[WindowResult]]
) -> SecondSeries:
    """The seconds of the measurement, added up over all workers. Empty if a worker has no rows."""
    rows: dict[str, list[MetricsSnapshot]] = {worker_id: [] for worker_id in windows}
    for row in snapshots:
        if row.phase == Phase.MEASUREMENT and row.worker_id in rows:
            rows[row.worker_id].append(row)
    workers = [
        _rows_inside(rows[worker_id], sum(window.seconds for window in own)) for worker_id, own in windows.items()
    ]
    length = min(map(len, workers), default=0)
    stages = np.zeros(length, np.int64)
    if length:
        ends_s = np.cumsum([window.seconds for window in next(iter(windows.values()))])
        stages = np.searchsorted(ends_s[:-1], [second.ended_s for second in workers[0][:length]]).astype(np.int64)
    return _sum_over_workers([[second.metrics for second in seconds[:length]] for seconds in workers], stages)


def _rows_inside(rows: list[MetricsSnapshot], measured_s: float) -> list[_Second]:
    rows.sort(key=lambda row: row.elapsed_seconds)
    if not rows:
        return []
    first = _metrics_of(rows[0])
    ended = [row.elapsed_seconds - rows[0].elapsed_seconds for row in rows[1:]]
    inside = [(row, end_s) for row, end_s in zip(rows[1:], ended, strict=True) if end_s <= measured_s - first.seconds]
    return [_Second(end_s, _metrics_of(row)) for row, end_s in inside]


def _metrics_of(row: MetricsSnapshot) -> CustomMetrics:
    return read_custom_metrics(row.custom_metrics or "")


def _sum_over_workers(
    workers: Sequence[Sequence[CustomMetrics]], stages: np.ndarray[tuple[int, ...], np.dtype[np.int64]]
) -> SecondSeries:
    length = len(stages)
    names = dict.fromkeys(name for seconds in workers for second in seconds for name in second.statements)
    seconds_s, sums_ns = np.zeros(length), np.zeros(length)
    buckets = np.zeros((length, BUCKETS), np.int64)
    succeeded, failed = ({name: np.zeros(length, np.int64) for name in names} for _ in range(2))
    earlier = np.zeros(length, np.int64)
    for seconds in workers:
        for at, second in enumerate(seconds):
            seconds_s[at] += second.seconds / len(workers)
            sums_ns[at] += second.response.sum_ns
            buckets[at] += second.response.counts
            earlier[at] += 0 if second.earlier is None else second.earlier.counts.succeeded
            for name, counts in second.statements.items():
                succeeded[name][at] += counts.succeeded
                failed[name][at] += counts.failed
    return SecondSeries(
        seconds=seconds_s,
        buckets=buckets,
        sums_ns=sums_ns,
        succeeded=succeeded,
        failed=failed,
        stages=stages,
        earlier=earlier,
    )


# --- the runs of a scenario over time: series of comparable runs, and why other runs are in none ---------------------

RUNS_MAX = 300  # the newest runs, independent of the number that is shown
NAMES_MAX = 1_000  # names of scenarios in a hint

_UNREADABLE = "are unreadable"
_UNTOLD = ("warnings", "credits")  # keys of the environment that are findings
_IDS = ("queue_id", "attempt")  # labels that a pool sets differently for each run
# Columns of SHOW WAREHOUSES that are settings.
_WAREHOUSE_SETTINGS = (
    *("type", "size", "min_cluster_count", "max_cluster_count", "scaling_policy", "generation", "auto_suspend"),
    *("enable_query_acceleration", "query_acceleration_max_scale_factor", "resource_monitor", "resource_constraint"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _SeriesRun:
    run: TrendRun
    setting: RunConditions


def read_trend(session: ControlSession, retries: RetryPolicy, scenario: str, until: str | None = None) -> Trend:
    """The judged series of the newest run; with `until`, of that run and the runs before it."""
    results = retries.call(lambda: test_results.of_scenario(session, scenario, RUNS_MAX))
    if not results and not results.unreadable:
        raise _no_such_scenario(session, retries, scenario)
    looks = retries.call(lambda: run_measurements.last_polls_of_scenario(session, scenario, RUNS_MAX))
    left_out: Counter[str] = Counter({_UNREADABLE: len(results.unreadable)} if results.unreadable else {})
    last_left_out: str | None = str(results.unreadable[0]) if results.unreadable else None
    known: dict[str, _SeriesRun] = {}
    for result in reversed(results):
        try:
            summary = parse_summary(result.run_id, result.summary)
            why = _left_out(result, summary)
            if why or summary is None:
                left_out[why] += 1
                last_left_out = why_not_comparable("run", result.run_id, result.status, summary)
            else:
                known[result.run_id] = _series_run(result, summary, *looks.get(result.run_id, (None, None)))
        except (RowUnreadable, RunFailed) as error:
            left_out[_UNREADABLE] += 1
            last_left_out = str(error)
        if result.run_id == until:
            break
    series = series_of([one.run for one in known.values()])
    if not series:
        return trend_of(scenario, [], left_out, last_left_out=last_left_out)
    *_, newest = series.values()
    others = [_other(runs, newest, known) for runs in series.values() if runs is not newest]
    return trend_of(scenario, newest, left_out, others, last_left_out)


def _left_out(result: ScenarioResult, summary: Mapping[str, Any] | None) -> str:
    """Why a run is in no series; empty: it is in one."""
    if result.status != RunStatus.COMPLETED:
        status = next((known for known in RunStatus if known == result.status), None)
        if status is None:
            return f"are {result.status}"
        return f"{'have the verdict' if status.is_terminal else 'are'} {outcome_word(status)}"
    if why_not_comparable("", "", result.status, summary) is None:
        return ""
    if summary is None or summary["validity"]["valid"]:
        return "were ended early by a threshold" if summary is not None and summary.get("aborted") else "have no number"
    return "are INVALID"


def _series_run(result: ScenarioResult, summary: Mapping[str, Any], size: str | None, raw: str | None) -> _SeriesRun:
    environment, config = summary["environment"], parse_config(result.run_id, result.scenario_config)
    warehouse = json_object("WAREHOUSE_POLL_SNAPSHOTS", result.run_id, "raw", raw)
    setting = RunConditions(
        config=config,
        environment=environment,
        workers=summary["workers"],
        warehouse_sizes=(size,) if size else (),
    )
    facts = {
        **{f"environment.{name}": value for name, value in environment.items() if name not in _UNTOLD},
        **{f"warehouse.{name}": warehouse[name] for name in _WAREHOUSE_SETTINGS if name in warehouse},
        **{f"labels.{name}": value for name, value in config.get("labels", {}).items() if name not in _IDS},
        "connections": summary["connections"],
    }
    values, at_least = values_of(summary)
    run = TrendRun(
        run_id=result.run_id,
        created=result.created_at,
        started=_started(summary) or result.created_at,
        key=SeriesKey(
            template_id=result.template_id,
            driver_major=driver_major(environment),
            driver_lightened=driver_lightened(environment),
            workers=summary["workers"],
            cores=environment.get("cores"),
            warehouse_size=size,
        ),
        values=values,
        at_least=at_least,
        facts={name: str(value) for name, value in facts.items() if value is not None},
    )
    return _SeriesRun(run=run, setting=setting)


def _started(summary: Mapping[str, Any]) -> datetime | None:
    """The start of a run in naive UTC; None: it is unknown or unreadable."""
    try:
        return datetime.fromisoformat(summary.get("started_at") or "").replace(tzinfo=None)
    except ValueError:
        return None


def _other(runs: Sequence[TrendRun], newest: Sequence[TrendRun], known: Mapping[str, _SeriesRun]) -> OtherSeries:
    """Another series with the differences that separate it from this one."""
    theirs, ours = known[runs[-1].run_id], known[newest[-1].run_id]
    found = differences(theirs.setting, ours.setting)
    apart = tuple(one for one in found if not one.key.startswith(("name", "description", "labels", "environment.")))
    apart += tuple(one for one in found if one.key.removeprefix("environment.") in FORBIDDING_KEYS)
    return OtherSeries(key=runs[-1].key, runs=len(runs), newest=runs[-1], differences=apart)


def _no_such_scenario(session: ControlSession, retries: RetryPolicy, scenario: str) -> UsageError:
    names = retries.call(lambda: run_status.scenarios(session, NAMES_MAX))
    near = difflib.get_close_matches(scenario, [name for name in names if name != scenario], n=1)
    meant = f"Did you mean {printable(near[0], 60)}? " if near else ""
    there = (
        f"There are runs of {', '.join(printable(name, 60) for name in names)}." if names else "There are no runs yet."
    )
    shown = printable(scenario, 100) if scenario.strip() else f'"{printable(scenario, 100)}"'
    return UsageError(
        f"scenario {shown} has no run with a result",
        remedy=f"{meant}Name a scenario as its file does, in `name:`. {there}",
    )


# --- experiments: the stored result, or an interim result ------------------------------------------------------------

UNFINISHED = "unfinished"  # the verdict of an experiment without a result that no process leads


def read_experiment_result(session: ControlSession, retries: RetryPolicy, name: str) -> dict[str, Any]:
    """experiment.json of the named experiment. While a process leads it, or after a kill, it is an interim result. It
    includes metered credits, if they were read."""
    row = experiments.find(session, retries, name)
    result = _result(session, retries, row)
    metering = retries.call(lambda: experiments.metering(session, row.experiment_id))
    return result if metering is None else with_metering(result, metering)


def _result(session: ControlSession, retries: RetryPolicy, row: ExperimentRow) -> dict[str, Any]:
    is_led = row.experiment_id in retries.call(lambda: experiments.led(session))
    end = None if is_led else retries.call(lambda: experiments.last_end(session, row.experiment_id))
    begun = retries.call(lambda: experiments.blocks(session, row.experiment_id))
    if end is not None:
        result = json_object("EXPERIMENT_ENDS", row.experiment_id, "RESULT", end.result)
        if result.get("blocks", {}).get("begun") == max(begun, default=0):  # otherwise it was resumed and killed
            return result
    facts = _facts(session, retries, row, max(begun, default=0), is_led=is_led)
    return experiment_document(facts)


def _facts(
    session: ControlSession, retries: RetryPolicy, row: ExperimentRow, begun: int, *, is_led: bool
) -> ExperimentFacts:
    measured = retries.call(lambda: experiments.measurements(session, row.experiment_id))
    config = json_object("EXPERIMENTS", row.experiment_id, "CONFIG", row.config)
    try:
        design = ExperimentDesign(
            arms=tuple(config["arms"]),
            reference=str(config["reference"]),
            margins={ExperimentMetric.parse(text): float(margin) for text, margin in config["metrics"].items()},
            blocks_min=int(config["blocks"][0]),
            blocks_max=int(config["blocks"][1]),
            seed=int(config["seed"]),
            has_limits=bool(config["limits"]),
        )
        price = config["price"]
        return ExperimentFacts(
            experiment_id=row.experiment_id,
            name=row.name,
            scenario=str(config["scenario"]),
            design=design,
            limits=tuple(map(str, config["limits"])),
            credit_price=float(price["credit"]),
            currency=str(price["currency"]),
            rates_date=str(price["rates_date"]),
            started_at=utc_iso(row.created_at),
            ended_at="",
            begun=begun,
            measured=tuple(measured),
            connections={str(arm): int(number) for arm, number in config.get("connections", {}).items()},
            only_connections_differ=bool(config.get("only_connections_differ")),
            verdict=RUNNING if is_led else UNFINISHED,
            exit_code=12,
            reason="a process leads it"
            if is_led
            else "its process has ended: `loadgen experiment FILE --resume` continues it",
        )
    except (KeyError, ValueError, TypeError, IndexError, AttributeError) as error:
        raise RowUnreadable("EXPERIMENTS", row.experiment_id, f"CONFIG: {error}") from None


def status_of(verdict: str | None, *, is_led: bool) -> str:
    return RUNNING if is_led else verdict or UNFINISHED
