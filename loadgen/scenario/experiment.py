"""The experiment file: a scenario, arms that change it, and what to compare.

It is read and checked like a scenario. All problems are shown at once, including those of the scenario in each arm.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, ClassVar

from loadgen.identifiers import canonical
from loadgen.log import printable
from loadgen.model.experiment import ExperimentMetric, InvalidMetric
from loadgen.model.threshold import ThresholdCheck
from loadgen.model.warehouse import (
    PROPERTIES,
    SIZES,
    Cloud,
    CreditRates,
    WarehouseKind,
    WarehouseValue,
    size_name,
    snowflake_rates,
)
from loadgen.model.workload import Scalar
from loadgen.scenario.document import (
    Document,
    KeyPath,
    Problem,
    ScenarioProblems,
    option_source,
    scalar_text,
    substitute_variables,
)
from loadgen.scenario.file import FileName, Version
from loadgen.scenario.key_reader import CheckedFile, Section, key
from loadgen.scenario.model import NAME_LENGTH_MAX, CheckText, LoadMode, Scenario, with_workers
from loadgen.scenario.read import LoadedScenario, compose, parse_scenario, read_text
from loadgen.scenario.value_types import (
    Duration,
    FreeText,
    Integer,
    Label,
    Number,
    ParsedText,
    ScalarValue,
    SqlName,
)
from loadgen.values import dataclass

ARMS_MAX = 8
BLOCKS_MAX = 200
ARM_LENGTH_MAX = 40


_PERCENT = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,6})?)\s*%")


def _margin(text: str) -> float | None:
    match = _PERCENT.fullmatch(text.strip())
    return float(match[1]) / 100.0 if match is not None and 0.0 < float(match[1]) <= 100.0 else None


Margin = Annotated[
    float,
    ParsedText(
        read=_margin,
        what="is not a margin",
        how="write percent above 0% and at most 100%, such as 5%",
        more={"pattern": r"^[0-9][0-9.]*\s*%$|\$\{"},
    ),
]
# As SHOW WAREHOUSES writes it: X-Small.
WarehouseSize = Annotated[
    str, ParsedText(read=size_name, what="is not a warehouse size", how=f"sizes are {', '.join(SIZES)}")
]
ScalingPolicy = StrEnum("ScalingPolicy", ["STANDARD", "ECONOMY"])
Clusters = Annotated[int, Integer(low=1, high=300)]


class ArmWarehouse(Section):
    """The warehouse of an arm, or its name alone. Settings are changed before each measurement, and restored."""

    shorthand: ClassVar[str] = "name"
    name: Annotated[str, SqlName()] | None = key(
        "The warehouse to measure on; null: that of the scenario.", default=None
    )
    create: bool = key("Create this warehouse for the experiment, and drop it at the end.", default=False)
    size: WarehouseSize | None = key("X-Small, Small and so on.", default=None)
    generation: Annotated[int, Integer(low=1, high=2)] | None = key("Generation of the hardware.", default=None)
    min_clusters: Clusters | None = key("MIN_CLUSTER_COUNT.", default=None)
    max_clusters: Clusters | None = key("MAX_CLUSTER_COUNT.", default=None)
    scaling_policy: ScalingPolicy | None = key("SCALING_POLICY.", default=None)
    max_concurrency_level: Annotated[int, Integer(low=1, high=10_000)] | None = key(
        "MAX_CONCURRENCY_LEVEL.", default=None
    )
    query_acceleration: bool | None = key("ENABLE_QUERY_ACCELERATION.", default=None)

    @property
    def settings(self) -> dict[str, WarehouseValue]:
        """The given settings, by their names in `loadgen.model.warehouse`."""
        given = {name: getattr(self, name) for name in PROPERTIES}
        return {name: PROPERTIES[name].read(value) for name, value in given.items() if value is not None}


class ArmSection(Section):
    """One of the variants that are compared, as changes of the scenario."""

    set: Mapping[str, Annotated[Scalar, ScalarValue()]] = key(
        "Values that replace those of the scenario, as with --set: {load.connections: 64}.", default={}
    )
    warehouse: ArmWarehouse | None = key(
        "Another warehouse than that of the scenario, or other settings of it.", default=None
    )

    @property
    def settings(self) -> dict[str, WarehouseValue]:
        """The given settings of its warehouse."""
        return {} if self.warehouse is None else self.warehouse.settings


class BlocksSection(Section):
    """Each block measures every arm once."""

    minimum: Annotated[int, Integer(low=2, high=BLOCKS_MAX)] = key(
        "No decision before this number of complete blocks.", default=4
    )
    maximum: Annotated[int, Integer(low=2, high=BLOCKS_MAX)] = key(
        "Number of the planned last block; blocks that do not count are included.", default=20
    )


class BudgetSection(Section):
    """Limits of the experiment. No block begins that may exceed them."""

    credits: Annotated[float, Number(low=0, high=10**6, above=True)] | None = key(
        "Credits of the warehouses under test, estimated; null: no limit.", default=None
    )
    time_s: Annotated[float, Duration(low_s=1, high_s=30 * 86_400.0)] | None = key(
        "Duration of the experiment; null: no limit.", default=None
    )


Rates = Mapping[WarehouseSize, Annotated[float, Number(low=0, high=10**6)]]


class RatesSection(Section):
    """Credits per hour and cluster, by size: {X-Small: 1, Small: 2}."""

    date: Annotated[str, FreeText(length_max=40)] = key("Date of the consumption table; it is shown with prices.")
    gen1: Rates = key("Rates of generation 1.", default={})
    gen2: Rates = key("Rates of generation 2.", default={})
    snowpark_optimized: Rates = key("Rates of Snowpark-optimized warehouses.", default={})


class PriceSection(Section):
    """How credits become a price."""

    credit: Annotated[float, Number(low=0, high=10**6, above=True)] = key(
        "Price of one credit; 1 shows prices in credits.", default=1.0
    )
    currency: Annotated[str, Label(length_max=10)] = key("Unit of prices: USD.", default="credits")
    cloud: Cloud = key("Rates of generation 2 depend on it.", default="aws")
    rates: RatesSection | None = key("Another table of rates; null: the built-in one.", default=None)

    @property
    def table(self) -> CreditRates:
        if self.rates is None:
            return snowflake_rates(self.cloud)
        given = {kind: getattr(self.rates, kind.value) for kind in WarehouseKind}
        named = {kind: {size_name(size) or size: rate for size, rate in by.items()} for kind, by in given.items()}
        return CreditRates(date=self.rates.date, per_hour=named)


class ExperimentFile(Section):
    """An experiment."""

    version: Annotated[int, Version()] = key("Version of the file format: 1.")
    name: Annotated[str, Label(length_max=NAME_LENGTH_MAX)] = key("Name of the experiment in reports.")
    description: Annotated[str, FreeText(length_max=10_000)] | None = key("Text for readers.", default=None)
    scenario: Annotated[str, FileName()] = key("The scenario file, relative to this file.")
    arms: dict[str, ArmSection] = key("The variants to compare, by name.")
    reference: Annotated[str, Label(length_max=ARM_LENGTH_MAX)] = key("The arm with which the other arms are compared.")
    metrics: dict[str, Margin] = key(
        "Metrics to compare, each with the largest difference that does not matter: {p95: 5%, price: 3%}."
    )
    limits: tuple[Annotated[ThresholdCheck, CheckText()], ...] = key(
        "Thresholds; statements of a measurement count as served when it keeps them.", default=[]
    )
    blocks: BlocksSection = key(default=BlocksSection())
    washout_s: Annotated[float, Duration(high_s=3_600.0)] = key(
        "Pause before each measurement; the scenario's warm-up follows.", default="0s"
    )
    budget: BudgetSection = key(default=BudgetSection())
    price: PriceSection = key(default=PriceSection())
    seed: Annotated[int, Integer(high=2**63 - 1)] = key("Seed of the order of arms.", default=1)

    @property
    def margins(self) -> dict[ExperimentMetric, float]:
        return {ExperimentMetric.parse(text): margin for text, margin in self.metrics.items()}


class ExperimentProblems(ScenarioProblems):
    remedy = "Fix the lines named above; `loadgen experiment FILE --dry-run` checks without connecting."


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedExperiment:
    """An experiment that can run."""

    file: ExperimentFile
    arms: Mapping[str, LoadedScenario]
    folder: Path  # of the scenario: value pools from files lie there
    warnings: tuple[Problem, ...]

    def scenarios(self, cores: int, connection: str | None = None) -> dict[str, Scenario]:
        """The scenarios of the arms with their number of workers, and with this `connection` if one is given."""
        arms = {name: arm.scenario for name, arm in self.arms.items()}
        return {
            name: with_workers(replace(one, connection=one.connection if connection is None else connection), cores)
            for name, one in arms.items()
        }


def read_experiment(path: Path, *, environ: Mapping[str, str], text: str | None = None) -> LoadedExperiment:
    """Read and check a file (or its `text`, if it was read before), and its scenario for every arm. Raises
    ScenarioProblems with everything that is wrong with them."""
    found = read_text(path, missing="copy a file of examples/experiments to start from") if text is None else text
    if isinstance(found, Problem):
        raise ExperimentProblems(str(path), [found])
    document = compose(found, str(path))
    substitute_variables(document, environ)
    checked = CheckedFile(ExperimentFile, document)
    file = checked.file
    if file is not None:
        _check(checked, file)
    arms: dict[str, LoadedScenario] = {}
    scenario = path.parent / (file.scenario if file is not None else "")
    if file is not None and checked.fine("scenario", "arms"):
        arms = _arms(checked, file, scenario, environ)
    if document.problems or file is None:
        raise ExperimentProblems(
            str(path), sorted(document.problems, key=lambda one: (one.source != str(path), one.position()))
        )
    warnings = dict.fromkeys([*document.warnings, *(one for arm in arms.values() for one in arm.warnings)])
    return LoadedExperiment(file=file, arms=arms, folder=scenario.resolve().parent, warnings=tuple(warnings))


# --- rules between keys ----------------------------------------------------------------------------------------------


def _check(checked: CheckedFile[Any], file: ExperimentFile) -> None:
    if checked.fine("arms") and not 2 <= len(file.arms) <= ARMS_MAX:
        checked.key_problem("arms", f"an experiment has 2 to {ARMS_MAX} arms", "give each a name")
    for name in file.arms:
        if not re.fullmatch(rf"[A-Za-z0-9_.-]{{1,{ARM_LENGTH_MAX}}}", name):
            hint = f"write letters, digits, underscores, dots and dashes, at most {ARM_LENGTH_MAX}"
            checked.key_problem(("arms", name), "is not the name of an arm", hint)
    if checked.fine("arms", "reference") and file.reference not in file.arms:
        checked.problem("reference", "is not an arm", f"arms are {', '.join(map(printable, file.arms))}")
    if checked.fine("blocks") and file.blocks.minimum > file.blocks.maximum:
        checked.problem("blocks.minimum", f"is above maximum, {file.blocks.maximum}", "lower it, or raise maximum")
    if checked.fine("metrics") and not file.metrics:
        checked.key_problem("metrics", "names nothing to compare", "write for example {p95: 5%}")
    for text in file.metrics:
        try:
            ExperimentMetric.parse(text)
        except InvalidMetric as error:
            checked.key_problem(("metrics", text), error.what, error.hint)


# --- arms ------------------------------------------------------------------------------------------------------------


def _arms(
    checked: CheckedFile[Any], file: ExperimentFile, scenario: Path, environ: Mapping[str, str]
) -> dict[str, LoadedScenario]:
    """The scenario of every arm. Its problems become problems of the experiment."""
    text = read_text(scenario)
    document = checked.document
    if isinstance(text, Problem):
        checked.problem("scenario", text.what, "write its path relative to this file")
        return {}
    arms: dict[str, LoadedScenario] = {}
    seen: set[Problem] = set()
    for name, arm in file.arms.items():
        changes = list(_changes(name, arm))
        try:
            arms[name] = parse_scenario(
                text,
                source=str(scenario),
                folder=scenario.parent,
                overrides=[change.text for change in changes],
                environ=environ,
            )
        except ScenarioProblems as error:
            new = [
                one for one in (_placed(problem, changes, document) for problem in error.problems) if one not in seen
            ]
            seen.update(new)
            document.problems.extend(new)
        else:
            _check_arm(checked, file, name, arms[name])
    if len(arms) == len(file.arms):
        _check_arms_together(checked, file, arms)
    return arms


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """One override of an arm, written like an option --set."""

    path: KeyPath  # in the experiment file
    text: str

    @property
    def source(self) -> str:
        """The source that its problems name."""
        return option_source(f"--set {self.text}")


def _changes(name: str, arm: ArmSection) -> Iterator[_Change]:
    for path, value in arm.set.items():
        yield _Change(path=("arms", name, "set", path), text=f"{path}={scalar_text(value)}")
    if arm.warehouse is not None and arm.warehouse.name is not None:
        yield _Change(path=("arms", name, "warehouse"), text=f"target.warehouse={arm.warehouse.name}")


def _placed(problem: Problem, changes: Sequence[_Change], document: Document) -> Problem:
    """A problem with an override at its position in the experiment file; other problems are returned unchanged."""
    change = next((one for one in changes if problem.mark is None and one.source == problem.source), None)
    if change is None:
        return problem
    entry = document.entry(change.path)
    mark = entry.mark if entry is not None else None
    return Problem(source=document.source, mark=mark, path=change.path, what=problem.what.strip(), hint=problem.hint)


def _check_arm(checked: CheckedFile[Any], file: ExperimentFile, name: str, loaded: LoadedScenario) -> None:
    scenario, path = loaded.scenario, ("arms", name)
    if scenario.load.mode not in (LoadMode.CONCURRENCY, LoadMode.RATE):
        what = f"its load.mode is {scenario.load.mode}, and experiments measure one load"
        checked.key_problem(path, what, "use mode concurrency or rate")
    if any(threshold.abort for threshold in scenario.thresholds):
        what = "its scenario has a threshold that aborts the measurement"
        checked.key_problem(path, what, "use limits of the experiment instead")
    arm = file.arms[name].warehouse
    if arm is not None and arm.settings and scenario.target.warehouse is None:
        what = "changes settings of a warehouse that is not named"
        checked.key_problem((*path, "warehouse"), what, "add name, or target.warehouse of the scenario")
    if arm is not None and arm.min_clusters and arm.max_clusters and arm.min_clusters > arm.max_clusters:
        what = f"is above max_clusters, {arm.max_clusters}"
        checked.problem((*path, "warehouse", "min_clusters"), what, "lower it, or raise the other")
    if arm is not None and (arm.settings or arm.create) and not scenario.load.warmup_s:
        what = "the experiment creates or alters this warehouse, and the scenario has no warm-up: its caches are cold"
        checked.warn((*path, "warehouse"), what, "add load.warmup")
    if arm is not None and arm.create and arm.name is None:
        checked.problem((*path, "warehouse", "create"), "has no name", "add the name of a warehouse to be made")
    names = {statement.name for statement in scenario.workload.statements if statement.weight}
    asked: list[tuple[KeyPath, str | None]] = [(("limits", n), check.statement) for n, check in enumerate(file.limits)]
    asked += [(("metrics", text), text.strip().rpartition(".")[0]) for text in file.metrics]
    for place, statement in asked:
        if statement and statement not in names and checked.fine(place):
            what = f"arm {printable(name)} sends no such statement"
            checked.problem(place, what, f"statements are {', '.join(map(printable, sorted(names)))}")


def _check_arms_together(checked: CheckedFile[Any], file: ExperimentFile, arms: Mapping[str, LoadedScenario]) -> None:
    scenarios = [loaded.scenario for loaded in arms.values()]
    used = {name: canonical(loaded.scenario.target.warehouse or "") for name, loaded in arms.items()}
    for number, (name, loaded) in enumerate(arms.items()):
        if loaded.scenario.control != scenarios[0].control:
            hint = "one experiment has one control plane"
            checked.key_problem(("arms", name), "has another control plane than the first arm", hint)
        if loaded.scenario.connection != scenarios[0].connection:
            what = "has another connection than the first arm"
            checked.key_problem(
                ("arms", name), what, "change target.warehouse, or measure each account in a separate experiment"
            )
        arm = file.arms[name].warehouse
        also = next((other for other in arms if other != name and used[other] == used[name]), None)
        if arm is not None and arm.create and also is not None:
            what = f"makes a warehouse that arm {printable(also)} uses too"
            checked.problem(("arms", name, "warehouse", "create"), what, "give each of them a different name")
        same = next((other for other in list(arms)[:number] if arms[other].scenario == loaded.scenario), None)
        if same is not None and file.arms[same].settings == file.arms[name].settings:
            checked.warn(("arms", name), f"is the same as arm {printable(same)}: an A/A comparison")
