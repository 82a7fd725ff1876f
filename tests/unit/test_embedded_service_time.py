"""Service times: what a SPEC means, that samples follow it, and that sleepers wake in time."""

import asyncio
import math
import time

import numpy as np
import pytest

from loadgen.embedded import event_loop
from loadgen.embedded.event_loop import WakeupTimer
from loadgen.embedded.performance_model import ServiceTimeSampler
from loadgen.service_time import ServiceTimeSpec, parse_service_time
from tests.processes import PATIENCE_S

SAMPLES = 20_000


@pytest.mark.parametrize("nothing", [None, "", "  ", "0ms", "0s"])
def test_no_service_time_is_none(nothing):
    assert parse_service_time(nothing) is None


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("20ms", ServiceTimeSpec("constant", 0.020)),
        (" 1.5s ", ServiceTimeSpec("constant", 1.5)),
        ("lognormal(20ms,0.3)", ServiceTimeSpec("lognormal", 0.020, sigma=0.3)),
        ("LogNormal( 20ms , .3 )", ServiceTimeSpec("lognormal", 0.020, sigma=0.3)),
        ("exponential(5ms)", ServiceTimeSpec("exponential", 0.005)),
        ("uniform(10ms,30ms)", ServiceTimeSpec("uniform", 0.010, high_s=0.030)),
        ("uniform(0ms, 30ms)", ServiceTimeSpec("uniform", 0.0, high_s=0.030)),
    ],
)
def test_a_spec_is_read(text, spec):
    assert parse_service_time(text) == spec


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("20", "'20' is not a duration"),
        ("fast", "'fast' is not a duration"),
        ("-5ms", "is not a duration"),
        ("2h", "not between 0 and 3600 s"),
        ("gamma(20ms,2)", "no distribution 'gamma'"),
        ("lognormal(20ms)", "lognormal takes (median, sigma)"),
        ("lognormal(20ms,)", "lognormal takes (median, sigma)"),
        ("lognormal(20ms,0.3,1)", "lognormal takes (median, sigma)"),
        ("lognormal(20ms,wide)", "sigma must be a number from 0 to 3, got 'wide'"),
        ("lognormal(20ms,9)", "sigma must be a number from 0 to 3"),
        ("lognormal(20ms,nan)", "sigma must be a number from 0 to 3"),
        ("lognormal(0ms,0.3)", "the median must be above 0"),
        ("exponential(0ms)", "the mean must be above 0"),
        ("exponential()", "exponential takes (mean)"),
        ("uniform(30ms,10ms)", "the shortest time comes first"),
        ("lognormal(20ms,0.3", "is not a duration"),
    ],
)
def test_an_invalid_spec_is_an_error_with_the_reason(text, says):
    with pytest.raises(ValueError) as caught:
        parse_service_time(text)

    assert says in str(caught.value)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "cumulative"),
    [
        ("lognormal(20ms,0.3)", lambda x: 0.5 * (1 + math.erf(math.log(x / 0.020) / (0.3 * math.sqrt(2))))),
        ("exponential(20ms)", lambda x: 1 - math.exp(-x / 0.020)),
        ("uniform(10ms,30ms)", lambda x: min(1.0, max(0.0, (x - 0.010) / 0.020))),
    ],
)
def test_samples_follow_their_distribution(text, cumulative):
    samples = np.sort(draw(text, seed=1, count=SAMPLES))

    expected = np.array([cumulative(float(sample)) for sample in samples])
    above = np.arange(1, SAMPLES + 1) / SAMPLES - expected
    distance = max(float(above.max()), float((expected - np.arange(SAMPLES) / SAMPLES).max()))
    assert distance < 1.63 / math.sqrt(SAMPLES)  # Kolmogorov-Smirnov at 1 %


def test_a_constant_is_constant():
    assert set(draw("20ms", seed=1, count=5)) == {0.020}


def test_a_seed_gives_the_same_times_again_and_another_seed_others():
    assert draw("lognormal(20ms,0.3)", seed=7) == draw("lognormal(20ms,0.3)", seed=7)
    assert draw("lognormal(20ms,0.3)", seed=7) != draw("lognormal(20ms,0.3)", seed=8)


@pytest.fixture(params=["kernel timer", "loop timers"])
def any_timer(request, monkeypatch):
    if request.param == "loop timers":
        monkeypatch.setattr(event_loop._KernelTimer, "open", classmethod(lambda _: None))


@pytest.mark.usefixtures("any_timer")
def test_sleepers_wake_in_the_order_of_their_deadlines_and_never_early():
    delays_ms = [7.0, 2.5, 4.1, 0.3, 4.1, -5.0, 1.2]

    async def scenario():
        alarm, woken, early = WakeupTimer(time.monotonic), [], []
        base_s = time.monotonic()

        async def sleep(index, delay_ms):
            await alarm.sleep_until(base_s + delay_ms / 1000)
            early.append(time.monotonic() < base_s + delay_ms / 1000)
            woken.append(index)

        await asyncio.gather(*(sleep(index, delay_ms) for index, delay_ms in enumerate(delays_ms)))
        alarm.close()
        return woken, early

    woken, early = asyncio.run(scenario())
    assert woken == [5, 3, 6, 1, 2, 4, 0]
    assert not any(early)


@pytest.mark.usefixtures("any_timer")
def test_an_earlier_sleeper_does_not_wait_for_one_that_came_before_it():
    async def scenario():
        alarm = WakeupTimer(time.monotonic)
        late = alarm.sleep_until(time.monotonic() + 3600)
        await asyncio.wait_for(alarm.sleep_until(time.monotonic() + 0.001), PATIENCE_S)
        assert not late.done()
        alarm.close()

    asyncio.run(scenario())


@pytest.mark.usefixtures("any_timer")
def test_a_cancelled_sleeper_does_not_hold_up_the_others():
    async def scenario():
        alarm = WakeupTimer(time.monotonic)
        cancelled = alarm.sleep_until(time.monotonic() + 0.001)
        other = alarm.sleep_until(time.monotonic() + 0.002)
        cancelled.cancel()
        await other
        alarm.close()
        alarm.close()

    asyncio.run(scenario())


def test_cancelled_sleepers_with_far_deadlines_do_not_pile_up():
    async def scenario():
        alarm = WakeupTimer(time.monotonic)
        for _ in range(20_000):
            alarm.sleep_until(time.monotonic() + 3600).cancel()
        left = len(alarm._sleepers)
        alarm.close()
        return left

    assert asyncio.run(scenario()) <= 1024


def test_closing_ends_every_sleep():
    async def scenario():
        alarm = WakeupTimer(time.monotonic)
        sleeper = alarm.sleep_until(time.monotonic() + 3600)
        alarm.close()
        with pytest.raises(asyncio.CancelledError):
            await sleeper

    asyncio.run(scenario())


def draw(text: str, *, seed: int, count: int = 100) -> list[float]:
    spec = parse_service_time(text)
    assert spec is not None
    service = ServiceTimeSampler(spec, seed)
    return [service.sample_s() for _ in range(count)]
