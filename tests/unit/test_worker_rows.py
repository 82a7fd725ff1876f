"""What a worker measured, as rows: every number where it belongs, and NULL where there is none."""

import json
from datetime import datetime
from typing import Any

from loadgen.metrics.interval import MeasuredCounts, read_custom_metrics
from loadgen.metrics.recorder import FailedOutcome, Outcome, WindowRegistry
from loadgen.metrics.sample_collector import SampleCollector
from loadgen.metrics.window import WindowRow
from loadgen.model.counts import ErrorCategory
from loadgen.model.run import Phase
from loadgen.model.workload import StatementKind
from loadgen.units import NS_PER_S
from loadgen.worker.arguments import WorkerArguments
from loadgen.worker.flush import result_row, snapshot_row
from loadgen.worker.self_monitor import ResourceReading
from tests.unit.metrics_builders import MS, sample, statement

ME = WorkerArguments(run_id="run", worker_id="worker-1", worker_group_id=1, worker_group_count=3)
MOMENT = datetime(2026, 11, 15, 2)  # noqa: DTZ001  naive UTC
READING = ResourceReading(cpu_percent=41.5, memory_percent=2.5, wakeup_p99_ms=0.25)
QUIET = ResourceReading(cpu_percent=0.0, memory_percent=0.0, wakeup_p99_ms=None)
FAILED = FailedOutcome(ErrorCategory.SNOWFLAKE_ERROR, 604, "killed")


class Measuring:
    """One worker: a read and a write, with the samples of the test."""

    def __init__(self, *names: str) -> None:
        self.windows = WindowRegistry()
        first, second = names or ("look", "pay")
        statements = [statement(first), statement(second, StatementKind.WRITE)]
        self.harvester = SampleCollector(self.windows, statements, open_loop=False, started_ns=0)
        self._recorder = self.harvester.recorder()
        self._number = 0

    def window(self, phase: Phase, step_id: int | None = None, at_s: float = 0.0) -> None:
        self._number += 1
        self.windows.open(self._number, phase=phase, at_ns=round(at_s * NS_PER_S), step_id=step_id)

    def add(
        self, count: int = 1, *, number: int = 0, ms: int = 10, outcome: Outcome | FailedOutcome = Outcome.SUCCEEDED
    ) -> None:
        for _ in range(count):
            window = self._recorder.begin()
            assert window is not None
            self._recorder.append(sample(statement=number, window=window, service_ns=ms * MS, outcome=outcome))

    def snapshot(self, reading: ResourceReading = READING):
        interval = self.harvester.harvest(2 * NS_PER_S)
        return snapshot_row(interval, reading, ME, test_id="t", timestamp=MOMENT, elapsed_s=12.5, executing=3, target=8)

    def result(self, status: str = "COMPLETED"):
        self.windows.close(at_ns=20 * NS_PER_S)
        self.harvester.harvest(21 * NS_PER_S)
        return result_row(
            self.harvester.results(21 * NS_PER_S),
            self.harvester.measured,
            ME,
            test_id="t",
            template_id="m",
            status=status,
            created_at=MOMENT,
        )


def test_a_snapshot_contains_worker_time_and_load():
    measuring = Measuring()
    measuring.window(Phase.MEASUREMENT)
    measuring.add()

    row = measuring.snapshot()

    assert (row.run_id, row.test_id, row.worker_id) == ("run", "t", "worker-1")
    assert (row.worker_group_id, row.worker_group_count) == (1, 3)
    assert (row.timestamp, row.elapsed_seconds, row.phase) == (MOMENT, 12.5, "MEASUREMENT")
    assert (row.active_connections, row.target_connections) == (3, 8)
    assert (row.cpu_percent, row.memory_percent) == (41.5, 2.5)


def test_a_snapshot_counts_reads_writes_and_errors_of_the_measurement():
    measuring = Measuring()
    measuring.window(Phase.WARMUP)
    measuring.add(5)
    measuring.window(Phase.MEASUREMENT)
    measuring.add(4)
    measuring.add(2, number=1)
    measuring.add(1, number=1, outcome=FAILED)
    measuring.add(1, outcome=Outcome.CANCELLED)

    row = measuring.snapshot()

    assert (row.total_queries, row.read_count, row.write_count, row.error_count) == (7, 4, 3, 1)
    assert row.qps == 6 / 2.0


def test_a_second_without_samples_has_no_times():
    measuring = Measuring()
    measuring.window(Phase.MEASUREMENT)

    row = measuring.snapshot(QUIET)

    assert (row.p50_latency_ms, row.p95_latency_ms, row.p99_latency_ms) == (None, None, None)
    assert (row.avg_latency_ms, row.min_latency_ms, row.max_latency_ms) == (None, None, None)
    assert (row.total_queries, row.qps) == (0, 0.0)


def test_a_worker_without_a_window_has_no_phase():
    assert Measuring().snapshot().phase is None


def test_percentiles_without_enough_samples_are_left_out():
    measuring = Measuring()
    measuring.window(Phase.MEASUREMENT)
    measuring.add(19)

    row = measuring.snapshot()

    assert row.p50_latency_ms == 10.0
    assert (row.p95_latency_ms, row.p99_latency_ms) == (None, None)
    assert row.avg_latency_ms == row.min_latency_ms == row.max_latency_ms == 10.0


