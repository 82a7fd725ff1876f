"""Value pools: stored and read back unchanged, and never larger than allowed."""

import io
import json
from datetime import date, datetime, time, timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import RunFailed, ScenarioInvalid
from loadgen.workload import pools
from loadgen.workload.pools import (
    CHUNK_BYTES_MAX,
    POOL_VALUES_MAX,
    Pool,
    PoolScalar,
    from_chunks,
    pool_from_rows,
    read_csv_column,
    to_chunks,
)

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**38), 10**38),
    st.floats(allow_nan=False),
    st.text(max_size=20),
    st.decimals(allow_nan=False, allow_infinity=False),
    st.datetimes(),
    st.dates(),
    st.times(),
    st.binary(max_size=20),
)


@given(st.lists(scalars, min_size=1, max_size=50))
def test_a_pool_comes_back_as_it_was_stored(values):
    pool = Pool("p", tuple(values))

    back = from_chunks("p", to_chunks(pool))

    assert back == pool
    assert [type(value) for value in back.values] == [type(value) for value in values]


def test_chunks_are_in_order_and_small_enough():
    pool = Pool("p", tuple(f"{number}é" * 10 for number in range(60_000)))

    chunks = list(to_chunks(pool))

    assert len(chunks) > 3
    assert all(len(chunk.encode()) <= CHUNK_BYTES_MAX for chunk in chunks)
    assert all(chunk.isascii() and json.loads(chunk) for chunk in chunks)
    assert min(len(chunk) for chunk in chunks[:-1]) > 0.99 * CHUNK_BYTES_MAX
    assert from_chunks("p", chunks) == pool


def test_a_missing_or_misplaced_chunk_is_noticed():
    chunks = list(to_chunks(Pool("p", ("x" * 90_000,) * 30)))

    for damaged in (chunks[:-1], chunks[1:], [], [chunks[1], chunks[0], *chunks[2:]], [*chunks, chunks[-1]]):
        with pytest.raises(RunFailed, match="value pool p was not stored completely"):
            from_chunks("p", damaged)


@pytest.mark.parametrize("text", ["", "[]", "1", '{"first": 0}', '{"first": 0, "of": 1, "values": [{"what": "1"}]}'])
def test_a_chunk_that_is_not_ours_is_noticed(text):
    with pytest.raises(RunFailed, match="cannot be read"):
        from_chunks("p", [text])


def test_values_of_the_database_keep_their_types():
    values = (Decimal("1.50"), date(2024, 2, 29), datetime(2024, 2, 29, 1, 2, 3, 4), time(1, 2, 3), b"\x00\xff")  # noqa: DTZ001

    assert [repr(value) for value in from_chunks("p", to_chunks(Pool("p", values))).values] == [repr(v) for v in values]


def test_what_a_driver_cannot_bind_is_refused():
    with pytest.raises(ScenarioInvalid, match="value 1 is a list"):
        list(to_chunks(Pool("p", (1, [2]))))  # type: ignore[arg-type]


def test_pools_are_bounded(monkeypatch):
    with pytest.raises(ScenarioInvalid, match="it is empty"):
        Pool("p", ())
    with pytest.raises(ScenarioInvalid, match="more than 1,000,000 values"):
        Pool("p", (1,) * (POOL_VALUES_MAX + 1))
    with pytest.raises(ScenarioInvalid, match="value 1 takes"):
        list(to_chunks(Pool("p", ("a", "b" * CHUNK_BYTES_MAX))))
    monkeypatch.setattr(pools, "POOL_BYTES_MAX", 5 << 20)
    with pytest.raises(ScenarioInvalid, match="more than 5 MB"):
        list(to_chunks(Pool("p", ("a" * 600_000,) * 10)))


# --- rows of a query -------------------------------------------------------------------------------------------------


def test_a_pool_holds_the_first_column_of_its_rows_in_order():
    rows = iter([(3, "c"), (1, "a"), (None, "n"), (Decimal("1.50"), "d"), (3, "again")])

    assert pool_from_rows("p", rows) == Pool("p", (3, 1, None, Decimal("1.50"), 3))


def test_a_query_without_rows_is_reported_with_a_hint():
    with pytest.raises(ScenarioInvalid, match="value pool p: its query gives no rows") as found:
        pool_from_rows("p", [])

    assert "loadgen prepare" in found.value.remedy


