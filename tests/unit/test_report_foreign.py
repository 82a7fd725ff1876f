"""Foreign text shows literally, and does nothing, in every kind of file."""

from __future__ import annotations

import csv
import html
import io
import json
import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.log import printable
from loadgen.report import formatting
from tests.unit.report_builders import HOSTILE_TEXT

CONTROLS = set(map(chr, [*range(0x20), *range(0x7F, 0xA0)]))
anything = st.text(st.characters(), max_size=300)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31m", "␛[31m"),
        ("a\x00b", "a␀b"),
        ("\x7f\x85", "␡\\u0085"),
        ("\u202eabc", "\\u202eabc"),
        ("\ud800", "\\ud800"),
        ("[/dim] 😀 é", "[/dim] 😀 é"),
        ("two\nlines\tand a tab", "two\nlines\tand a tab"),
        ("\r\n", "␍\n"),
    ],
)
def test_what_cannot_be_seen_is_made_visible(text: str, shown: str) -> None:
    assert printable(text, formatting.BLOCK_MAX, multiline=True) == shown


def test_a_megabyte_is_cut_and_marked() -> None:
    shown = printable("x" * 1_000_000, 100)
    assert shown == "x" * 99 + "…"


@given(anything)
def test_html_reads_back_as_the_visible_text(text: str) -> None:
    written = formatting.html(text, 10_000)
    assert not set("<>\"'") & set(written)
    assert html.unescape(written) == printable(text, formatting.BLOCK_MAX, multiline=True)


@given(anything)
def test_json_in_a_page_reads_back_and_cannot_end_its_element(text: str) -> None:
    written = formatting.html_json({"text": text})
    assert not set("<>&\u2028\u2029") & set(written)
    assert json.loads(written) == {"text": text}


@given(anything)
def test_xml_takes_every_text(text: str) -> None:
    element = ElementTree.Element("a", b=formatting.xml(text))
    element.text = formatting.xml(text)
    read = ElementTree.fromstring(ElementTree.tostring(element, encoding="unicode"))
    assert (read.text or "") == printable(text, formatting.BLOCK_MAX, multiline=True)


@given(anything)
def test_markdown_never_leaves_its_cell_or_its_code(text: str) -> None:
    written = formatting.markdown(text)
    assert "\n" not in written
    if written == "–":
        return
    inner = written[1:-1] if written.startswith("`") else written.removeprefix("<code>").removesuffix("</code>")
    assert not set("`|\\") & set(inner)
    read = inner if written.startswith("`") else html.unescape(inner)
    assert read == printable(text, formatting.LINE_MAX).strip()


def test_markdown_has_no_mentions_outside_code() -> None:
    assert formatting.markdown("@somebody") == "`@somebody`"
    assert formatting.markdown("@somebody | `x`").startswith("<code>&#64;somebody")
    assert formatting.markdown("  ") == "–"


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", " =1", "\t=1", "\r=1"])
def test_no_cell_of_a_spreadsheet_is_a_formula(text: str) -> None:
    assert formatting.csv(text).lstrip()[0] not in "=+-@\t\r"


@given(anything)
def test_a_cell_stays_one_cell(text: str) -> None:
    written = io.StringIO()
    csv.writer(written, lineterminator="\n").writerow([formatting.csv(text), "next"])
    ((cell, following),) = csv.reader(io.StringIO(written.getvalue()))
    assert following == "next"
    assert not CONTROLS & set(cell)


def test_the_worst_of_all_keeps_its_words() -> None:
    for written in (formatting.html(HOSTILE_TEXT), formatting.xml(HOSTILE_TEXT), formatting.csv(HOSTILE_TEXT)):
        assert "[/dim]" in written
        assert "😀" in written
        assert "␛[31m red ␀" in written


@given(anything)
def test_a_name_may_be_broken_between_its_parts_and_is_otherwise_the_text(text: str) -> None:
    shown = formatting.html_name(text)
    shown = shown.removeprefix('<span class="long">').removesuffix("</span>") if len(text) > 16 else shown
    assert shown.replace("<wbr>", "") == formatting.html(text)


def test_a_name_is_broken_after_its_marks_only() -> None:
    assert formatting.html_name("a_b.c") == "a_b.c"  # short enough for a line
    assert "a_<wbr>b.<wbr>cccccccccccccc" in formatting.html_name("a_b.cccccccccccccc")
    assert formatting.html_name("<i>_'&x") == "&lt;i&gt;_&#x27;&amp;x"
