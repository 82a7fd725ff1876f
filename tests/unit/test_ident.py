"""Every name is one token in a statement; everything else is rejected."""

import re
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import LoadgenError
from loadgen.snowflake.ident import Identifier, InvalidIdentifier, QualifiedName, text_literal, timestamp_literal

HOSTILE = [
    "",
    " ",
    "a b",
    "1a",
    "a-b",
    'x"; DROP TABLE y; --',
    "x; DROP TABLE y",
    "a'b",
    "a\\b",
    "$$",
    "IDENTIFIER('x')",
    "t\n",
    "t\x00",
    '"',
    '""',
    '"a',
    'a"',
    '"a"b"',
    '"a" ',
    '"a\x00b"',
    '"a\nb"',
    '"a\x1b[31m"',
    '"a\x85"',
    '"a\u2028b"',
    '"\ud800"',
    "ünïcode",
    "a" * 256,
    '"' + "a" * 256 + '"',
]

harmless_text = st.text(
    st.characters(blacklist_categories=("Cc", "Cs", "Zl", "Zp")),
    min_size=1,
    max_size=255,
)
unquoted = st.from_regex(r"\A[A-Za-z_][A-Za-z0-9_$]{0,254}\Z")


@pytest.mark.parametrize(
    ("text", "name", "sql"),
    [
        ("orders", "ORDERS", '"ORDERS"'),
        ("_x$1", "_X$1", '"_X$1"'),
        ('"orders"', "orders", '"orders"'),
        ('"say ""hi"""', 'say "hi"', '"say ""hi"""'),
        ('"a.b"', "a.b", '"a.b"'),
        ('"Größe 🙂"', "Größe 🙂", '"Größe 🙂"'),
        ("select", "SELECT", '"SELECT"'),
        ("a" * 255, "A" * 255, '"' + "A" * 255 + '"'),
    ],
)
def test_a_name_is_read_as_snowflake_reads_it(text, name, sql):
    ident = Identifier.parse(text)

    assert (ident.name, ident.sql) == (name, sql)


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_names_are_refused_with_a_remedy(text):
    with pytest.raises(InvalidIdentifier) as caught:
        Identifier.parse(text)

    assert caught.value.remedy
    assert caught.value.exit_code == 2
    assert not re.search(r"[\x00-\x1f\x7f-\x9f]", str(caught.value))


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_names_are_refused_inside_a_qualified_name_too(text):
    with pytest.raises(InvalidIdentifier):
        QualifiedName.parse(f"db.{text}")


@given(harmless_text)
def test_any_text_in_quotes_becomes_one_token_and_comes_back(name):
    ident = Identifier(name)

    assert re.fullmatch(r'"(?:[^"]|"")+"', ident.sql)
    assert Identifier.parse(ident.sql) == ident


@given(unquoted)
def test_unquoted_input_is_the_same_as_its_upper_case(text):
    assert Identifier.parse(text) == Identifier.parse(text.lower()) == Identifier(text.upper())


@given(st.lists(harmless_text, min_size=1, max_size=3))
def test_a_qualified_name_comes_back_with_the_same_parts(names):
    qualified = QualifiedName(tuple(Identifier(name) for name in names))

    assert QualifiedName.parse(qualified.sql) == qualified


@given(st.text(max_size=40))
def test_any_text_is_read_or_refused_never_a_traceback(text):
    try:
        sql = QualifiedName.parse(text).sql
    except LoadgenError:
        return

    assert re.fullmatch(r'"(?:[^"]|"")+"(?:\."(?:[^"]|"")+"){0,2}', sql)


def test_dots_inside_quotes_do_not_separate():
    qualified = QualifiedName.parse('db."my.schema"."t""."')

    assert [part.name for part in qualified.parts] == ["DB", "my.schema", 't".']


@pytest.mark.parametrize("text", ["a.b.c.d", "a..b", ".a", "a.", ".", '"a".'])
def test_qualified_names_with_empty_or_too_many_parts_are_refused(text):
    with pytest.raises(InvalidIdentifier):
        QualifiedName.parse(text)


def test_a_short_name_is_completed_from_its_surroundings():
    db, schema = Identifier("DB"), Identifier("PUBLIC")

    assert QualifiedName.parse("t").within(db, schema).sql == '"DB"."PUBLIC"."T"'
    assert QualifiedName.parse("s.t").within(db, schema).sql == '"DB"."S"."T"'
    assert QualifiedName.parse("d.s.t").within(db, schema).sql == '"D"."S"."T"'


def test_texts_and_times_become_one_literal():
    assert text_literal("it's") == "'it''s'"
    assert text_literal("\\' OR 1 --") == "'\\\\'' OR 1 --'"
    moment = datetime(2026, 11, 15, 2, 0, 0, 1000)  # noqa: DTZ001  naive UTC
    assert timestamp_literal(moment) == "TO_TIMESTAMP_LTZ('2026-11-15T02:00:00.001000+00:00')"
    assert timestamp_literal(moment.replace(tzinfo=UTC)) == timestamp_literal(moment)
