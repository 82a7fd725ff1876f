"""Pieces of the HTML report: tables, lists of facts, sections. What is passed in is HTML already."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from loadgen.report import formatting
from loadgen.report.escaping import html, html_name
from loadgen.report.svg import Chart, svg


def number(value: float | None, shown: str) -> str:
    """A cell; the exact number of summary.json is its machine-readable value."""
    return f'<td class="n">{data(value, shown)}</td>'


def data(value: float | None, shown: str) -> str:
    return html(shown) if value is None else f'<data value="{formatting.exact(value)}">{html(shown)}</data>'


def text(content: str, limit: int = 200) -> str:
    """A cell with foreign text, in as many lines as it needs."""
    return f'<td><div class="t">{html(content, limit)}</div></td>'


def named(content: str, limit: int = 200) -> str:
    """A cell with a foreign name: whole, and not broken inside its words."""
    return f"<td>{html_name(content, limit)}</td>"


def short(content: str, limit: int = 60) -> str:
    """A cell with foreign text that is not broken into lines."""
    return f'<td class="w">{html(content, limit)}</td>'


def whole(content: str, limit: int = 200) -> str:
    """A cell with foreign text whose words are not broken, unless one is wider than a column may be."""
    return f'<td class="b">{html(content, limit)}</td>'


def table(
    caption: str,
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    words: int = 1,
    last_words: int = 0,
    fit: bool = False,
) -> str:
    """Headings of the first `words` and the last columns stand to the left, those of numbers to the right. With `fit`
    it is only as wide as it must be."""
    numbers = range(words, len(head) - last_words)
    headings = "".join(
        f'<th scope="col"{" class=n" if column in numbers else ""}>{title}</th>' for column, title in enumerate(head)
    )
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    width = " fit" if fit else ""
    return (
        f'<div class="scroll{width}" tabindex="0" role="region" aria-label="{caption}">'
        f"<table><caption>{caption}</caption>"
        f"<thead><tr>{headings}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    listed = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in pairs if value)
    return f'<dl class="facts">{listed}</dl>'


def section(name: str, title: str, *body: str) -> str:
    return f'<section id="{name}" aria-labelledby="{name}-h"><h2 id="{name}-h">{title}</h2>{"".join(body)}</section>'


def note(content: str) -> str:
    return f'<p class="note">{content}</p>'


def details(title: str, content: str) -> str:
    return f"<details><summary>{title}</summary>{content}</details>"


def code(content: str, limit: int) -> str:
    return f'<pre tabindex="0"><code>{html(content, limit)}</code></pre>'


def figure(chart: Chart, keys: Sequence[tuple[str, str, str]], group: str = "", signs: str = "") -> str:
    """A chart with its legend: (css, name, unit) of each line. The script fills in what is under the cursor."""
    legend = signs + "".join(
        f'<span class="key">{_stroke(css)}<span>{title}</span> <b data-unit="{unit}"></b></span>'
        for css, title, unit in keys
    )
    marked = f' data-group="{group}"' if group else ""
    return (
        f'<figure data-chart="{chart.chart_id}"{marked}><figcaption><strong>{chart.title}</strong>'
        f'<span class="keys">{legend}<output class="at" aria-live="polite"></output></span></figcaption>'
        f'<div class="plot">{svg(chart)}</div></figure>'
    )


def _stroke(css: str) -> str:
    """A piece of a line, drawn as the line is: the same class, so the same colour, width and dashes."""
    return f'<svg class="stroke" viewBox="0 0 26 8" aria-hidden="true"><path class="line {css}" d="M0 4H26"/></svg>'
