"""Names of Snowflake objects, checked and always quoted; texts and times as literals.

Values are sent as binds, but names and arguments of table functions cannot be. Every name in a statement is an
`Identifier` or a `QualifiedName`, so that a text from a scenario, an option or a row can only become one name. Every
argument is a `text_literal` or a `timestamp_literal`.

    orders           → "ORDERS"             unquoted: as Snowflake reads it, upper-cased
    "My ""odd"" one" → "My ""odd"" one"     quoted: kept as written
    db.public."t.1"  → "DB"."PUBLIC"."t.1"
"""

from datetime import UTC, datetime
from typing import Self

from loadgen.errors import ConfigurationError
from loadgen.identifiers import HOW, LENGTH_MAX, PARTS_MAX, QUOTED, UNQUOTED, is_plain_text, unquoted
from loadgen.log import printable
from loadgen.values import dataclass


class InvalidIdentifier(ConfigurationError):
    """A text that is not the name of a Snowflake object."""

    remedy = f"{HOW[0].upper()}{HOW[1:]}."


@dataclass(frozen=True, slots=True)
class Identifier:
    """One name as in the catalogue: unquoted input is in upper case."""

    name: str

    def __post_init__(self) -> None:
        if not self.name:
            raise InvalidIdentifier("a name is empty")
        if len(self.name) > LENGTH_MAX:
            raise InvalidIdentifier(
                f"the name {_shown(self.name)} has {len(self.name)} characters",
                remedy=f"Names have at most {LENGTH_MAX} characters.",
            )
        if not is_plain_text(self.name):
            raise InvalidIdentifier(
                f"the name {_shown(self.name)} contains a control character", remedy="Remove the control character."
            )

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a name as it is written in SQL: `orders`, or `"Orders"`."""
        if UNQUOTED.fullmatch(text):
            return cls(text.upper())
        if QUOTED.fullmatch(text):
            return cls(unquoted(text))
        raise InvalidIdentifier(f"{_shown(text)} is not a name")

    @property
    def sql(self) -> str:
        """The name in double quotes: one token, whatever it contains."""
        return '"' + self.name.replace('"', '""') + '"'

    @property
    def like(self) -> str:
        """` LIKE '…'` for SHOW, if the name needs no escaping; else empty, and the reader filters the rows."""
        is_simple = self.name.isascii() and all(one.isalnum() or one in "_$" for one in self.name)
        return f" LIKE '{self.name}'" if is_simple else ""

    def __str__(self) -> str:
        return self.sql


@dataclass(frozen=True, slots=True)
class QualifiedName:
    """One to three names joined by dots."""

    parts: tuple[Identifier, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.parts) <= PARTS_MAX:
            raise InvalidIdentifier(
                f"a qualified name has {len(self.parts)} parts",
                remedy="Write NAME, SCHEMA.NAME or DATABASE.SCHEMA.NAME.",
            )

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `db.schema."odd.name"`; dots inside quotes do not separate."""
        return cls(tuple(Identifier.parse(part) for part in _split(text)))

    def within(self, *outer: Identifier) -> Self:
        """The name with missing outer parts added: `T` within (DB, PUBLIC) is DB.PUBLIC.T."""
        missing = PARTS_MAX - len(self.parts)
        return type(self)((*outer[:missing], *self.parts))

    @property
    def sql(self) -> str:
        """All parts quoted, joined by dots."""
        return ".".join(part.sql for part in self.parts)

    def __str__(self) -> str:
        return self.sql


def text_literal(text: str) -> str:
    """A text in single quotes. Backslashes are doubled as well: they are escape characters in texts of Snowflake."""
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


def timestamp_literal(moment: datetime) -> str:
    """A time as TIMESTAMP_LTZ; a naive one is UTC."""
    utc = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
    return f"TO_TIMESTAMP_LTZ({text_literal(utc.isoformat(timespec='microseconds'))})"


def _split(text: str) -> list[str]:
    parts = [""]
    in_quotes = False
    for character in text:
        if character == '"':
            in_quotes = not in_quotes  # a doubled quote changes the state twice
        if character == "." and not in_quotes:
            parts.append("")
        else:
            parts[-1] += character
        if len(parts) > PARTS_MAX:
            raise InvalidIdentifier(
                f"{_shown(text)} has more than {PARTS_MAX} parts",
                remedy="Write NAME, SCHEMA.NAME or DATABASE.SCHEMA.NAME; put a name with a dot in it in double quotes.",
            )
    return parts


def _shown(text: str) -> str:
    return repr(printable(text, 60))
