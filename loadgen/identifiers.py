"""Which texts are names of Snowflake objects. `loadgen.snowflake.ident` turns them into quoted SQL."""

from __future__ import annotations

import re
import unicodedata

LENGTH_MAX = 255  # characters; Snowflake's limit
PARTS_MAX = 3  # database.schema.object

HOW = 'write a letter or _ and then letters, digits, _ or $; or put the name in double quotes, and a " in it twice'

UNQUOTED = re.compile(r"[A-Za-z_][A-Za-z0-9_$]*")
QUOTED = re.compile(r'"(?:[^"]|"")+"')

_PART = f"(?:{UNQUOTED.pattern}|{QUOTED.pattern})"
_NAME = re.compile(_PART)
_QUALIFIED = re.compile(rf"{_PART}(?:\.{_PART}){{0,{PARTS_MAX - 1}}}")
_FORBIDDEN_KINDS = {"Cc", "Cs", "Zl", "Zp"}  # control characters, surrogates, line and paragraph separators


def is_name(text: str) -> bool:
    """Whether a text is a name: `orders` or `"My orders"`."""
    return _NAME.fullmatch(text) is not None and _is_allowed(text)


def is_qualified_name(text: str) -> bool:
    """Whether a text consists of one to three names with dots between them."""
    parts = _NAME.findall(text) if _QUALIFIED.fullmatch(text) else []
    return bool(parts) and all(map(_is_allowed, parts))


def canonical(text: str) -> str:
    """The name as in the catalogue: `orders` and `"ORDERS"` are the same."""
    parts = _NAME.findall(text)
    return ".".join(part if part.startswith('"') else f'"{part.upper()}"' for part in parts)


def is_plain_text(text: str) -> bool:
    """Whether a text has no control characters and separators, and so is usable as a name within loadgen."""
    return not any(unicodedata.category(character) in _FORBIDDEN_KINDS for character in text)


def unquoted(part: str) -> str:
    """The text of a name, without the quotes around it."""
    return part[1:-1].replace('""', '"') if part.startswith('"') else part


def _is_allowed(part: str) -> bool:
    name = unquoted(part)
    return len(name) <= LENGTH_MAX and is_plain_text(name)
