"""key=value words in options: what runners offer, and what queued runs require."""

from __future__ import annotations

import re
from collections.abc import Sequence

from loadgen.errors import UsageError
from loadgen.log import printable

_WORD = re.compile(r"[^\s=,]{1,100}=[^\s,]{1,200}")


def parse_labels(given: Sequence[str], option: str) -> tuple[str, ...]:
    """Of `--labels zone=eu,disk=ssd --labels team=db` all three, sorted, each once."""
    words = {word for text in given for word in text.split(",") if word}
    for word in words:
        if not _WORD.fullmatch(word):
            raise UsageError(f"{option} is {printable(word, 80)!r}", remedy=f"Write {option} zone=eu,disk=ssd.")
    return tuple(sorted(words))
