"""Foreign texts and JSON made storable: one odd character must never cost a beat, a batch of rows or a result.

NUL is refused by some servers; half of a character (a lone surrogate) cannot even be sent. Both become U+FFFD. JSON has
the same two as escapes, and numbers that are none (NaN), which PARSE_JSON refuses.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

TRUNCATION_MARK = "...(truncated)"

_REPLACEMENT = "\ufffd"
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")
_MAYBE_UNSTORABLE = ("\\u0000", "\\ud", "\\uD", "NaN", "Infinity")  # in JSON; often harmless


def clean_text(foreign: str) -> str:
    """The text with nothing in it that cannot be stored."""
    return foreign if foreign.isascii() and "\0" not in foreign else _UNSTORABLE.sub(_REPLACEMENT, foreign)


def clip_text(foreign: str, limit: int) -> str:
    """At most `limit` storable characters; says so when there were more."""
    kept = clean_text(foreign[: limit + 1])
    return kept if len(kept) <= limit else kept[: limit - len(TRUNCATION_MARK)] + TRUNCATION_MARK


def clean_json(written: str | None) -> str | None:
    """JSON that PARSE_JSON takes. What is no JSON stays as it is: the server says so in its own words."""
    if written is None or (written.isascii() and not any(part in written for part in _MAYBE_UNSTORABLE)):
        return written
    try:
        return json.dumps(_value(json.loads(written)), separators=(",", ":"))
    except (ValueError, RecursionError):
        return written


def details_json(foreign: Mapping[str, Any], limit: int) -> str:
    """Details of any shape as JSON, about `limit` characters of it at most: they never stop what they explain."""
    try:
        written = json.dumps(_value(foreign))
    except (ValueError, RecursionError):  # one that contains itself, for example
        return json.dumps({"unreadable": type(foreign).__name__})
    return written if len(written) <= limit else json.dumps({"truncated": written[:limit]})


def _value(foreign: Any) -> Any:
    if foreign is None or isinstance(foreign, (bool, int)):
        return foreign
    if isinstance(foreign, float):
        return foreign if math.isfinite(foreign) else str(foreign)
    if isinstance(foreign, Mapping):
        return {clean_text(str(key)): _value(value) for key, value in foreign.items()}
    if isinstance(foreign, (list, tuple)):
        return [_value(value) for value in foreign]
    return clean_text(str(foreign))
