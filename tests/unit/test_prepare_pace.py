"""How many rows the next statement makes."""

from __future__ import annotations

from loadgen.prepare.fill import ROWS_MAX, ROWS_MIN, TARGET_S, BatchSize


def settled(rows_per_second: float, rows_max: int = ROWS_MAX) -> BatchSize:
    pace = BatchSize.up_to(rows_max)
    for _ in range(20):
        pace = pace.after(pace.rows, pace.rows / rows_per_second)
    return pace


def test_statements_come_to_take_the_time_they_should():
    assert abs(settled(10_000).rows - 10_000 * TARGET_S) <= 1


def test_a_fast_server_gets_no_more_than_the_most():
    assert settled(10**9).rows == ROWS_MAX
    assert settled(10**9, rows_max=500).rows == 500


def test_a_slow_server_gets_no_fewer_than_the_fewest():
    assert settled(0.1).rows == ROWS_MIN
    assert settled(0.1, rows_max=3).rows == 3


def test_one_quick_answer_does_not_make_the_next_statement_huge():
    assert BatchSize().after(1_000, 0.000001).rows == 4 * BatchSize().rows


def test_after_a_failure_less_is_tried():
    assert BatchSize(rows=40_000).slower().rows == 10_000
    assert BatchSize(rows=ROWS_MIN).slower().rows == ROWS_MIN
