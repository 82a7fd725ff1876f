"""Random scenarios, unusual ones too: each either validates, plans, freezes and can be drawn from, or has problems.

There is no third outcome.
"""

import contextlib
import json
import random
import string
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loadgen.errors import RunFailed
from loadgen.model.workload import ClientPosition
from loadgen.rules.scenario_plan import plan, plan_data, plan_text
from loadgen.scenario.document import Problem, ScenarioProblems
from loadgen.scenario.frozen import freeze, template_id, thaw
from loadgen.scenario.model import LoadMode, Scenario, with_workers
from loadgen.scenario.read import LoadedScenario, parse_scenario
from loadgen.workload.arrivals import window_schedules
from loadgen.workload.draw import StatementStream
from loadgen.workload.pools import Pool
from loadgen.workload.users import RememberedValues
from tests.unit.generator_builders import places

ENVIRON = {"SET": "7", "WORD": "w√rd", "EMPTY": ""}
RELAXED = settings(deadline=None, suppress_health_check=list(HealthCheck))

# --- scenarios that should be right ----------------------------------------------------------------------------------

names = st.text(string.ascii_letters, min_size=1, max_size=6).map(lambda text: f"N{text}")
words = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=8)
free_texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20).filter(str.strip)
scalars = st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats(-1e15, 1e15) | free_texts
small_counts = st.integers(1, 2000) | st.sampled_from(["1k", "10k", "2_000"])
durations = st.sampled_from(["1s", "30s", "1.5s", "5m", "250ms", "1h"])
flags = st.booleans()
thetas = st.floats(0.01, 0.99)


def mapping(required: dict[str, Any] | None = None, /, **optional: Any) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(required or {}, optional=optional)


ranges = st.tuples(st.integers(-1000, 1000), st.integers(0, 10**6)).map(lambda two: {"min": two[0], "max": sum(two)})


def ranged(name: str, **more: Any) -> st.SearchStrategy[dict[str, Any]]:
    return st.tuples(ranges, mapping(**more)).map(lambda two: {name: {**two[0], **two[1]}})


row_generators = st.one_of(
    scalars.map(lambda value: {"literal": value}),
    st.lists(scalars, min_size=1, max_size=4).map(lambda values: {"choice": values}),
    st.dictionaries(words, st.integers(1, 90), min_size=1, max_size=3).map(lambda weights: {"choice": weights}),
    ranged("uniform"),
    st.just({"uniform": {"min": 0.5, "max": "9.5"}}),
    mapping(
        {"mean": st.floats(-10, 10), "stddev": st.floats(0.01, 9)},
        min=st.floats(-12, 0),
        max=st.floats(0, 12),
        whole=flags,
    ).map(lambda s: {"normal": s}),
    ranged("zipfian", theta=thetas, scrambled=flags),
    ranged("hotspot", hot_fraction=thetas, hot_share=thetas),
    mapping(start=st.integers(-5, 10**9)).map(lambda s: {"sequence": s}),
    mapping({"length": st.integers(0, 50)}, max_length=st.integers(50, 99)).map(lambda s: {"text": s}),
    st.just({"uuid": {}}),
    st.just({"timestamp": {"min": "2025-01-01", "max": "2026-01-01T12:00:00+02:00"}}),
)
generators = st.one_of(
    row_generators,
    ranged("latest", theta=thetas),
    st.just({"pool": "ids"}),
    thetas.map(lambda theta: {"pool": "ids", "distribution": "zipfian", "theta": theta}),
)


@st.composite
def statements(draw: Any, number: int, sharded: bool) -> dict[str, Any]:
    own = [{"sequence": {"sharded": True}}, {"shard": {}}, {"uniform": {"sharded": True}}] if sharded else []
    parameters = draw(st.lists(generators, max_size=3)) + own
    marks = ", ".join("?" for _ in parameters) or "1"
    made: dict[str, Any] = {"name": f"{draw(words)}{number}", "weight": draw(st.integers(1, 50))}
    kind = draw(st.sampled_from(["select", "insert", "transaction"]))
    if kind == "transaction":
        again = [{"previous": draw(st.integers(0, len(parameters) - 1))}] if parameters else []
        made["transaction"] = [
            {"sql": f"INSERT INTO T SELECT {marks}", "params": parameters},
            {"sql": "UPDATE T SET A = " + ("?" if again else "1"), "params": again},
        ]
        return made
    made["sql"] = f"SELECT {marks} -- ?" if kind == "select" else f"INSERT INTO T VALUES ({marks}, 'really?')"
    made["params"] = parameters
    if draw(flags):
        made["expect"] = {"rows": draw(st.integers(0, 9))}
    return made


