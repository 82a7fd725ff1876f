"""`--set load.connections=64`: values from the command line, put into the tree before it is checked.

The path is checked and the text typed by the same rules as the file: `64` for a name is a text, for a count a number.
Elements of a list are chosen by number, from 0, or by their name: `workload.statements.pay.weight=30`. A value that
begins with [ or { is read as YAML; `null` means no value. ${NAME} is not filled in: the shell does that.
"""

from __future__ import annotations

from collections.abc import Sequence

from loadgen.log import printable, redact
from loadgen.scenario.document import Document, MappingEntry, YamlNode, compose
from loadgen.scenario.problem import Problem

TEXT_MAX = 100_000  # characters of one --set
PARTS_MAX = 16  # of a path


class OptionText(str):
    """A scalar of the command line: the key it is for decides whether `64` is a number."""

    __slots__ = ()


def apply_overrides(document: Document, overrides: Sequence[str]) -> None:
    """Put each `path=value` into the document; those that do not fit become problems."""
    for text in overrides:
        wrong = _apply(document, text)
        if wrong is not None:
            what, hint = wrong
            problem = Problem(source=printable(redact(f"--set {text}"), 60), mark=None, path=(), what=what, hint=hint)
            document.problems.append(problem)


def _apply(document: Document, text: str) -> tuple[str, str] | None:
    """None when it worked, else what is wrong and what to do."""
    path, equals, value = text.partition("=")
    parts = path.strip().split(".")
    if not equals or not all(parts) or len(parts) > PARTS_MAX or len(text) > TEXT_MAX:
        return "is not path=value", "write for example --set load.connections=64"
    option = f"--set {text}"
    node = _value(value.strip(), option)
    if node is None:
        return "the value cannot be read as YAML", "quote it for the shell: --set 'thresholds=[p95 < 50ms]'"
    if document.root is None or not isinstance(document.root.value, dict):
        return None  # the file itself has a problem, which is told
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
    _mark(read.root, option)
    return read.root


def _mark(node: YamlNode, option: str) -> None:
    node.mark, node.option = None, option
    children = node.value.values() if isinstance(node.value, dict) else node.value
    for child in children if isinstance(node.value, (dict, list)) else ():  # type: ignore[union-attr]
        if isinstance(child, MappingEntry):
            child.mark = None
            _mark(child.node, option)
        elif isinstance(child, YamlNode):
            _mark(child, option)
