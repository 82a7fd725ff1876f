"""Reads the credits that Snowflake has metered for the warehouses of an experiment, and stores them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from loadgen.control.session import ControlFailed, ControlSession
from loadgen.control.tables import experiments
from loadgen.errors import Busy, RunFailed
from loadgen.prepare.session import target_profile
from loadgen.rules.price import (
    FUNCTION,
    HOUR,
    LATENCY,
    ExperimentMetering,
    MeteredHour,
    hours_of,
    metering_of,
    metering_source,
)
from loadgen.scenario.frozen import thaw
from loadgen.scenario.model import Scenario
from loadgen.snowflake.account_history import AccountHistorySession
from loadgen.snowflake.ident import Identifier, text_literal, timestamp_literal
from loadgen.snowflake.session import NOT_RETRYABLE, RetryPolicy
from orchestrator.query_history import history_profile
from orchestrator.warehouse import TargetWarehouse

STATEMENT_S = 60  # time limit of a query for one warehouse: views of ACCOUNT_USAGE are slow
_PLAIN = re.compile(r"[A-Z_][A-Z0-9_$]*")
_COLUMNS = "WAREHOUSE_NAME, START_TIME, CREDITS_USED_COMPUTE, CREDITS_USED_CLOUD_SERVICES"
# Arguments of table functions cannot be bound.
_FUNCTION = f"""
SELECT {_COLUMNS} FROM TABLE(INFORMATION_SCHEMA.WAREHOUSE_METERING_HISTORY(
    DATE_RANGE_START => {{start}}, DATE_RANGE_END => {{end}},
    WAREHOUSE_NAME => {{warehouse}}))
"""
_VIEW = f"""
SELECT {_COLUMNS} FROM SNOWFLAKE.ACCOUNT_USAGE.WAREHOUSE_METERING_HISTORY
WHERE WAREHOUSE_NAME = ? AND START_TIME >= {{start}} AND START_TIME < {{end}}
"""


class MeteringFailed(ControlFailed):
    """The metering of Snowflake could not be read."""

    remedy = "Grant what `loadgen grants --experiment FILE` prints for it, then try again."


class NothingMetered(RunFailed):
    """There is no metering for the warehouses of the experiment in its hours."""

    remedy = "Metering is up to 3 hours late, and needs MONITOR USAGE: see `loadgen grants --experiment FILE`."


def meter_experiment(
    session: ControlSession, retries: RetryPolicy, name: str, environ: Mapping[str, str] = os.environ
) -> str:
    """Read the metering of an experiment, and store it. Returns the id of the experiment."""
    experiment_id = experiments.find(session, retries, name).experiment_id
    if experiment_id in retries.call(lambda: experiments.led(session)):
        raise Busy(
            f"experiment {experiment_id} has not ended",
            remedy="Wait until it has ended; metering is up to 3 hours late.",
        )
    hours = hours_of(retries.call(lambda: experiments.spans(session, experiment_id)))
    scenarios = _scenarios(session, retries, experiment_id, environ)
    if not hours or not scenarios:
        raise NothingMetered(f"experiment {experiment_id} has no run", remedy="There is nothing to meter.")
    scenario = next(iter(scenarios.values()))
    profile = history_profile(scenario, session.place, environ)
    if profile.text("database") is None and session.place.connection == scenario.connection:
        profile = profile.with_fields("the control plane", database=session.place.database)  # INFORMATION_SCHEMA of any
    with closing(MeteringSession(profile, environ)) as history:
        found = _read(history, retries, scenarios, hours, environ)
    if found is None:
        raise NothingMetered(f"nothing is metered for experiment {experiment_id} yet")
    experiments.meter(session, retries, experiment_id, found)
    return experiment_id


def _scenarios(
    session: ControlSession, retries: RetryPolicy, experiment_id: str, environ: Mapping[str, str]
) -> dict[str, Scenario]:
    """The scenario of each arm, as it was run."""
    found: dict[str, Scenario] = {}
    for run in retries.call(lambda: experiments.runs(session, experiment_id)):
        if run.arm not in found:
            found[run.arm] = thaw(run.config, environ)
    return found


def _read(
    history: MeteringSession,
    retries: RetryPolicy,
    scenarios: Mapping[str, Scenario],
    hours: Sequence[datetime],
    environ: Mapping[str, str],
) -> ExperimentMetering | None:
    now = retries.call(history.now)
    profiles = {arm: target_profile(scenario, None, environ=environ) for arm, scenario in scenarios.items()}
    arms = {arm: TargetWarehouse.of_profile(profile).name for arm, profile in profiles.items()}
    source = metering_source(hours, now)
    rows: list[MeteredHour] = []
    for warehouse in sorted(set(arms.values())):
        rows += retries.call(partial(history.metered, Identifier(warehouse), hours[0], hours[-1] + HOUR, source))
    return metering_of(rows, hours, arms, now, history.latency)


class MeteringSession(AccountHistorySession):
    """A session that reads WAREHOUSE_METERING_HISTORY."""

    what, failed, role, statement_limit_s = "metering", MeteringFailed, "enrich", STATEMENT_S

    @property
    def latency(self) -> timedelta:
        return timedelta() if self._profile.is_embedded else LATENCY

    def metered(self, warehouse: Identifier, start: datetime, end: datetime, source: str) -> list[MeteredHour]:
        span = {"start": timestamp_literal(start), "end": timestamp_literal(end)}
        if source == FUNCTION:
            text = warehouse.name if _PLAIN.fullmatch(warehouse.name) else warehouse.sql
            rows = self.fetch(_FUNCTION.format(**span, warehouse=text_literal(text)))
        else:
            rows = self.fetch(_VIEW.format(**span), warehouse.name)
        try:
            return [_hour(*row) for row in rows]
        except (ValueError, TypeError, AttributeError) as error:
            raise MeteringFailed("the rows of the metering have an unknown form", NOT_RETRYABLE) from error


def _hour(warehouse: Any, start: datetime, compute: Any, cloud_services: Any) -> MeteredHour:
    return MeteredHour(
        warehouse=str(warehouse),
        start=start.astimezone(UTC).replace(tzinfo=None),
        compute=float(compute or 0.0),
        cloud_services=float(cloud_services or 0.0),
    )
