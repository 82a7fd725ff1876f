"""Statements for every function and clause of the emitter, and PostgreSQL's lexical rules to read what they become."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from loadgen.embedded import postgres_names
from loadgen.embedded.catalog import Catalog, CatalogColumn, CatalogDatabase, CatalogSchema, CatalogTable
from loadgen.embedded.functions import FUNCTIONS, SqlFunction
from loadgen.embedded.result import declared
from loadgen.embedded.translate import parser
from loadgen.embedded.translate.planner import Planner

PLACES = 6  # literals and names that one template can hold
LITERALS = tuple(f"literal {number}" for number in range(PLACES))
IDENTIFIERS = tuple(f"name {number}" for number in range(PLACES))

# {0} … {5} are literals, {a} … {f} quoted identifiers.
CLAUSES = (
    "SELECT DISTINCT {0} AS {a}, {b}.{c} FROM T AS {b} WHERE {b}.{c} = {1} AND {d} <> {2} OR NOT {e} < {3}",
    "SELECT {a} FROM T GROUP BY {a}, {0}, 1 HAVING MAX({b}) > {1} ORDER BY {a} DESC NULLS LAST, {2} LIMIT 3 OFFSET 1",
    "SELECT {a} FROM T GROUP BY ALL",
    "SELECT {a} AS {b}, {0} AS {c} FROM T QUALIFY ROW_NUMBER() OVER (PARTITION BY {1} ORDER BY {a}, {2}) = 1 LIMIT 2",
    "SELECT {a} FROM H AS {b} WHERE {c} = {0} FOR UPDATE",
    "WITH {a} ({b}) AS (SELECT {0}), {c} AS (SELECT {1} AS {d}) SELECT * FROM {a}, {c} WHERE {b} = {2}",
    "WITH RECURSIVE {a} AS (SELECT {0} AS {b} UNION ALL SELECT {b} || {1} AS {b} FROM {a}) SELECT {b} FROM {a}",
    "SELECT {a}.*, * FROM T AS {a} LEFT JOIN T AS {b} ON {a}.{c} = {0} JOIN T AS {d} USING ({e}) NATURAL JOIN T AS {f}",
    "SELECT * FROM T AS {a} CROSS JOIN (SELECT {0} AS {b}) AS {c} FULL JOIN (VALUES ({1})) AS {d} ({e}) ON {2} = {f}",
    "SELECT * FROM (VALUES ({0}), ({1})) AS {a} ({b}), LATERAL (SELECT {2} AS {c}) AS {d}",
    "SELECT {a}.VALUE:{b}.k FROM T, LATERAL FLATTEN(INPUT => {c}, PATH => {0}, MODE => {1}) AS {a}",
    "SELECT SEQ4(), {0} FROM TABLE(GENERATOR(ROWCOUNT => 3)) AS {a}",
    "SELECT * FROM TABLE(INFORMATION_SCHEMA.QUERY_HISTORY_BY_USER(USER_NAME => {0})) AS {a} WHERE {b} = {1}",
    "SELECT {0}, {a} FROM INFORMATION_SCHEMA.TABLES AS {b} WHERE {b}.{c} = {1}",
    "(SELECT {0} AS {a} UNION SELECT {1}) EXCEPT (SELECT {2} INTERSECT SELECT {3}) ORDER BY 1 LIMIT 2 OFFSET 1",
    "WITH {a} AS (SELECT {0} AS {b}) SELECT {b} FROM {a} UNION ALL SELECT {1} ORDER BY {b} LIMIT 1",
    "WITH {a} AS (SELECT {0} AS {b}) SELECT {b} FROM {a} EXCEPT SELECT {1} ORDER BY {b} LIMIT 1 OFFSET 2",
    "WITH {a} AS (SELECT {0} AS {b}) SELECT {b} FROM {a} INTERSECT SELECT {1} ORDER BY {b} LIMIT 1 OFFSET 2",
    "(SELECT {0} AS {a}) ORDER BY {1} LIMIT 1 OFFSET 1",
    "SELECT {0} AS {a} UNION SELECT {1} ORDER BY {a} LIMIT 1 OFFSET 2",
    "SELECT (SELECT {0} ORDER BY {1} LIMIT 1) AS {a}, EXISTS (SELECT {2} FROM T WHERE {b} = {3}) AS {c}",
    "SELECT {0} IN ({1}, {a}), {b} IN (SELECT {2}), {c} NOT IN (SELECT {3}), {d} = ANY (SELECT {4}), ({e}, 1) = (1, 2)",
    "SELECT {a} LIKE {0}, {b} NOT LIKE {1}, {c} ILIKE {2} ESCAPE {3}, {d} LIKE ANY ({4}, {e}), {f} RLIKE {5}",
    "SELECT {a} ILIKE ALL ({0}, {1}), {b} NOT ILIKE {2}, {c} LIKE {3} ESCAPE {4}",
    "SELECT {0} <= {a} AND {1} >= {b} AND {2} > {c}, {3} IS NOT DISTINCT FROM {d}, {4} IS DISTINCT FROM {e}",
    "SELECT {0} + {a}, {1} - {b}, {2} * {c}, {3} / {d}, {4} % {e}, - {f}, {5} || {a}, ({b}), +1.5e3",
    "SELECT {a} IS NULL, {0} IS NOT NULL, {b} BETWEEN {1} AND {2}, TRUE, NULL, x'ab', $$a$b'$$ || {3}",
    "SELECT CASE {0} WHEN {1} THEN {2} ELSE {3} END, CASE WHEN {a} = {4} THEN {b} END",
    "SELECT {0}::VARCHAR(9), CAST({a} AS NUMBER(9, 2)), TRY_CAST({1} AS DATE), {2}::VARIANT, TRY_CAST({3} AS TIME(3))",
    "SELECT {a}:{b}.k[0][{0}], {c}[{1}], {d}:k:{e}, PARSE_JSON({2}).{f} FROM T",
    "SELECT [{0}, {a}], {{'k': {1}, {2}: {b}}}, EXTRACT(day FROM {c}), POSITION({3} IN {4}), {d} + INTERVAL '1 day'",
    "SELECT {0}, CURRENT_TIMESTAMP, LOCALTIMESTAMP, CURRENT_DATE, CURRENT_TIME, CURRENT_USER, CURRENT_ROLE()",
    "SELECT SUM({a}) OVER (PARTITION BY {0} ORDER BY {1} DESC ROWS BETWEEN 2 PRECEDING AND CURRENT ROW) AS {b} FROM T",
    "SELECT ? || {0}, :2 + {1} FROM T WHERE {a} = ?",
    "INSERT INTO T (C) VALUES ({0}), (DEFAULT), ({1} || {2})",
    "INSERT INTO T SELECT {0} FROM T AS {a} WHERE {b} = {1}",
    "UPDATE T AS {a} SET C = {0} WHERE {a}.{b} = {1}",
    "UPDATE T AS {a} SET C = {0} FROM T AS {b} WHERE {b}.{c} = {1}",
    "DELETE FROM T AS {a} USING T AS {b} WHERE {a}.C = {0} AND {b}.{c} = {1}",
    "MERGE INTO T AS {a} USING (SELECT {0} AS {b}) AS {c} ON {a}.C = {1} WHEN MATCHED AND {2} = {b} THEN DELETE"
    " WHEN MATCHED THEN UPDATE SET C = {3} WHEN NOT MATCHED THEN INSERT (C) VALUES ({4})",
)  # fmt: skip


def calls_of(function: SqlFunction) -> Iterator[str]:
    """Calls of a function in all the surroundings it may have, with few arguments and with many."""
    most = function.least + 3 if function.most is None else min(function.most, function.least + 3)
    for count in {function.least, most}:
        slots = ["'day'" if n in function.unit_arguments else f"{{{n % PLACES}}}" for n in range(count)]
        named = ["'day'" if n in function.unit_arguments else f"{{{'abcdef'[n % PLACES]}}}" for n in range(count)]
        mixed = [(slots, named)[n % 2][n] for n in range(count)]
        for arguments in (", ".join(listed) for listed in (slots, named, mixed)):
            call = f"{function.name}({arguments})"
            if function.kind == "scalar":
                yield call
                continue
            yield f"{call} OVER (PARTITION BY {{4}} ORDER BY {{e}} DESC NULLS FIRST, {{5}})"
            if function.kind == "aggregate":
                yield call
                yield f"{call} WITHIN GROUP (ORDER BY {{0}} DESC NULLS LAST)"
                yield f"{function.name}(DISTINCT {arguments}) WITHIN GROUP (ORDER BY {{0}})"


CALLS = tuple(
    f"SELECT {call} AS X FROM T"
    for function in FUNCTIONS.values()
    if function.kind != "table"  # among the clauses
    for call in dict.fromkeys(calls_of(function))
)


def filled(template: str, literals: tuple[str, ...], identifiers: tuple[str, ...]) -> str:
    """A template as a client would send it."""
    escaped = ["'" + text.replace("\\", "\\\\").replace("'", "''") + "'" for text in literals]
    quoted = {letter: '"' + name.replace('"', '""') + '"' for letter, name in zip("abcdef", identifiers, strict=True)}
    return template.format(*escaped, **quoted)


def planner() -> Planner:
    column = CatalogColumn(name="C", type=declared("VARCHAR", []))
    catalog = Catalog()
    catalog.databases["D"] = CatalogDatabase("D", schemas={"S": CatalogSchema("D", "S")})
    for name, hybrid in (("T", False), ("H", True)):
        table = CatalogTable(database="D", schema="S", name=name, hybrid=hybrid, columns=(column,))
        catalog.databases["D"].schemas["S"].tables[name] = table
    return Planner(catalog)


def emitted(planner: Planner, text: str) -> list[str]:
    """All that goes to PostgreSQL of one statement."""
    binds = ("TEXT",) * 2 if "?" in text else ()
    plan = planner.plan(text, parser.tokens_of(text), "D", "S", binds, False)
    arguments = [sql for demand in plan.server_functions for sql in demand.arguments.values()]
    return [plan.sql, *([plan.describing_sql] if plan.describing_sql else []), *(f"SELECT {sql}" for sql in arguments)]


# --- PostgreSQL's lexical rules --------------------------------------------------------------------------------------

_TOKEN = re.compile(r"""'(?P<literal>(?:[^']|'')*)'|"(?P<name>(?:[^"]|"")*)"|(?P<other>[^'"]+)""")
# Begins a comment, another kind of quotes, another statement; or gives the quotes behind it another meaning.
_FORBIDDEN = re.compile(r"--|/\*|;|\\|\n|\$(?![0-9])|[A-Za-z0-9_&$]\Z")


