"""The JSON Schema of scenario files, for editors. `schemas/scenario.schema.json` is this, and a test keeps it so."""

from __future__ import annotations

import json
from typing import Any

from loadgen.scenario.file import ScenarioFile

FILE_NAME = "scenario.schema.json"


def scenario_schema() -> dict[str, Any]:
    schema = ScenarioFile.model_json_schema(by_alias=True)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **_tidy(schema),
        "title": "loadgen scenario",
    }


def schema_text() -> str:
    """As it is stored: indented, with a newline at the end."""
    return json.dumps(scenario_schema(), indent=2, ensure_ascii=False) + "\n"


def _tidy(schema: Any) -> Any:
    """Without titles made from the keys, which only repeat them in an editor."""
    if isinstance(schema, list):
        return [_tidy(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {key: _tidy(value) for key, value in schema.items() if not _is_noise(key, value)}


def _is_noise(key: str, value: Any) -> bool:
    made = key == "title" and isinstance(value, str)
    whole_section = key == "default" and isinstance(value, dict)  # its keys have defaults of their own
    return made or whole_section
