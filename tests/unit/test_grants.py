"""What each statement needs is read from its text; the GRANTs follow from it, and grant nothing else."""

import json
import re

import pytest
import sqlglot
from click.testing import CliRunner
from sqlglot import exp

from loadgen.cli.setup import grants as command
from loadgen.control.location import ControlPlaneLocation
from loadgen.control.session import load_queries, query_files
from loadgen.control.setup.grants import (
    QUEUE,
    GrantTarget,
    control_needs,
    control_statements,
    grants,
    required_privileges,
    script,
)
from loadgen.control.setup.installer import migrations
from loadgen.errors import ConfigurationError
from loadgen.scenario.read import parse_scenario, read_scenario
from loadgen.snowflake.ident import Identifier, InvalidIdentifier, QualifiedName
from tests import SCENARIO_EXAMPLES
from tests.cases import in_one_test

CONTROL = [
    query for table in query_files() for query in load_queries(table).values() if not query.sql.startswith("CREATE")
]
WORKLOADS = sorted(
    {
        query.sql
        for path in SCENARIO_EXAMPLES
        for statement in read_scenario(path, environ={}).scenario.workload.statements
        for query in statement.queries
    }
)


def needs(sql: str) -> dict[str, str]:
    """{table: privileges}, as short texts."""
    return {
        ".".join(part.name for part in name.parts): " ".join(sorted(privileges))
        for name, privileges in required_privileges(sql).items()
    }


def judged(sql: str) -> dict[str, str]:
    """The same from another source: a real parser's tree."""
    tree = sqlglot.parse_one(sql, dialect="snowflake")
    ctes = {cte.alias.upper() for cte in tree.find_all(exp.CTE)}
    found: dict[str, set[str]] = {}
    for table in tree.find_all(exp.Table):
        if isinstance(table.this, exp.Identifier) and table.name.upper() not in ctes:
            found.setdefault(table.name.upper(), set()).add("SELECT")
    target = tree.this if isinstance(tree, (exp.Insert, exp.Update, exp.Delete)) else None
    if target is not None:
        name = target.find(exp.Table).name.upper()
        if isinstance(tree, exp.Insert):
            others = [table for table in tree.expression.find_all(exp.Table) if table.name.upper() == name]
            found[name] = {"INSERT", *(["SELECT"] if others else [])}
        else:
            found[name] |= {tree.key.upper()}
    return {name: " ".join(sorted(privileges)) for name, privileges in found.items()}


# --- what a statement needs ------------------------------------------------------------------------------------------


@in_one_test("query", CONTROL)
def test_every_control_statement_is_read_as_a_parser_reads_it(query):
    assert needs(query.sql) == judged(query.sql)


