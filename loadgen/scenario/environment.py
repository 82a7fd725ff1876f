"""`${NAME}` in the texts of a scenario: `${NAME}`, `${NAME:-default}`, and `$${` for a literal `${`.

Filled in once, where the user types: after reading, in values only, so that no variable can add a key or a line. What
came from the environment is remembered: such a text shows as `${NAME}`, and a secret is stored as that.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from loadgen.log import is_secret_name, register_secret
from loadgen.scenario.document import Document, YamlNode
from loadgen.scenario.problem import KeyPath
from loadgen.scenario.template import TEXT_MAX, EnvironmentText, escape

_VARIABLE = re.compile(r"\$\$\{|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^{}]*))?\}|\$\{")
_HOW = "write ${NAME} or ${NAME:-default}, and $${ for a literal ${"


@dataclass(slots=True)
class _Filled:
    """A text with its variables filled in, and what is shown and stored for it."""

    value: str = ""
    template: str = ""
    stored: str = ""
    variables: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    forbidden: list[str] = field(default_factory=list)
    malformed: bool = False
    too_long: bool = False


def substitute_variables(
    document: Document, environ: Mapping[str, str], allowed: Collection[str] | None = None
) -> None:
    """Replace the variables in every text of the document; when some are `allowed`, only those."""
    if document.root is not None:
        _visit(document, document.root, (), _Variables(environ, allowed))


@dataclass(frozen=True, slots=True)
class _Variables:
    environ: Mapping[str, str]
    allowed: Collection[str] | None


def _visit(document: Document, node: YamlNode, path: KeyPath, environ: _Variables) -> None:
    if isinstance(node.value, dict):
        for key, entry in node.value.items():
            _visit(document, entry.node, (*path, key), environ)
    elif isinstance(node.value, list):
        for number, element in enumerate(node.value):
            _visit(document, element, (*path, number), environ)
    elif isinstance(node.value, str) and "${" in node.value:
        _fill_node(document, node, path, environ)


def _fill_node(document: Document, node: YamlNode, path: KeyPath, variables: _Variables) -> None:
    filled = _fill(str(node.value), variables)
    for name in filled.forbidden:
        document.problem(
            path,
            f"the environment variable {name} is not allowed from the queue",
            f"start the pool with --allow-variable {name}",
        )
    for name in filled.missing:
        document.problem(
            path, f"the environment variable {name} is not set", f"set it, or give a default: ${{{name}:-…}}"
        )
    if filled.malformed:
        document.problem(path, "has a ${ that names no variable", _HOW)
    if filled.too_long:
        document.problem(path, f"is longer than {TEXT_MAX:,} characters with its variables filled in")
    node.variables = tuple(filled.variables)
    node.refused = bool(filled.missing or filled.forbidden or filled.malformed or filled.too_long)
    if filled.variables:
        node.value = EnvironmentText(filled.value, filled.template, filled.stored)
    else:
        node.value = filled.value


def _fill(text: str, given: _Variables) -> _Filled:
    filled, environ = _Filled(), given.environ
    values: list[str] = []
    templates: list[str] = []
    stored: list[str] = []
    end, length = 0, len(text)
    for match in _VARIABLE.finditer(text):
        if length > TEXT_MAX:  # told by the caller; a text could be a million times one long variable
            break
        before = text[end : match.start()]
        values.append(before)
        templates.append(escape(before))
        stored.append(escape(before))
        end = match.end()
        name = match["name"]
        if match[0] == "$${":
            values.append("${")
            templates.append("$${")
            stored.append("$${")
        elif name is None:
            filled.malformed = True
        elif given.allowed is not None and name not in given.allowed:
            filled.forbidden.append(name)
        elif name in environ:
            values.append(environ[name])
            length += len(environ[name])
            templates.append(f"${{{name}}}")
            filled.variables.append(name)
            if is_secret_name(name):
                register_secret(environ[name])
            stored.append(f"${{{name}}}" if is_secret_name(name) else escape(environ[name]))
        elif match["default"] is not None:
            values.append(match["default"])
            templates.append(escape(match["default"]))
            stored.append(escape(match["default"]))
        else:
            filled.missing.append(name)
    filled.too_long = length > TEXT_MAX
    filled.value = "".join([*values, text[end:]])
    filled.template = "".join([*templates, escape(text[end:])])
    filled.stored = "".join([*stored, escape(text[end:])])
    return filled
