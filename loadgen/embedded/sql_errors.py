"""Snowflake's errors: number, SQLSTATE and text.

Every error of a statement is a `SqlError`. Only the functions below assign texts to numbers; only `from_postgres`
translates PostgreSQL's errors.
"""

from __future__ import annotations

import asyncpg

INTERNAL = 603
INVALID_IDENTIFIER = 904
CANCELLED = ("57014", "08003", "08006")  # PostgreSQL's SQLSTATEs of statements that a signal or a disconnect ended
OUT_OF_RESOURCES = 200012  # a number of this server


class SqlError(Exception):
    """A statement was rejected or failed; the session can be used further."""

    def __init__(self, errno: int, sqlstate: str, message: str) -> None:
        super().__init__(message)
        self.errno = errno
        self.sqlstate = sqlstate
        self.message = message


def compilation(errno: int, sqlstate: str, text: str) -> SqlError:
    return SqlError(errno, sqlstate, f"SQL compilation error:\n{text}")


def syntax_error(line: int, position: int, unexpected: str) -> SqlError:
    return compilation(1003, "42000", f"syntax error line {line} at position {position} unexpected '{unexpected}'.")


def unsupported(what: str) -> SqlError:
    """A feature of Snowflake that this server does not support."""
    return compilation(2, "0A000", f"Unsupported feature '{what}'.")


def unknown_function(name: str) -> SqlError:
    return compilation(2140, "42601", f"Unknown function {name}.")


def unknown_table_function(name: str) -> SqlError:
    return compilation(2142, "42601", f"Unknown table function {name}.")


def wrong_arity(call: str, least: int, most: int | None, got: int) -> SqlError:
    if got < least:
        return compilation(938, "22023", f"not enough arguments for function [{call}], expected {least}, got {got}")
    return compilation(939, "22023", f"too many arguments for function [{call}] expected {most}, got {got}")


def invalid_identifier(name: str, line: int = 1, position: int = 0) -> SqlError:
    text = f"SQL compilation error: error line {line} at position {position}\ninvalid identifier '{name}'"
    return SqlError(INVALID_IDENTIFIER, "42000", text)


def missing_object(kind: str, name: str) -> SqlError:
    sqlstate = "42S02" if kind in ("Object", "Table", "View") else "02000"
    return compilation(2003, sqlstate, f"{kind} '{name}' does not exist or not authorized.")


def no_such_object() -> SqlError:
    """The error of USE, ALTER and DESCRIBE, which does not contain the name."""
    return compilation(2043, "02000", "Object does not exist, or operation cannot be performed.")


def already_exists(name: str) -> SqlError:
    return compilation(2002, "42710", f"Object '{name}' already exists.")


def no_current_database(verb: str) -> SqlError:
    text = f"Cannot perform {verb}. This session does not have a current database. Call 'USE DATABASE', or use a"
    return SqlError(90105, "22000", f"{text} qualified name.")


def no_current_schema(verb: str) -> SqlError:
    text = f"Cannot perform {verb}. This session does not have a current schema. Call 'USE SCHEMA', or use a"
    return SqlError(90106, "22000", f"{text} qualified name.")


def no_warehouse() -> SqlError:
    text = "No active warehouse selected in the current session.  Select an active warehouse with the 'use warehouse'"
    return SqlError(606, "57P03", f"{text} command.\n")


def values_clause(expression: str) -> SqlError:
    return compilation(2014, "22000", f"Invalid expression [{expression}] in VALUES clause")


def statement_count(actual: int, desired: int) -> SqlError:
    text = f"Actual statement count {actual} did not match the desired statement count {desired}."
    return SqlError(8, "0A000", text)


def canceled() -> SqlError:
    return SqlError(604, "57014", "SQL execution canceled")


def timed_out(seconds: int) -> SqlError:
    text = f"Statement reached its statement or warehouse timeout of {seconds} second(s) and was canceled."
    return SqlError(630, "57014", text)


def queue_timed_out(seconds: int) -> SqlError:
    text = f"Statement reached its queued timeout of {seconds} second(s) and was canceled."
    return SqlError(630, "57014", text)


def too_many_waiters(table: str, holder: str, transaction: int, mine: str) -> SqlError:
    return SqlError(
        625,
        "57014",
        f"Statement '{holder}' has locked table '{table}' in transaction {transaction} and this lock has not yet been"
        f" released.\nYour statement '{mine}' was aborted because the number of waiters for this lock exceeds the 20"
        " statements limit.",
    )


def too_many_lock_waiters(mine: str) -> SqlError:
    return SqlError(
        625,
        "57014",
        f"Your statement '{mine}' was aborted because too many transactions and statements hold or await locks.",
    )


def lock_timed_out(mine: str) -> SqlError:
    return SqlError(
        625, "57014", f"Your statement '{mine}' was aborted because a lock it needs was not released in time."
    )


def deadlock_victim(mine: str) -> SqlError:
    return SqlError(
        625, "57014", f"Your statement '{mine}' was aborted because it was the victim of a deadlock; retry it."
    )


def transaction_lost() -> SqlError:
    text = "The transaction was rolled back by the server and its changes are gone; end it with ROLLBACK."
    return SqlError(90232, "40000", text)


