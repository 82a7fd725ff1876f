"""The second in which the phase changes belongs to two windows: its rate and its times are of both."""

from __future__ import annotations

import csv
import io
from dataclasses import replace

import pytest

from loadgen.metrics.histogram import Histogram
from loadgen.metrics.interval import EarlierSamples, Interval, read_custom_metrics, write_custom_metrics
from loadgen.metrics.live_metrics import LiveSecond, read_live, write_live
from loadgen.metrics.recorder import Outcome, WindowRegistry
from loadgen.metrics.sample_collector import SampleCollector
from loadgen.model.counts import Counts
from loadgen.model.run import Phase
from loadgen.report.exports import intervals_csv
from loadgen.report.records import StatementTimes, WorkerSecond, merge_seconds, thin
from loadgen.tui.history import LiveHistory
from tests.unit.metrics_builders import MS, histogram, statement
from tests.unit.report_builders import START, record, worker_second
from tests.unit.tui_builders import second, snapshot, worker

S = 10**9


class Load:
    """One client whose statements take 200 ms, collected once a second."""

    def __init__(self) -> None:
        self.windows = WindowRegistry()
        self.collector = SampleCollector(self.windows, [statement("look")], open_loop=False, started_ns=0)
        self.recorder = self.collector.recorder()
        self.number = 0

    def open(self, phase: Phase, at_ns: int) -> None:
        self.number += 1
        self.windows.open(self.number, phase=phase, at_ns=at_ns)

    def send(self, sent_ns: int) -> int:
        window = self.recorder.begin()
        assert window is not None
        return window

    def end(self, window: int, done_ns: int) -> None:
        sent_ns = done_ns - 200 * MS
        self.recorder.append((0, window, sent_ns, sent_ns, done_ns, Outcome.SUCCEEDED))


def changing() -> list[Interval]:
    """A warm-up until 1.9 s, then measurement; the statement in flight at the change ends at 2.05 s."""
    load = Load()
    load.open(Phase.WARMUP, at_ns=100 * MS)
    for done_ns in range(300 * MS, S, 200 * MS):
        load.end(load.send(done_ns), done_ns)
    found = [load.collector.harvest(S)]
    for done_ns in range(S + 50 * MS, 1_900 * MS, 200 * MS):
        load.end(load.send(done_ns), done_ns)
    in_flight = load.send(1_850 * MS)
    load.open(Phase.MEASUREMENT, at_ns=1_900 * MS)
    found.append(load.collector.harvest(2 * S))
    load.end(in_flight, 2_050 * MS)
    for done_ns in range(2_250 * MS, 3 * S, 200 * MS):
        load.end(load.send(done_ns), done_ns)
    return [*found, load.collector.harvest(3 * S), load.collector.harvest(4 * S)]


def test_an_interval_has_the_samples_of_the_phase_before_beside_its_own() -> None:
    first, change, after, last = changing()
    assert first.earlier is None  # the load begins; there is no phase before
    assert (change.phase, change.tally.ended.succeeded) == (Phase.MEASUREMENT, 0)
    assert change.earlier is not None
    assert change.earlier.ended.succeeded == 5
    assert (after.tally.ended.succeeded, after.measured.queries) == (4, 4)
    assert after.earlier is not None
    assert after.earlier.ended.succeeded == 1
    assert last.earlier is None


def test_a_change_without_a_statement_is_known_to_have_none() -> None:
    load = Load()
    load.open(Phase.WARMUP, at_ns=0)
    load.collector.harvest(S)
    load.open(Phase.MEASUREMENT, at_ns=1_500 * MS)
    earlier = load.collector.harvest(2 * S).earlier
    assert earlier is not None
    assert not earlier.ended.ended


def test_rows_and_heartbeats_carry_them() -> None:
    for interval in changing():
        second = LiveSecond.of(interval, interval.phase or Phase.WARMUP, ended_at=START, executing=1)
        live = replace(Load().collector.live(S), seconds=(second,))
        assert read_live(write_live(live)) == live
        stored = read_custom_metrics(write_custom_metrics(interval)).earlier
        assert stored == (None if interval.earlier is None else EarlierSamples.of(interval.earlier))
        assert second.earlier == (None if stored is None else stored.coarse(3))
        if stored is not None and second.folded.earlier is not None:
            assert second.folded.earlier.counts == stored.counts


