"""Types of the values of keys: what may be written, the value it becomes, and the JSON Schema of it.

Every type accepts texts, because variables and --set are texts; only the type decides what a text means. A problem does
not repeat the value: it is shown with the text of the file, in which `${NAME}` is unresolved.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, ClassVar, dataclass_transform

from loadgen.identifiers import HOW, LENGTH_MAX, is_name, is_plain_text, is_qualified_name
from loadgen.model.workload import Scalar
from loadgen.scenario.document import EnvironmentText, NotAScalar, OptionText, resolve
from loadgen.units import format_duration_s, parse_count, parse_duration_s, parse_rate_per_second

JsonSchema = dict[str, Any]

INTEGER_MAX = 10**18  # fits a 64-bit integer
DURATION_S_MAX = 7 * 86_400.0
COUNT_PATTERN = "[0-9][0-9_.]*[kKmMbB]?"


class InvalidValue(ValueError):
    """A value that cannot be used."""

    def __init__(self, what: str, hint: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint


class InvalidParts(InvalidValue):
    """A list or mapping with parts that cannot be used, by their numbers or keys."""

    def __init__(self, parts: Mapping[str | int, InvalidValue]) -> None:
        super().__init__("has parts that cannot be used")
        self.parts = parts


@dataclass_transform(frozen_default=True, kw_only_default=True)
class _WithLimits:
    def __init__(self, **limits: Any) -> None:
        vars(self).update(limits)


class ValueType(_WithLimits):
    """Base of the types; used as `Annotated[int, Integer(low=1)]`."""

    takes_variables: ClassVar[bool] = True
    keeps_variables: ClassVar[bool] = False  # a text from the environment is stored as ${NAME}, not as its value
    nullable: bool = False
    null_value: Any = None  # what null stands for

    def parse(self, value: object) -> Any:
        raise NotImplementedError

    def schema(self) -> JsonSchema:
        """The JSON Schema without null and variables, which `nullable` and `takes_variables` allow."""
        return {"type": "string"}

    def accept(self, value: object) -> Any:
        """The parsed value. Raises InvalidValue."""
        if isinstance(value, EnvironmentText) and value.secret and not self.keeps_variables:
            raise InvalidValue("would store a secret with the run", "use a variable that is not named like a secret")
        return self.null_value if value is None and self.nullable else self.parse(value)


class FreeText(ValueType):
    """Free text. A secret of the environment is stored as ${NAME}."""

    keeps_variables: ClassVar[bool] = True
    length_max: int = 100_000
    empty: bool = False

    def parse(self, value: object) -> str:
        if not isinstance(value, str):
            raise InvalidValue("must be a text", "put it in quotes")
        if not value.strip() and not self.empty:
            raise InvalidValue("must not be empty" if not value else "must not be spaces only")
        if len(value) > self.length_max:
            raise InvalidValue(f"has more than {self.length_max:,} characters")
        if "\0" in value or not _is_unicode(value):
            raise InvalidValue("contains a character that cannot be stored", "remove it")
        return value if isinstance(value, EnvironmentText) else str(value)


class Label(ValueType):
    """A name that only loadgen uses: of a scenario, a statement, a pool, a connection, a label."""

    length_max: int = LENGTH_MAX

    def parse(self, value: object) -> str:
        if not isinstance(value, str):
            raise InvalidValue("must be a text", "put it in quotes")
        if not value or value != value.strip():
            raise InvalidValue("must not be empty, nor begin or end with a space")
        if len(value) > self.length_max:
            raise InvalidValue(f"has more than {self.length_max} characters")
        if not is_plain_text(value):
            raise InvalidValue("contains a control character", "remove it")
        return str(value)

    def schema(self) -> JsonSchema:
        return {"type": "string", "minLength": 1}


class ParsedText(ValueType):
    """A text with a syntax: `read` returns its value, or None for a text that does not follow the syntax."""

    read: Callable[[str], Any]
    what: str
    how: str
    more: JsonSchema | None = None  # of the JSON Schema

    def parse(self, value: object) -> Any:
        found = self.read(str(value)) if isinstance(value, str) else None
        if found is None:
            raise InvalidValue(self.what, self.how)
        return found

    def schema(self) -> JsonSchema:
        return {"type": "string", **(self.more or {})}


class SqlName(ValueType):
    """The name of a Snowflake object."""

    qualified: bool = False

    def parse(self, value: object) -> str:
        test = is_qualified_name if self.qualified else is_name
        if not isinstance(value, str) or not test(value):
            dots = "; DATABASE.SCHEMA.NAME works too" if self.qualified else ""
            raise InvalidValue("is not the name of a Snowflake object", HOW + dots)
        return str(value)

    def schema(self) -> JsonSchema:
        return {"type": "string", "minLength": 1}


class Boolean(ValueType):
    def parse(self, value: object) -> bool:
        if isinstance(value, str) and value in ("true", "false"):
            return value == "true"
        if not isinstance(value, bool):
            raise InvalidValue("must be true or false")
        return value

    def schema(self) -> JsonSchema:
        return {"type": "boolean"}


class OneOf(ValueType):
    """One of a list of words."""

    words: type[StrEnum]

    def parse(self, value: object) -> StrEnum:
        text = str(value).lower() if isinstance(value, bool) else value  # enrichment.enabled: auto, true or false
        if not isinstance(text, str) or text not in list(self.words):
            *others, last = self.words
            raise InvalidValue(f"must be {', '.join(others)} or {last}" if others else f"must be {last}")
        return self.words(text)

    def schema(self) -> JsonSchema:
        booleans = [word == "true" for word in self.words if word in ("true", "false")]
        return {"enum": [*(word.value for word in self.words if word not in ("true", "false")), *booleans]}


class Integer(ValueType):
    """An integer, also written as a count: 10k, 1m."""

    low: int = 0
    high: int = INTEGER_MAX

    def parse(self, value: object) -> int:
        if isinstance(value, str):
            number = int(_parsed(_parse_signed_count, value, "a count", "write it like 250, 10k or 1m"))
        elif isinstance(value, int) and not isinstance(value, bool):
            number = value
        else:
            raise InvalidValue("must be a whole number", "write it like 250, 10k or 1m")
        if number < self.low or number > self.high:
            raise InvalidValue(f"must be {_bounds(self.low, self.high, format=lambda bound: f'{bound:,}')}")
        return number

    def schema(self) -> JsonSchema:
        number: JsonSchema = {"type": "integer", "minimum": self.low, "maximum": self.high}
        sign = "-?" if self.low < 0 else ""
        return {"anyOf": [number, {"type": "string", "pattern": rf"^{sign}{COUNT_PATTERN}$|\$\{{"}]}


class Number(ValueType):
    """A number with or without a fraction. `above`: it must be above `low`."""

    low: float = -1e18
    high: float = 1e18
    above: bool = False

    def parse(self, value: object) -> float:
        number = _float(value)
        if number < self.low or number > self.high or (self.above and number == self.low):
            bounds = _bounds(self.low, self.high, format=lambda bound: f"{bound:g}", above=self.above)
            raise InvalidValue(f"must be {bounds}")
        return number

    def schema(self) -> JsonSchema:
        return {"type": "number", "exclusiveMinimum" if self.above else "minimum": self.low, "maximum": self.high}


class Duration(ValueType):
    """Seconds, written with a unit. `whole`: without a fraction."""

    low_s: float = 0.0
    high_s: float = DURATION_S_MAX
    whole: bool = False

    def parse(self, value: object) -> float:
        how = "write one number and one unit, such as 500ms, 30s or 5m"
        if isinstance(value, (int, float)) and not isinstance(value, bool) and value != 0:
            raise InvalidValue("is not a duration: the unit is missing", how)
        if not isinstance(value, str) and value != 0:
            raise InvalidValue("is not a duration", how)
        duration_s = float(_parsed(parse_duration_s, str(value), "a duration", how))
        if duration_s < self.low_s or duration_s > self.high_s:
            raise InvalidValue(f"must be {_bounds(self.low_s, self.high_s, format=format_duration_s)}")
        if self.whole and not duration_s.is_integer():
            raise InvalidValue("must be whole seconds")
        return duration_s

    def schema(self) -> JsonSchema:
        text = {"type": "string", "pattern": r"^[0-9][0-9_.]*\s*(ns|us|µs|ms|s|m|h|d)$|^0$|\$\{"}
        return {"anyOf": [text, {"const": 0}]}


class WholeSeconds(Duration):
    """A duration that Snowflake takes as an integer."""

    whole: bool = True

    def parse(self, value: object) -> int:
        return int(super().parse(value))


class Rate(ValueType):
    """A rate per second, written as 500/s or 30/m."""

    high_per_second: float = 1_000_000.0

    def parse(self, value: object) -> float:
        how = "write a number per second, minute or hour, such as 500/s, 30/m or 10k/h"
        if not isinstance(value, str):
            raise InvalidValue("is not a rate", how)
        rate = float(_parsed(parse_rate_per_second, value, "a rate", how))
        if not 1e-6 <= rate <= self.high_per_second:
            raise InvalidValue(f"must be above 0 and at most {self.high_per_second:,.0f}/s")
        return rate

    def schema(self) -> JsonSchema:
        return {"type": "string", "pattern": rf"^{COUNT_PATTERN}\s*/\s*[smh]$|\$\{{"}


class ScalarValue(ValueType):
    """A value as it is written: text, number, true, false or null."""

    keeps_variables: ClassVar[bool] = True
    nullable: bool = True

    def parse(self, value: object) -> Scalar:
        if isinstance(value, OptionText):
            try:
                value = resolve(value)
            except NotAScalar:
                value = str(value)
        if isinstance(value, str):
            return FreeText(empty=True).parse(value)
        if value is None or isinstance(value, (bool, float)):
            return value
        if isinstance(value, int) and abs(value) < 10**38:
            return value
        raise InvalidValue("must be one value: a text, a number, true, false or null")

    def schema(self) -> JsonSchema:
        return {"anyOf": [{"type": "string"}, {"type": "number"}, {"type": "boolean"}]}


def _float(value: object) -> float:
    if isinstance(value, str) and re.fullmatch(r"[-+]?[0-9]{0,30}(?:\.[0-9]{0,30})?(?:[eE][-+]?[0-9]{1,3})?", value):
        try:
            value = float(value)
        except ValueError:
            value = None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise InvalidValue("must be a number")
    return float(value)


def _parse_signed_count(text: str) -> int:
    return -parse_count(text[1:]) if text.startswith("-") else parse_count(text)


def _parsed(parse: Callable[[str], float], text: str, what: str, how: str) -> float:
    """Parse with loadgen.units, and use its hint, unless the text comes from the environment."""
    try:
        return parse(str(text))
    except ValueError as error:
        _, found, advice = str(error).partition(f" is not {what}: ")
        special = found and not isinstance(text, EnvironmentText)
        raise InvalidValue(f"is not {what}", advice if special else how) from None


def _is_unicode(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
    return True


def _bounds(low: Any, high: Any, *, format: Callable[[Any], str], above: bool = False) -> str:
    least = f"above {format(low)}" if above else f"{format(low)} or more"
    if high >= INTEGER_MAX:
        return least
    return f"{least} and at most {format(high)}" if above else f"from {format(low)} to {format(high)}"
