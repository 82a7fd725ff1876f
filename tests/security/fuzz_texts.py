"""Statements for the fuzz run: a corpus, mutations of its syntax trees and of its tokens, and random expressions."""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from sqlglot import exp
from sqlglot.dialects.snowflake import Snowflake

from loadgen.embedded.functions import FUNCTIONS
from loadgen.embedded.translate import parser
from tests import SCENARIO_EXAMPLES
from tests.processes import ROOT
from tests.security.emitted_sql import CALLS, CLAUSES, filled

VERBS = (
    "SELECT WITH INSERT UPDATE DELETE MERGE CREATE DROP ALTER SHOW DESCRIBE DESC USE BEGIN COMMIT ROLLBACK EXECUTE"
    " CALL TRUNCATE SET UNSET EXPLAIN COPY PUT GRANT REVOKE COMMENT"
)
BEGINNING = re.compile(rf"\s*\(*\s*(?:{'|'.join(VERBS.split())})\b", re.IGNORECASE)
TOKEN = re.compile(r"""\s+|\w+|'(?:[^'\\]|''|\\.)*'|"(?:[^"]|"")*"|::|<>|[<>!]=|\|\||=>|.""", re.DOTALL)

# As in tests/process/function_rows.txt.
ROWS_TABLE = (
    "CREATE TABLE ROWS_T (G VARCHAR(1), I NUMBER(38,0), N NUMBER(10,2), F FLOAT, S VARCHAR(5), B BOOLEAN, D DATE,"
    " T TIMESTAMP_NTZ, V VARIANT)",
    "INSERT INTO ROWS_T SELECT 'a', 1, 1.5, 1.5, 'x', TRUE, '2024-01-01', '2024-01-01 10:00:00', PARSE_JSON('[1]')"
    " UNION ALL SELECT 'b', 4, NULL, NULL, 'x', NULL, NULL, NULL, NULL",
)  # fmt: skip
# Of the session's own tables: these and refused_builders.FURNITURE.
NAMES = ("A", "B", "V", "T", "U", "H", "ID", "N", "C", "G", "I", "F", "S", "D", "ROWS_T", "RUN_STATUS", "RUN_ID", "X")
TYPES = (
    "NUMBER", "NUMBER(38, 37)", "NUMBER(3, 3)", "FLOAT", "VARCHAR", "VARCHAR(2)", "BOOLEAN", "DATE", "TIME(0)",
    "TIMESTAMP_NTZ(9)", "TIMESTAMP_LTZ", "TIMESTAMP_TZ(3)", "VARIANT", "OBJECT", "ARRAY", "BINARY", "VECTOR(FLOAT, 3)",
)  # fmt: skip
NUMBERS = (
    "0", "1", "-1", "2", "0.5", "1e400", "-1e-400", "2147483648", "-9223372036854775809", "9" * 38, "9" * 60, "1e38",
    "0.00000000000000000000000000000000000001", "16777217", "1000000", "'NaN'::FLOAT", "'inf'::FLOAT",
)  # fmt: skip
PG_CALLS = (
    "pg_read_file('{file}')", "pg_read_binary_file('{file}')", "pg_ls_dir('..')", "lo_import('{file}')", "lo_get(1)",
    "set_config('log_statement', 'all', false)", "current_setting('data_directory')", "pg_sleep(30)", "version()",
    "query_to_xml('SELECT * FROM public.fuzz_canary', true, true, '')", "dblink('dbname=postgres', 'SELECT 1')",
    "table_to_xml('public.fuzz_canary', true, true, '')", "pg_terminate_backend(1)", "pg_reload_conf()",
    "txid_current()", "currval('x')", "nextval('x')", "inet_server_addr()", "pg_backend_pid()", "pg_advisory_lock(1)",
    "getpgusername()", "pg_get_viewdef(1)", "has_table_privilege('T', 'SELECT')", "meta.create_schema('x')",
    "sf.fail('a', 1, 'b')", "to_regclass('T')", "xpath('/a', '<a/>')", "ts_debug('a')", "generate_series(1, 10)",
    "unnest(ARRAY[1])", "row_to_json(T)", "jsonb_path_query(V, '$.*')", "format('%s', 1)", "string_agg(B, '')",
    "current_schemas(true)",
)  # fmt: skip
PG_SYNTAX = (
    "::regclass", "::oid", "::text[]", " RETURNING *", " ON CONFLICT DO NOTHING", r"E'\''", r"U&'\0027'", "B'101'",
    "$tag$x$tag$", "$1", "ARRAY[1]", "ROW(1)", "(T).*", "ctid", "xmin", "tableoid", "OPERATOR(pg_catalog.+)",
    'COLLATE "C"', " AT TIME ZONE 'x'", " SIMILAR TO 'x'", " WITH ORDINALITY", " ONLY ", " FILTER (WHERE TRUE)",
    "COPY T FROM '{file}'", "COPY T TO PROGRAM 'id'", "DO $$ BEGIN END $$", "LISTEN x", "PREPARE p AS SELECT 1",
    "LOAD 'x'", "SET ROLE loadgen", "VACUUM", " FROM pg_catalog.pg_authid", " FROM public.fuzz_canary",
    ' FROM "public"."fuzz_canary"', " FROM meta.object", " TABLESAMPLE SYSTEM (1)", " FOR SHARE SKIP LOCKED",
    " FETCH FIRST 1 ROW WITH TIES", " WINDOW w AS ()", " LATERAL ", " @> ", " ~* ", " ->> 'k'", " IS JSON",
)  # fmt: skip
BREAKERS = (
    ";", "; ", "--", "/*", "*/", "//", "'", '"', "\\", "\\'", "''", '""', "$$", "$", "(", ")", "[", "]", "{", "}", ",",
    ".", ":", "::", "?", "??", "@", "#", "!", "|", "||", "=>", "%", "*", "\0", "\ud800", "\u202e", "\u00a0", "\r", "ſ",
    "(" * 150, "A" * 5_000, "NOT " * 300, "-" * 301 + " ", " OR 1=1", "1" * 400, "CASE WHEN ", "SELECT ", "NULL",
    " UNION ALL SELECT 1", " JOIN T" * 30, "[" * 99 + "]" * 99,
)  # fmt: skip
NODES_MAX = 120
GUARD = '"FUZZ_CANARY.PUBLIC"."GUARD"'  # a name of PostgreSQL's: no Snowflake text of a session can mean this table
INJECTIONS = (
    f"'; DROP TABLE {GUARD}; --", f'"; DROP TABLE {GUARD}; --', f"'); DELETE FROM {GUARD}; --",
    f"\\'; TRUNCATE {GUARD}; --", f"$$; DROP TABLE {GUARD}; --", f"*/; DROP TABLE {GUARD}; /*",
    f"\n; DROP TABLE {GUARD}; --", f"'||(DELETE FROM {GUARD})||'", "\\", "\\\\'", "'", "''", '"', '""', "%s", "$1",
    "{0}", "\\u0027", "\\x27", "\\047", "a\0b", "\ud800", "", "é" * 300, "x" * 70_000, "{file}", "../canary.txt",
    "[1,2", '{"a":', "2024-02-30", "9999-12-31 24:00:00", "[[[[", "(?", "a.b.c.d", "x~described", "PK~", "pg_temp",
    "infinity", "NaN", "1e400", "0x1F", 'YYYY-MM-DD"T"', "%%", "(a+)+$",
)  # fmt: skip


