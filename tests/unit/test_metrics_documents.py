"""What is stored can be read back, and fits."""

import json
from dataclasses import replace
from datetime import timedelta
from functools import reduce
from operator import add

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.metrics.histogram import COARSENESSES, EMPTY, Histogram
from loadgen.metrics.interval import KEY as JUDGED
from loadgen.metrics.interval import (
    ThresholdSecond,
    judged_data,
    read_custom_metrics,
    stored_judged,
    write_custom_metrics,
)
from loadgen.metrics.json_fields import InvalidMetrics, JsonFields
from loadgen.metrics.live_metrics import LIMIT_BYTES, LiveMetrics, LiveSecond, read_live, write_live
from loadgen.metrics.recorder import FailedOutcome, Sample, WindowState
from loadgen.metrics.window import ALL_STATEMENTS, VERSION, ClientResourceUse, dump, histogram_data, read_histogram
from loadgen.model.counts import ErrorCategory
from loadgen.model.run import Phase
from tests.unit.metrics_builders import MOMENT, MS, S, histogram, live_of, row_of, sample, samples, time_lists, worker

any_samples = st.booleans().flatmap(
    lambda open_loop: st.tuples(st.just(open_loop), st.lists(samples(open_loop=open_loop), max_size=40))
)


# --- round trips -----------------------------------------------------------------------------------------------------


@given(time_lists, st.sampled_from(COARSENESSES))
def test_a_histogram_is_read_as_it_was_written(times, coarseness):
    made = histogram(times).coarse(coarseness)

    data = json.loads(json.dumps(histogram_data(made)))

    assert read_histogram(JsonFields(data, "it")) == made


@pytest.mark.parametrize(
    "effect",
    [
        None,
        ClientResourceUse(),
        ClientResourceUse(
            elapsed_ms=1_000,
            cpu_ms=412,
            machine_cpu_ms=1_900,
            stolen_cpu_ms=300,
            cores=2,
            gap_ms=550,
            late=histogram([0, 7_000, 6 * 10**8]),
        ),
    ],
)
def test_the_client_health_of_a_window_is_read_as_it_was_written(effect):
    live = live_of([])
    made = replace(live, windows=tuple(replace(window, client=effect) for window in live.windows))
    final = replace(made.windows[1], state=WindowState.FINAL)

    assert read_live(write_live(made)).windows == made.windows
    assert row_of(final).result() == final


def test_buckets_are_written_as_counts_in_a_row_with_their_gaps():
    made = histogram([1_000, 1_000, 1_030, 1_300])

    assert histogram_data(made) == {
        "count": 4,
        "sum_ns": 4_330,
        "min_ns": 1_000,
        "max_ns": 1_300,
        "buckets": [1, 2, 1, -11, 1],
    }


@settings(max_examples=30, deadline=None)
@given(any_samples)
def test_windows_beats_and_seconds_are_read_as_they_were_written(made):
    open_loop, many = made
    harvester = worker(many, open_loop=open_loop)
    interval = harvester.harvest(9 * S)
    second = LiveSecond.of(interval, Phase.MEASUREMENT, ended_at=MOMENT, executing=3)
    live = replace(harvester.live(9 * S), seconds=(second,))

    assert read_live(write_live(live)) == live
    for result in live.windows:
        if result.state is not WindowState.OPEN:
            assert row_of(result).result() == result
    custom = read_custom_metrics(write_custom_metrics(interval))
    whole = interval.tally.whole
    assert (custom.response, custom.lag, custom.seconds) == (whole.succeeded.response, whole.lag, interval.seconds)
    assert custom.statements == {name: tally.ended for name, tally in interval.tally.statements.items()}
    assert second.statements == custom.statements  # the heartbeat contains what the row will contain
    assert reduce(add, second.times.values(), EMPTY) == custom.response.coarse(3)
    succeeded = {name: tally.succeeded.response for name, tally in interval.tally.statements.items()}
    assert custom.times == {name: times for name, times in succeeded.items() if times.count}


