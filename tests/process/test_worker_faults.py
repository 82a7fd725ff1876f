"""Faults of a worker: nothing is lost, nothing is counted twice, and every number is confirmed by the server.

Target and control plane are two servers, so that each can fail alone. The history of the target contains what it did.
"""

from __future__ import annotations

import json
import resource
import signal
from collections.abc import Callable, Iterator

import pytest

from loadgen.control.tables.run_status import server_time
from loadgen.control.tables.worker_heartbeats import WorkerHeartbeat
from loadgen.model.run import Phase, RunStatus
from loadgen.worker.startup import FORCED_CANCEL_S
from tests.embedded_server import EmbeddedServer
from tests.process.worker_driver import GET, Led, Worker, WorkerHarness, adds_up, worker_harness
from tests.processes import wait_until

LOGIN = "/session/v1/login-request"
LONG = {"name": "long", "kind": "read", "sql": "SELECT SYSTEM$WAIT(300)"}


@pytest.fixture(scope="module")
def control() -> Iterator[EmbeddedServer]:
    with EmbeddedServer("--strict-hybrid") as running:
        yield running


@pytest.fixture(scope="module")
def harness(server: EmbeddedServer, control: EmbeddedServer) -> Iterator[WorkerHarness]:
    yield from worker_harness(server, control_server=control)


@pytest.fixture(autouse=True)
def no_faults_left(server: EmbeddedServer, control: EmbeddedServer) -> Iterator[None]:
    yield
    server.clear_faults()
    control.clear_faults()


# --- the target ------------------------------------------------------------------------------------------------------


def test_every_fault_of_the_target_is_one_failed_sample(harness: WorkerHarness, server: EmbeddedServer) -> None:
    run = harness.run(
        {"connections": 4}, statements=[GET], target={"statement_timeout": "1s"}, query_log={"mode": "all"}
    )
    worker = run.started()
    run.wait_ended(20, worker)
    expected = 0
    for count, rule in (
        (15, {"kind": "http_status", "status": 503}),
        (4, {"kind": "reset"}),
        (4, {"kind": "truncate"}),
        (4, {"kind": "drop_reply"}),
        (4, {"kind": "error", "errno": 100051, "sqlstate": "22012"}),
        (3, {"kind": "big_error"}),
        (1, {"kind": "hang"}),
    ):
        server.inject_fault(count, match="FROM KV WHERE", **rule)
        run.wait_ended(5, worker)
        expected += count
    wait_until(lambda: run.beat().error_count >= expected, "every failure is in a beat")
    run.stopped(worker)

    window = run.seen().of(Phase.MEASUREMENT)
    assert adds_up(window)
    assert window.counts.failed == expected
    assert window.counts.cancelled == window.counts.skipped == 0
    # Given up by either side, the statement without a response took at least as long; earlier failures have no lower
    # bound.
    cut_off = window.tally.whole.cut_off.response
    assert (cut_off.count, window.tally.whole.responses[1].count) == (1, 1)
    assert cut_off.min_ns >= 1_000_000_000
    done = [line for line in run.history(Phase.MEASUREMENT) if not line["error_code"]]
    # Cut and lost answers were executed all the same; here they have failed.
    assert len(done) == window.counts.succeeded + 8
    assert run.executions() == window.counts.scheduled
    assert all(len(error.example) <= 2_000 for error in window.tally.errors.values())
    assert run.seen().result.failed_operations == expected
    assert len(run.beat().last_error or "") <= 1_000
    # The first ten of a kind are logged, and the tenth says that further ones are not.
    assert len([line for line in run.logs("ERROR") if "only counted" in line]) == 1
    assert all(len(line) < 4_100 for line in run.logs())


