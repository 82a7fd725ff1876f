"""How the SQL files are read, and what is done to values before they are bound."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.control import session
from loadgen.control.session import (
    TRUNCATION_MARK,
    clean_json,
    clean_text,
    clip_text,
    details_json,
    load_queries,
    query_files,
    rows_json,
    without_comments,
)

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "schemas" / "queries").glob("*.sql"))
LONE, NUL, REPLACEMENT = "\ud800", "\0", "\ufffd"


# --- files -----------------------------------------------------------------------------------------------------------


def test_a_query_knows_its_name_its_text_and_its_binds():
    found = load_queries("run_leases")["newest"]

    assert found.name == "run_leases.newest"
    assert found.sql.startswith("SELECT EPOCH, OWNER, DATEDIFF(")
    assert found.sql.endswith("ORDER BY EPOCH DESC LIMIT 1")
    assert found.binds == 1


def test_a_file_is_read_once():
    assert load_queries("test_logs") is load_queries("test_logs")


def test_every_file_is_a_table():
    assert list(query_files()) == [path.stem for path in FILES]
    assert len(query_files()) > 10


def test_a_table_without_a_file_is_a_mistake():
    with pytest.raises(FileNotFoundError):
        load_queries("no_such_table")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_nothing_in_a_file_is_lost(path):
    """Two blocks of one name, a statement before the first or a second one in a block would be passed over silently."""
    text_of_file = path.read_text("utf-8")
    names = re.findall(r"^-- *name *:(.*)$", text_of_file, re.MULTILINE)

    before, *_ = re.split("^-- (?:name|part): ", text_of_file, maxsplit=1, flags=re.MULTILINE)

    assert [name.strip() for name in names] == list(load_queries(path.stem))
    assert without_comments(before).strip() == ""
    assert without_comments(text_of_file).count(";") == len(names)
    assert all(query.sql for query in load_queries(path.stem).values())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_each_part_is_used_and_replaced(path):
    text_of_file = path.read_text("utf-8")

    parts = re.findall(r"^-- part: (.*)$", text_of_file, re.MULTILINE)

    assert all(f"{{{part}}}" in text_of_file for part in parts)
    assert all("{" not in query.sql.replace("{limit}", "") for query in load_queries(path.stem).values())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_each_statement_is_about_the_table_of_its_file(path):
    for query in load_queries(path.stem).values():
        table = query.name.partition(".")[2] if path.stem == "prune" else path.stem
        assert table.upper().removesuffix("S") in query.sql or query.name in (
            "run_status.server_time",
            "prune.old",
            "prune.old_queued",
            "prune.old_experiments",
            "prune.warehouse_leases",
            "prune.experiment_lease",
            "prune.experiment_leases",
        )


def test_a_limit_is_a_number_in_the_statement():
    query = load_queries("run_status")["newest"]

    assert query.limited(25).sql.endswith("RUN_ID DESC LIMIT 25")
    assert query.limited(25).binds == query.binds == 0


@pytest.mark.parametrize("rows", [-1, True, 1.0, "1", "1; DROP TABLE T", None, 10**9])
def test_an_invalid_number_of_rows_is_never_put_into_a_statement(rows):
    with pytest.raises(ValueError, match="is not a number of rows"):
        load_queries("run_status")["newest"].limited(rows)


def test_a_statement_without_the_mark_takes_no_limit():
    with pytest.raises(ValueError, match=r"run_leases.newest has no \{limit\}"):
        load_queries("run_leases")["newest"].limited(1)


def test_comments_do_not_travel():
    assert without_comments("-- why\nSELECT ?\n  -- and how?\nFROM T;") == "SELECT ?\nFROM T;"


# --- texts -----------------------------------------------------------------------------------------------------------


@given(st.text(alphabet=st.characters(), max_size=40), st.integers(20, 60))
def test_any_text_becomes_storable(foreign, limit):
    kept = clip_text(foreign, limit)

    assert len(kept) <= limit
    assert NUL not in kept
    kept.encode("utf-8")  # a lone surrogate could not be encoded


def test_storable_texts_are_unchanged():
    for kept in ("", "plain", 'it\'s "quoted" \\ ; -- ?', "über 😀 \u2028", "tab\tline\n", "\x1b[31m"):
        assert clean_text(kept) == clip_text(kept, 1000) == kept


def test_unstorable_characters_are_replaced_not_dropped():
    assert clean_text(f"a{NUL}b{LONE}c") == f"a{REPLACEMENT}b{REPLACEMENT}c"


@pytest.mark.parametrize(("length", "cut"), [(999, False), (1000, False), (1001, True), (1_000_000, True)])
def test_a_text_is_cut_at_its_limit_and_marked(length, cut):
    kept = clip_text("x" * length, 1000)

    assert len(kept) == min(length, 1000)
    assert kept.endswith(TRUNCATION_MARK) is cut


# --- JSON ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("written", [None, "{}", '{"a":[1,2.5,null,true,"x"]}', " [1] ", "no json"])
def test_harmless_json_is_not_touched(written):
    assert clean_json(written) is written


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        (r'{"a":"\u0000"}', {"a": REPLACEMENT}),
        (r'{"a\ud800":["\uDfff"]}', {f"a{REPLACEMENT}": [REPLACEMENT]}),
        ('{"a":NaN,"b":[Infinity,-Infinity]}', {"a": "nan", "b": ["inf", "-inf"]}),
        (r'{"a":"\ud83d\ude00"}', {"a": "😀"}),
        (r'{"a":"\\u0000"}', {"a": "\\u0000"}),  # a backslash and some letters, no NUL
        ('{"a":"NaN"}', {"a": "NaN"}),
        ('{"a":"é"}', {"a": "é"}),
    ],
)
def test_json_is_made_storable(written, kept):
    found = clean_json(written)

    assert found is not None
    assert found.isascii()
    assert json.loads(found) == kept
    assert not re.search(r"(?<!\\)\\u0000", found)


@pytest.mark.parametrize("written", ["NaN{", '{"é":', "[" * 100_000 + "NaN"])
def test_invalid_json_is_left_to_the_server(written):
    assert clean_json(written) == written


def circle() -> dict[str, object]:
    inner: dict[str, object] = {}
    inner["again"] = inner
    return inner


@pytest.mark.parametrize(
    ("details", "kept"),
    [
        ({"a": {"b": [1, (2.5, None)]}}, {"a": {"b": [1, [2.5, None]]}}),
        ({"a": float("nan"), "b": f"{NUL}{LONE}"}, {"a": "nan", "b": REPLACEMENT * 2}),
        ({("a", 1): {1, }}, {"('a', 1)": "{1}"}),
        ({"a": ValueError("no")}, {"a": "no"}),
        (circle(), {"unreadable": "dict"}),
        ({"a": "x" * 500}, {"truncated": '{"a": "' + "x" * 193}),
    ],
    ids=["nested", "odd values", "odd keys", "objects", "a circle", "too long"],
)  # fmt: skip
def test_details_of_any_shape_become_json(details, kept):
    assert json.loads(details_json(details, 200)) == kept


# --- batches ---------------------------------------------------------------------------------------------------------


def test_a_batch_has_a_limited_number_of_rows():
    rows = [(number,) for number in range(2 * session.ROWS_MAX + 1)]

    batches = list(session.in_batches(rows))

    assert [len(part) for part in batches] == [session.ROWS_MAX, session.ROWS_MAX, 1]
    assert [row for part in batches for row in part] == rows


def test_a_batch_has_a_limited_size():
    third = "x" * (session.BYTES_MAX // 3 - len(rows_json([""])) - 2)
    rows = [(third,)] * 4 + [(third * 6,)] + [(third,)]

    batches = list(session.in_batches(rows))

    assert [len(part) for part in batches] == [3, 1, 1, 1]


def test_a_text_that_is_not_ascii_counts_as_it_travels():
    rows = [("é" * (session.BYTES_MAX // 10),)] * 2

    assert [len(part) for part in session.in_batches(rows)] == [1, 1]


def test_no_rows_are_no_batch():
    assert list(session.in_batches([])) == []


@given(st.lists(st.lists(st.text(max_size=200) | st.integers() | st.none() | st.floats(), max_size=9), max_size=99))
def test_a_batch_is_as_large_as_its_rows(rows):
    sizes = [len(rows_json(part).encode()) for part in session.in_batches(rows)]

    assert all(size <= session.BYTES_MAX for size in sizes)
    assert sum(sizes) <= sum(len(rows_json([row])) for row in rows)
