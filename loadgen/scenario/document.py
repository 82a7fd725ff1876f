"""The tree of a scenario file: values with their position, problems, and `${NAME}` in texts.

`${NAME}`, `${NAME:-default}`, and `$${` for a literal `${`. Variables are resolved once, where the user types: after
parsing and in values only, so that no variable can add a key or a line. A text with variables is shown as it was
written. It is stored resolved, because other machines have other variables; secrets alone stay `${NAME}` and are
resolved where they are used. So every stored text is a template: `${NAME}` is a secret, `$${` a literal `${`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

from loadgen.errors import ConfigurationError, ScenarioInvalid
from loadgen.log import is_secret_name, printable, redact, register_secret
from loadgen.model.workload import Scalar
from loadgen.units import counted
from loadgen.values import dataclass

SHOWN_MAX = 100  # problems shown at once
PART_SHOWN = 60  # characters of one key in a path

KeyPath = tuple[str | int, ...]  # ("workload", "statements", 0, "sql")


@dataclass(frozen=True, slots=True)
class SourcePosition:
    """A position in a text; both numbers start at 1."""

    line: int
    column: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One problem, where it is, and how to fix it."""

    source: str  # the file, or the option: `--set load.rate=5`
    what: str
    hint: str | None = None
    mark: SourcePosition | None = None  # None for an option
    path: KeyPath = ()

    @property
    def where(self) -> str:
        return self.source if self.mark is None else f"{self.source}:{self.mark.line}:{self.mark.column}"

    def position(self) -> tuple[int, int]:
        """Sort key: problems with options come first."""
        return (0, 0) if self.mark is None else (self.mark.line, self.mark.column)

    @property
    def message(self) -> str:
        """What and hint in one line."""
        return self.what if self.hint is None else f"{self.what}; {self.hint}"

    def __str__(self) -> str:
        path = dotted(self.path)
        return f"{self.where} {path}: {self.message}" if path else f"{self.where}: {self.message}"


