"""The runs of a scenario as their tables show them: those that count, in series, and why the others do not."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loadgen.control.rows import RowUnreadable, json_object
from loadgen.control.session import ControlSession
from loadgen.control.tables import run_status, test_results, warehouse_poll_snapshots
from loadgen.control.tables.test_results import ScenarioResult
from loadgen.errors import RunFailed, UsageError
from loadgen.log import printable
from loadgen.results.stored_summary import parse_config, parse_summary
from loadgen.rules.comparability import (
    FORBIDDING_KEYS,
    RunConditions,
    differences,
    driver_lightened,
    driver_major,
    why_not_comparable,
)
from loadgen.rules.trend import OtherSeries, SeriesKey, Trend, TrendRun, series_of, trend_of, values_of
from loadgen.snowflake.session import RetryPolicy

RUNS_MAX = 300  # the newest ones: a change counts as new or known whatever is shown of it
NAMES_MAX = 1_000  # of scenarios, in a suggestion

_UNREADABLE = "are unreadable"
_UNTOLD = ("warnings", "credits")  # of the environment: findings, not circumstances
_IDS = ("queue_id", "attempt")  # of the labels: a pool gives them to its runs, to each others
# Of SHOW WAREHOUSES: settings, not the current load.
_WAREHOUSE_SETTINGS = (
    *("type", "size", "min_cluster_count", "max_cluster_count", "scaling_policy", "generation", "auto_suspend"),
    *("enable_query_acceleration", "query_acceleration_max_scale_factor", "resource_monitor", "resource_constraint"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    night: TrendRun
    setting: RunConditions


def read_trend(session: ControlSession, patience: RetryPolicy, scenario: str, until: str | None = None) -> Trend:
    """The series of the newest run that counts, judged; of that one, when it is named, and of those before it."""
    results = patience.call(lambda: test_results.of_scenario(session, scenario, RUNS_MAX))
    if not results and not results.unreadable:
        raise _no_such_scenario(session, patience, scenario)
    looks = patience.call(lambda: warehouse_poll_snapshots.of_scenario(session, scenario, RUNS_MAX))
    left_out: Counter[str] = Counter({_UNREADABLE: len(results.unreadable)} if results.unreadable else {})
    last_left_out: str | None = str(results.unreadable[0]) if results.unreadable else None
    known: dict[str, _Known] = {}
    for result in reversed(results):
        try:
            summary = parse_summary(result.run_id, result.summary)
            why = _left_out(result, summary)
            if why or summary is None:
                left_out[why] += 1
                last_left_out = why_not_comparable("run", result.run_id, result.status, summary)
            else:
                known[result.run_id] = _known(result, summary, *looks.get(result.run_id, (None, None)))
        except (RowUnreadable, RunFailed) as error:
            left_out[_UNREADABLE] += 1
            last_left_out = str(error)
        if result.run_id == until:
            break
    series = series_of([one.night for one in known.values()])
    if not series:
        return trend_of(scenario, [], left_out, last_left_out=last_left_out)
    *_, newest = series.values()
    others = [_other(nights, newest, known) for nights in series.values() if nights is not newest]
    return trend_of(scenario, newest, left_out, others, last_left_out)


def _left_out(result: ScenarioResult, summary: Mapping[str, Any] | None) -> str:
    """Why a run is no part of any series; empty: it is."""
    if result.status != "COMPLETED":
        return f"are {result.status}"
    if why_not_comparable("", "", result.status, summary) is None:
        return ""
    return "are INVALID" if summary is not None and not summary["validity"]["valid"] else "have no number"


def _known(result: ScenarioResult, summary: Mapping[str, Any], size: str | None, raw: str | None) -> _Known:
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
    night = TrendRun(
        run_id=result.run_id,
        started=result.created_at,
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
    return _Known(night=night, setting=setting)


def _other(nights: Sequence[TrendRun], newest: Sequence[TrendRun], known: Mapping[str, _Known]) -> OtherSeries:
    """What sets another series apart: of what differs, only what makes another key."""
    theirs, ours = known[nights[-1].run_id], known[newest[-1].run_id]
    found = differences(theirs.setting, ours.setting)
    apart = tuple(one for one in found if not one.key.startswith(("name", "description", "labels", "environment.")))
    apart += tuple(one for one in found if one.key.removeprefix("environment.") in FORBIDDING_KEYS)
    return OtherSeries(key=nights[-1].key, runs=len(nights), newest=nights[-1], differences=apart)


def _no_such_scenario(session: ControlSession, patience: RetryPolicy, scenario: str) -> UsageError:
    names = patience.call(lambda: run_status.scenarios(session, NAMES_MAX))
    near = difflib.get_close_matches(scenario, [name for name in names if name != scenario], n=1)
    meant = f"Did you mean {printable(near[0], 60)}? " if near else ""
    there = (
        f"There are runs of {', '.join(printable(name, 60) for name in names)}." if names else "There are no runs yet."
    )
    return UsageError(
        f"scenario {printable(scenario, 100)} has no run with a result",
        remedy=f"{meant}Name a scenario as its file does, in `name:`. {there}",
    )
