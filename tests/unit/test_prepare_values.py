"""Values of prepared rows: as SQL expressions, and made here."""

from __future__ import annotations

from datetime import datetime

import pytest

from loadgen.model.workload import (
    Choice,
    Hotspot,
    KeyRange,
    Literal,
    Normal,
    Parameter,
    Sequence,
    Text,
    Timestamp,
    Uniform,
    UniformFloat,
    Uuid,
    Zipfian,
)
from loadgen.prepare.fill import BOUND_VALUES_MAX, BoundRows, rows_per_statement_max
from loadgen.prepare.table_definition import (
    SIZE_MAX,
    TOO_SHORT,
    SqlRandom,
    TableDefinition,
    _chance_of_fewer,
    _digests_for,
    literal,
    sql_value,
)
from tests.unit.scenario_builders import only_table

DRAWS = SqlRandom(seed=7, table=5, column=2)
EARLY, LATE = datetime(2026, 1, 1), datetime(2026, 1, 2)  # noqa: DTZ001  naive, as all moments of scenarios


def definition_of(columns: str, *, kind: str = "hybrid", rows: int = 1000, name: str = "T") -> TableDefinition:
    table = f"{{name: {name}, type: {kind}, rows: {rows}, columns: [{columns}]}}"
    text = (
        f"version: 1\nname: x\nprepare: {{tables: [{table}]}}\nworkload: {{statements: [{{name: s, sql: SELECT 1}}]}}\n"
    )
    return only_table(text)


KEY = "{name: ID, type: INTEGER, primary_key: true, generate: {sequence: {start: 1}}}"


@pytest.mark.parametrize(
    ("value", "sql"),
    [
        (None, "NULL"),
        (True, "TRUE"),
        (False, "FALSE"),
        (-5, "-5"),
        (1.5, "1.5"),
        (1e-7, "0.00000010"),
        (1e300, "'1e+300'::FLOAT"),
        ("it's", "'it''s'"),
        ("back\\slash'", "'back\\\\slash'''"),
    ],
)
def test_a_literal_is_one_value_with_any_content(value, sql):
    assert literal(value) == sql.replace("0.00000010", "0.0000001")


@pytest.mark.parametrize(
    ("parameter", "sql"),
    [
        (Sequence(start=10), "N + 10"),
        (Sequence(start=-3), "N - 3"),
        (Literal(value="x"), "'x'"),
        (Uniform(keys=KeyRange(low=-1, high=4)), "-1 + MOD(MD5_NUMBER_LOWER64('7.5.2.0.' || N), 5)"),
        (
            Choice(values=("a", "b", "c"), weights=(2, 0, 1)),
            "CASE WHEN MOD(MD5_NUMBER_LOWER64('7.5.2.0.' || N), 3) < 2 THEN 'a'"
            " WHEN MOD(MD5_NUMBER_LOWER64('7.5.2.0.' || N), 3) < 3 THEN 'c' END",
        ),
        (
            Timestamp(low=EARLY, high=LATE),
            "DATEADD(microsecond, MOD(MD5_NUMBER_LOWER64('7.5.2.0.' || N), 86400000000),"
            " '2026-01-01 00:00:00.000000'::TIMESTAMP_NTZ)",
        ),
        (Text(length=0), "''"),
    ],
)
def test_the_server_makes_the_value_of_a_row_from_its_number(parameter, sql):
    assert sql_value(parameter, DRAWS) == sql


@pytest.mark.parametrize(
    "parameter",
    [
        Zipfian(keys=KeyRange(low=1, high=100)),
        Hotspot(keys=KeyRange(low=1, high=100)),
        Normal(mean=0, stddev=1, low=-1),
        Uniform(keys=KeyRange(low=0, high=SIZE_MAX + 1)),
        UniformFloat(low=-1.7e308, high=1.7e308),
        Choice(values=tuple(range(101))),
        Text(length=5_000),
        Text(length=5, alphabet="".join(map(chr, range(0x400, 0x450)))),
        Timestamp(low=datetime(1900, 1, 1), high=datetime(2000, 1, 1)),  # noqa: DTZ001
    ],
    ids=lambda parameter: type(parameter).__name__,
)
def test_what_has_no_faithful_sql_form_is_made_here(parameter: Parameter):
    assert sql_value(parameter, DRAWS) is None


def test_columns_and_draws_share_no_random_numbers():
    other = SqlRandom(seed=7, table=5, column=3)

    assert len({DRAWS.message("0"), DRAWS.message("1"), other.message("0")}) == 3
    assert sql_value(Uuid(), DRAWS) != sql_value(Uuid(), other)


def test_values_of_several_kinds_become_texts():
    assert "THEN '1'" in str(sql_value(Choice(values=(1, "a", True, None)), DRAWS))
    assert "THEN 'true'" in str(sql_value(Choice(values=(1, "a", True, None)), DRAWS))
    assert "THEN NULL" in str(sql_value(Choice(values=(1, "a", True, None)), DRAWS))
    assert "THEN 1 " in str(sql_value(Choice(values=(1, 2.5, None)), DRAWS))


@pytest.mark.parametrize(("length", "alphabet"), [(1, 26), (20, 26), (100, 26), (100, 10), (85, 64), (500, 33)])
def test_a_text_is_hardly_ever_too_short_and_takes_no_digest_too_many(length, alphabet):
    kept = 64 // alphabet * alphabet / 64

    digests = _digests_for(length, alphabet)

    assert digests is not None
    assert _chance_of_fewer(length, 85 * digests, kept) < TOO_SHORT
    assert digests == 1 or _chance_of_fewer(length, 85 * (digests - 1), kept) >= TOO_SHORT


def test_the_chance_is_the_binomial_one():
    assert _chance_of_fewer(2, 3, 0.5) == pytest.approx(0.5)  # no or one head of three
    assert _chance_of_fewer(1, 4, 0.5) == pytest.approx(1 / 16)


# --- rows made here --------------------------------------------------------------------------------------------------


def test_rows_do_not_depend_on_how_they_are_cut():
    definition = definition_of(
        f"{KEY}, {{name: Z, type: INTEGER, generate: {{zipfian: {{min: 1, max: 100}}}}}},"
        " {name: T, type: VARCHAR, generate: {text: {length: 400}}}"
    )
    assert definition.values is None

    whole = BoundRows(definition).take(0, 700)
    rows = BoundRows(definition)
    parts = rows.take(0, 3) + rows.take(3, 253) + rows.take(256, 1) + rows.take(257, 443)

    assert parts == whole
    assert [row[0] for row in whole] == list(range(1, 701))
    assert len({row[2] for row in whole}) == 700


def test_tables_of_other_names_get_other_rows():
    column = f"{KEY}, {{name: Z, type: INTEGER, generate: {{zipfian: {{min: 1, max: 1000}}}}}}"

    assert BoundRows(definition_of(column)).take(0, 50) != BoundRows(definition_of(column, name="U")).take(0, 50)


def test_a_bound_statement_stays_below_what_the_driver_would_upload():
    zipfian = "generate: {zipfian: {min: 1, max: 100}}"
    narrow = definition_of(f"{KEY}, {{name: Z, type: INTEGER, {zipfian}}}")
    wide = definition_of(f"{KEY}, {{name: T, type: VARCHAR, generate: {{text: {{length: 1000000}}}}}}")

    assert rows_per_statement_max(narrow) * 2 <= BOUND_VALUES_MAX
    assert rows_per_statement_max(wide) == 1
