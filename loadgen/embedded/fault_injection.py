"""Fault injection: the rules of `POST /__loadgen/faults`, and the choice of the rule for a request.

    {"match": "UPDATE ORDERS", "kind": "error", "errno": 625, "probability": 0.1, "count": 5}

kind            effect on the request                                     fields
latency         is delayed by `ms`                                        ms (required)
error           fails with a Snowflake error                              errno, message, sqlstate
http_status     gets an HTTP status without a Snowflake body              status (default 503), message
reset           the connection is reset before the answer
truncate        is answered with half of the body
hang            gets no answer for `ms`, or until the client disconnects
drop_reply      is executed, but not answered
expire_session  the session token becomes invalid
big_error       fails with an error text of 1 MiB                         errno, sqlstate

`match` is a case-insensitive regular expression, searched in the first 10,000 characters of the SQL text; if it starts
with "/", in the path of the request. Every kind may have `ms`, a delay before its effect. `probability` (default 1)
uses one seeded generator per rule. `count` (default null: unlimited) is the maximum number of times that the rule
fires. The first rule that fires is used.

A regular expression can need exponential time. A search is aborted after 0.1 s of processor time, and the rule is
disabled, which the listing shows.
"""

from __future__ import annotations

import contextlib
import random
import re
import signal
import threading
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any

from loadgen.values import dataclass

RULES_MAX = 1_000
PATTERN_CHARACTERS_MAX = 1_000
SEARCHED_CHARACTERS_MAX = 10_000
MESSAGE_CHARACTERS_MAX = 10_000
SEARCH_CPU_S_MAX = 0.1
HOLD_MS_MAX = 3_600_000.0
ERRNO_MAX = 999_999_999

# A field that its kind does not use is ignored.
_FIELDS = {"match", "kind", "probability", "count", "ms", "errno", "status", "message", "sqlstate"}
KINDS = (
    "latency", "error", "http_status", "reset", "truncate", "hang", "drop_reply", "expire_session", "big_error",
)  # fmt: skip


class InvalidFaultRule(ValueError):
    """The posted rule is invalid; the message names all problems."""

    status = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectedFault:
    """The fault for one request."""

    rule_id: int
    kind: str
    ms: float | None = None
    errno: int | None = None
    status: int | None = None
    message: str | None = None
    sqlstate: str | None = None


class FaultRules:
    """The active rules. Callers check `armed` first, to save time without rules."""

    def __init__(self, seed: int) -> None:
        self.armed = False
        self._seed = seed
        self._rules: list[_Rule] = []
        self._next_id = 1

    def add(self, posted: object) -> list[int]:
        """Add a rule or a list of rules; returns their ids. Raises InvalidFaultRule, which adds none."""
        raws = posted if isinstance(posted, list) else [posted]
        if len(self._rules) + len(raws) > RULES_MAX:
            raise InvalidFaultRule(f"at most {RULES_MAX} rules are allowed; DELETE the old ones first")
        parsed = [_parse_rule(raw, self._next_id + index, self._seed) for index, raw in enumerate(raws)]
        self._rules += parsed
        self._next_id += len(parsed)
        self.armed = bool(self._rules)
        return [rule.fault.rule_id for rule in parsed]

    def clear(self) -> int:
        """Remove all rules; returns their number. Ids are not reused."""
        count = len(self._rules)
        self._rules.clear()
        self.armed = False
        return count

    def listing(self) -> list[dict[str, Any]]:
        """All rules as posted, with their ids and how often they fired."""
        return [rule.shown() for rule in self._rules]

    def pick(self, sql_text: str) -> InjectedFault | None:
        """The fault for this statement, if any."""
        return self._pick(sql_text, on_path=False) if self.armed else None

    def pick_path(self, path: str) -> InjectedFault | None:
        """The fault for a request by its path, if any."""
        return self._pick(path, on_path=True) if self.armed else None

    def _pick(self, text: str, *, on_path: bool) -> InjectedFault | None:
        for rule in self._rules:
            if rule.on_path is on_path and rule.fires(text):
                return rule.fault
        return None


