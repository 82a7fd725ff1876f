"""Which modules send the SQL of the control plane: each query belongs to one module."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.unit.sql_texts import PRUNING, QUERIES, TABLES

ROOT = Path(__file__).resolve().parents[2]


def used_queries(path: Path) -> Iterator[str]:
    """table.verb of each query a module takes from its table. Handing on all of them is using `append` and `find`."""
    tree = ast.parse(path.read_text("utf-8"))
    owned = {
        node.targets[0].id: str(node.value.args[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Name)
        and node.value.func.id == "load_queries"
        and isinstance(node.value.args[0], ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id in owned:
            assert isinstance(node.slice, ast.Constant)
            yield f"{owned[node.value.id]}.{node.slice.value!s}"
        elif isinstance(node, ast.Call):
            for argument in node.args:
                if isinstance(argument, ast.Name) and argument.id in owned:
                    yield from (f"{owned[argument.id]}.append", f"{owned[argument.id]}.find")


def texts(path: Path) -> Iterator[str]:
    """Every text of a module that is no docstring; of a formatted one the fixed parts, joined."""
    tree = ast.parse(path.read_text("utf-8"))
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


CONTROL = ROOT / "loadgen" / "control"
SQL = re.compile(
    r"\s*(SELECT|INSERT|UPDATE|DELETE|MERGE|CREATE|ALTER|DROP|USE|BEGIN|COMMIT|TRUNCATE|SHOW|CALL|COPY|GRANT)\s[^a-z]"
)
# Making databases, schemas, warehouses and grants: names cannot be bound, so these statements are put together.
SETS_UP = {"migrations.py", "prerequisites.py", "installer.py", "grants.py", "privileges.py"}
TOUCHES_ROWS = re.compile(
    r"\s*(SELECT\s.*\sFROM|INSERT\s+INTO|UPDATE\s+\w+\s+SET|DELETE\s+FROM|MERGE\s+INTO)\s", re.DOTALL
)


def test_every_query_is_used_by_exactly_one_module():
    modules = [path for path in CONTROL.rglob("*.py") if path.stem != "prune"]
    users = Counter(name for path in modules for name in set(used_queries(path)))

    assert users == Counter({query.name: 1 for query in QUERIES if not query.name.startswith(PRUNING)})


def test_modules_of_the_control_plane_contain_no_sql_texts():
    found = [(path.name, text) for path in CONTROL.rglob("*.py") for text in texts(path) if SQL.match(text)]

    assert [text for name, text in found if name not in SETS_UP or TOUCHES_ROWS.match(text)] == []
    assert found, "the search finds nothing at all"


def test_no_other_module_accesses_the_tables():
    names = "|".join([*TABLES, "SCHEMA_VERSION"])
    piece = rf"\b(?:FROM|INTO|UPDATE|JOIN|TABLE|EXISTS)\s+\"?(?:{names})\b"
    whole = rf"(?i:\b(?:SELECT\s.*\sFROM|INSERT\s+INTO|UPDATE|DELETE\s+FROM|MERGE\s+INTO)\s+\"?(?:{names})\b)"
    spoken = re.compile(f"{piece}|{whole}", re.DOTALL)
    product = [path for folder in ("loadgen", "orchestrator") for path in (ROOT / folder).rglob("*.py")]
    others = [path for path in product if CONTROL not in path.parents]

    assert spoken.search("select status\nfrom run_status")
    assert spoken.search("LEFT JOIN RUN_LEASES")
    assert not spoken.search("the run has vanished from RUN_STATUS")
    assert [str(path) for path in others for text in texts(path) if spoken.search(text)] == []
