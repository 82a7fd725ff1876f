"""The documents themselves: what is generated is up to date, links lead somewhere, examples of YAML are valid."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

from loadgen.scenario.read import read_scenario
from tests import scenario_reference
from tests.report_picture import WORDS
from tests.scenario_schema import scenario_schema
from tests.unit.report_builders import page, record

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
DOCUMENTS = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *ROOT.glob("examples/**/*.md"), *ROOT.glob("schemas/**/*.md")]
)
README_LINES_MAX = 250
HOW_TO_DRAW = "run a scenario, then: .venv/bin/python -m tests.report_picture runs/<run id>/report.html"
# Signs of a sentence to rewrite.
UNWANTED = re.compile(r"\b(whoever|somebody|(?<![`'\"])nobody|so many|of its own|of their own)\b", re.IGNORECASE)

COLLOQUIAL = re.compile(
    r"\b(go on|goes on|aims?|woke|speaks|wish(?:es)?|caught up|anyway|hurry|lying about)\b", re.IGNORECASE
)


def anchors(path: Path) -> set[str]:
    """The anchors of a document's headings, as GitHub makes them; the second of a name ends with -1."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.*)$", without_code(path), re.MULTILINE):
        anchor = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        found.add(f"{anchor}-1" if anchor in found else anchor)
    return found


def without_code(path: Path) -> str:
    return re.sub(r"```.*?```", "", path.read_text("utf-8"), flags=re.DOTALL)


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_the_reference_of_scenario_keys_is_what_is_declared():
    text = scenario_reference.DOCUMENT.read_text("utf-8")

    assert scenario_reference.written(text) == text, "run: .venv/bin/python -m tests.scenario_reference"


def test_the_reference_has_every_key_and_generator():
    schema = scenario_schema()
    names = {
        key
        for section in (schema, *schema["$defs"].values())
        for key in (section if "properties" in section else section["anyOf"][1])["properties"]
    }
    text = scenario_reference.reference()

    assert {name for name in names if f"`{name}`" not in text and f".{name}`" not in text} == set()


def test_the_picture_of_a_report_shows_the_words_of_the_report():
    shown = [tuple(line.split(": ", 1)) for line in WORDS.read_text("utf-8").splitlines()]
    written = [(tag, text.strip()) for tag, text in page(record()).texts if text.strip()]

    assert [one for one in shown if one not in written] == [], HOW_TO_DRAW
    headings = [text for tag, text in shown if tag == "h2"]
    assert len(headings) >= 4
    assert headings == [text for tag, text in written if tag == "h2"][: len(headings)], HOW_TO_DRAW


def test_the_readme_is_short():
    assert len(README.read_text("utf-8").splitlines()) <= README_LINES_MAX


@pytest.mark.parametrize("path", DOCUMENTS, ids=named)
def test_links_of_a_document_lead_somewhere(path: Path):
    wrong = []
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(path)):
        if target.startswith("http"):
            continue
        file, _, anchor = target.partition("#")
        there = (path.parent / file).resolve() if file else path
        if not there.exists() or (anchor and anchor not in anchors(there)):
            wrong.append(target)

    assert wrong == []


def test_every_document_is_linked_in_the_readme():
    text = README.read_text("utf-8")

    assert [named(path) for path in (ROOT / "docs").glob("*.md") if f"({named(path)})" not in text] == []


