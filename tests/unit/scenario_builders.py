"""Scenarios from texts, and the problems of those that are none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from loadgen.prepare.fill import tables_of
from loadgen.prepare.table_definition import TableDefinition
from loadgen.scenario.document import ScenarioProblems
from loadgen.scenario.model import Scenario
from loadgen.scenario.read import parse_scenario
from loadgen.snowflake.ident import Identifier

MINIMAL = "version: 1\nname: x\nworkload: {statements: [{name: a, sql: SELECT 1}]}\n"
# Followed by the section `workload`, and by `load`.
EMBEDDED = "version: 1\nname: x\nconnection: embedded\ntarget: {database: BENCH, schema: PUBLIC}\n"
# With places for mistakes.
GOOD = """\
version: 1
name: good
{top}
workload:
  statements:
    - name: a
      sql: SELECT ?
      params: [{param}]
{statement}
load: {{{load}}}
"""


def read(text: str, environ: dict[str, str] | None = None, **options: Any) -> Scenario:
    return parse_scenario(text, source="f.yaml", environ=environ or {}, **options).scenario


def problems(text: str, environ: dict[str, str] | None = None, **options: Any) -> list[str]:
    with pytest.raises(ScenarioProblems) as found:
        read(text, environ, **options)
    return [str(problem) for problem in found.value.problems]


def problems_of(top="", param="{literal: 1}", load="", statement=""):
    return problems(GOOD.format(top=top, param=param, load=load, statement=statement))


def only_table(text: str) -> TableDefinition:
    """The definition of the one table that a scenario prepares."""
    ((_, definition),) = tables_of(read(text, folder=Path()), Identifier("D"), Identifier("S"))
    assert definition is not None
    return definition
