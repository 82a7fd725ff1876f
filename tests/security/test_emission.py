"""Literals and quoted identifiers reach PostgreSQL as they are, through every function and every clause.

Each statement is emitted with markers, and again with drawn texts in their places. The two may differ in those places
only: nothing that stands in a literal decides how the text around it is written. PostgreSQL's own parser then has to
find one statement.
"""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from loadgen.embedded import postgres_names
from loadgen.embedded.functions import FUNCTIONS, normal_unit
from loadgen.embedded.sql_errors import SqlError
from loadgen.embedded.translate import parser
from loadgen.embedded.translate.emitter import Emitter, part_names
from tests.security.emitted_sql import (
    CALLS,
    CLAUSES,
    IDENTIFIERS,
    LITERALS,
    PLACES,
    Read,
    emitted,
    filled,
    planner,
    read,
    replaced,
    without_unnamed,
)

SYNTAX_ERROR = "42601"  # also of several statements in one text
BATCH = 200
HOSTILE = (" NULLS x", "'); --", "::text", "NULL", "{0}%s", "\\'")
WORDS = ("FROM", "except", "GROUP BY", "ALL", "SYSTEM$X", "MINUS")  # which mean something outside of quotes
NAMED_WORDS = ("DISTINCT", "FOR", "ARRAY", "LIMIT", "ARRAY[1]", "list")
HOSTILE_NAMES = ('a"; --', "' OR", "NULL", "{0}", "$1", "\\")

# Short ones: a name of more than 63 bytes is stored as a digest. A unit of time means something in TRUNC.
characters = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
hostile = st.sampled_from(["'", "''", '"', "\\", "--", "/*", ";", "$$", "$1", "?", ":a", "::text", "{0}", "E'", "\n"])
texts = st.one_of(st.text(characters, max_size=8), st.lists(hostile, max_size=4).map("".join))
literals = st.tuples(*[texts.filter(lambda text: normal_unit(text) is None)] * PLACES)
own = {"T", "H", "C", "D", "S", "X", "INFORMATION_SCHEMA"}
identifiers = st.lists(
    texts.filter(lambda text: text and text not in own), min_size=PLACES, max_size=PLACES, unique=True
)


def statements(template: str, *drawn: tuple[str, ...]) -> list[str]:
    """The emitted texts of a template; none where the server refuses it."""
    try:
        return emitted(PLANNER, filled(template, *drawn))
    except SqlError:
        return []


PLANNER = planner()


@cache
def marked(template: str) -> tuple[Read, ...]:
    """What a template becomes with markers."""
    return tuple(read(sql) for sql in statements(template, LITERALS, IDENTIFIERS))


def check(template: str, values: tuple[str, ...], columns: tuple[str, ...]) -> list[str]:
    found = statements(template, values, columns)

    for before, sql in zip(marked(template), found, strict=True):
        assert without_unnamed(before, read(sql)) == replaced(before, values, columns), sql
    return found


@settings(max_examples=3)
@given(literals, identifiers)
@example(HOSTILE, HOSTILE_NAMES)
@example(WORDS, NAMED_WORDS)
def test_texts_survive_every_clause(postgres, values, columns):
    for template in CLAUSES:
        for sql in check(template, values, tuple(columns)):
            assert postgres.parse(sql) != SYNTAX_ERROR, sql


@settings(max_examples=1)
@given(literals, identifiers)
@example(HOSTILE, HOSTILE_NAMES)
@example(WORDS, NAMED_WORDS)
def test_texts_survive_every_function(postgres, values, columns):
    found = [sql for template in CALLS for sql in check(template, values, tuple(columns))]

    for start in range(0, len(found), BATCH):
        batch = ", ".join(f"EXISTS ({sql})" for sql in found[start : start + BATCH])
        assert postgres.parse(f"SELECT {batch}") != SYNTAX_ERROR


def test_every_clause_and_every_function_is_emitted():
    refused = [template for template in CLAUSES if not marked(template)]
    called = {
        str(name).upper() for template in CALLS if marked(template) for name in [template.split("(")[0].split()[1]]
    }

    assert refused == []
    assert called == {name for name, function in FUNCTIONS.items() if function.kind != "table"}


REFUSED = {("AtTimeZone", ""), ("Insert", "overwrite"), ("Select", "laterals")}
QUERIES = ("Select", "Union", "Except", "Intersect", "Subquery", "Insert", "Update", "Delete", "Merge", "Window")


def test_every_node_and_every_part_of_a_query_stands_in_a_statement():
    seen: set[tuple[str, str]] = set()
    for template in CLAUSES + CALLS:
        text = filled(template, LITERALS, IDENTIFIERS)
        for node in parser.parse(text, parser.tokens_of(text)).walk():
            seen |= {(type(node).__name__, part) for part in ("", *part_names(node))}

    wanted = {(kind.__name__, "") for kind in Emitter.HANDLERS}
    for kind, (parts, _) in Emitter.HANDLERS.items():
        wanted |= {(kind.__name__, part) for part in parts if kind.__name__ in QUERIES}
    assert wanted - seen == REFUSED


@settings(max_examples=60)
@given(st.lists(st.tuples(texts, texts.filter(bool)), min_size=1, max_size=5))
def test_the_lexical_rules_are_postgresqls(postgres, columns):
    sql = "SELECT " + ", ".join(
        f"{postgres_names.literal(text)}::text AS {postgres_names.quoted(name)}" for text, name in columns
    )

    found = read(sql)

    assert postgres.table(sql) == (list(found.names), [found.literals])
    assert found.literals == tuple(text for text, _ in columns)


@pytest.mark.parametrize(
    "sql", ["SELECT 1; SELECT 2", "SELECT 'a' -- 'b'", "SELECT E'\\''", "SELECT $a$'$a$", "SELECT 'a"]
)
def test_what_another_lexer_could_read_otherwise_is_noticed(sql):
    with pytest.raises(AssertionError):
        read(sql)