@in_one_test("sql", WORKLOADS)
def test_every_statement_of_the_examples_is_read_as_a_parser_reads_it(sql):
    assert needs(sql) == judged(sql)


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT 1", {}),
        ("select a from t", {"T": "SELECT"}),
        ('SELECT * FROM "odd.name" o', {"odd.name": "SELECT"}),
        ("SELECT * FROM db.s.t AS x, u, (SELECT * FROM v) w", {"DB.S.T": "SELECT", "U": "SELECT", "V": "SELECT"}),
        ("SELECT a, b FROM t ORDER BY a, b", {"T": "SELECT"}),
        ("SELECT * FROM (a JOIN b ON a.x = b.x) LEFT JOIN c USING (x, y)", dict.fromkeys("ABC", "SELECT")),
        ("SELECT * FROM db..t", {"DB.PUBLIC.T": "SELECT"}),
        ("WITH c AS (SELECT * FROM t), d (x) AS (SELECT 1) SELECT * FROM c, d, e", {"T": "SELECT", "E": "SELECT"}),
        ("SELECT EXTRACT(YEAR FROM d), a IS DISTINCT FROM b FROM t", {"T": "SELECT"}),
        ("SELECT * FROM TABLE(GENERATOR(ROWCOUNT => 3)), LATERAL FLATTEN(INPUT => x) f, t", {"T": "SELECT"}),
        ("SELECT 'FROM secrets' -- FROM nothing\n, $$ FROM no $$ /* FROM never */ FROM t", {"T": "SELECT"}),
        ("SELECT * FROM VALUES (1, 2), (3, 4)", {}),
        ("(SELECT * FROM a) UNION ALL (SELECT * FROM b)", {"A": "SELECT", "B": "SELECT"}),
        ("INSERT INTO t (a, b) VALUES (?, ?)", {"T": "INSERT"}),
        ("INSERT INTO t (a) SELECT a FROM u WHERE a IN (SELECT b FROM t)", {"T": "INSERT SELECT", "U": "SELECT"}),
        ("INSERT OVERWRITE INTO t SELECT * FROM u", {"T": "DELETE INSERT", "U": "SELECT"}),
        ("UPDATE t SET a = ? FROM u WHERE t.x = u.x", {"T": "SELECT UPDATE", "U": "SELECT"}),
        ("DELETE FROM t USING u, v WHERE t.x = u.x", {"T": "DELETE SELECT", "U": "SELECT", "V": "SELECT"}),
        (
            "MERGE INTO t USING (SELECT * FROM u) s ON t.x = s.x WHEN MATCHED THEN UPDATE SET a = s.a"
            " WHEN NOT MATCHED THEN INSERT (x) VALUES (s.x)",
            {"T": "INSERT SELECT UPDATE", "U": "SELECT"},
        ),
        ("DELETE FROM t USING u JOIN v USING (x) WHERE 1 = 1", {"T": "DELETE SELECT", "U": "SELECT", "V": "SELECT"}),
        ("MERGE INTO t USING u ON t.x = u.x WHEN MATCHED THEN DELETE", {"T": "DELETE SELECT", "U": "SELECT"}),
        ("CALL p(1)", {}),
        ("CREATE TABLE t AS SELECT * FROM u", {}),
    ],
)
def test_statements_of_all_shapes(sql, expected):
    assert needs(sql) == expected


# --- the control plane -----------------------------------------------------------------------------------------------


def test_the_run_role_gets_what_the_control_statements_do_and_no_more():
    needed = {**control_needs(), **control_needs(QUEUE)}
    found = {name.parts[0].name: sorted(privileges) for name, privileges in needed.items()}

    assert found.pop("SCHEMA_VERSION") == ["SELECT"]  # only setup records a migration
    of_runs = {"RUN_STATUS", "RUN_LEASES", "WORKER_HEARTBEATS", "QUERY_EXECUTIONS", "TEST_RESULTS"}  # two by enrichment
    changed = of_runs | {"RUN_QUEUE", "RUN_ATTEMPTS", "POOL_WORKERS", "SCHEDULES", "SCHEDULE_FIRES"}
    changed |= {"SCHEDULE_PROGRESS"}
    assert {name for name, privileges in found.items() if "UPDATE" in privileges} == changed
    assert {name for name, privileges in found.items() if privileges == ["INSERT", "SELECT"]} == set(found) - changed
    assert set(found) == {table for migration in migrations() for table, _ in migration.tables}


def test_who_runs_scenarios_may_not_touch_the_queue():
    of_the_queue = {"RUN_QUEUE", "RUN_ATTEMPTS", "POOL_WORKERS", "SCHEDULES", "SCHEDULE_FIRES"}
    of_the_queue |= {"RUN_ATTEMPT_ENDS", "SCHEDULE_PROGRESS"}

    assert {name.parts[0].name for name in control_needs(QUEUE)} == of_the_queue
    found = statements(queue_users=["pool"])
    to_run = [text for text in found if text.endswith('TO ROLE "LOADGEN_RUN"')]
    assert not any(f'"{table}"' in text for text in to_run for table in of_the_queue)
    assert 'GRANT ROLE "LOADGEN_RUN" TO ROLE "LOADGEN_QUEUE"' in found
    assert found[-1] == 'GRANT ROLE "LOADGEN_QUEUE" TO USER "POOL"'


