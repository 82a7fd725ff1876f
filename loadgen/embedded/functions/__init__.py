"""Snowflake's functions for the embedded server: the allow-list, and the PostgreSQL schema `sf` that implements them.

`FUNCTIONS` is the allow-list; a name that is not in it does not exist. `script()` makes the schema: types, casts,
operators and functions, from the *.sql files here in the order of their names. It may be run again at any time.
The server keeps `sf` in the search_path (operators are found through it) and DateStyle at ISO, MDY.

    function     one entry of the allow-list, and how a call becomes PostgreSQL's text; aggregates, window functions,
                 table functions
    scalars      scalar functions; functions that become another expression than one call
"""

from __future__ import annotations

from importlib import resources

from loadgen.embedded.functions.function import AGGREGATES, TABLES, WINDOWS, FunctionCall, SqlFunction, normal_unit
from loadgen.embedded.functions.scalars import SCALARS

__all__ = ["FUNCTIONS", "FunctionCall", "SqlFunction", "normal_unit", "script"]

FUNCTIONS: dict[str, SqlFunction] = {function.name: function for function in (*SCALARS, *AGGREGATES, *WINDOWS, *TABLES)}


def script() -> str:
    """The SQL that makes schema sf, as one text for one transaction."""
    files = sorted(
        (file for file in resources.files(__name__).iterdir() if file.name.endswith(".sql")), key=lambda file: file.name
    )
    return "\n".join(file.read_text("utf-8") for file in files)
