"""Logging for people and machines, without secrets and control characters.

    event()            logs a named event with its facts; all log lines of loadgen use it
    configure()        installs the handlers, each with the redaction filter
    logged_to()        adds a log file temporarily
    redact()           removes passwords, keys and tokens from a text
    register_secret()  registers a literal value that is masked everywhere
    Secret             a value that is printed as ****
    printable()        makes every character of foreign text visible; all output of foreign text uses it
    columns_of()       the width of a terminal

Redaction is the last protection: code must not log secrets in the first place.
"""

import contextlib
import json
import logging
import math
import os
import re
import sys
import textwrap
import threading
import urllib.parse
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from loadgen.clock import utc_iso
from loadgen.errors import ConfigurationError

MASK = "****"
TEXT_LIMIT = 2_000  # characters of one foreign text on a screen
LINE_LIMIT = 20_000  # characters of one logged message or traceback

_SECRET_WORDS = ("password", "passwd", "pwd", "token", "private_key", "passphrase", "secret", "authorization")
# Only as whole words of a name: MY_PAT, not PATH.
_SECRET_WHOLE_WORDS = r"(?<![A-Za-z0-9])(?:pat|api[_-]?key|credentials?)(?![A-Za-z0-9])"
_NOT_SECRET_ENDINGS = ("_file", "_path")
_SECRET_LENGTH_MIN = 4  # masking very short texts would make the log unreadable


def event(log: logging.Logger, level: int, name: str, /, **facts: object) -> None:
    """Log an event, named in the past tense: one line for people, and its facts as fields for machines."""
    if log.isEnabledFor(level):
        shown = "".join(f" {key}={_mask(key, value)}" for key, value in facts.items())
        log.log(level, "%s%s", name, shown, extra={"event": name, "facts": facts}, stacklevel=2)


# --- Secrets ---------------------------------------------------------------------------------------------------------


class Secret:
    """A text that is printed, formatted and logged as ****. Its value is registered."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value
        register_secret(value)

    def reveal(self) -> str:
        """The value, for the driver only."""
        return self._value

    def __repr__(self) -> str:
        return MASK

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return format(MASK, spec)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._value == other._value

    def __hash__(self) -> int:
        return hash(("Secret", self._value))

    def __bool__(self) -> bool:
        return bool(self._value)

    def __reduce__(self) -> tuple[type["Secret"], tuple[str]]:
        return Secret, (self._value,)  # by __init__, so that a child process registers the value as well


class _KnownSecrets:
    """The literal values to mask. The lock guards _forms. `pattern` is replaced as a whole and read without the
    lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._forms: set[str] = set()
        self.pattern: re.Pattern[str] | None = None

    def add(self, value: str) -> None:
        if len(value) < _SECRET_LENGTH_MIN:
            return
        forms = {value, urllib.parse.quote(value, safe=""), json.dumps(value)[1:-1], repr(value)[1:-1]}
        with self._lock:
            if forms <= self._forms:
                return
            self._forms |= forms
            longest_first = sorted(self._forms, key=len, reverse=True)
            self.pattern = re.compile("|".join(map(re.escape, longest_first)))


_known_secrets = _KnownSecrets()


def register_secret(value: str) -> None:
    """Mask this value in all later log lines, also if it is URL-quoted or escaped as in JSON."""
    _known_secrets.add(value)


def is_secret_name(name: str) -> bool:
    """Whether a key with this name contains a secret: `private_key` does, `private_key_file` does not."""
    lowered = name.lower()
    known = any(word in lowered for word in _SECRET_WORDS) or re.search(_SECRET_WHOLE_WORDS, lowered) is not None
    return known and not lowered.endswith(_NOT_SECRET_ENDINGS)


