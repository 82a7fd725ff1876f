"""Identifiers: Snowflake's rules for a name, and how it is stored in PostgreSQL, which allows 63 bytes only."""

from __future__ import annotations

import hashlib

from loadgen.embedded.failure import SqlError, compilation

POSTGRES_NAME_BYTES = 63
SNOWFLAKE_NAME_LENGTH = 255

_long_names: dict[str, str] = {}  # stored name → full name, for names that do not fit; grows with the catalogue only


def stored(name: str) -> str:
    """The PostgreSQL name for a Snowflake one; a long name becomes a prefix and a digest."""
    if len(name) <= POSTGRES_NAME_BYTES // 4 or len(name.encode()) <= POSTGRES_NAME_BYTES:
        return name
    if len(name) > 2 * SNOWFLAKE_NAME_LENGTH + 1:
        raise too_long(name)
    short = f"{name.encode()[:40].decode(errors='ignore')}~{hashlib.sha256(name.encode()).hexdigest()[:20]}"
    _long_names[short] = name
    return short


def full(stored_name: str) -> str:
    """The Snowflake name of a PostgreSQL one."""
    return _long_names.get(stored_name, stored_name)


def quoted(name: str) -> str:
    """The PostgreSQL spelling of a Snowflake identifier, always quoted."""
    return '"' + stored(name).replace('"', '""') + '"'


def relation(database: str, schema: str, name: str) -> str:
    return f"{quoted(f'{database}.{schema}')}.{quoted(name)}"


def literal(text: str) -> str:
    """A PostgreSQL string literal; standard_conforming_strings is on, so only the quote needs care."""
    return "'" + text.replace("'", "''") + "'"


def too_long(name: str) -> SqlError:
    return compilation(2020, "42601", f"Object name '{name[:60]}…' is too long (limit {SNOWFLAKE_NAME_LENGTH}).")


def shown(name: str) -> str:
    """The name as Snowflake prints it in messages: quoted when it needs quotes."""
    plain = name.replace("_", "A").replace("$", "A")
    if plain.isalnum() and plain.isascii() and plain.upper() == plain and not name[0].isdigit():
        return name
    return '"' + name.replace('"', '""') + '"'