@dataclass(frozen=True)
class Read:
    """A statement as PostgreSQL's lexer sees it: constants, quoted names, and the text with those left out."""

    literals: tuple[str, ...]
    names: tuple[str, ...]
    rest: str


def read(sql: str) -> Read:
    """Raises AssertionError for more than one statement, and for text that lexers read differently."""
    literals, quoted, rest = [], [], []
    end = 0
    for token in _TOKEN.finditer(sql):
        assert token.start() == end, f"cannot be read from {end} on: {sql}"
        end = token.end()
        if token["literal"] is not None:
            literals.append(token["literal"].replace("''", "'"))
            rest.append("''")
        elif token["name"] is not None:
            quoted.append(token["name"].replace('""', '"'))
            rest.append('""')
        else:
            last = end == len(sql)
            assert _FORBIDDEN.search(token["other"] + (" " if last else "")) is None, sql
            rest.append(token["other"])
    assert end == len(sql), f"does not end: {sql}"
    return Read(tuple(literals), tuple(quoted), "".join(rest))


def replaced(marked: Read, literals: tuple[str, ...], identifiers: tuple[str, ...]) -> Read:
    """What a statement with markers has to become with these in their places."""
    constants = dict(zip(LITERALS, literals, strict=True)) | dict(zip(IDENTIFIERS, identifiers, strict=True))
    known = {marker: postgres_names.stored(name) for marker, name in zip(IDENTIFIERS, identifiers, strict=True)}
    return Read(
        tuple(constants.get(text, text) for text in marked.literals),
        tuple(known.get(name, name) for name in marked.names),
        marked.rest,
    )


_UNNAMED = re.compile(r"LITERAL |NAME |^~[0-9]+$")


def without_unnamed(marked: Read, found: Read) -> Read:
    """`found` without the names of unnamed columns, which are made of the statement's text."""
    unnamed = [_UNNAMED.search(name) is not None for name in marked.names]
    pairs = zip(marked.names, found.names, unnamed, strict=True)
    return Read(found.literals, tuple(before if skip else name for before, name, skip in pairs), found.rest)
