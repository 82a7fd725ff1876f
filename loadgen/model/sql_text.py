"""What can be known about an SQL text without a database: its first words, its binds, how many statements it holds.

Strings ('it''s', 'it\\'s', $$…$$), quoted names and comments (--, //, /* */) are skipped as Snowflake skips them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

LENGTH_MAX = 100_000  # characters of one statement

WORKLOAD_VERBS = ("SELECT", "WITH", "INSERT", "UPDATE", "DELETE", "MERGE", "CALL")
READING_VERBS = ("SELECT", "WITH")

_TOKEN = re.compile(
    r"""
      (?P<space>\s+|--[^\n]*|//[^\n]*|/\*(?:[^*]|\*(?!/))*\*/)
    | (?P<text>'(?:[^'\\]|''|\\.)*' | "(?:[^"]|"")*" | \$\$(?:[^$]|\$(?!\$))*\$\$)
    | (?P<open>' | " | \$\$ | /\*)
    | (?P<bind>\?)
    | (?P<end>;)
    | (?P<word>[A-Za-z_][\w$]*)
    | (?P<other>\$?[0-9][\w.]* | .)
    """,
    re.VERBOSE | re.DOTALL,
)
_UNCLOSED = {"'": "a text in single quotes", '"': "a name in double quotes", "$$": "a $$ text", "/*": "a comment"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlShape:
    """An SQL text from outside."""

    words: tuple[str, ...]  # the first two words, upper-cased
    binds: int
    statements: int
    unclosed: str | None = None  # what is opened and never closed

    @property
    def verb(self) -> str:
        return self.words[0] if self.words else ""

    @property
    def reads(self) -> bool:
        return self.verb in READING_VERBS


def shape_of(sql: str) -> SqlShape:
    """Look at an SQL text."""
    words: list[str] = []
    binds, statements, in_statement = 0, 0, False
    only_brackets = True  # so far: (SELECT …) UNION … begins with SELECT
    for match in _TOKEN.finditer(sql):
        kind = match.lastgroup
        if kind == "space":
            continue
        if kind == "open":
            return SqlShape(
                words=tuple(words), binds=binds, statements=max(statements, 1), unclosed=_UNCLOSED[match[0]]
            )
        if kind == "end":
            in_statement = False
            continue
        if not in_statement:
            in_statement = True
            statements += 1
        binds += kind == "bind"
        if statements == 1 and len(words) < 2 and (words or only_brackets):
            if kind == "word":
                words.append(match[0].upper())
            elif match[0] != "(":
                only_brackets = False
    return SqlShape(words=tuple(words), binds=binds, statements=statements)


def workload_refusal(sql: SqlShape) -> tuple[str, str] | None:
    """Why a text cannot be a statement of a workload, and what to do instead; None when it can."""
    wrong = malformed_reason(sql) or _changes_session(sql)
    if wrong is not None:
        return wrong
    if sql.verb in WORKLOAD_VERBS:
        return None
    allowed = ", ".join(WORKLOAD_VERBS)
    if sql.verb in _DEFINING:
        return f"{sql.verb} is not a statement of a workload", "put it under prepare.statements"
    return f"a statement of a workload begins with one of {allowed}", "put everything else under prepare.statements"


def preparation_refusal(sql: SqlShape) -> tuple[str, str] | None:
    """The same for prepare.statements, where tables may be made and changed."""
    wrong = malformed_reason(sql) or _changes_session(sql)
    if wrong is not None:
        return wrong
    if sql.binds:
        return "a statement of prepare takes no parameters, and this has a ?", "write the value into the text"
    return None


def malformed_reason(sql: SqlShape) -> tuple[str, str] | None:
    if sql.unclosed:
        return f"{sql.unclosed} is not closed", "close it"
    if sql.statements == 0:
        return "holds no statement", "write one SQL statement"
    if sql.statements > 1:
        return f"holds {sql.statements} statements", "write one statement per text; transaction: takes several"
    return None


_DEFINING = {"CREATE", "DROP", "ALTER", "TRUNCATE", "UNDROP", "GRANT", "REVOKE", "COMMENT", "COPY", "ANALYZE"}
_TRANSACTION = ("leaves or begins a transaction", "list the statements under transaction: instead of sql:")
_FILES = ("moves files", "stage files before the run; a workload and its preparation send SQL only")
_VARIABLES = ("changes the session", "write the value into the statement, or give it as a parameter")
_REFUSED: dict[str, tuple[str, str]] = {
    "USE": ("changes the session", "set target.warehouse, target.database and target.schema"),
    "SET": _VARIABLES,
    "UNSET": _VARIABLES,
    **dict.fromkeys(("BEGIN", "START", "COMMIT", "ROLLBACK", "DECLARE"), _TRANSACTION),
    **dict.fromkeys(("PUT", "GET", "LIST", "LS", "REMOVE", "RM"), _FILES),
}


def _changes_session(sql: SqlShape) -> tuple[str, str] | None:
    if sql.words[:2] == ("ALTER", "SESSION"):
        return "ALTER SESSION changes the session", "put session parameters under target.session"
    if sql.verb in _REFUSED:
        what, hint = _REFUSED[sql.verb]
        return f"{sql.verb} {what}", hint
    return None
