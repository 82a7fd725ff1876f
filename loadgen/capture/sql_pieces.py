"""An SQL text in pieces: literals, names, binds and the rest. Comments are removed here."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from loadgen.values import dataclass


@dataclass(frozen=True, slots=True)
class SqlPiece:
    kind: str
    text: str


_PIECES = re.compile(
    r"(?P<comment>--[^\n]*|//[^\n]*|/\*.*?\*/)"
    r"|(?P<string>'(?:[^'\\]|''|\\.)*')"
    r"|(?P<raw>\$\$.*?\$\$)"
    r'|(?P<quoted>"(?:[^"]|"")*")'
    r"|(?P<number>(?<![\w$.])(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?(?![\w$]))"
    r"|(?P<word>[^\W\d][\w$]*)"
    r"|(?P<space>\s+)"
    r"|(?P<bind>\?|(?<![\w:)\]\"']):\w+)",
    re.DOTALL,
)
LITERALS = ("string", "raw", "number")


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


def shape_key(pieces: Sequence[SqlPiece]) -> bytes:
    parts = (piece.kind if piece.kind in LITERALS else piece.text for piece in pieces)
    return hashlib.blake2b("\0".join(parts).encode("utf-8", "surrogatepass"), digest_size=16).digest()


def value_of(piece: SqlPiece) -> str:
    if piece.kind == "raw":
        return piece.text[2:-2]
    if piece.kind == "number":
        return piece.text
    return re.sub(r"\\(.)|''", lambda match: _unescaped(match[1]), piece.text[1:-1], flags=re.DOTALL)


def _unescaped(escaped: str | None) -> str:
    return "'" if escaped is None else {"n": "\n", "t": "\t", "r": "\r", "0": "\0"}.get(escaped, escaped)


def quoted(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"
