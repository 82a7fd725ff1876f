"""The JSON Schemas of scenarios and experiments, for editors, made from the declarations of keys.

They are stored in schemas/; `python -m tests.scenario_reference` writes them, and tests compare them.
"""

from __future__ import annotations

import inspect
import json
import typing
from typing import Any

from loadgen.scenario.experiment import ExperimentFile
from loadgen.scenario.file import ScenarioFile
from loadgen.scenario.key_reader import (
    REQUIRED,
    KeyDeclaration,
    declared_keys,
    element_type,
    is_nullable,
    is_section,
    options_of,
    value_type_of,
)
from loadgen.scenario.value_types import JsonSchema, ValueType

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_VARIABLE: JsonSchema = {"type": "string", "pattern": r"\$\{"}


def scenario_schema() -> JsonSchema:
    return _file_schema(ScenarioFile, "loadgen scenario")


def experiment_schema() -> JsonSchema:
    return _file_schema(ExperimentFile, "loadgen experiment")


def schema_text(schema: JsonSchema) -> str:
    """The text of the file: indented, with a newline at the end."""
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def _file_schema(file: type, title: str) -> JsonSchema:
    definitions: dict[str, JsonSchema] = {}
    root = _section_schema(file, definitions)
    return {"$schema": _DIALECT, "$defs": dict(sorted(definitions.items())), **root, "title": title}


def _section_schema(section: type, definitions: dict[str, JsonSchema]) -> JsonSchema:
    keys = declared_keys(section)
    required = [name for name, declared in keys.items() if declared.default is REQUIRED]
    return {
        "additionalProperties": False,
        **({"description": inspect.cleandoc(section.__doc__)} if section.__doc__ else {}),
        "properties": {name: _key_schema(declared, definitions) for name, declared in keys.items()},
        **({"required": required} if required else {}),
        "type": "object",
    }


def _key_schema(declared: KeyDeclaration, definitions: dict[str, JsonSchema]) -> JsonSchema:
    schema = _type_schema(declared.type, definitions)
    default = declared.default
    if default is not REQUIRED and not isinstance(default, dict) and not is_section(type(default)):
        schema["default"] = default
    if declared.description is not None:
        schema["description"] = declared.description
    return dict(sorted(schema.items()))


def _type_schema(type_: Any, definitions: dict[str, JsonSchema]) -> JsonSchema:
    value_type = value_type_of(type_)
    if value_type is not None:
        return dict(_sorted(_value_schema(value_type)))
    options = [_option_schema(option, definitions) for option in options_of(type_)]
    schema = options[0] if len(options) == 1 else {"oneOf": options}
    return {"anyOf": [schema, {"type": "null"}]} if is_nullable(type_) else schema


def _value_schema(value_type: ValueType) -> JsonSchema:
    """With variables and null where they are allowed."""
    own = value_type.schema()
    options = own.pop("anyOf", None) or [own]
    if value_type.takes_variables and not any(map(_admits_variables, options)):
        options = [*options, _VARIABLE]
    if value_type.nullable:
        options = [*options, {"type": "null"}]
    return options[0] if len(options) == 1 else {"anyOf": options}


def _admits_variables(schema: JsonSchema) -> bool:
    return schema.get("type") == "string" and r"\$\{" in schema.get("pattern", r"\$\{")


def _option_schema(option: Any, definitions: dict[str, JsonSchema]) -> JsonSchema:
    if is_section(option):
        if option.__name__ not in definitions:
            definitions[option.__name__] = {}  # a section may contain itself
            mapping = _section_schema(option, definitions)
            if name := option.below:
                mapping = _below(name, option.__name__.replace("Generator", "Settings"), mapping, definitions)
            short = mapping["properties"].get(getattr(option, "shorthand", None))
            definitions[option.__name__] = {"anyOf": [short, mapping]} if short else mapping
        return {"$ref": f"#/$defs/{option.__name__}"}
    inner = _type_schema(element_type(option), definitions)
    if typing.get_origin(option) is tuple:
        return {"items": inner, "type": "array"}
    return {"additionalProperties": inner, "type": "object"}


def _below(name: str, definition: str, section: JsonSchema, definitions: dict[str, JsonSchema]) -> JsonSchema:
    """A mapping with one key, with the keys of the section below it."""
    described = section.pop("description")
    definitions[definition] = section
    inner = {"$ref": f"#/$defs/{definition}", "description": described}
    return {"additionalProperties": False, "properties": {name: inner}, "required": [name], "type": "object"}


def _sorted(schema: Any) -> Any:
    """With sorted keys, as everywhere in the file but in `properties`."""
    if isinstance(schema, list):
        return [_sorted(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {key: _sorted(value) for key, value in sorted(schema.items())}
