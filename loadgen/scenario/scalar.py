"""What an unquoted YAML text means: the core schema of YAML 1.2, and nothing of 1.1.

`no`, `on` and `10:30` are texts, `0644` is the number 644, and a date is refused, because nobody can say which type
its writer had in mind.
"""

from __future__ import annotations

import math
import re

Scalar = str | int | float | bool | None

DIGITS_MAX = 40  # of one number; Snowflake's have at most 38

_NULL = {"", "~", "null", "Null", "NULL"}
_TRUE = {"true", "True", "TRUE"}
_FALSE = {"false", "False", "FALSE"}
_WHOLE = re.compile(r"[-+]?[0-9]+")
_OCTAL = re.compile(r"0o[0-7]+")
_HEXADECIMAL = re.compile(r"0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_DATE = re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}(?:(?:[Tt]|[ \t]+)[0-9]{1,2}:.*)?")


class NotAScalar(ValueError):
    """An unquoted text that is neither a text nor a number we can use; the message says what to do."""


def resolve(text: str) -> Scalar:
    """The value of an unquoted text. Quoted ones are texts and do not come here."""
    if text in _NULL:
        return None
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    if _DATE.fullmatch(text):
        raise NotAScalar("a date must be quoted, so that it stays the text you wrote")
    if _NOT_FINITE.fullmatch(text):
        raise NotAScalar("infinity and not-a-number cannot be used; quote it if it is a text")
    return _number(text)


def _number(text: str) -> str | int | float:
    base = 10 if _WHOLE.fullmatch(text) else 8 if _OCTAL.fullmatch(text) else 16 if _HEXADECIMAL.fullmatch(text) else 0
    if not base and not _FLOAT.fullmatch(text):
        return text
    if len(text) > DIGITS_MAX:
        raise NotAScalar(f"a number has at most {DIGITS_MAX} digits; quote it if it is a text")
    if base:
        return int(text if base == 10 else text[2:], base)
    value = float(text)
    if not math.isfinite(value):
        raise NotAScalar("the number is too large; quote it if it is a text")
    return value
