"""An SQL text in pieces: literals, names, binds and the rest. Comments are removed here, and names can be hidden."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from sqlglot.dialects.snowflake import Snowflake


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
    """The key of a text without its literals and comments, and the literals. Five times as fast as pieces_of()."""
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
            # A tuple cannot equal a text. A number with non-ASCII digits is not SQL, so it gives another key.
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


# --- Which words of a text are names, so that --hide-names leaves none of them readable ------------------------------
# The syntax tree knows names of tables and columns. Stages, session variables, names of transactions and functions that
# the parser does not know are plain words to it. So every word is a name, unless it is vocabulary of SQL.

KEPT_NAMES = frozenset({"INFORMATION_SCHEMA", "SNOWFLAKE", "ACCOUNT_USAGE", "NEXTVAL"})
# Keywords of statements that can be captured and that are missing in the parser's lists. A word that is missing here
# is replaced; if the text cannot be parsed then, the statement is left out.
_MORE_VOCABULARY = """
    APPEND_ONLY AT BEFORE BERNOULLI BLOCK BOTH CHANGES CURRENT DAY DEFINE DIRECTED EXCLUDE FILE_FORMAT FOLLOWING HOUR
    IDENTIFIER IGNORE INCLUDE INFORMATION INPUT LAST LEADING MATCH_CONDITION MATCH_RECOGNIZE MATCHED MEASURES MINUTE
    MODE MONTH NAME NULLS ONLY PATH PATTERN PRECEDING QUARTER REPEATABLE RESPECT ROLES ROWCOUNT SECOND SECONDARY SEED
    STATEMENT STREAM SYSTEM TIES TIMELIMIT TRAILING TRANSACTION UNBOUNDED WEEK WITHIN WITHOUT WORK YEAR ZONE
"""
_VOCABULARY = KEPT_NAMES.union(
    (word for entry in Snowflake.Tokenizer.KEYWORDS for word in entry.upper().split()), _MORE_VOCABULARY.split()
)
_FUNCTIONS = frozenset((*Snowflake.Parser.FUNCTIONS, *Snowflake.Parser.FUNCTION_PARSERS))
_NAME_PART = re.compile(r'"(?:[^"]|"")*"|[^."]+')


def _is_vocabulary(word: str, behind: str) -> bool:
    """Names of functions are vocabulary in front of a parenthesis only."""
    return word.upper() in _VOCABULARY or (word.upper() in _FUNCTIONS and behind.startswith("("))


def path_keys(pieces: Sequence[SqlPiece]) -> Iterator[int]:
    """The pieces that are keys of paths into objects: a:KEY.KEY[0].KEY, a['x'].KEY."""
    in_path = False
    for number, piece in enumerate(pieces):
        if piece.kind == "mark":
            behind = pieces[number - 1].kind if number else ""  # {'a':b} has a value behind the colon
            colon = piece.text.endswith(":") and not piece.text.endswith("::")
            begins = (colon and (behind in ("word", "quoted") or len(piece.text) > 1)) or piece.text.endswith("].")
            in_path = begins or (in_path and piece.text in (".", "[", "]"))
        elif in_path and piece.kind in ("word", "quoted"):
            yield number
        elif piece.kind not in LITERALS:
            in_path = False


def plain_names(pieces: Sequence[SqlPiece]) -> Iterator[int]:
    """The pieces that are no vocabulary; every word of a stage's path, and every session variable."""
    in_stage, before = False, ""
    for number, piece in enumerate(pieces):
        if piece.kind == "space" or (piece.kind == "mark" and re.search(r"[(),;]", piece.text)):
            in_stage = False
        if piece.kind == "mark" and "@" in piece.text:
            in_stage = True
        behind = next((one.text for one in pieces[number + 1 : number + 3] if one.kind != "space"), "")
        named = in_stage or before.endswith("$")
        word = piece.kind == "word" and (named or not _is_vocabulary(piece.text, behind))
        if piece.kind == "quoted" or word:
            yield number
        before = piece.text if piece.kind == "mark" else ""


def name_parts(text: str) -> list[str]:
    """Parts of a qualified name in a literal: IDENTIFIER('db."My table"')."""
    return _NAME_PART.findall(text)
