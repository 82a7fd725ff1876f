"""Charts as SVG, without script, library or network. Colours are CSS classes of the page.

A chart has a title and a description for screen readers, lines with their names, and optional bands, marks, limits and
dots. Text must have been through loadgen.report.formatting. Labels do not overlap: their widths are estimated, and a
label without room is a tooltip.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from html import unescape
from itertools import groupby, pairwise

from loadgen.values import dataclass

Point = tuple[float, float | None]  # None: unknown, a gap in the line

LEFT, RIGHT, TOP, BOTTOM = 58, 72, 16, 26  # margins for labels, in units of the view box
MARGIN = 20  # right margin if lines have no names
LABEL_GAP = 13  # between two names at the ends of lines
LANE = 12  # height of a line of labels above the plot
NOTE_WIDTH = 6.4  # maximum width of a character in a small label
LIMIT_WIDTH = 7.0  # maximum width of a character in a label of a limit, which is bold
LIMIT_GAP = 14  # between two labels of limits above the plot
LINE_ROOM = 1.0  # between a label of a limit and a line
PLACE_STEP = 12  # between two places that are tried for a label
TICK_WIDTH = 7.4  # maximum width of a character in a label of an axis, or in a name
ABOVE, BELOW = "↑ above the chart: ", "↓ below the chart: "  # before the label of a limit beyond the axis
_NICE = (1, 2, 2.5, 5, 10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    log: bool = False

    def part(self, value: float) -> float:
        """The position on the axis: 0 at its low end, 1 at its high end."""
        if self.log:
            value, low, high = (math.log(max(number, 1e-9)) for number in (value, self.low, self.high))
        else:
            low, high = self.low, self.high
        return min(max((value - low) / (high - low), 0.0), 1.0) if high > low else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartLine:
    name: str
    css: str
    points: tuple[Point, ...]
    stepped: bool = False
    filled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartBand:
    """A phase."""

    start: float
    end: float
    label: str
    css: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartDot:
    x: float
    y: float
    css: str
    label: str = ""
    cross: bool = False  # a different shape, because not everyone can tell the colours apart
    ring: bool = False  # around another dot
    at_least: bool = False  # an upward triangle: the value is a lower bound
    radius: float = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartMarker:
    """A vertical line: an event."""

    at: float
    label: str = ""
    title: str = ""  # the tooltip; empty: the label
    css: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartLimit:
    """A horizontal line: the limit of a threshold. With a span it is drawn over a part of the x axis."""

    value: float
    label: str
    css: str = ""
    span: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    chart_id: str
    title: str
    description: str
    x: Axis
    y: Axis
    lines: tuple[ChartLine, ...] = ()
    bands: tuple[ChartBand, ...] = ()
    marks: tuple[ChartMarker, ...] = ()
    limits: tuple[ChartLimit, ...] = ()
    dots: tuple[ChartDot, ...] = ()
    bars: tuple[tuple[float, float, float], ...] = ()  # from, to, height
    x_title: str = ""
    width: int = 960
    height: int = 190
    lanes: int = 1  # lines of labels of marks above the plot
    left: int = LEFT  # room for the labels of the y axis
    names_width: int = RIGHT  # room for the names of lines
    both_sides: bool = False  # labels of the y axis on the right, too: for a chart of which only a part may be visible

    @property
    def top(self) -> int:
        return TOP + LANE * (self.lanes - 1)

    @property
    def right(self) -> int:
        names = self.names_width if any(line.name for line in self.lines) else 0
        return self.width - (names + self._right_ticks or MARGIN)

    @property
    def names_at(self) -> int:
        """Where the names of lines begin: after the labels of the y axis, if they are on the right, too."""
        widest = max((len(unescape(label)) for _, label in self.y.ticks), default=0)
        return self.right + 6 + (min(round(TICK_WIDTH * widest) + 6, LEFT) if self.both_sides else 0)

    @property
    def _right_ticks(self) -> int:
        return LEFT if self.both_sides else 0

    @property
    def bottom(self) -> int:
        return self.height - BOTTOM - (14 if self.x_title else 0)

    def px(self, x: float) -> float:
        return self.left + self.x.part(x) * (self.right - self.left)

    def py(self, y: float) -> float:
        return self.bottom - self.y.part(y) * (self.bottom - self.top)


def svg(chart: Chart) -> str:
    """The SVG element; ids in it begin with the id of the chart."""
    name = chart.chart_id
    return "".join(
        [
            f'<svg id="{name}" viewBox="0 0 {chart.width} {chart.height}" role="img" tabindex="0"'
            f' aria-labelledby="{name}-t {name}-d">',
            f'<title id="{name}-t">{chart.title}</title><desc id="{name}-d">{chart.description}</desc>',
            *_bands(chart),
            *_grid(chart),
            *_bars(chart),
            *_marks(chart),
            *(part for line in chart.lines for part in _line(chart, line)),
            *_limits(chart),
            *_names(chart),
            *_dots(chart),
            f'<line class="cursor" y1="{chart.top}" y2="{chart.bottom}" x1="-9" x2="-9"/></svg>',
        ]
    )


# --- axes ------------------------------------------------------------------------------------------------------------


def linear_axis(high: float, *, low: float = 0.0, ticks: int = 4, unit: str = "", whole: bool = False) -> Axis:
    """A linear axis from `low` to a round number that is at least `high`. `whole`: of counts, without fractions."""
    span = high - low if high > low else 1.0
    raw = span / ticks
    size = 10.0 ** math.floor(math.log10(raw))
    steps = (factor * size * power for power in (1, 10) for factor in _NICE)
    step = next(step for step in steps if step >= raw * 0.999 and (not whole or (step >= 1 and step.is_integer())))
    count = math.ceil(span / step - 1e-9)
    values = [low + step * number for number in range(count + 1)]
    return Axis(low=low, high=values[-1], ticks=tuple((value, f"{short(value)}{unit}") for value in values))


def log_axis(low: float, high: float, *, unit: str = "") -> Axis:
    """A logarithmic axis with ticks at decades; with few decades also at 2 and 5, or at more values."""
    low, high = max(low, 1e-6), max(high, low * 1.5, 1e-6)
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    for factors in ((1,), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 8)):
        values = [factor * 10.0**power for power in range(first, last + 1) for factor in factors]
        start = max((value for value in values if value <= low), default=low)
        end = min((value for value in values if value >= high), default=high)
        shown = tuple((value, f"{short(value)}{unit}") for value in values if start <= value <= end)
        if len(shown) > 4:
            break
    return Axis(low=start, high=end, ticks=shown, log=True)


def time_axis(end_s: float) -> Axis:
    steps = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 14_400, 43_200, 86_400)
    step = next((step for step in steps if end_s / step <= 10), 86_400 * math.ceil(end_s / 864_000))
    values = [float(value) for value in range(0, math.floor(end_s) + 1, step)]
    return Axis(low=0.0, high=max(end_s, 1.0), ticks=tuple((value, clock(value)) for value in values))


def clock(seconds: float) -> str:
    """12 s, 3:05, 1:02:03."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes}:{rest:02d}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def short(value: float) -> str:
    """A label of an axis: 1.5k, 20, 0.25."""
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.4g}{suffix}"
    return f"{value:.4g}"


