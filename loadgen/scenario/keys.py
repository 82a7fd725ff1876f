"""How the keys of a file are declared, once: type, default, help, JSON Schema, and when a key applies.

    class LoadStage(Section):
        duration_s: Annotated[float, Duration(low_s=0.1)] = key("Length of the stage.")
        ramp_s: Ramp = key(default="0s")

The default of a key is declared as it would be written in the file; the attribute's default is what the type makes of
it. The key in the file is the attribute's name without its unit: `duration`, `rate`.

The type of a key is bool, a StrEnum, another type with its ValueType, a section, a tuple or a mapping of these, or a
union of sections, each of which is identified by its first key; with `| None` the value may be null. Annotations are
evaluated when the class is made, so modules that declare sections do without `from __future__ import annotations`.

Every ValueType accepts texts, because variables and --set give texts; the type alone decides what a text means. A
problem never repeats the value: the report shows the text of the file, with `${NAME}` unresolved.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import math
import re
import types
import typing
from collections.abc import Callable, Hashable, Iterator, Mapping
from enum import Enum, StrEnum, auto
from functools import cache
from typing import Any, ClassVar, NamedTuple, TypeVar, dataclass_transform

from loadgen.identifiers import HOW, LENGTH_MAX, is_name, is_plain_text, is_qualified_name
from loadgen.model.workload import Scalar
from loadgen.scenario.document import EnvironmentText, KeyPath, NotAScalar, OptionText, resolve
from loadgen.units import format_duration_s, parse_count, parse_duration_s, parse_rate_per_second
from loadgen.values import dataclass

JsonSchema = dict[str, Any]
T = TypeVar("T")

INTEGER_MAX = 10**18  # fits a 64-bit integer
DURATION_S_MAX = 7 * 86_400.0
COUNT_PATTERN = "[0-9][0-9_.]*[kKmMbB]?"
_VARIABLE_SCHEMA: JsonSchema = {"type": "string", "pattern": r"\$\{"}


# --- value types -----------------------------------------------------------------------------------------------------


class InvalidValue(ValueError):
    """A value that cannot be used; `at` is the path from the key to the wrong part."""

    def __init__(self, what: str, hint: str | None = None, *, at: tuple[str | int, ...] = ()) -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint
        self.at = at


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
        return {"type": "string"}

    def accept(self, value: object) -> Any:
        """The parsed value. Raises InvalidValue."""
        if isinstance(value, EnvironmentText) and value.secret and not self.keeps_variables:
            raise InvalidValue("would store a secret with the run", "use a variable that is not named like a secret")
        return self.null_value if value is None and self.nullable else self.parse(value)

    def json_schema(self) -> JsonSchema:
        """The schema for editors, with variables and null where they are allowed."""
        own = self.schema()
        options = own.pop("anyOf", None) or [own]
        if self.takes_variables and not any(map(_admits_variables, options)):
            options = [*options, _VARIABLE_SCHEMA]
        if self.nullable:
            options = [*options, {"type": "null"}]
        return options[0] if len(options) == 1 else {"anyOf": options}


def _admits_variables(schema: JsonSchema) -> bool:
    return schema.get("type") == "string" and r"\$\{" in schema.get("pattern", r"\$\{")


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
    """A name within loadgen: of a scenario, a statement, a pool, a connection, a label."""

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
    """A number with or without a fraction. `above`: low itself is not allowed."""

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
    """Seconds, written with a unit. `whole`: an integer, because Snowflake takes whole seconds."""

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
        return int(duration_s) if self.whole else duration_s

    def schema(self) -> JsonSchema:
        text = {"type": "string", "pattern": r"^[0-9][0-9_.]*\s*(ns|us|µs|ms|s|m|h|d)$|^0$|\$\{"}
        return {"anyOf": [text, {"const": 0}]}


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
    """Parse with loadgen.units; its more exact hint is used unless the text came from the environment."""
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


# --- sections --------------------------------------------------------------------------------------------------------

REQUIRED: Any = object()  # the default of a key that has none
_KEY = "key"  # in the metadata of a field


class AppliesWhen(NamedTuple):
    """The condition of a key that has a meaning only for some values of a sibling key: `rate` for `mode: rate`."""

    selector: str
    values: tuple[StrEnum, ...]


class KeyDeclaration(NamedTuple):
    """One key of a section."""

    default: Any = REQUIRED  # as it would be written in the file
    description: str | None = None
    applies: AppliesWhen | None = None
    attribute: str = ""
    type: Any = None  # the annotation


def key(description: str | None = None, *, default: Any = REQUIRED, applies: AppliesWhen | None = None) -> Any:
    """A key of a section. The default is written as in the file, so that it can be shown: "60s"."""
    return KeyDeclaration(default, description, applies)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(key,))
class Section:
    """Base of sections: frozen dataclasses that know their keys. An attribute with a plain default is not a key."""

    def __init_subclass__(cls) -> None:
        for name, annotation in inspect.get_annotations(cls).items():
            origin: Any = typing.get_origin(annotation)
            declared = cls.__dict__.get(name, KeyDeclaration())
            if origin is not ClassVar and isinstance(declared, KeyDeclaration):
                setattr(cls, name, _field(annotation, declared))
        described = cls.__doc__
        dataclass(frozen=True, kw_only=True)(cls)
        cls.__doc__ = described  # without a text that stands for a missing one


def _field(annotation: Any, declared: KeyDeclaration) -> Any:
    metadata = {_KEY: declared}
    default = declared.default
    if default is REQUIRED:
        return dataclasses.field(metadata=metadata)
    if isinstance(default, dict):
        return dataclasses.field(default_factory=dict, metadata=metadata)
    if isinstance(annotation, str) and default is not None:
        raise TypeError(f"the annotation {annotation!r} is not evaluated; see the module's docstring")
    faults: list[KeyFault] = []
    value = default if isinstance(annotation, str) else read_value(annotation, default, (), faults)
    assert not faults, "a default fits its type"
    return dataclasses.field(default=value, metadata=metadata)


def is_section(type_: Any) -> bool:
    return isinstance(type_, type) and issubclass(type_, Section)


def declared_keys(cls: type) -> Mapping[str, KeyDeclaration]:
    """The keys of a section as they are written, in the order of their declaration."""
    return _declared_keys(cls)


@cache
def _declared_keys(cls: Hashable) -> Mapping[str, KeyDeclaration]:
    assert isinstance(cls, type)
    hints = typing.get_type_hints(cls, include_extras=True)
    fields = {field.name: field for field in dataclasses.fields(cls) if _KEY in field.metadata}
    found = {}
    for name in getattr(cls, "order", fields):
        declared = fields[name].metadata[_KEY]._replace(attribute=name, type=hints[name])
        found[_written_name(name, value_type_of(declared.type))] = declared
    return found


def _written_name(attribute: str, value_type: ValueType | None) -> str:
    unit = "_s" if isinstance(value_type, Duration) else "_per_second" if isinstance(value_type, Rate) else ""
    return attribute.removesuffix(unit)


def values_of(value: Any) -> Iterator[tuple[str, KeyDeclaration, Any]]:
    """Each key of a section, its declaration and its value."""
    for name, declared in declared_keys(type(value)).items():
        yield name, declared, getattr(value, declared.attribute)


def applies_to(value: Any, declared: KeyDeclaration) -> bool:
    """Does this key have a meaning, given the values of its sibling keys?"""
    return declared.applies is None or getattr(value, declared.applies.selector) in declared.applies.values


# --- reading ---------------------------------------------------------------------------------------------------------


class KeyFaultKind(Enum):
    UNKNOWN = auto()  # a key that the section does not have
    MISSING = auto()
    WRONG = auto()  # a value that its type rejected
    NOT_A_LIST = auto()
    NOT_A_MAPPING = auto()
    NOT_NAMED = auto()  # a mapping with the first key of none of the sections it may be, or of several


class KeyFault(NamedTuple):
    """Something in the data that a section cannot be made of."""

    kind: KeyFaultKind
    path: KeyPath
    wrong: InvalidValue | None = None


def read_section(cls: type[T], data: Any, path: KeyPath, faults: list[KeyFault]) -> T | None:
    """The section at `path`; None when there are faults, which are added to `faults`."""
    if isinstance(data, cls):
        return data  # a default
    shorthand = getattr(cls, "shorthand", None)
    if shorthand is not None and isinstance(data, str):
        data = {shorthand: data}
    if not isinstance(data, Mapping):
        faults.append(KeyFault(KeyFaultKind.NOT_A_MAPPING, path))
        return None
    before = len(faults)
    values: dict[str, Any] = {}
    declared = declared_keys(cls)
    for name, one in declared.items():
        value = data.get(name, one.default)
        if value is REQUIRED:
            faults.append(KeyFault(KeyFaultKind.MISSING, (*path, name)))
            continue
        if value is None and one.default is not REQUIRED and _is_container(one.type):
            value = one.default  # a key without a value
        values[one.attribute] = read_value(one.type, value, (*path, name), faults)
    faults += [KeyFault(KeyFaultKind.UNKNOWN, (*path, name)) for name in data if name not in declared]
    return cls(**values) if len(faults) == before else None


def read_value(type_: Any, value: Any, path: KeyPath, faults: list[KeyFault]) -> Any:
    """A value of the file, parsed by its type; what is wrong with it is added to `faults`."""

    def fault(kind: KeyFaultKind) -> None:
        faults.append(KeyFault(kind, path))

    value_type = value_type_of(type_)
    if value_type is not None:
        try:
            return value_type.accept(value)
        except ValueError as error:
            wrong = error if isinstance(error, InvalidValue) else InvalidValue("cannot be used")
            faults.append(KeyFault(KeyFaultKind.WRONG, (*path, *wrong.at), wrong))
            return None
    if value is None and is_nullable(type_):
        return None
    options = options_of(type_)
    if is_section(options[0]):
        named = options[0] if len(options) == 1 else named_section(options, value)
        return fault(KeyFaultKind.NOT_NAMED) if named is None else read_section(named, value, path, faults)
    inner = element_type(options[0])
    if typing.get_origin(options[0]) is tuple:
        if not isinstance(value, list):
            return fault(KeyFaultKind.NOT_A_LIST)
        return tuple(read_value(inner, element, (*path, number), faults) for number, element in enumerate(value))
    if not isinstance(value, Mapping):
        return fault(KeyFaultKind.NOT_A_MAPPING)
    return {name: read_value(inner, element, (*path, name), faults) for name, element in value.items()}


def named_section(options: tuple[type, ...], data: Any) -> type | None:
    """The section whose first key a mapping has, if there is exactly one."""
    if not isinstance(data, Mapping):
        return None
    found = [option for option in options if first_key(option) in data]
    return found[0] if len(found) == 1 else None


def first_key(cls: type) -> str:
    return next(iter(declared_keys(cls)))


@cache
def _value_type_of(type_: Hashable) -> ValueType | None:
    declared: Any = next((one for one in getattr(type_, "__metadata__", ()) if isinstance(one, ValueType)), None)
    if declared is not None:
        return declared  # type: ignore[no-any-return]
    if is_nullable(type_) and len(options_of(type_)) == 1:
        declared = copy.copy(_value_type_of(options_of(type_)[0]))
        vars(declared).update(nullable=True) if declared is not None else None
        return declared  # type: ignore[no-any-return]
    if isinstance(type_, type) and issubclass(type_, StrEnum):
        return OneOf(words=type_)
    return Boolean() if type_ is bool else None


def value_type_of(type_: Any) -> ValueType | None:
    """Of `Annotated[int, Integer()]`, of a StrEnum, of bool, and of each of these `| None`."""
    return _value_type_of(type_)


def element_type(type_: Any) -> Any:
    """Of the elements of a tuple, or of the values of a mapping."""
    arguments = [one for one in typing.get_args(type_) if one is not Ellipsis]
    return arguments[-1] if arguments else None


def options_of(type_: Any) -> tuple[Any, ...]:
    """What a value may be: one type, or the members of a union; without null."""
    if typing.get_origin(type_) not in (typing.Union, types.UnionType):
        return (type_,)
    return tuple(option for option in typing.get_args(type_) if option is not type(None))


def is_nullable(type_: Any) -> bool:
    return type(None) in typing.get_args(type_)


def _is_container(type_: Any) -> bool:
    return value_type_of(type_) is None and not is_nullable(type_)
