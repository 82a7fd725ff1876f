"""LIKE patterns of SHOW: any pattern is matched in bounded time."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.embedded.commands.show import like
from tests.embedded_server import EmbeddedServer
from tests.process.served import Wire


def test_a_pattern_of_many_wildcards_is_matched_while_others_are_served(server: EmbeddedServer):
    wire, other = Wire(server), Wire(server)

    assert wire.sql(f"SHOW PARAMETERS LIKE '{'%_' * 20}%0'") == []

    assert wire.answers()
    assert other.answers()


@given(st.text("aB%_\\İ", max_size=8), st.text("AbİxC", max_size=8))
def test_patterns_match_what_the_regular_expression_matches(pattern: str, name: str):
    parts = re.findall(r"\\.|.", pattern)
    wild = {"%": ".*", "_": "."}
    expression = "".join(wild.get(part) or re.escape(part[-1]) for part in parts)

    assert like(pattern, name) is (re.fullmatch(expression, name, re.IGNORECASE | re.DOTALL) is not None)


@pytest.mark.parametrize(("pattern", "name"), [("", ""), ("%", ""), ("a\\%", "A%"), ("\\\\_", "\\x"), ("%b%d", "abcd")])
def test_wildcards_and_backslashes(pattern: str, name: str):
    assert like(pattern, name)