@st.composite
def tables(draw: Any, number: int) -> dict[str, Any]:
    columns = [{"name": "ID", "type": "NUMBER(38,0)", "primary_key": True, "generate": {"sequence": {}}}]
    for column in range(draw(st.integers(0, 2))):
        columns.append({"name": f"C{column}", "type": "VARCHAR", "generate": draw(row_generators)})
    return {
        "name": f"{draw(names)}{number}",
        "type": draw(st.sampled_from(["hybrid", "standard"])),
        "rows": draw(small_counts),
        "columns": columns,
    }


loads = st.one_of(
    mapping(
        connections=st.integers(1, 500),
        warmup=durations,
        duration=durations,
        profile=st.just("thread"),
        pin=st.sampled_from(["auto", "none"]),
        workers=st.sampled_from(["auto", 1, 3]),
    ),
    mapping(
        {"stages": st.lists(mapping({"duration": durations, "connections": st.integers(1, 99)}), min_size=1)},
        warmup=st.just("0s"),
    ),
    mapping(
        {"mode": st.just("rate"), "rate": st.sampled_from(["10/s", "90/m", "1k/s"])},
        arrival=st.sampled_from(["poisson", "uniform"]),
        max_connections=st.integers(1, 99),
        max_lag=durations,
        duration=st.sampled_from(["1s", "5m"]),
    ),
    mapping(
        {"mode": st.just("find_max")},
        find_max=mapping(
            start=st.integers(1, 20),
            increment=st.integers(1, 50),
            maximum=st.integers(20, 300),
            step=durations,
            refine=flags,
            qps_stability_pct=st.floats(0.5, 50),
        ),
    ),
)
sections: dict[str, Any] = {
    "description": free_texts | st.just("${WORD} and ${UNSET:-more}"),
    "labels": st.dictionaries(words, free_texts, max_size=2),
    "connection": words | st.just("embedded"),
    "target": mapping(
        warehouse=names,
        database=names,
        schema=names,
        use_cached_result=flags,
        statement_timeout=st.sampled_from(["5s", "1m"]),
        session=st.dictionaries(names, scalars, max_size=2),
    ),
    "seed": st.integers(0, 2**62) | st.just("${SET}"),
    "connections": mapping(open_parallel=st.integers(1, 64), max_age=st.just("10m"), max_statements=small_counts),
    "thresholds": st.lists(st.sampled_from(["p95 < 50ms", "error_rate<=0.5%", {"check": "qps > 1k"}]), max_size=3),
    "guardrails": mapping(max_cpu_percent=st.floats(1, 100), action=st.sampled_from(["warn", "abort"])),
    "query_log": mapping(mode=st.sampled_from(["all", "errors"]), max_rows=small_counts),
    "enrichment": mapping(enabled=st.sampled_from(["auto", True, False])),
    "on_worker_loss": st.sampled_from(["fail", "continue"]),
    "timing": mapping(heartbeat=st.just("100ms"), drain=durations, tick=st.just("0.25s")),
    "embedded": mapping(service_time=st.just("lognormal(20ms,0.3)"), slots=st.integers(0, 64)),
}


@st.composite
def scenario_data(draw: Any) -> dict[str, Any]:
    """The data of a scenario that is right, unless two of its parts happen not to fit together."""
    data: dict[str, Any] = {"version": 1, "name": draw(words), **draw(mapping(**sections)), "load": draw(loads)}
    data["values"] = {"ids": {"query": "SELECT ID FROM T ORDER BY 1"}}
    sharded = draw(flags)
    if sharded:
        data["sharding"] = {"enabled": True, "total_partitions": 4, "key_range": [1, draw(st.integers(10, 10**6))]}
    count = draw(st.integers(1, 3))
    data["workload"] = {"statements": [draw(statements(number, sharded)) for number in range(count)]}
    data["prepare"] = {"tables": [draw(tables(number)) for number in range(draw(st.integers(0, 2)))]}
    if draw(flags):
        data["sessions"] = draw(mapping({"count": st.just(10_000)}, affinity=st.just("strict"), ttl=st.just("5s")))
        remember(data["workload"]["statements"][0])
    return data


def remember(statement: dict[str, Any]) -> None:
    """Have it executed in a session, which remembers its first parameter."""
    statement["session"] = True
    parameters = (statement.get("transaction") or [statement])[0]["params"]
    parameters[:1] = [{"remembered": "who", "of": first} for first in parameters[:1]]


# --- and what becomes of them ----------------------------------------------------------------------------------------


def check_problems(problems: tuple[Problem, ...]) -> None:
    assert problems
    assert all(str(problem).startswith("fuzz.yaml") and problem.what for problem in problems)