def test_times_of_a_second_are_stored_by_statement_for_those_that_are_asked_for():
    interval = worker([sample(statement=number, window=2) for number in (0, 0, 1, 2)]).harvest(9 * S)

    custom = read_custom_metrics(write_custom_metrics(interval, timed=["a", "b"]))

    assert {name: times.count for name, times in custom.times.items()} == {"a": 2, "b": 1}
    assert custom.response.count == 4


def test_times_of_a_second_with_one_statement_are_stored_once():
    interval = worker([sample(window=2)]).harvest(9 * S)

    assert "response" not in json.loads(write_custom_metrics(interval))["statements"]["a"]
    assert read_custom_metrics(write_custom_metrics(interval)).times == {"a": histogram([10 * MS])}


def test_a_closed_loop_stores_each_time_once():
    (_, closed, _) = live_of([sample(window=2)]).windows
    (_, paced, _) = live_of([sample(window=2, lag_ns=MS)], open_loop=True).windows

    assert set(json.loads(row_of(closed).buckets)["statements"]["a"]["SUCCEEDED"]) == {"response"}
    assert set(json.loads(row_of(closed).buckets)["statements"]["a"]) == {"SUCCEEDED"}
    assert set(json.loads(row_of(paced).buckets)["statements"]["a"]["SUCCEEDED"]) == {"response", "service"}
    assert set(json.loads(row_of(paced).buckets)["statements"]["a"]) == {"SUCCEEDED", "lag"}


# --- size ------------------------------------------------------------------------------------------------------------


def busy(statements: int, each: int, *, spread: float = 0.5, windows: tuple[int, ...] = (1, 2, 3)) -> list[Sample]:
    """Lognormal service times, and lags of about a tenth of them, in every window."""
    random = np.random.default_rng(3)
    return [
        sample(statement=number, window=window, lag_ns=int(lag), service_ns=int(service))
        for window in windows
        for number in range(statements)
        for lag, service in zip(
            random.lognormal(14.5, 2 * spread, each), random.lognormal(17, spread, each), strict=True
        )
    ]


def test_two_windows_of_twenty_statements_in_a_closed_loop_fit_as_they_are():
    many = [(one[0], one[1], one[3], *one[3:]) for one in busy(20, 1_500, windows=(2, 3))]

    live = live_of(many, names=[f"statement_{n}" for n in range(20)])
    text = write_live(live)

    assert len(text) <= LIMIT_BYTES
    assert read_live(text) == live


def test_two_windows_of_twenty_statements_in_an_open_loop_fit_with_every_statement():
    live = live_of(busy(20, 1_000, windows=(2, 3)), open_loop=True, names=[f"statement_{n}" for n in range(20)])

    text = write_live(live)

    read = read_live(text)
    assert len(text) <= LIMIT_BYTES
    assert [ALL_STATEMENTS in window.tally.statements for window in read.windows] == [False, False, False]
    assert {histogram.coarseness for histogram in histograms(read)} <= {1, 3, 7}
    assert [window.counts for window in read.windows] == [window.counts for window in live.windows]


def histograms(live: LiveMetrics) -> list[Histogram]:
    return [
        made
        for window in live.windows
        for tally in window.tally.statements.values()
        for times in tally.times.values()
        for made in (times.response, times.service, tally.lag)
        if made.count
    ]


