"""Text from elsewhere (SQL, names, errors of a server) made harmless for each kind of file. Pure.

What cannot be shown is made visible: ESC becomes ␛, a mark that turns the reading direction becomes \\u202e. Nothing is
dropped but what is beyond the limit, and that ends with an ellipsis.
"""

from __future__ import annotations

import html as standard_html
import json
import re
from typing import Any

LINE_MAX = 500  # characters of a text on one line: a name, an error
NAME_LONG = 16  # characters: a longer name may need several lines, and gets room for them
BLOCK_MAX = 20_000  # characters of a text with lines of its own: SQL, a configuration

# C0 and C1 controls but tab and newline, marks that turn or hide text, halves of characters, what XML 1.0 forbids.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\ufffe\uffff]"
)
_SIMPLE_CODE = re.compile(r"[^`|\\\n\r]+")
_MARKDOWN_SAFE = re.compile(r"[^A-Za-z0-9 \u00a0-\U0010ffff]")
_PART_OF_NAME = re.compile(r"([_./:-])(?=\w)")  # none of these is in an escaped character
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def line(text: str, limit: int = LINE_MAX) -> str:
    """One line, everything in it visible."""
    return visible(text, limit).replace("\n", " ").replace("\t", " ")


def visible(text: str, limit: int = BLOCK_MAX) -> str:
    """At most `limit` characters of it, and no control characters but tab and newline."""
    cut = text if len(text) <= limit else f"{text[: max(limit - 1, 0)]}…"
    return _UNSEEN.sub(_shown, cut)


def html(text: str, limit: int = LINE_MAX) -> str:
    """For text and for quoted attributes."""
    return standard_html.escape(visible(text, limit), quote=True)


def html_name(text: str, limit: int = LINE_MAX) -> str:
    """A name, for text: lines may break after _ . - / and : in it, and nowhere else inside a word."""
    shown = _PART_OF_NAME.sub(r"\1<wbr>", html(text, limit))
    return f'<span class="long">{shown}</span>' if len(text) > NAME_LONG else shown


def html_json(data: Any) -> str:
    """JSON for a script element of type application/json: nothing in it can end the element."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)  # ASCII: U+2028 and the like are escaped
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def xml(text: str, limit: int = LINE_MAX) -> str:
    """Text that XML 1.0 allows; whoever writes the file escapes < and &, as ElementTree does."""
    return visible(text, limit)


def markdown(text: str, limit: int = LINE_MAX) -> str:
    """As code, which no Markdown inside it can leave, in a table as well; nobody is mentioned by it."""
    shown = line(text, limit).strip()
    if not shown:
        return "–"
    if _SIMPLE_CODE.fullmatch(shown):
        return f"`{shown}`"
    return f"<code>{_MARKDOWN_SAFE.sub(lambda match: f'&#{ord(match[0])};', shown)}</code>"


def csv(text: str, limit: int = LINE_MAX) -> str:
    """A cell that no spreadsheet takes for a formula; whoever writes the file quotes."""
    shown = line(text, limit)
    return f"'{shown}" if shown.lstrip().startswith(_FORMULA) else shown


def _shown(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return chr(0x2400 + code)
    return "␡" if code == 0x7F else f"\\u{code:04x}"
