"""Snowflake's JDBC driver against the embedded server: nothing in it is made for us."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.drivers.environment import checks_in, output_of
from tests.embedded_server import EmbeddedServer
from tests.processes import make_reachable_directory

HERE = Path(__file__).parent / "jdbc"
INSTALL_S, RUN_S = 500.0, 200.0

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        any(shutil.which(program) is None for program in ("java", "javac", "mvn")), reason="needs a JDK and `mvn`"
    ),
]

EXPECTED = {
    "context": "[[TESTER, JDBC, PUBLIC, BENCH_WH]]",
    "valid": "true",
    "ddl": "0",
    "insert": "2",
    "update": "2",
    "delete": "1",
    "binds": "1",
    "nulls": "1",
    "values": '[[42, -1.25, 0.1, it\'s ä日 \\ "x", true, 2024-02-29, 01:02:03, 2024-02-29 12:34:56.789]]',
    "bytes": "[[0001FF]]",
    "null values": "[[null, null]]",
    "described": "NUMBER 10,2 S",
    "batch": "500",
    "batched": "[[500, 124750, name 99]]",
    "rolled back": "[[11]]",
    "committed": "[[7]]",
    "missing table": "error 2003 42S02",
    "syntax": "error 1003 42000",
    "division": "error 100051 22012",
    "duplicate key": "error 200001 22000",
    "goes on": "[[1]]",
    "large": f"60000 {sum(range(60_000)) + 60_000 * 100}",
    "timeout": "error 604 57014",
    "cancel": "error 604 57014",
    "still open": "[[2]]",
    "arrow": "error 2 08001",  # the server has JSON results only, and reports it
}


@pytest.fixture(scope="module")
def printed() -> Iterator[dict[str, str]]:
    """What `Contract.java` printed, by the names of its checks."""
    place = make_reachable_directory()
    for name in ("pom.xml", "Contract.java"):
        shutil.copy(HERE / name, place)
    output_of(place, INSTALL_S, "mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=lib")
    output_of(place, INSTALL_S, "javac", "-encoding", "UTF-8", "-cp", "lib/*", "Contract.java")
    with EmbeddedServer() as server:
        told = output_of(place, RUN_S, "java", "-Dfile.encoding=UTF-8", "-cp", "lib/*:.", "Contract", server.address)
    yield checks_in(told)
    shutil.rmtree(place)


def test_the_driver_gets_what_it_expects(printed: dict[str, str]) -> None:
    assert printed == EXPECTED
