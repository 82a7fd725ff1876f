"""Charts: well-formed, described, true to scale, and small."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.report.svg import (
    Axis,
    Chart,
    ChartBand,
    ChartDot,
    ChartLimit,
    ChartLine,
    ChartMarker,
    _covers_data,
    clock,
    linear_axis,
    log_axis,
    short,
    svg,
    time_axis,
    with_lanes,
)

positive = st.floats(1e-5, 1e9)


def chart(**more: object) -> Chart:
    known = {
        "chart_id": "c",
        "title": "Rate",
        "description": "it rose",
        "x": time_axis(10.0),
        "y": linear_axis(100.0),
        "lines": (ChartLine(name="done", css="s1", points=((0.0, 0.0), (5.0, 50.0), (10.0, 100.0))),),
    }
    return Chart(**(known | more))  # type: ignore[arg-type]


def drawn(**more: object) -> ElementTree.Element:
    return ElementTree.fromstring(svg(chart(**more)))


def test_it_has_a_description_for_readers_who_cannot_see_it() -> None:
    picture = drawn()
    assert picture.get("role") == "img"
    labels = (picture.get("aria-labelledby") or "").split()
    texts = {element.get("id"): element.text for element in picture.iter() if element.get("id")}
    assert [texts[label] for label in labels] == ["Rate", "it rose"]


def test_a_line_is_where_its_values_are() -> None:
    picture = chart()
    (path,) = [element for element in drawn().iter("path") if element.get("class") == "line s1"]
    places = [tuple(map(float, place.split())) for place in re.split("[ML]", path.get("d") or "")[1:]]
    assert places == [(picture.px(x), picture.py(y or 0)) for x, y in picture.lines[0].points]
    assert places[1][0] == (places[0][0] + places[2][0]) / 2
    assert places[1][1] == (places[0][1] + places[2][1]) / 2


def test_unknown_values_are_gaps_and_not_zeros() -> None:
    points = ((0.0, 1.0), (1.0, 2.0), (2.0, None), (3.0, 4.0), (4.0, 5.0), (5.0, None), (6.0, 7.0))
    picture = drawn(lines=(ChartLine(name="a", css="s1", points=points),))
    assert len([path for path in picture.iter("path") if path.get("class") == "line s1"]) == 2
    assert len(list(picture.iter("circle"))) == 1  # a single value between two gaps still shows


def test_names_of_lines_do_not_lie_on_each_other() -> None:
    lines = tuple(ChartLine(name=name, css="s1", points=((0.0, 50.0), (10.0, 50.0))) for name in ("a", "b", "c", "d"))
    names = [text for text in drawn(lines=lines).iter("text") if "name" in (text.get("class") or "")]
    heights = sorted(float(name.get("y") or 0) for name in names)
    assert all(below - above >= 13 for above, below in pairwise(heights))


def test_labels_of_both_sides_and_names_lie_beside_each_other_and_inside() -> None:
    picture = drawn(both_sides=True, y=linear_axis(1_200.0, unit=" ms"))
    ticks = [text for text in picture.iter("text") if (text.text or "").endswith("k ms")]
    (name,) = [text for text in picture.iter("text") if "name" in (text.get("class") or "")]
    right = [float(text.get("x") or 0) for text in ticks if text.get("text-anchor") is None]

    assert 2 * len(right) == len(ticks) > 0
    assert max(right) + 7.4 * len("1.2k ms") <= float(name.get("x") or 0) < 960


def test_a_limit_is_a_line_at_its_value_with_its_words() -> None:
    picture = drawn(limits=(ChartLimit(value=50.0, label="p95 &lt; 50ms", css="missed"),))
    (line,) = [line for line in picture.iter("line") if line.get("class") == "limit missed"]
    assert float(line.get("y1") or 0) == float(line.get("y2") or 0) == chart().py(50.0)
    (label,) = [text for text in picture.iter("text") if text.text == "p95 < 50ms"]
    assert float(label.get("y") or 0) < chart().py(50.0)


def test_a_limit_beyond_the_axis_is_named_and_not_drawn() -> None:
    picture = drawn(limits=(ChartLimit(value=5_000.0, label="far"), ChartLimit(value=6_000.0, label="further")))
    assert not [line for line in picture.iter("line") if "limit" in (line.get("class") or "")]
    labels = [text for text in picture.iter("text") if (text.text or "").startswith("↑ above the chart: ")]
    assert [label.text for label in labels] == ["↑ above the chart: far", "↑ above the chart: further"]
    assert all(float(label.get("y") or 0) < chart().top for label in labels)  # above the plot, beside each other
    assert float(labels[0].get("x") or 0) - float(labels[1].get("x") or 0) > 40


def flat(y: float) -> ChartLine:
    return ChartLine(name="", css="s1", points=tuple((float(x), y) for x in range(11)))


@pytest.mark.parametrize("value", [10.0, 50.0, 97.0])
def test_the_label_of_a_limit_covers_no_line(value: float) -> None:
    """It is below its line or further to the left, or else above the plot."""
    rising = ChartLine(name="", css="s2", points=((0.0, 0.0), (10.0, 100.0)))
    near = (flat(value + 3.0), flat(value - 3.0))
    for lines in ((flat(value + 5.0),), (flat(value - 5.0),), (rising,), near):
        picture = drawn(lines=lines, limits=(ChartLimit(value=value, label="p95 &lt; 50ms"),))
        (label,) = [text for text in picture.iter("text") if text.text == "p95 < 50ms"]
        right, bottom = float(label.get("x") or 0), float(label.get("y") or 0)
        frame = chart(lines=lines)
        assert not _covers_data(frame, (right - 80.0, bottom - 9.0, right, bottom + 2.0))
        assert lines is not near or bottom < frame.top


def test_labels_of_limits_do_not_lie_on_each_other() -> None:
    limits = tuple(ChartLimit(value=value, label="a label of a limit") for value in (50.0, 51.0, 52.0, 900.0, 901.0))
    labels = [
        text for text in drawn(lines=(), limits=limits).iter("text") if (text.get("class") or "").startswith("limit ")
    ]
    places = [(float(label.get("x") or 0), float(label.get("y") or 0)) for label in labels]
    assert len(places) == 5
    assert all(abs(one[0] - other[0]) > 100 or abs(one[1] - other[1]) >= 11 for one, other in combinations(places, 2))


LABELLED = (ChartLimit(value=50.0, label="p95 &lt; 50ms"), ChartLimit(value=58.0, label="p99 &lt; 58ms"))


@pytest.mark.parametrize("at", [[9.95], [9.6, 9.95], [9.0], [number / 4 for number in range(40)]])
def test_neither_a_mark_nor_the_line_of_a_limit_crosses_the_label_of_a_limit(at: list[float]) -> None:
    """The words of one are 80 wide, 11 high, and end at its x."""
    marks = tuple(ChartMarker(at=one, title="STOP") for one in at)
    frame = chart(lines=(), marks=marks, limits=LABELLED, height=120)
    picture = ElementTree.fromstring(svg(frame))
    for label in (one for one in picture.iter("text") if (one.get("class") or "").startswith("limit ")):
        right, y = float(label.get("x") or 0), float(label.get("y") or 0)
        is_inside = y > frame.top
        assert not [x for x in map(frame.px, at) if is_inside and right - 80 < x < right]
        assert not [one.value for one in LABELLED if y - 9 < frame.py(one.value) < y + 2]


def test_a_limit_of_a_stage_is_drawn_over_its_time() -> None:
    picture = drawn(limits=(ChartLimit(value=50.0, label="peak.p95", span=(2.0, 6.0)),))
    (line,) = [line for line in picture.iter("line") if "limit" in (line.get("class") or "")]
    assert (float(line.get("x1") or 0), float(line.get("x2") or 0)) == (chart().px(2.0), chart().px(6.0))


def labels_of(marks: tuple[ChartMarker, ...], lanes: int) -> list[tuple[str | None, float, float]]:
    picture = drawn(marks=marks, lanes=lanes)
    return [
        (text.text, float(text.get("x") or 0), float(text.get("y") or 0))
        for text in picture.iter("text")
        if "note" in (text.get("class") or "")
    ]


def test_labels_of_marks_do_not_overlap_and_every_mark_has_a_title() -> None:
    marks = tuple(ChartMarker(at=at, label=f"event {at}", title=f"told {at}") for at in (1.0, 1.1, 1.2, 1.3, 6.0))
    assert with_lanes(chart(marks=marks), most=3).lanes == 3
    assert with_lanes(chart(marks=marks[-1:]), most=3).lanes == 1
    labels = labels_of(marks, lanes=3)
    assert [label for label, _, _ in labels] == ["event 1.0", "event 1.1", "event 1.2", "event 6.0"]  # no room for one
    assert len({(y, x // 100) for _, x, y in labels}) == 4
    titles = [group.findtext("title") for group in drawn(marks=marks).iter("g")]
    assert titles == [f"told {mark.at}" for mark in marks]


def test_the_label_of_the_last_mark_is_left_of_it_where_the_axis_has_labels_on_the_right() -> None:
    marks = (ChartMarker(at=5.0, label="stage 1"), ChartMarker(at=9.9, label="STOP"))
    frame = chart(marks=marks, both_sides=True)
    (label,) = [text for text in ElementTree.fromstring(svg(frame)).iter("text") if text.text == "STOP"]

    assert label.get("text-anchor") == "end"
    assert float(label.get("x") or 0) < frame.px(9.9)


def test_colour_is_not_the_only_difference_between_held_and_not() -> None:
    dots = (ChartDot(x=1.0, y=1.0, css="s3", label="held"), ChartDot(x=2.0, y=2.0, css="s2", label="not", cross=True))
    picture = drawn(lines=(), dots=dots, bands=(ChartBand(start=0.0, end=2.0, label="warm-up", css="warmup"),))
    assert [dot.get("class") for dot in picture.iter("circle")] == ["dot s3"]
    assert [cross.get("class") for cross in picture.iter("path")] == ["cross s2"]


@given(positive, st.integers(2, 10))
def test_a_linear_axis_reaches_its_highest_value_in_few_round_steps(high: float, ticks: int) -> None:
    axis = linear_axis(high, ticks=ticks)
    assert axis.low == 0.0
    assert high * 0.999999 <= axis.high <= high * 2.6
    assert 2 <= len(axis.ticks) <= ticks + 2


@given(positive, positive)
def test_a_logarithmic_axis_holds_both_ends(one: float, other: float) -> None:
    low, high = sorted((one, other))
    axis = log_axis(low, high)
    assert axis.low <= low * 1.000001
    assert axis.high >= high * 0.999999
    assert 2 <= len(axis.ticks) <= 24
    assert axis.part(axis.low) == 0.0
    assert axis.part(axis.high) == pytest.approx(1.0)


@given(st.floats(0.5, 3e6))
def test_an_axis_of_time_has_few_labels(end_s: float) -> None:
    assert 1 <= len(time_axis(end_s).ticks) <= 12


def test_an_axis_of_nothing_does_not_divide_by_zero() -> None:
    assert Axis(low=1.0, high=1.0, ticks=()).part(1.0) == 0.0
    assert linear_axis(0.0).high > 0.0


def test_times_and_large_numbers_are_written_shortly() -> None:
    assert [clock(at_s) for at_s in (0, 59, 60, 185, 3_723)] == ["0 s", "59 s", "1:00", "3:05", "1:02:03"]
    assert [short(value) for value in (0.25, 20.0, 1_500.0, 2e6, 3e9)] == ["0.25", "20", "1.5k", "2M", "3G"]


@given(st.integers(0, 10_000), st.integers(2, 8))
def test_an_axis_of_counts_has_whole_ticks(high: int, ticks: int) -> None:
    axis = linear_axis(float(high), ticks=ticks, whole=True)

    assert all(value.is_integer() for value, _ in axis.ticks)
    assert axis.high >= high
