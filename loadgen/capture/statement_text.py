"""One SQL text of a history → the same text without comments and, by default, without real values.

    pieces    a regular expression finds comments, literals and names; the rest of the text never changes
    tree      the first text of each shape is parsed: the syntax tree says what each literal is (a value, a LIMIT, a
              format …). Later texts of the same shape differ in literals only, and are not parsed again
    proof     the text that is made is parsed too, and must be the same kind of statement

A text that cannot be parsed, or whose literals are not where the parser sees them, is left out, never guessed at.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from loadgen.capture.pseudonyms import KEY_BYTES, REMEMBERED_WORDS, SECRET, Pseudonyms, Scalar
from loadgen.capture.sql_pieces import LITERALS, SqlPiece, pieces_of, quoted, shape_key, value_of
from loadgen.capture.syntax_tree import (
    KEPT_NAMES,
    PLAIN_NAME,
    LiteralTreatment,
    StatementShape,
    fits,
    parse_statement,
    shape_of_statement,
    stays,
)
from loadgen.model.capture import LeftOutReason, RecordedStatement, StatementRole

SHAPES_MAX = 20_000  # that are remembered
TEXTS_MAX, REMEMBERED_CHARACTERS = 5_000, 4_000
TEXT_CHARACTERS_MAX = 1_000_000
TEXTS_READ = 16


class StatementLeftOut(Exception):
    def __init__(self, reason: LeftOutReason) -> None:
        super().__init__(reason.value)
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanText:
    """`template` has a ? for each value; texts with equal templates are one statement of a workload."""

    text: str
    template: str
    template_id: str
    role: StatementRole
    binds: int  # how many ? the text itself has


class StatementCleaner:
    """clean() for every text of one capture. `keep_values`: but for those that look like a secret."""

    def __init__(self, secret: Pseudonyms, *, keep_values: bool = False, hide_names: bool = False) -> None:
        self._pseudonyms, self._keep_values, self._hide_names = secret, keep_values, hide_names
        self._shapes: dict[bytes, StatementShape | LeftOutReason] = {}
        self._clean = lru_cache(TEXTS_MAX)(self._cleaned)

    def clean(self, text: str) -> CleanText:
        """Raises StatementLeftOut."""
        found = self._clean(text) if len(text) <= REMEMBERED_CHARACTERS else self._cleaned(text)
        if isinstance(found, LeftOutReason):
            raise StatementLeftOut(found)
        return found

    def read(self, text: str) -> tuple[Sequence[SqlPiece], StatementShape] | None:
        """What rewritten() needs, the same for all cleaners; None: it cannot be parsed."""
        pieces = pieces_of(text) if len(text) <= TEXT_CHARACTERS_MAX else []
        shape = self._shape(pieces) if pieces else LeftOutReason.UNPARSED
        return None if isinstance(shape, LeftOutReason) else (pieces, shape)

    def rewritten(self, pieces: Sequence[SqlPiece], shape: StatementShape) -> str:
        """Only the text of clean()."""
        return "".join(self._written(pieces, shape, template=False)).strip()

    def bound(self, value: Scalar, kind: str) -> Scalar:
        """A bind value of this Snowflake type."""
        if self._keep_values and not (isinstance(value, str) and SECRET.search(value)):
            return value
        return self._pseudonyms.bound(value, kind)

    def name(self, name: str | None) -> str | None:
        """An identifier of the context of a statement, as the history has it: without quotes."""
        if name is None or not self._hide_names or name.upper() in KEPT_NAMES:
            return name
        return self._hidden_name(name)

    def values(self, text: str, binds: Sequence[Scalar]) -> list[Scalar]:
        """What stands for each ? of the template of a text that was cleaned, in order."""
        pieces = pieces_of(text)
        shape = self._shape(pieces)
        if isinstance(shape, LeftOutReason):
            raise StatementLeftOut(shape)
        treatments, bound = iter(shape.treatments), iter(binds)
        found: list[Scalar] = []
        for piece in pieces:
            if piece.kind in LITERALS:
                value = value_of(piece)
                if not stays(next(treatments), value):
                    found.append(_number(value) if piece.kind == "number" else value)
            elif piece.kind == "bind":
                found.append(next(bound))
        return found

    def _shape(self, pieces: Sequence[SqlPiece]) -> StatementShape | LeftOutReason:
        key = shape_key(pieces)
        shape = self._shapes.get(key)
        if shape is None or (isinstance(shape, StatementShape) and not fits(shape, pieces)):
            shape = self._learned(pieces)
            if len(self._shapes) >= SHAPES_MAX:
                self._shapes.clear()
            self._shapes[key] = shape
        return shape

    def _cleaned(self, text: str) -> CleanText | LeftOutReason:
        if len(text) > TEXT_CHARACTERS_MAX:
            return LeftOutReason.TRUNCATED
        pieces = pieces_of(text)
        shape = self._shape(pieces)
        if isinstance(shape, LeftOutReason):
            return shape
        template = "".join(self._written(pieces, shape, template=True)).strip()
        return CleanText(
            text="".join(self._written(pieces, shape, template=False)).strip(),
            template=template,
            template_id=hashlib.sha256(template.encode()).hexdigest()[:12],
            role=shape.role,
            binds=shape.binds,
        )

    def _learned(self, pieces: Sequence[SqlPiece]) -> StatementShape | LeftOutReason:
        """Parse the text, decide, write it, and parse what was written."""
        text = "".join(piece.text for piece in pieces)
        read = parse_statement(text)
        if isinstance(read, LeftOutReason):
            return read
        shape = shape_of_statement(pieces, read)
        if isinstance(shape, LeftOutReason):
            return shape
        again = parse_statement("".join(self._written(pieces, shape, template=False)))
        if isinstance(again, LeftOutReason) or type(again.tree) is not type(read.tree):
            return LeftOutReason.UNPARSED
        return shape

    def _written(self, pieces: Sequence[SqlPiece], shape: StatementShape, *, template: bool) -> Iterator[str]:
        treatments = iter(shape.treatments)
        for number, piece in enumerate(pieces):
            if piece.kind in LITERALS:
                yield self._literal(piece, next(treatments), template=template)
            elif self._hide_names and number in shape.names:
                yield self._identifier(piece)
            elif piece.kind == "quoted" and SECRET.search(piece.text):
                yield self._hidden_name(piece.text)
            else:
                yield piece.text

    def _literal(self, piece: SqlPiece, treatment: LiteralTreatment, *, template: bool) -> str:
        value = value_of(piece)
        if stays(treatment, value):
            return piece.text
        if template:
            return "?"
        if self._keep_values and not SECRET.search(value):
            return piece.text
        if piece.kind == "number":
            return self._pseudonyms.number(value)
        made = (
            self._pseudonyms.pattern(value) if treatment is LiteralTreatment.PATTERN else self._pseudonyms.text(value)
        )
        return f"$${made}$$" if piece.kind == "raw" and "$$" not in made else quoted(made)

    def _identifier(self, piece: SqlPiece) -> str:
        name = piece.text[1:-1].replace('""', '"') if piece.kind == "quoted" else piece.text.upper()
        return piece.text if name in KEPT_NAMES else self._hidden_name(name)

    def _hidden_name(self, name: str) -> str:
        """Unquoted and quoted spellings of one name stay one name."""
        hidden = self._pseudonyms.name(name, "N_").upper()
        return hidden if PLAIN_NAME.fullmatch(name) else f'"{hidden.lower()}"'


class FreshValues:
    """The statements of a capture for further users, each with values that are only theirs.

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
        """User 0 sends what was recorded. A text that cannot be parsed any more stays as it is."""
        if user == 0:
            return one
        cleaner = self._cleaners[user]
        read = self._read(one.sql)
        return replace(
            one,
            sql=one.sql if read is None or not read[1].treatments else cleaner.rewritten(*read),
            binds=tuple((kind, cleaner.bound(value, kind)) for kind, value in one.binds),
        )


def _user_key(capture: str, user: int) -> bytes:
    return hashlib.blake2b(f"{capture} user {user}".encode(), digest_size=KEY_BYTES).digest()


def _number(text: str) -> int | float:
    return int(text) if text.isdigit() else float(text)
