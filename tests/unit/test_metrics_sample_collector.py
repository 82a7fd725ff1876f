"""From samples to tallies: nothing is lost or counted twice, in any order of events."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from loadgen.metrics.interval import Interval, MeasuredCounts, SampleBatch
from loadgen.metrics.recorder import FailedOutcome, Outcome, Recorder, Sample, WindowRegistry, WindowState
from loadgen.metrics.sample_collector import SampleCollector
from loadgen.metrics.tally import CODES_MAX, EXAMPLE_MAX, NAMED_MAX, ErrorGrouper, ErrorKey, ErrorTally, Tally, by_kind
from loadgen.metrics.window import window_discrepancy
from loadgen.model.counts import Counts, ErrorCategory, count_discrepancy
from loadgen.model.run import Phase
from loadgen.model.workload import StatementKind
from tests.unit.metrics_builders import MS, failures, histogram, outcomes, sample, samples, statement

S = 10**9
NAMES = ["a", "b", "c"]
REFUSED = FailedOutcome(ErrorCategory.SNOWFLAKE_ERROR, 625, "lock not released")
REFUSED_KEY = ErrorKey(ErrorCategory.SNOWFLAKE_ERROR, 625)


def harvested(*batches: list[Sample], open_loop: bool = False) -> Tally:
    """All windows in one tally."""
    total = Tally()
    for batch in batches:
        for tally in SampleBatch.of(batch, open_loop=open_loop).tallies(NAMES, {}).values():
            total = total + tally
    return total


def started(
    *, open_loop: bool = False, phase: Phase = Phase.MEASUREMENT
) -> tuple[WindowRegistry, SampleCollector, Recorder]:
    windows = WindowRegistry()
    windows.open(1, phase=phase, at_ns=0)
    statements = [statement("a"), statement("b", StatementKind.WRITE), statement("c", StatementKind.WRITE)]
    harvester = SampleCollector(windows, statements, open_loop=open_loop, started_ns=0)
    return windows, harvester, harvester.recorder()


def record(recorder: Recorder, *many: Sample) -> None:
    for one in many:
        window = recorder.begin()
        assert window is not None
        recorder.append((one[0], window, *one[2:]))


# --- batches ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("open_loop", [False, True])
def test_batches_add_up_to_what_one_by_one_counting_finds(open_loop):
    @settings(max_examples=30, deadline=None)
    @given(st.lists(samples(open_loop=open_loop), max_size=60), st.lists(st.integers(0, 60), max_size=4), st.randoms())
    def check(many: list[Sample], cuts: list[int], random) -> None:
        shuffled = random.sample(many, len(many))
        ends = [0, *sorted(cuts), len(many)]

        tally = harvested(*(shuffled[start:end] for start, end in pairwise(ends)), open_loop=open_loop)

        for number, name in enumerate(NAMES):
            own = [one for one in many if one[0] == number]
            counts = Counter(int(one[5].__index__()) for one in own)
            found = tally.statements.get(name)
            assert (found is None) == (not own)
            if found is None:
                continue
            assert found.skipped == counts[Outcome.SKIPPED]
            sent = [one for one in own if one[5] is not Outcome.SKIPPED]
            assert found.lag == histogram([max(one[3] - one[2], 0) for one in sent] if open_loop else [])
            for outcome in set(Outcome) - {Outcome.SKIPPED}:
                ended = [one for one in sent if int(one[5].__index__()) == outcome]
                assert (outcome in found.times) == bool(ended)
                if ended:
                    times = found.times[outcome]
                    assert times.service == histogram([one[4] - one[3] for one in ended])
                    assert times.response == histogram([one[4] - min(one[2], one[3]) for one in ended])
                    assert open_loop or times.service is times.response  # stored once

    check()


def test_the_three_times_are_what_they_are_called():
    tally = harvested([sample(due_ns=5, lag_ns=3 * MS, service_ns=7 * MS)], open_loop=True).statements["a"]

    assert tally.succeeded.response.min_ns == 10 * MS
    assert tally.succeeded.service.min_ns == 7 * MS
    assert tally.lag.min_ns == 3 * MS


def test_a_statement_sent_a_moment_early_is_not_late_by_less_than_nothing():
    tally = harvested([sample(due_ns=500, lag_ns=-200, service_ns=MS)], open_loop=True).statements["a"]

    assert (tally.lag.min_ns, tally.succeeded.response.min_ns) == (0, MS)


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (sample(lag_ns=1), "closed loop"),
        (sample(service_ns=-1), "negative"),
        (sample(statement=3), "not in the workload"),
        (sample(statement=-1), "not in the workload"),
    ],
)
def test_samples_that_cannot_be_are_bugs_and_are_refused(bad, why):
    with pytest.raises(ValueError, match=why):
        harvested([sample(), bad])


def test_categories_and_outcomes_have_the_same_names():
    failures = [outcome for outcome in Outcome if outcome.is_failure]

    assert {outcome.category for outcome in failures} == set(ErrorCategory)
    assert all(outcome.category == outcome.name for outcome in failures if outcome < Outcome.INTERRUPTED)
    assert all(FailedOutcome(category, None, "").__index__() == Outcome[category.name] for category in ErrorCategory)


# --- errors ----------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(1, 2), st.sampled_from("abc"), failures), max_size=200))
def test_errors_are_counted_by_category_code_and_statement_without_growing_for_ever(found):
    groups = ErrorGrouper().group(found)

    for window in (1, 2):
        own = Counter(failed.category for at, _, failed in found if at == window)
        by_category: Counter[ErrorCategory] = Counter()
        for key, errors in groups.get(window, {}).items():
            by_category[key.category] += errors.count
            assert len(errors.example) <= EXAMPLE_MAX
        assert by_category == own
    keys = {key for group in groups.values() for key in group}
    codes = {(key.category, key.code) for key in keys if key.code is not None}
    assert len(codes) <= CODES_MAX
    assert codes <= {(failed.category, failed.code) for _, _, failed in found}
    named = {key for key in keys if key.statement is not None}
    assert len(named) <= NAMED_MAX
    assert {(key.category, key.statement) for key in named} <= {(failed.category, name) for _, name, failed in found}


def test_codes_beyond_the_limit_are_counted_with_their_category():
    found = [
        (1, "a", FailedOutcome(ErrorCategory.SNOWFLAKE_ERROR, code, f"error {code}")) for code in range(CODES_MAX + 5)
    ]

    errors = ErrorGrouper().group(found)[1]

    assert len(errors) == CODES_MAX + 1
    assert errors[ErrorKey(ErrorCategory.SNOWFLAKE_ERROR)].count == 5


def test_groups_beyond_the_limit_are_counted_without_their_statement():
    names = [f"statement {number}" for number in range(NAMED_MAX + 3)]
    book = ErrorGrouper()

    errors = book.group((1, name, REFUSED) for name in names)[1]

    assert len(errors) == NAMED_MAX + 1
    assert errors[REFUSED_KEY._replace(statement=names[0])].count == 1
    assert errors[REFUSED_KEY].count == 3
    assert by_kind(errors) == {REFUSED_KEY: ErrorTally(NAMED_MAX + 3, REFUSED.text)}


def test_an_error_keeps_the_first_text_without_what_could_harm_a_terminal():
    book = ErrorGrouper()
    texts = ["lock\x1b[2J not released \ud800", "another text"]

    for text in texts:
        groups = book.group([(1, "a", FailedOutcome(ErrorCategory.CONNECTION, 7, text))])

    assert groups[1][ErrorKey(ErrorCategory.CONNECTION, 7, "a")].example == r"lock␛[2J not released \ud800"


# --- the harvester ---------------------------------------------------------------------------------------------------


def test_a_harvest_takes_all_samples_and_counts_the_events_of_that_second():
    _, harvester, recorder = started()
    record(recorder, *(sample(service_ns=ms * MS) for ms in range(1, 101)))
    record(recorder, sample(statement=1, outcome=REFUSED), sample(service_ns=101 * MS, outcome=Outcome.CANCELLED))

    interval = harvester.harvest(2 * S)

    assert (interval.phase, interval.seconds, interval.qps) == (Phase.MEASUREMENT, 2.0, 50.0)
    assert (interval.p50_ms, interval.p95_ms, interval.p99_ms) == (51.0, 96.0, 100.0)  # cut off: at least its time
    assert (interval.avg_ms, interval.min_ms, interval.max_ms) == (51.0, 1.0, 101.0)
    assert interval.measured == MeasuredCounts(queries=101, reads=100, writes=1, errors=1)
    assert interval.tally.errors == {REFUSED_KEY._replace(statement="b"): ErrorTally(1, REFUSED.text)}

    idle = harvester.harvest(3 * S)

    assert (idle.qps, idle.p50_ms, idle.avg_ms, idle.max_ms, idle.tally) == (0.0, None, None, None, Tally())
    assert idle.measured == interval.measured


@settings(max_examples=30)
@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=250))
def test_the_percentiles_of_a_second_are_exact(times):
    _, harvester, recorder = started()
    record(recorder, *(sample(service_ns=time_ns) for time_ns in times))

    interval = harvester.harvest(S)

    ranked, n = sorted(times), len(times)
    assert interval.p50_ms == (ranked[-(-n // 2) - 1] / MS if n >= 2 else None)
    assert interval.p95_ms == (ranked[-(-n * 95 // 100) - 1] / MS if n >= 20 else None)
    assert interval.p99_ms == (ranked[-(-n * 99 // 100) - 1] / MS if n >= 100 else None)
    assert (interval.min_ms, interval.max_ms) == (ranked[0] / MS, ranked[-1] / MS)
    assert interval.avg_ms == pytest.approx(np.mean(times) / MS)


def test_statements_started_in_warm_up_never_count_in_the_measurement():
    windows, harvester, recorder = started(phase=Phase.WARMUP)
    slow = recorder.begin()
    assert slow == 1
    other = harvester.recorder()
    record(other, *[sample(service_ns=9 * MS)] * 5)
    warm = harvester.harvest(S)
    windows.open(2, phase=Phase.MEASUREMENT, at_ns=S)
    recorder.append(sample(window=slow, service_ns=900 * MS))
    record(other, *[sample(service_ns=MS)] * 2)

    interval = harvester.harvest(2 * S)

    assert (warm.qps, warm.measured) == (5.0, MeasuredCounts())
    assert (interval.phase, interval.qps, interval.max_ms) == (Phase.MEASUREMENT, 2.0, 1.0)
    assert interval.measured == MeasuredCounts(queries=2, reads=2)
    assert [result.counts.succeeded for result in harvester.results(2 * S)] == [6, 2]


def test_statements_that_end_after_the_last_window_are_still_counted():
    windows, harvester, recorder = started()
    window = recorder.begin()
    assert window is not None
    windows.close(at_ns=S)
    harvester.harvest(S)
    recorder.append(sample(window=window, service_ns=1_500 * MS))

    interval = harvester.harvest(2 * S)

    assert (interval.qps, interval.max_ms) == (1.0, 1_500.0)
    (result,) = harvester.results(2 * S)
    assert (result.state, result.seconds, result.counts.succeeded) == (WindowState.FINAL, 1.0, 1)


def test_statements_that_end_after_the_last_window_count_in_the_second_in_which_they_started():
    windows, harvester, recorder = started()
    record(recorder, sample(service_ns=MS))
    began = [recorder.begin() for _ in range(4)]
    assert began == [1] * 4
    harvester.harvest(9 * S)
    windows.close(at_ns=10 * S)
    for sent_ns, outcome in ((S, Outcome.SUCCEEDED), (5 * S, Outcome.SUCCEEDED), (5 * S, Outcome.CANCELLED)):
        recorder.append((0, 1, sent_ns, sent_ns, 15 * S, outcome))
    recorder.append((0, 1, 0, 0, 11 * S, Outcome.SKIPPED))
    recorder.append((0, 1, 9 * S, 9 * S, 10 * S, Outcome.SUCCEEDED))

    harvester.harvest(15 * S)

    found = {second: tally.ended for second, tally in harvester.drained(2 * S, 10 * S).items()}
    assert found == {1: Counts(succeeded=1), 4: Counts(succeeded=1, cancelled=1), 8: Counts(skipped=1)}
    assert harvester.in_time(10 * S).ended == Counts(succeeded=1)


def test_a_final_window_stays_in_the_beats_until_it_is_stored():
    windows, harvester, recorder = started()
    record(recorder, sample(), sample(outcome=REFUSED))
    windows.open(2, phase=Phase.MEASUREMENT, at_ns=S)
    record(recorder, sample())
    harvester.harvest(2 * S)
    before = harvester.live(2 * S)

    harvester.forget(1)

    after = harvester.live(2 * S)
    assert [window.state for window in before.windows] == [WindowState.FINAL, WindowState.OPEN]
    assert [window.window_id for window in after.windows] == [2]
    assert after.totals == before.totals
    assert (after.totals.scheduled, after.totals.succeeded, after.totals.failed) == (3, 2, 1)
    assert after.measured == before.measured
    assert after.elapsed_s == 2.0


def test_a_sample_of_a_removed_window_is_a_bug_and_raises():
    _, harvester, recorder = started()
    recorder.append(sample(window=99))

    with pytest.raises(ValueError, match="not held: \\[99\\]"):
        harvester.harvest(S)


def test_a_statement_recorded_twice_or_never_is_named():
    windows, harvester, recorder = started()
    record(recorder, sample())
    recorder.append(sample())
    windows.close(at_ns=S)
    harvester.harvest(S)

    (result,) = harvester.results(S)
    assert result.state is WindowState.CLOSED
    assert window_discrepancy(result) == "window 1: in_flight is -1: more statements ended than began"


class Life(RuleBasedStateMachine):
    """Clients start, end, cancel and skip; windows change; harvests come when they like. The identity always holds."""

    @initialize(open_loop=st.booleans())
    def begin(self, open_loop):
        self.windows = WindowRegistry()
        self.harvester = SampleCollector(self.windows, [statement(n) for n in NAMES], open_loop=open_loop, started_ns=0)
        self.recorders = [self.harvester.recorder() for _ in range(3)]
        self.running: dict[int, int] = {}  # client → window
        self.begun: Counter[int] = Counter()
        self.ended: Counter[tuple[int, int]] = Counter()  # (window, outcome), not harvested yet or harvested
        self.seen: Counter[tuple[int, int]] = Counter()  # harvested
        self.stored: Counter[int] = Counter()
        self.now_ns = 0
        self.newest = 0

    @rule()
    def open(self):
        self.newest += 1
        self.now_ns += 1
        self.windows.open(self.newest, phase=Phase.MEASUREMENT, at_ns=self.now_ns)

    @rule()
    def close(self):
        self.now_ns += 1
        self.windows.close(at_ns=self.now_ns)

    @rule(client=st.integers(0, 2))
    def start(self, client):
        if client not in self.running:
            window = self.recorders[client].begin()
            assert window == self.windows.current
            if window is not None:
                self.running[client] = window
                self.begun[window] += 1

    @precondition(lambda self: self.running)
    @rule(outcome=outcomes, number=st.integers(0, 2), data=st.data())
    def end(self, outcome, number, data):
        client = data.draw(st.sampled_from(sorted(self.running)))
        window = self.running.pop(client)
        self.recorders[client].append(sample(statement=number, window=window, outcome=outcome))
        self.ended[window, int(outcome.__index__())] += 1

    @rule()
    def harvest(self):
        self.now_ns += 1
        interval = self.harvester.harvest(self.now_ns)
        assert isinstance(interval, Interval)
        self.seen = Counter(self.ended)

    @rule()
    def store(self):
        for result in self.harvester.results(self.now_ns):
            if result.state is WindowState.FINAL:
                assert result.window_id not in self.running.values()
                assert result.window_id != self.windows.current
                self.harvester.forget(result.window_id)
                self.stored[result.window_id] += 1

    @invariant()
    def the_counts_are_those_of_the_model(self):
        for result in self.harvester.results(self.now_ns):
            counts, window = result.counts, result.window_id
            assert window_discrepancy(result) is None
            assert counts.scheduled == self.begun[window]
            assert counts.skipped == self.seen[window, Outcome.SKIPPED]
            assert counts.succeeded == self.seen[window, Outcome.SUCCEEDED]
            assert counts.cancelled == self.seen[window, Outcome.CANCELLED]
            assert counts.failed == sum(self.seen[window, outcome] for outcome in Outcome if outcome.is_failure)
            assert counts.in_flight == self.begun[window] - sum(self.seen[window, outcome] for outcome in Outcome)
        totals = self.harvester.live(self.now_ns).totals
        assert count_discrepancy(totals) is None
        assert totals.scheduled == sum(self.begun.values())

    def teardown(self):
        if not hasattr(self, "windows"):
            return
        for client, window in self.running.items():
            self.recorders[client].append(sample(window=window, outcome=Outcome.CANCELLED))
        self.windows.close(at_ns=self.now_ns + 1)
        self.harvester.harvest(self.now_ns + 1)
        held = self.harvester.results(self.now_ns + 1)
        assert {result.state for result in held} <= {WindowState.FINAL}
        assert self.harvester.live(self.now_ns + 1).totals.in_flight == 0
        assert sorted([*self.stored, *(result.window_id for result in held)]) == list(range(1, self.newest + 1))


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=30, stateful_step_count=40, deadline=None)