def test_the_custom_metrics_can_be_added_to_those_of_other_workers():
    measuring = Measuring()
    measuring.window(Phase.MEASUREMENT)
    measuring.add(4)
    measuring.add(1, number=1, outcome=FAILED)

    row = measuring.snapshot()

    custom = read_custom_metrics(row.custom_metrics)
    assert custom.response.count == 4
    assert custom.seconds == 2.0
    assert (custom.statements["look"].succeeded, custom.statements["pay"].failed) == (4, 1)
    assert json.loads(row.custom_metrics)["wakeup_p99_ms"] == 0.25


def test_no_name_of_a_statement_can_replace_another_number():
    measuring = Measuring("wakeup_p99_ms", "seconds")
    measuring.window(Phase.MEASUREMENT)
    measuring.add(3)

    row = measuring.snapshot(QUIET)

    assert json.loads(row.custom_metrics)["wakeup_p99_ms"] is None
    assert read_custom_metrics(row.custom_metrics).statements["wakeup_p99_ms"].succeeded == 3


def test_a_window_is_stored_with_the_epoch_it_was_measured_in():
    measuring = Measuring()
    measuring.window(Phase.MEASUREMENT, step_id=4, at_s=1)
    measuring.add(3)
    measuring.windows.close(at_ns=6 * NS_PER_S)
    measuring.harvester.harvest(7 * NS_PER_S)
    (result,) = measuring.harvester.results(7 * NS_PER_S)

    row = WindowRow.of(result, worker_id=ME.worker_id, epoch=9)

    assert (row.worker_id, row.window_id, row.epoch) == ("worker-1", 1, 9)
    assert (row.phase, row.step_id, row.seconds) == (Phase.MEASUREMENT, 4, 5.0)
    assert json.loads(row.counts)["scheduled"] == 3
    assert json.loads(row.buckets)["statements"]["look"]["SUCCEEDED"]["response"]["count"] == 3


def test_a_workers_result_contains_its_measurement_only():
    measuring = Measuring()
    measuring.window(Phase.WARMUP)
    measuring.add(50, ms=900)
    measuring.window(Phase.MEASUREMENT, 1, at_s=5)
    measuring.add(60, ms=10)
    measuring.window(Phase.MEASUREMENT, 2, at_s=10)
    measuring.add(30, number=1, ms=10)
    measuring.add(10, number=1, ms=500, outcome=FAILED)

    row = measuring.result()

    assert (row.run_id, row.worker_id, row.worker_group_id) == ("run", "worker-1", 1)
    assert (row.test_id, row.template_id, row.status, row.created_at) == ("t", "m", "COMPLETED", MOMENT)
    assert (row.total_operations, row.failed_operations) == (100, 10)
    assert (row.read_operations, row.write_operations) == (60, 40)
    assert row.avg_latency_ms == 10.0
    assert row.p50_latency_ms is not None
    assert abs(row.p50_latency_ms - 10.0) < 0.2
    summary = json.loads(row.summary)
    assert (summary["seconds"], summary["qps"]) == (15.0, 6.0)
    assert summary["counts"]["scheduled"] == 100
    assert summary["at_least"] == []


def test_a_worker_that_measured_nothing_has_an_empty_result():
    measuring = Measuring()
    measuring.window(Phase.WARMUP)
    measuring.add(5)

    row = measuring.result("FAILED")

    assert row.status == "FAILED"
    assert (row.total_operations, row.read_operations, row.write_operations, row.failed_operations) == (0, 0, 0, 0)
    assert (row.p50_latency_ms, row.p95_latency_ms, row.p99_latency_ms, row.avg_latency_ms) == (None,) * 4
    assert json.loads(row.summary)["qps"] == 0.0


def test_a_row_contains_what_was_dropped():
    given: dict[str, Any] = {"test_id": "t", "template_id": "m", "status": "COMPLETED", "created_at": MOMENT}

    row = result_row([], MeasuredCounts(), ME, dropped={"query_log_rows": 6}, **given)
    whole = result_row([], MeasuredCounts(), ME, dropped={}, **given)

    assert json.loads(row.summary or "")["dropped"] == {"query_log_rows": 6}
    assert "dropped" not in json.loads(whole.summary or "")


def test_a_worker_that_never_began_has_a_row_too():
    row = result_row([], MeasuredCounts(), ME, test_id="t", template_id="m", status="FAILED", created_at=MOMENT)

    assert row.total_operations == 0
    assert row.avg_latency_ms is None


def test_percentiles_without_enough_samples_are_null():
    measuring = Measuring()
    measuring.window(Phase.MEASUREMENT)
    measuring.add(99)

    row = measuring.result()

    assert row.p50_latency_ms is not None
    assert row.p95_latency_ms is not None
    assert row.p99_latency_ms is None


def test_a_percentile_among_cancelled_samples_is_marked_as_a_lower_bound():
    measuring = Measuring()
    measuring.window(Phase.MEASUREMENT)
    measuring.add(90, ms=10)
    measuring.add(30, ms=800, outcome=Outcome.CANCELLED)

    row = measuring.result()

    assert json.loads(row.summary)["at_least"] == ["p95", "p99", "avg"]
    assert row.total_operations == 90
    assert row.p95_latency_ms is not None
    assert row.p95_latency_ms > 700
