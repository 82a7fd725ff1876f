"""The picture of a run. Golden screens are in golden/; `python -m tests.unit.test_tui_screen` draws them anew."""

from __future__ import annotations

import io
import re
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from loadgen.model.run import Phase
from loadgen.report.experiment import ExperimentStatus
from loadgen.results.run_snapshot import WorkerDisplayState
from loadgen.rules.thresholds import Checked
from loadgen.tui.panels import load
from loadgen.tui.screen import ScreenPage, ScreenSection, distribute_lines, render
from loadgen.tui.screen_state import ScreenState, TableProgress
from loadgen.tui.threshold_panel import thresholds
from tests.unit.tui_builders import MEASUREMENT, NOW_S, STALE, WARMUP, cells, drawn, step
from tests.unit.tui_views import FIND_MAX, SIZES, VIEWS

EXPERIMENT = ExperimentStatus(headline="block 2 of 6, arm b", spent="1 credit of 5", blocks=(1,), rows=(), pairs=())
GOLDEN = Path(__file__).with_name("golden")
HOSTILE = (
    "</script><b>x",
    "[/dim] [red]",
    "\x1b[2J\x1b]0;title\x07",
    "\x00nul",
    "🎉👩‍👩‍👧 e\u0301",
    "\u202egnirts",
    "a\r\nb\u2028c\tt",
)
STYLE = re.compile(r"\x1b\[[0-9;]*m")
CONTROLS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u2028\u2029]")


def coloured(view: ScreenState, width: int, height: int, page: ScreenPage = ScreenPage.RUN) -> str:
    file = io.StringIO()
    console = Console(file=file, width=width, height=height, force_terminal=True, color_system="truecolor")
    console.print(render(view, width, height, NOW_S, page), end="")
    return file.getvalue()


def golden_file(name: str, width: int, height: int) -> Path:
    return GOLDEN / f"{name}-{width}x{height}.txt"


@pytest.mark.parametrize(("width", "height"), SIZES, ids=lambda size: str(size))
@pytest.mark.parametrize("name", VIEWS)
def test_the_screen_is_the_golden_one(name, width, height):
    assert drawn(VIEWS[name], width, height) + "\n" == golden_file(name, width, height).read_text("utf-8")


@pytest.mark.parametrize("name", VIEWS)
def test_a_golden_screen_shows_a_possible_state(name):
    view = VIEWS[name]

    rates = [one.value for one in view.checked if one.check.startswith("error_rate") and one.value is not None]
    assert rates == [pytest.approx(view.failed / max(view.tried, 1), rel=0.01)] * len(rates)
    assert sum(one.count for one in view.errors) == view.failed
    newest_s = view.history[-1].at_s
    assert view.since_s is not None
    assert newest_s <= NOW_S - view.since_s + 10  # warm-up was 10 s


def test_a_search_shows_its_histogram_where_there_is_room():
    assert "histogram  statements by response time, step 6 so far" in drawn(FIND_MAX, 200, 60)


def test_a_step_that_the_client_limited_is_neither_held_nor_failed():
    assert FIND_MAX.find_max is not None
    search = replace(
        FIND_MAX.find_max, stage="repeat", steps=(step(1, 5), step(2, 15, "CLIENT_LIMIT", "95 % of its core"))
    )

    text = drawn(replace(FIND_MAX, find_max=search), 120, 40)

    assert "measuring again" in text
    assert re.search(r"\? +15  CLIENT_LIMIT", text), text


@pytest.mark.parametrize("page", ScreenPage)
@pytest.mark.parametrize(
    ("width", "height"), [(80, 24), (120, 40), (200, 60), (60, 12), (59, 40), (40, 10), (1, 1), (3, 2)]
)
@pytest.mark.parametrize("name", VIEWS)
def test_a_picture_has_as_many_lines_as_the_window_and_none_is_wider(name, width, height, page):
    lines = STYLE.sub("", coloured(VIEWS[name], width, height, page)).split("\n")

    assert len(lines) == height
    assert max(map(cell_len, lines)) <= width


@pytest.mark.parametrize("name", VIEWS)
def test_everything_that_matters_is_on_a_small_screen(name):
    text = drawn(VIEWS[name], 80, 24)

    for word in ("qps", "p50", "p95", "p99", "errors", "thresholds", "point_lookup", "workers", "client CPU", "q stop"):
        assert word in text


