"""Every example validates, also by the JSON Schema, which is up to date."""

import json
import re
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from loadgen.model.workload import Latest, Sequence, Text, Zipfian
from loadgen.scenario.frozen import freeze, template_id, thaw
from loadgen.scenario.key_reader import plain
from loadgen.scenario.model import LoadMode
from loadgen.scenario.read import compose, parse_scenario, read_scenario
from tests import SCENARIO_EXAMPLES
from tests.scenario_schema import scenario_schema, schema_text

ROOT = Path(__file__).resolve().parents[2]
STARTER = ROOT / "loadgen" / "scenario" / "starter.yaml"
SCHEMA = scenario_schema()
MODELINE = re.compile(r"# yaml-language-server: \$schema=(\S+)\n")


def test_all_examples_are_there():
    names = {path.relative_to(ROOT / "examples").with_suffix("").as_posix() for path in SCENARIO_EXAMPLES}

    assert names >= {
        *(
            "quickstart",
            "oltp_mix",
            "open_loop_rate",
            "stages",
            "find_max",
            "transactions",
            "sharded_insert",
            "sessions",
            "nightly",
        ),
        *("standard_vs_hybrid/standard", "standard_vs_hybrid/hybrid"),
        *(f"ycsb_{letter}" for letter in "abcdef"),
    }


@pytest.mark.parametrize("path", [*SCENARIO_EXAMPLES, STARTER], ids=lambda path: path.stem)
def test_every_example_validates_without_a_warning(path):
    loaded = read_scenario(path, environ={})

    assert loaded.warnings == ()
    assert loaded.scenario.connection == "embedded"
    assert wrong_by_schema(SCHEMA, plain(loaded.document.root)) == []  # type: ignore[arg-type]
    assert template_id(thaw(freeze(loaded.scenario), None)) == template_id(loaded.scenario)


def test_the_comment_of_the_search_names_the_slots_of_its_warehouse():
    path = ROOT / "examples" / "find_max.yaml"
    embedded = read_scenario(path, environ={}).scenario.embedded
    comment = " ".join(line.removeprefix("# ") for line in path.read_text("utf-8").splitlines() if line[:1] == "#")

    assert f"the embedded server executes {embedded.slots} statements at once, each for 200 ms" in comment
    assert f"the {embedded.slots + 1}th queues. So the result is {embedded.slots}." in comment


@pytest.mark.parametrize("path", SCENARIO_EXAMPLES, ids=lambda path: path.stem)
def test_every_example_names_the_schema_in_its_first_line(path):
    modeline = MODELINE.match(path.read_text("utf-8"))

    assert modeline
    assert (path.parent / modeline[1]).resolve() == ROOT / "schemas" / "scenario.schema.json"


def test_the_quickstart_is_what_the_readme_promises():
    scenario = read_scenario(ROOT / "examples" / "quickstart.yaml", environ={}).scenario

    assert scenario.load.connections == 8
    assert scenario.embedded.service_time == "lognormal(200ms,0.3)"
    assert scenario.prepare.tables[0].type == "hybrid"
    assert scenario.load.warmup_s + (scenario.load.duration_s or 0) < 45


def test_the_two_halves_of_the_comparison_differ_in_the_table_only():
    texts = [(ROOT / f"examples/standard_vs_hybrid/{kind}.yaml").read_text("utf-8") for kind in ("standard", "hybrid")]
    alike = [
        re.sub("standard|hybrid", "X", re.sub("STANDARD|HYBRID", "X", text)).replace(" primary_key: true,", "")
        for text in texts
    ]

    scenarios = [parse_scenario(text, source="x", environ={}).scenario for text in alike_types(alike)]

    assert template_id(scenarios[0]) == template_id(scenarios[1])


def alike_types(texts: list[str]) -> list[str]:
    return [re.sub(r"type: X\b", "type: standard", text) for text in texts]


@pytest.mark.parametrize(
    ("letter", "weights"),
    [
        ("a", {"read": 50, "update": 50}),
        ("b", {"read": 95, "update": 5}),
        ("c", {"read": 100}),
        ("d", {"read": 95, "insert": 5}),
        ("e", {"scan": 95, "insert": 5}),
        ("f", {"read": 50, "read_modify_write": 50}),
    ],
)
def test_the_ycsb_mixes_are_the_published_ones(letter, weights):
    scenario = read_scenario(ROOT / f"examples/ycsb_{letter}.yaml", environ={}).scenario
    statements = {statement.name: statement for statement in scenario.workload.statements}
    first = next(iter(statements.values())).queries[0].parameters[0]

    assert {name: statement.weight for name, statement in statements.items()} == weights
    assert [column.generate for column in scenario.prepare.tables[0].columns[1:]] == [Text(length=100)] * 10
    if letter == "d":
        assert isinstance(first, Latest)
        assert first.follows == "insert"
    else:
        assert isinstance(first, Zipfian)
        assert (first.theta, first.scrambled) == (0.99, True)
    if letter == "e":
        assert statements["scan"].queries[0].sql.endswith(" LIMIT 50")  # the mean of YCSB's 1 to 100; no bind
    if "insert" in statements:
        assert statements["insert"].queries[0].parameters[0] == Sequence(start=10_001)
    assert statements.get("read_modify_write", next(iter(statements.values()))).transaction == (letter == "f")
    assert scenario.load.mode is LoadMode.CONCURRENCY