def read(text: str) -> LoadedScenario | None:
    """The scenario, or None when it has problems, all of which can be reported."""
    try:
        loaded = parse_scenario(text, source="fuzz.yaml", environ=ENVIRON)
    except ScenarioProblems as error:
        check_problems(error.problems)
        return None
    made = plan(loaded, cores=4)
    assert sum(made.connections_per_worker) == loaded.scenario.load.connections
    assert plan_text(made)
    json.dumps(plan_data(made), allow_nan=False)
    assert thaw(freeze(loaded.scenario), ENVIRON) == loaded.scenario
    assert len(template_id(loaded.scenario)) == 32
    check_draws(with_workers(loaded.scenario, cores=4))
    return loaded


def check_draws(scenario: Scenario) -> None:
    """What validates can be drawn from, by the first and the last worker."""
    load, workers = scenario.load, scenario.load.workers or 1
    pools = {pool.name: Pool(pool.name, (1, 2, 3)) for pool in scenario.pools}
    for worker in {0, workers - 1}:
        for place in places(worker, workers, load.connections)[-1:] if scenario.sessions.count else ():
            memory = RememberedValues(scenario.workload, place, pools, users=3)
            assert 0 <= memory.user(5) < 3
            with contextlib.suppress(RunFailed):
                memory.values(2, 1)
        if load.mode is LoadMode.RATE:
            place = ClientPosition(worker=worker, workers=workers)
            drawer = StatementStream(scenario.workload, place, pools, open_loop=True)
            schedules = window_schedules(load, worker=worker, workers=workers, seed=scenario.workload.seed)
            for schedule in (schedule for schedule in schedules if schedule.end > schedule.first):
                assert 0.0 <= schedule.due_s(schedule.end - 1) <= schedule.duration_s
                draw(drawer, schedule.end - 1)
            continue
        for place in places(worker, workers, load.connections)[-1:]:
            drawer = StatementStream(scenario.workload, place, pools)
            for k in range(4):
                draw(drawer, k)


def draw(drawer: StatementStream, k: int) -> None:
    with contextlib.suppress(RunFailed):  # a sharded sequence may have given all its keys
        drawer.draw(k)


JUNK: list[Any] = [
    None,
    "",
    "x",
    "${UNSET}",
    "${",
    "-1",
    -1,
    0,
    10**30,
    1.5,
    True,
    [],
    {},
    [[]],
    {"a": 1},
    "\0",
    "*",
    "💥" * 300,
]


def damaged(data: Any, seed: int) -> Any:
    """The same with a few things put where they do not belong."""
    chance = random.Random(seed)
    for _ in range(chance.randint(1, 6)):
        here = data
        while isinstance(here, (dict, list)) and here and chance.random() < 0.8:
            key = chance.choice(list(here)) if isinstance(here, dict) else chance.randrange(len(here))
            if not isinstance(here[key], (dict, list)) or chance.random() < 0.3:
                match chance.randrange(4):
                    case 0 if isinstance(here, dict):
                        here[f"{key}s"] = here.pop(key)
                    case 1:
                        del here[key]
                    case 2:
                        here[key] = [here[key]]
                    case _:
                        here[key] = chance.choice(JUNK)
                break
            here = here[key]
    return data


@settings(RELAXED, max_examples=40)
@given(scenario_data())
def test_scenarios_that_look_right_are_read_planned_and_frozen(data):
    read(json.dumps(data))


def test_most_made_scenarios_are_really_right():
    """Or the test above would show nothing."""
    outcomes = []

    @settings(RELAXED, max_examples=20, database=None)
    @given(scenario_data())
    def collect(data):
        outcomes.append(read(json.dumps(data)) is not None)

    collect()

    assert sum(outcomes) > len(outcomes) / 2


@settings(RELAXED, max_examples=80)
@given(scenario_data(), st.integers(0, 2**32))
def test_damaged_scenarios_have_problems_or_not_but_never_an_exception(data, seed):
    read(json.dumps(damaged(data, seed), ensure_ascii=False))


@settings(RELAXED, max_examples=100)
@given(st.text(st.sampled_from(list("ab:-?[]{},&*!|>'\"%@`#\n\t \\U9xe0.~$\0\ud800"))) | st.text())
def test_any_text_at_all_has_problems_and_never_an_exception(text):
    assert read(text) is None


@pytest.mark.slow
@pytest.mark.parametrize("round_number", range(20))
def test_ten_thousand_scenarios_either_validate_or_have_problems(round_number):
    @settings(RELAXED, max_examples=500, database=None)
    @given(scenario_data(), st.integers(0, 2**32))
    def check(data, seed):
        text = json.dumps(data if seed % 3 == 0 else damaged(data, seed + round_number), ensure_ascii=False)
        read(text)

    check()
