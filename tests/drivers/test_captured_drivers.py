"""Sessions of other drivers are captured like those of the Python connector: `loadgen capture` after JDBC and Go."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from loadgen.cli.main import main
from loadgen.model.capture import RecordedStatement, StatementRole, check_header
from loadgen.workload.replay import bound_value
from tests.drivers.environment import output_of
from tests.embedded_server import EmbeddedServer, reachable_directory

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


@dataclass(frozen=True)
class Captured:
    driver: str
    server: EmbeddedServer
    manifest: dict[str, Any]
    statements: list[RecordedStatement]


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
    place, out = reachable_directory(), tmp_path_factory.mktemp(request.param) / "captured"
    shutil.copytree(HERE / request.param, place, dirs_exist_ok=True)
    with EmbeddedServer() as server, pytest.MonkeyPatch.context() as patch:
        DRIVERS[request.param][1](place, server.address)
        patch.setenv("LOADGEN_EMBEDDED_ADDRESS", server.address)
        words = ["-c", "embedded", "--warehouse", "BENCH_WH", "--from", "1h", "--keep-values", "--out", str(out)]
        assert main(["capture", *words]) == 0
        with gzip.open(out / "statements.jsonl.gz", "rt", encoding="utf-8") as file:
            check_header(file.readline())
            statements = [RecordedStatement.of_line(line) for line in file]
        yield Captured(request.param, server, json.loads((out / "capture.json").read_text("utf-8")), statements)
    shutil.rmtree(place)


def values_of(one: RecordedStatement) -> tuple[Any, ...]:
    """What a replay binds."""
    return tuple(bound_value(bind) for bind in one.binds)


def execute(captured: Captured, one: RecordedStatement) -> list[Any]:
    with captured.server.connect(database=one.database, schema=one.schema, warehouse="BENCH_WH") as connection:
        return list(connection.cursor().execute(one.sql, values_of(one) or None).fetchall())


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
    left = {reason: count for reason, count in captured.manifest["left_out"].items() if count}

    assert left == {"failed": 6, "no_binds": 1, "not_replayable": 3}  # errors; the array bind; CREATE TABLE


def test_bind_values_are_captured_with_their_types(captured: Captured) -> None:
    (one,) = [found for found in captured.statements if found.sql.startswith("INSERT INTO T SELECT")]

    values = values_of(one)
    execute(captured, one)

    assert values[0] == 42
    assert values[2] == 0.1
    assert values[3] == 'it\'s ä日 \\ "x"'
    assert values[4] is True
    assert values[-1] == b"\x00\x01\xff"
    query = replace(one, sql="SELECT * FROM T WHERE N IS NOT NULL", binds=())
    first, again = execute(captured, query)
    assert first == again  # sent again through the Python connector, it writes the same row


def test_every_read_can_be_sent_again(captured: Captured) -> None:
    reads = [one for one in captured.statements if one.role is StatementRole.READ and one.rows == 1]

    assert len(reads) >= 5
    assert all(execute(captured, one) for one in reads)
