"""Identifiers: Snowflake's rules for a name, and how it is stored in PostgreSQL, which allows 63 bytes only."""

from __future__ import annotations

import hashlib
import re

from loadgen.embedded.sql_errors import SqlError, compilation, unsupported

POSTGRES_NAME_BYTES = 63
SNOWFLAKE_NAME_LENGTH = 255

# Names in lower case are those of PostgreSQL's own functions and system columns, and `t.f` may mean `f(t)` there.
# A user's name of that kind gets a mark, so that it is always a plain name.
_PLAIN_LOWER = re.compile(r"[a-z_][a-z0-9_$]*")
_MARK = "~"

_full_names: dict[str, str] = {}  # stored name → full name, for names that do not fit; grows with the catalogue only


def stored(name: str) -> str:
    """The PostgreSQL name for a Snowflake one; a long name becomes a prefix and a digest."""
    if "\0" in name:
        raise unsupported("NUL character in a name")
    marked = name + _MARK if name.endswith(_MARK) or _PLAIN_LOWER.fullmatch(name) else name
    if len(marked.encode()) <= POSTGRES_NAME_BYTES:
        return marked
    short = f"{name.encode()[:40].decode(errors='ignore')}~{hashlib.sha256(name.encode()).hexdigest()[:20]}"
    _full_names[short] = name
    return short


def full(stored_name: str) -> str:
    """The Snowflake name of a PostgreSQL one."""
    return _full_names.get(stored_name) or stored_name.removesuffix(_MARK)


def quoted(name: str) -> str:
    """The PostgreSQL spelling of a Snowflake identifier, always quoted."""
    return '"' + stored(name).replace('"', '""') + '"'


def schema_key(database: str, schema: str) -> str:
    """One name for a schema of a database; dots inside names cause no collision."""
    key = ".".join(part.replace("~", "~~").replace(".", "~d") for part in (database, schema))
    return f"~{key}" if key.startswith("pg_") else key  # PostgreSQL reserves that prefix


def schema_name(database: str, schema: str) -> str:
    """The PostgreSQL schema of a Snowflake schema, quoted."""
    return quoted(schema_key(database, schema))


def relation(database: str, schema: str, name: str) -> str:
    return f"{schema_name(database, schema)}.{quoted(name)}"


def literal(text: str) -> str:
    """A PostgreSQL string literal; standard_conforming_strings is on, so only quotes are escaped."""
    if "\0" in text:
        raise unsupported("NUL character in a string")
    return "'" + text.replace("'", "''") + "'"


def too_long(name: str) -> SqlError:
    return compilation(2020, "42601", f"Object name '{name[:60]}…' is too long (limit {SNOWFLAKE_NAME_LENGTH}).")


def shown(name: str) -> str:
    """The name as Snowflake prints it in messages: quoted when it needs quotes."""
    plain = name.replace("_", "A").replace("$", "A")
    if plain.isalnum() and plain.isascii() and plain.upper() == plain and not name[0].isdigit():
        return name
    return '"' + name.replace('"', '""') + '"'
