"""Identifiers of Snowflake, and their names in PostgreSQL, which are limited to 63 bytes."""

from __future__ import annotations

import hashlib
import re

from loadgen.embedded.sql_errors import SqlError, compilation, unsupported

POSTGRES_NAME_BYTES = 63
SNOWFLAKE_NAME_LENGTH = 255

# PostgreSQL's functions and system columns have names in lower case, and `t.f` may mean `f(t)`. A suffix keeps users'
# names apart from them.
_PLAIN_LOWER = re.compile(r"[a-z_][a-z0-9_$]*")
_SUFFIX = "~"

_full_names: dict[str, str] = {}  # stored name → full name, of names that are too long; grows with the catalogue only


def stored(name: str) -> str:
    """The PostgreSQL name of a Snowflake identifier; a long one is shortened to a prefix and a digest."""
    if "\0" in name:
        raise unsupported("NUL character in a name")
    suffixed = name + _SUFFIX if name.endswith(_SUFFIX) or _PLAIN_LOWER.fullmatch(name) else name
    if len(suffixed.encode()) <= POSTGRES_NAME_BYTES:
        return suffixed
    short = f"{name.encode()[:40].decode(errors='ignore')}~{hashlib.sha256(name.encode()).hexdigest()[:20]}"
    _full_names[short] = name
    return short


def full(stored_name: str) -> str:
    """The Snowflake identifier of a PostgreSQL name."""
    return _full_names.get(stored_name) or stored_name.removesuffix(_SUFFIX)


def quoted(name: str) -> str:
    """The quoted PostgreSQL name of a Snowflake identifier."""
    return '"' + stored(name).replace('"', '""') + '"'


def schema_key(database: str, schema: str) -> str:
    """One name for database and schema. Dots in names are escaped, so different schemas get different names."""
    key = ".".join(part.replace("~", "~~").replace(".", "~d") for part in (database, schema))
    return f"~{key}" if key.startswith("pg_") else key  # PostgreSQL reserves that prefix


def schema_name(database: str, schema: str) -> str:
    """The quoted PostgreSQL schema of a Snowflake schema."""
    return quoted(schema_key(database, schema))


def relation(database: str, schema: str, name: str) -> str:
    """The qualified, quoted PostgreSQL name of a table, index or sequence."""
    return f"{schema_name(database, schema)}.{quoted(name)}"


def literal(text: str) -> str:
    """A PostgreSQL string literal; standard_conforming_strings is on, so only quotes are escaped."""
    if "\0" in text:
        raise unsupported("NUL character in a string")
    return "'" + text.replace("'", "''") + "'"


def too_long(name: str) -> SqlError:
    return compilation(2020, "42601", f"Object name '{name[:60]}…' is too long (limit {SNOWFLAKE_NAME_LENGTH}).")


def shown(name: str) -> str:
    """The name as in Snowflake's messages: quoted if necessary."""
    plain = name.replace("_", "A").replace("$", "A")
    if plain.isalnum() and plain.isascii() and plain.upper() == plain and not name[0].isdigit():
        return name
    return '"' + name.replace('"', '""') + '"'
