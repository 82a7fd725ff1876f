"""Parts of HTML pages: tables, lists of facts, sections, style and script. Arguments are HTML unless noted."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence

from loadgen.report import formatting
from loadgen.report.formatting import html, html_name
from loadgen.report.svg import Chart, svg


def number(value: float | None, shown: str) -> str:
    """A cell with a number. Its machine-readable value is the exact number of summary.json."""
    return f'<td class="n">{data(value, shown)}</td>'


def data(value: float | None, shown: str) -> str:
    return html(shown) if value is None else f'<data value="{formatting.exact(value)}">{html(shown)}</data>'


def text(content: str, limit: int = 200) -> str:
    """A cell with foreign text, broken into lines."""
    return f'<td><div class="t">{html(content, limit)}</div></td>'


def named(content: str, limit: int = 200) -> str:
    """A cell with a foreign name, which is not broken inside words."""
    return f"<td>{html_name(content, limit)}</td>"


def short(content: str, limit: int = 60) -> str:
    """A cell with foreign text, which is not broken into lines."""
    return f'<td class="w">{html(content, limit)}</td>'


def whole(content: str, limit: int = 200) -> str:
    """A cell with foreign text, which is broken inside words only if a word is wider than the column."""
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
    """The first `words` and the last `last_words` columns are aligned to the left, the columns of numbers to the right.
    With `fit`, the table is as narrow as possible."""
    numbers = range(words, len(head) - last_words)
    headings = "".join(
        f'<th scope="col"{" class=n" if column in numbers else ""}>{title}</th>' for column, title in enumerate(head)
    )
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    width = " fit" if fit else ""
    return (
        f'<div class="scroll{width}" tabindex="0" role="region" aria-label="{caption}">'
        f"<table><caption><span>{caption}</span></caption>"
        f"<thead><tr>{headings}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    listed = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in pairs if value)
    return f'<dl class="facts">{listed}</dl>'


def html_page(title: str, *body: str, css: str = "") -> str:
    """A complete HTML file. It loads nothing from the network, and its policy forbids it."""
    attribute = f' class="{css}"' if css else ""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{title}</title><style>{STYLE}</style></head>\n"
        f"<body{attribute}>{''.join(body)}</body></html>\n"
    )


def verdict_page(
    verdict: str, title: str, why: str, *parts: str, css: str, heading: str = "", about: str = "", footer: str = ""
) -> str:
    """A page without a script: the verdict and its reason, then the parts. Scroll hints are made by CSS alone. The
    heading is the title unless it has markup."""
    return html_page(
        f"{verdict}: {title}",
        f'<header><div class="banner"><span class="verdict">{verdict.upper()}</span><h1>{heading or title}</h1></div>',
        f'<p class="why">{html(why)}</p>{about}</header><main>{"".join(parts)}</main><footer><p>{footer}</p></footer>',
        css=f"{css} plain",
    )


def section(name: str, title: str, *body: str) -> str:
    return f'<section id="{name}" aria-labelledby="{name}-h"><h2 id="{name}-h">{title}</h2>{"".join(body)}</section>'


def note(content: str) -> str:
    return f'<p class="note">{content}</p>'


def details(title: str, content: str) -> str:
    return f"<details><summary>{title}</summary>{content}</details>"


def code(content: str, limit: int) -> str:
    return f'<pre tabindex="0"><code>{html(content, limit)}</code></pre>'


def figure(
    chart: Chart, keys: Sequence[tuple[str, str, str]], group: str = "", signs: str = "", missing: str = ""
) -> str:
    """A chart with its legend: (css, name, unit) of each line. The script shows the values under the cursor. `missing`
    names the lines that are not drawn."""
    legend = signs + "".join(
        f'<span class="key">{stroke(css)}<span>{title}</span> <b data-unit="{unit}"></b></span>'
        for css, title, unit in keys
    )
    legend += f"<span>{missing}</span>" if missing else ""
    marked = f' data-group="{group}"' if group else ""
    return (
        f'<figure data-chart="{chart.chart_id}"{marked}><figcaption><strong>{chart.title}</strong>'
        f'<span class="keys">{legend}<output class="at" aria-live="polite"></output></span></figcaption>'
        f'<div class="plot">{svg(chart)}</div></figure>'
    )


def not_drawn(missing: Mapping[str, str]) -> str:
    """The names of lines that a chart lacks, with the reasons; empty if it lacks none. Names are plain text."""
    names: dict[str, list[str]] = {}
    for name, why in missing.items():
        names.setdefault(why, []).append(html(name, 200))
    listed = "; ".join(f"{', '.join(own)}: {why}" for why, own in names.items())
    return f"not drawn: {listed}" if listed else ""


def plain_figure(chart: Chart, legend: str = "", css: str = "plot") -> str:
    """A chart on a page without a script; `legend` is HTML."""
    return (
        f'<figure><figcaption><strong>{chart.title}</strong><span class="keys">{legend}</span></figcaption>'
        f'<div class="{css}">{svg(chart)}</div></figure>'
    )


def stroke(css: str) -> str:
    """A sample of a line for the legend, with the class of the line: same colour, width and dashes."""
    return f'<svg class="stroke" viewBox="0 0 26 8" aria-hidden="true"><path class="line {css}" d="M0 4H26"/></svg>'


STYLE = """
:root{color-scheme:light dark;--bg:#fff;--card:#f6f7f9;--ink:#1b1f24;--soft:#5b6570;--line:#dfe3e8;--grid:#e9ecf0;
--s1:#0b66c3;--s2:#c2410c;--s3:#0f7b5f;--s4:#8b3fa8;--s5:#8a6a00;--s6:#b0226e;--shade:rgba(20,30,45,.28);--ok:#116a3a;--okbg:#e3f5ea;--bad:#b3261e;--badbg:#fdeaea;
--warn:#8a5200;--warnbg:#fff3dc;--still:#4a5560;--stillbg:#eceff2;--warmup:#8a93a0}
@media (prefers-color-scheme:dark){:root{--bg:#14171b;--card:#1c2026;--ink:#e6e9ed;--soft:#9aa5b1;--line:#323942;
--grid:#272d35;--s1:#5aaef5;--s2:#ff9d5c;--s3:#4fd0a5;--s4:#d59bf0;--s5:#e3c04b;--s6:#ff8fc0;--shade:rgba(235,240,250,.30);--ok:#6fdc9c;--okbg:#12301f;--bad:#ff9a92;
--badbg:#3a1a1a;--warn:#ffc766;--warnbg:#35280f;--still:#b4bec9;--stillbg:#232931;--warmup:#6b7683}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--bg);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans",
sans-serif;font-variant-numeric:tabular-nums}
main,header>*,footer>*{max-width:1400px;margin-inline:auto;padding-inline:20px}
header{border-bottom:1px solid var(--line);padding:22px 0 18px}
.banner{display:flex;gap:14px;align-items:baseline;flex-wrap:wrap}
.verdict{font-weight:700;font-size:15px;letter-spacing:.05em;padding:3px 12px;border-radius:999px;white-space:nowrap}
.passed .verdict{color:var(--ok);background:var(--okbg)}
.failed .verdict,.error .verdict{color:var(--bad);background:var(--badbg)}
.invalid .verdict{color:var(--warn);background:var(--warnbg)}
.cancelled .verdict{color:var(--still);background:var(--stillbg)}
h1{font-size:25px;line-height:1.25;margin:0;overflow-wrap:anywhere}
h1>span{display:inline-block;max-width:100%}
.why{margin:8px auto 0;font-size:16px;overflow-wrap:anywhere}
ul.why{padding-left:42px}
.why.warning{font-size:14px;color:var(--warn)}
.sub{color:var(--soft);margin:4px auto 0;overflow-wrap:anywhere}
.sub>span{display:inline-block;max-width:100%}
nav{display:flex;flex-wrap:wrap;gap:2px 15px;margin-top:12px;font-size:14px}
nav a{color:var(--s1);text-decoration:none;white-space:nowrap}
nav a:hover,nav a:focus{text-decoration:underline}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(130px,1fr));gap:10px;margin:20px 0 0}
.tiles div{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:10px 14px}
.tiles dt{color:var(--soft);font-size:13px}
.tiles dd{margin:0;font-size:23px;font-weight:650;line-height:1.3}
.tiles small{font-size:13px;font-weight:400;color:var(--soft)}
section{margin-top:34px}
h2{font-size:18px;margin:0 0 10px;padding-bottom:5px;border-bottom:1px solid var(--line)}
.facts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(300px,100%),1fr));gap:4px 26px;margin:0}
.facts div{display:grid;grid-template-columns:118px minmax(0,1fr);gap:10px;padding:3px 0}
.facts dt{color:var(--soft);overflow-wrap:break-word;min-width:0}
.facts dd{margin:0;overflow-wrap:anywhere}
.scroll,.plot{overflow-x:auto;background:
linear-gradient(to right,var(--bg) 40%,transparent) left top/44px calc(100% + 2px) no-repeat local,
linear-gradient(to left,var(--bg) 40%,transparent) right top/44px calc(100% + 2px) no-repeat local,
linear-gradient(to right,var(--shade),transparent) left/16px 100% no-repeat scroll,
linear-gradient(to left,var(--shade),transparent) right/16px 100% no-repeat scroll}
.wide::before,.plain :is(.plot,.scroll)::before{content:"↔ scroll sideways";position:sticky;left:0;
display:inline-block;color:var(--soft);font-size:12px;line-height:1.5}
.plain :is(.plot,.scroll)::before{display:block;width:max-content;visibility:hidden;height:0;animation:hint linear;
animation-timeline:scroll(nearest inline)}
@keyframes hint{from,to{visibility:visible;height:18px}}
@supports not (animation-timeline:scroll()){@media (max-width:660px){
.plain .plot::before{visibility:visible;height:18px}}}
table{border-collapse:collapse;width:100%;font-size:14px}
.fit table{width:auto}
caption{text-align:left;color:var(--soft);font-size:13px;padding-bottom:4px}
caption>span{position:sticky;left:0;display:inline-block;max-width:min(100%,100vw - 24px)}
th,td{padding:5px 10px;border-bottom:1px solid var(--line);text-align:left;vertical-align:top}
td{min-width:3.2em}
th{vertical-align:bottom}
:is(td,th)>.long{display:inline-block;min-width:13em;white-space:normal}
td>.t{min-width:15em;overflow-wrap:anywhere}
th{font-weight:600;color:var(--soft);font-size:13px;white-space:nowrap}
th.n,td.n{text-align:right;white-space:nowrap}
td.w{white-space:nowrap}
tr:has(+tr>td.reason)>td{border-bottom:0}
td.reason{padding-top:0;color:var(--soft)}
td.reason>span{position:sticky;left:10px;display:inline-block;max-width:min(100%,100vw - 44px);overflow-wrap:anywhere}
td.b{overflow-wrap:break-word;max-width:26em}
tbody tr:hover{background:var(--card)}
tr.all td{font-weight:650}
td.ok{color:var(--ok);font-weight:600;white-space:nowrap}
td.limited{color:var(--warn);font-weight:600;white-space:nowrap}
td.miss{color:var(--bad);font-weight:600;white-space:nowrap}
figure{margin:0 0 14px}
.scroll+.scroll,.scroll+figure,.scroll+.pair,.facts+.scroll,.note+.pair{margin-top:16px}
figcaption{display:flex;flex-wrap:wrap;gap:2px 18px;align-items:baseline;font-size:14px;padding-left:4px}
.keys{display:flex;flex-wrap:wrap;gap:2px 16px;color:var(--soft);font-size:13px}
.key>span{overflow-wrap:break-word}
.key b{color:var(--ink);font-weight:600;display:inline-block;min-width:2.5em}
.stroke{width:26px;height:8px;margin-right:6px;vertical-align:middle}
.share{display:block;width:100%;min-width:90px;height:9px;margin-top:6px}
.plot svg{display:block;width:100%;min-width:620px;height:auto}
.plot svg#changes{max-width:440px;min-width:0}
.pair{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(420px,100%),1fr));gap:6px 20px}
.pair .plot svg{min-width:400px}
.three{grid-template-columns:repeat(auto-fit,minmax(310px,1fr))}
.three .plot svg{min-width:300px}
svg text{font-size:11px;fill:var(--soft);font-family:inherit}
svg:focus-visible,.scroll:focus-visible,pre:focus-visible{outline:2px solid var(--s1);outline-offset:2px}
.grid{stroke:var(--grid)}
.axis{stroke:var(--line)}
.line{fill:none;stroke-width:1.6;stroke-linejoin:round;stroke:currentColor}
.area{fill:currentColor;opacity:.13;stroke:none}
svg .name{font-weight:600;fill:currentColor}
svg .note{fill:var(--soft);font-size:10px}
.dot{fill:currentColor;stroke:var(--bg)}
.cross{stroke:currentColor;stroke-width:2.2;fill:none}
.limit,.limit.beyond{color:var(--soft)}.limit.missed{color:var(--bad)}
.ink{color:var(--ink)}.s1{color:var(--s1)}.s2{color:var(--s2)}.s3{color:var(--s3)}.s4{color:var(--s4)}.s5{color:var(--s5)}.s6{color:var(--s6)}
.s2.line{stroke-width:1.4}.s4.line,.s5.line,.s6.line{stroke-dasharray:5 3}
.bar{fill:var(--s1);opacity:.75}
.band{fill:var(--warmup);opacity:.14}
.band.measured{opacity:0}
.band.stall{fill:var(--bad);opacity:.22}
.mark line{stroke:var(--soft);stroke-dasharray:2 3;opacity:.75}
.mark.start line,.mark.stop line{stroke:var(--ink);stroke-dasharray:none}
.mark.lost line,.mark.broken line,.mark.refused line,.mark.reconnect line{stroke:var(--bad)}
.mark.lost line{stroke-width:2;stroke-dasharray:none}
.mark.held line{stroke:var(--ok)}
.mark.limited line{stroke:var(--warn)}
svg :is(.note.lost,.note.broken,.note.refused,.note.reconnect){fill:var(--bad)}
svg .note.held{fill:var(--ok)}
svg .note.limited{fill:var(--warn)}
line.limit{stroke:currentColor;stroke-width:1.3;stroke-dasharray:9 4}
svg text.limit{font-size:10.5px;font-weight:600;fill:currentColor}
.cursor{stroke:var(--ink);opacity:.55;pointer-events:none}
.note{color:var(--soft);font-size:13.5px;margin:6px 0}
details{margin:8px 0}
summary{cursor:pointer;color:var(--s1);font-size:14px}
pre{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:10px 12px;overflow-x:auto;
font-size:12.5px;line-height:1.45;margin:6px 0;white-space:pre-wrap;overflow-wrap:anywhere;max-height:460px}
code{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace}
footer{color:var(--soft);font-size:13px;margin-top:40px;border-top:1px solid var(--line);padding:14px 0 30px}
@media (max-width:600px){h1{font-size:17px}main,header>*,footer>*{padding-inline:12px}
.facts div{grid-template-columns:112px minmax(0,1fr)}
.pair,.three{grid-template-columns:minmax(0,1fr)}td>.t{min-width:12em}
.plot svg{min-width:860px}.pair .plot svg{min-width:500px}.three .plot svg{min-width:300px}
.plot.newest{direction:rtl}.plot.newest svg{direction:ltr}
.key b:empty{display:none}}
@media print{:root{--bg:#fff;--card:#fff;--ink:#000;--soft:#444;--line:#bbb;--grid:#ddd;--s1:#0b66c3;--s2:#c2410c;
--s3:#0f7b5f;--s4:#8b3fa8;--s5:#8a6a00;--s6:#b0226e;--shade:transparent;--ok:#116a3a;--okbg:#fff;--bad:#b3261e;--badbg:#fff;--warn:#8a5200;--warnbg:#fff;--still:#333;
--stillbg:#fff;--warmup:#8a93a0}
body{font-size:11px}nav,.at,.key b,.wide::before,.plain :is(.plot,.scroll)::before{display:none}
.verdict{border:1.5px solid currentColor}
main,header>*,footer>*{max-width:none;padding-inline:0}section{margin-top:20px}table{font-size:10px}
th,caption{font-size:10px}
th,td{padding:3px 6px}.plot svg{min-width:0}.pair{grid-template-columns:1fr 1fr}
.three{grid-template-columns:1fr 1fr 1fr}.pair .plot svg{min-width:0}
figure,tr,.tiles div{break-inside:avoid}h2{break-after:avoid}.scroll,.plot{overflow:visible}
pre{max-height:none;font-size:9px}
.tiles dd{font-size:17px}.tiles{gap:6px}.note,figcaption,.keys,summary{font-size:10px}thead{break-after:avoid}}
"""

SCRIPT = """
(function () {
  "use strict";
  var data = JSON.parse(document.getElementById("data").textContent);
  var figures = Array.prototype.slice.call(document.querySelectorAll("figure[data-chart]"));
  function nearest(places, x) {
    var best = 0;
    for (var i = 1; i < places.length; i++) {
      if (Math.abs(places[i] - x) < Math.abs(places[best] - x)) best = i;
    }
    return best;
  }
  function show(figure, index) {
    var chart = data.charts[figure.dataset.chart], axis = data.axes[chart.axis];
    var cursor = figure.querySelector(".cursor"), at = figure.querySelector("output.at");
    var shown = index !== null, x = shown ? axis.px[index] : -9;
    cursor.setAttribute("x1", x);
    cursor.setAttribute("x2", x);
    at.textContent = shown ? axis.at[index] : "";
    Array.prototype.forEach.call(figure.querySelectorAll(".key b"), function (place, number) {
      var values = chart.values[number], known = shown && values && values[index] !== null;
      place.textContent = known ? values[index] + place.dataset.unit : "";
    });
  }
  function everywhere(figure, index) {
    figures.forEach(function (other) {
      var together = figure.dataset.group && other.dataset.group === figure.dataset.group;
      if (other === figure || together) show(other, index);
    });
  }
  function hint() {
    Array.prototype.forEach.call(document.querySelectorAll(".scroll,.plot"), function (box) {
      box.classList.toggle("wide", box.scrollWidth > box.clientWidth + 1);
    });
  }
  window.addEventListener("resize", hint);
  document.addEventListener("toggle", hint, true);
  hint();
  figures.forEach(function (figure) {
    var chart = data.charts[figure.dataset.chart];
    if (!chart) return;
    var picture = figure.querySelector(".plot svg"), places = data.axes[chart.axis].px, index = null;
    picture.addEventListener("pointermove", function (event) {
      var box = picture.getBoundingClientRect();
      index = nearest(places, (event.clientX - box.left) / box.width * picture.viewBox.baseVal.width);
      everywhere(figure, index);
    });
    picture.addEventListener("pointerleave", function () { index = null; everywhere(figure, null); });
    picture.addEventListener("blur", function () { index = null; everywhere(figure, null); });
    picture.addEventListener("keydown", function (event) {
      var step = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
      if (!step) return;
      event.preventDefault();
      index = index === null ? (step > 0 ? 0 : places.length - 1) : index + step;
      index = Math.min(Math.max(index, 0), places.length - 1);
      everywhere(figure, index);
    });
  });
})();
"""


def _hash(content: str) -> str:
    return base64.b64encode(hashlib.sha256(content.encode("utf-8")).digest()).decode("ascii")


# The page can load and send nothing, and no other script or style is applied.
POLICY = (
    f"default-src 'none'; script-src 'sha256-{_hash(SCRIPT)}'; style-src 'sha256-{_hash(STYLE)}';"
    " base-uri 'none'; form-action 'none'"
)
