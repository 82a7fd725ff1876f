"""Bars, charts, and cells of a fixed width, as rich Text without markup."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from itertools import accumulate

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from loadgen.log import printable
from loadgen.metrics.percentile import Quantile
from loadgen.report import formatting
from loadgen.report.formatting import MeasureFormats, bounded
from loadgen.units import NS_PER_MS

_EIGHTHS = " ▁▂▃▄▅▆▇█"
ELLIPSIS = "…"
BORDER = "┊"
LABEL = 12  # columns of the labels on the left
WORD_MAX = 20  # longest word that is left out as a whole
WRAPPED_MAX = 4  # lines of one wrapped text


def cell(text: str, width: int, *, right: bool = False) -> str:
    """The text cut or padded to exactly this width on the screen."""
    if width <= 0:
        return ""
    if cell_len(text) > width:
        text = set_cell_size(text, width - 1).rstrip() + ELLIPSIS
    room = width - cell_len(text)
    return " " * room + text if right else text + " " * room


Columns = tuple[tuple[str, int], ...]  # heading, width


def narrowed(columns: Columns, rows: Sequence[Sequence[str]]) -> Columns:
    """The columns, as narrow as the rows allow."""
    widest = (max(map(cell_len, (title, *(row[at] for row in rows)))) for at, (title, _) in enumerate(columns))
    return tuple((title, min(size, needed + 2)) for (title, size), needed in zip(columns, widest, strict=True))


def label(text: str) -> Text:
    """A label at the left edge."""
    return Text.assemble((cell(f" {text}", LABEL), "dim"))


def bar(fraction: float, width: int) -> Text:
    """A progress bar."""
    done = round(min(max(fraction, 0.0), 1.0) * width)
    return Text.assemble(("█" * done, "green"), ("░" * (width - done), "dim"))


def chart(
    values: Sequence[float | None],
    height: int,
    *,
    style: Callable[[int], str],
    top: float | None = None,
    borders: Collection[int] = (),
) -> list[Text]:
    """The lines of a chart, from the top: a column for each value, from 0 to `top` (default: the largest value). None
    is a gap. In the columns of `borders` there is a vertical line above the value."""
    top = top or max((value for value in values if value is not None), default=0.0)
    levels = [_level(value, top, 8 * height) for value in values]
    lines = []
    for row in reversed(range(height)):
        line = Text()
        for place, level in enumerate(levels):
            if place in borders and level <= 8 * row:
                line.append(BORDER, style="dim")
                continue
            line.append(_EIGHTHS[min(max(level - 8 * row, 0), 8)], style=style(place))
        lines.append(line)
    return lines


def _level(value: float | None, top: float, most: int) -> int:
    """The height of a value: at least 1 if it is known, so that a small value is not shown as a gap."""
    if value is None:
        return 0
    return max(1, round(value / top * most)) if top > 0.0 else 1


def cut_between_words(text: Text, width: int) -> Text:
    """The text cut to this width, between words, with an ellipsis. A long word is cut inside."""
    cut = text.copy()
    if cut.cell_len <= width:
        return cut
    cut.truncate(max(width - 2, 0))
    whole = text.plain[len(cut.plain) : len(cut.plain) + 1] == " "  # the cut is between two words
    last_word = cut.plain.rpartition(" ")[2]
    if not whole and 0 < len(last_word) <= WORD_MAX < len(cut.plain):
        cut.right_crop(len(last_word))
    cut.rstrip()
    return cut.append(f" {ELLIPSIS}" if width > 1 else "")


def wrapped(text: Text, width: int, *, indent: int, most: int = WRAPPED_MAX) -> list[Text]:
    """The text wrapped between words to at most `most` lines; all but the first are indented."""
    lines: list[Text] = []
    while text.cell_len > width and len(lines) < most - 1:
        fits = text.copy()
        fits.truncate(width + 1)
        at = fits.plain.rfind(" ")
        if at <= indent:  # one long word
            at = max(len(fits.plain) - 1, 1)
        lines.append(text[:at])
        rest = text[at:]
        text = Text.assemble(" " * indent, rest[len(rest.plain) - len(rest.plain.lstrip()) :])
    return [*lines, text]


def whole(texts: Sequence[list[Text]], limit: int) -> list[list[Text]]:
    """The first texts that fit completely into `limit` lines."""
    lengths = list(accumulate(map(len, texts)))
    return list(texts[: bisect_right(lengths, limit)])


def spread(left: Text, right: Text, width: int) -> Text:
    """Two texts at the ends of a line; the left one is cut if necessary."""
    room = width - right.cell_len
    left = left.copy()
    left.truncate(max(room - 1, 0), overflow="ellipsis")
    return Text.assemble(left, " " * max(room - left.cell_len, 0), right)


def flow(items: Sequence[Text], width: int, *, indent: int) -> list[Text]:
    """Items in sequence, wrapped to lines without breaking an item."""
    lines: list[Text] = []
    for item in items:
        if lines and lines[-1].cell_len + 2 + item.cell_len <= width:
            lines[-1] = Text.assemble(lines[-1], "  ", item)
        else:
            lines.append(Text.assemble(" " * indent, item))
    return lines


NAME_MAX = 200  # characters of a foreign text on the screen; drawing cuts it to its column
REASON_MAX = 1_000  # characters of a reason, which is wrapped
NOTHING = "–"


def one_line(text: str, limit: int = NAME_MAX) -> str:
    """Foreign text on one line, with visible control characters and limited length."""
    return printable(text, limit)


def rate(per_s: float) -> str:
    return f"{per_s:,.0f}" if per_s >= 100 else f"{per_s:.1f}"


def short(number: float) -> str:
    """A number in at most six characters: 12.5, 840, 1,250, 12.5k, 1.2M."""
    for size, suffix in ((10**9, "G"), (10**6, "M"), (10**4, "k")):
        if number >= size:
            shown = number / (1_000 if suffix == "k" else size)
            return f"{shown:.0f}{suffix}" if shown >= 100 or shown == round(shown) else f"{shown:.1f}{suffix}"
    return f"{number:,.0f}" if number >= 100 or number == round(number) else f"{number:.3g}"


def ms(value: float | None) -> str:
    if value is None:
        return NOTHING
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:,.{digits}f}"


def time_of(found: Quantile | None) -> str:
    """A time in milliseconds."""
    return NOTHING if found is None else bounded(ms(found.value_ns / NS_PER_MS), at_least=found.at_least)


def count(number: int) -> str:
    """A count in at most seven characters."""
    for size, suffix in ((10**12, "T"), (10**9, "G"), (10**6, "M")):
        if number >= size:
            return f"{number / size:,.1f}{suffix}"
    return f"{number:,}"


def percent(fraction: float) -> str:
    """A fraction as percent. A value above 0 is never written as 0."""
    shown = 100 * fraction
    return f"{shown:.0f} %" if shown >= 10 or shown == 0 else f"{shown:.1f} %" if shown >= 1 else f"{shown:.2g} %"


def measured(check: str, value: float) -> str:
    """The value for a threshold, in the unit of its limit."""
    short_forms = MeasureFormats(percent, rate, lambda one: count(round(one)), ms, "{:.4g}".format)
    return formatting.measured(check, value, short_forms)


def clock(seconds: float) -> str:
    """A duration: 01:42, or 1:01:42."""
    whole = max(0, int(seconds))
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes:02d}:{whole % 60:02d}"


def short_worker(worker_id: str) -> str:
    """worker-12 → w12; other names are unchanged."""
    head, dash, number = worker_id.rpartition("-")
    return f"w{number}" if head == "worker" and dash and number.isdigit() else one_line(worker_id, 20)
