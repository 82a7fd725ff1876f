"""How long a holder may trust its lease: never longer than it is valid, with every delay, loss and suspension."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from loadgen.control.lease import LeaseKeeper, LeaseTimes, LeaseTrust
from loadgen.control.session import ControlFailed, ControlSession, NamedQuery
from loadgen.control.tables.run_leases import Lease
from loadgen.errors import ConfigurationError, ConnectFailed
from loadgen.model.counts import ErrorCategory
from loadgen.snowflake.failure import Failure
from tests.fake_clock import FakeClock

TIMES = LeaseTimes()  # 30 s, renewed every 5 s, trusted 5 s less
TERM = Lease(key="run", epoch=3, owner="me")
S = 1_000_000_000
LOST = Failure(category=ErrorCategory.CONNECTION, retryable=True, unknown_outcome=True)

seconds = st.floats(0, 100)
lease_times = st.builds(
    lambda renew_s, margin_s, spare_s: LeaseTimes(
        ttl_s=1.2 * renew_s + margin_s + spare_s, renew_s=renew_s, margin_s=margin_s
    ),
    st.floats(0.1, 20),
    st.floats(0.1, 20),
    st.floats(0.1, 20),
)

# --- the settings ----------------------------------------------------------------------------------------------------


@given(seconds, seconds, seconds)
@example(30, 5, 5)
@example(12, 5, 6)  # exactly 1.2 × renewal: too tight
@example(float("nan"), 5, 5)
@example(30, float("nan"), 5)
@example(30, 5, float("nan"))
@example(30, 0, 5)
@example(30, 5, 0)
def test_times_that_cannot_work_are_refused_with_what_to_change(ttl_s, renew_s, margin_s):
    fits = renew_s > 0 and margin_s > 0 and renew_s * 1.2 < ttl_s - margin_s
    if fits:
        LeaseTimes(ttl_s=ttl_s, renew_s=renew_s, margin_s=margin_s)
    else:
        with pytest.raises(ConfigurationError) as raised:
            LeaseTimes(ttl_s=ttl_s, renew_s=renew_s, margin_s=margin_s)
        assert "lease_ttl" in raised.value.remedy


# --- trust -----------------------------------------------------------------------------------------------------------


@dataclass
class Renewal:
    """One renewal as it may go: pause before it, time to reach the server, time back, whether the answer arrives."""

    pause_s: float
    there_s: float
    back_s: float
    answered: bool


renewals = st.lists(
    st.builds(Renewal, pause_s=st.floats(0, 40), there_s=st.floats(0, 40), back_s=st.floats(0, 40), answered=...),
    max_size=12,
)


@given(lease_times, renewals, st.lists(st.floats(0, 60), min_size=1, max_size=4), st.booleans())
def test_trust_ends_before_the_lease_in_every_interleaving(times, plan, questions, asks_in_between):
    """The server is simulated: it extends a lease that has not expired, from the arrival of the statement."""
    now_s, expires_s = 0.0, times.ttl_s  # the claim was begun and executed at 0
    trust = LeaseTrust(times, 0)

    def check(at_s: float) -> None:
        if trust.holds(round(at_s * S)):
            assert at_s < expires_s - times.margin_s + 1e-6

    for renewal in plan:
        now_s += renewal.pause_s
        if asks_in_between:
            check(now_s)
        begun_s = now_s
        now_s += renewal.there_s
        extended = expires_s > now_s
        if extended:
            expires_s = now_s + times.ttl_s
        now_s += renewal.back_s
        if not renewal.answered:
            continue
        if extended:
            trust.renewed(round(begun_s * S))
        else:
            trust.lose()
        check(now_s)
    for later_s in questions:
        now_s += later_s
        check(now_s)


@given(lease_times, st.lists(st.tuples(st.sampled_from(["ask", "renewed", "lose"]), seconds), max_size=20))
def test_lost_trust_never_returns(times, steps):
    trust, now_ns, gone = LeaseTrust(times, 0), 0, False
    for what, passed_s in steps:
        now_ns += round(passed_s * S)
        if what == "renewed":
            trust.renewed(now_ns)
        elif what == "lose":
            trust.lose()
            gone = True
        else:
            held = trust.holds(now_ns)
            assert not (held and gone)
            gone = gone or not held


def test_trust_lasts_to_the_margin_and_not_a_nanosecond_longer():
    assert LeaseTrust(TIMES, 7).holds(25 * S + 6)
    assert not LeaseTrust(TIMES, 7).holds(25 * S + 7)


def test_an_answer_that_overtook_a_later_one_shortens_nothing():
    trust = LeaseTrust(TIMES, 0)

    trust.renewed(10 * S)
    trust.renewed(5 * S)

    assert trust.holds(34 * S)


# --- the keeper ------------------------------------------------------------------------------------------------------


class Script:
    """A session whose statements take scripted times and outcomes. Others are rejected."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.sent: list[str] = []
        self.answers: list[tuple[float, int | Exception]] = []

    def takes(self, seconds: float, answer: int | Exception) -> Script:
        self.answers.append((seconds, answer))
        return self

    def execute(self, query: NamedQuery, *binds: Any) -> int:
        self.sent.append(query.name)
        passed_s, answer = self.answers.pop(0)
        self.clock.advance(passed_s)
        if isinstance(answer, Exception):
            raise answer
        return answer