# --- the schema ------------------------------------------------------------------------------------------------------


def test_the_stored_schema_is_up_to_date():
    stored = resources.files("schemas").joinpath("scenario.schema.json").read_text("utf-8")

    assert json.loads(stored) == json.loads(schema_text(SCHEMA)), (
        "make it anew: see CONTRIBUTING.md, A new scenario key"
    )


@pytest.mark.parametrize(
    "line",
    ["connectoin: x", "load: {connections: true}", "load: {mode: fast}", "seed: -1", "thresholds: [{chek: x}]",
     "target: {statement_timeout: 5}", "workload: {statements: [{name: a, params: [{nothing: 1}]}]}", "version: 2"],
)  # fmt: skip
def test_the_schema_refuses_what_is_wrong(line):
    text = (
        line
        + "\n"
        + "\n".join(
            other
            for other in ("version: 1", "name: x", "workload: {statements: []}")
            if other.split(":")[0] != line.split(":")[0]
        )
    )
    data = plain(compose(text, "x").root)  # type: ignore[arg-type]

    assert wrong_by_schema(SCHEMA, data)


def wrong_by_schema(schema: dict[str, Any], data: Any, path: str = "") -> list[str]:
    """A small validator: as much of JSON Schema as ours uses, and an error for anything else."""
    if "$ref" in schema:
        return wrong_by_schema(SCHEMA["$defs"][schema["$ref"].split("/")[-1]], data, path)
    for word in ("anyOf", "oneOf"):
        if word in schema:
            results = [wrong_by_schema(option, data, path) for option in schema[word]]
            fitting = sum(not result for result in results)
            fits = fitting == 1 if word == "oneOf" else fitting
            return [] if fits else [f"{path}: fits {fitting} of {len(results)}", *min(results, key=len)]
    known = {
        *("type", "properties", "required", "additionalProperties", "items", "pattern", "enum", "const", "default"),
        *("description", "title", "minimum", "maximum", "exclusiveMinimum", "minLength", "minItems", "maxItems"),
        *("minProperties", "$schema", "$defs"),
    }
    assert schema.keys() <= known, schema.keys() - known
    if "enum" in schema or "const" in schema:
        options = schema.get("enum", [schema.get("const")])
        return [] if any(data == option and type(data) is type(option) for option in options) else [f"{path}: {data}"]
    kinds = schema["type"] if isinstance(schema.get("type"), list) else [schema.get("type")]
    if not any(is_kind(data, kind) for kind in kinds):
        return [f"{path}: {data!r} is no {kinds}"]
    wrong = [] if fits_limits(schema, data) else [f"{path}: {data!r} does not fit"]
    if isinstance(data, dict):
        wrong += [f"{path}: no {key}" for key in schema.get("required", []) if key not in data]
        for key, value in data.items():
            inner = schema.get("properties", {}).get(key, schema.get("additionalProperties", {}))
            wrong += [f"{path}.{key}: unknown"] if inner is False else wrong_by_schema(inner, value, f"{path}.{key}")
    if isinstance(data, list):
        for number, item in enumerate(data):
            wrong += wrong_by_schema(schema["items"], item, f"{path}.{number}")
    return wrong


def is_kind(data: Any, kind: str | None) -> bool:
    types: dict[str | None, Any] = {
        "string": str, "integer": int, "number": (int, float), "boolean": bool, "null": type(None), "array": list,
        "object": dict, None: object,
    }  # fmt: skip
    return isinstance(data, types[kind]) and not (isinstance(data, bool) and kind in ("integer", "number"))


def fits_limits(schema: dict[str, Any], data: Any) -> bool:
    limits = {"minimum": -1e99, "maximum": 1e99, "exclusiveMinimum": -1e99, "minLength": 0, "minItems": 0, **schema}
    if isinstance(data, str):
        return re.search(schema.get("pattern", ""), data) is not None and len(data) >= int(limits["minLength"])
    if isinstance(data, (int, float)):
        return bool(limits["exclusiveMinimum"] < data and limits["minimum"] <= data <= limits["maximum"])
    size = len(data) if isinstance(data, (list, dict)) else 0
    return int(limits["minItems"]) <= size <= int(schema.get("maxItems", size))
