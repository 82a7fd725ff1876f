"""Numbers and foreign texts as the screen writes them."""

from __future__ import annotations

from loadgen.log import printable
from loadgen.metrics.percentile import Quantile
from loadgen.model.threshold import InvalidThreshold, ThresholdMetric, parse_threshold
from loadgen.report.formatting import bounded
from loadgen.units import NS_PER_MS

NAME_MAX = 200  # characters of one foreign text on the screen; drawing cuts it to its column
NOTHING = "–"


def one_line(text: str, limit: int = NAME_MAX) -> str:
    """Foreign text on one line, as long as a screen has use for it."""
    return printable(text, limit)


def rate(per_s: float) -> str:
    return f"{per_s:,.0f}" if per_s >= 100 else f"{per_s:.1f}"


def short(number: float) -> str:
    """At most six characters: 12.5, 840, 1,250, 12.5k, 1.2M."""
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
    """In milliseconds."""
    return NOTHING if found is None else bounded(ms(found.value_ns / NS_PER_MS), at_least=found.at_least)


def count(number: int) -> str:
    """At most seven characters."""
    for size, suffix in ((10**12, "T"), (10**9, "G"), (10**6, "M")):
        if number >= size:
            return f"{number / size:,.1f}{suffix}"
    return f"{number:,}"


def percent(fraction: float) -> str:
    """Small shares must not read as none."""
    shown = 100 * fraction
    return f"{shown:.0f} %" if shown >= 10 or shown == 0 else f"{shown:.1f} %" if shown >= 1 else f"{shown:.2g} %"


def measured(check: str, value: float) -> str:
    """What a threshold is compared with, in the unit it is written in."""
    try:
        metric = parse_threshold(check).metric
    except InvalidThreshold:
        return f"{value:.4g}"
    match metric:
        case ThresholdMetric.ERROR_RATE:
            return percent(value)
        case ThresholdMetric.QPS:
            return f"{rate(value)}/s"
        case ThresholdMetric.ERRORS | ThresholdMetric.QUERIES:
            return count(round(value))
        case _:
            return f"{ms(value)} ms"


def clock(seconds: float) -> str:
    """01:42, or 1:01:42."""
    whole = max(0, int(seconds))
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes:02d}:{whole % 60:02d}"


def short_worker(worker_id: str) -> str:
    """worker-12 → w12; other names as they are."""
    head, dash, number = worker_id.rpartition("-")
    return f"w{number}" if head == "worker" and dash and number.isdigit() else one_line(worker_id, 20)