@pytest.mark.slow
def test_logins_that_fail_now_and_then_or_for_good(
    harness: WorkerHarness, server: EmbeddedServer, control: EmbeddedServer
) -> None:
    server.fault(match=LOGIN, kind="http_status", status=503, probability=0.3)
    flaky = harness.run(
        {"connections": 12}, connections={"max_age": "1s"}, timing={"start": "50s", "no_connection": "3s"}
    )
    worker = flaky.spawn()
    flaky.move(RunStatus.STARTING)
    assert flaky.wait_status("WAITING", worker).open_connections == 12
    server.clear_faults()
    flaky.start()
    flaky.wait_ended(12, worker)
    no = {"match": LOGIN, "kind": "error", "errno": 390100, "message": "Incorrect username or password."}
    server.fault(**no)
    refused = harness.run()
    late = refused.spawn()
    assert "Incorrect username or password" in refused.wait_dead()
    control.fault(**no)
    outside = refused.spawn(worker_id="worker-outside")

    # Those who came too late; and one whose clients, each at the end of its connection's age, were refused in the end.
    for one, code in ((late, 1), (outside, 1), (worker, 4)):
        assert one.exit_code() == code, one.said
        assert "Incorrect username or password" in one.said
        assert "hint: " in one.said
    assert "no client has been connected for" in flaky.wait_dead()
    control.clear_faults()
    window = flaky.seen().of(Phase.MEASUREMENT)
    assert adds_up(window)
    assert window.counts.succeeded == len(flaky.history(Phase.MEASUREMENT))


# --- the control plane -----------------------------------------------------------------------------------------------


def _away(control: EmbeddedServer) -> None:
    control.fault(match=".", kind="http_status", status=503)
    control.fault(match=LOGIN, kind="reset")


def test_without_the_control_plane_the_measurement_goes_on(harness: WorkerHarness, control: EmbeddedServer) -> None:
    run = harness.run({"connections": 2}, query_log={"mode": "all"}, timing={"no_connection": "25s"})
    worker = run.started()
    run.wait_ended(20, worker)
    beats = run.beat().count
    _away(control)
    before = len(run.history(Phase.MEASUREMENT))
    wait_until(lambda: len(run.history(Phase.MEASUREMENT)) > before + 200, "the load goes on", unless=worker.gone)
    control.clear_faults()
    run.wait_beat(lambda beat: beat.count > beats and beat.status == "RUNNING", "it beats again", worker)
    run.stopped(worker)

    window = run.seen().of(Phase.MEASUREMENT)
    assert adds_up(window)
    assert window.counts.succeeded == len(run.history(Phase.MEASUREMENT)) == run.executions()
    assert run.beat().status == "COMPLETED"


@pytest.mark.slow
def test_a_control_plane_that_stays_away_ends_the_worker_and_nothing_is_lost(
    harness: WorkerHarness, control: EmbeddedServer
) -> None:
    run = harness.run({"connections": 2}, query_log={"mode": "all"}, timing={"no_connection": "2s"})
    worker = run.started()
    run.wait_ended(20, worker)
    busy = harness.loadgen("upload", run.run_id, "--format", "json")
    assert busy.returncode == 75
    assert "are in use" in json.loads(busy.stdout)["error"]["message"]
    _away(control)
    assert worker.exit_code() == 2, worker.said
    assert "error: worker-0: the control plane has not answered" in worker.said
    assert f"loadgen upload {run.run_id}" in worker.said
    control.clear_faults()
    assert run.seen().windows == []

    first = harness.loadgen("upload", run.run_id)
    assert (first.returncode, first.stderr) == (0, "")
    window = run.seen().of(Phase.MEASUREMENT)
    done = [line for line in run.history(Phase.MEASUREMENT) if not line["error_code"]]
    assert adds_up(window)
    assert window.counts.succeeded == len(done)
    assert run.executions() == window.counts.scheduled
    assert f"{window.counts.scheduled:,} executions stored" in first.stdout
    assert run.seen().result.status == "FAILED"
    assert not list(harness.spool.glob("*"))
    again = harness.loadgen("upload", run.run_id)
    assert again.returncode == 0
    assert "nothing to upload" in again.stdout
    assert run.executions() == window.counts.scheduled


@pytest.mark.slow
def test_a_worker_that_beats_and_cannot_read_its_run_ends_with_its_results_stored(
    harness: WorkerHarness, control: EmbeddedServer
) -> None:
    run = harness.run({"connections": 2}, timing={"no_connection": "2s"})
    worker = run.started()
    run.wait_ended(20, worker)
    control.fault(match="AS LEASE_OVER_MS", kind="http_status", status=503)
    assert worker.exit_code() == 2, worker.said
    assert "error: worker-0: the state of the run could not be read" in worker.said
    control.clear_faults()
    window = run.seen().of(Phase.MEASUREMENT)
    assert adds_up(window)
    assert window.counts.succeeded == len([line for line in run.history(Phase.MEASUREMENT) if not line["error_code"]])
    assert (run.beat().status, run.seen().result.status) == ("DEAD", "FAILED")


