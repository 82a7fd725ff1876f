"""The statistical power of comparisons: runs of the warehouse model, twenty pairs of each kind, fixed seeds.

Of 200 pairs, 200 are decided correctly both ways. The limits only leave room for the random numbers of another numpy.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from loadgen.rules.comparability import ChangeLimits, Measure
from loadgen.rules.comparison import ChangeVerdict, MeasuredRun, compare
from loadgen.rules.confidence_intervals import BootstrapReplicates
from tests.unit.warehouse_runs import run_of

PAIRS = 20


@cache
def baseline(number: int) -> MeasuredRun:
    return run_of(number)


def verdicts(*, slower: float = 1.0) -> list[ChangeVerdict]:
    runs = [(baseline(number), run_of(1_000 + number, slower=slower)) for number in range(PAIRS)]
    return [compare(a, b, ChangeLimits()).verdict for a, b in runs]


def test_two_runs_of_one_scenario_are_equivalent():
    assert verdicts().count(ChangeVerdict.EQUIVALENT) >= 19


def test_fifteen_percent_more_service_time_is_worse():
    assert verdicts(slower=1.15).count(ChangeVerdict.WORSE) >= 19


def test_fifteen_percent_less_service_time_is_better():
    runs = [(run_of(1_000 + number, slower=1.15), baseline(number)) for number in range(3)]

    assert [compare(a, b, ChangeLimits()).verdict for a, b in runs] == [ChangeVerdict.BETTER] * 3


def test_one_slow_statement_is_found_among_others():
    comparison = compare(baseline(0), run_of(1_000, pay_slower=1.3), ChangeLimits())

    assert comparison.verdict is ChangeVerdict.WORSE
    assert comparison.exit_code == 11
    assert {
        change.statement for change in comparison.changes if change.verdict is ChangeVerdict.WORSE and change.counts
    } >= {"pay"}
    look = [change for change in comparison.changes if (change.statement, change.measure) == ("look", Measure.P50)]
    assert [change.verdict for change in look] == [ChangeVerdict.EQUIVALENT]


def test_new_errors_are_worse():
    comparison = compare(baseline(0), run_of(1_000, failing=0.02), ChangeLimits())

    worse = {
        change.measure for change in comparison.changes if change.verdict is ChangeVerdict.WORSE and change.certain
    }
    assert Measure.ERROR_RATE in worse
    assert comparison.verdict is ChangeVerdict.WORSE


def test_a_short_noisy_measurement_is_no_reason_for_an_alarm():
    runs = [run_of(seed, seconds=12, clients=2, service="lognormal(150ms,1)") for seed in range(PAIRS)]

    found = [compare(a, b, ChangeLimits()) for a, b in zip(runs[::2], runs[1::2], strict=True)]

    assert [comparison.verdict for comparison in found].count(ChangeVerdict.WORSE) <= 1
    assert ChangeVerdict.INCONCLUSIVE in {comparison.verdict for comparison in found}


def test_a_slow_drift_makes_intervals_wider_than_independent_seconds_would():
    steady, drifting = run_of(7), run_of(7, spread=0.03)
    widths = []
    for run in (steady, drifting):
        in_order = BootstrapReplicates(run.series, 1).log_rate()
        widths.append(float(np.std(in_order)))
    shuffled = np.random.default_rng(1).permutation(len(drifting.series))
    mixed = BootstrapReplicates(reordered(drifting, shuffled), 1).log_rate()

    assert widths[1] > 1.3 * float(np.std(mixed))
    assert widths[1] > widths[0]


def reordered(run: MeasuredRun, order):
    series = run.series
    return type(series)(
        seconds=series.seconds[order],
        buckets=series.buckets[order],
        sums_ns=series.sums_ns[order],
        succeeded={name: counts[order] for name, counts in series.succeeded.items()},
        failed={name: counts[order] for name, counts in series.failed.items()},
        stages=series.stages,
        earlier=series.earlier[order],
    )


def test_intervals_contain_the_truth_at_about_their_confidence_level():
    """No change between runs of one scenario: 95 of 100 intervals should hold 0."""
    held: dict[Measure, int] = dict.fromkeys((Measure.QPS, Measure.P50, Measure.P95), 0)
    for number in range(PAIRS):
        comparison = compare(baseline(number), baseline((number + 1) % PAIRS), ChangeLimits())
        for change in comparison.changes:
            if change.statement is None and change.measure in held:
                assert change.span is not None
                held[change.measure] += change.span.low <= 0 <= change.span.high

    assert min(held.values()) >= 16


def test_the_same_runs_give_the_same_answer():
    first, second = (compare(baseline(0), baseline(1), ChangeLimits()) for _ in range(2))

    assert [change.span for change in first.changes] == [change.span for change in second.changes]
