"""A worker's numbers against those of the server it measured: the server knows how long every statement really took."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest

from loadgen.metrics.histogram import LOWEST_NS, Histogram, IntArray
from loadgen.metrics.percentile import PERCENTILES, exact_quantile_ns, quantile
from loadgen.metrics.tally import StatementTally
from loadgen.metrics.window import WindowResult, merge
from loadgen.model.event import SetPhase
from loadgen.model.run import Phase, RunStatus
from loadgen.units import NS_PER_MS, NS_PER_S
from tests.control_plane import stored_executions
from tests.embedded_server import EmbeddedServer
from tests.process.worker_driver import GET, Led, Worker, WorkerHarness, adds_up, worker_harness

CLIENTS = 8
STATEMENTS = 1_000  # p99 has ten above it
RATE = 60  # arrivals a second: a sixth of what the clients can do
WINDOW_S = 8
STALL_S = 2.0
SHOWN = {name: PERCENTILES[name] for name in ("p50", "p90", "p95", "p99")}


@pytest.fixture(scope="module")
def harness(server: EmbeddedServer) -> Iterator[WorkerHarness]:
    """The target has a separate server, because it is paused and slow."""
    with EmbeddedServer("--service-time", "lognormal(20ms,0.5)") as target:
        yield from worker_harness(target, control_server=server)


@dataclass(frozen=True, slots=True)
class Truth:
    """One closed-loop measurement, as three see it. Times in nanoseconds, by query id."""

    window: WindowResult
    tally: StatementTally
    logged: dict[str, int]  # the query log, every statement
    served: dict[str, int]  # the server's own history
    sent: tuple[str, ...]  # every text of the run


@pytest.fixture(scope="module")
def truth(harness: WorkerHarness) -> Truth:
    load = {"connections": CLIENTS, "warmup": "30s", "duration": "60s"}
    led = harness.run(load, statements=[GET], query_log={"mode": "all"})
    worker = led.started()
    led.wait_ended(CLIENTS, worker)
    begin_measurement(led, worker, duration_s=60)
    led.wait_ended(STATEMENTS + CLIENTS, worker)  # of the warm-up some end in it
    led.stop()
    assert worker.exit_code() == 0, worker.said
    kept = stored_executions(led.plane.session, led.run_id)
    measured = [one for one, _ in kept if one.phase == Phase.MEASUREMENT.value]
    window = led.seen().of(Phase.MEASUREMENT)
    return Truth(
        window=window,
        tally=merge([[window]]).tally.whole,
        logged={str(one.query_id): round(float(one.duration_ms) * NS_PER_MS) for one in measured},
        served={line["query_id"]: round(line["total_ms"] * NS_PER_MS) for line in led.history(Phase.MEASUREMENT)},
        sent=texts_of(led),
    )


def begin_measurement(led: Led, worker: Worker, *, duration_s: int) -> None:
    """The worker warms up, and closes its window by itself."""
    led.emit(SetPhase(phase=Phase.MEASUREMENT, duration_ms=1_000 * duration_s, effective_at=led.soon(1.0)))
    led.move(RunStatus.RUNNING, Phase.MEASUREMENT)
    led.wait_beat(lambda beat: beat.phase is Phase.MEASUREMENT, "the measurement has begun", worker)


def texts_of(led: Led) -> tuple[str, ...]:
    return tuple(line["sql_text"] for line in led.harness.server.ask(f"/__loadgen/history?tag={led.run_id}"))


def test_worker_log_and_server_speak_of_the_same_statements(truth: Truth) -> None:
    assert adds_up(truth.window)
    assert truth.window.counts.succeeded == truth.window.counts.scheduled >= STATEMENTS
    assert len(truth.logged) == truth.window.counts.succeeded
    assert truth.logged.keys() == truth.served.keys()


def test_no_statement_is_measured_shorter_than_the_server_took_for_it(truth: Truth) -> None:
    too_short = {key: (truth.logged[key], took) for key, took in truth.served.items() if truth.logged[key] < took}

    assert not too_short


@pytest.mark.parametrize("name", SHOWN)
def test_no_percentile_is_below_the_one_of_the_server(truth: Truth, name: str) -> None:
    """Both in buckets, where order is kept: a longer time is never in a lower bucket, so no tolerance is needed."""
    served = Histogram.of(in_order(truth.served))
    measured_at = truth.tally.response_at(SHOWN[name])
    served_at = quantile(SHOWN[name], served)

    assert measured_at is not None
    assert served_at is not None
    assert not measured_at.at_least
    assert measured_at.value_ns >= served_at.value_ns


@pytest.mark.parametrize("name", SHOWN)
def test_percentiles_of_buckets_are_those_of_all_times_within_one_percent(truth: Truth, name: str) -> None:
    measured_at = truth.tally.response_at(SHOWN[name])
    exact_ns = exact_quantile_ns(SHOWN[name], in_order(truth.logged))

    assert measured_at is not None
    assert exact_ns is not None
    assert measured_at.value_ns == pytest.approx(exact_ns, rel=0.01)


def test_the_sum_of_all_times_is_exact(truth: Truth) -> None:
    service = truth.tally.succeeded.service

    assert service.count == len(truth.logged)
    assert service.max_ns == pytest.approx(max(truth.logged.values()), abs=1_000)
    assert service.sum_ns == pytest.approx(sum(truth.logged.values()), abs=1_000 * len(truth.logged))


@pytest.fixture(scope="module")
def stalled(harness: WorkerHarness) -> tuple[WindowResult, int, tuple[str, ...]]:
    """An open loop that meets two seconds in which the server stands still: its window, how many statements the server
    has executed for it, and every text of the run."""
    load = {"mode": "rate", "rate": f"{RATE}/s", "arrival": "uniform", "max_connections": CLIENTS}
    led = Led(harness, {**load, "warmup": "30s", "duration": f"{WINDOW_S}s"}, 1, {"statements": [GET]})
    worker = led.started()
    begin_measurement(led, worker, duration_s=WINDOW_S)
    led.wait_ended(RATE // 2, worker)
    stall(harness.server)
    led.wait_beat(lambda beat: beat.phase is Phase.COOLDOWN, "the window has closed", worker)
    led.stop()
    assert worker.exit_code() == 0, worker.said
    return led.seen().of(Phase.MEASUREMENT), len(led.history(Phase.MEASUREMENT)), texts_of(led)


def test_a_stall_of_the_server_is_charged_to_everyone_who_was_due_in_it(stalled) -> None:
    """The clients see few slow statements, the schedule sees a hundred."""
    window, _, _ = stalled
    times = window.tally.whole.succeeded

    assert adds_up(window)
    assert window.counts.scheduled == pytest.approx(RATE * WINDOW_S, rel=0.02)
    # Statements due in the first second of the stall waited for more than a second: an eighth of all.
    slow = longer_than(times.response, NS_PER_S)
    assert slow >= 0.9 * RATE * (STALL_S - 1.0)
    p95 = quantile(PERCENTILES["p95"], times.response)
    assert p95 is not None
    assert p95.value_ns > NS_PER_S
    # Hardly any of them had been sent: one per client. Counted from the sending, the others look quick; those do not.
    assert 1 <= longer_than(times.service, NS_PER_S) < slow / 4
    assert times.service.max_ns >= 0.9 * STALL_S * NS_PER_S
    assert times.response.max_ns >= times.service.max_ns


def test_the_tag_of_a_window_costs_no_round_trip(truth: Truth, stalled) -> None:
    """Statements bring the tag of their window. An ALTER SESSION would keep the first of them back, unseen."""
    window, executed, sent = stalled

    assert executed == window.counts.succeeded > 0
    for texts in (truth.sent, sent):
        assert not [text for text in texts if text.startswith("ALTER SESSION")]


def stall(server: EmbeddedServer) -> None:
    server.process.send_signal(signal.SIGSTOP)
    try:
        threading.Event().wait(STALL_S)
    finally:
        server.process.send_signal(signal.SIGCONT)


def in_order(times_ns: dict[str, int]) -> IntArray:
    return np.array(sorted(times_ns.values()), np.int64)


def longer_than(histogram: Histogram, limit_ns: int) -> int:
    """How many are in buckets that lie above the limit."""
    return int(histogram.counts[limit_ns <= LOWEST_NS].sum())