def _times(count: int) -> Histogram:
    return histogram([10 * MS] * count)


def stream(*, known: bool = True, count: int = 8) -> list[WorkerSecond]:
    """A steady 100/s; from the third second on measured, in which 60 and then 20 had begun in the warm-up."""
    begun_before = {2: 60, 3: 20}
    found = []
    for at in range(count):
        other = begun_before.get(at, 0)
        earlier = EarlierSamples(statements={"look": Counts(succeeded=other)}, times={"look": _times(other)})
        found.append(
            worker_second(
                at + 1.02,
                ms=(10.0,) * (100 - other),
                phase="WARMUP" if at < 2 else "MEASUREMENT",
                statements={"look": Counts(succeeded=100 - other)},
                times={"look": _times(100 - other)},
                earlier=earlier if known and other else None,
            )
        )
    return found


def test_the_rate_of_a_run_does_not_dip_where_the_phase_changes() -> None:
    merged = merge_seconds(START, stream())
    assert [row.qps for row in merged] == [None, *[pytest.approx(100.0)] * 6, None]
    assert [row.counts.succeeded for row in merged] == [100, 100, 40, 80, 100, 100, 100, 100]  # of the phase
    assert [row.every_count.succeeded for row in merged] == [100] * 8
    assert {row.every_response.count for row in merged} == {100}
    (joined,) = (point for point in thin(merged, 5) if (point.at_s, point.phase) == (2, "MEASUREMENT"))
    assert joined.qps == pytest.approx(100.0)
    assert joined.every_count.succeeded == 300


def test_the_rate_does_not_dip_where_workers_change_their_phase_in_different_seconds() -> None:
    """The second of a worker whose phase differs is counted in a neighbour of its row, and is part of its rate."""
    own = [
        worker_second(
            at + 1.0 + offset,
            worker_id=f"worker-{number}",
            phase="WARMUP" if at < change else "MEASUREMENT",
            earlier=EarlierSamples() if at == change else None,
        )
        for number, (offset, change) in enumerate([(0.1, 5), (0.2, 6), (0.3, 5), (0.4, 7)])
        for at in range(12)
    ]
    for order in (own, sorted(own, key=lambda second: second.ended_at)):
        merged = merge_seconds(START, order)
        assert [row.qps for row in merged[1:-1]] == [pytest.approx(400.0)] * 10
        assert {row.target for row in merged} == {16}
        assert sum(row.counts.succeeded for row in merged if row.phase == "WARMUP") == 100 * (5 + 6 + 5 + 7)


def test_times_by_statement_are_of_all_that_ended() -> None:
    kept = StatementTimes(span_s=1)
    merge_seconds(START, stream(), kept)
    assert {point["look"].count for point in kept.points.values()} == {100}


def test_the_live_view_shows_the_same_rates() -> None:
    history = LiveHistory()
    beats = []
    for at, one in enumerate(stream(count=6)):
        of = second(at + 1.02, phase=Phase(one.phase or ""), look=(10.0,) * one.counts.succeeded)
        beats.append(replace(of, earlier=one.earlier))

    history.note(snapshot(7.0, worker(0, seconds=tuple(beats))))

    assert [row.qps for row in history.seconds] == [None, *[pytest.approx(100.0)] * 5]
    assert [sum(one.qps for one in row.statements) for row in history.seconds[1:]] == [pytest.approx(100.0)] * 5
    assert all(row.p95_ms == pytest.approx(10.0, rel=0.04) for row in history.seconds[1:])


def test_rows_of_an_older_worker_have_no_rate_there() -> None:
    assert [row.qps is None for row in merge_seconds(START, stream(known=False))].index(True, 1) == 2


def test_the_csv_says_how_many_had_begun_before() -> None:
    rows = list(csv.DictReader(io.StringIO(intervals_csv(record(seconds=merge_seconds(START, stream()))))))
    assert [row["earlier_succeeded"] for row in rows[:5]] == ["0", "0", "60", "20", "0"]
    assert [row["succeeded"] for row in rows[:5]] == ["100", "100", "40", "80", "100"]
    assert {float(row["qps"]) for row in rows[1:7]} == {100.0}