class _Rule:
    """A rule and how often it fired."""

    def __init__(
        self, fault: InjectedFault, pattern: re.Pattern[str], probability: float, count: int | None, seed: int
    ) -> None:
        self.fault = fault
        self.on_path = pattern.pattern.startswith("/")
        self._pattern = pattern
        self._probability = probability
        self._count = count
        self._has_repeats = not _REPEATS.isdisjoint(pattern.pattern)
        self._random = random.Random(f"{seed}/{fault.rule_id}")
        self._fired = 0
        self._disabled_because: str | None = None

    def fires(self, text: str) -> bool:
        if self._disabled_because or (self._count is not None and self._fired >= self._count):
            return False
        try:
            with _cpu_limit(SEARCH_CPU_S_MAX) if self._has_repeats else _UNLIMITED:
                found = self._pattern.search(text, 0, SEARCHED_CHARACTERS_MAX)
        except _SearchTooLong:
            self._disabled_because = f"a search took more than {SEARCH_CPU_S_MAX:g} s of processor time"
            return False
        if found is None or (self._probability < 1 and self._random.random() >= self._probability):
            return False
        self._fired += 1
        return True

    def shown(self) -> dict[str, Any]:
        fault = self.fault
        fields = {name: getattr(fault, name) for name in ("ms", "errno", "status", "message", "sqlstate")}
        return {
            "id": fault.rule_id,
            "match": self._pattern.pattern,
            "kind": fault.kind,
            "probability": self._probability,
            "count": self._count,
            **{name: value for name, value in fields.items() if value is not None},
            "fired": self._fired,
            "switched_off": self._disabled_because,
        }


def _parse_rule(raw: object, rule_id: int, seed: int) -> _Rule:
    if not isinstance(raw, Mapping):
        raise InvalidFaultRule(f"a fault rule is an object, got {_short(raw)}")
    problems: list[str] = []
    kind = raw.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        problems.append(f"kind must be one of {', '.join(KINDS)}, got {_short(kind)}")
    for key in sorted(map(str, raw.keys() - _FIELDS)):
        problems.append(f"{key} is not a field of a fault rule")
    if kind == "latency" and raw.get("ms") is None:
        problems.append("kind latency needs ms")
    pattern = _pattern(raw.get("match"), problems)
    probability = _number(raw, "probability", 0, 1, problems)
    count = _whole(raw, "count", 1, 10**12, problems)
    fields = {
        "ms": _number(raw, "ms", 0, HOLD_MS_MAX, problems),
        "errno": _whole(raw, "errno", 1, ERRNO_MAX, problems),
        "status": _whole(raw, "status", 100, 599, problems),
        "message": _text(raw, "message", MESSAGE_CHARACTERS_MAX, problems),
        "sqlstate": _text(raw, "sqlstate", 5, problems),
    }
    if problems or pattern is None:
        raise InvalidFaultRule("; ".join(problems))
    fault = InjectedFault(rule_id=rule_id, kind=str(kind), **fields)  # type: ignore[arg-type]  # each value was checked
    return _Rule(fault, pattern, 1.0 if probability is None else probability, count, seed)


def _pattern(match: object, problems: list[str]) -> re.Pattern[str] | None:
    if not isinstance(match, str) or not match:
        problems.append(f"match must be a regular expression, got {_short(match)}")
    elif len(match) > PATTERN_CHARACTERS_MAX:
        problems.append(f"match may have {PATTERN_CHARACTERS_MAX} characters, got {len(match)}")
    else:
        try:
            return re.compile(match, re.IGNORECASE)
        except (re.error, RecursionError, OverflowError) as error:
            problems.append(f"match is not a regular expression: {error}")
    return None


def _number(raw: Mapping[Any, Any], key: str, low: float, high: float, problems: list[str]) -> float | None:
    value = raw.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        problems.append(f"{key} must be a number from {low:g} to {high:g}, got {_short(value)}")
        return None
    return float(value)


def _whole(raw: Mapping[Any, Any], key: str, low: int, high: int, problems: list[str]) -> int | None:
    value = raw.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        problems.append(f"{key} must be a whole number from {low} to {high}, got {_short(value)}")
        return None
    return value


def _text(raw: Mapping[Any, Any], key: str, length_max: int, problems: list[str]) -> str | None:
    value = raw.get(key)
    if value is None:
        return None
    if not isinstance(value, str) or len(value) > length_max:
        problems.append(f"{key} must be a text of at most {length_max} characters, got {_short(value)}")
        return None
    return value


def _short(value: object) -> str:
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"


_REPEATS = frozenset("*+?{")  # without them a search is fast and needs no limit
_UNLIMITED = contextlib.nullcontext()


class _SearchTooLong(Exception):
    """Raised in a search that exceeds the limit of processor time."""


@contextlib.contextmanager
def _cpu_limit(limit_s: float) -> Iterator[None]:
    """Raise _SearchTooLong after `limit_s` of processor time. The re module handles signals during a search.

    Python handles signals in the main thread only, so other threads have no limit.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGVTALRM, _raise_too_long)
    signal.setitimer(signal.ITIMER_VIRTUAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _raise_too_long(signal_number: int, frame: FrameType | None) -> None:
    raise _SearchTooLong
