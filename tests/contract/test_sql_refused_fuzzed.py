"""Statements that a fuzz run found (tests.security.fuzz_sql): each is refused by name, none is an internal error."""

from __future__ import annotations

import pytest

from tests.contract.refused_builders import Refusals, message


@pytest.mark.parametrize(
    ("text", "errno"),
    [
        ("SELECT 1::VECTOR(FLOAT, 3)", 2),
        ("SELECT REGR_R2(1, 2) WITHIN GROUP ()", 1003),
        ("SELECT ABS(V:k[0.5], 1) FROM T", 939),
        ("SELECT ('day', '[1]') AS X", 1003),
        ("SELECT 1,, 2", 1003),
        ("SELECT , 1", 1003),
        ("SELECT ABS(, 1)", 1003),
        ("SELECT ABS(1,)", 1003),
        ("SELECT 1 WHERE 1 IN (1,)", 1003),
        ("INSERT INTO U VALUES (1,, 'x')", 1003),
        ("SELECT A FROM T GROUP BY , A", 1003),
    ],
)
def test_what_a_fuzz_run_found_is_refused(refusals: Refusals, text: str, errno: int) -> None:
    error = refusals.refusal(text)

    assert error.errno == errno, message(error)