def keeper_of(script: Script) -> LeaseKeeper:
    session = cast(ControlSession, script)
    return LeaseKeeper(session, TERM, TIMES, claimed_ns=script.clock.monotonic_ns(), clock=script.clock)


def lost_answer() -> ControlFailed:
    return ControlFailed("no answer", LOST)


@pytest.fixture
def script(clock: FakeClock) -> Script:
    return Script(clock)


def test_a_slow_renewal_that_succeeds_is_counted_from_when_it_was_begun(clock, script):
    keeper = keeper_of(script.takes(5, 1))

    assert keeper.step()

    clock.advance(19.999)
    assert keeper.trusted
    clock.advance(0.002)  # 25 s after its begin; 20 s after its answer
    assert not keeper.trusted


def test_a_response_after_the_end_of_trust_has_no_effect(clock, script):
    keeper = keeper_of(script.takes(40, 1))

    assert keeper.step()

    assert not keeper.trusted


@pytest.mark.parametrize(
    "error", [lost_answer(), ConnectFailed("login refused"), ConfigurationError("no such connection")], ids=type
)
def test_a_renewal_error_and_then_a_success_keeps_the_lease(clock, script, error):
    keeper = keeper_of(script.takes(10, error).takes(0, 1))

    assert keeper.step()
    assert keeper.trusted
    assert keeper.step()

    clock.advance(24)  # 34 s after the claim: only the second renewal can be why
    assert keeper.trusted


def test_errors_that_outlast_trust_lose_the_lease_and_nothing_is_sent_after_that(script):
    keeper = keeper_of(script.takes(9, lost_answer()).takes(9, lost_answer()).takes(9, lost_answer()))

    assert [keeper.step(), keeper.step(), keeper.step()] == [True, True, True]
    assert not keeper.step()

    assert not keeper.trusted
    assert len(script.sent) == 3


def test_a_refusal_ends_trust_at_once(script):
    keeper = keeper_of(script.takes(0, 0))

    assert not keeper.step()
    assert not keeper.trusted


def test_a_holder_that_resumes_after_its_trust_sends_nothing(clock, script):
    keeper = keeper_of(script.takes(0, 1))
    keeper.step()

    clock.advance(25.0)

    assert not keeper.trusted
    assert not keeper.step()
    assert script.sent == ["run_leases.renew"]


def test_a_renewal_of_an_untrusted_lease_does_not_restore_trust(clock, script):
    keeper = keeper_of(script)
    clock.advance(26)
    assert not keeper.trusted  # trust was checked while the renewal was in flight
    keeper._trust.renewed(clock.monotonic_ns())

    assert not keeper.trusted
