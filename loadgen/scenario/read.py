"""Reading a scenario: file → tree → variables → options → keys and types → checks → typed result.

YAML is read within limits. The tree is built from the parser's events, not by the library, so that size, depth and
number of values are limited while reading: 10,000 brackets or an alias bomb cost no more than their first few. Anchors,
aliases, merge keys, tags, several documents, dates, keys that are not texts and duplicate keys are problems; reading
continues after them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    CollectionEndEvent,
    DocumentStartEvent,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
)
from ruamel.yaml.reader import ReaderError

from loadgen.log import printable
from loadgen.scenario.checks import check, check_replay
from loadgen.scenario.document import (
    Document,
    EnvironmentText,
    KeyPath,
    MappingEntry,
    NotAScalar,
    OptionText,
    Problem,
    ScenarioProblems,
    SourcePosition,
    YamlNode,
    data_of,
    escape,
    option_source,
    resolve,
    shown,
    substitute_variables,
    template_of,
    walk,
)
from loadgen.scenario.file import CheckedScenario, ScenarioFile, build
from loadgen.scenario.key_reader import CheckedFile, declared_keys
from loadgen.scenario.model import Scenario
from loadgen.scenario.settings import TimingSettings
from loadgen.values import dataclass

BYTES_MAX = 1_000_000
DEPTH_MAX = 32
VALUES_MAX = 20_000  # keys and values together
BRACKETS_MAX = 200  # open at once; the library's scanner needs quadratic time for them before it returns the first
TEXT_MAX = 100_000  # characters of one --set
PARTS_MAX = 16  # of a path

_FLAT = "a scenario needs fewer than ten levels"
_BRACKET = re.compile(r"[][{}]")
_SURROGATES = re.compile("[\ud800-\udfff]")
_UNPRINTABLE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")

# --- YAML ------------------------------------------------------------------------------------------------------------


def read_text(path: Path, missing: str = "`loadgen init` writes a scenario to start from") -> str | Problem:
    """The text of a file, or the problem that prevents reading it, with the hint `missing`. Reads at most BYTES_MAX."""

    def problem(what: str, hint: str | None = None) -> Problem:
        return Problem(source=str(path), what=what, hint=hint)

    try:
        with path.open("rb") as file:
            content = file.read(BYTES_MAX + 1)
    except OSError as error:
        inside = "name a scenario in it, such as scenario.yaml"
        return problem(f"cannot be read: {error.strerror}", inside if isinstance(error, IsADirectoryError) else missing)
    if len(content) > BYTES_MAX:
        return problem(
            f"is larger than {BYTES_MAX // 1_000_000} MB", "large lists of values belong in a CSV file: values"
        )
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        return problem(f"is not UTF-8 text: line {line} has the byte 0x{content[error.start]:02x}", "save it as UTF-8")


def compose(text: str, source: str) -> Document:
    """Read one YAML document."""
    document = Document(source)
    composer = _Composer(document, YAML(typ="safe", pure=True).parse(text))
    if _brackets(text) > BRACKETS_MAX:
        composer.note(None, f"is nested more than {DEPTH_MAX} levels deep", _FLAT)
        return document
    try:
        document.root = composer.compose()
    except _StopReading:
        pass  # its problem is noted
    except ReaderError as error:
        before = text[: error.position]
        mark = SourcePosition(before.count("\n") + 1, len(before) - before.rfind("\n"))
        composer.note(mark, "contains a control character, which YAML does not allow", "remove it")
    except MarkedYAMLError as error:
        composer.unreadable(error)
    except (YAMLError, ValueError, OverflowError) as error:  # the last two: "\U99999999"
        composer.note(composer.mark, f"cannot be read as YAML: {printable(str(error), 200)}")
    return document


def _brackets(text: str) -> int:
    """The largest number of brackets open at once, those in texts included."""
    depth = deepest = 0
    for match in _BRACKET.finditer(text):
        depth = depth + 1 if match[0] in "[{" else max(depth - 1, 0)
        deepest = max(deepest, depth)
    return deepest


class _StopReading(Exception):
    """Reading cannot continue, or would take too long."""


class _Composer:
    """Makes the tree of the parser's events."""

    def __init__(self, document: Document, events: Iterable[Any]) -> None:
        self._document = document
        self._events = self._counted(events)
        self._path: KeyPath = ()  # of the value that is read
        self._values = self._depth = 0
        self.mark: SourcePosition | None = None  # of the newest event

    def note(self, mark: SourcePosition | None, what: str, hint: str | None = None) -> None:
        problem = Problem(source=self._document.source, mark=mark, path=self._path, what=what, hint=hint)
        self._document.problems.append(problem)

    def unreadable(self, error: MarkedYAMLError) -> None:
        place = error.problem_mark or error.context_mark
        mark = SourcePosition(place.line + 1, place.column + 1) if place else self.mark
        said = " ".join(part for part in (error.problem, error.context) if part) or "syntax error"
        hints = {
            "\\t": "indent with spaces, never with tabs",
            "but got '{'": "quote ${NAME} inside of braces and brackets",
            "mapping values are not allowed": "quote a text that contains ': ', and check the indentation",
            "cannot start any token": "quote a text that begins with a special character such as @ ` or %",
            "alias": "quote a text that begins with *",
            "quoted scalar": "a quote is not closed",
        }
        hint = next((hint for words, hint in hints.items() if words in said), "check indentation, colons and quotes")
        self.note(mark, f"cannot be read as YAML: {printable(said, 200)}", hint)

    def compose(self) -> YamlNode | None:
        root: YamlNode | None = None
        documents = 0
        for event in self._events:
            if isinstance(event, DocumentStartEvent):
                documents += 1
                self._begin(event, documents)
            elif isinstance(event, NodeEvent):
                root = self._node(event)
                self._path = ()
        if root is None or root.value is None:
            self.note(None, "is empty", "`loadgen init` writes a scenario to start from")
        return root

    def _counted(self, events: Iterable[Any]) -> Iterator[Any]:
        for event in events:
            self.mark = SourcePosition(event.start_mark.line + 1, event.start_mark.column + 1)
            self._values += isinstance(event, NodeEvent)
            if self._values > VALUES_MAX:
                what = f"has more than {VALUES_MAX:,} keys and values"
                self.note(self.mark, what, "large lists belong in a CSV file")
                raise _StopReading
            yield event

    def _begin(self, event: DocumentStartEvent, documents: int) -> None:
        if documents > 1:
            self.note(self.mark, "holds more than one document", "write each scenario to its own file, without ---")
            raise _StopReading
        if event.version not in (None, (1, 2)) or event.tags:
            self.note(self.mark, "has a % directive, which is not supported", "remove it; files are read as YAML 1.2")

    def _node(self, event: NodeEvent) -> YamlNode:
        """The value that begins with this event."""
        mark = self.mark
        self._reject_decorations(event)
        if isinstance(event, AliasEvent):
            self.note(mark, "aliases (*name) are not supported", "write the value out; quote a text with a * first")
            return YamlNode(mark, None, f"*{event.anchor}", rejected=True)
        if isinstance(event, ScalarEvent):
            return self._scalar(event)
        if self._depth >= DEPTH_MAX:
            self._path = ()  # a path of 32 parts is not readable
            self.note(mark, f"is nested more than {DEPTH_MAX} levels deep", _FLAT)
            raise _StopReading
        self._depth += 1
        value = self._mapping(self._path) if isinstance(event, MappingStartEvent) else self._list(self._path)
        self._depth -= 1
        return YamlNode(mark, value)

    def _scalar(self, event: ScalarEvent) -> YamlNode:
        text = _joined(event.value)
        if not event.implicit[0]:
            return YamlNode(self.mark, text, text or '""')
        try:
            return YamlNode(self.mark, resolve(text), text)
        except NotAScalar as error:
            self.note(self.mark, f"{error}, got {shown(text)}")
            return YamlNode(self.mark, text, text, rejected=True)

    def _list(self, path: KeyPath) -> list[YamlNode]:
        found: list[YamlNode] = []
        self._path = (*path, 0)
        while not isinstance(event := next(self._events), CollectionEndEvent):
            found.append(self._node(event))
            self._path = (*path, len(found))
        return found

    def _mapping(self, path: KeyPath) -> dict[str, MappingEntry]:
        found: dict[str, MappingEntry] = {}
        while not isinstance(event := next(self._events), CollectionEndEvent):
            mark, key = self.mark, self._key(event, found)
            self._path = path if key is None else (*path, key)
            value = self._node(next(self._events))
            if key is not None:
                found[key] = MappingEntry(mark, value)
            self._path = path
        return found

    def _key(self, event: NodeEvent, known: Mapping[str, MappingEntry]) -> str | None:
        """The key that this event is; None: it cannot be used, which is noted."""
        if not isinstance(event, ScalarEvent):
            self.note(self.mark, "a key must be a text", "lists, mappings and aliases cannot be keys")
            self._node(event)
            return None
        key = _joined(event.value)
        self._reject_decorations(event)
        if event.implicit[0] and key == "<<":
            self.note(self.mark, "merge keys (<<) are not supported", "write the keys out")
        elif event.implicit[0] and not _is_text(key):
            self.note(self.mark, f"the key {shown(key)} is not a text", f'quote it: "{printable(key, 20)}"')
        elif key in known:
            first = known[key].mark
            line = f" on line {first.line}" if first else ""
            self.note(self.mark, f"the key {shown(key)} is given twice, first{line}", "remove one of them")
        else:
            return key
        return None

    def _reject_decorations(self, event: NodeEvent) -> None:
        if isinstance(event, AliasEvent):
            return
        if event.anchor is not None:
            self.note(self.mark, "anchors (&name) are not supported", "write the value out where it is needed")
        if getattr(event, "tag", None) is not None:
            self.note(self.mark, "tags (!name) are not supported", "quote a text that begins with !")


