"""Snowflake's own driver for Node against the embedded server: nothing in it is made for us."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from loadgen.model.capture import StatementRole
from tests.drivers.environment import captured_from, values_of
from tests.embedded_server import EmbeddedServer
from tests.processes import make_reachable_directory

HERE = Path(__file__).parent / "node"
INSTALL_S, RUN_S = 400.0, 100.0
ENVIRONMENT = os.environ | {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(shutil.which("node") is None or shutil.which("npm") is None, reason="needs `node` and `npm`"),
]
Run = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="module")
def script() -> Iterator[Path]:
    """`query.js` with the driver, installed from the lock into a separate directory."""
    place = make_reachable_directory()
    for name in ("package.json", "package-lock.json", "query.js"):
        shutil.copy(HERE / name, place)
    install = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    done = subprocess.run(install, cwd=place, capture_output=True, text=True, timeout=INSTALL_S)
    assert done.returncode == 0, done.stderr[-3000:]
    yield place / "query.js"
    shutil.rmtree(place)


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer() as running:
        yield running


@pytest.fixture
def run(script: Path, server: EmbeddedServer) -> Run:
    """Runs statements, each a text or an object for `connection.execute`, and returns what the driver made of them."""

    def run_statements(*statements: str | dict[str, Any], **settings: Any) -> list[dict[str, Any]]:
        address = {"host": server.host, "port": server.port, "protocol": "http", "account": "embedded"}
        user = {"username": "tester", "password": "any", "database": "NODE", "schema": "PUBLIC"}
        nulls = {"representNullAsStringNull": False}  # times come as texts, and this is about their NULLs
        wanted = [{"sqlText": one} if isinstance(one, str) else one for one in statements]
        done = subprocess.run(
            ["node", str(script)],
            input=json.dumps({"connection": address | user | nulls | settings, "statements": wanted}),
            cwd=script.parent,
            capture_output=True,
            text=True,
            timeout=RUN_S,
            env=ENVIRONMENT,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        answers: list[dict[str, Any]] = json.loads(done.stdout)
        return answers

    return run_statements


def bound(text: str, *binds: Any, **more: Any) -> dict[str, Any]:
    return {"sqlText": text, "binds": list(binds)} | more


def test_it_connects_with_host_port_and_protocol(run):
    text = "SELECT CURRENT_USER() AS U, CURRENT_DATABASE() AS D, CURRENT_SCHEMA() AS S, CURRENT_WAREHOUSE() AS W"

    (answer,) = run(text, warehouse="BENCH_WH")

    expected = {"U": "TESTER", "D": "NODE", "S": "PUBLIC", "W": "BENCH_WH"}
    assert answer["rows"] == [{name: ["string", value] for name, value in expected.items()}]


def test_it_makes_changes_and_drops_tables(run):
    answers = run(
        "CREATE OR REPLACE HYBRID TABLE DDL (ID NUMBER PRIMARY KEY, NAME VARCHAR(20))",
        "INSERT INTO DDL VALUES (1, 'a'), (2, 'b'), (3, 'c')",
        "UPDATE DDL SET NAME = 'z' WHERE ID > 1",
        "DELETE FROM DDL WHERE ID = 3",
        "SELECT ID, NAME FROM DDL ORDER BY ID",
        "DROP TABLE DDL",
        "SELECT * FROM DDL",
    )

    assert answers[0]["rows"] == [{"status": ["string", "Table DDL successfully created."]}]
    assert [answer["changed"] for answer in answers[1:4]] == [3, 2, 1]
    assert answers[4]["rows"] == [
        {"ID": ["number", 1], "NAME": ["string", "a"]},
        {"ID": ["number", 2], "NAME": ["string", "z"]},
    ]
    assert answers[6]["error"]["code"] == "002003"


COLUMNS = {
    "N": ("NUMBER(38,0)", "fixed", 42, ["number", 42]),
    "DEC": ("NUMBER(10,2)", "fixed", "-1.5", ["number", -1.5]),
    "F": ("FLOAT", "real", 0.1, ["number", 0.1]),
    "T": ("VARCHAR", "text", 'Grüße "日本" \\ \'\n', ["string", 'Grüße "日本" \\ \'\n']),
    "B": ("BOOLEAN", "boolean", True, ["boolean", True]),
    "D": ("DATE", "date", "2024-02-29", ["Date", "2024-02-29T00:00:00.000Z", "2024-02-29"]),
    "TI": ("TIME", "time", "01:02:03", ["string", "01:02:03"]),
    "NTZ": (
        "TIMESTAMP_NTZ",
        "timestamp_ntz",
        "2024-02-29 12:34:56.789",
        ["Date", "2024-02-29T12:34:56.789Z", "2024-02-29 12:34:56.789"],
    ),
    "LTZ": (
        "TIMESTAMP_LTZ",
        "timestamp_ltz",
        "2024-02-29 12:34:56.789",
        ["Date", "2024-02-29T20:34:56.789Z", "2024-02-29 12:34:56.789 -0800"],
    ),
    "TZ": (
        "TIMESTAMP_TZ",
        "timestamp_tz",
        "2024-02-29 12:34:56.789 +0200",
        ["Date", "2024-02-29T10:34:56.789Z", "2024-02-29 12:34:56.789 +0200"],
    ),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_a_value_goes_in_and_comes_out_as_what_it_is(run, name):
    sql_type, type_name, given, expected = COLUMNS[name]

    _, written, read = run(
        f"CREATE OR REPLACE TABLE TYPES ({name} {sql_type})",
        bound(f"INSERT INTO TYPES ({name}) VALUES (?), (?)", given, None),
        f"SELECT {name} FROM TYPES ORDER BY {name} NULLS LAST",
    )

    assert written["changed"] == 2
    assert read["columns"] == [[name, type_name]]
    assert read["rows"] == [{name: expected}, {name: ["null", None]}]


def test_variants_and_binaries_come_out_as_objects_and_buffers(run):
    variant, binary = """PARSE_JSON('{"a": [1, null, "x"]}') AS V""", "TO_BINARY('00FF', 'HEX') AS B"
    text = f"SELECT {variant}, OBJECT_CONSTRUCT('k', 1.5) AS O, ARRAY_CONSTRUCT(1, 2) AS A, {binary}"

    (answer,) = run(text)

    assert answer["columns"] == [["V", "variant"], ["O", "object"], ["A", "array"], ["B", "binary"]]
    assert answer["rows"] == [
        {
            "V": ["object", {"a": [1, None, "x"]}],
            "O": ["object", {"k": 1.5}],
            "A": ["array", [1, 2]],
            "B": ["Buffer", "00ff"],
        }
    ]


def test_numbers_too_long_for_javascript_are_exact_as_strings(run):
    long = "12345678901234567890123456789012345678"

    (answer,) = run({"sqlText": f"SELECT {long} AS N", "fetchAsString": ["Number"]})

    assert answer["rows"] == [{"N": ["string", long]}]


def test_binds_by_question_mark_and_by_number(run):
    answers = run(
        bound("SELECT ? + 1 AS N, ? AS S, ? AS B, ? AS X", 41, "it's", False, None),
        bound("SELECT :2 AS A, :1 AS B, :2 AS C", "one", "two"),
    )

    assert answers[0]["rows"] == [
        {"N": ["number", 42], "S": ["string", "it's"], "B": ["boolean", False], "X": ["null", None]}
    ]
    assert answers[1]["rows"] == [{"A": ["string", "two"], "B": ["string", "one"], "C": ["string", "two"]}]


def test_array_binds_insert_many_rows_at_once(run):
    rows = [[number, f"name {number}" if number % 10 else None, number % 2 == 0] for number in range(500)]

    _, written, read = run(
        "CREATE OR REPLACE TABLE MANY (N NUMBER, S VARCHAR, B BOOLEAN)",
        bound("INSERT INTO MANY (N, S, B) VALUES (?, ?, ?)", *rows),
        "SELECT COUNT(*) AS C, COUNT(S) AS S, SUM(N) AS N, COUNT_IF(B) AS B FROM MANY",
    )

    assert written["changed"] == 500
    expected = {"C": 500, "S": 450, "N": sum(range(500)), "B": 250}
    assert read["rows"] == [{name: ["number", value] for name, value in expected.items()}]


def test_a_long_result_comes_whole(run):
    (answer,) = run("SELECT SEQ4() AS N FROM TABLE(GENERATOR(ROWCOUNT => 20000)) ORDER BY N")

    assert [row["N"][1] for row in answer["rows"]] == list(range(20_000))


@pytest.mark.parametrize(
    ("text", "code", "state", "words"),
    [
        ("SELECT * FROM NOWHERE", "002003", "42S02", "does not exist or not authorized"),
        ("SELEC 1", "001003", "42000", "syntax error"),
        ("SELECT 1 / 0", "100051", "22012", "Division by zero"),
        ("SELECT NO_SUCH_FUNCTION(1)", "002140", "42601", "Unknown function"),
        ("USE SCHEMA NOWHERE", "002043", "02000", "does not exist"),
    ],
)
def test_an_error_has_its_code_and_its_state_and_the_session_goes_on(run, text, code, state, words):
    failed, after = run(text, "SELECT 1 AS N")

    assert (failed["error"]["code"], failed["error"]["sqlState"]) == (code, state)
    assert words in failed["error"]["message"]
    assert after["rows"] == [{"N": ["number", 1]}]


@pytest.mark.parametrize(("verb", "kept"), [("COMMIT", 3), ("ROLLBACK", 1)])
def test_a_transaction_is_kept_or_undone_as_a_whole(run, verb, kept):
    count = "SELECT COUNT(*) AS C FROM MONEY"

    answers = run(
        "CREATE OR REPLACE HYBRID TABLE MONEY (ID NUMBER PRIMARY KEY)",
        "INSERT INTO MONEY VALUES (1)",
        "BEGIN",
        bound("INSERT INTO MONEY VALUES (?)", 2),
        bound("INSERT INTO MONEY VALUES (?)", 1),
        bound("INSERT INTO MONEY VALUES (?)", 3),
        count,
        verb,
        count,
    )

    assert answers[4]["error"]["code"] == "200001"
    assert answers[6]["rows"] == [{"C": ["number", 3]}]
    assert answers[8]["rows"] == [{"C": ["number", kept]}]


def test_its_sessions_are_closed_when_it_leaves(run, server):
    before = server.ask("/__loadgen/stats")["open_sessions"]

    run("SELECT 1")

    assert server.ask("/__loadgen/stats")["open_sessions"] == before


def test_its_sessions_are_captured_and_can_be_sent_again(run, server, tmp_path):
    values = [42, 0.5, 'it\'s ä日 "x"', True]
    run(
        "CREATE OR REPLACE TABLE SEEN (N NUMBER, F FLOAT, S VARCHAR, B BOOLEAN)",
        "ALTER SESSION SET TIMEZONE = 'UTC'",
        bound("INSERT INTO SEEN VALUES (?, ?, ?, ?)", *values),
        bound("SELECT S FROM SEEN WHERE N = ? AND B = ?", 42, True),
        "SELECT * FROM NOWHERE",
        bound("INSERT INTO SEEN (N) VALUES (?)", [1], [2]),
        warehouse="BENCH_WH",
    )

    captured = captured_from("node", server, "BENCH_WH", tmp_path / "captured")

    mine = [one for one in captured.statements if "SEEN" in one.sql or one.role is StatementRole.CONTEXT]
    assert [one.role for one in mine] == [StatementRole.CONTEXT, StatementRole.WRITE, StatementRole.READ]
    assert len({one.session for one in mine}) == 1
    assert values_of(mine[1]) == tuple(values)
    assert captured.execute(mine[2]) == [(values[2],)]
    assert {"failed", "no_binds", "not_replayable"} <= captured.left_out.keys()  # the array bind has no values
