"""LIKE patterns matched by the server itself, in time bounded by the lengths of pattern and name."""

from __future__ import annotations

import re
from functools import lru_cache


def like(pattern: str, name: str) -> bool:
    """SHOW … LIKE ignores case; % and _ are wildcards, a backslash escapes them."""
    wanted, characters = _like_parts(pattern)
    if characters > len(name):
        return False
    there = [_lower(character) for character in name]
    position = index = 0
    after_percent, resumed = -1, 0  # where to resume when the part after the last % does not match
    while index < len(there):
        part = wanted[position] if position < len(wanted) else ""
        if part == "%":
            position += 1
            after_percent, resumed = position, index
        elif part and (part == "_" or part[-1] == there[index]):
            position, index = position + 1, index + 1
        elif after_percent >= 0:  # that % takes one more character; earlier ones need no backtracking
            resumed += 1
            position, index = after_percent, resumed
        else:
            return False
    return all(part == "%" for part in wanted[position:])


@lru_cache(maxsize=8)
def _like_parts(pattern: str) -> tuple[list[str], int]:
    """Wildcards, and characters in lower case, each with its backslash; and the minimum length of a match."""
    single = re.sub("(?<!\\\\)%%+", "%", pattern)
    parts = [part[:-1] + _lower(part[-1]) for part in re.findall(r"\\.|.", single, re.DOTALL)]
    return parts, sum(part != "%" for part in parts)


def _lower(character: str) -> str:
    """Lower case, where that is one character."""
    lower = character.lower()
    return lower if len(lower) == 1 else character
