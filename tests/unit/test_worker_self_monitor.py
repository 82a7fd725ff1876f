"""How loaded a worker is: lateness of its wake-ups, and how it is split by window."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.metrics.recorder import WindowRegistry
from loadgen.model.run import Phase
from loadgen.rules.client_health import ClientHealth, ClientPart, judge_client
from loadgen.units import NS_PER_MS, NS_PER_S
from loadgen.worker.self_monitor import PROBE_S, ClientResourceMeter, ResourceReading, SelfMonitor, WakeupDelay
from tests.fake_clock import FakeClock


class LateClock(FakeClock):
    """Wakes up as late as scripted, and stops the probe at its end; `during` is called in each wait."""

    def __init__(self, *late_s: float) -> None:
        super().__init__()
        self._late_s = list(late_s)
        self.during = lambda: None

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        if not self._late_s:
            return True
        late_s = self._late_s.pop(0)
        self.advance(timeout_s + late_s / 2)
        self.during()
        self.advance(late_s / 2)
        return False


class PausedClock(FakeClock):
    """Pauses the whole process at scripted times, for scripted durations."""

    def __init__(self, pauses: list[tuple[int, int]]) -> None:
        super().__init__()
        self._pauses = pauses  # from, to; in order

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        self.now_ns += round(timeout_s * NS_PER_S)
        for start_ns, end_ns in self._pauses:
            if start_ns <= self.now_ns < end_ns:
                self.now_ns = end_ns
        return event.is_set()


def ms(*waits: WakeupDelay) -> list[tuple[int, int, int]]:
    return [(wait.from_ns // NS_PER_MS, wait.to_ns // NS_PER_MS, wait.late_ns // NS_PER_MS) for wait in waits]


# --- the probe -------------------------------------------------------------------------------------------------------


def test_the_probe_records_every_wait_and_its_lateness() -> None:
    clock = LateClock(0.0, 0.01, 2.0)
    monitor = SelfMonitor(clock)

    monitor.probe(threading.Event())
    reading = monitor.read()

    assert ms(*reading.waits) == [(0, 50, 0), (50, 110, 10), (110, 2160, 2000)]
    assert (reading.from_ns, reading.to_ns) == (0, clock.now_ns)
    assert reading.wakeup_p99_ms == pytest.approx(2000.0)
    assert reading.cores >= 1
    assert monitor.read().waits == ()


def test_an_overdue_wait_is_reported_before_it_ends() -> None:
    """All threads of a process are paused together; the one that hands on results may be the first to run again."""
    clock = LateClock(0.0, 10.0)
    monitor = SelfMonitor(clock)
    told: list[ResourceReading] = []
    clock.during = lambda: told.append(monitor.read())

    monitor.probe(threading.Event())
    told.append(monitor.read())

    assert [ms(*reading.waits) for reading in told] == [
        [],  # in the first wait, on time
        [(0, 50, 0), (50, 5100, 5000)],  # in the second, half of it so far
        [(5100, 10100, 10000)],  # the rest of it, as late as it was in the end
    ]


# --- windows ---------------------------------------------------------------------------------------------------------


def second(
    number: int, *, cpu_ms: int = 0, machine_ms: int = 0, stolen_ms: int = 0, late_ms: int = 0
) -> ResourceReading:
    """The second before `number` seconds, with four waits of 250 ms."""
    end_ns = number * NS_PER_S
    waits = tuple(
        WakeupDelay(end_ns - (part + 1) * 250 * NS_PER_MS, end_ns - part * 250 * NS_PER_MS, late_ms * NS_PER_MS)
        for part in reversed(range(4))
    )
    return ResourceReading(
        cpu_percent=0.0,
        memory_percent=0.0,
        wakeup_p99_ms=None,
        from_ns=end_ns - NS_PER_S,
        to_ns=end_ns,
        cpu_ns=cpu_ms * NS_PER_MS,
        machine_cpu_ns=machine_ms * NS_PER_MS,
        stolen_cpu_ns=stolen_ms * NS_PER_MS,
        cores=2,
        waits=waits,
    )


def test_only_what_lies_inside_a_window_counts() -> None:
    """Warm-up, what came between two windows, and the drain after the last are busy; the windows are not."""
    windows, meter = WindowRegistry(), ClientResourceMeter()
    windows.open(0, phase=Phase.WARMUP, at_ns=0)
    meter.add(second(1, cpu_ms=990, late_ms=90), windows.held())
    windows.open(1, phase=Phase.MEASUREMENT, at_ns=NS_PER_S)
    meter.add(second(2, cpu_ms=200, machine_ms=900, stolen_ms=400, late_ms=1), windows.held())
    windows.close(at_ns=2 * NS_PER_S)
    meter.add(second(3, cpu_ms=990, late_ms=90), windows.held())

    found = meter.effect(1)

    assert found is not None
    assert (found.elapsed_ms, found.cpu_ms, found.machine_cpu_ms, found.cores) == (1000, 200, 900, 2)
    assert found.cpu_percent_of_core == pytest.approx(20.0)
    assert found.others_cores == pytest.approx(0.3)
    assert found.stolen_cores == pytest.approx(0.4)
    assert found.late_mean_ms == pytest.approx(1.0)
    assert found.late.count == 1000
    warmup = meter.effect(0)
    assert warmup is not None
    assert (warmup.elapsed_ms, warmup.cpu_ms) == (1000, 990)


def test_a_pause_in_the_warmup_is_known() -> None:
    windows, meter = WindowRegistry(), ClientResourceMeter()
    windows.open(0, phase=Phase.WARMUP, at_ns=0)
    meter.add(second(1, late_ms=700), windows.held())
    meter.add(second(2), windows.held())

    assert meter.stopped_ms(0) == (1000, 2000)


def test_a_second_is_split_by_the_windows_it_overlaps() -> None:
    windows, meter = WindowRegistry(), ClientResourceMeter()
    windows.open(0, phase=Phase.MEASUREMENT, at_ns=0)
    windows.open(1, phase=Phase.MEASUREMENT, at_ns=NS_PER_S // 4)
    meter.add(second(1, cpu_ms=400, late_ms=8), windows.held())

    first, other = meter.effect(0), meter.effect(1)

    assert first is not None
    assert other is not None
    assert (first.elapsed_ms, first.cpu_ms, first.late.count) == (250, 100, 250)
    assert (other.elapsed_ms, other.cpu_ms, other.late.count) == (750, 300, 750)


def test_lateness_of_half_a_second_is_a_gap() -> None:
    windows, meter = WindowRegistry(), ClientResourceMeter()
    windows.open(0, phase=Phase.MEASUREMENT, at_ns=0)
    meter.add(second(1, late_ms=499), windows.held())
    meter.add(second(2, late_ms=500), windows.held())

    found = meter.effect(0)

    assert found is not None
    assert found.gap_ms == 1000
    assert found.gap_percent == pytest.approx(50.0)


WINDOW_S = 20


@given(
    st.lists(st.tuples(st.integers(120, 1_500), st.integers(151, 1_200)), max_size=40),
    st.lists(st.integers(1, 2_000), min_size=1, max_size=40),
)
def test_reported_pauses_are_those_of_the_stopped_clock(pattern: list[tuple[int, int]], looks: list[int]) -> None:
    """For any number and length of pauses and any times of reading: precise to one wait of the probe for each."""
    pauses, at_ms = [], 0
    for runs_ms, paused_ms in pattern:
        if at_ms + runs_ms + paused_ms <= 1_000 * WINDOW_S - 100:
            pauses.append(((at_ms + runs_ms) * NS_PER_MS, (at_ms + runs_ms + paused_ms) * NS_PER_MS))
            at_ms += runs_ms + paused_ms
    clock, windows, meter, stopping = PausedClock(pauses), WindowRegistry(), ClientResourceMeter(), threading.Event()
    windows.open(0, phase=Phase.MEASUREMENT, at_ns=0)
    monitor, due_ns, told = SelfMonitor(clock), 0, []
    while clock.now_ns < WINDOW_S * NS_PER_S:
        asked_ns = monitor.begin()
        clock.wait(stopping, PROBE_S)
        if clock.now_ns >= due_ns:  # the reader may wake up before the probe
            told.append(monitor.read())
            meter.add(told[-1], windows.held())
            due_ns = clock.now_ns + looks[len(told) % len(looks)] * NS_PER_MS
        monitor.end(asked_ns)
    meter.add(monitor.read(), windows.held())

    found = meter.effect(0)

    assert found is not None
    for percent, shortest_ms, least_ms in ((found.gap_percent, 550, 500), (found.paused_percent, 150, 98)):
        certain = [end - start for start, end in pauses if end - start >= shortest_ms * NS_PER_MS]
        possible = [end - start + 50 * NS_PER_MS for start, end in pauses if end - start >= least_ms * NS_PER_MS]
        assert percent is not None
        share_ns = percent / 100 * found.late.count * NS_PER_MS
        assert sum(certain) - len(told) * NS_PER_MS <= share_ns <= sum(possible) + len(told) * NS_PER_MS
    assert found.late.count == pytest.approx(clock.now_ns / NS_PER_MS, abs=50 + len(told))


@pytest.mark.parametrize("seen_before", [True, False], ids=["told before it opened", "told after it opened"])
def test_a_pause_that_delayed_the_opening_of_a_window_is_a_gap_of_it(seen_before: bool) -> None:
    windows, meter = WindowRegistry(), ClientResourceMeter()
    pause = second(2, late_ms=700)
    if seen_before:
        meter.add(pause, windows.held())
    windows.open(0, phase=Phase.MEASUREMENT, at_ns=2 * NS_PER_S, due_ns=3 * NS_PER_S // 2)
    if not seen_before:
        meter.add(pause, windows.held())
    meter.add(second(3), windows.held())

    found = meter.effect(0)

    assert found is not None
    assert (found.gap_ms, found.elapsed_ms) == (500, 1500)


def test_stored_readings_are_removed() -> None:
    windows, meter = WindowRegistry(), ClientResourceMeter()
    windows.open(0, phase=Phase.MEASUREMENT, at_ns=0)
    meter.add(second(1), windows.held())

    meter.forget(0)

    assert meter.effect(0) is None


def test_a_second_reading_at_once_is_equal():
    clock = FakeClock()
    monitor = SelfMonitor(clock)
    clock.advance(1.0)
    first = monitor.read()
    sum(range(2_000_000))  # CPU time that the next reading would divide by nothing
    clock.advance(0.001)
    second = monitor.read()

    assert (second.cpu_percent, second.is_short) == (first.cpu_percent, True)
    clock.advance(1.0)
    assert not monitor.read().is_short


def test_a_busy_minute_is_not_averaged_away() -> None:
    windows, meter = WindowRegistry(), ClientResourceMeter()
    windows.open(1, phase=Phase.MEASUREMENT, at_ns=0)
    for number in range(1, 601):
        meter.add(second(number, cpu_ms=950 if 120 < number <= 180 else 100), windows.held())

    effect = meter.effect(1)

    assert effect is not None
    assert effect.cpu_percent_of_core == pytest.approx(18.5)
    assert effect.worst_cpu_percent == pytest.approx(95.0)
    verdict = judge_client([ClientPart(where="worker-0", health=ClientHealth.of(effect), service_mean_ms=100.0)])
    assert verdict.health.saturated
    assert "worker-0 used 95 % of its core in its busiest minute (at most 85 %)" in verdict.invalid[0]


def test_a_busy_minute_counts_at_any_time_and_at_the_end_too() -> None:
    for first in (31, 91, 171):  # across a boundary, and up to the last second of the window
        windows, meter = WindowRegistry(), ClientResourceMeter()
        windows.open(1, phase=Phase.MEASUREMENT, at_ns=0)
        for number in range(1, 231):
            meter.add(second(number, cpu_ms=950 if first <= number < first + 60 else 100), windows.held())

        effect = meter.effect(1)

        assert effect is not None
        assert effect.worst_cpu_percent == pytest.approx(95.0), first


@given(st.lists(st.integers(5, 120), min_size=1, max_size=5), st.integers(0, 120), st.booleans())
def test_a_busy_minute_is_found_wherever_stages_begin(stages_s: list[int], busy_s: int, warms_up: bool) -> None:
    """The busiest minute of the run is the busiest minute of a stage; the warm-up is no part of it."""
    windows, meter, length_s = WindowRegistry(), ClientResourceMeter(), sum(stages_s) + 60
    begins_s = {sum(stages_s[:number]): number for number in range(len(stages_s) + 1)}
    for second_s in range(length_s + 60):
        if second_s == 0:
            windows.open(99, phase=Phase.WARMUP, at_ns=0)
        if (number := begins_s.get(second_s - 60)) is not None:
            windows.open(number, phase=Phase.MEASUREMENT, at_ns=second_s * NS_PER_S, step_id=number)
        is_busy = second_s < 60 if warms_up else busy_s <= second_s - 60 < busy_s + 60
        meter.add(second(second_s + 1, cpu_ms=900 if is_busy else 100), windows.held())

    effects = [effect for number in begins_s.values() if (effect := meter.effect(number)) is not None]
    worst_percent = max(effect.minute_cpu_ms for effect in effects) / 600
    within_s = 0 if warms_up else max(0, min(60, length_s - busy_s))

    assert len(effects) == len(stages_s) + 1
    assert worst_percent == pytest.approx(10.0 + 80.0 * within_s / 60)


def test_a_busy_minute_is_noted_in_every_stage_that_it_is_part_of() -> None:
    windows, meter = WindowRegistry(), ClientResourceMeter()
    for number in range(1, 201):
        if number in (1, 91, 181):
            windows.open(number, phase=Phase.MEASUREMENT, at_ns=(number - 1) * NS_PER_S, step_id=number)
        meter.add(second(number, cpu_ms=1_000 if 60 < number <= 120 else 400), windows.held())

    worst = {number: effect.worst_cpu_percent for number in (1, 91, 181) if (effect := meter.effect(number))}

    assert worst == {1: pytest.approx(100.0), 91: pytest.approx(100.0), 181: pytest.approx(40.0)}


def test_the_minutes_of_a_step_of_a_search_are_its_own() -> None:
    """A step that does not decide must not spoil the next one."""
    windows, meter = WindowRegistry(), ClientResourceMeter()
    windows.open(1, phase=Phase.MEASUREMENT, at_ns=0, step_id=1)
    for number in range(1, 91):
        meter.add(second(number, cpu_ms=1_000), windows.held())
    windows.open(2, phase=Phase.WARMUP, at_ns=90 * NS_PER_S)
    meter.add(second(91, cpu_ms=1_000), windows.held())
    windows.open(3, phase=Phase.MEASUREMENT, at_ns=91 * NS_PER_S, step_id=2)
    for number in range(92, 182):
        meter.add(second(number, cpu_ms=100), windows.held())

    effect = meter.effect(3)

    assert effect is not None
    assert effect.worst_cpu_percent == pytest.approx(10.0)
