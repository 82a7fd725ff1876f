"""Which words of a text are names, so that --hide-names leaves none of them readable.

The syntax tree knows names of tables and columns. Stages, session variables, names of transactions and functions that
the parser does not know are plain words to it. So every word is a name, unless it is vocabulary of SQL.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from sqlglot.dialects.snowflake import Snowflake

from loadgen.capture.sql_pieces import LITERALS, SqlPiece

KEPT_NAMES = frozenset({"INFORMATION_SCHEMA", "SNOWFLAKE", "ACCOUNT_USAGE", "NEXTVAL"})
# Of statements that a capture may hold, without what the parser's lists have. A word that is missing here is replaced;
# if the text cannot be parsed then, the statement is left out.
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
