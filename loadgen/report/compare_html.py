"""A comparison as one HTML file: no script, nothing from the network, and a policy that forbids both. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from loadgen.report import formatting
from loadgen.report.compare_charts import COLOURS, LETTERS, charts
from loadgen.report.compare_text import interval, point, remarks, unit, value_text, verdict
from loadgen.report.comparison import ChangeVerdict, Comparison, MetricChange
from loadgen.report.escaping import html
from loadgen.report.likeness import SettingDifference
from loadgen.report.page_parts import note, section, short, table, whole
from loadgen.report.page_style import POLICY, STYLE
from loadgen.report.svg import Chart, svg

DIFFERENCES_MAX = 200
VALUE_MAX = 400  # characters of a setting

_CLASSES = {ChangeVerdict.WORSE: "failed", ChangeVerdict.BETTER: "passed", ChangeVerdict.EQUIVALENT: "passed"}
_CELLS = {ChangeVerdict.WORSE: "miss", ChangeVerdict.BETTER: "ok", ChangeVerdict.EQUIVALENT: "ok"}
_HEAD = ("metric", "verdict", "A", "B", "change", "95 % interval", "limit")


def comparison_html(comparison: Comparison) -> str:
    """The whole file."""
    found = comparison.verdict
    a, b = (html(run.run_id) for run in (comparison.a, comparison.b))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{html(POLICY)}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{found.value}: {a} and {b}</title><style>{STYLE}</style></head>"
        f'<body class="{_CLASSES.get(found, "invalid")}"><header>'
        f'<div class="banner"><span class="verdict">{found.value.upper()}</span><h1>{a} → {b}</h1></div>'
        f'<p class="why">{html(comparison.reason)}</p></header><main>'
        f"{_runs(comparison)}{_numbers(comparison)}{_pictures(comparison)}{_configuration(comparison.configuration)}"
        "</main><footer><p>Two runs show the variation within a run, not from run to run: for that there is"
        " <code>loadgen trend</code>.</p></footer></body></html>\n"
    )


def _runs(comparison: Comparison) -> str:
    rows = [
        [
            *map(short, (letter, run.run_id, run.scenario, run.started_at or "–")),
            f'<td class="n">{run.merged.seconds:.0f} s</td>',
        ]
        for letter, run in zip(LETTERS, (comparison.a, comparison.b), strict=True)
    ]
    return section("runs", "Runs", table("runs", ("", "run", "scenario", "started", "measured"), rows, words=4))


def _numbers(comparison: Comparison) -> str:
    groups: dict[str | None, list[MetricChange]] = {}
    for change in comparison.changes:
        groups.setdefault(change.statement, []).append(change)
    tables = [
        table("all statements" if name is None else html(name, 200), _HEAD, map(_row, changes), words=2)
        for name, changes in groups.items()
    ]
    rule = note(
        f"* counts toward the verdict: {comparison.comparisons} comparisons. Percentiles are interpolated, and up to"
        " 1 % off those of the runs’ own reports."
    )
    said = [note(f"{html(remark, 500)}.") for remark in remarks(comparison)]
    return section("numbers", "What changed", *tables, rule, *said)


def _row(change: MetricChange) -> Sequence[str]:
    measure = change.measure
    why = f' title="{html(change.why)}"' if change.why else ""
    numbers = (
        formatting.value_of(measure, change.a, at_least=change.at_least[0]),
        formatting.value_of(measure, change.b, at_least=change.at_least[1]),
        point(change),
        interval(change),
        f"{100 * change.limit:g} {unit(measure)}",
    )
    return (
        short(f"{measure.value}{' *' if change.counts else ''}"),
        f'<td class="{_CELLS.get(change.verdict, "w")}"{why}>{verdict(change)}</td>',
        *(f'<td class="n">{number}</td>' for number in numbers),
    )


def _pictures(comparison: Comparison) -> str:
    return section("pictures", "A and B over each other", *map(_picture, charts(comparison)))


def _picture(chart: Chart) -> str:
    keys = (
        ""
        if chart.dots
        else "".join(
            f'<span class="key {css}"><i></i>{letter}</span>' for letter, css in zip(LETTERS, COLOURS, strict=True)
        )
    )
    return (
        f'<figure><figcaption><strong>{chart.title}</strong><span class="keys">{keys}</span></figcaption>'
        f'<div class="plot">{svg(chart)}</div></figure>'
    )


def _configuration(configuration: Sequence[SettingDifference]) -> str:
    if not configuration:
        return section("configuration", "Configuration", note("Same scenario, same environment."))
    rows = [
        [*(whole(text, 500) for text in (one.key, _value(one.a), _value(one.b))), short(_role(one))]
        for one in configuration[:DIFFERENCES_MAX]
    ]
    left = len(configuration) - len(rows)
    more = [note(f"{left} more are not shown.")] if left else []
    head = ("setting", "A", "B", "role")
    return section("configuration", "Configuration", table("what differs", head, rows, words=4), *more)


def _value(value: object) -> str:
    return value_text(value, VALUE_MAX) or "set"


def _role(one: SettingDifference) -> str:
    return "compared (--vary)" if one.varied else "not expected to matter"
