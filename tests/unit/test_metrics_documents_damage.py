"""Damaged stored documents are rejected: no reader gets a wrong number."""

import contextlib
import json
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.metrics.interval import read_custom_metrics, write_custom_metrics
from loadgen.metrics.json_fields import InvalidMetrics, JsonFields
from loadgen.metrics.live_metrics import LiveSecond, read_live, write_live
from loadgen.metrics.recorder import FailedOutcome, Outcome, Sample
from loadgen.metrics.window import WindowResult, WindowRow, histogram_data, read_histogram
from loadgen.model.counts import ErrorCategory
from loadgen.model.run import Phase
from tests.unit.metrics_builders import MOMENT, MS, S, histogram, live_of, row_of, sample, worker


def stored() -> tuple[WindowRow, str]:
    many = [
        sample(window=2, lag_ns=MS, service_ns=5 * MS),
        sample(window=2, lag_ns=0, service_ns=9 * MS),
        sample(window=2, outcome=Outcome.SKIPPED),
        sample(window=2, statement=1, outcome=Outcome.CANCELLED),
        sample(window=2, statement=1, outcome=FailedOutcome(ErrorCategory.CONNECTION, 7, "reset")),
    ]
    harvester = worker(many, open_loop=True)
    second = LiveSecond.of(harvester.harvest(9 * S), Phase.MEASUREMENT, ended_at=MOMENT, executing=3)
    live = replace(harvester.live(9 * S), seconds=(second,))
    return row_of(live.windows[1]), write_live(live)


ROW, BEAT = stored()


def paths(data: object, at: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    found = [at] if at else []
    if isinstance(data, dict):
        found += [path for key, value in data.items() for path in paths(value, (*at, key))]
    if isinstance(data, list):
        found += [path for number, value in enumerate(data) for path in paths(value, (*at, number))]
    return found


junk = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=3), st.just([]), st.just({}),
    st.just(10**400),
)  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(["counts", "buckets", "beat"]), st.data())
def test_one_changed_value_is_refused_or_changes_nothing_that_is_counted(which, data):
    text = BEAT if which == "beat" else getattr(ROW, which)
    damaged = json.loads(text)
    *way, last = data.draw(st.sampled_from(paths(damaged)))
    place = damaged
    for step in way:
        place = place[step]
    old = place[last]
    if data.draw(st.booleans()):
        place[last] = old + data.draw(st.sampled_from([-1, 1])) if type(old) is int else data.draw(junk)
    else:
        place[last] = data.draw(junk)

    with contextlib.suppress(InvalidMetrics):  # anything else would be a bug
        if which == "beat":
            written = [window.counts for window in read_live(BEAT).windows]
            assert all(window.counts in written for window in read_live(json.dumps(damaged)).windows)
        else:
            text = json.dumps(damaged)
            row = replace(ROW, counts=text) if which == "counts" else replace(ROW, buckets=text)
            assert row.result().counts == ROW.result().counts


@given(
    st.text() | st.recursive(junk, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)).map(json.dumps)
)
def test_any_other_text_is_refused_with_its_place(text):
    for read in (read_live, read_custom_metrics, lambda text: replace(ROW, counts=text).result()):
        with pytest.raises(InvalidMetrics, match=r"LIVE_METRICS|CUSTOM_METRICS|COUNTS"):
            read(text)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"count": 4}, "in its buckets"),
        ({"min_ns": 1}, "outside its first or last bucket"),
        ({"max_ns": 10**10}, "outside its first or last bucket"),
        ({"sum_ns": 10**18}, "a sum that"),
        ({"sum_ns": 1}, "a sum that"),
        ({"buckets": []}, "not whole numbers, or none"),
        ({"buckets": [400]}, "in its buckets"),
        ({"buckets": [-1, 3]}, "not whole numbers"),
        ({"buckets": [1, True, 2]}, "not whole numbers"),
        ({"buckets": [1, 1.0, 2]}, "not whole numbers"),
        ({"buckets": [1, 0, 3]}, "an empty bucket"),
        ({"buckets": [1_114, 1, 2]}, "or too many"),
        ({"buckets": [1, -(10**30), 3]}, "not whole numbers"),
        ({"coarseness": 2}, "coarseness"),
        ({"count": 2**60}, "whole number"),
    ],
)
def test_a_histogram_that_contradicts_itself_is_refused(change, why):
    data = {**histogram_data(histogram([5 * MS, 5 * MS, 9 * MS])), **change}

    with pytest.raises(InvalidMetrics, match=why):
        read_histogram(JsonFields(data, "h"))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"version":1,"version":1}', "twice"),
        ('{"version":NaN}', "not a number"),
        ('{"version":2}', "version 2, and this loadgen reads 1"),
        ("[" * 100_000, "not JSON"),
        ("9" * 5_000, "not JSON"),
        ("null", "not an object"),
        ("{}", "has no version"),
    ],
)
def test_the_reason_is_named(text, why):
    with pytest.raises(InvalidMetrics, match=why):
        read_live(text)


def window_of(many: list[Sample]) -> WindowResult:
    return live_of(many).windows[1]


def test_counts_and_buckets_of_different_rows_do_not_go_together():
    other = row_of(window_of([sample(window=2)] * 3))

    with pytest.raises(InvalidMetrics, match="window 2"):
        replace(ROW, buckets=other.buckets).result()


def set_at(data, way, value):
    *steps, last = way.split(".")
    for step in steps:
        data = data[int(step) if step.isdigit() else step]
    data[last] = value


@pytest.mark.parametrize(
    ("way", "value", "why"),
    [
        ("windows.1.window_id", 1, "a window twice"),
        ("left_out", [3], "a window twice"),
        ("left_out", [True], "not a list of ids"),
        ("totals.skipped", 2, "totals that do not add up: scheduled 6 is not skipped 2"),
        ("measured.queries", 4, "measured does not add up"),
        ("measured.errors", 9, "measured does not add up"),
        ("windows.0.state", "FINAL", "it is final, and 1 are in flight"),
        ("windows.0.state", "open", "none of OPEN CLOSED FINAL"),
        ("windows.1.counts.succeeded", 3, "window 2: scheduled 5 is not"),
        ("windows.1.counts.errors", [], "1 failed, and 0 errors are described"),
        ("windows.1.counts.statements.a.skipped", 0, "skipped is 1, and its statements have 0"),
        ("windows.1.counts.statements.a.succeeded", 1, "does not hold as many as were counted"),
        ("windows.1.counts.statements", {}, "other statements than the counts"),
        ("windows.1.buckets.a.SKIPPED", {}, "an unknown outcome 'SKIPPED'"),
        ("windows.1.buckets.a.lag", histogram_data(histogram([0])), "4 were sent, and the lag of 3 is known"),
        (
            "windows.1.buckets.a.SUCCEEDED.service",
            histogram_data(histogram([5])),
            "more of one time than of the other",
        ),
    ],
)
def test_a_beat_that_contradicts_itself_is_refused_with_the_reason(way, value, why):
    data = json.loads(BEAT)
    set_at(data, way, value)

    with pytest.raises(InvalidMetrics, match=re.escape(why)):
        read_live(json.dumps(data))


def test_the_metrics_of_a_second_that_contradict_themselves_are_refused():
    data = json.loads(write_custom_metrics(worker([sample(window=3)]).harvest(9 * S)))
    data["statements"]["a"]["succeeded"] = 2

    with pytest.raises(InvalidMetrics, match="other times than were counted"):
        read_custom_metrics(json.dumps(data))
