"""Snowflake's Go driver against the embedded server: nothing in it is made for us."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.drivers.environment import checks_in, output_of
from tests.embedded_server import EmbeddedServer
from tests.processes import make_reachable_directory

HERE = Path(__file__).parent / "go"
BUILD_S, RUN_S = 900.0, 200.0

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1_200),
    pytest.mark.skipif(shutil.which("go") is None, reason="needs `go`"),
]

NO_COUNT = "unexpected no RowsAffected available after DDL statement"
EXPECTED = {
    "context": "TESTER|GO|PUBLIC|BENCH_WH",
    "ddl": NO_COUNT,
    "insert": "2",
    "update": "2",
    "delete": "1",
    "types": NO_COUNT,
    "binds": "1",
    "nulls": "1",
    "values": '42|-1.25|0.1|it\'s ä日 \\ "x"|1|2024-02-29T00:00:00Z|2024-02-29T12:34:56.789Z|0001FF',
    "null values": "NULL|NULL",
    "batch table": NO_COUNT,
    "batch": "500",
    "batched": "500|124750|name 99",
    "rolled back": "11",
    "committed": "7",
    "missing table": "error 2003 42S02",
    "syntax": "error 1003 42000",
    "division": "error 100051 22012",
    "duplicate key": "error 200001 22000",
    "large": f"60000 {sum(range(60_000)) + 60_000 * 100}",
    "timeout": "context deadline exceeded",
    "cancel": "context canceled",
    "still open": "2",
    "arrow": "3",  # asked for Arrow, it takes the JSON that the server has
}


@pytest.fixture(scope="module")
def printed() -> Iterator[dict[str, str]]:
    """What `main.go` printed, by the names of its checks. Modules are verified by go.sum."""
    place = make_reachable_directory()
    for name in ("go.mod", "go.sum", "main.go"):
        shutil.copy(HERE / name, place)
    output_of(place, BUILD_S, "go", "build", "-mod=readonly", "-o", "contract", ".")
    with EmbeddedServer() as server:
        told = output_of(place, RUN_S, "./contract", server.address)
        left = [line["sql_text"] for line in server.ask("/__loadgen/history") if "SYSTEM$WAIT" in line["sql_text"]]
        assert len(left) == 2, "a statement that the driver gave up goes on"
    yield checks_in(told)
    shutil.rmtree(place)


def test_the_driver_gets_what_it_expects(printed: dict[str, str]) -> None:
    assert printed == EXPECTED