# No pattern may backtrack over long texts: a message of the server may have a megabyte.
_QUOTED = r"\"(?:[^\"\\]|\\.|\"\")*\"?|'(?:[^'\\]|\\.|'')*'?|\\{1,8}[\"'][^\"']*[\"']?"
_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = (
    # A truncated block has no end line, but is secret as well.
    (re.compile(r"-----BEGIN [A-Z0-9 ]{1,40}-----.*?(?:-----END [A-Z0-9 ]{1,40}-----|\Z)", re.DOTALL), MASK),
    (re.compile(r"\beyJ[\w-]{8,512}\.[\w-]{4,}(?:\.[\w-]*)?"), MASK),
    (re.compile(r"\bver:\d{1,4}-hint:[\w+/=.-]+"), MASK),
    (re.compile(r"(?i)(\btoken\s*=\s*\\?[\"'])[^\"'\\]+"), rf"\g<1>{MASK}"),
    (re.compile(rf"(?i)(authorization[\"']?\s*[:=]\s*)(?:{_QUOTED}|[^\r\n]+)"), rf"\g<1>{MASK}"),
    (re.compile(r"(?i)(\bbearer\s+)[\w.~+/=-]{8,}"), rf"\g<1>{MASK}"),
    (re.compile(r"(://[^/\s:@]{1,256}:)[^/\s@]{1,256}(?=@)"), rf"\g<1>{MASK}"),
)
_KEY_VALUE = re.compile(
    rf"(?i)(?P<key>(?:{'|'.join((*_SECRET_WORDS, _SECRET_WHOLE_WORDS))})[\w-]{{0,40}})(?P<sep>\\?[\"']?\s*[:=]\s*)"
    rf"(?P<value>{_QUOTED}|[^\s,;&(){{}}\[\]\"']+)"
)


def redact(text: str) -> str:
    """The text with **** in place of registered secrets, and of everything that looks like one."""
    known = _known_secrets.pattern
    if known is not None:
        text = known.sub(MASK, text)
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return _KEY_VALUE.sub(_mask_pair, text)


def _mask_pair(match: re.Match[str]) -> str:
    if not is_secret_name(match["key"]) or match["value"] in ("None", "null"):
        return match[0]
    quote = match["value"][0] if match["value"][0] in "\"'" else ""
    return f"{match['key']}{match['sep']}{quote}{MASK}{quote}"


def _mask(key: str, value: object) -> object:
    """A fact without secrets: masked if its name is that of a secret, otherwise redacted, also inside of containers."""
    if value is None:
        return None
    if is_secret_name(key):
        return MASK
    if isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, Mapping):
        return {redact(str(inner)): _mask(str(inner), item) for inner, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_mask(key, item) for item in value]
    return redact(str(value))


# --- Foreign text ----------------------------------------------------------------------------------------------------

# C0 and C1 control characters; characters that reverse, hide or break text (bidirectional, zero-width, line separators,
# tags); surrogates; characters that XML 1.0 forbids.
_INVISIBLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\ufffe\uffff\U000e0000-\U000e007f]"
)


def printable(text: str, limit: int = TEXT_LIMIT, *, multiline: bool = False) -> str:
    """Text from a table, a server or a file as one line of visible characters: ESC is shown as ␛, a newline as ␊, a
    bidirectional control as \\u202e. A text of more than `limit` characters is truncated with an ellipsis. `multiline`
    keeps newlines and tabs, for text whose line breaks come from loadgen."""
    shown = _INVISIBLE.sub(_picture_in_block if multiline else _picture, text[: limit + 1])
    return shown if len(shown) <= limit else f"{shown[: max(limit - 1, 0)]}…"[:limit]


