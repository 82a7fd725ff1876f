"""Reading and translating Snowflake SQL, without a database."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.embedded import postgres_names
from loadgen.embedded.catalog import Catalog, CatalogColumn, CatalogDatabase, CatalogSchema, CatalogTable
from loadgen.embedded.commands.show import like
from loadgen.embedded.result import NUMBER, TEXT, declared, described, seconds_text, shortener
from loadgen.embedded.session import checked
from loadgen.embedded.sql_errors import SqlError
from loadgen.embedded.translate import parser, planner
from loadgen.embedded.translate.emitter import BindTypes
from loadgen.embedded.translate.parser import TokenReader, split_compound_tokens
from loadgen.embedded.translate.planner import Planner, StatementPlan


def catalog() -> Catalog:
    columns = (CatalogColumn(name="ID", type=NUMBER), CatalogColumn(name="NAME", type=TEXT))
    tables = {
        "H": CatalogTable(database="DB", schema="S", name="H", hybrid=True, columns=columns),
        "T": CatalogTable(database="DB", schema="S", name="T", columns=columns),
    }
    found = Catalog()
    found.databases["DB"] = CatalogDatabase("DB", schemas={"S": CatalogSchema("DB", "S", tables=tables)})
    return found


def plan(text: str, *types: str, arrays: bool = False) -> StatementPlan:
    return Planner(catalog()).plan(text, parser.tokens_of(text), "DB", "S", types, arrays)


def test_identifiers_are_upper_cased_and_quoted_and_tables_are_qualified():
    assert plan("select id from h").sql == 'SELECT "ID" FROM "DB.S"."H" AS "H"'
    assert plan('select "Id" from s.h').sql == 'SELECT "Id" FROM "DB.S"."H" AS "H"'


def test_a_name_in_lower_case_never_means_one_of_postgresqls_own():
    assert plan('select "ctid", h."row_to_json" from h').sql.startswith('SELECT "ctid~", "H"."row_to_json~" FROM')
    assert postgres_names.full(postgres_names.stored("ctid")) == "ctid"


def test_binds_are_numbered_by_their_place_in_the_text_not_by_the_order_of_emission():
    made = plan("select ? from h where id = ? limit ?", "TEXT", "FIXED", "FIXED")

    assert sorted(made.parameters) == [1, 2, 3]
    projection, condition = made.parameters.index(1) + 1, made.parameters.index(2) + 1
    assert f"SELECT ${projection}::text" in made.sql
    assert f'"ID" = ${condition}::numeric' in made.sql


def test_a_bind_that_the_text_does_not_use_is_no_parameter():
    assert plan("select :2", "TEXT", "FIXED").parameters == (2,)


def test_an_array_bind_becomes_rows_of_its_columns():
    made = plan("insert into t values (?, ?)", "FIXED", "TEXT", arrays=True)

    assert made.sql.endswith('FROM unnest($1::text[], $2::text[]) AS "~binds"("c1", "c2")')


def test_strings_and_names_cannot_leave_their_quotes():
    made = plan("""select 'it''s', 'a\\\\b', 'x\\'y' as "q""uote" from h""")

    assert "'it''s'::text" in made.sql
    assert "'x''y'::text AS \"q\"\"uote\"" in made.sql


@given(st.text(max_size=300))
def test_any_text_is_translated_or_refused_as_snowflake_would(text: str):
    with contextlib.suppress(SqlError):  # anything else is a bug
        plan(text)


@given(st.text(st.characters(exclude_characters="\0"), max_size=80))
def test_any_string_literal_survives_as_one_literal(text: str):
    quoted = postgres_names.literal(text)

    assert quoted[0] == quoted[-1] == "'"
    assert quoted[1:-1].replace("''", "").count("'") == 0
    assert quoted[1:-1].replace("''", "'") == text


@pytest.mark.parametrize(
    ("text", "errno"),
    [
        ("update h set name = 'x' returning id", 1003),
        ("select now()", 2140),
        ("select pg_sleep(1)", 2140),
        ("select pg_catalog.pg_sleep(1)", 2140),
        ("select * from pg_class", 2003),
        ("select * from nope.h", 2003),
        ("insert into t (id) values (parse_json('1'))", 2014),
        ("insert into t values (1)", 2057),
        ("select object_insert(object_construct(), 'a')", 938),
        ("select :name", 2049),
        ("select ?", 2049),
        ("select 1; select 2", 8),
        ("select distinct on (id) id from h", 2),
        ("select id from h for share", 2),
        ("select id from t for update", 2),
        ("insert into h (id) values (1) on conflict do nothing", 1003),
        ("select id::int[] from h", 2),
        ("select * from h sample (10)", 2),
        ("select * from h at (offset => -60)", 2),
        ("select id -> 1 from h", 1003),
        ("select 1 " + "+ (1" * 300 + ")" * 300, 1005),
    ],
)
def test_what_is_not_on_a_list_is_refused(text: str, errno: int):
    with pytest.raises(SqlError) as refused:
        plan(text)

    assert refused.value.errno == errno