@pytest.mark.slow  # test_control_faults.py loses answers of every table
def test_lost_answers_of_the_control_plane_store_nothing_twice(harness: WorkerHarness, control: EmbeddedServer) -> None:
    run = harness.run({"connections": 2}, query_log={"mode": "all"})
    worker = run.started()
    run.wait_ended(20, worker)
    tables = "WINDOW_RESULTS|TEST_RESULTS|QUERY_EXECUTIONS|WORKER_METRICS_SNAPSHOTS|TEST_LOGS"
    for table in tables.split("|"):
        control.fault(match=f"INSERT INTO {table}", kind="drop_reply", count=1)
    run.stopped(worker)

    window = run.seen().of(Phase.MEASUREMENT)
    assert window.counts.succeeded == len(run.history(Phase.MEASUREMENT)) == run.executions()
    for table, key in (
        ("TEST_RESULTS", "TEST_ID"),
        ("TEST_LOGS", "LOG_ID"),
        ("WORKER_METRICS_SNAPSHOTS", "SNAPSHOT_ID"),
    ):
        ((rows, keys),) = harness.plane.rows(
            f"SELECT COUNT(*), COUNT(DISTINCT {key}) FROM {table} WHERE RUN_ID = ?", run.run_id
        )
        assert int(rows) == int(keys) > 0, table


# --- the process itself ----------------------------------------------------------------------------------------------


@pytest.mark.slow  # test_pauses.py stops a worker of a run, test_worker_truth.py the server
def test_a_worker_that_was_paused_reports_it_in_its_times(harness: WorkerHarness) -> None:
    run = harness.run({"mode": "rate", "rate": "40/s", "max_connections": 4, "arrival": "uniform"})
    worker = run.started()
    run.wait_ended(20, worker)
    worker.signal(signal.SIGSTOP)
    stopped = server_time(harness.plane.session)
    wait_until(lambda: (server_time(harness.plane.session) - stopped).total_seconds() >= 5, "five seconds have passed")
    beats = run.beat().count
    worker.signal(signal.SIGCONT)
    run.wait_beat(lambda beat: beat.count > beats + 3 and beat.status == "RUNNING", "it beats again", worker)
    run.wait_ended(60, worker)
    run.stopped(worker)

    window = run.seen().of(Phase.MEASUREMENT)
    assert (adds_up(window), window.counts.failed) == (True, 0)
    assert window.counts.succeeded == len(run.history(Phase.MEASUREMENT))
    # Arrivals of those five seconds waited: 200 of them, evenly from 5 s down to 0.
    whole, late = window.tally.whole, window.tally.whole.succeeded.response
    assert late.max_ns >= 4.5e9
    assert whole.lag.count == window.counts.succeeded
    assert late.sum_ns - whole.succeeded.service.sum_ns > 100 * 2e9


def test_statements_that_do_not_end_in_time_are_cancelled_on_the_server(
    harness: WorkerHarness, server: EmbeddedServer
) -> None:
    """A drain that is too short, and a statement that not even the server can end."""
    before = server.ask("/__loadgen/stats")["open_sessions"]
    short = harness.run({"connections": 2}, statements=[LONG], target={"statement_timeout": "300s"})
    stuck = harness.run({"connections": 1}, statements=[GET], target={"statement_timeout": "300s"})
    workers = {"short": short.spawn(), "stuck": stuck.spawn()}
    for name, run in (("short", short), ("stuck", stuck)):
        run.move(RunStatus.STARTING)
        run.wait_status("WAITING", workers[name])
        run.start()
    stuck.wait_ended(5, workers["stuck"])
    server.inject_fault(1, match="FROM KV WHERE", kind="hang")
    for name, run, executing in (("short", short, 2), ("stuck", stuck, 1)):
        run.wait_beat(_executes(executing), f"{name} executes", workers[name])
    short.stop(drain_s=0.3)
    stuck.stop(drain_s=0.3)

    _check_cancelled(short, workers["short"], 2)
    _check_cancelled(stuck, workers["stuck"], 1)
    assert [str(line["error_code"]) for line in short.history(Phase.MEASUREMENT)] == ["604", "604"]
    wait_until(lambda: server.ask("/__loadgen/stats")["open_sessions"] <= before + 1, "sessions are closed")