# --- parts -----------------------------------------------------------------------------------------------------------


def _grid(chart: Chart) -> Iterator[str]:
    for value, label in chart.y.ticks:
        y = _n(chart.py(value))
        yield f'<line class="grid" x1="{chart.left}" x2="{chart.right}" y1="{y}" y2="{y}"/>'
        yield f'<text class="tick" x="{chart.left - 6}" y="{y}" dy=".32em" text-anchor="end">{label}</text>'
        if chart.both_sides:
            yield f'<text class="tick" x="{chart.right + 6}" y="{y}" dy=".32em">{label}</text>'
    for value, label in chart.x.ticks:
        x = _n(chart.px(value))
        has_room = chart.px(value) + TICK_WIDTH * len(unescape(label)) / 2 < chart.width
        anchor = "middle" if has_room else "end"
        yield f'<line class="axis" x1="{x}" x2="{x}" y1="{chart.bottom}" y2="{chart.bottom + 4}"/>'
        below = chart.bottom + (21 if chart.dots else 17)  # a dot may lie on the axis
        yield f'<text class="tick" x="{x}" y="{below}" text-anchor="{anchor}">{label}</text>'
    yield f'<line class="axis" x1="{chart.left}" x2="{chart.right}" y1="{chart.bottom}" y2="{chart.bottom}"/>'
    if chart.x_title:
        middle = (chart.left + chart.right) // 2
        yield f'<text class="tick" x="{middle}" y="{chart.height - 4}" text-anchor="middle">{chart.x_title}</text>'


def _bands(chart: Chart) -> Iterator[str]:
    for band in chart.bands:
        left, right = chart.px(band.start), chart.px(band.end)
        yield (
            f'<rect class="band {band.css}" x="{_n(left)}" y="{chart.top}" width="{_n(max(right - left, 0.5))}"'
            f' height="{chart.bottom - chart.top}"><title>{band.label}</title></rect>'
        )
        if right - left > NOTE_WIDTH * len(band.label) + 8:
            yield f'<text class="note" x="{_n(left + 4)}" y="{chart.top + 11}">{band.label}</text>'