def test_a_change_of_a_standard_table_takes_its_lock_and_one_of_a_hybrid_table_does_not():
    assert plan("update t set name = 'x'").locked_table is not None
    assert plan("insert into t values (1, 'x')").locked_table is None
    assert plan("update h set name = 'x'").locked_table is None


def test_only_statements_on_hybrid_tables_alone_count_as_hybrid():
    assert plan("select * from h").hybrid_only
    assert not plan("select * from h join t on h.id = t.id").hybrid_only
    assert not plan("select 1").hybrid_only


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("select 1+1, max( id ) from h", ["1+1", "max( id )"]),
        ("with a as (select 1, 2) select a.x , f(1, 2) from a", ["a.x", "f(1, 2)"]),
        ("select distinct id", ["id"]),
        ("select [1, 2], {'a': 1}", ["[1, 2]", "{'a': 1}"]),
        ("select 1 union all select 2", ["1"]),
    ],
)
def test_unnamed_columns_are_called_by_their_text(text: str, expected: list[str]):
    assert parser.select_list(text, parser.tokens_of(text)) == expected


def test_a_cursor_reads_words_names_and_properties():
    text = 'ALTER TABLE a."b c" ADD PRIMARY KEY (x)'
    cursor = TokenReader(text, split_compound_tokens(text, parser.tokens_of(text)))

    cursor.expect("ALTER", "TABLE")

    assert cursor.path() == ["A", "b c"]
    assert cursor.accept("ADD", "PRIMARY", "KEY")
    assert cursor.names() == ("X",)
    assert cursor.done


def test_long_names_are_stored_short_and_come_back_whole():
    name = "N" * 255

    assert len(postgres_names.stored(name)) <= postgres_names.POSTGRES_NAME_BYTES
    assert postgres_names.full(postgres_names.stored(name)) == name
    assert postgres_names.stored("N" * 254) != postgres_names.stored(name)


def test_types_are_declared_and_described_as_snowflake_does():
    assert declared("NUMBER", [10, 2]).postgres == "numeric(10,2)"
    assert declared("char", []).length == 1
    assert described("numeric", (10 << 16 | 2) + 4).sql == "NUMBER(10,2)"
    with pytest.raises(SqlError):
        declared("NUMBER", [39])
    with pytest.raises(SqlError):
        declared("VECTOR", [])


@given(st.integers(min_value=-(10**17), max_value=10**17))
def test_times_keep_every_microsecond(microseconds: int):
    whole, _, fraction = seconds_text(microseconds).partition(".")

    sign = -1 if seconds_text(microseconds).startswith("-") else 1
    assert int(whole) * 1_000_000 + sign * int(fraction) // 1000 == microseconds
    assert shortener(3)(seconds_text(microseconds)) == f"{whole}.{fraction[:3]}"
    assert shortener(0)(seconds_text(microseconds)) == whole


def test_binds_of_every_type_become_what_postgresql_reads():
    columns: dict[str, dict[str, Any]] = {
        "1": {"type": "DATE", "value": ["0", None]},
        "2": {"type": "TIMESTAMP_NTZ", "value": ["-1000000", "1700000000123456000"]},
        "3": {"type": "TIMESTAMP_TZ", "value": ["0 1500", "0 1380"]},
    }
    types, arrays = planner.signature(columns)
    binds = BindTypes(types, {}, arrays)

    assert arrays
    assert planner.value(columns, binds, 1) == ["1970-01-01", None]
    assert planner.value(columns, binds, 2) == ["1969-12-31 23:59:59.999000", "2023-11-14 22:13:20.123456"]
    assert planner.value(columns, binds, 3) == [
        "1970-01-01 01:00:00.000000 +01:00",
        "1969-12-31 23:00:00.000000 -01:00",
    ]


def test_a_gap_in_the_binds_is_refused():
    with pytest.raises(SqlError):
        planner.signature({"1": {"type": "TEXT", "value": "a"}, "3": {"type": "TEXT", "value": "b"}})


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [("QUERY_TAG", "x", "x"), ("AUTOCOMMIT", "false", False), ("TIMEZONE", "UTC", "UTC"), ("LOCK_TIMEOUT", "5", 5)],
)
def test_parameters_take_values_of_their_type(name: str, value: str, expected: object):
    assert checked(name, value) == expected


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NOPE", "1"),
        ("TIMEZONE", "Mars/Olympus"),
        ("LOCK_TIMEOUT", "soon"),
        ("QUERY_TAG", "x" * 2001),
        ("AUTOCOMMIT", "2"),
    ],
)
def test_bad_parameters_are_refused(name: str, value: str):
    with pytest.raises(SqlError):
        checked(name, value)


def test_show_like_ignores_case_and_knows_its_wildcards():
    assert like("bench%", "BENCH_WH")
    assert like("B_", "bx")
    assert not like("B_", "bxx")
    assert like("a\\_b", "A_B")
    assert not like("a\\_b", "AXB")
