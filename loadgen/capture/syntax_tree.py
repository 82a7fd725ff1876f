"""The syntax tree of a statement: its role, and how each literal is treated."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

from sqlglot import exp
from sqlglot.dialects.snowflake import Snowflake
from sqlglot.errors import SqlglotError
from sqlglot.tokenizer_core import TokenType

from loadgen.capture.sql_pieces import LITERALS, SqlPiece, value_of
from loadgen.model.capture import LeftOutReason, StatementRole

logging.getLogger("sqlglot").setLevel(logging.CRITICAL)  # its warnings contain the texts that it cannot parse


class LiteralTreatment(StrEnum):
    KEEP = "keep"
    VALUE = "value"
    SMALL = "small"  # a number, kept unless it is large
    PATTERN = "pattern"  # a regular expression
    FORMAT = "format"  # kept if it is a format
    KEY = "key"  # of an object: kept if it is written like a name


@dataclass(frozen=True, slots=True)
class StatementShape:
    role: StatementRole
    treatments: tuple[LiteralTreatment, ...]  # of the literals, in order
    names: frozenset[int]  # pieces that are identifiers
    binds: int


_LITERAL_TOKENS = {TokenType.STRING: "string", TokenType.RAW_STRING: "raw", TokenType.NUMBER: "number"}
_UNKNOWN_LITERALS = {
    token for token in TokenType if token.name.endswith("_STRING") and token not in _LITERAL_TOKENS
}  # x'AB', b'01': rare, with several notations
_UNIT_WORD = (
    r"(?:nano|micro|milli)?sec(?:ond)?s?|[smhdwy]|min(?:ute)?s?|h(?:ou)?rs?|days?|dayofweek\w*|dayofyear|dow|doy"
    r"|weeks?|week_?iso|weekofyear|wk|mon(?:th)?s?|mm|q(?:uarte)?rs?|y(?:ea)?rs?|yyyy|dd|epoch\w*|[nm]s|us|start|end"
)
_UNIT = re.compile(rf"(?i:{_UNIT_WORD})")
_INTERVAL = re.compile(rf"(?i:\s*[+-]?\d+(?:\.\d+)?(?:\s*(?:{_UNIT_WORD}))?(?:\s*,\s*\d+\s*(?:{_UNIT_WORD}))*\s*)")
_FORMAT = re.compile(
    r'(?i:(?:yyyy|yy|uuuu|mmmm|mm|mon|month|dd|dy|day|hh24|hh12|hh|am|pm|mi|ss|ff\d?|tzh|tzm|tzd|auto|"t"|[t9x0gdfms]'
    r"|hex|base64|utf-?8|[-/.,:; $+%])+)"
)
_ZONE = re.compile(r"UTC|GMT|Z|[A-Z][A-Za-z]+/[A-Za-z_]+(?:/[A-Za-z_]+)?|[+-]\d\d:?\d\d")
_KEY_NAME = re.compile(r"[A-Za-z_]\w{0,63}")
PLAIN_NAME = re.compile(r"[A-Z_][A-Z0-9_$]*")
KEPT_NAMES = frozenset({"INFORMATION_SCHEMA", "SNOWFLAKE", "ACCOUNT_USAGE", "NEXTVAL"})
_SIZES = frozenset({"ROWCOUNT", "TIMELIMIT", "OFFSET"})  # named arguments that are no data
_FORMAT_KEYS = frozenset({"format", "unit", "zone", "source_tz", "target_tz", "kind", "precision", "scale"})
_STRUCTURE = (
    exp.Limit, exp.Offset, exp.Fetch, exp.Interval, exp.DataTypeParam, exp.Group, exp.Ordered, exp.WindowSpec,
    exp.TableSample, exp.Parameter, exp.Escape, exp.HistoricalData, exp.DynamicIdentifier,
)  # fmt: skip
_MOVES = (exp.DateAdd, exp.DateSub, exp.TimestampAdd, exp.TimestampSub, exp.DatetimeAdd, exp.TimeAdd, exp.TsOrDsAdd)
_SMALL_DIGITS = 3  # numbers up to here are positions, lengths and scales when they stand in a function
# Parameters that change what statements return. QUERY_TAG and limits are loadgen's in a replay.
_SESSION_PARAMETERS = re.compile(
    r"(?i:TIMEZONE|\w+_FORMAT|\w+_MAPPING|WEEK_\w+|TWO_DIGIT_CENTURY_START|AUTOCOMMIT|ROWS_PER_RESULTSET"
    r"|QUOTED_IDENTIFIERS_IGNORE_CASE|TRANSACTION_\w+|ERROR_ON_\w+|CLIENT_\w+_MODE|JSON_INDENT)"
)


@dataclass(frozen=True, slots=True)
class ParsedStatement:
    tree: Any
    tokens: Any


class _Dialect(Snowflake):
    class Tokenizer(Snowflake.Tokenizer):
        # `?::` is a bind and a cast here, not another dialect's operator.
        KEYWORDS: ClassVar = {word: kind for word, kind in Snowflake.Tokenizer.KEYWORDS.items() if "?" not in word}


def parse_statement(text: str) -> ParsedStatement | LeftOutReason:
    dialect = _Dialect()
    try:
        tokens = dialect.tokenize(text)
        trees = dialect.parser().parse(list(tokens), text)
    except (SqlglotError, RecursionError, ValueError):
        return LeftOutReason.UNPARSED
    if len(trees) != 1 or trees[0] is None:
        return LeftOutReason.SEVERAL if len(trees) > 1 else LeftOutReason.UNPARSED
    return ParsedStatement(trees[0], dialect.tokenize(text))  # parsing a Command changes tokens


def shape_of_statement(pieces: Sequence[SqlPiece], read: ParsedStatement) -> StatementShape | LeftOutReason:
    role = _role_of(read.tree)
    if isinstance(role, LeftOutReason):
        return role
    if any(token.token_type in _UNKNOWN_LITERALS for token in read.tokens) or read.tree.find(exp.Command):
        return LeftOutReason.UNPARSED
    starts, literals, at = {}, [], 0
    for number, piece in enumerate(pieces):
        starts[at] = number
        if piece.kind in LITERALS:
            literals.append((at, at + len(piece.text) - 1))
        at += len(piece.text)
    if literals != list(_literal_spans(read, pieces, starts)):
        return LeftOutReason.UNPARSED
    named = {piece.text for piece in pieces if piece.kind == "bind" and piece.text != "?"}  # :1 may stand twice
    binds = len(named) + sum(piece.kind == "bind" and piece.text == "?" for piece in pieces)
    if isinstance(read.tree, exp.Alter):  # of session parameters, whose values are words of Snowflake
        return StatementShape(role, (LiteralTreatment.KEEP,) * len(literals), frozenset(), binds)
    nodes = {node.meta.get("start"): node for node in read.tree.find_all(exp.Literal, exp.RawString)}
    return StatementShape(
        role=role,
        treatments=tuple(_treatment(nodes.get(start), pieces, starts[start]) for start, _ in literals),
        names=frozenset(_names(read.tree, pieces, starts)),
        binds=binds,
    )


def _literal_spans(
    read: ParsedStatement, pieces: Sequence[SqlPiece], starts: dict[int, int]
) -> Iterator[tuple[int, int]]:
    """Where the parser saw literals. It reads .5 as a point and a number, likewise :1 and $1."""
    for token in read.tokens:
        if token.token_type in _LITERAL_TOKENS:
            before = starts.get(token.start - 1)
            if token.start in starts or before is None:
                yield token.start, token.end
            elif pieces[before].text.startswith("."):
                yield token.start - 1, token.end


def _role_of(tree: Any) -> StatementRole | LeftOutReason:
    functions = [str(node.this).upper() for node in tree.find_all(exp.Anonymous)]
    if any(name.startswith("SYSTEM$") for name in functions):
        return LeftOutReason.SYSTEM_FUNCTION
    if isinstance(tree, (exp.Insert, exp.Update, exp.Delete, exp.Merge)):
        return StatementRole.WRITE
    if isinstance(tree, (exp.Select, exp.SetOperation, exp.Subquery, exp.Values)):
        draws = any(column.name.upper() == "NEXTVAL" for column in tree.find_all(exp.Column))
        return StatementRole.WRITE if draws else StatementRole.READ
    if isinstance(tree, (exp.Use, exp.Set)) or (isinstance(tree, exp.Alter) and _sets_session(tree)):
        return StatementRole.CONTEXT
    if isinstance(tree, (exp.Transaction, exp.Commit, exp.Rollback)):
        return StatementRole.TRANSACTION
    return LeftOutReason.NOT_REPLAYABLE


def _sets_session(tree: Any) -> bool:
    """Is it ALTER SESSION with parameters that a replay may set?"""
    if str(tree.args.get("kind")).upper() != "SESSION":
        return False
    items = [item for action in tree.args.get("actions") or () for item in action.find_all(exp.SetItem)]
    names = [item.this.this.name if isinstance(item.this, exp.EQ) else item.this.name for item in items]
    return bool(names) and all(_SESSION_PARAMETERS.fullmatch(name) for name in names)


def _treatment(node: Any, pieces: Sequence[SqlPiece], number: int) -> LiteralTreatment:
    piece = pieces[number]
    if node is None:  # the parser made it a part of the structure, or another value
        before = next((other.text for other in reversed(pieces[:number]) if other.kind != "space"), "")
        if before.endswith("["):
            return LiteralTreatment.KEY if piece.kind == "string" else LiteralTreatment.KEEP
        return LiteralTreatment.VALUE if piece.kind == "number" else LiteralTreatment.FORMAT
    key, parent = node.arg_key, node.parent
    while isinstance(parent, (exp.Neg, exp.Paren)):
        key, parent = parent.arg_key, parent.parent
    if isinstance(parent, exp.Bracket) and key == "expressions":
        return LiteralTreatment.KEY if piece.kind == "string" else LiteralTreatment.KEEP
    if key in _FORMAT_KEYS or (isinstance(parent, exp.Extract) and key == "this"):
        return LiteralTreatment.FORMAT if piece.kind == "string" else LiteralTreatment.KEEP
    if isinstance(parent, _STRUCTURE) and (piece.kind == "number" or not isinstance(parent, (exp.Group, exp.Ordered))):
        return LiteralTreatment.KEEP
    if piece.kind == "number":
        named = isinstance(parent, (exp.Kwarg, exp.PropertyEQ)) and parent.this.name.upper() in _SIZES
        if named or (isinstance(parent, _MOVES) and key == "expression"):
            return LiteralTreatment.KEEP
        in_call = isinstance(parent, exp.Func) and not isinstance(parent, exp.Connector)
        return LiteralTreatment.SMALL if in_call else LiteralTreatment.VALUE
    if type(parent).__name__.startswith("Regexp") and key == "expression":
        return LiteralTreatment.PATTERN
    return LiteralTreatment.VALUE


def stays(treatment: LiteralTreatment, value: str) -> bool:
    if treatment is LiteralTreatment.KEEP:
        return True
    if treatment is LiteralTreatment.SMALL:
        return len(value) <= _SMALL_DIGITS
    if treatment is LiteralTreatment.FORMAT:
        return any(known.fullmatch(value) for known in (_UNIT, _INTERVAL, _FORMAT, _ZONE))
    return treatment is LiteralTreatment.KEY and _KEY_NAME.fullmatch(value) is not None


def fits(shape: StatementShape, pieces: Sequence[SqlPiece]) -> bool:
    """May this text be treated like others of its shape? A literal that is kept as a format must be one."""
    literals = (piece for piece in pieces if piece.kind in LITERALS)
    return all(
        treatment is not LiteralTreatment.FORMAT or stays(treatment, value_of(piece))
        for piece, treatment in zip(literals, shape.treatments, strict=True)
    )


def _names(tree: Any, pieces: Sequence[SqlPiece], starts: dict[int, int]) -> Iterator[int]:
    """The pieces that are names of objects, columns and aliases, and keys of paths into objects."""
    for node in tree.find_all(exp.Identifier):
        number = starts.get(node.meta.get("start"))
        if number is not None and pieces[number].kind in ("word", "quoted"):
            yield number
    in_path = False
    for number, piece in enumerate(pieces):
        if piece.kind == "mark":
            begins = piece.text.endswith(":") and not piece.text.endswith("::")
            in_path = begins or (in_path and piece.text == ".")
        elif in_path and piece.kind in ("word", "quoted"):
            yield number
        else:
            in_path = False