class ScenarioProblems(ScenarioInvalid):
    """Everything that is wrong with one scenario."""

    def __init__(self, source: str, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        first = self.problems[0]
        if len(self.problems) == 1 and first.mark is None and not first.path:  # a whole file or option cannot be used
            hint = first.hint
            text = _of_option(first) if first.source.startswith("--set ") else f"{source} {first.what}"
            super().__init__(text, remedy=hint and f"{hint[0].upper()}{hint[1:]}.")
            return
        shown = [f"  {problem}" for problem in self.problems[:SHOWN_MAX]]
        if left_out := len(self.problems) - len(shown):
            shown.append(f"  … and {left_out} more")
        super().__init__("\n".join([f"{source} has {counted(len(self.problems), 'problem')}:", *shown]))


def _of_option(problem: Problem) -> str:
    """`--set 'load' is not path=value`: quotes separate the value from the sentence after it."""
    name, _, value = problem.source.partition(" ")
    separator = " " if problem.what.startswith("is ") else ": "
    return f"{name} '{value}'{separator}{problem.what}"


def dotted(path: KeyPath) -> str:
    """("load", "stages", 0) → 'load.stages.0', as --set takes it; safe to print."""
    return ".".join(printable(str(part), PART_SHOWN) for part in path)


DIGITS_MAX = 40  # of one number; Snowflake's have at most 38

_NULL = {"", "~", "null", "Null", "NULL"}
_TRUE = {"true", "True", "TRUE"}
_FALSE = {"false", "False", "FALSE"}
_WHOLE = re.compile(r"[-+]?[0-9]+")
_OCTAL = re.compile(r"0o[0-7]+")
_HEXADECIMAL = re.compile(r"0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_DATE = re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}(?:(?:[Tt]|[ \t]+)[0-9]{1,2}:.*)?")


class NotAScalar(ValueError):
    """An unquoted text that must be quoted, or a number out of range; the message contains the remedy."""


def resolve(text: str) -> Scalar:
    """The value of an unquoted text."""
    if text in _NULL:
        return None
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    if _DATE.fullmatch(text):
        raise NotAScalar("a date must be quoted, so that it stays the text you wrote")
    if _NOT_FINITE.fullmatch(text):
        raise NotAScalar("infinity and not-a-number cannot be used; quote it if it is a text")
    return _number(text)


def scalar_text(value: Scalar) -> str:
    """The unquoted text of a value."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _number(text: str) -> str | int | float:
    base = 10 if _WHOLE.fullmatch(text) else 8 if _OCTAL.fullmatch(text) else 16 if _HEXADECIMAL.fullmatch(text) else 0
    if not base and not _FLOAT.fullmatch(text):
        return text
    if len(text) > DIGITS_MAX:
        raise NotAScalar(f"a number has at most {DIGITS_MAX} digits; quote it if it is a text")
    if base:
        return int(text if base == 10 else text[2:], base)
    value = float(text)
    if not math.isfinite(value):
        raise NotAScalar("the number is too large; quote it if it is a text")
    return value


TEXT_SHOWN = 60  # characters of an offending text


@dataclass(slots=True)
class YamlNode:
    """One value of the file, or of an option."""

    mark: SourcePosition | None
    value: Scalar | dict[str, MappingEntry] | list[YamlNode]
    text: str = ""  # a scalar as it was written: safe to show, without values of the environment
    option: str | None = None  # `--set load.rate=5` when it came from there
    variables: tuple[str, ...] = ()  # environment variables that are in the value
    rejected: bool = False  # a problem is noted already; further checks skip it

    def children(self) -> Iterator[tuple[str | int, YamlNode]]:
        """The nodes directly below, with their keys or numbers."""
        if isinstance(self.value, dict):
            yield from ((key, entry.node) for key, entry in self.value.items())
        elif isinstance(self.value, list):
            yield from enumerate(self.value)


@dataclass(slots=True)
class MappingEntry:
    """A key of a mapping and its value."""

    mark: SourcePosition | None  # of the key
    node: YamlNode


def walk(node: YamlNode, path: KeyPath = ()) -> Iterator[tuple[KeyPath, YamlNode]]:
    """The node and all nodes below it, parents first. Nodes below a rejected node are left out."""
    yield path, node
    for part, child in () if node.rejected else node.children():
        yield from walk(child, (*path, part))


def data_of(node: YamlNode, value: Callable[[YamlNode, KeyPath], Any], path: KeyPath = ()) -> Any:
    """The node as plain data: mappings and lists of what `value` returns for scalars and for rejected nodes."""
    if node.rejected or not isinstance(node.value, (dict, list)):
        return value(node, path)
    found = {part: data_of(child, value, (*path, part)) for part, child in node.children()}
    return found if isinstance(node.value, dict) else list(found.values())


@dataclass(slots=True)
class Document:
    """The tree of a file and the problems found so far. `root` is None if the file could not be read."""

    source: str
    root: YamlNode | None = None
    problems: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)

    @property
    def is_experiment(self) -> bool:
        """Only experiments have arms."""
        return self.entry(("arms",)) is not None

    def entry(self, path: KeyPath) -> MappingEntry | None:
        """Key and value at this path. An element of a list has no key: the position of the element stands for it."""
        if self.root is None:
            return None
        found = MappingEntry(self.root.mark, self.root)
        for part in path:
            value = found.node.value
            if isinstance(value, dict) and isinstance(part, str) and part in value:
                found = value[part]
            elif isinstance(value, list) and isinstance(part, int) and part < len(value):
                found = MappingEntry(value[part].mark, value[part])
            else:
                return None
        return found

    def is_rejected(self, path: KeyPath) -> bool:
        """Whether the value at this path has a problem already."""
        entry = self.entry(path)
        return entry is not None and entry.node.rejected

    def problem(self, path: KeyPath, what: str, hint: str | None = None, *, at_key: bool = False) -> None:
        """Note a problem at the value (or key) at this path, or at its nearest existing parent."""
        known = path
        while (entry := self.entry(known)) is None and known:
            known = known[:-1]
        if entry is None:
            self.problems.append(Problem(source=self.source, path=path, what=what, hint=hint))
            return
        node = entry.node
        mark = entry.mark if at_key or known != path else node.mark
        if not at_key and known == path:
            what += _got(node)
        self.problems.append(self.problem_of(node, mark, path, what, hint))

    def problem_of(
        self, node: YamlNode, mark: SourcePosition | None, path: KeyPath, what: str, hint: str | None
    ) -> Problem:
        """A problem with this node: in the file, or on the command line."""
        if node.option is None:
            return Problem(source=self.source, mark=mark, path=path, what=what, hint=hint)
        return Problem(source=option_source(node.option), path=path, what=what, hint=hint)


def option_source(option: str) -> str:
    """An option as the source of a problem, safe to print: `--set load.rate=5`."""
    return printable(redact(option), TEXT_SHOWN)


def _got(node: YamlNode) -> str:
    if isinstance(node.value, (dict, list)):
        return ""
    return f", got {shown(node.text)}" if node.text else ", got nothing"


def shown(text: str) -> str:
    """A text of the file in quotes, safe to print."""
    return repr(printable(redact(text), TEXT_SHOWN))


class OptionText(str):
    """A scalar of the command line: the key it is for decides whether `64` is a number."""

    __slots__ = ()


TEXT_MAX = 1_000_000  # characters of one text with its variables resolved


_STORED = re.compile(r"\$\$\{|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)\}")


class EnvironmentText(str):
    """A text with values of the environment in it. Its repr, and so every log of it, is the template.

    Version 4 of the driver binds by the exact type, so bind `str(value)`; texts that `frozen.thaw` gives are plain.
    """

    __slots__ = ("stored", "template")
    template: str  # with every variable as ${NAME}
    stored: str  # with secrets only

    def __new__(cls, value: str, template: str, stored: str) -> EnvironmentText:
        made = super().__new__(cls, value)
        made.template, made.stored = template, stored
        return made

    @property
    def secret(self) -> bool:
        """Whether it contains a secret, by the names of its variables."""
        return any(is_secret_name(match["name"] or "") for match in _STORED.finditer(self.template))

    def __repr__(self) -> str:
        return repr(self.template)

    def __reduce__(self) -> tuple[type[EnvironmentText], tuple[str, str, str]]:
        return EnvironmentText, (str(self), self.template, self.stored)


def template_of(text: str) -> str:
    """The text as it is stored."""
    return text.stored if isinstance(text, EnvironmentText) else escape(text)


def variables_in(stored: str) -> set[str]:
    """The variables that a stored text needs where it is used."""
    return {match["name"] for match in _STORED.finditer(stored) if match["name"]}


def escape(text: str) -> str:
    return text.replace("${", "$${")


def resolve_template(template: str, environ: Mapping[str, str] | None) -> str:
    """The text of a template. Without an environment, variables stay `${NAME}`."""

    def value(match: re.Match[str]) -> str:
        name = match["name"]
        if name is None:
            return "${"
        if environ is None:
            return match[0]
        if name not in environ:
            raise ConfigurationError(
                f"the scenario of this run needs the environment variable {name}, and it is not set here",
                remedy=f"Set {name} where the worker runs, to the value it had where the run was started.",
            )
        if is_secret_name(name):
            register_secret(environ[name])
        return environ[name]

    return _STORED.sub(value, template) if "${" in template else template


_VARIABLE = re.compile(r"\$\$\{|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^{}]*))?\}|\$\{")
_HOW = "write ${NAME} or ${NAME:-default}, and $${ for a literal ${"


def substitute_variables(
    document: Document, environ: Mapping[str, str], allowed: Collection[str] | None = None
) -> None:
    """Replace the variables in every text of the document; when some are `allowed`, only those."""
    for path, node in walk(document.root) if document.root is not None else ():
        if isinstance(node.value, str) and "${" in node.value:
            wrong = _fill(node, node.value, environ, allowed)
            for what, hint in wrong.items():
                document.problem(path, what, hint)
            node.rejected = bool(wrong)


def _fill(
    node: YamlNode, text: str, environ: Mapping[str, str], allowed: Collection[str] | None
) -> dict[str, str | None]:
    """Replace the variables in the text of this node; what is wrong with them, each with a hint."""
    wrong: dict[str, str | None] = {}
    parts: list[tuple[str, str, str]] = []  # value, template and stored text, as in EnvironmentText
    variables: list[str] = []
    end, length = 0, len(text)
    for match in _VARIABLE.finditer(text):
        parts.append(_literal(text[end : match.start()]))
        end, name, default = match.end(), match["name"], match["default"]
        if match[0] == "$${":
            parts.append(_literal("${"))
        elif name is None:
            wrong["has a ${ that names no variable"] = _HOW
        elif allowed is not None and name not in allowed:
            what = f"the environment variable {name} is not allowed from the queue"
            wrong[what] = f"start the pool with --allow-variable {name}"
        elif name in environ:
            parts.append(_environment_part(name, environ[name]))
            variables.append(name)
            length += len(environ[name])
        elif default is not None:
            parts.append(_literal(default))
        else:
            wrong[f"the environment variable {name} is not set"] = f"set it, or give a default: ${{{name}:-…}}"
        if length > TEXT_MAX:  # a text may repeat one long variable
            wrong[f"is longer than {TEXT_MAX:,} characters with its variables resolved"] = None
            break
    parts.append(_literal(text[end:]))
    value, template, stored = map("".join, zip(*parts, strict=True))
    node.value = EnvironmentText(value, template, stored) if variables else value
    node.variables = tuple(variables)
    return wrong


def _literal(text: str) -> tuple[str, str, str]:
    return text, escape(text), escape(text)


def _environment_part(name: str, value: str) -> tuple[str, str, str]:
    if not is_secret_name(name):
        return value, f"${{{name}}}", escape(value)
    register_secret(value)
    return value, f"${{{name}}}", f"${{{name}}}"
