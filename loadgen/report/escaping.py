"""Foreign text (SQL, names, errors of a server) escaped for each kind of file: everything in it visible, by
`loadgen.log.printable`, and none of it read as HTML, XML, Markdown or a formula. Pure."""

from __future__ import annotations

import html as standard_html
import json
import re
from typing import Any

from loadgen.log import printable

LINE_MAX = 500  # characters of a text on one line: a name, an error
NAME_LONG = 16  # characters: a longer name may need several lines, and gets room for them
BLOCK_MAX = 20_000  # characters of a text with lines of its own: SQL, a configuration

_SIMPLE_CODE = re.compile(r"[^`|\\\n\r]+")
_MARKDOWN_SAFE = re.compile(r"[^A-Za-z0-9 \u00a0-\U0010ffff]")
_PART_OF_NAME = re.compile(r"([_./:-])(?=\w)")  # none of these is in an escaped character
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def html(text: str, limit: int = LINE_MAX) -> str:
    """For text and for quoted attributes."""
    return standard_html.escape(printable(text, limit, multiline=True), quote=True)


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
    return printable(text, limit, multiline=True)


def markdown(text: str, limit: int = LINE_MAX) -> str:
    """As code, which no Markdown inside it can leave, in a table as well; nobody is mentioned by it."""
    shown = printable(text, limit).strip()
    if not shown:
        return "–"
    if _SIMPLE_CODE.fullmatch(shown):
        return f"`{shown}`"
    return f"<code>{_MARKDOWN_SAFE.sub(lambda match: f'&#{ord(match[0])};', shown)}</code>"


def csv(text: str, limit: int = LINE_MAX) -> str:
    """A cell that no spreadsheet takes for a formula; whoever writes the file quotes."""
    shown = printable(text, limit)
    return f"'{shown}" if shown.lstrip().startswith(_FORMULA) else shown
