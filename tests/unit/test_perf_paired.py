"""The arithmetic behind ./bin/bench: what a contest and a search's answers amount to."""

from __future__ import annotations

import pytest

from tests.perf._paired import DRIVER_THREADS, PairedMeasurement, Span, bounds, by_kind
from tests.perf.find_max import Answer, Limit, counts


@pytest.mark.parametrize(
    ("count", "low", "high"), [(3, 1, 3), (5, 1, 5), (6, 1, 6), (9, 2, 8), (20, 6, 15), (21, 6, 16)]
)
def test_the_median_lies_between_the_ranks_that_a_binomial_table_gives(count: int, low: int, high: int) -> None:
    ratios = [float(rank) for rank in range(count, 0, -1)]

    assert bounds(ratios) == (low, high)


def test_the_busiest_threads_are_the_clients_and_the_driver_names_its_own() -> None:
    used_ns = {
        (7, 7, "worker-0"): 3,
        (7, 8, "worker-0"): 500,
        (7, 9, "worker-0"): 400,
        (7, 10, DRIVER_THREADS): 600,
        (8, 8, "worker-1"): 2,
    }

    assert by_kind(used_ns, clients=2) == {"clients": 900, "others": 5, "driver": 600}


def span(per_s: float, cpu_us: float) -> Span:
    return Span(per_s=per_s, cpu_us={"clients": cpu_us, "others": 0.0, "driver": 0.0})


def test_throughput_is_compared_pair_by_pair() -> None:
    """The machine was half as fast during the second pair, for both."""
    found = PairedMeasurement(
        ours=[span(900, 11), span(450, 22), span(990, 11)], bare=[span(1000, 10), span(500, 20), span(1000, 10)]
    )

    figure = found.figure("throughput", 0.95)

    assert (figure.value, figure.met) == (0.9, False)
    assert found.cpu_ratio == pytest.approx(1.1)
    assert found.figure("throughput", 0.9).met


@pytest.mark.parametrize(
    ("found", "result", "wrong"),
    [
        (40, "TRUE_MAX", False),
        (48, "TRUE_MAX", False),
        (32, "TRUE_MAX", False),
        (49, "TRUE_MAX", True),
        (31, "TRUE_MAX", True),
        (40, "BOUNDED_MAX", False),
        (8, "BOUNDED_MAX", False),
        (41, "BOUNDED_MAX", True),
        (0, None, False),
    ],
)
def test_an_answer_is_wrong_when_it_claims_what_is_not_so(found: int, result: str | None, wrong: bool) -> None:
    limit = Limit(name="40", server=(), truth=40, increment=8)
    answer = Answer(limit=limit, run=1, found=found, result=result, reason="")

    share, true, bounded = counts([answer], loops=0)

    assert (answer.is_wrong, answer.figure().met) == (wrong, not wrong)
    assert share.met is (result == "TRUE_MAX")
    assert counts([answer], loops=4)[0].met, "how many are TRUE_MAX beside busy loops is no rule"
    assert (true.value, bounded.value) == (
        int(wrong and result == "TRUE_MAX"),
        int(wrong and result == "BOUNDED_MAX"),
    )
