"""The JSON Schemas of scenario and experiment files, for editors; a test compares them with those in schemas/."""

from __future__ import annotations

import inspect
import json
import typing
from typing import Any

from loadgen.scenario.experiment import ExperimentFile
from loadgen.scenario.file import ScenarioFile
from loadgen.scenario.keys import (
    REQUIRED,
    JsonSchema,
    KeyDeclaration,
    declared_keys,
    element_type,
    is_nullable,
    is_section,
    options_of,
    value_type_of,
)

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def scenario_schema() -> JsonSchema:
    return _schema(ScenarioFile, "loadgen scenario")


def experiment_schema() -> JsonSchema:
    return _schema(ExperimentFile, "loadgen experiment")


def schema_text(schema: JsonSchema | None = None) -> str:
    """The text of the file: indented, with a newline at the end. Of scenarios, unless another one is given."""
    return json.dumps(scenario_schema() if schema is None else schema, indent=2, ensure_ascii=False) + "\n"


def _schema(file: type, title: str) -> JsonSchema:
    definitions: dict[str, JsonSchema] = {}
    root = _mapping(file, definitions)
    return {"$schema": _DIALECT, "$defs": dict(sorted(definitions.items())), **root, "title": title}


def _mapping(section: type, definitions: dict[str, JsonSchema]) -> JsonSchema:
    keys = declared_keys(section)
    required = [name for name, declared in keys.items() if declared.default is REQUIRED]
    return {
        "additionalProperties": False,
        **({"description": inspect.cleandoc(section.__doc__)} if section.__doc__ else {}),
        "properties": {name: _property(declared, definitions) for name, declared in keys.items()},
        **({"required": required} if required else {}),
        "type": "object",
    }


def _property(declared: KeyDeclaration, definitions: dict[str, JsonSchema]) -> JsonSchema:
    schema = _type(declared.type, definitions)
    default = declared.default
    if default is not REQUIRED and not isinstance(default, dict) and not is_section(type(default)):
        schema["default"] = default
    if declared.description is not None:
        schema["description"] = declared.description
    return dict(sorted(schema.items()))


def _type(type_: Any, definitions: dict[str, JsonSchema]) -> JsonSchema:
    value_type = value_type_of(type_)
    if value_type is not None:
        return dict(_sorted(value_type.json_schema()))
    options = [_option(option, definitions) for option in options_of(type_)]
    schema = options[0] if len(options) == 1 else {"oneOf": options}
    return {"anyOf": [schema, {"type": "null"}]} if is_nullable(type_) else schema


def _option(option: Any, definitions: dict[str, JsonSchema]) -> JsonSchema:
    if is_section(option):
        if option.__name__ not in definitions:
            definitions[option.__name__] = {}  # a section may contain itself
            mapping = _mapping(option, definitions)
            short = mapping["properties"].get(getattr(option, "shorthand", None))
            definitions[option.__name__] = {"anyOf": [short, mapping]} if short else mapping
        return {"$ref": f"#/$defs/{option.__name__}"}
    inner = _type(element_type(option), definitions)
    if typing.get_origin(option) is tuple:
        return {"items": inner, "type": "array"}
    return {"additionalProperties": inner, "type": "object"}


def _sorted(schema: Any) -> Any:
    """With sorted keys, as everywhere in the file but in `properties`."""
    if isinstance(schema, list):
        return [_sorted(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {key: _sorted(value) for key, value in sorted(schema.items())}