# --- foreign text ----------------------------------------------------------------------------------------------------


def poisoned(value: Any, poison: str) -> Any:
    """The same with every text replaced."""
    if isinstance(value, tuple):
        return tuple(poisoned(item, poison) for item in value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: poisoned(getattr(value, f.name), poison) for f in fields(value)})
    if type(value) is str:
        return poison
    return value


@pytest.mark.parametrize("page", ScreenPage)
@pytest.mark.parametrize("poison", [*HOSTILE, "x" * 1_000_000, "🎉" * 250_000, "\u0301" * 1_000_000, "a " * 500_000])
def test_foreign_text_is_harmless_wherever_it_stands(poison, page):
    everything = replace(STALE, find_max=FIND_MAX.find_max, filling=None)
    view = poisoned(everything, poison)

    text = STYLE.sub("", coloured(view, 120, 40, page))

    assert CONTROLS.search(text) is None
    assert len(text.split("\n")) == 40
    assert max(map(cell_len, text.split("\n"))) <= 120


@pytest.mark.parametrize("page", [ScreenPage.RUN, ScreenPage.ERRORS])
def test_markup_is_literal(page):
    view = poisoned(MEASUREMENT, "</script><b>x [/dim] [bold]")

    assert "</script><b>x [/dim] [bold]" in drawn(replace(view, status="RUNNING"), 200, 60, page=page)


# --- never a lie -----------------------------------------------------------------------------------------------------


def test_stale_data_is_marked_as_old():
    assert "no update" not in drawn(MEASUREMENT, 80, 24)
    assert "no update for 60 s" in drawn(MEASUREMENT, 80, 24, now_s=NOW_S + 59.5)


def test_nothing_is_called_old_while_results_are_made():
    assert "no update" not in drawn(replace(MEASUREMENT, waits=True), 80, 24, now_s=NOW_S + 60)


def test_the_countdown_continues_without_new_data_and_shows_when_time_is_over():
    assert "01:42 of 05:00, 03:18 left" in drawn(MEASUREMENT, 80, 24)
    assert "01:52 of 05:00, 03:08 left" in drawn(MEASUREMENT, 120, 24, now_s=NOW_S + 10)
    assert "05:00 of 05:00, over by 9 s" in drawn(MEASUREMENT, 120, 24, now_s=NOW_S + 207)


def test_a_stopping_run_is_marked_in_its_own_view_and_in_watch():
    stopped = replace(MEASUREMENT, status="CANCELLING", stopping=True, until_s=None)

    led, watched = drawn(stopped, 80, 24), drawn(replace(stopped, quits=True), 80, 24)

    for text in (led, watched):
        assert text.split("\n")[1].startswith(" STOPPING 01:42")
        assert "the run continues" not in text
    assert led.endswith(" Ctrl-C twice: cancel running statements   e errors   t thresholds   ? help")
    assert watched.endswith(" q leave   e errors   t thresholds   ? help")


def test_values_that_were_not_measured_are_dashes_and_never_zeros():
    view = replace(WARMUP, recent=None, window=None, history=())

    text = drawn(view, 80, 24)

    assert "qps        –/s" in text
    assert "p50 –" in text
    assert "0.0/s" not in text


def test_a_missed_threshold_is_described_in_words():
    text = drawn(MEASUREMENT, 80, 24)

    assert "✓ p95 < 250ms: 77.4 ms" in text
    assert "✗ error_rate < 0.01%: 0.021 %, MISSED" in text
    assert "○ p95 < 250ms: not yet" in drawn(WARMUP, 80, 24)


def test_a_threshold_with_a_window_names_it_and_the_worst_span():
    met = Checked(check="p99 < 300ms", value=230.2, passed=True, window_s=10.0)
    missed = replace(met, check="p99 < 100ms", passed=False)
    text = drawn(replace(MEASUREMENT, checked=(met, missed)), 120, 40)

    assert "✓ p99 < 300ms in every 10 s: worst 230 ms" in text
    assert "✗ p99 < 100ms in every 10 s: worst 230 ms, MISSED" in text


def checks(*missed: bool) -> tuple[Checked, ...]:
    return tuple(
        Checked(check=f"{name} < 250ms", value=400.0 if is_missed else 77.4, passed=not is_missed)
        for name, is_missed in zip(("p50", "p90", "p95", "p99", "p999"), missed, strict=False)
    )


