"""Experiments as their tables have them: the stored result, or what is known while there is none."""

from __future__ import annotations

from typing import Any

from loadgen.control.session import ControlSession, RowUnreadable, json_object
from loadgen.control.tables import experiments
from loadgen.control.tables.experiments import ExperimentRow
from loadgen.model.experiment import ExperimentMetric
from loadgen.report.experiment import RUNNING, ExperimentFacts, experiment_document, with_metering
from loadgen.rules.experiment import ExperimentDesign
from loadgen.snowflake.session import RetryPolicy

INTERRUPTED = "interrupted"  # the verdict of an experiment without a result that no process leads


def read_experiment_result(session: ControlSession, patience: RetryPolicy, name: str) -> dict[str, Any]:
    """experiment.json of the experiment of that name. While a process leads it, and after a kill: what is known. With
    what was metered, if that has been read."""
    row = experiments.find(session, patience, name)
    result = _result(session, patience, row)
    metering = patience.call(lambda: experiments.metering(session, row.experiment_id))
    return result if metering is None else with_metering(result, metering)


def _result(session: ControlSession, patience: RetryPolicy, row: ExperimentRow) -> dict[str, Any]:
    is_led = row.experiment_id in patience.call(lambda: experiments.led(session))
    end = None if is_led else patience.call(lambda: experiments.last_end(session, row.experiment_id))
    begun = patience.call(lambda: experiments.blocks(session, row.experiment_id))
    if end is not None:
        result = json_object("EXPERIMENT_ENDS", row.experiment_id, "RESULT", end.result)
        if result.get("blocks", {}).get("begun") == max(begun, default=0):  # else it was resumed, and killed
            return result
    facts = _facts(session, patience, row, max(begun, default=0), is_led=is_led)
    return experiment_document(facts)


def _facts(
    session: ControlSession, patience: RetryPolicy, row: ExperimentRow, begun: int, *, is_led: bool
) -> ExperimentFacts:
    measured = patience.call(lambda: experiments.measurements(session, row.experiment_id))
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
            started_at=f"{row.created_at.isoformat(timespec='milliseconds')}Z",
            ended_at="",
            begun=begun,
            measured=tuple(measured),
            connections={str(arm): int(number) for arm, number in config.get("connections", {}).items()},
            only_connections_differ=bool(config.get("only_connections_differ")),
            verdict=RUNNING if is_led else INTERRUPTED,
            exit_code=12,
            reason="a process leads it"
            if is_led
            else "its process has ended: `loadgen experiment FILE --resume` continues",
        )
    except (KeyError, ValueError, TypeError, IndexError, AttributeError) as error:
        raise RowUnreadable("EXPERIMENTS", row.experiment_id, f"CONFIG: {error}") from None


def status_of(verdict: str | None, *, is_led: bool) -> str:
    return RUNNING if is_led else verdict or INTERRUPTED
