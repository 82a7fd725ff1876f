"""The JSON Schema of scenario files, for editors. `schemas/scenario.schema.json` is this, and a test keeps it so."""

from __future__ import annotations

import inspect
import json
import typing
from typing import Any

from loadgen.scenario.file import ScenarioFile
from loadgen.scenario.keys import REQUIRED, KeyDeclaration, ScenarioSection, is_nullable, kind_of, options_of
from loadgen.scenario.types import JsonSchema

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def scenario_schema() -> JsonSchema:
    definitions: dict[str, JsonSchema] = {}
    root = _mapping(ScenarioFile, definitions)
    return {"$schema": _DIALECT, "$defs": dict(sorted(definitions.items())), **root, "title": "loadgen scenario"}


def schema_text() -> str:
    """As it is stored: indented, with a newline at the end."""
    return json.dumps(scenario_schema(), indent=2, ensure_ascii=False) + "\n"


def _mapping(section: type[ScenarioSection], definitions: dict[str, JsonSchema]) -> JsonSchema:
    keys = {declared.alias or name: declared for name, declared in section.declared_keys().items()}
    required = [name for name, declared in keys.items() if declared.default is REQUIRED]
    described = section.__dict__.get("__doc__")  # not that of a base
    return {
        "additionalProperties": False,
        **({"description": inspect.cleandoc(described)} if described else {}),
        "properties": {name: _property(declared, definitions) for name, declared in keys.items()},
        **({"required": required} if required else {}),
        "type": "object",
    }


def _property(declared: KeyDeclaration, definitions: dict[str, JsonSchema]) -> JsonSchema:
    schema = _type(declared.type, definitions)
    if declared.default is not REQUIRED and not isinstance(declared.default, (ScenarioSection, dict)):
        schema["default"] = declared.default
    if declared.description is not None:
        schema["description"] = declared.description
    return dict(sorted(schema.items()))


def _type(type_: Any, definitions: dict[str, JsonSchema]) -> JsonSchema:
    kind = kind_of(type_)
    if kind is not None:
        return dict(_sorted(kind.json_schema()))
    options = [_option(option, definitions) for option in options_of(type_)]
    schema = options[0] if len(options) == 1 else {"oneOf": options}
    return {"anyOf": [schema, {"type": "null"}]} if is_nullable(type_) else schema


def _option(option: Any, definitions: dict[str, JsonSchema]) -> JsonSchema:
    if isinstance(option, type) and issubclass(option, ScenarioSection):
        if option.__name__ not in definitions:
            definitions[option.__name__] = {}  # a section may hold itself
            mapping = _mapping(option, definitions)
            shorthand = option.shorthand
            definitions[option.__name__] = {"anyOf": [_sorted(shorthand), mapping]} if shorthand else mapping
        return {"$ref": f"#/$defs/{option.__name__}"}
    inner = _type(typing.get_args(option)[-1], definitions)
    if typing.get_origin(option) is list:
        return {"items": inner, "type": "array"}
    return {"additionalProperties": inner, "type": "object"}


def _sorted(schema: Any) -> Any:
    """With keys by name, as all of the file has them but the properties."""
    if isinstance(schema, list):
        return [_sorted(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {key: _sorted(value) for key, value in sorted(schema.items())}
