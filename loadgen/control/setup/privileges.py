"""Which privileges on which tables a statement needs, read from its text.

A reader of tokens, not a parser: it knows where names of tables stand (after FROM, JOIN, INTO, UPDATE, USING, and
after a comma among those), and leaves out what only looks like one: common table expressions, table functions,
EXTRACT(… FROM …), IS DISTINCT FROM. A role that changes or deletes rows also gets SELECT: finding them reads the table,
and a hybrid table's index is used only by roles that have it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from loadgen.snowflake.ident import Identifier, QualifiedName

PRIVILEGES = ("SELECT", "INSERT", "UPDATE", "DELETE")  # in the order they are written
TablePrivileges = Mapping[QualifiedName, frozenset[str]]

_TOKEN = re.compile(
    r"""
      (?P<skip>\s+|--[^\n]*|//[^\n]*|/\*(?:[^*]|\*(?!/))*\*/)
    | (?P<value>'(?:[^'\\]|''|\\.)*' | \$\$(?:[^$]|\$(?!\$))*\$\$ | [0-9][\w.]*)
    | (?P<quoted>"(?:[^"]|"")*")
    | (?P<word>[A-Za-z_][\w$]*)
    | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_ENDS_FROM = frozenset(
    {"WHERE", "GROUP", "ORDER", "HAVING", "QUALIFY", "LIMIT", "OFFSET", "FETCH", "CONNECT"}
    | {"SELECT", "UNION", "EXCEPT", "INTERSECT", "MINUS", "SET", "WHEN"}
)


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str  # words in upper case

    @property
    def is_name(self) -> bool:
        return self.kind in ("word", "quoted")


@dataclass(slots=True)
class _Level:
    """What is open between two brackets."""

    in_from: bool = False  # a comma is followed by another table
    expecting: bool = False  # the next name is a table
    after: str = ""  # the word before the bracket


@dataclass(slots=True)
class _Reader:
    tokens: list[_Token]
    found: dict[QualifiedName, set[str]] = field(default_factory=dict)
    levels: list[_Level] = field(default_factory=lambda: [_Level()])
    has_source: bool = False  # USING of a MERGE or DELETE was read

    def read(self) -> None:
        verb, ctes = self.verb(), self._ctes()
        target: QualifiedName | None = None
        index = 0
        while index < len(self.tokens):
            token, level = self.tokens[index], self.levels[-1]
            before = self.tokens[index - 1].text if index else ""
            if token.text == "(" and token.kind == "other":
                self.levels.append(_Level(in_from=level.expecting, expecting=level.expecting, after=before))
                level.expecting = False
            elif token.text == ")" and token.kind == "other":
                self.levels = self.levels[:-1] or [_Level()]
            elif token.text == "," and token.kind == "other":
                level.expecting = level.in_from
            elif token.kind == "word" and self._is_target(verb, token, before, target):
                index, target = self._path(index + 1)
                self._add(target, _on_target(verb, self.tokens))
                continue
            elif token.kind == "word" and token.text in _ENDS_FROM:
                level.in_from = level.expecting = False
            elif token.kind == "word" and self._opens_tables(verb, token, before):
                level.in_from = level.expecting = True
            elif level.expecting and token.is_name and token.text != "LATERAL":
                level.expecting = False
                index, name = self._path(index)
                if not self._is_at(index, "(") and not (len(name.parts) == 1 and name.parts[0] in ctes):
                    self._add(name, {"SELECT"})
                continue
            elif token.text != "LATERAL":
                level.expecting = False
            index += 1

    def verb(self) -> str:
        return next((token.text for token in self.tokens if token.kind == "word"), "")

    def _is_target(self, verb: str, token: _Token, before: str, target: QualifiedName | None) -> bool:
        """Does the name of a table that is written to follow?"""
        if token.text == "INTO":
            return verb in ("INSERT", "MERGE")
        if target is not None:
            return False
        return (verb == token.text == "UPDATE" and before == "") or (verb == "DELETE" and token.text == "FROM")

    def _opens_tables(self, verb: str, token: _Token, before: str) -> bool:
        if token.text == "FROM":
            return before != "DISTINCT" and self.levels[-1].after != "EXTRACT"
        if token.text == "USING" and verb in ("MERGE", "DELETE") and len(self.levels) == 1:
            is_first, self.has_source = not self.has_source, True
            return is_first  # a later one is JOIN … USING (columns)
        return token.text == "JOIN"

    def _path(self, index: int) -> tuple[int, QualifiedName]:
        """The name that begins there, and where it ends. `db..t` is a table of PUBLIC."""
        parts: list[Identifier] = []
        while index < len(self.tokens):
            token = self.tokens[index]
            if token.is_name:
                parts.append(Identifier.parse(token.text))
                index += 1
            elif token.text == ".":
                parts.append(Identifier("PUBLIC"))
            if not self._is_at(index, "."):
                break
            index += 1
        return index, QualifiedName(tuple(parts))

    def _is_at(self, index: int, text: str) -> bool:
        return index < len(self.tokens) and self.tokens[index] == _Token("other", text)

    def _ctes(self) -> set[Identifier]:
        """Names that stand before AS ( in a statement with WITH; a list of columns may be in between."""
        names: set[Identifier] = set()
        if _Token("word", "WITH") not in self.tokens:
            return names
        for index, token in enumerate(self.tokens):
            if token == _Token("word", "AS") and self._is_at(index + 1, "("):
                back = index - 1
                if self._is_at(back, ")"):
                    while back > 0 and not self._is_at(back, "("):
                        back -= 1
                    back -= 1
                if back >= 0 and self.tokens[back].is_name:
                    names.add(Identifier.parse(self.tokens[back].text))
        return names

    def _add(self, name: QualifiedName, privileges: Iterable[str]) -> None:
        self.found.setdefault(name, set()).update(privileges)


def required_privileges(sql: str) -> TablePrivileges:
    """The privileges that each table in a statement needs. Nothing for CREATE, CALL and the like."""
    tokens = [
        _Token(str(match.lastgroup), match[0].upper() if match.lastgroup == "word" else match[0])
        for match in _TOKEN.finditer(sql)
        if match.lastgroup != "skip"
    ]
    reader = _Reader(tokens)
    if reader.verb() in ("SELECT", "WITH", "INSERT", "UPDATE", "DELETE", "MERGE"):
        reader.read()
    return {name: frozenset(privileges) for name, privileges in reader.found.items()}


def merge_privileges(several: Iterable[TablePrivileges]) -> TablePrivileges:
    """What all of them need."""
    found: dict[QualifiedName, frozenset[str]] = {}
    for needs in several:
        for name, privileges in needs.items():
            found[name] = found.get(name, frozenset()) | privileges
    return found


def _on_target(verb: str, tokens: list[_Token]) -> set[str]:
    words = [token.text for token in tokens if token.kind == "word"]
    if verb == "INSERT":
        return {"INSERT", "DELETE"} if words[1] == "OVERWRITE" else {"INSERT"}
    if verb == "MERGE":
        done = {after for word, after in itertools.pairwise(words) if word == "THEN"}
        return {"SELECT"} | (done & set(PRIVILEGES))
    return {"SELECT", verb}
