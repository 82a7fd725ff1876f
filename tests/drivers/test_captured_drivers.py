"""Sessions of other drivers are captured like those of the Python connector: `loadgen capture` after JDBC and Go.

Those of Node and of `snow` are captured in test_node_driver.py and test_snow_cli.py, where their environments are.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from loadgen.model.capture import StatementRole
from tests.drivers.environment import Captured, captured_from, output_of, values_of
from tests.embedded_server import EmbeddedServer
from tests.processes import make_reachable_directory

HERE = Path(__file__).parent
INSTALL_S, RUN_S = 900.0, 200.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_200)]


def run_jdbc(place: Path, address: str) -> None:
    output_of(place, INSTALL_S, "mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=lib")
    output_of(place, INSTALL_S, "javac", "-encoding", "UTF-8", "-cp", "lib/*", "Contract.java")
    output_of(place, RUN_S, "java", "-Dfile.encoding=UTF-8", "-cp", "lib/*:.", "Contract", address)


def run_go(place: Path, address: str) -> None:
    output_of(place, INSTALL_S, "go", "build", "-mod=readonly", "-o", "contract", ".")
    output_of(place, RUN_S, "./contract", address)


DRIVERS: dict[str, tuple[tuple[str, ...], Callable[[Path, str], None]]] = {
    "jdbc": (("java", "javac", "mvn"), run_jdbc),
    "go": (("go",), run_go),
}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(
            driver,
            marks=pytest.mark.skipif(
                any(shutil.which(program) is None for program in programs), reason=f"needs {', '.join(programs)}"
            ),
        )
        for driver, (programs, _) in DRIVERS.items()
    ],
)
def captured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Captured]:
    """What the contract program of a driver executed, as `loadgen capture` has recorded it."""
    place, out = make_reachable_directory(), tmp_path_factory.mktemp(request.param) / "captured"
    shutil.copytree(HERE / request.param, place, dirs_exist_ok=True)
    with EmbeddedServer() as server:
        DRIVERS[request.param][1](place, server.address)
        yield captured_from(request.param, server, "BENCH_WH", out)
    shutil.rmtree(place)


def test_its_statements_are_captured_in_order(captured: Captured) -> None:
    texts = [one.sql.upper() for one in captured.statements]
    known = [
        "SELECT CURRENT_USER(), CURRENT_DATABASE(), CURRENT_SCHEMA(), CURRENT_WAREHOUSE()",
        "INSERT INTO T (N, S) VALUES (?, ?)",
        "SELECT N, S FROM T WHERE N IS NULL",
        "SELECT COUNT(*), SUM(ID), MAX(NAME) FROM BATCHED",
        "UPDATE H SET V = 1000",
        "ROLLBACK",
        "UPDATE H SET V = 7",
        "COMMIT",
        "SELECT SEQ4(), RPAD('X', 100, 'Y') FROM TABLE(GENERATOR(ROWCOUNT => 60000))",
        "SELECT 2",
    ]
    assert [text for text in texts if text in known] == known
    assert {one.database for one in captured.statements} == {captured.driver.upper()}
    assert {one.rows for one in captured.statements if "60000" in one.sql} == {60_000}


def test_what_is_left_out_is_counted_with_its_reason(captured: Captured) -> None:
    assert captured.left_out == {
        "failed": 6,
        "no_binds": 1,
        "not_replayable": 3,
    }  # errors; the array bind; CREATE TABLE


def test_bind_values_are_captured_with_their_types(captured: Captured) -> None:
    (one,) = [found for found in captured.statements if found.sql.startswith("INSERT INTO T SELECT")]

    values = values_of(one)
    captured.execute(one)

    assert values[0] == 42
    assert values[2] == 0.1
    assert values[3] == 'it\'s ä日 \\ "x"'
    assert values[4] is True
    assert values[-1] == b"\x00\x01\xff"
    query = replace(one, sql="SELECT * FROM T WHERE N IS NOT NULL", binds=())
    first, again = captured.execute(query)
    assert first == again  # sent again through the Python connector, it writes the same row


def test_every_read_can_be_sent_again(captured: Captured) -> None:
    reads = [one for one in captured.statements if one.role is StatementRole.READ and one.rows == 1]

    assert len(reads) >= 5
    assert all(captured.execute(one) for one in reads)
