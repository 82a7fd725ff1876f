"""Semi-structured results that are deep, long or grow when they are formatted: other clients are not delayed."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.embedded import result
from loadgen.embedded.engine import DEPTH_MAX, format_json
from loadgen.embedded.result import ResultMemory, ResultSize
from loadgen.embedded.sql_errors import SqlError
from tests.embedded_server import EmbeddedServer
from tests.process.served import Refused, Wire

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


def nested(depth: int) -> str:
    return f"PARSE_JSON(REPEAT('[', {depth}) || REPEAT(']', {depth}))"


def formatted(text: str, memory: ResultMemory | None = None) -> str:
    return format_json(text, ResultSize(memory or ResultMemory(), None))


def test_a_value_that_is_nested_too_deeply_is_refused_and_others_are_served(server: EmbeddedServer):
    wire, other = Wire(server), Wire(server)

    with pytest.raises(Refused, match="100069: Semi-structured value is nested too deeply"):
        wire.sql(f"SELECT {nested(5_000)}")

    assert wire.answers()
    assert other.answers()


def test_the_deepest_value_that_is_allowed_comes_whole(server: EmbeddedServer):
    wire = Wire(server)

    rows = wire.sql(f"SELECT {nested(DEPTH_MAX)} FROM TABLE(GENERATOR(ROWCOUNT => 3))")

    assert {"".join((row[0] or "").split()) for row in rows} == {"[" * DEPTH_MAX + "]" * DEPTH_MAX}


def test_an_array_of_too_many_values_is_refused(server: EmbeddedServer):
    wire = Wire(server)

    with pytest.raises(Refused, match="200011: Result is too large"):
        wire.sql("SELECT PARSE_JSON('[1' || REPEAT(',1', 3000000) || ']')")

    assert wire.answers()


def test_a_value_that_grows_beyond_the_limit_when_it_is_formatted_is_refused(server: EmbeddedServer):
    wire = Wire(server)
    inside = "'1' || REPEAT(',1', 500000)"

    with pytest.raises(Refused, match="200011: Result is too large"):
        wire.sql(f"SELECT PARSE_JSON(REPEAT('[', 900) || {inside} || REPEAT(']', 900))")

    assert wire.answers()


@given(VALUES)
def test_values_are_formatted_with_keys_in_order(value: object):
    assert formatted(json.dumps(value, ensure_ascii=False)) == json.dumps(
        value, ensure_ascii=False, indent=2, sort_keys=True
    )


def test_numbers_are_left_as_they_are():
    assert formatted('{"b": 1.50, "a": [1e3, "x"]}') == '{\n  "a": [\n    1e3,\n    "x"\n  ],\n  "b": 1.50\n}'


def test_formatted_values_count_until_the_result_is_released(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(result, "UNCOUNTED_BYTES", 10)
    memory = ResultMemory()
    size = ResultSize(memory, None)

    made = format_json("[1, 2, 3, 4, 5, 6, 7]", size)

    assert memory.used >= len(made) // 2
    del size
    assert memory.used == 0


def test_formatting_stops_as_soon_as_the_result_is_too_large(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(result, "RESULT_BYTES_MAX", 10_000)

    with pytest.raises(SqlError, match="Result is too large"):
        formatted("[" * 500 + "1, " * 2_000)  # its end is not read
