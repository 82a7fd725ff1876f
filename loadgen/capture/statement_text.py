"""One SQL text of a history → the same text without comments and, by default, without real values.

    pieces    a regular expression finds comments, literals and names; the rest of the text does not change
    tree      the first text of each shape is parsed: the syntax tree classifies each literal (a value, a LIMIT, a
              format …). Later texts of the same shape differ only in literals, and are not parsed again
    check     the result is parsed as well, and must be the same kind of statement with the same role

A text is left out if it cannot be parsed, or if the parser sees its literals in other places.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from enum import StrEnum
from functools import cache, lru_cache
from typing import Any, ClassVar
from zoneinfo import available_timezones

from sqlglot import exp
from sqlglot.dialects.snowflake import Snowflake
from sqlglot.errors import SqlglotError
from sqlglot.tokenizer_core import TokenType

from loadgen.capture.pseudonyms import KEY_BYTES, REMEMBERED_WORDS, SECRET, Pseudonyms, Scalar
from loadgen.capture.sql_pieces import (
    KEPT_NAMES,
    LITERALS,
    SqlPiece,
    cut,
    name_parts,
    path_keys,
    pieces_of,
    plain_names,
    value_of,
)
from loadgen.model.capture import LeftOutReason, RecordedStatement, StatementRole
from loadgen.snowflake.ident import text_literal
from loadgen.values import dataclass

logging.getLogger("sqlglot").setLevel(logging.CRITICAL)  # its warnings contain SQL texts


# --- The syntax tree of a statement: its role, and the treatment of each literal -------------------------------------


class LiteralTreatment(StrEnum):
    KEEP = "keep"
    VALUE = "value"
    SMALL = "small"  # a number, kept if it is small
    PATTERN = "pattern"  # a regular expression
    MOMENT = "moment"  # becomes a date or timestamp: digits may be an epoch
    FORMAT = "format"  # kept if it is a format
    KEY = "key"  # of an object; kept if it has the form of a name
    NAME = "name"  # of a table: IDENTIFIER('…')


_ALWAYS_REPLACED = frozenset((LiteralTreatment.VALUE, LiteralTreatment.PATTERN, LiteralTreatment.MOMENT))


@dataclass(frozen=True, slots=True)
class StatementShape:
    role: StatementRole
    kind: str  # of the syntax tree
    treatments: tuple[LiteralTreatment, ...]  # of the literals, in order
    names: frozenset[int]  # pieces that are identifiers
    keys: frozenset[int]  # pieces that are keys of paths into objects, which are case-sensitive
    binds: int
    names_bound: bool  # the name of a table is a bind value: IDENTIFIER(?)
    names_secret: bool  # it contains the name of a password, a token or a key, so its texts may be secrets


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
_OFFSET = re.compile(r"UTC|GMT|Z|[+-]\d\d:?\d\d")  # of a time zone; others have names
_zones = cache(available_timezones)
_KEY_NAME = re.compile(r"[A-Za-z_]\w{0,63}")
PLAIN_NAME = re.compile(r"[A-Z_][A-Z0-9_$]*")
_SIZES = frozenset({"ROWCOUNT", "TIMELIMIT", "OFFSET"})  # named arguments that are no data
_FORMAT_KEYS = frozenset({"format", "unit", "zone", "source_tz", "target_tz", "kind", "precision", "scale"})
_STRUCTURE = (
    exp.Limit, exp.Offset, exp.Fetch, exp.Interval, exp.DataTypeParam, exp.Group, exp.Ordered, exp.WindowSpec,
    exp.TableSample, exp.Parameter, exp.Escape, exp.HistoricalData,
)  # fmt: skip
_NAMED = (exp.DynamicIdentifier, exp.TableFromRows)  # IDENTIFIER('t'), TABLE('t')
_SECRET_NAME = re.compile(
    r"(?i:pass(?:word|wd|phrase|code)|pwd|secret|token|credential|(?:api|access|account|private|encryption)_?key|crypt"
    r"|(?<![a-z])(?:pass|pw|pin|otp)(?![a-z]))"
)
_DML = (exp.Insert, exp.Update, exp.Delete, exp.Merge)
_MOVES = (exp.DateAdd, exp.DateSub, exp.TimestampAdd, exp.TimestampSub, exp.DatetimeAdd, exp.TimeAdd, exp.TsOrDsAdd)
_TO_MOMENT = re.compile(r"(?:TRY_)?(?:TO_)?(?:DATE|TIMESTAMP(?:_NTZ|_LTZ|_TZ)?)")  # functions the parser does not know
_SMALL_DIGITS = 3  # shorter numbers in functions are positions, lengths and scales
# Parameters that change the results of statements. In a replay loadgen sets QUERY_TAG and limits.
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
    if any(token.token_type is TokenType.DARROW for token in tokens):  # ->> sends one statement after another
        return LeftOutReason.SEVERAL
    if len(trees) != 1 or trees[0] is None:
        return LeftOutReason.SEVERAL if len(trees) > 1 else LeftOutReason.UNPARSED
    return ParsedStatement(trees[0], dialect.tokenize(text))  # parsing a Command changes tokens


def shape_of_statement(pieces: Sequence[SqlPiece], read: ParsedStatement) -> StatementShape | LeftOutReason:
    role = _role_of(read.tree)
    if isinstance(role, LeftOutReason):
        return role
    if any(token.token_type in _UNKNOWN_LITERALS for token in read.tokens) or read.tree.find(exp.Command):
        return LeftOutReason.UNPARSED
    if any("$$" in piece.text for piece in pieces if piece.kind in ("word", "mark")):  # a name, or a text behind one?
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
        kept = (LiteralTreatment.KEEP,) * len(literals)
        none: frozenset[int] = frozenset()
        return StatementShape(role, read.tree.key, kept, none, none, binds, names_bound=False, names_secret=False)
    nodes = {node.meta.get("start"): node for node in read.tree.find_all(exp.Literal, exp.RawString)}
    return StatementShape(
        role=role,
        kind=read.tree.key,
        treatments=tuple(_treatment(nodes.get(start), pieces, starts[start]) for start, _ in literals),
        names=frozenset((*_identifiers(read.tree, pieces, starts), *plain_names(pieces))),
        keys=frozenset(path_keys(pieces)),
        binds=binds,
        names_bound=any(isinstance(node.this, exp.Placeholder) for node in read.tree.find_all(*_NAMED)),
        names_secret=any(_SECRET_NAME.search(piece.text) for piece in pieces if piece.kind in ("word", "quoted")),
    )


def shape_of_text(pieces: Sequence[SqlPiece]) -> StatementShape | LeftOutReason:
    read = parse_statement("".join(piece.text for piece in pieces))
    return read if isinstance(read, LeftOutReason) else shape_of_statement(pieces, read)


def _literal_spans(
    read: ParsedStatement, pieces: Sequence[SqlPiece], starts: dict[int, int]
) -> Iterator[tuple[int, int]]:
    """The positions of the literals in the parser. It reads .5, :1 and $1 as a mark and a number."""
    for token in read.tokens:
        if token.token_type in _LITERAL_TOKENS:
            before = starts.get(token.start - 1)
            if token.start in starts or before is None:
                yield token.start, token.end
            elif pieces[before].text.startswith("."):
                yield token.start - 1, token.end


def _role_of(tree: Any) -> StatementRole | LeftOutReason:
    functions = {node.name.upper() for node in tree.find_all(exp.Anonymous)}
    by_text = any(node.expressions for node in tree.find_all(exp.DynamicIdentifier))  # IDENTIFIER('f')(1): any function
    if by_text or any(name.startswith("SYSTEM$") for name in functions):
        return LeftOutReason.SYSTEM_FUNCTION
    # FOR UPDATE locks rows until a COMMIT, which is not sent if writes are skipped.
    writes = "GETNEXTVAL" in functions or tree.find(exp.Lock) is not None
    writes = writes or any(node.name.upper() == "NEXTVAL" for node in tree.find_all(exp.Column, exp.Var))
    if tree.find(*_DML):
        return StatementRole.WRITE if isinstance(tree, _DML) else LeftOutReason.NOT_REPLAYABLE
    if tree.find(exp.Into):
        return LeftOutReason.NOT_REPLAYABLE
    if isinstance(tree, (exp.Select, exp.SetOperation, exp.Subquery, exp.Values)):
        return StatementRole.WRITE if writes else StatementRole.READ
    if isinstance(tree, (exp.Use, exp.Set)):
        return StatementRole.WRITE if writes else StatementRole.CONTEXT
    if isinstance(tree, exp.Alter) and _sets_session(tree):
        return StatementRole.TRANSACTION if "AUTOCOMMIT" in _parameters(tree) else StatementRole.CONTEXT
    if isinstance(tree, (exp.Transaction, exp.Commit, exp.Rollback)):
        return StatementRole.TRANSACTION
    if isinstance(tree, exp.Create) and tree.find(exp.TemporaryProperty):
        return LeftOutReason.TEMPORARY_TABLE
    return LeftOutReason.NOT_REPLAYABLE


def _becomes_moment(node: Any) -> bool:
    """Whether a function or a cast converts the literal to a date or a timestamp."""
    parent = node.parent
    if isinstance(parent, exp.Anonymous):
        return node is parent.expressions[0] and _TO_MOMENT.fullmatch(str(parent.this).upper()) is not None
    cast = isinstance(parent, (exp.Cast, exp.TryCast)) and parent.to.is_type(*exp.DataType.TEMPORAL_TYPES)
    return node.arg_key == "this" and (cast or isinstance(parent, (exp.UnixToTime, exp.TsOrDsToDate, exp.StrToTime)))


def _sets_session(tree: Any) -> bool:
    """Whether it is ALTER SESSION with parameters that a replay may set."""
    if str(tree.args.get("kind")).upper() != "SESSION":
        return False
    names = _parameters(tree)
    return bool(names) and all(_SESSION_PARAMETERS.fullmatch(name) for name in names)


def _parameters(tree: Any) -> list[str]:
    """The parameters that an ALTER SESSION names, in upper case."""
    items = [item for action in tree.args.get("actions") or () for item in action.find_all(exp.SetItem)]
    return [(item.this.this if isinstance(item.this, exp.EQ) else item.this).name.upper() for item in items]


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
    if isinstance(parent, _NAMED):
        return LiteralTreatment.NAME
    if key in _FORMAT_KEYS or (isinstance(parent, exp.Extract) and key == "this"):
        return LiteralTreatment.FORMAT if piece.kind == "string" else LiteralTreatment.KEEP
    if isinstance(parent, exp.HistoricalData) and str(parent.args["kind"]).upper() == "STATEMENT":
        return LiteralTreatment.VALUE  # its id
    if isinstance(parent, _STRUCTURE) and (piece.kind == "number" or not isinstance(parent, (exp.Group, exp.Ordered))):
        return LiteralTreatment.KEEP
    if _becomes_moment(node):
        return LiteralTreatment.MOMENT
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
    if treatment in (LiteralTreatment.KEEP, LiteralTreatment.NAME):
        return True
    if treatment is LiteralTreatment.SMALL:
        return len(value) <= _SMALL_DIGITS
    if treatment is LiteralTreatment.FORMAT:
        return any(known.fullmatch(value) for known in (_UNIT, _INTERVAL, _FORMAT, _OFFSET)) or value in _zones()
    return treatment is LiteralTreatment.KEY and _KEY_NAME.fullmatch(value) is not None


def _identifiers(tree: Any, pieces: Sequence[SqlPiece], starts: dict[int, int]) -> Iterator[int]:
    """The pieces that are names of objects, columns and aliases for the parser."""
    for node in tree.find_all(exp.Identifier):
        number = starts.get(node.meta.get("start"))
        if number is not None and pieces[number].kind in ("word", "quoted"):
            yield number


SHAPES_MAX = 20_000  # cached shapes
TEXTS_MAX, REMEMBERED_CHARACTERS = 5_000, 4_000
TEXT_CHARACTERS_MAX = 1_000_000
TEXTS_READ = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPlan:
    """The result for all texts of one shape: `fixed` are the parts around the literals."""

    shape: StatementShape
    fixed: tuple[str, ...]
    template: str | None  # with its id; None: it depends on the literals
    template_id: str

    def fits(self, literals: Sequence[SqlPiece]) -> bool:
        """Whether literals that are kept as formats are formats."""
        treatments = self.shape.treatments
        return LiteralTreatment.FORMAT not in treatments or all(
            treatment is not LiteralTreatment.FORMAT or stays(treatment, value_of(piece))
            for piece, treatment in zip(literals, treatments, strict=True)
        )

    def text(self, literals: Sequence[str]) -> str:
        parts = [self.fixed[0]]
        for literal, after in zip(literals, self.fixed[1:], strict=True):
            parts += (literal, after)
        return "".join(parts)


class StatementLeftOut(Exception):
    def __init__(self, reason: LeftOutReason) -> None:
        super().__init__(reason.value)
        self.reason = reason


def _names_secret(shape: StatementShape, literals: Sequence[SqlPiece]) -> bool:
    """Whether the statement names a secret, as a name or as a text: OBJECT_CONSTRUCT('password', …), a['token']."""
    texts = (value_of(piece) for piece in literals if piece.kind != "number")
    return shape.names_secret or any(_KEY_NAME.fullmatch(text) and _SECRET_NAME.search(text) for text in texts)


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanText:
    """A cleaned text. `template` has a ? for each value; texts with one template are one statement of a workload."""

    text: str
    template: str
    template_id: str
    role: StatementRole
    binds: int  # number of ? in the text
    names_secret: bool


class StatementCleaner:
    """Cleans every text of one capture. `keep_values` keeps values, except those that look like secrets, and texts in
    statements that contain the name of a secret."""

    def __init__(self, secret: Pseudonyms, *, keep_values: bool = False, hide_names: bool = False) -> None:
        self._pseudonyms, self._keep_values, self._hide_names = secret, keep_values, hide_names
        self._plans: dict[bytes, TextPlan | LeftOutReason] = {}
        self._clean = lru_cache(TEXTS_MAX)(self._cleaned)

    def clean(self, text: str) -> CleanText:
        """Clean a text. Raises StatementLeftOut."""
        found = self._clean(text) if len(text) <= REMEMBERED_CHARACTERS else self._cleaned(text)
        if isinstance(found, LeftOutReason):
            raise StatementLeftOut(found)
        return found

    def read(self, text: str) -> tuple[TextPlan, Sequence[SqlPiece]] | None:
        """The parsed text for rewritten(), the same for all cleaners; None: it cannot be parsed, or has no values."""
        if len(text) > TEXT_CHARACTERS_MAX:
            return None
        key, literals = cut(text)
        plan = self._plan(key, literals, text) if literals else LeftOutReason.UNPARSED
        return None if isinstance(plan, LeftOutReason) else (plan, literals)

    def rewritten(self, plan: TextPlan, literals: Sequence[SqlPiece]) -> str:
        """The text of clean(), for a text that was cleaned before."""
        named = _names_secret(plan.shape, literals)
        return plan.text(
            [
                self._literal(piece, treatment, is_secret=named and piece.kind != "number")
                for piece, treatment in zip(literals, plan.shape.treatments, strict=True)
            ]
        )

    def bound(self, value: Scalar, kind: str, *, names_secret: bool = False) -> Scalar:
        """The pseudonym of a bind value of this Snowflake type. `names_secret`: whether its statement names a
        secret."""
        if self._keep_values and not (isinstance(value, str) and (names_secret or SECRET.search(value))):
            return value
        return self._pseudonyms.bound(value, kind)

    def name(self, name: str | None) -> str | None:
        """An identifier of the context of a statement, without quotes, as in the history."""
        if name is None or not self._hide_names or name.upper() in KEPT_NAMES:
            return name
        return self._hidden_name(name)

    def values(self, text: str, binds: Sequence[Scalar]) -> list[Scalar]:
        """The values for each ? of the template of a cleaned text, in order."""
        key, literals = cut(text)
        plan = self._plan(key, literals, text)
        if isinstance(plan, LeftOutReason):
            raise StatementLeftOut(plan)
        treatments, bound = iter(plan.shape.treatments), iter(binds)
        found: list[Scalar] = []
        for piece in pieces_of(text):
            if piece.kind in LITERALS:
                value = value_of(piece)
                if not stays(next(treatments), value):
                    found.append(_number(value) if piece.kind == "number" else value)
            elif piece.kind == "bind":
                found.append(next(bound))
        return found

    def _plan(self, key: bytes, literals: Sequence[SqlPiece], text: str) -> TextPlan | LeftOutReason:
        """The plan for a text with this key and these literals, both from cut()."""
        plan = self._plans.get(key)
        if plan is None or (isinstance(plan, TextPlan) and not plan.fits(literals)):
            plan = self._learned(pieces_of(text))
            if len(self._plans) >= SHAPES_MAX:
                self._plans.clear()
            self._plans[key] = plan
        return plan

    def _cleaned(self, text: str) -> CleanText | LeftOutReason:
        if len(text) > TEXT_CHARACTERS_MAX:
            return LeftOutReason.TRUNCATED
        key, literals = cut(text)
        plan = self._plan(key, literals, text)
        if isinstance(plan, LeftOutReason):
            return plan
        shape, template, template_id = plan.shape, plan.template, plan.template_id
        if template is None:
            template = plan.text(list(map(self._in_template, literals, shape.treatments)))
            template_id = _template_id(template)
        return CleanText(
            text=self.rewritten(plan, literals),
            template=template,
            template_id=template_id,
            role=shape.role,
            binds=shape.binds,
            names_secret=_names_secret(shape, literals),
        )

    def _learned(self, pieces: Sequence[SqlPiece]) -> TextPlan | LeftOutReason:
        """Parse the text, classify its literals, write the result, and parse it again."""
        shape = shape_of_text(pieces)
        if isinstance(shape, LeftOutReason):
            return shape
        if self._hide_names and shape.names_bound:
            return LeftOutReason.NAMES
        literals = [piece for piece in pieces if piece.kind in LITERALS]
        fixed = self._fixed(pieces, shape)
        template = "?".join(fixed) if _ALWAYS_REPLACED.issuperset(shape.treatments) else None
        plan = TextPlan(
            shape=shape, fixed=fixed, template=template, template_id=_template_id(template) if template else ""
        )
        again = shape_of_text(pieces_of(self.rewritten(plan, literals)))
        if isinstance(again, LeftOutReason) or (again.kind, again.role) != (shape.kind, shape.role):
            return LeftOutReason.NAMES if self._hide_names else LeftOutReason.UNPARSED
        return plan

    def _fixed(self, pieces: Sequence[SqlPiece], shape: StatementShape) -> tuple[str, ...]:
        """The text around its literals."""
        runs: list[list[str]] = [[]]
        for number, piece in enumerate(pieces):
            if piece.kind in LITERALS:
                runs.append([])
            elif self._hide_names and (number in shape.names or number in shape.keys):
                runs[-1].append(self._identifier(piece, is_key=number in shape.keys))
            elif piece.kind == "quoted" and SECRET.search(piece.text):
                runs[-1].append(self._hidden_name(piece.text))
            else:
                runs[-1].append(piece.text)
        fixed = ["".join(run) for run in runs]
        fixed[0], fixed[-1] = fixed[0].lstrip(), fixed[-1].rstrip()
        return tuple(fixed)

    def _literal(self, piece: SqlPiece, treatment: LiteralTreatment, *, is_secret: bool) -> str:
        value = value_of(piece)
        if stays(treatment, value):
            return self._kept_literal(piece, treatment, value)
        if self._keep_values and not is_secret and not SECRET.search(value):
            return piece.text
        if treatment is LiteralTreatment.MOMENT and value.isdigit():
            made = self._pseudonyms.epoch(value)
            return made if piece.kind == "number" else text_literal(made)
        if piece.kind == "number":
            return self._pseudonyms.number(value)
        made = (
            self._pseudonyms.pattern(value) if treatment is LiteralTreatment.PATTERN else self._pseudonyms.text(value)
        )
        return f"$${made}$$" if piece.kind == "raw" and "$$" not in made else text_literal(made)

    def _in_template(self, piece: SqlPiece, treatment: LiteralTreatment) -> str:
        value = value_of(piece)
        return self._kept_literal(piece, treatment, value) if stays(treatment, value) else "?"

    def _kept_literal(self, piece: SqlPiece, treatment: LiteralTreatment, value: str) -> str:
        """A literal that is kept, unless it may be a name and names are hidden."""
        if not self._hide_names or piece.kind == "number":
            return piece.text
        if treatment is LiteralTreatment.KEY:
            return text_literal(self._hidden_name(value).strip('"'))
        if treatment is LiteralTreatment.NAME:
            parts = [SqlPiece("quoted" if part[:1] == '"' else "word", part) for part in name_parts(value)]
            return text_literal(".".join(map(self._identifier, parts)))
        if treatment is LiteralTreatment.KEEP and not stays(LiteralTreatment.FORMAT, value):
            return text_literal(self._pseudonyms.text(value))
        return piece.text

    def _identifier(self, piece: SqlPiece, *, is_key: bool = False) -> str:
        name = piece.text[1:-1].replace('""', '"') if piece.kind == "quoted" else piece.text
        name = name if is_key or piece.kind == "quoted" else name.upper()
        return piece.text if name in KEPT_NAMES else self._hidden_name(name)

    def _hidden_name(self, name: str) -> str:
        """Unquoted and quoted spellings of one name stay one name."""
        hidden = self._pseudonyms.name(name, "N_").upper()
        return hidden if PLAIN_NAME.fullmatch(name) else f'"{hidden.lower()}"'


class StatementRoles:
    """The roles of the texts of a capture, by the same rule as during the capture: its labels may be wrong."""

    def __init__(self) -> None:
        self._known: dict[bytes, StatementRole | LeftOutReason] = {}  # by the key of cut(): literals do not matter

    def of(self, text: str) -> StatementRole | LeftOutReason:
        """The role of a text; a reason: it must not be in a capture."""
        if len(text) > 2 * TEXT_CHARACTERS_MAX:  # pseudonyms may be longer, because of their quotes
            return LeftOutReason.TRUNCATED
        key, _ = cut(text)
        found = self._known.get(key)
        if found is None:
            found = self._read(text)
            if len(self._known) >= SHAPES_MAX:
                self._known.clear()
            self._known[key] = found
        return found

    def _read(self, text: str) -> StatementRole | LeftOutReason:
        pieces = pieces_of(text)
        if "".join(piece.text for piece in pieces) != text:  # a capture never contains comments and trailing semicolons
            return LeftOutReason.UNPARSED
        shape = shape_of_text(pieces)
        return shape if isinstance(shape, LeftOutReason) else shape.role


class FreshValues:
    """The statements of a capture for further users, each with other values.

    The key of a user comes from the capture and the user's number, so each run sends the same. Dates, moments and times
    of day stay: they decide how much a statement reads.
    """

    def __init__(self, capture: str, users: int) -> None:
        """`capture`: the SHA-256 of its statements."""
        words = REMEMBERED_WORDS // users
        self._cleaners = [
            StatementCleaner(Pseudonyms(_user_key(capture, user), keep_moments=True, remembered=words))
            for user in range(users)
        ]
        self._read = lru_cache(TEXTS_READ)(self._cleaners[0].read)  # a statement is asked for once by each user

    def of_user(self, user: int, one: RecordedStatement) -> RecordedStatement:
        """The statement for a user. User 0 sends the recorded values. A text that cannot be parsed stays unchanged."""
        if user == 0:
            return one
        cleaner = self._cleaners[user]
        read = self._read(one.sql)
        return replace(
            one,
            sql=one.sql if read is None else cleaner.rewritten(*read),
            binds=tuple((kind, cleaner.bound(value, kind)) for kind, value in one.binds),
        )


def _template_id(template: str) -> str:
    return hashlib.sha256(template.encode()).hexdigest()[:12]


def _user_key(capture: str, user: int) -> bytes:
    return hashlib.blake2b(f"{capture} user {user}".encode(), digest_size=KEY_BYTES).digest()


def _number(text: str) -> int | float:
    return int(text) if text.isdigit() else float(text)