def test_the_scenario_of_the_readme_is_valid(tmp_path: Path):
    (text,) = re.findall(r"```yaml\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    file = tmp_path / "scenario.yaml"
    file.write_text(text)

    assert read_scenario(file, environ={}).scenario.name == "orders"


def test_benchmarks_that_are_named_exist():
    texts = " ".join(path.read_text("utf-8") for path in DOCUMENTS)
    names = {name.replace("-", "_") for name in re.findall(r"\./bin/bench ([a-z-]+)", texts)}

    assert names
    assert {name for name in names if not (ROOT / "tests" / "perf" / f"{name}.py").is_file()} == set()


@pytest.mark.parametrize("path", DOCUMENTS, ids=named)
def test_documents_are_written_in_plain_technical_english(path: Path):
    hand_written = path.read_text("utf-8").split(scenario_reference.BEGIN)[0]

    assert UNWANTED.findall(hand_written) == []
    assert COLLOQUIAL.findall(hand_written) == []


def test_the_architecture_names_modules_that_exist():
    """Names in the code map, and the steps in the two pictures."""
    text = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    code_map = text[text.index("## Code map") : text.index("## Invariants")]
    pictures = text[text.index("## The way of a statement") : text.index("## Terms")]
    named_there = set(re.findall(r"`(?:translate/)?([a-z_]+)`", code_map))
    named_there |= {step.rpartition("/")[2] for step in re.findall(r"^   ([a-z_/]+) ", pictures, re.MULTILINE)}
    folders = [ROOT / name for name in ("loadgen", "orchestrator", "bin", "tests")]
    known = {path.stem for folder in folders for path in folder.rglob("*") if path.suffix != ".pyc"}

    assert named_there - known - {"orchestrator", "snow"} == set()


# --- package maps ----------------------------------------------------------------------------------------------------

PACKAGES = sorted(
    str(path.parent.relative_to(ROOT))
    for folder in ("loadgen", "orchestrator")
    for path in (ROOT / folder).rglob("__init__.py")
)


@pytest.mark.parametrize("package", [name for name in PACKAGES if name != "loadgen"])
def test_the_map_of_a_package_lists_its_modules(package):
    """A row of the map is one module's name, or several, then two spaces and what they are."""
    text = ast.get_docstring(ast.parse((ROOT / package / "__init__.py").read_text("utf-8"))) or ""
    present = {path.stem for path in (ROOT / package).glob("*.py")} - {"__init__"}
    folders = {path.name for path in (ROOT / package).iterdir() if path.is_dir()}
    rows = [re.split(r"  +", line.strip())[0].split() for line in text.splitlines()[1:] if "  " in line.strip()]

    listed = {name.rstrip("/") for names in rows for name in names}

    assert present - listed == set(), "missing in the map"
    assert listed - present - folders == set(), "in the map, and not in the package"


# --- the language of the code ----------------------------------------------------------------------------------------

# Signs of a sentence to rewrite, and metaphors as names.
UNWANTED_WORDS = re.compile(
    rf"{UNWANTED.pattern}|\b(anybody|he|his|him|in good order|set beside|as far as it goes)\b", re.IGNORECASE
)
METAPHORS = re.compile(
    r"(?:^|_)(office|voice|crew|leash|board|agenda|conductor|gauges?|bed|bury|crowd|contest|whoever|somebody|nobody)(?:_|$)",
    re.IGNORECASE,
)
TEXT = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
# Values that tests need: an account, SQL, a variable, a name that is mentioned, and a text that is cut between words.
VALUES = re.compile(r"""['"]nobody['"]|'he'|\$\{NOBODY|(?:@|&#64;)somebody|begins with so many""")
FOLDERS = sorted({str(path.parent.relative_to(ROOT)) for path in (ROOT / "tests").rglob("*.py")})


@pytest.mark.parametrize("folder", [*PACKAGES, *FOLDERS])
def test_code_is_written_in_plain_technical_english(folder):
    """In comments, docstrings, messages and names."""
    wrong = []
    for path in sorted((ROOT / folder).glob("*.py")):
        if path == Path(__file__):  # it lists the words
            continue
        for token in tokenize.generate_tokens(io.StringIO(path.read_text("utf-8")).readline):
            pattern = UNWANTED_WORDS if token.type in TEXT else METAPHORS if token.type == tokenize.NAME else None
            if pattern is not None and (found := pattern.search(VALUES.sub("", token.string))):
                wrong.append(f"{path.name}:{token.start[0]} {found[0]}")

    assert wrong == []