def test_only_the_statements_of_setup_and_deletion_are_left_out():
    left_out = {query.name for table in query_files() for query in load_queries(table).values()} - {
        query.name for query in control_statements()
    }

    deletions = {query.name for query in load_queries("prune").values()}
    assert left_out == {"schema_version.create", "schema_version.record"} | deletions


# --- the script ------------------------------------------------------------------------------------------------------

SCENARIO = """
version: 1
name: shop
connection: prod
target: {warehouse: BENCH_WH, database: bench, schema: '"My Schema"'}
prepare:
  tables:
    - {name: ORDERS, type: hybrid, columns: [{name: ID, type: INT, primary_key: true}]}
    - {name: OTHER.LOG, type: standard, columns: [{name: A, type: INT}]}
    - {name: CUSTOMERS, type: existing}
values: {region: {query: SELECT NAME FROM geo.public.regions}}
workload:
  statements:
    - {name: look, sql: "SELECT * FROM ORDERS O JOIN CUSTOMERS C ON C.ID = O.ID WHERE O.ID = ?", params: [{literal: 1}]}
    - {name: pay, sql: "UPDATE ORDERS SET A = 1 WHERE ID = 3"}
    - {name: log, sql: "INSERT INTO OTHER.LOG (A) SELECT 1"}
    - {name: history, sql: "SELECT COUNT(*) FROM INFORMATION_SCHEMA.TABLES"}
"""


def read(text: str = SCENARIO):
    return parse_scenario(text, source="test", environ={}).scenario


def statements(text: str = SCENARIO, place: ControlPlaneLocation | None = None, **more) -> list[str]:
    scenario = read(text)
    target = GrantTarget(**{name: getattr(scenario.target, name) for name in ("warehouse", "database", "schema")})
    place = place or ControlPlaneLocation.of_scenario(scenario)
    return [statement for part in grants(place, scenario, target, **more) for statement in part.statements]


def test_a_scenario_gets_exactly_its_own_tables():
    found = [text for text in statements() if "LOADGEN" not in text.partition(" TO ROLE ")[0]]

    assert found == [
        "USE ROLE SECURITYADMIN",
        'GRANT USAGE ON WAREHOUSE "BENCH_WH" TO ROLE "LOADGEN_ADMIN"',
        'GRANT USAGE, MONITOR ON WAREHOUSE "BENCH_WH" TO ROLE "LOADGEN_RUN"',
        'GRANT USAGE ON DATABASE "BENCH" TO ROLE "LOADGEN_ADMIN"',
        'GRANT USAGE ON SCHEMA "BENCH"."My Schema" TO ROLE "LOADGEN_ADMIN"',
        'GRANT USAGE ON SCHEMA "BENCH"."OTHER" TO ROLE "LOADGEN_ADMIN"',
        'GRANT USAGE ON DATABASE "BENCH" TO ROLE "LOADGEN_RUN"',
        'GRANT USAGE ON SCHEMA "BENCH"."My Schema" TO ROLE "LOADGEN_RUN"',
        'GRANT USAGE ON SCHEMA "BENCH"."OTHER" TO ROLE "LOADGEN_RUN"',
        'GRANT USAGE ON DATABASE "GEO" TO ROLE "LOADGEN_RUN"',
        'GRANT USAGE ON SCHEMA "GEO"."PUBLIC" TO ROLE "LOADGEN_RUN"',
        'GRANT CREATE HYBRID TABLE ON SCHEMA "BENCH"."My Schema" TO ROLE "LOADGEN_ADMIN"',
        'GRANT CREATE TABLE ON SCHEMA "BENCH"."OTHER" TO ROLE "LOADGEN_ADMIN"',
        'GRANT SELECT ON TABLE "BENCH"."My Schema"."CUSTOMERS" TO ROLE "LOADGEN_ADMIN"',
        'GRANT SELECT ON TABLE "BENCH"."My Schema"."CUSTOMERS" TO ROLE "LOADGEN_RUN"',
        'GRANT SELECT, UPDATE ON TABLE "BENCH"."My Schema"."ORDERS" TO ROLE "LOADGEN_RUN"',
        'GRANT SELECT, INSERT ON TABLE "BENCH"."OTHER"."LOG" TO ROLE "LOADGEN_RUN"',
        'GRANT SELECT ON TABLE "GEO"."PUBLIC"."REGIONS" TO ROLE "LOADGEN_RUN"',
    ]