@pytest.mark.slow
def test_a_second_sigterm_cancels_what_is_under_way(harness: WorkerHarness) -> None:
    run = harness.run(
        {"connections": 2}, statements=[LONG], target={"statement_timeout": "300s"}, timing={"drain_interrupt": "300s"}
    )
    worker = run.started()
    run.wait_beat(_executes(2), "both execute", worker)

    worker.signal(signal.SIGTERM)
    run.wait_status("DRAINING", worker)
    worker.signal(signal.SIGTERM)

    _check_cancelled(run, worker, 2)
    assert [str(line["error_code"]) for line in run.history(Phase.MEASUREMENT)] == ["604", "604"]


@pytest.mark.slow
def test_a_worker_that_hurries_does_not_end_before_it_has_cancelled_its_statements(
    harness: WorkerHarness, server: EmbeddedServer
) -> None:
    """Logging in takes longer than the worker waits for the statements to return."""
    run = harness.run(
        {"connections": 2}, statements=[LONG], target={"statement_timeout": "300s"}, timing={"drain_interrupt": "300s"}
    )
    worker = run.started()
    run.wait_beat(_executes(2), "both execute", worker)
    worker.signal(signal.SIGTERM)
    run.wait_status("DRAINING", worker)
    since_ms = server.now_ms()
    server.fault(match=LOGIN, kind="latency", ms=1_000 * FORCED_CANCEL_S + 500, count=2)

    worker.signal(signal.SIGTERM)

    _check_cancelled(run, worker, 2)
    sent = server.ask(f"/__loadgen/journal?match=CANCEL_ALL_QUERIES&since={since_ms}")
    assert len(sent) == 2


def _check_cancelled(run: Led, worker: Worker, cancelled: int) -> None:
    assert worker.exit_code() == 0, worker.said
    window = run.seen().of(Phase.MEASUREMENT)
    assert adds_up(window)
    assert (window.counts.cancelled, window.counts.failed) == (cancelled, 0)
    assert run.wait_status("COMPLETED").active_connections == 0
    assert any("cancelled" in line for line in run.logs("WARNING"))


def _executes(statements: int) -> Callable[[WorkerHeartbeat], bool]:
    return lambda beat: beat.active_connections == statements


@pytest.mark.slow
def test_how_much_of_the_query_log_is_kept(harness: WorkerHarness, server: EmbeddedServer) -> None:
    sample = harness.run(query_log={"mode": "sample", "sample_rate": 0.3})
    errors = harness.run(statements=[GET], query_log={"mode": "errors"})
    capped = harness.run(query_log={"mode": "all", "max_rows": 30})
    full = harness.run(query_log={"mode": "all"})
    workers = [sample.spawn(), errors.spawn(), capped.spawn(), full.spawn(preexec_fn=_small_disk)]
    runs = (sample, errors, capped, full)
    for run, worker in zip(runs, workers, strict=True):
        run.move(RunStatus.STARTING)
        run.wait_status("WAITING", worker)
        run.start()
    server.inject_fault(7, match="FROM KV WHERE", kind="error")
    for run, worker in zip(runs, workers, strict=True):
        run.wait_ended(120, worker)
        run.stopped(worker)

    totals = [run.seen().of(Phase.MEASUREMENT).counts for run in runs]
    assert all(adds_up(run.seen().of(Phase.MEASUREMENT)) for run in runs)
    assert 0 < sample.executions() < 0.6 * totals[0].succeeded
    assert errors.executions() == totals[1].failed == 7
    assert capped.executions() == 30
    # A disk that is full costs the query log, and nothing else.
    assert totals[3].succeeded == len(full.history(Phase.MEASUREMENT))
    assert 0 < full.executions() < totals[3].succeeded
    assert any("the query log ends here" in line for line in full.logs("WARNING"))


def _small_disk() -> None:
    """Every file of the process is limited to this size."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (6_000, 6_000))
