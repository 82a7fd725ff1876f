"""An SQL text in pieces: literals, names, binds and the rest. Comments are removed here."""

from __future__ import annotations

import hashlib
import re
from typing import Any, NamedTuple


class SqlPiece(NamedTuple):
    kind: str
    text: str


_COMMENT = r"--[^\n]*|//[^\n]*|/\*.*?\*/"
_STRING = r"'(?:[^'\\]|''|\\.)*'"
_RAW = r"(?<![\w$])\$\$.*?\$\$"
_QUOTED = r'"(?:[^"]|"")*"'
_NUMBER = r"(?<![\w$.])(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?(?![\w$])"
_NAMED_BIND = r"(?<![\w:)\]\"']):\w+"
_PIECES = re.compile(
    rf"(?P<comment>{_COMMENT})|(?P<string>{_STRING})|(?P<raw>{_RAW})|(?P<quoted>{_QUOTED})|(?P<number>{_NUMBER})"
    rf"|(?P<word>[^\W\d][\w$]*)|(?P<space>\s+)|(?P<bind>\?|{_NAMED_BIND})",
    re.DOTALL,
)
# The same literals, and everything that may contain what looks like one: none of these can begin inside of a word.
_CUTS = re.compile(f"({_COMMENT}|{_STRING}|{_RAW}|{_QUOTED}|{_NUMBER}|{_NAMED_BIND})", re.DOTALL)
LITERALS = ("string", "raw", "number")
_KINDS = {"'": "string", "$": "raw"}  # of a literal, by its first character; others are numbers


def pieces_of(text: str) -> list[SqlPiece]:
    """The text in pieces, without its comments."""
    pieces: list[SqlPiece] = []
    end = 0
    for match in _PIECES.finditer(text):
        if match.start() > end:
            pieces.append(SqlPiece("mark", text[end : match.start()]))
        kind = match.lastgroup or "mark"
        pieces.append(SqlPiece("space", " ") if kind == "comment" else SqlPiece(kind, match[0]))
        end = match.end()
    if end < len(text):
        pieces.append(SqlPiece("mark", text[end:]))
    while pieces and (pieces[-1].kind == "space" or pieces[-1].text.strip() == ";"):
        pieces.pop()
    return pieces


def cut(text: str) -> tuple[bytes, list[SqlPiece]]:
    """A key of all that is no literal or comment, and the literals: what pieces_of() finds, at a fifth of its cost."""
    parts: list[Any] = _CUTS.split(text)
    literals = []
    for place in range(1, len(parts), 2):
        found = parts[place]
        first = found[0]
        if first in "-/":
            parts[place] = None
        elif first not in '":':
            kind = _KINDS.get(first, "number")
            literals.append(SqlPiece(kind, found))
            # No text can be taken for it. Digits of other scripts are no SQL: a text with them has another key.
            parts[place] = (kind, kind == "number" and found.isascii())
    return hashlib.blake2b(repr(parts).encode(), digest_size=16).digest(), literals


def value_of(piece: SqlPiece) -> str:
    if piece.kind == "raw":
        return piece.text[2:-2]
    if piece.kind == "number":
        return piece.text
    text = piece.text[1:-1]
    if "\\" not in text and "'" not in text:
        return text
    return re.sub(r"\\(.)|''", lambda match: _unescaped(match[1]), text, flags=re.DOTALL)


def _unescaped(escaped: str | None) -> str:
    return "'" if escaped is None else {"n": "\n", "t": "\t", "r": "\r", "0": "\0"}.get(escaped, escaped)


def quoted(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"