def test_the_control_plane_is_granted_table_by_table():
    found = statements()

    assert 'GRANT SELECT, INSERT, UPDATE ON TABLE "LOADGEN"."CONTROL"."RUN_LEASES" TO ROLE "LOADGEN_RUN"' in found
    assert 'GRANT SELECT ON TABLE "LOADGEN"."CONTROL"."SCHEMA_VERSION" TO ROLE "LOADGEN_RUN"' in found
    create = 'GRANT CREATE TABLE, CREATE HYBRID TABLE ON SCHEMA "LOADGEN"."CONTROL" TO ROLE "LOADGEN_ADMIN"'
    assert create in found
    assert len(found) == len(set(found))


@pytest.mark.parametrize("path", SCENARIO_EXAMPLES, ids=lambda path: path.name)
def test_every_script_is_valid_and_grants_neither_everything_nor_ownership(path):
    scenario = read_scenario(path, environ={}).scenario
    target = GrantTarget(warehouse="W", database=scenario.target.database or "D", schema=scenario.target.schema or "S")
    place = ControlPlaneLocation.of_scenario(scenario)

    text = script(grants(place, scenario, target, users=["ann", '"bob@example.com"'], admins=["carl"]))

    parsed = [tree for tree in sqlglot.parse(text, dialect="snowflake") if tree is not None]
    assert {type(tree) for tree in parsed} <= {exp.Grant, exp.Use, exp.Command}
    odd = [tree.sql(comments=False) for tree in parsed if isinstance(tree, exp.Command)]
    assert all(re.match(r"(CREATE ROLE IF NOT EXISTS|GRANT ROLE) ", each) for each in odd), odd
    assert not re.search(r"\b(OWNERSHIP|ALL|OPERATE|FUTURE)\b", re.sub(r"(?m)^--.*$|\"[^\"]*\"", "", text))


def test_no_name_can_become_anything_but_a_name():
    place = ControlPlaneLocation(database='"x""; DROP DATABASE y; --"', schema='"a.b"', warehouse='"w w"')

    text = script(grants(place, users=['"o""brien"']))

    statements_found = [tree for tree in sqlglot.parse(text, dialect="snowflake") if tree is not None]
    harmless = [
        tree for tree in sqlglot.parse(script(grants(ControlPlaneLocation(), users=["O"])), dialect="snowflake") if tree
    ]
    assert [type(tree) for tree in statements_found] == [type(tree) for tree in harmless]
    assert 'ON SCHEMA "x""; DROP DATABASE y; --"."a.b" TO' in text
    with pytest.raises(InvalidIdentifier):
        grants(ControlPlaneLocation(), users=["x; DROP USER y"])


def test_a_control_plane_on_the_embedded_server_needs_no_grants():
    text = SCENARIO + "control: {connection: embedded}\n"

    found = statements(text)

    assert not any('"LOADGEN"' in each for each in found)
    assert any('"BENCH"' in each for each in found)


def test_unknown_rights_are_reported():
    more = '    - {name: go, kind: write, sql: "CALL P(1)"}\n'
    scenario = read(SCENARIO + more)
    target = GrantTarget(warehouse=None, database="D", schema="S")

    notes = "\n".join(note for part in grants(ControlPlaneLocation(), scenario, target) for note in part.notes)

    assert "Statement go calls a procedure" in notes
    assert 'write VIEW: "GEO"."PUBLIC"."REGIONS"' in notes
    assert '"D"."INFORMATION_SCHEMA"."TABLES"' in notes
    assert "sets a warehouse" in notes


def test_a_table_in_no_database_is_an_error():
    scenario = read(SCENARIO.replace("database: bench, ", ""))

    with pytest.raises(ConfigurationError, match="the database of table"):
        grants(ControlPlaneLocation(), scenario, GrantTarget(warehouse="W", database=None, schema="S"))


