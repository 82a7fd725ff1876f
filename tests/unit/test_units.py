"""What people write for durations, counts and rates, and what is written back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.units import (
    NS_PER_S,
    format_duration_ns,
    format_duration_s,
    format_rate_per_second,
    parse_count,
    parse_duration_ns,
    parse_duration_s,
    parse_rate_per_second,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("500ms", 0.5),
        ("30s", 30),
        ("1.5s", 1.5),
        ("5m", 300),
        ("1h", 3_600),
        ("2d", 172_800),
        ("250us", 250e-6),
        ("250µs", 250e-6),  # the micro sign
        ("250μs", 250e-6),  # the Greek letter
        ("10ns", 10e-9),
        ("0.1s", 0.1),
        (" 30 s ", 30),
        ("1_000ms", 1),
        ("0", 0),
        ("0s", 0),
    ],
)
def test_durations_are_read(text, seconds):
    assert parse_duration_s(text) == seconds


@pytest.mark.parametrize(
    ("duration_s", "text"),
    [
        (0, "0s"),
        (0.0415, "41.5ms"),
        (1.5, "1.5s"),
        (90, "90s"),
        (120, "2m"),
        (3_600, "1h"),
        (86_400, "1d"),
        (1e-9, "1ns"),
    ],
)
def test_durations_are_written_as_people_would(duration_s, text):
    assert format_duration_s(duration_s) == text


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("30", "the unit is missing"),
        ("30 sec", "'sec' is not a unit"),
        ("5M", "'M' is not a unit"),
        ("-5s", "one number and one unit"),
        ("1h30m", "one number and one unit"),
        ("", "one number and one unit"),
        ("s", "one number and one unit"),
        ("1e3s", "one number and one unit"),
        ("1.s", "one number and one unit"),
        ("٣s", "one number and one unit"),
        ("0.5ns", "finer than a nanosecond"),
        ("9" * 100_000 + "s", "one number and one unit"),
    ],
)
def test_a_bad_duration_is_refused_with_advice(text, advice):
    with pytest.raises(ValueError) as caught:
        parse_duration_ns(text)

    assert advice in str(caught.value)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0", 0),
        ("250", 250),
        ("10k", 10_000),
        ("10K", 10_000),
        ("1.5k", 1_500),
        ("1m", 1_000_000),
        ("1_000_000", 1_000_000),
        ("2b", 2_000_000_000),
    ],
)
def test_counts_are_read(text, count):
    assert parse_count(text) == count


@pytest.mark.parametrize(
    "text", ["", "k", "1.5", "0.0001k", "-1", "10kk", "1,000", "10 000", "1e3", "_1", "1__0", "1_"]
)
def test_a_bad_count_is_refused(text):
    with pytest.raises(ValueError, match="is not a count"):
        parse_count(text)


@pytest.mark.parametrize(
    ("text", "per_second"),
    [("500/s", 500), ("30/m", 0.5), ("1/m", 1 / 60), ("10k/h", 10_000 / 3_600), ("0.5/s", 0.5), ("20 / m", 1 / 3)],
)
def test_rates_are_read(text, per_second):
    assert parse_rate_per_second(text) == per_second


@pytest.mark.parametrize("text", ["", "500", "500/", "/s", "500/d", "500s", "-1/s", "1/1s"])
def test_a_bad_rate_is_refused(text):
    with pytest.raises(ValueError, match="is not a rate"):
        parse_rate_per_second(text)


@pytest.mark.parametrize(
    ("per_second", "text"), [(500, "500/s"), (0.5, "0.5/s"), (1 / 3, "20/m"), (1 / 3_600, "1/h"), (0, "0/s")]
)
def test_rates_are_written_as_people_would(per_second, text):
    assert format_rate_per_second(per_second) == text


@pytest.mark.parametrize("rate", [float("nan"), float("inf"), -1.0, 1e-300])
def test_a_rate_that_is_none_is_not_written(rate):
    with pytest.raises(ValueError):
        format_rate_per_second(rate)


@given(st.integers(min_value=0, max_value=10**28))
def test_a_written_duration_reads_back_the_same(duration_ns):
    assert parse_duration_ns(format_duration_ns(duration_ns)) == duration_ns


@given(st.integers(min_value=0, max_value=10**6), st.sampled_from([1, 10**3, 10**6, NS_PER_S, 60 * NS_PER_S]))
def test_a_written_round_duration_reads_back_the_same(number, unit_ns):
    assert parse_duration_ns(format_duration_ns(number * unit_ns)) == number * unit_ns


@given(st.integers(min_value=0, max_value=10**6), st.sampled_from([("", 1), ("k", 10**3), ("m", 10**6), ("b", 10**9)]))
def test_a_count_reads_as_it_is_written(number, suffix):
    assert parse_count(f"{number}{suffix[0]}") == number * suffix[1]


@given(st.just(0.0) | st.floats(min_value=1e-9, max_value=1e14))
def test_a_written_rate_reads_back_the_same(rate_per_second):
    assert parse_rate_per_second(format_rate_per_second(rate_per_second)) == rate_per_second


@given(st.text(max_size=50))
def test_every_text_gives_a_value_or_a_value_error(text):
    for parse in (parse_duration_ns, parse_count, parse_rate_per_second):
        try:
            assert parse(text) >= 0
        except ValueError as error:
            assert "is not a" in str(error)  # noqa: PT017 both outcomes are fine, and each has its rule
