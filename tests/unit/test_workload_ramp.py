"""A ramp: a staircase that never runs ahead of its line, and knows when it takes the next step."""

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from loadgen.units import NS_PER_S
from loadgen.workload.ramp import Ramp

counts = st.integers(0, 2_000)
ramps = st.builds(
    lambda origin, target, began_ns, seconds: Ramp.toward(target, origin=origin, began_ns=began_ns, seconds=seconds),
    counts,
    counts,
    st.integers(0, 10**18),
    st.one_of(st.just(0.0), st.floats(0, 1e-6), st.floats(0, 1e5), st.integers(0, 3_600).map(float)),
)
fractions = st.fractions(0, 1)


def line(ramp: Ramp, now_ns: int) -> Fraction:
    elapsed_ns = min(max(0, now_ns - ramp.began_ns), ramp.duration_ns)
    if elapsed_ns == ramp.duration_ns:
        return Fraction(ramp.target)
    return ramp.origin + Fraction((ramp.target - ramp.origin) * elapsed_ns, ramp.duration_ns)


@given(ramps, fractions)
def test_a_ramp_is_never_ahead_of_its_line_and_less_than_one_behind_it(ramp, part):
    now_ns = ramp.began_ns + int(part * ramp.duration_ns)

    behind = line(ramp, now_ns) - ramp.at(now_ns)

    assert 0 <= (behind if ramp.target >= ramp.origin else -behind) < 1


@given(ramps, st.lists(fractions, min_size=2, max_size=20))
def test_a_ramp_only_goes_toward_its_target(ramp, parts):
    moments_ns = [ramp.began_ns + int(part * ramp.duration_ns) for part in sorted(parts)]

    levels = [ramp.at(moment_ns) for moment_ns in moments_ns]

    assert levels == sorted(levels, reverse=ramp.target < ramp.origin)


@given(ramps, st.integers(0, 10**15))
def test_a_ramp_ends_exactly_at_its_target_and_stays_there(ramp, later_ns):
    end_ns = ramp.began_ns + ramp.duration_ns

    assert ramp.at(end_ns) == ramp.at(end_ns + later_ns) == ramp.target
    assert ramp.next_change_ns(end_ns + later_ns) is None


@given(ramps, fractions)
def test_the_next_change_is_exact_to_the_nanosecond(ramp, part):
    now_ns = ramp.began_ns + int(part * ramp.duration_ns)

    change_ns = ramp.next_change_ns(now_ns)

    if change_ns is None:
        assert ramp.at(now_ns) == ramp.target
        return
    assert change_ns > now_ns
    assert ramp.at(change_ns - 1) == ramp.at(now_ns)
    assert ramp.at(change_ns) != ramp.at(now_ns)


@given(st.integers(1, 200), st.integers(1, 200), st.floats(1e-3, 1e3))
def test_following_the_changes_visits_every_level_once(origin, target, seconds):
    ramp = Ramp.toward(target, origin=origin, began_ns=5, seconds=seconds)
    moment_ns, levels = 5, [ramp.at(5)]
    while (change_ns := ramp.next_change_ns(moment_ns)) is not None:
        moment_ns = change_ns
        levels.append(ramp.at(moment_ns))

    step = 1 if target >= origin else -1
    assert levels == list(range(origin, target + step, step))
    assert moment_ns <= 5 + ramp.duration_ns


@given(counts, counts, st.integers(1, 10**12))
def test_before_its_beginning_a_ramp_is_at_its_origin(origin, target, early_ns):
    ramp = Ramp.toward(target, origin=origin, began_ns=10**12, seconds=1.0)

    assert ramp.at(10**12 - early_ns) == origin


@given(counts, st.floats(0, 100), st.integers(0, 10**12))
def test_a_ramp_to_where_one_is_changes_nothing(level, seconds, now_ns):
    ramp = Ramp.toward(level, origin=level, began_ns=0, seconds=seconds)

    assert ramp.at(now_ns) == level
    assert ramp.next_change_ns(now_ns) is None


def test_a_ramp_without_time_or_with_a_negative_one_is_a_jump():
    for seconds in (0.0, -3.0):
        ramp = Ramp.toward(7, origin=2, began_ns=NS_PER_S, seconds=seconds)

        assert ramp.at(NS_PER_S) == 7
        assert ramp.next_change_ns(NS_PER_S) is None


def test_a_ramp_down_to_zero_lets_the_last_one_go_at_its_end():
    ramp = Ramp.toward(0, origin=4, began_ns=0, seconds=4.0)

    assert [ramp.at(second * NS_PER_S) for second in range(6)] == [4, 3, 2, 1, 0, 0]
    assert ramp.at(4 * NS_PER_S - 1) == 1