def _marks(chart: Chart) -> Iterator[str]:
    """Marks, each with its label in the lowest line above the plot that has room for it, if any."""
    ends = [-math.inf] * chart.lanes
    for mark in chart.marks:
        x = chart.px(mark.at)
        line = f'<line x1="{_n(x)}" x2="{_n(x)}" y1="{chart.top}" y2="{chart.bottom}"/>'
        yield f'<g class="mark {mark.css}">{line}<title>{mark.title or mark.label}</title></g>'
        start, end = _label_span(chart, mark)
        lane = next((lane for lane, taken in enumerate(ends) if start >= taken), None)
        if mark.label and lane is not None and end < chart.width:
            ends[lane] = end
            y = chart.top - 4 - LANE * lane
            place = f'x="{_n(x + 3)}"' if start == x else f'x="{_n(x - 3)}" text-anchor="end"'
            yield f'<text class="note {mark.css}" {place} y="{y}">{mark.label}</text>'


def with_lanes(chart: Chart, most: int, more: int = 0) -> Chart:
    """The chart with the lines of labels above the plot that its marks need, at most `most`, and `more` for others."""
    ends = [-math.inf]
    for mark in (mark for mark in chart.marks if mark.label):
        start, end = _label_span(chart, mark)
        lane = next((lane for lane, taken in enumerate(ends) if start >= taken), len(ends))
        ends += [-math.inf] if lane == len(ends) else []
        ends[lane] = end
    lanes = min(len(ends), most) + more
    return replace(chart, lanes=lanes, height=chart.height + LANE * (lanes - 1))


def _label_span(chart: Chart, mark: ChartMarker) -> tuple[float, float]:
    """The span of the label of a mark: right of the mark, or left of it where labels of the y axis are on the right."""
    x, width = chart.px(mark.at), 3 + NOTE_WIDTH * len(unescape(mark.label))
    is_left = chart.both_sides and x + width > chart.right and x - width >= chart.left
    return (x - width, x) if is_left else (x, x + width)


Box = tuple[float, float, float, float]  # left, top, right, bottom


def _limits(chart: Chart) -> Iterator[str]:
    """Lines, each with its label where it covers neither data nor a mark, another line or another label, the rightmost
    such place. Without one, and for a limit beyond the axis, the label is above the plot; beyond the axis it has an
    arrow and no line."""
    taken = [*_band_labels(chart), *_mark_lines(chart), *_limit_lines(chart)]
    above = float(chart.right)
    for limit in chart.limits:
        y, (start, end) = chart.py(limit.value), _span_px(chart, limit)
        is_inside = chart.y.low <= limit.value <= chart.y.high
        beyond = "" if is_inside else ABOVE if limit.value > chart.y.high else BELOW
        css = limit.css if is_inside else f"{limit.css} beyond"
        label, place = f"{beyond}{limit.label}", None
        width = LIMIT_WIDTH * len(unescape(label))
        if is_inside:
            yield f'<line class="limit {limit.css}" x1="{_n(start)}" x2="{_n(end)}" y1="{_n(y)}" y2="{_n(y)}"/>'
            place = _free_place(chart, (start, end), y, width, taken)
        if place is None and above - width < chart.left:  # no room above the plot either
            place = _free_place(chart, (chart.left, chart.right), chart.top - 2.0, width, taken)
            place = place or (chart.right - width, chart.top, chart.right, chart.top + LANE)
        if place is None:
            place = (above - width, chart.top - 2 - LANE * chart.lanes, above, chart.top - 2 - LANE * (chart.lanes - 1))
            above -= width + LIMIT_GAP
        taken.append(place)
        text_y = _n(place[3] - 3)
        yield f'<text class="limit {css}" x="{_n(place[2])}" y="{text_y}" text-anchor="end">{label}</text>'


def _span_px(chart: Chart, limit: ChartLimit) -> tuple[float, float]:
    if limit.span is None:
        return float(chart.left), float(chart.right)
    return chart.px(limit.span[0]), chart.px(limit.span[1])


def _free_place(chart: Chart, span: tuple[float, float], y: float, width: float, taken: Sequence[Box]) -> Box | None:
    """The rightmost place for a label beside a horizontal line, above or below it, that covers nothing."""
    start, end = span
    right = end = min(max(end, start + width), float(chart.right))
    while right - width >= chart.left and right > start:
        for top in (y - LANE - 1, y + 2):
            box = (right - width, top, right, top + LANE)
            is_inside = top >= chart.top and box[3] <= chart.bottom
            if is_inside and not any(_overlap(box, other) for other in taken) and not _covers_data(chart, box):
                return box
        right -= PLACE_STEP
    return None


def _band_labels(chart: Chart) -> Iterator[Box]:
    for band in chart.bands:
        left = chart.px(band.start)
        yield left, float(chart.top), left + NOTE_WIDTH * len(unescape(band.label)) + 8, chart.top + 14.0