# --- the command -----------------------------------------------------------------------------------------------------


def run(*arguments):
    result = CliRunner().invoke(command, [str(argument) for argument in arguments], standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return result


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("SNOWFLAKE_HOME", "SNOWFLAKE_DEFAULT_CONNECTION_NAME", "LOADGEN_CONTROL_DATABASE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_the_command_prints_the_script_and_connects_to_nothing(home):
    result = run("--database", "mydb", "--user", "nightly", "--admin", "carl")

    assert 'GRANT USAGE ON DATABASE "MYDB" TO ROLE "LOADGEN_RUN";' in result.stdout
    assert result.stdout.splitlines()[-2:] == [
        'GRANT ROLE "LOADGEN_ADMIN" TO USER "CARL";',
        'GRANT ROLE "LOADGEN_RUN" TO USER "NIGHTLY";',
    ]


def test_the_command_as_json(home):
    parts = json.loads(run("--format", "json", SCENARIO_EXAMPLES[0]).stdout)["parts"]

    assert parts[0]["statements"][0] == "USE ROLE SECURITYADMIN"


def test_the_connection_supplies_the_names_that_a_scenario_leaves_out(home):
    (home / ".snowflake").mkdir()
    file = home / ".snowflake" / "connections.toml"
    file.write_text(
        '[prod]\naccount = "a"\nuser = "u"\npassword = "p4ssw0rd"\nwarehouse = "mine"\ndatabase = "d"\nschema = "s"\n'
    )
    file.chmod(0o600)
    scenario = home / "bare.yaml"
    scenario.write_text("version: 1\nname: a\nworkload: {statements: [{name: a, sql: SELECT A FROM T}]}\n")

    result = run(scenario, "-c", "prod")

    assert 'GRANT USAGE, MONITOR ON WAREHOUSE "MINE" TO ROLE "LOADGEN_RUN";' in result.stdout
    assert 'GRANT SELECT ON TABLE "D"."S"."T" TO ROLE "LOADGEN_RUN";' in result.stdout
    assert "p4ssw0rd" not in result.output


def test_an_experiment_needs_the_warehouses_and_tables_of_all_its_arms(home):
    (home / "s.yaml").write_text(
        "version: 1\nname: s\ntarget: {warehouse: W, database: D, schema: S}\n"
        "workload: {statements: [{name: a, sql: SELECT A FROM T}]}\n"
    )
    (home / "e.yaml").write_text(
        "version: 1\nname: e\nscenario: s.yaml\nreference: a\nmetrics: {p95: 5%}\narms:\n"
        "  a: {warehouse: {size: Small}}\n  c: {warehouse: {name: N, create: true, size: Small}}\n"
        "  b: {warehouse: V, set: {workload.statements.a.sql: SELECT A FROM U}}\n"
    )

    script = run("--experiment", home / "e.yaml").stdout

    for statement in (
        'GRANT USAGE, MONITOR ON WAREHOUSE "W" TO ROLE "LOADGEN_RUN";',
        'GRANT MODIFY ON WAREHOUSE "W" TO ROLE "LOADGEN_RUN";',
        'GRANT USAGE, MONITOR ON WAREHOUSE "V" TO ROLE "LOADGEN_RUN";',
        'GRANT SELECT ON TABLE "D"."S"."T" TO ROLE "LOADGEN_RUN";',
        'GRANT SELECT ON TABLE "D"."S"."U" TO ROLE "LOADGEN_RUN";',
    ):
        assert script.count(statement) == 1
    assert 'MODIFY ON WAREHOUSE "V"' not in script
    assert script.count('GRANT CREATE WAREHOUSE ON ACCOUNT TO ROLE "LOADGEN_RUN";') == 1
    assert '"N"' not in script


def test_names_are_compared_as_snowflake_does():
    assert required_privileges('SELECT * FROM t JOIN "T" USING (x)') == {
        QualifiedName((Identifier("T"),)): frozenset({"SELECT"})
    }