def threshold_lines(*missed: bool, width: int = 80, limit: int) -> list[str]:
    view = replace(MEASUREMENT, checked=checks(*missed))
    return [line.plain for line in thresholds(view, width, limit)]


def test_missed_thresholds_come_first():
    (line,) = threshold_lines(False, False, True, width=120, limit=1)

    assert line == " thresholds ✗ p95 < 250ms: 400 ms, MISSED  ✓ p50 < 250ms: 77.4 ms  ✓ p90 < 250ms: 77.4 ms"


def test_thresholds_without_room_are_counted_and_missed_ones_named_among_them():
    (line,) = threshold_lines(False, True, False, True, True, limit=1)
    assert line == " thresholds ✗ p90 < 250ms: 400 ms, MISSED  +4 more, 2 MISSED"

    (line,) = threshold_lines(False, True, False, False, False, limit=1)
    assert line == " thresholds ✗ p90 < 250ms: 400 ms, MISSED  ✓ p50 < 250ms: 77.4 ms  +3 more"

    lines = threshold_lines(False, True, False, True, True, limit=2)
    assert lines[0] == " thresholds ✗ p90 < 250ms: 400 ms, MISSED  ✗ p99 < 250ms: 400 ms, MISSED"
    assert lines[1] == "            ✗ p999 < 250ms: 400 ms, MISSED  ✓ p50 < 250ms: 77.4 ms  +1 more"

    assert "more" not in "".join(threshold_lines(True, True, True, True, True, limit=3))


def test_the_count_of_thresholds_without_room_outweighs_the_end_of_a_long_one():
    long = Checked(check="p95 of a_statement_with_a_long_name < 250ms and so on", value=400.0, passed=False)

    (line,) = thresholds(replace(MEASUREMENT, checked=(long, *checks(True))), 80, 1)

    assert line.plain.startswith(" thresholds ✗ p95 of a_statement")
    assert line.plain.endswith("…  +1 more, 1 MISSED")
    assert line.cell_len <= 80


BOUNDS = (
    Checked(check="p99 < 1s", value=216.0, passed=True, at_most=True),
    Checked(check="rename_item.p99 < 300ms", value=272.0, passed=False, at_least=True, undecided=True),
    Checked(check="pay.p99 < 1s", value=None, passed=False, undecided=True, too_few="too few samples: 40 of 100"),
    Checked(check="longest_stall < 1s", value=None, passed=False, undecided=True, unmeasured="no worker reported it"),
)


def test_every_threshold_has_a_colon_before_its_value_and_an_undecided_one_the_word():
    for checked, shown in zip(
        BOUNDS,
        (
            "✓ p99 < 1s: ≤ 216 ms",
            "○ rename_item.p99 < 300ms: ≥ 272 ms, undecided",
            "○ pay.p99 < 1s: too few samples, undecided",
            "○ longest_stall < 1s: not measured, undecided",
        ),
        strict=True,
    ):
        (line,) = thresholds(replace(MEASUREMENT, checked=(checked,)), 80, 5)
        assert line.plain == f" thresholds {shown}"


@pytest.mark.parametrize("view", [MEASUREMENT, replace(MEASUREMENT, experiment=EXPERIMENT)])
def test_the_help_is_whole_at_80x24_and_explains_every_sign(view):
    text = drawn(view, 80, 24, page=ScreenPage.HELP)

    for sign in ("✓", "✗", "○", "≥", "≤", "–", "┊", "◐"):
        assert f" {sign} " in text
    assert "all thresholds" in text
    assert " q  stop gracefully" in text
    assert ("x  the experiment" in text) is (view.experiment is not None)


def test_a_key_in_the_last_line_shows_every_threshold_whole_with_its_reason():
    view = replace(MEASUREMENT, checked=(*BOUNDS, *checks(True, False, False, True, False)))

    assert "t thresholds" in drawn(view, 80, 24).split("\n")[-1]
    assert "more" in drawn(view, 80, 24)
    page = drawn(view, 80, 24, page=ScreenPage.THRESHOLDS)
    assert all(checked.check in page for checked in view.checked)
    assert all(checked.unknown in page for checked in view.checked)
    assert page.index("✗") < page.index("✓")