def _mark_lines(chart: Chart) -> Iterator[Box]:
    for mark in chart.marks:
        x = chart.px(mark.at)
        yield x - LINE_ROOM, float(chart.top), x + LINE_ROOM, float(chart.bottom)


def _limit_lines(chart: Chart) -> Iterator[Box]:
    """The lines of limits. A label begins below its own line, or ends above it."""
    for limit in chart.limits:
        if chart.y.low <= limit.value <= chart.y.high:
            y, (start, end) = chart.py(limit.value), _span_px(chart, limit)
            yield start, y - LINE_ROOM, end, y + LINE_ROOM


def _overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _covers_data(chart: Chart, box: Box) -> bool:
    """Whether a line or a dot is inside the box, or next to it."""
    left, top, right, bottom = box[0] - 3, box[1] - 2, box[2] + 3, box[3] + 2
    for line in chart.lines:
        places = [(chart.px(x), None if y is None else chart.py(y)) for x, y in line.points]
        for (x, y), (next_x, next_y) in pairwise(places):
            if y is None or next_y is None or next_x < left or x > right:
                continue
            slope = 0.0 if line.stepped or next_x == x else (next_y - y) / (next_x - x)
            ends = [y + slope * (max(x, left) - x), y + slope * (min(next_x, right) - x)]
            ends += [next_y] if left <= next_x <= right else []
            if min(ends) < bottom and max(ends) > top:
                return True
    dots = ((chart.px(dot.x), chart.py(dot.y)) for dot in chart.dots)
    return any(left < x < right and top < y < bottom for x, y in dots)


def _line(chart: Chart, line: ChartLine) -> Iterator[str]:
    for known, group in groupby(line.points, key=lambda point: point[1] is not None):
        if not known:
            continue
        places = [(chart.px(x), chart.py(y)) for x, y in group if y is not None]
        if len(places) == 1:
            x, y = places[0]
            yield f'<circle class="dot {line.css}" cx="{_n(x)}" cy="{_n(y)}" r="1.8"/>'
            continue
        path = _path(places, stepped=line.stepped)
        if line.filled:
            base = _n(chart.bottom)
            yield f'<path class="area {line.css}" d="{path}V{base}H{_n(places[0][0])}Z"/>'
        yield f'<path class="line {line.css}" d="{path}"/>'


def _path(places: Sequence[tuple[float, float]], *, stepped: bool) -> str:
    (x, y), *rest = places
    parts = [f"M{_n(x)} {_n(y)}"]
    for x, y in rest:
        parts.append(f"H{_n(x)}V{_n(y)}" if stepped else f"L{_n(x)} {_n(y)}")
    return "".join(parts)


def _names(chart: Chart) -> Iterator[str]:
    """The name of each line at its end; names that would overlap are moved apart."""
    ends = []
    for line in chart.lines:
        known = [y for _, y in line.points if y is not None]
        if known and line.name:
            ends.append((chart.py(known[-1]), line))
    ends.sort(key=lambda end: end[0])
    places: list[float] = []
    for y, _ in ends:
        places.append(max(y, places[-1] + LABEL_GAP if places else chart.top + 6.0))
    over = max(places[-1] - chart.bottom, 0.0) if places else 0.0
    for (_, line), y in zip(ends, places, strict=True):
        yield f'<text class="name {line.css}" x="{chart.names_at}" y="{_n(y - over)}" dy=".32em">{line.name}</text>'


def _dots(chart: Chart) -> Iterator[str]:
    for dot in chart.dots:
        x, y, size = _n(chart.px(dot.x)), _n(chart.py(dot.y)), _n(dot.radius)
        if dot.cross:
            shape = f'<path class="cross {dot.css}" d="M-5 -5L5 5M-5 5L5 -5" transform="translate({x} {y})"/>'
        elif dot.at_least:
            path = f"M0 -{size}L{size} {size}H-{size}Z"
            shape = f'<path class="dot {dot.css}" d="{path}" transform="translate({x} {y})"/>'
        else:
            shape = f'<circle class="{"cross" if dot.ring else "dot"} {dot.css}" cx="{x}" cy="{y}" r="{size}"/>'
        yield f"<g>{shape}<title>{dot.label}</title></g>"


def _bars(chart: Chart) -> Iterator[str]:
    for start, end, value in chart.bars:
        left, right, top = chart.px(start), chart.px(end), chart.py(value)
        if chart.bottom - top > 0.05:
            width, height = _n(max(right - left - 1, 0.6)), _n(chart.bottom - top)
            yield f'<rect class="bar" x="{_n(left)}" y="{_n(top)}" width="{width}" height="{height}"/>'


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