DISK_FULL = "53100"  # PostgreSQL's SQLSTATE, also sent to clients: Snowflake has no such error


def disk_full(data_dir: object) -> SqlError:
    text = f"SQL execution internal error: the disk of the data directory {data_dir} is full."
    return SqlError(INTERNAL, DISK_FULL, text)


def _duplicate_key(error: asyncpg.PostgresError) -> SqlError:
    constraint = getattr(error, "constraint_name", None) or ""
    if constraint.startswith("PK~"):
        return SqlError(200001, "22000", "Primary key already exists")
    shown = constraint.rpartition("~")[0]
    return SqlError(200001, "22000", f'Duplicate key value violates unique constraint "{shown}"')


def _not_null(error: asyncpg.PostgresError) -> SqlError:
    return SqlError(
        100072, "22000", f"NULL result in a non-nullable column '{getattr(error, 'column_name', '') or ''}'"
    )


_MISMATCH = compilation(2016, "22000", "Invalid argument types or data type mismatch in expression.")

# Errors by PostgreSQL's SQLSTATE, if its text is not needed.
_PLAIN = {
    "22003": SqlError(100046, "22003", "Number out of representable range"),
    "22012": SqlError(100051, "22012", "Division by zero"),
    "57014": SqlError(604, "57014", "SQL execution canceled"),
    "42830": compilation(2050, "42601", "A foreign key must refer to a primary or unique key."),
    "42P19": unsupported("form of a recursive query"),
    "22021": unsupported("NUL character in a string"),
    **dict.fromkeys(
        ("42883", "42804", "42725", "42846", "42P18", "42809", "42P02"),
        _MISMATCH,
    ),
    **dict.fromkeys(
        ("54001", "54000", "53200", "53400"),
        SqlError(
            OUT_OF_RESOURCES,
            "54000",
            "SQL execution error: the statement needs more memory or temporary files than this server allows for one.",
        ),
    ),
}


def from_postgres(error: asyncpg.PostgresError, query_id: str) -> SqlError:
    """The Snowflake error for an error of PostgreSQL, whose text is never sent to clients."""
    state = error.sqlstate or ""
    text = str(error.args[0]) if error.args else ""
    if state == "SF000":  # raised by a function of schema sf; DETAIL contains number and SQLSTATE
        number, sqlstate = (getattr(error, "detail", "") or "0 22000").split(" ", 1)
        return SqlError(int(number), sqlstate, text)
    known = _MISMATCH if "pseudo-type" in text else _PLAIN.get(state)  # pseudo-type: a row instead of a single value
    if known is not None:
        return SqlError(known.errno, known.sqlstate, known.message)
    match state:
        case "23505":
            return _duplicate_key(error)
        case "23502":
            return _not_null(error)
        case "23503":
            return SqlError(200009, "22000", f'Foreign key constraint "{error.constraint_name}" was violated.')
        case "22001":
            return SqlError(100078, "22000", "String is too long and would be truncated")
        case "22P02" | "22018":
            return SqlError(100038, "22018", f"Numeric value {_quoted(text)} is not recognized")
        case "22007" | "22008":
            return SqlError(100035, "22007", f"Timestamp {_quoted(text)} is not recognized")
        case "21000" if "second time" in text:
            return SqlError(100090, "42P18", "Duplicate row detected during DML action")
        case "21000":
            return SqlError(90150, "22000", "Single-row subquery returns more than one row.")
        case "55P03":
            return lock_timed_out(query_id)
        case "40P01":
            return deadlock_victim(query_id)
    return _about_names(state, text) or _by_class(state)


def _about_names(state: str, text: str) -> SqlError | None:
    name = _upper_quoted(text)
    match state:
        case "42703" | "42P01" | "42P10":
            return invalid_identifier(name)
        case "42702":
            return compilation(904, "42000", f"ambiguous column name '{name}'")
        case "42803" | "42P20":
            return compilation(979, "42601", f"[{name}] is not a valid group by expression")
        case "42712":
            return compilation(2027, "42601", f"duplicate alias '{name}'")
        case "42701":
            return compilation(2025, "42S21", f"duplicate column name '{name}'")
        case "42601" if "VALUES lists" in text or "more expressions" in text or "more target" in text:
            return compilation(2057, "42601", "Insert value list does not match column list.")
    return None


def _by_class(state: str) -> SqlError:
    if state == "42601":
        return compilation(1003, "42000", "syntax error in statement.")
    if state.startswith("54"):
        return SqlError(1005, "42601", "SQL compilation error: too many columns, keys or arguments.")
    if state.startswith("22"):
        return SqlError(100183, "22000", "Invalid value or argument in expression.")
    if state.startswith("0A"):
        return unsupported("statement form")
    return SqlError(
        INTERNAL, "XX000", "SQL execution internal error: the embedded server could not process the statement."
    )


def _quoted(text: str) -> str:
    """The invalid value in a text such as: invalid input syntax for type numeric: "abc"."""
    return f"'{text.rsplit(': ', 1)[1].strip(chr(34))}'" if ': "' in text else "''"


def _upper_quoted(text: str) -> str:
    """The name in a text such as: column "X" does not exist, or: column t.X does not exist."""
    if '"' in text:
        return text.split('"')[1]
    words = text.split()
    return words[1] if len(words) > 1 else text
