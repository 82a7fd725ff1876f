"""Snowflake's functions for the embedded server: the allow-list, and the PostgreSQL schema `sf` that implements them.

`FUNCTIONS` is the allow-list; a function that is not in it is unknown. `script()` returns the SQL that creates the
schema: types, casts, operators and functions, from the *.sql files of this package in the order of their names. The SQL
may be run repeatedly. The server keeps `sf` in the search_path, because operators are found through it, and DateStyle
at ISO, MDY.

    function     an entry of the allow-list, and the translation of a call; aggregates, window functions, table
                 functions
    scalars      scalar functions; functions that are translated to other expressions than one call
"""

from __future__ import annotations

from importlib import resources

from loadgen.embedded.functions.function import AGGREGATES, TABLES, WINDOWS, FunctionCall, SqlFunction, normal_unit
from loadgen.embedded.functions.scalars import SCALARS

__all__ = ["FUNCTIONS", "FunctionCall", "SqlFunction", "normal_unit", "script"]

FUNCTIONS: dict[str, SqlFunction] = {function.name: function for function in (*SCALARS, *AGGREGATES, *WINDOWS, *TABLES)}


def script() -> str:
    """The SQL that creates schema sf, to be run in one transaction."""
    files = sorted(
        (file for file in resources.files(__name__).iterdir() if file.name.endswith(".sql")), key=lambda file: file.name
    )
    return "\n".join(file.read_text("utf-8") for file in files)