@pytest.mark.parametrize("width", range(60, 130, 7))
@pytest.mark.parametrize(
    "changes", [{}, {"quits": True}, *({"stopping": True, "interrupts": number} for number in range(3))], ids=str
)
@pytest.mark.parametrize("experiment", [None, EXPERIMENT], ids=["alone", "experiment"])
def test_the_last_line_loses_whole_keys_only(width, changes, experiment):
    line = drawn(replace(MEASUREMENT, experiment=experiment, **changes), width, 24).split("\n")[-1]

    assert "…" not in line
    assert "? help" in line
    assert line.startswith((" q ", " Ctrl-C "))


def test_lost_connections_and_refused_logins_stay_in_the_line_of_the_load():
    troubled = replace(MEASUREMENT, offered=replace(MEASUREMENT.offered, lost=3, refused=2))

    (line,) = load(troubled, 120, 1)
    assert ", 3 lost, 2 refused" in line.plain
    assert {"lost", "refused"} & set(load(MEASUREMENT, 120, 1)[0].plain.split()) == set()
    (narrow,) = load(troubled, 80, 1)
    assert "3 lost, 2 refused" in narrow.plain
    assert narrow.cell_len <= 80


def test_a_busy_client_is_named_as_such():
    busy = tuple(replace(worker, cpu_percent=91.0) for worker in MEASUREMENT.workers)

    assert "client CPU 91 % ✗ too busy" in drawn(replace(MEASUREMENT, workers=busy), 80, 24)


# --- many of a kind --------------------------------------------------------------------------------------------------


def test_a_hundred_workers_are_counted_and_those_in_trouble_named():
    views = list(cells(100))
    views[17] = replace(views[17], state=WorkerDisplayState.STALE, heard_s=NOW_S - 41)

    text = drawn(replace(MEASUREMENT, workers=tuple(views)), 80, 24)

    assert "● 99 running, ◐ 1 stale (w17 41 s)" in text
    assert (
        drawn(replace(MEASUREMENT, workers=tuple(views)), 120, 40).count("●") == 100
    )  # a mark each, and the summary's


def test_the_only_worker_has_one_line():
    text = drawn(replace(MEASUREMENT, workers=cells(1)), 80, 24)

    assert " workers    ● worker-0 running, 16 of 16 open, 14 busy, CPU 11 %, beat 0 s ago\n" in text
    assert text.count("●") == 1


def test_statements_without_room_are_counted():
    assert MEASUREMENT.window is not None
    many = tuple(replace(MEASUREMENT.window.statements[0], name=f"s{number}") for number in range(40))

    text = drawn(replace(MEASUREMENT, window=replace(MEASUREMENT.window, statements=many)), 80, 24)

    assert re.search(r"… and 3\d more", text)


def test_preparing_shows_how_far_a_table_is():
    view = replace(
        WARMUP,
        status="",
        phase=None,
        doing="preparing tables",
        filling=TableProgress(table="ORDERS", rows_there=25, rows=100),
    )

    text = drawn(view, 80, 24)

    assert "ORDERS 25 of 100 rows, preparing tables" in text
    assert " qps " not in text


def test_a_search_shows_its_possible_next_levels():
    assert FIND_MAX.find_max is not None
    climbing = replace(FIND_MAX.find_max, stage="climb", failed=None, next_if_held=45)

    text = drawn(replace(FIND_MAX, find_max=climbing, phase=Phase.MEASUREMENT), 120, 40)

    assert "step 6: 35 connections, measured 12 of 15 s" in text
    assert "best 35, failed –; next 45 if it holds" in text
    assert "p95 88.1 ms is more than 20 % above 40.5 ms" in text


def test_every_section_gets_what_it_needs_before_any_grows():
    def section(least: int, good: int, most: int) -> ScreenSection:
        return ScreenSection(draw=lambda limit: [], least=least, good=good, most=most)

    sections = [section(1, 1, 9), section(2, 4, 4), section(0, 0, 0), section(1, 2, 3)]

    assert distribute_lines(sections, 2) == [1, 1, 0, 0]
    assert distribute_lines(sections, 4) == [1, 2, 0, 1]
    assert distribute_lines(sections, 7) == [1, 4, 0, 2]
    assert distribute_lines(sections, 9) == [2, 4, 0, 3]
    assert distribute_lines(sections, 99) == [9, 4, 0, 3]


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for name, view in VIEWS.items():
        for width, height in SIZES:
            golden_file(name, width, height).write_text(drawn(view, width, height) + "\n", "utf-8")