def corpus(rng: random.Random) -> list[str]:
    """What tests of SQL, the project's own queries and its examples send."""
    found: dict[str, None] = {}
    for path in sorted(ROOT.glob("tests/contract/*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and BEGINNING.match(node.value):
                found[node.value] = None
    for path in sorted(ROOT.glob("schemas/**/*.sql")):
        found.update(dict.fromkeys(part.strip() for part in path.read_text("utf-8").split(";\n") if part.strip()))
    for path in SCENARIO_EXAMPLES:
        found.update(dict.fromkeys(re.findall(r"sql: ([^{|>\n]+)", path.read_text("utf-8"))))
    rows = (ROOT / "tests/process/function_rows.txt").read_text("utf-8").splitlines()
    expressions = [re.split(r" [=!]> ?", row)[0] for row in rows if row and row[0] != "#" and "pg:" not in row]
    found.update(dict.fromkeys(f"SELECT {text} FROM ROWS_T" for text in expressions))
    for template in (*CLAUSES, *CALLS):
        literals = tuple(rng.choice(("1", "x", "2024-01-01", "[1]", "day")) for _ in range(6))
        found[filled(template, literals, tuple(rng.choice(NAMES) for _ in range(6)))] = None
    return [text for text in found if text.strip()]


class Texts:
    """An endless supply of statements: the same for the same seed."""

    def __init__(self, number: int, canary_file: str) -> None:
        self.rng = random.Random(number)
        self.file = canary_file
        self.corpus = corpus(self.rng)
        self.trees = [tree for tree in map(_parsed, self.corpus) if tree is not None and _small(tree)]
        self._expressions = self._random_expressions(number)

    def next(self) -> str:
        (source,) = self.rng.choices(
            (self._known, self._tree_mutation, self._token_mutation, self._expression), (3, 42, 20, 35)
        )
        return source().replace("{file}", self.file)

    def literal(self) -> str:
        return self.rng.choice(INJECTIONS).replace("{file}", self.file)

    def _known(self) -> str:
        return self.rng.choice(self.corpus)

    def _expression(self) -> str:
        return next(self._expressions)

    def _random_expressions(self, number: int) -> Iterator[str]:
        while True:
            number += 1
            expressions = drawn(number)
            for _ in range(5 * len(expressions)):  # drawing is slower than the server
                first, second = self.rng.choice(expressions), self.rng.choice(expressions)
                yield self.rng.choice(_FRAMES).replace("{0}", first).replace("{1}", second)

    # --- tokens -------------------------------------------------------------------------------------------------------

    def _token_mutation(self) -> str:
        tokens = TOKEN.findall(self._known())
        for _ in range(self.rng.choice((1, 1, 2, 3))):
            place = self.rng.randrange(len(tokens) + 1)
            end = place + self.rng.randint(1, 4)
            match self.rng.randrange(7):
                case 0:
                    del tokens[place:end]
                case 1:
                    tokens[place:place] = tokens[place:end]
                case 2:  # splice: the rest of another statement
                    other = TOKEN.findall(self._known())
                    tokens[place:] = other[self.rng.randrange(len(other)) :]
                case 3:
                    tokens.insert(place, f" {self._foreign()} ")
                case 4:
                    tokens.insert(place, self.rng.choice(BREAKERS))
                case 5:
                    tokens[place : place + 1] = [self.rng.choice((*NAMES, *NUMBERS, *TYPES))]
                case _:
                    other = TOKEN.findall(self._known())
                    tokens[place:place] = other[self.rng.randrange(len(other)) :][: self.rng.randint(1, 12)]
        return "".join(tokens)

    def _foreign(self) -> str:
        return self.rng.choice(self.rng.choice((PG_CALLS, PG_SYNTAX)))

    # --- trees --------------------------------------------------------------------------------------------------------

    def _tree_mutation(self) -> str:
        for _ in range(20):
            tree = self.rng.choice(self.trees).copy()
            try:
                for _ in range(self.rng.choice((1, 1, 1, 2, 3))):
                    self.rng.choice(self._mutations)(self, tree)
                marks = [node for node in tree.walk() if isinstance(node, exp.Placeholder)]
                for mark in marks:
                    mark.set("this", None)
                return tree.sql(dialect=Snowflake)
            except Exception:  # sqlglot cannot write every tree that we make
                continue
        return self._token_mutation()

    def _node(self, tree: exp.Expr, kinds: tuple[type[exp.Expr], ...] = (exp.Expression,)) -> Any:
        found = [node for node in tree.walk() if isinstance(node, kinds) and node.parent is not None]
        return self.rng.choice(found)

    def _swap(self, tree: exp.Expr) -> None:
        self._node(tree).replace(self._node(tree).copy())

    def _graft(self, tree: exp.Expr) -> None:
        mine = self._node(tree)
        mine.replace(self._node(self.rng.choice(self.trees)).copy())

    def _duplicate(self, tree: exp.Expr) -> None:
        node = self._node(tree)
        siblings = node.parent.args.get(node.arg_key)
        if isinstance(siblings, list):
            node.parent.append(node.arg_key, node.copy())

    def _delete(self, tree: exp.Expr) -> None:
        self._node(tree).pop()

    def _literal(self, tree: exp.Expr) -> None:
        node = self._node(tree, (exp.Literal, exp.Column, exp.Null, exp.Placeholder))
        number = self.rng.random() < 0.4
        made = exp.Literal.number(self.rng.choice(NUMBERS)) if number else exp.Literal.string(self.literal())
        node.replace(made)

    def _identifier(self, tree: exp.Expr) -> None:
        node = self._node(tree, (exp.Identifier,))
        plain = self.rng.random() < 0.6
        name = self.rng.choice(NAMES) if plain else self.literal()
        node.replace(exp.to_identifier(name, quoted=not plain))

    def _nest(self, tree: exp.Expr) -> None:
        node = self._node(tree, (exp.Literal, exp.Column, exp.Anonymous, exp.Binary, exp.Null, exp.Cast))
        inner = node.copy()
        times = self.rng.choice((1, 1, 1, 2, 5, 60))
        for _ in range(times):
            inner = self.rng.choice(_WRAPPERS)(inner, self.rng)
        node.replace(inner)

    def _call(self, tree: exp.Expr) -> None:
        node = self._node(tree, (exp.Literal, exp.Column, exp.Anonymous, exp.Null))
        name = self.rng.choice((*FUNCTIONS, *(call.partition("(")[0] for call in PG_CALLS)))
        count = self.rng.randint(0, 4)
        node.replace(exp.Anonymous(this=name, expressions=[self._node(tree).copy() for _ in range(count)]))

    _mutations = (_swap, _graft, _duplicate, _delete, _literal, _literal, _identifier, _identifier, _nest, _call)


def _small(tree: exp.Expr) -> bool:
    """Mutations of large trees take longer than the server does."""
    return sum(1 for _ in islice(tree.walk(), NODES_MAX + 1)) <= NODES_MAX


def _parsed(text: str) -> exp.Expr | None:
    try:
        return parser.parse(text, parser.tokens_of(text))
    except Exception:  # refused, or a defect that the run itself will find
        return None


_WRAPPERS: tuple[Callable[[Any, random.Random], exp.Expr], ...] = (
    lambda node, rng: exp.Paren(this=node),
    lambda node, rng: exp.Subquery(this=exp.Select(expressions=[node])),
    lambda node, rng: exp.Cast(this=node, to=exp.DataType.build(rng.choice(TYPES), dialect="snowflake")),
    lambda node, rng: exp.Anonymous(this=rng.choice(list(FUNCTIONS)), expressions=[node]),
    lambda node, rng: exp.Case(ifs=[exp.If(this=exp.Is(this=node, expression=exp.Null()), true=exp.Null())]),
    lambda node, rng: exp.Not(this=node),
    lambda node, rng: exp.Neg(this=node),
    lambda node, rng: exp.Bracket(this=node, expressions=[exp.Literal.number(0)]),
    lambda node, rng: exp.Window(this=exp.Anonymous(this=rng.choice(list(FUNCTIONS)), expressions=[node])),
)


# --- random expressions -----------------------------------------------------------------------------------------------


def quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


_UNITS = st.sampled_from(("day", "'month'", "HOUR", "nanosecond", "week_iso", "epoch_second", "'x'", "1", "A"))
_LEAVES = st.one_of(
    st.integers(-10, 10**6).map(str),
    st.sampled_from(NUMBERS),
    st.floats().map(lambda value: quoted(repr(value)) + "::FLOAT"),
    st.text(max_size=8).map(quoted),
    st.sampled_from(INJECTIONS).map(quoted),
    st.sampled_from(("NULL", "TRUE", "FALSE", "?", "CURRENT_DATE", "CURRENT_TIMESTAMP()", "'2024-02-29'::DATE")),
    st.sampled_from(('PARSE_JSON(\'{"k": [1, {"a": null}]}\')', "[1, 'a', NULL]", "{'k': 1}", "X'00ff'", "*")),
    st.sampled_from(NAMES),
)


def _composed(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    operators = ("+", "-", "*", "/", "%", "||", "=", "<>", "<", ">=", "AND", "OR", "LIKE", "IN", "IS DISTINCT FROM")
    return st.one_of(
        st.sampled_from(list(FUNCTIONS.values())).flatmap(lambda function: _calls(function, inner)),
        st.tuples(inner, st.sampled_from(operators), inner).map(lambda parts: "({} {} {})".format(*parts)),
        st.tuples(inner, st.sampled_from(TYPES)).map(lambda parts: f"({parts[0]})::{parts[1]}"),
        st.tuples(inner, st.sampled_from(TYPES)).map(lambda parts: f"TRY_CAST({parts[0]} AS {parts[1]})"),
        st.tuples(inner, inner, inner).map(lambda parts: "CASE WHEN {} THEN {} ELSE {} END".format(*parts)),
        st.tuples(inner, inner).map(lambda parts: f"({parts[0]})[{parts[1]}]"),
        st.tuples(inner, inner).map(lambda parts: f"{parts[0]} IN ({parts[1]}, NULL)"),
        st.tuples(inner, inner, inner).map(lambda parts: "{} BETWEEN {} AND {}".format(*parts)),
        inner.map(lambda text: f"(SELECT {text})"),
        inner.map(lambda text: f"V:k[{text}]"),
        inner.map(lambda text: f"-{text}"),
    )


def _calls(function: Any, inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    most = function.least + 2 if function.most is None else function.most
    counts = st.sampled_from([*range(function.least, most + 1), most + 1])
    arguments = counts.flatmap(
        lambda count: st.tuples(*(_UNITS if n in function.unit_arguments else inner for n in range(count)))
    )
    ends = ["", "", "", " OVER (PARTITION BY B ORDER BY A)", " WITHIN GROUP (ORDER BY A)", " OVER ()"]
    if function.kind == "scalar":
        ends = ["", "", "", "", " OVER ()"]
    return st.tuples(arguments, st.sampled_from(ends), st.booleans()).map(
        lambda parts: f"{function.name}({'DISTINCT ' if parts[2] and parts[1] else ''}{', '.join(parts[0])}){parts[1]}"
    )


_EXPRESSIONS = st.recursive(_LEAVES, _composed, max_leaves=6)
_FRAMES = (
    "SELECT {0}", "SELECT {0} FROM T", "SELECT {0}, {1} FROM ROWS_T", "SELECT {0} FROM T WHERE {1}",
    "SELECT {0}, COUNT(*) FROM ROWS_T GROUP BY {1}", "SELECT {0} AS X FROM T QUALIFY {1}",
    "SELECT {0} FROM T ORDER BY {1} LIMIT 3", "INSERT INTO T (A, B) SELECT {0}, {1}",
    "INSERT INTO U VALUES ({0}, {1})", "UPDATE T SET A = {0}, V = {1}", "UPDATE H SET N = {0} WHERE ID = {1}",
    "DELETE FROM U WHERE {0}", "CREATE OR REPLACE TABLE X AS SELECT {0} AS Y, {1} AS Z",
    "CREATE OR REPLACE VIEW W AS SELECT {0} AS Y", "CREATE OR REPLACE TABLE X (A NUMBER DEFAULT {0}, B VARCHAR)",
    "SELECT * FROM T, LATERAL FLATTEN(INPUT => {0}, MODE => {1})", "SELECT * FROM VALUES ({0}), ({1})",
    "SELECT {0} FROM TABLE(GENERATOR(ROWCOUNT => 3))", "SELECT * FROM TABLE(GENERATOR(ROWCOUNT => {0}))",
    "MERGE INTO T USING U ON T.A = {0} WHEN MATCHED THEN UPDATE SET A = {1}",
    "MERGE INTO T USING U ON T.A = U.A WHEN NOT MATCHED AND {0} THEN INSERT (A) VALUES ({1})",
    "SELECT {0} UNION SELECT {1}", "ALTER SESSION SET QUERY_TAG = {0}", "SHOW TABLES LIKE {0}",
    "SELECT SYSTEM$WAIT({0})",
    "WITH RECURSIVE R AS (SELECT {0} AS X UNION ALL SELECT {1} FROM R WHERE X < 3) SELECT X FROM R",
)  # fmt: skip


def drawn(number: int) -> list[str]:
    """Some hundred random expressions."""
    found: list[str] = []

    @seed(number)
    @settings(
        max_examples=300, phases=[Phase.generate], database=None, deadline=None, suppress_health_check=list(HealthCheck)
    )
    @given(_EXPRESSIONS)
    def collect(text: str) -> None:
        found.append(text)

    collect()
    return found
