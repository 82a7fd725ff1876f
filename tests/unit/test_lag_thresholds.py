"""The lag of an open loop: an arrival that was never sent is at least as late as it was old."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from loadgen.metrics.recorder import Outcome
from loadgen.metrics.tally import StatementTally, Times
from loadgen.model.threshold import parse_threshold
from loadgen.report.summary import lag_ms
from loadgen.rules.thresholds import check_threshold
from tests.unit.orchestrator_builders import merged, times

MAX_LAG_MS = 1_000.0


@given(sent=st.integers(1, 300), unsent=st.integers(0, 300), operator=st.sampled_from(["<", "<="]))
def test_a_threshold_on_lag_is_met_only_if_arrivals_that_were_never_sent_meet_it(sent, unsent, operator):
    ended = {Outcome.SUCCEEDED: Times(times(*[20.0] * sent), times(*[10.0] * sent))}
    statement = StatementTally(
        times=ended,
        lag=times(*[10.0] * sent),
        skipped=unsent,
        unsent=times(*[MAX_LAG_MS * 1.1] * unsent),
    )

    checked = check_threshold(parse_threshold(f"lag_p99 {operator} {MAX_LAG_MS:.0f}ms"), merged({"look": statement}))

    too_late = unsent * 100 > sent + unsent
    few = sent + unsent < 100
    assert checked.passed == (not too_late if not few else not unsent)
    assert not too_late or few or (checked.value is not None and checked.value >= MAX_LAG_MS and checked.at_least)
    known = lag_ms(statement)
    if known["p99"] is not None and checked.value is not None:  # results leave out percentiles of a few samples
        assert (known["p99"], "p99" in known.get("at_least", ())) == (checked.value, checked.at_least)