def test_a_heartbeat_that_is_too_long_is_reduced_step_by_step_and_marked():
    live = live_of(busy(6, 300), open_loop=True, names=list("abcdef"))
    whole = {window.window_id: window.tally.whole.succeeded.response for window in live.windows}
    length = len(write_live(live, limit_bytes=10**9))
    steps = set()

    for limit in range(length, 600, -max(1, length // 60)):
        text = write_live(live, limit_bytes=limit)
        read = read_live(text)
        assert len(text) <= limit
        assert read.totals == live.totals
        assert sorted([*read.left_out, *(window.window_id for window in read.windows)]) == [1, 2, 3]
        for window in read.windows:
            found = window.tally.whole.succeeded.response
            assert (found.count, found.sum_ns) == (whole[window.window_id].count, whole[window.window_id].sum_ns)
            assert window.counts.succeeded == found.count
        coarseness = max((made.coarseness for made in histograms(read)), default=0)
        steps.add(
            (
                len(read.left_out),
                any((ALL_STATEMENTS in window.tally.statements) for window in read.windows),
                coarseness,
            )
        )

    assert {step[:2] for step in steps} >= {(0, False), (0, True), (1, True)}
    assert (0, False, 3) in steps
    assert (0, False, 7) in steps
    assert (3, False, 0) in steps  # totals are left


def told(statements: int) -> tuple[LiveSecond, ...]:
    """Ten seconds with this many statements each."""
    names = [f"statement_{n}" for n in range(statements)]
    interval = worker(busy(statements, 100, windows=(3,)), open_loop=True, names=names).harvest(9 * S)
    return (LiveSecond.of(interval, Phase.MEASUREMENT, ended_at=MOMENT, executing=3),) * 10


def test_the_last_seconds_are_reduced_first():
    live = replace(live_of(busy(6, 300), open_loop=True, names=list("abcdef")), seconds=told(6))
    length = len(write_live(live, limit_bytes=10**9))

    folded = read_live(write_live(live, limit_bytes=length - 1))
    gone = read_live(write_live(live, limit_bytes=3_000))

    assert (folded.windows, gone.seconds) == (live.windows, ())
    assert [list(second.statements) for second in folded.seconds] == [[ALL_STATEMENTS]] * 10
    assert (
        folded.seconds[0].statements[ALL_STATEMENTS].succeeded == 600 == folded.seconds[0].times[ALL_STATEMENTS].count
    )


def test_seconds_of_many_statements_are_reported_as_a_total():
    assert len(told(8)[0].statements) == 8
    assert list(told(9)[0].statements) == [ALL_STATEMENTS]
    assert len(write_live(replace(live_of([]), seconds=told(9)))) < 6_000


def test_brief_seconds_are_read_as_they_were_written_and_take_little_room():
    brief = tuple(replace(second.brief, ended_at=MOMENT + timedelta(seconds=n)) for n, second in enumerate(told(6)))
    live = replace(live_of(busy(6, 300), open_loop=True, names=list("abcdef")), seconds=brief)

    text = write_live(live)

    assert read_live(text) == live
    assert "seconds" not in json.loads(text)
    assert [second.statements[ALL_STATEMENTS].succeeded for second in brief] == [600] * 10
    assert len(text) - len(write_live(replace(live, seconds=()))) < 500


def test_one_longer_second_keeps_all_as_they_are():
    """Thresholds over a span need their times."""
    live = replace(live_of([]), seconds=(*told(2)[:1], told(2)[0].brief))

    assert len(json.loads(write_live(live))["seconds"]) == 2


@pytest.mark.parametrize(
    "row",
    [[], [0] * 7, [0] * 9, "x", None, [0, 10**6, 99, 0, 0, 0, 0, 0], [0, 10**6, 2, 0, 0, -1, 0, 0],
     [0, 10**6, 2, 0, 0, True, 0, 0], [0, 10**6, 2, 0, 0, 1.5, 0, 0], [0, 10**6, 2, 0, 0, 10**16, 0, 0]],
    ids=str,
)  # fmt: skip
def test_brief_seconds_that_make_no_sense_are_refused(row):
    data = json.loads(write_live(replace(live_of([]), seconds=(told(2)[0].brief,))))
    data["brief_seconds"]["rows"].append(row)

    with pytest.raises(InvalidMetrics, match="brief_seconds"):
        read_live(json.dumps(data))


@pytest.mark.parametrize("moment", ["", "yesterday", "9999-12-31T00:00:00", "2026-11-15T02:00:00+01:00", None])
def test_a_moment_that_makes_no_sense_is_refused(moment):
    data = json.loads(write_live(replace(live_of([]), seconds=(told(2)[0].brief,))))
    data["brief_seconds"]["ended_at"] = moment

    with pytest.raises(InvalidMetrics, match="brief_seconds"):
        read_live(json.dumps(data))


def test_a_beat_of_an_older_worker_has_no_seconds():
    assert "seconds" not in json.loads(write_live(live_of([])))
    assert read_live(write_live(live_of([]))).seconds == ()


def test_what_is_folded_names_all_statements_at_once():
    live = live_of(busy(6, 300), open_loop=True, names=list("abcdef"))

    read = read_live(write_live(live, limit_bytes=6_000))

    assert [list(window.tally.statements) for window in read.windows] == [[ALL_STATEMENTS]] * len(read.windows)


def test_a_limit_that_holds_nothing_is_a_bug():
    with pytest.raises(ValueError, match="does not fit into 10 bytes"):
        write_live(live_of([]), limit_bytes=10)


def test_a_window_with_statements_that_never_came_back_can_be_stored():
    (first, _, _) = live_of([sample(window=1)]).windows

    read = row_of(first).result()

    assert (read.state, read.counts.in_flight, read.counts.scheduled) == (WindowState.CLOSED, 1, 2)


def test_the_texts_are_ascii_so_that_bytes_are_characters():
    text = write_live(live_of([sample(statement=2)]))

    assert text.isascii()
    assert dump(json.loads(text)) == text


# --- seconds for thresholds over a span ------------------------------------------------------------------------------


def judged_second() -> ThresholdSecond:
    interval = worker(busy(3, 100, windows=(3,)), open_loop=True, names=list("abc")).harvest(9 * S)
    return ThresholdSecond.of(interval.tally, {ALL_STATEMENTS, "a", "never"}, from_s=-0.4, until_s=0.7)


def test_seconds_of_thresholds_are_read_as_they_were_written_in_beats_and_snapshots():
    second = judged_second()
    (told_second,) = told(40)[:1]
    live = replace(live_of([]), seconds=(replace(told_second, judged=second),))

    (read,) = read_live(write_live(live)).seconds

    drained = replace(second, seconds=0.0, tallies={}, drained={3: second.tallies, 12: {}})
    assert stored_judged(dump({"version": VERSION, JUDGED: judged_data(drained)})) == drained
    assert read.judged == second == stored_judged(dump({"version": VERSION, JUDGED: judged_data(second)}))
    assert (second.number, second.from_s, second.seconds) == (1, 0.0, 0.7)  # the part that was measured
    assert second.tallies["a"].ended.succeeded == 100
    assert second.tallies[ALL_STATEMENTS].ended.succeeded == 300
    assert stored_judged('{"version": 1}') is None


def test_a_beat_with_many_statements_still_has_the_seconds_of_thresholds():
    names = [f"statement_{n}" for n in range(250)]
    live = live_of(busy(250, 40), open_loop=True, names=names)
    seconds = tuple(replace(one, judged=judged_second()) for one in told(250))

    read = read_live(write_live(replace(live, seconds=seconds)))

    assert ALL_STATEMENTS in read.windows[-1].tally.statements
    assert read.seconds[-1].judged == judged_second()


def test_a_second_contains_statements_that_were_cut_off():
    late = sample(window=3, service_ns=30 * S, outcome=FailedOutcome(ErrorCategory.QUERY_TIMEOUT, 630, "too slow"))
    interval = worker([sample(window=3), late], names=list("a")).harvest(99 * S)
    second = LiveSecond.of(interval, Phase.MEASUREMENT, ended_at=MOMENT, executing=3)

    (read,) = read_live(write_live(replace(live_of([]), seconds=(second,)))).seconds
    stored = read_custom_metrics(write_custom_metrics(interval))

    assert (read.cut_off.count, stored.cut_off.count, stored.response.count) == (1, 1, 1)
    assert stored.cut_off.max_ns == 30 * S
    assert interval.max_ms == 30_000.0
    assert (interval.qps * interval.seconds, interval.measured.errors) == (1.0, 1)