@pytest.mark.parametrize("value", [[1], {"a": 1}, (1, 2), object(), timedelta(seconds=1), 1j])
def test_rows_with_what_cannot_be_bound_are_refused(value):
    with pytest.raises(ScenarioInvalid, match=f"value 1 is a {type(value).__name__}, which cannot be bound") as found:
        pool_from_rows("p", [(1,), (value,)])

    assert "VARCHAR" in found.value.remedy


def test_rows_are_counted_while_they_are_read(monkeypatch):
    monkeypatch.setattr(pools, "POOL_VALUES_MAX", 3)
    rows = iter([(number,) for number in range(100)])

    with pytest.raises(ScenarioInvalid, match="value pool p: more than 3 values"):
        pool_from_rows("p", rows)
    assert next(rows) == (4,), "nothing more was read"
    assert pool_from_rows("p", [(1,), (2,), (3,)]).values == (1, 2, 3)


def test_rows_are_weighed_while_they_are_read(monkeypatch):
    monkeypatch.setattr(pools, "POOL_BYTES_MAX", 2 << 20)
    rows = iter([("x" * 800_000,)] * 100)

    with pytest.raises(ScenarioInvalid, match="value pool p: its values take more than 2 MB"):
        pool_from_rows("p", rows)
    assert len(list(rows)) == 97
    with pytest.raises(ScenarioInvalid, match="value 0 takes"):
        pool_from_rows("p", [("x" * CHUNK_BYTES_MAX,)])


# --- CSV -------------------------------------------------------------------------------------------------------------


def read(content: bytes, column: str | None = "NAME") -> tuple[PoolScalar, ...]:
    return read_csv_column(io.BytesIO(content), column, name="region", source="regions.csv").values


@pytest.mark.parametrize(
    ("content", "values"),
    [
        (b"NAME\nnorth\nsouth\n", ("north", "south")),
        (b"ID,NAME\r\n1,north\r\n2,south", ("north", "south")),
        (b"\xef\xbb\xbfNAME\nG\xc3\xb6teborg\n", ("Göteborg",)),  # a byte order mark is no part of the name
        (b'ID, NAME \n1,"a, ""b""\nc"\n\n2,d\n', ('a, "b"\nc', "d")),
        (b"NAME\n007\n", ("007",)),  # text stays text
    ],
)
def test_a_column_is_read(content, values):
    assert read(content) == values


def test_the_only_column_needs_no_name():
    assert read(b"TOWN\nGraz\n", None) == ("Graz",)
    with pytest.raises(ScenarioInvalid, match=r"regions\.csv:1: there are several columns.*: ID, TOWN"):
        read(b"ID,TOWN\n1,Graz\n", None)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"regions\.csv:1: the file is empty"),
        (b"NAME\n", r"regions\.csv:1: there is no row"),
        (b"ID,TOWN\n1,x\n", r"regions\.csv:1: there is no column 'NAME'; there are ID, TOWN"),
        (b"NAME,NAME\n1,x\n", r"regions\.csv:1: the column 'NAME' occurs 2 times"),
        (b"ID,NAME\n1,x\n2\n", r"regions\.csv:3: 1 fields, but the header names 2 columns"),
        (b"ID,NAME\n1,x\n2,y,z\n", r"regions\.csv:3: 3 fields"),
        (b'NAME\nx\n"y', r"regions\.csv:3: unexpected end of data"),
        (b"NAME\nx\n\xff\n", r"regions\.csv:3: byte 1 of the line is not UTF-8"),
        (b"NAME\n" + b"x" * 1_000_001 + b"\n", r"regions\.csv:2: the line is longer than 1,000,000 bytes"),
        (b"NAME\n" + b"x" * 200_000 + b"\n", r"regions\.csv:2: field larger than field limit"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_with_the_line(content, message):
    with pytest.raises(ScenarioInvalid, match=message):
        read(content)


def test_a_file_that_is_too_large_is_refused_while_it_is_read(monkeypatch):
    monkeypatch.setattr(pools, "POOL_BYTES_MAX", 1 << 20)
    file = io.BytesIO(b"NAME\n" + (b"x" * 100_000 + b"\n") * 50)

    with pytest.raises(ScenarioInvalid, match=r"regions\.csv: its values take more than 1 MB"):
        read_csv_column(file, "NAME", name="region", source="regions.csv")
    assert file.tell() < 1_500_000


def test_a_file_with_too_many_rows_is_refused(monkeypatch):
    monkeypatch.setattr(pools, "POOL_VALUES_MAX", 3)

    assert len(read(b"NAME\n1\n2\n3\n")) == 3
    with pytest.raises(ScenarioInvalid, match="more than 3 values"):
        read(b"NAME\n1\n2\n3\n4\n")