def _picture(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return chr(0x2400 + code)
    return "␡" if code == 0x7F else f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def _picture_in_block(match: re.Match[str]) -> str:
    return match[0] if match[0] in "\n\t" else _picture(match)


def columns_of(stream: TextIO | None) -> int | None:
    """The width of the terminal of a stream; None if it is not a terminal."""
    with contextlib.suppress(OSError, ValueError):  # closed, without a descriptor, or not a terminal
        return None if stream is None else os.get_terminal_size(stream.fileno()).columns or None
    return None


# --- Handlers --------------------------------------------------------------------------------------------------------


class RedactionFilter(logging.Filter):
    """Removes secrets from a record, in place, so that every later handler receives it without them."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = redact(_message(record)), None
        if record.exc_info and not record.exc_text:
            record.exc_text = logging.Formatter().formatException(record.exc_info)
        if record.exc_text:
            record.exc_text = redact(record.exc_text)
        if record.stack_info:
            record.stack_info = redact(record.stack_info)
        facts = getattr(record, "facts", None)
        if isinstance(facts, Mapping):
            record.facts = _mask("", facts)
        return True


class HumanFormatter(logging.Formatter):
    """`2026-11-15T02:00:10Z warning loadgen.worker.flush: flush_failed rows=3`, with tracebacks if requested."""

    def __init__(self, *, tracebacks: bool) -> None:
        super().__init__()
        self._tracebacks = tracebacks

    def format(self, record: logging.LogRecord) -> str:
        text = f"{utc_iso(_utc(record), 'seconds')} {record.levelname.lower()} {record.name}: {record.getMessage()}"
        shown = printable(text, LINE_LIMIT)
        if self._tracebacks and record.exc_text:  # indented, so that foreign text cannot imitate a log line
            shown += "\n" + textwrap.indent(printable(record.exc_text, LINE_LIMIT, multiline=True), "  ")
        return shown


class JsonFormatter(logging.Formatter):
    """One JSON object per line, including tracebacks."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": utc_iso(_utc(record)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": record.process,
            "thread": record.threadName,
            "message": record.getMessage()[:LINE_LIMIT],
        }
        if name := getattr(record, "event", None):
            entry |= {"event": name, "facts": getattr(record, "facts", {})}
        if record.exc_text:
            entry["traceback"] = record.exc_text[:LINE_LIMIT]
        return json.dumps(entry, default=str)


class _Handler(logging.StreamHandler[TextIO]):
    """A handler whose failures lose only log lines: a full disk must not end a measurement.

    The standard library would print the failed record with its arguments, without redaction.
    """

    def __init__(self, stream: TextIO, formatter: logging.Formatter, level: int, *, file: Path | None = None) -> None:
        super().__init__(stream)
        self.records_lost = 0
        self._file = file  # of the stream, which the handler then owns
        self.setFormatter(formatter)
        self.setLevel(level)
        self.addFilter(RedactionFilter())

    def handleError(self, record: logging.LogRecord) -> None:
        self.records_lost += 1

    def close(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):  # the rest of the buffer cannot be written either
                self.stream.close()
        super().close()
        if self._file is not None and self.records_lost:  # for the other handlers
            lost, self.records_lost = self.records_lost, 0
            event(logging.getLogger(__name__), logging.WARNING, "log_lines_lost", file=self._file, lines=lost)


def configure(
    *,
    level: int = logging.WARNING,
    stream: TextIO | None = None,
    file: Path | None = None,
    tracebacks: bool = False,
) -> None:
    """Send all log lines to `stream` (default stderr) and, as JSON lines from INFO up, to `file`.

    A further call replaces the handlers of the last call. Other handlers stay.
    """
    target = stream if stream is not None else sys.stderr
    handlers: list[_Handler] = []
    if file is not None:
        handlers.append(_Handler(_open_private(file), JsonFormatter(), min(level, logging.INFO), file=file))
    if target is not None:  # None if the program was started with stderr closed
        handlers.append(_Handler(target, HumanFormatter(tracebacks=tracebacks), level))

    root = logging.getLogger()
    for old in [handler for handler in root.handlers if isinstance(handler, _Handler)]:
        root.removeHandler(old)
        old.close()
    for handler in handlers:
        root.addHandler(handler)
    root.setLevel(min((handler.level for handler in handlers), default=level))
    logging.getLogger("snowflake").setLevel(logging.WARNING)  # below WARNING the driver logs statements and binds


@contextlib.contextmanager
def logged_to(file: Path) -> Iterator[None]:
    """Write log lines from INFO up also to this file, as JSON lines. A symbolic link is rejected."""
    stream, root = _open_private(file, os.O_NOFOLLOW), logging.getLogger()
    handler = _Handler(stream, JsonFormatter(), logging.INFO, file=file)
    level = root.level
    root.addHandler(handler)
    root.setLevel(min(level, logging.INFO))
    try:
        yield
    finally:
        root.setLevel(level)
        root.removeHandler(handler)
        handler.close()


def _open_private(path: Path, flags: int = 0) -> TextIO:
    """Open for appending. Only the owner can read a new file."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | flags, 0o600)
    except OSError as error:
        raise ConfigurationError(
            f"cannot write the log file {path}: {error.strerror}", remedy="Choose another file with --log-file."
        ) from error
    return os.fdopen(descriptor, "a", encoding="utf-8", errors="backslashreplace")


def _utc(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)


def _message(record: logging.LogRecord) -> str:
    """The formatted message; the unformatted one if the arguments do not match the format."""
    try:
        return record.getMessage()
    except (TypeError, ValueError, KeyError):
        return str(record.msg)