def _joined(text: str) -> str:
    """The text with joined surrogate pairs: JSON writes 😀 as such a pair. A lone surrogate is rejected later."""
    if not _SURROGATES.search(text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def _is_text(key: str) -> bool:
    try:
        return isinstance(resolve(key), str)
    except NotAScalar:
        return False


# --- options ---------------------------------------------------------------------------------------------------------


def apply_overrides(document: Document, overrides: Sequence[str]) -> None:
    """Put each `path=value` into the document; those that do not fit become problems."""
    for text in overrides:
        wrong = _apply(document, text)
        if wrong is not None:
            what, hint = wrong
            document.problems.append(Problem(source=option_source(f"--set {text}"), what=what, hint=hint))


def _apply(document: Document, text: str) -> tuple[str, str] | None:
    """Apply one option. Returns None, or the problem and its hint."""
    path, equals, value = text.partition("=")
    parts = path.strip().split(".")
    if not equals or not all(parts) or len(parts) > PARTS_MAX or len(text) > TEXT_MAX:
        return "is not path=value", "write for example --set load.connections=64"
    option = f"--set {text}"
    node = _value(value.strip(), option)
    if node is None:
        return "the value cannot be read as YAML", "quote it for the shell: --set 'thresholds=[p95 < 50ms]'"
    if document.root is None or not isinstance(document.root.value, dict):
        return None  # the file itself has a problem, which is noted
    return _put(document.root, parts, node)


def _put(root: YamlNode, parts: list[str], new: YamlNode) -> tuple[str, str] | None:
    node = root
    for depth, part in enumerate(parts):
        last = depth == len(parts) - 1
        if node.value is None:
            node.value = {}
        if isinstance(node.value, dict):
            if last or part not in node.value:
                node.value[part] = MappingEntry(None, new if last else YamlNode(None, {}, option=new.option))
            node = node.value[part].node
        elif isinstance(node.value, list):
            number = _number(node.value, part)
            if number is None:
                return f"{'.'.join(parts[:depth])} has no element {part!r}", _elements(node.value)
            if last:
                node.value[number] = new
            node = node.value[number]
        else:
            return f"{'.'.join(parts[:depth])} is one value and has no keys", "shorten the path"
    return None


def _number(elements: list[YamlNode], part: str) -> int | None:
    """The position of an element by its number or its name."""
    if part.isascii() and part.isdigit() and len(part) < 6:
        return int(part) if int(part) < len(elements) else None
    names = [_name(element) for element in elements]
    return names.index(part) if part in names else None


def _name(element: YamlNode) -> object:
    entry = element.value.get("name") if isinstance(element.value, dict) else None
    return entry.node.value if entry is not None else None


def _elements(elements: list[YamlNode]) -> str:
    if not elements:
        return "the list is empty"
    names = [printable(name, 30) for element in elements if isinstance(name := _name(element), str)]
    numbers = "0" if len(elements) == 1 else f"0 to {len(elements) - 1}"
    return f"it has {numbers}" + (f", or by name: {', '.join(names[:10])}" if names else "")


def _value(text: str, option: str) -> YamlNode | None:
    if text in ("null", "~"):
        return YamlNode(None, None, text, option)
    if not text.startswith(("[", "{")):
        return YamlNode(None, OptionText(text), text or '""', option)
    read = compose(text, option)
    if read.root is None or read.problems:
        return None
    for _, node in walk(read.root):
        node.mark, node.option = None, option
        for entry in node.value.values() if isinstance(node.value, dict) else ():
            entry.mark = None
    return read.root


# --- the whole -------------------------------------------------------------------------------------------------------


class ExperimentGiven(ScenarioProblems):
    """The file is an experiment. Commands that do not run it replace the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedScenario:
    """A scenario that can run, with the origin of its values."""

    scenario: Scenario
    file: ScenarioFile
    document: Document
    text: str  # of the file, as it was read
    warnings: tuple[Problem, ...]


def read_scenario(
    path: Path, *, overrides: Sequence[str] = (), environ: Mapping[str, str], variables: Collection[str] | None = None
) -> LoadedScenario:
    """Read and check a file. Raises ScenarioProblems with everything that is wrong with it."""
    text = read_text(path)
    if isinstance(text, Problem):
        raise ScenarioProblems(str(path), [text])
    return parse_scenario(
        text, source=str(path), folder=path.parent, overrides=overrides, environ=environ, variables=variables
    )


def parse_scenario(
    text: str,
    *,
    source: str,
    folder: Path | None = None,
    overrides: Sequence[str] = (),
    environ: Mapping[str, str],
    variables: Collection[str] | None = None,
) -> LoadedScenario:
    """Read and check a text. Files that it names are searched in `folder`; without one they are not checked. If
    `variables` are given, the text may use no others."""
    document = compose(text, source)
    if document.is_experiment:
        what, hint = "is an experiment, not a scenario", "run it with `loadgen experiment FILE`"
        raise ExperimentGiven(source, [Problem(source=source, what=what, hint=hint)])
    substitute_variables(document, environ, variables)
    apply_overrides(document, overrides)
    checked = CheckedFile(ScenarioFile, document)
    capture = check_replay(checked, folder)
    check(checked, folder, capture)
    if document.problems or checked.file is None:
        raise ScenarioProblems(source, sorted(document.problems, key=Problem.position))
    return LoadedScenario(
        scenario=build(checked.file, _given_timing(checked), capture),
        file=checked.file,
        document=document,
        text=text,
        warnings=tuple(sorted(document.warnings, key=Problem.position)),
    )


def _given_timing(checked: CheckedScenario) -> set[str]:
    keys = declared_keys(TimingSettings)
    return {one.attribute for name, one in keys.items() if checked.given(("timing", name))}


def portable_text(loaded: LoadedScenario) -> str:
    """The scenario for another machine: as it was written, or with its variables and options resolved.
    Secrets and the addresses of `notify` stay `${NAME}`."""
    root = loaded.document.root
    return loaded.text if root is None or not _has_inputs(root) else _as_json(data_of(root, _settled))


def text_as_run(loaded: LoadedScenario, *, connection: str | None, labels: Mapping[str, str]) -> str:
    """The scenario that `loadgen run` runs: as portable_text(), with the options of the command. If it is not
    as it was written, the written text follows as a comment."""
    root, scenario = loaded.document.root, loaded.scenario
    if connection == scenario.connection:
        connection = None
    if root is None or not (_has_inputs(root) or connection is not None or labels):
        return loaded.text
    data = data_of(root, _settled)
    if connection is not None:
        data["connection"] = escape(connection)
    if labels:
        data["labels"] = {**(data.get("labels") or {}), **{name: escape(value) for name, value in labels.items()}}
    run = f"# As it was run: variables and options are resolved. The text of the file follows.\n{_as_json(data)}"
    written = "".join(f"# {line}".rstrip() + "\n" for line in loaded.text.splitlines())
    whole = f"{run}\n{written}"
    return whole if len(whole.encode()) <= BYTES_MAX else run


def _has_inputs(root: YamlNode) -> bool:
    """Whether variables or options are in the scenario."""
    return any(node.variables or node.option is not None for _, node in walk(root))


def _as_json(data: Any) -> str:
    """The scenario as JSON, which is YAML but for some characters."""
    written = json.dumps(data, indent=2, ensure_ascii=False)
    return _UNPRINTABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", written) + "\n"


def _settled(node: YamlNode, path: KeyPath) -> Any:
    value = node.value
    if isinstance(value, EnvironmentText) and path[0] == "notify" and path[-1] in ("webhook", "ping"):
        return value.template
    return template_of(value) if isinstance(value, str) else value
