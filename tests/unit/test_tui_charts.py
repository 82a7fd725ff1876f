"""Charts and texts of the live view: axes, units, and nothing that is cut."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from rich.text import Text

from loadgen.model.run import Phase
from loadgen.tui.draw import LABEL, cut_between_words, wrapped
from loadgen.tui.history import PeakThroughput
from loadgen.tui.screen import AXIS, FIGURES, ScreenPage, nice_top
from loadgen.tui.screen_state import LatencyDistribution, LogEntry, ScreenState
from tests.unit.tui_builders import MEASUREMENT, drawn, quantile_of, step
from tests.unit.tui_views import FIND_MAX, SIZES, VIEWS


def lines_of(view: ScreenState, width: int, height: int, first: str, count: int) -> list[str]:
    lines = drawn(view, width, height).split("\n")
    start = next(number for number, line in enumerate(lines) if line.startswith(f" {first}"))
    return lines[start : start + count]


@pytest.mark.parametrize(("width", "height"), SIZES, ids=lambda size: str(size))
@pytest.mark.parametrize("name", VIEWS)
def test_charts_have_numbers_with_units_and_the_time_below(name, width, height):
    text = drawn(VIEWS[name], width, height)

    assert re.search(r"qps +\d+/s.* \d+/s┤", text)
    assert re.search(r"p50 \d+.\d.* [89]0 ms┤", text)
    assert len(re.findall(r" 0┤", text)) >= 2
    assert re.search(r"elapsed └.*\d\d:\d0─", text)
    figures = re.findall(r"(?:avg|peak) \d+\S*", text)
    assert len(figures) == 2
    assert all(figure.endswith("/s") for figure in figures)


ORDINARY = (
    "3 logins refused, the last of worker-1: 390144: the token of BENCH_USER was refused: invalid or expired",
    "step 4: 45 connections DEGRADED: p95 88.1 ms is more than 20 % above 40.5 ms of the best step so far",
)


@pytest.mark.parametrize("page", ScreenPage)
@pytest.mark.parametrize("name", VIEWS)
def test_nothing_is_cut_at_80_columns(name, page):
    for text in ("RUNNING", *ORDINARY):
        view = replace(VIEWS[name], log=(LogEntry(moment=VIEWS[name].log[-1].moment, text=text),))

        picture = drawn(view, 80, 24, page=page)

        assert "…" not in picture
        assert page is not ScreenPage.RUN or text in " ".join(picture.split())


def test_a_long_text_is_broken_between_words_and_ends_after_some_lines():
    lines = wrapped(Text(" a " + "word " * 100), 30, indent=3)

    assert [line.plain for line in lines[:2]] == [" a " + "word " * 4 + "word", "   " + "word " * 4 + "word"]
    assert len(lines) == 4
    assert [line.plain for line in wrapped(Text("x" * 25), 10, indent=2)] == ["x" * 10, "  " + "x" * 8, "  " + "x" * 7]


def test_kinds_of_errors_without_room_are_counted():
    group = MEASUREMENT.errors[0]
    many = replace(MEASUREMENT, errors=(group,) * 5)

    assert "4 more kinds: press e" in drawn(many, 80, 24)
    assert "more kind" not in drawn(replace(many, errors=(group,)), 80, 24)


def test_a_mark_of_the_time_axis_begins_in_the_column_of_its_second():
    """Only second 20 was measured: its bar stands above the beginning of the mark."""
    alone = replace(MEASUREMENT, plan_s=30.0, history=tuple(one for one in MEASUREMENT.history if one.at_s == 20))
    for width in (80, 200):
        lines = lines_of(alone, width, 40, "qps", 16)
        bar = next(line for line in lines if "0┤" in line and "█" in line)
        axis = next(line for line in lines if "elapsed" in line)

        assert axis.index("00:20") == bar.index("█")


def test_a_short_run_fills_the_chart_and_a_long_one_shows_its_last_part():
    def axis(plan_s: float, width: int = 120) -> str:
        view = replace(MEASUREMENT, plan_s=plan_s, history=MEASUREMENT.history[: int(plan_s)])
        return next(line for line in drawn(view, width, 40).split("\n") if "elapsed" in line).partition("└")[2]

    assert axis(25.0).startswith("00:00─")
    assert len(axis(25.0)) == 52  # two columns a second
    assert len(axis(25.0, 200)) == 156  # and six on a wide screen
    assert axis(300.0).startswith("────00:40")


def test_a_phase_that_begins_is_a_line_and_not_a_drop():
    history = tuple(replace(one, qps=None) if one.at_s in (0, 10) else one for one in MEASUREMENT.history)

    chart = lines_of(replace(MEASUREMENT, history=history), 200, 40, "qps", 3)

    assert [line.count("┊") for line in chart] == [2, 2, 2]


def test_the_end_of_the_load_is_neither_a_drop_nor_a_bar():
    """In its last second only a part of the load was there, and in the cool-down none."""
    *load, last, first_cool, second_cool = MEASUREMENT.history
    cooling = (replace(one, phase=Phase.COOLDOWN, qps=0.0) for one in (first_cool, second_cool))
    whole, ended = (
        lines_of(replace(MEASUREMENT, history=history), 200, 40, "qps", 9)
        for history in (tuple(load), (*load, replace(last, qps=3.0), *cooling))
    )

    assert [line.count("█") for line in ended] == [line.count("█") for line in whole]
    assert all(line.rstrip(" ┊") == other.rstrip() for line, other in zip(ended, whole, strict=True))


def test_a_peak_that_may_have_been_higher_is_marked():
    view = replace(MEASUREMENT, peak=PeakThroughput(qps=840.0, at_least=True))

    assert "peak 840/s" in drawn(MEASUREMENT, 120, 40)
    assert "peak ≥ 840/s" in drawn(view, 120, 40)


def test_statements_that_were_cut_off_have_a_column_and_their_bounds_a_sign():
    window = MEASUREMENT.window
    assert window is not None
    first = replace(window.statements[0], p99=quantile_of(30_000, at_least=True), cut_off=12)
    view = replace(MEASUREMENT, window=replace(window, statements=(first, *window.statements[1:])))

    head, row = lines_of(view, 80, 24, "statement", 2)

    assert head.split()[-4:] == ["ok", "failed", "cut", "off"]
    assert re.search(r" 70.4 ≥ 30,000 .* 12$", row)
    assert "cut off" not in drawn(MEASUREMENT, 80, 24)


@pytest.mark.parametrize(
    ("height", "caption"), [(18, " last 10 s  p50 41.2"), (24, " last 10 s  p99 121"), (40, " last 10 s  p95")]
)
def test_the_span_of_the_percentiles_is_on_the_screen_at_any_height(height, caption):
    text = drawn(MEASUREMENT, 80, height)

    assert caption in text
    assert " response chart: p95 " in text


def test_a_wide_screen_shows_the_last_seconds_of_each_statement():
    assert "last" not in "".join(lines_of(MEASUREMENT, 80, 24, "statement", 2))
    assert re.search(r"failed +qps, last \d+ s$", lines_of(MEASUREMENT, 120, 40, "statement", 1)[0])
    head, first = lines_of(MEASUREMENT, 200, 60, "statement", 2)
    assert re.search(r"failed +qps, last 45 s +p95, last 45 s$", head)
    assert re.search(r"[▇█]{45} max 704/s +[▆▇█]{45} max 76.0 ms$", first)


def test_a_large_screen_shows_how_response_times_are_spread():
    assert "histogram" not in drawn(MEASUREMENT, 120, 40)

    lines = lines_of(MEASUREMENT, 200, 60, "histogram", 11)

    assert re.search(r"^ +5 %┤", lines[1])
    assert re.search(r"└─+20 ms─+50 ms─+100 ms", lines[9])
    assert lines[10].split() == ["↑p50", "38.2", "↑p95", "70.4", "↑p99", "110"]
    assert lines[9].index("100 ms") < lines[10].index("↑p99") < lines[9].index("200 ms")


def test_the_axis_of_a_narrow_histogram_has_numbers():
    assert MEASUREMENT.window is not None
    narrow = LatencyDistribution(edges_ms=(205.0, 220.0, 235.0, 250.0, 265.0), counts=(5, 9, 4, 1), percentiles=())

    text = drawn(replace(MEASUREMENT, window=replace(MEASUREMENT.window, spread=narrow)), 200, 60)

    assert "250 ms" in text


def test_percentiles_of_a_narrow_histogram_are_all_named():
    assert MEASUREMENT.window is not None
    near = tuple((name, quantile_of(ms)) for name, ms in (("p50", 202.0), ("p95", 204.0), ("p99", 208.0)))
    narrow = LatencyDistribution(edges_ms=(200.0, 205.0, 210.0), counts=(5, 9), percentiles=near)

    text = drawn(replace(MEASUREMENT, window=replace(MEASUREMENT.window, spread=narrow)), 200, 60)

    assert "p50 202, p95 204, p99 208 ms" in text


def test_names_are_whole_at_80_columns():
    """The columns of numbers give way, and the name of the stage stands alone."""
    window = MEASUREMENT.window
    assert window is not None
    name = "look_up_an_item_by_its_number"
    rows = (replace(window.statements[0], name=name), *window.statements[1:])
    long = "the second peak, stage 2 of 3"
    for stage, title in (("calm, stage 2 of 3", "statement, calm"), (long, "the second peak")):
        view = replace(MEASUREMENT, window=replace(window, name=stage, statements=rows))

        head, row = lines_of(view, 80, 24, title, 2)

        assert f"{stage} " in head
        assert row.startswith(f" {name} ")
        assert len(row.split()) == 7


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (200, 60)])
@pytest.mark.parametrize("length", [20, 34, 45, 70])
def test_no_name_of_a_statement_is_cut_where_there_is_room(width, height, length):
    window = MEASUREMENT.window
    assert window is not None
    names = [f"{number}_{'a_long_name_' * 9}"[:length] for number in range(2)]
    rows = tuple(replace(window.statements[0], name=name) for name in names)

    text = drawn(replace(MEASUREMENT, errors=(), window=replace(window, statements=rows)), width, height)

    assert all(name in text for name in names)
    assert len(re.findall(r" 644 .* 65,600 +0", text)) == 2


def test_long_names_are_cut_before_statements_are_left_out():
    window = MEASUREMENT.window
    assert window is not None
    rows = tuple(replace(window.statements[0], name=f"{number}_{'n' * 70}") for number in range(4))

    text = drawn(replace(MEASUREMENT, errors=(), window=replace(window, statements=rows)), 80, 24)

    assert len(re.findall(r"^ \d_n+… .* 65,600 +0$", text, re.MULTILINE)) == 4


@pytest.mark.parametrize("reason_words", [5, 40, 60])
@pytest.mark.parametrize(("width", "height"), [(80, 40), (120, 40), (200, 60)])
def test_the_reason_of_a_step_is_shown_whole_where_there_is_room(reason_words, width, height):
    search = FIND_MAX.find_max
    assert search is not None
    reason = " ".join(f"word{number}" for number in range(reason_words))
    steps = (*search.steps, step(5, 40, "UNSURE", reason))

    text = drawn(replace(FIND_MAX, find_max=replace(search, steps=steps)), width, height)

    assert reason in " ".join(text.split())


def test_the_reason_of_the_newest_step_is_cut_between_words_where_there_is_no_room():
    search = FIND_MAX.find_max
    assert search is not None
    steps = (step(5, 40, "UNSURE", "reason " * 140),)

    lines = drawn(replace(FIND_MAX, find_max=replace(search, steps=steps)), 80, 24).split("\n")

    (last,) = [line for line in lines if "…" in line]
    assert re.fullmatch(r" +(reason )+…", last)
    assert lines[lines.index(last) + 1].startswith(" warehouse ")


def test_a_step_that_is_extended_says_so_at_80_columns():
    search, window = FIND_MAX.find_max, FIND_MAX.window
    assert search is not None
    assert window is not None
    view = replace(
        FIND_MAX,
        find_max=replace(search, step=12, target=1_000, stage="verify", step_s=100.0),
        window=replace(window, name="step 12", seconds=118.0),
    )

    lines = lines_of(view, 80, 24, "find max", 2)

    assert lines[0].endswith("step 12: 1,000 connections, measured 118 of 100 s, undecided")
    assert lines[1].strip().startswith("confirming that it fails: best ")


def test_an_axis_ends_at_a_round_number():
    tops = [nice_top(value) for value in (0.0, 0.031, 1.0, 1.01, 8.1, 99.0, 334.0, 1_000.0)]

    assert tops == pytest.approx([1.0, 0.04, 1.0, 1.2, 9.0, 100.0, 400.0, 1_000.0])


@pytest.mark.parametrize("size", SIZES, ids=lambda size: str(size))
@pytest.mark.parametrize("factor", [0.000_13, 0.003, 13, 20, 1_400, 30_000])
def test_the_line_of_an_axis_is_in_one_column_whatever_the_numbers_are(factor, size):
    for view in (MEASUREMENT, FIND_MAX):
        seconds = tuple(
            replace(
                second,
                qps=None if second.qps is None else second.qps * factor,
                p95_ms=None if second.p95_ms is None else second.p95_ms * factor,
            )
            for second in view.history
        )

        lines = drawn(replace(view, history=seconds), *size).split("\n")

        columns = {line.index("┤") for line in lines if "┤" in line}
        assert LABEL + FIGURES + AXIS - 1 in columns
        assert columns <= {
            LABEL + AXIS - 1,
            LABEL + FIGURES + AXIS - 1,
        }  # of the histogram, and of the charts over time


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (33, "begins with so many one two three"),
        (32, "begins with so many one two …"),
        (29, "begins with so many one two …"),
        (28, "begins with so many one …"),
    ],
)
def test_a_line_that_is_too_long_loses_whole_words(width, shown):
    assert cut_between_words(Text("begins with so many one two three"), width).plain == shown


def test_a_header_that_is_too_long_loses_whole_parts():
    long = replace(MEASUREMENT, scenario="a scenario with a longer name", run_id="20261115-0200-a-scenario-with-7f3a9c")

    wide, narrow, least = (drawn(long, width, 24).split("\n")[0] for width in (120, 80, 60))

    assert "a scenario with a longer name  20261115" in wide
    assert wide.endswith("prod, BENCH_WH")
    assert narrow == " loadgen  a scenario with a longer name  20261115-0200-a-scenario-with-7f3a9c"
    assert least == " loadgen  20261115-0200-a-scenario-with-7f3a9c"
