"""Consistent, type-preserving pseudonyms for values. Pure.

A key determines the mapping: equal values stay equal, and different values stay different. Words, digits and
hexadecimal texts are mapped by a permutation of all words of the same length (a Feistel network with a keyed hash, and
cycle walking for the size). Dates are moved by a secret number of weeks, so ranges and weekdays stay.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from array import array
from collections.abc import Callable, Iterator
from datetime import date, timedelta
from functools import lru_cache
from typing import Any

KEY_BYTES = 32
REMEMBERED_WORDS = 100_000  # cached words per capture
REMEMBERED_USES = 500  # cached permutations: one per kind and length of words, at most 48 KB each
WEEKS_MAX = 52
_ROUNDS = 6
_REMEMBERED_BITS = 12
_REMEMBERED_MIN = (
    2_000  # a smaller capacity marks one of many per-user caches, which together would need too much memory
)
PIECE_CHARACTERS = 64  # longer words and numbers are permuted in pieces

_WORD = re.compile(r"[^\W_]+")
_DATE = re.compile(r"(\d{4})-(\d{2})-(\d{2})(?=$|[ T]\d{2}:\d{2})(.*)", re.DOTALL)
_CLOCK = re.compile(r"(\d{1,2}):(\d{2})((?::\d{2})?(?:\.\d{1,9})?)")
# Other notations: 31.12.2026 (day first), 12/31/2026 (month first, if that is a date), 2026/12/31, 31-DEC-2026.
_TIME = r"(?P<rest>(?: \d\d:\d\d[\d:.]*)?)"
_WRITTEN_DATES = (
    re.compile(r"(?P<first>\d{1,2})(?P<mark>[/.])(?P<second>\d{1,2})(?P=mark)(?P<year>\d{4})" + _TIME),
    re.compile(r"(?P<year>\d{4})(?P<mark>[/.])(?P<second>\d{1,2})(?P=mark)(?P<first>\d{1,2})" + _TIME),
    re.compile(r"(?P<first>\d{1,2})(?P<mark>-)(?P<second>[A-Za-z]{3})-(?P<year>\d{4})" + _TIME),
)
# Without separators: 20261231, 202612312359, 20261231235959.
_DIGIT_DATE = re.compile(r"((?:19|20)\d\d)(\d\d)(\d\d)((?:(?:[01]\d|2[0-3])[0-5]\d(?:[0-5]\d)?)?)")
_DIGIT_DATES = range(date(1900, 1, 1).toordinal(), date(2100, 1, 1).toordinal())
_EPOCH_DIGITS_MIN = 9  # of an epoch since 1973; shorter values are numbers
_MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_HEX = re.compile(r"(?=[0-9a-fA-F]*[a-fA-F])(?=[0-9a-fA-F]*\d)[0-9a-fA-F]{16,}")
_NUMBER = re.compile(r"([+-]?)(\d*)(?:(\.)(\d*))?(?:([eE])([+-]?\d+))?")
_REGEX_PART = re.compile(r"\\.|\[[^\]]*\]|\{[^}]*\}|[^\W_]+")
_KEPT_WORDS = frozenset({"true", "false"})
_MOMENT_UNITS = ((16, 10**9), (12, 10**3), (0, 1))  # minimum digits of an epoch in nanoseconds, milliseconds, seconds
# Values that are never kept, even if the user keeps values. Each alternative begins at a word boundary, so that long
# texts are searched once.
SECRET = re.compile(
    r"(?<![\w.+-])[\w.+-]+@[\w-]+\.[\w.-]+"  # e-mail
    r"|eyJ[\w-]{8,}\.[\w.-]+"  # JSON web token
    r"|-----BEGIN|\bAKIA[0-9A-Z]{12,}|\bgh[pousr]_\w{20,}|\bxox[abp]-\w+|\b[sr]k[-_]\w{16,}"
    r"|\bAIza[\w-]{30,}|\bglpat-[\w-]{16,}|\bSG\.[\w-]{16,}\.[\w-]+"
    r"|://[^\s/@:]*:[^\s/@]+@"  # a password in an address
    r"|(?i:\b(?:bearer|basic)\s+[\w+/=.-]{8,})"
    # named in the text: password=…, "password": …, <password>…, key="pw" value="…", --password …
    r"|(?i:pass(?:w(?:or)?d|phrase|code)|\bpw|pwd|secret|token|(?:api|access|account|private)[_-]?key|\bsig(?:nature)?)"
    r"(?:[\"']?\s{0,9}(?:[=:>]|,?\s{0,9}[\"']?value\b))|(?i:--[a-z-]{0,20}(?:pass[a-z]{0,8}|token|secret|key)\s+\S)"
    # a key in base 64
    r"|(?<![\w+/])(?=[\w+/]*[A-Z])(?=[\w+/]*[a-z])(?=[\w+/]*\d)[\w+/]{40,}={0,2}(?![\w+/=])"
)

Scalar = str | int | float | bool | None


class Pseudonyms:
    """The mapping of one capture. Without the key it can be neither repeated nor reversed."""

    def __init__(self, key: bytes, *, keep_moments: bool = False, remembered: int = REMEMBERED_WORDS) -> None:
        """`keep_moments`: dates, timestamps and times of day are not changed."""
        if len(key) != KEY_BYTES:
            raise ValueError(f"the key must have {KEY_BYTES} bytes")
        self._key, self._keep_moments = key, keep_moments
        self._shift = timedelta(weeks=1 + self._number_below("shift", "", WEEKS_MAX))
        self._hours = 1 + self._number_below("hour", "", 22)
        self._word = lru_cache(remembered)(self._word_uncached)
        self.number = lru_cache(remembered)(self._number_uncached)
        self._rounds = lru_cache(max(20, REMEMBERED_USES * remembered // REMEMBERED_WORDS))(self._rounds_uncached)
        self._remembered_bits = _REMEMBERED_BITS if remembered >= _REMEMBERED_MIN else 0

    # --- Values ------------------------------------------------------------------------------------------------------

    def text(self, value: str) -> str:
        """A text of the same shape: punctuation, case, lengths of words, dates, UUIDs and JSON are preserved."""
        if value.lower() in _KEPT_WORDS:
            return value
        moved = self._moved(value)
        if moved is not None:
            return moved
        if _UUID.fullmatch(value) or _HEX.fullmatch(value):
            return self.hexadecimal(value)
        if value[:1] in ("{", "["):
            as_json = self._json_text(value)
            if as_json is not None:
                return as_json
        return _ascii_marks(_WORD.sub(lambda match: self._word(match[0]), value))

    def pattern(self, value: str) -> str:
        """A regular expression, in which words outside of classes, counts and escapes are replaced."""
        return _ascii_marks(_REGEX_PART.sub(lambda match: self._regex_part(match[0]), value))

    def epoch(self, digits: str) -> str:
        """Digits that become a date or a timestamp."""
        if len(digits) < _EPOCH_DIGITS_MIN or _digit_date(digits) is not None:
            return self.number(digits)
        return digits if self._keep_moments else self._moved_epoch(digits)

    def hexadecimal(self, value: str) -> str:
        return re.sub(r"[0-9a-fA-F]+", lambda match: self._permuted(match[0], "0123456789abcdef", "hex"), value)

    def name(self, value: str, prefix: str) -> str:
        """A name without information, the same for equal names: user_1f2e3d4c5b."""
        return f"{prefix}{self._digest('name', value, 5).hex()}"

    def bound(self, value: Scalar, type_name: str) -> Scalar:
        """A bind value of this Snowflake type."""
        kind = type_name.upper()
        if value is None or isinstance(value, bool) or kind == "BOOLEAN":
            return value
        if self._keep_moments and kind.startswith(("DATE", "TIME")):
            return value
        if isinstance(value, (int, float)):
            return type(value)(self.number(repr(value))) if math.isfinite(value) else value
        if kind == "TIME" and value.isdigit():  # nanoseconds of the day
            return str((int(value) + self._hours * 3_600 * 10**9) % (86_400 * 10**9))
        if kind.startswith(("DATE", "TIME")) and value.lstrip("-").replace(".", "", 1).isdigit():
            return self._moved_epoch(value)
        if kind in ("FIXED", "REAL", "NUMBER", "FLOAT", "DECIMAL", "DECFLOAT") and _NUMBER.fullmatch(value):
            return self.number(value)
        if kind == "BINARY":
            return self.hexadecimal(value)
        return self.text(value)

    # --- Parts of values ---------------------------------------------------------------------------------------------

    def _number_uncached(self, text: str) -> str:
        """A number with the same sign, numbers of digits, and exponent; 0 and 1 contain no data and stay."""
        match = _NUMBER.fullmatch(text)
        if match is None:
            return self.text(text)
        sign, whole, point, fraction, exponent, power = match.groups(default="")
        return f"{sign}{self._whole(whole)}{point}{self._digits(fraction)}{exponent}{power}"

    def _whole(self, digits: str) -> str:
        if digits in ("", "0", "1"):
            return digits
        if digits[0] == "0" or len(digits) > PIECE_CHARACTERS:
            return self._digits(digits)
        low = 2 if len(digits) == 1 else 10 ** (len(digits) - 1)
        size, use = 10 ** len(digits) - low, f"whole {len(digits)}"
        return self._around_dates(digits, lambda text: str(low + self._permute(int(text) - low, size, use)))

    def _digits(self, digits: str) -> str:
        return self._permuted(digits, "0123456789", "digits") if digits.strip("0") else digits

    def _word_uncached(self, word: str) -> str:
        if len(word) > PIECE_CHARACTERS:
            return "".join(map(self._word, _in_pieces(word)))
        if not word.isascii():
            return self._hashed_word(word)
        if word.isdigit():
            return self._around_dates(word, lambda text: self._permuted(text, "0123456789", "word"))
        # Case is not permuted: john, John and JOHN stay one name.
        pattern = "".join("0" if character.isdigit() else "a" for character in word)
        radices = [10 if character == "0" else 26 for character in pattern]
        number, size = 0, 1
        for character, radix in zip(word.lower(), radices, strict=True):
            number = number * radix + (int(character) if radix == 10 else ord(character) - ord("a"))
            size *= radix
        mixed = self._permute(number, size, f"word {pattern}")
        made = []
        for radix in reversed(radices):
            mixed, digit = divmod(mixed, radix)
            made.append(str(digit) if radix == 10 else chr(ord("a") + digit))
        return _in_case(reversed(made), word)

    def _hashed_word(self, word: str) -> str:
        digest = self._digest("word", word.lower(), len(word))
        letters = (
            chr(ord("0") + byte % 10) if character.isdigit() else chr(ord("a") + byte % 26)
            for byte, character in zip(digest, word, strict=True)
        )
        return _in_case(letters, word)

    def _permuted(self, text: str, alphabet: str, use: str) -> str:
        if len(text) > PIECE_CHARACTERS:
            return "".join(self._permuted(piece, alphabet, use) for piece in _in_pieces(text))
        radix, low = len(alphabet), text.lower()
        number = int(low, radix) if low else 0
        mixed, made = self._permute(number, radix ** len(low), f"{use} {len(low)}"), []
        for _ in low:
            mixed, digit = divmod(mixed, radix)
            made.append(alphabet[digit])
        return _in_case(reversed(made), text)

    def _regex_part(self, part: str) -> str:
        return part if part[0] in "\\[{" else self._word(part)

    def _json_text(self, value: str) -> str | None:
        try:
            found = json.loads(value, parse_float=_NumberText, parse_int=_NumberText)
        except (ValueError, RecursionError):
            return None
        return _written_json(found, self._word_text, self.number)

    def _word_text(self, value: str) -> str:
        moved = self._moved(value)
        return _ascii_marks(_WORD.sub(lambda match: self._word(match[0]), value)) if moved is None else moved

    # --- Dates and times ---------------------------------------------------------------------------------------------

    def _moved(self, value: str) -> str | None:
        """A moved date, timestamp or time of day; None: the value is none of these."""
        moved = self._moved_moment(value) if value[:1].isdigit() else None  # every notation begins with a digit
        return value if moved is not None and self._keep_moments else moved

    def _moved_moment(self, value: str) -> str | None:
        found = _DATE.fullmatch(value)
        if found is not None and not _WORD.search(re.sub(r"[\dTZ]", "", found[4])):
            year, month, day, rest = found.groups()
            return f"{self._moved_date(int(year), int(month), int(day)) or f'{year}-01-01'}{rest}"
        written = self._moved_written(value)
        if written is not None:
            return written
        found = _CLOCK.fullmatch(value)
        if found is not None:
            hour = (int(found[1]) + self._hours) % 24
            return f"{hour:0{len(found[1])}}:{found[2]}{found[3]}"
        return None

    def _moved_written(self, value: str) -> str | None:
        """A moved date in another notation than ISO 8601; None: the value is none."""
        found = next((found for form in _WRITTEN_DATES if (found := form.fullmatch(value))), None)
        if found is None:
            return None
        first, second, year = found["first"], found["second"], found["year"]
        month_first = found["mark"] == "/" and not value.startswith(year) and int(first) <= len(_MONTHS)
        day, month = (second, first) if month_first else (first, second)
        named = second.upper() in _MONTHS
        if second.isalpha() and not named:
            return None
        moved = self._moved_date(int(year), _MONTHS.index(second.upper()) + 1 if named else int(month), int(day))
        if moved is None:
            return None
        new_year, new_month, new_day = moved.split("-")
        new_day = f"{int(new_day):0{len(day)}}"
        name = _MONTHS[int(new_month) - 1].lower()
        new_month = _in_case(name, second) if named else f"{int(new_month):0{len(month)}}"
        parts = [new_month, new_day] if month_first else [new_day, new_month]
        parts = [new_year, *reversed(parts)] if value.startswith(year) else [*parts, new_year]
        return found["mark"].join(parts) + found["rest"]

    def _around_dates(self, digits: str, permuted: Callable[[str], str]) -> str:
        """A date without separators becomes another date. Other digits never become a date, so the mapping stays
        unique."""
        found = _digit_date(digits)
        if found is None:
            made = permuted(digits)
            while _digit_date(made) is not None:
                made = permuted(made)
            return made
        if self._keep_moments:
            return digits
        first, count = _DIGIT_DATES.start, len(_DIGIT_DATES)
        moved = date.fromordinal(first + (found.toordinal() - self._shift.days - first) % count)
        return f"{moved:%Y%m%d}{digits[8:]}"

    def _moved_date(self, year: int, month: int, day: int) -> str | None:
        try:
            moment = date(year, month, day)
            return (moment - self._shift if year > 1 else moment + self._shift).isoformat()
        except (ValueError, OverflowError):
            return None

    def _moved_epoch(self, value: str) -> str:
        whole, point, fraction = value.partition(".")
        digits = len(whole.lstrip("-"))
        unit = next(unit for least, unit in _MOMENT_UNITS if digits >= least)
        return f"{int(whole) - round(self._shift.total_seconds()) * unit}{point}{fraction}"

    # --- The keyed permutation ---------------------------------------------------------------------------------------

    def _permute(self, number: int, size: int, use: str) -> int:
        """A permutation of the numbers below `size`."""
        if size < 2:
            return number
        half = max(1, -(-(size - 1).bit_length() // 2))
        mask = (1 << half) - 1
        rounds = self._rounds(use, half)
        while True:
            left, right = number >> half, number & mask
            for begun, known in rounds:
                mixed = -1 if known is None else known[right]
                if mixed < 0:
                    keyed = begun.copy()
                    keyed.update(b"%x" % right)
                    mixed = int.from_bytes(keyed.digest(), "big") & mask
                    if known is not None:
                        known[right] = mixed
                left, right = right, left ^ mixed
            number = left << half | right
            if number < size:
                return number

    def _rounds_uncached(self, use: str, half: int) -> list[tuple[Any, array[int] | None]]:
        """The hash of each round, up to the part that depends on the value: copying it costs a third. For short values
        the results are cached, which costs a tenth."""
        length = (half + 7) // 8
        return [
            (
                hashlib.blake2b(f"{use} {turn}\0".encode(), key=self._key, digest_size=length),
                array("h", [-1]) * (1 << half) if half <= self._remembered_bits else None,
            )
            for turn in range(_ROUNDS)
        ]

    def _number_below(self, use: str, value: str, size: int) -> int:
        return int.from_bytes(self._digest(use, value, 8), "big") % size

    def _digest(self, use: str, value: str, length: int) -> bytes:
        data = f"{use}\0{value}".encode("utf-8", "surrogatepass")
        if length <= 64:
            return hashlib.blake2b(data, key=self._key, digest_size=length).digest()
        return hashlib.shake_256(self._key + data).digest(length)


def _digit_date(digits: str) -> date | None:
    """The date in digits without separators; None: they are not a date."""
    found = _DIGIT_DATE.fullmatch(digits) if len(digits) in (8, 12, 14) else None
    try:
        return None if found is None else date(int(found[1]), int(found[2]), int(found[3]))
    except ValueError:
        return None


def _in_pieces(text: str) -> Iterator[str]:
    return (text[start : start + PIECE_CHARACTERS] for start in range(0, len(text), PIECE_CHARACTERS))


class _NumberText(str):
    """A number in a JSON text, in its original notation."""


def _written_json(value: Any, text: Callable[[str], str], number: Callable[[str], str]) -> str:
    if isinstance(value, _NumberText):
        return number(value)
    if isinstance(value, str):
        return json.dumps(text(value))
    if isinstance(value, dict):
        pairs = (f"{json.dumps(text(key))}: {_written_json(inner, text, number)}" for key, inner in value.items())
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_written_json(inner, text, number) for inner in value) + "]"
    return json.dumps(value)


def _in_case(letters: Any, model: str) -> str:
    return "".join(
        letter.upper() if character.isupper() else letter for letter, character in zip(letters, model, strict=True)
    )


def _ascii_marks(text: str) -> str:
    """Replace characters that are not ASCII by *: rare characters may identify an author."""
    return text if text.isascii() else "".join(character if character.isascii() else "*" for character in text)
