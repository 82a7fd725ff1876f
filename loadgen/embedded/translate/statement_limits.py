"""Limits of a statement's text: some are checked before it is parsed, and parsing and translating have a budget.

    STATEMENT_BYTES_MAX   of the text, as in Snowflake
    TOKENS_MAX            longer lists of rows need array binds
    NESTING_MAX           parentheses and brackets inside each other
    JOINS_MAX             JOIN words of one statement
    SUBQUERIES_MAX        common table expressions and subqueries, those of views too: PostgreSQL plans a chain of them
                          in cubic time, and cannot be canceled meanwhile
    SELECT_ITEMS_MAX      items of one select list
    COMMAND_TOKENS_MAX    of statements that are no queries
    VIEW_TOKENS_MAX       of the queries of all views that one statement reads, each as often as it is read

sqlglot's parser tries alternatives and goes back: twenty `JOIN t` without ON take it a million steps. So parsing and
translating spend a budget of steps, in proportion to the number of tokens, and a statement that exceeds it is refused.
Translating spends characters too, in proportion to the text: some calls write an argument twice, and calls are nested.

Short texts are planned on the event loop. Texts of more than INLINE_CHARACTERS are planned by a
thread (`PlanningThread`), one at a time; cancelling a statement ends its budget.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from typing import TypeVar

from sqlglot.tokenizer_core import Token, TokenType

from loadgen.embedded.sql_errors import SqlError
from loadgen.embedded.threads import in_thread
from loadgen.embedded.translate.token_reader import word_of

STATEMENT_BYTES_MAX = 1_048_576
TOKENS_MAX = 250_000
NESTING_MAX = 100
JOINS_MAX = 200
SUBQUERIES_MAX = 250
SELECT_ITEMS_MAX = 1_600  # PostgreSQL has room for 1,664
COMMAND_TOKENS_MAX = 10_000
VIEW_TOKENS_MAX = 10_000
INLINE_CHARACTERS = 8_000
STEPS_PER_TOKEN = 20
STEPS_MIN = 20_000
CHARACTERS_MIN = 4 * STATEMENT_BYTES_MAX  # a view may hold a literal of any length, and a query is translated twice
CHARACTERS_PER_CHARACTER = 20

_OPENING = (TokenType.L_PAREN, TokenType.L_BRACKET)
_CLOSING = (TokenType.R_PAREN, TokenType.R_BRACKET)
_LIST_ENDS = frozenset({"FROM", "WHERE", "GROUP BY", "ORDER BY", "VALUES", "UNION", "EXCEPT", "INTERSECT", "LIMIT"})

T = TypeVar("T")


def too_deep() -> SqlError:
    return SqlError(1005, "42601", "SQL compilation error: statement is nested too deeply.")


def too_complex(why: str) -> SqlError:
    return SqlError(1005, "42601", f"SQL compilation error: statement is too complex: {why}.")


def too_many_subqueries() -> SqlError:
    return too_complex(f"it has more than {SUBQUERIES_MAX} common table expressions and subqueries")


def subqueries_in(tokens: list[Token]) -> int:
    """How often SELECT comes right after a parenthesis."""
    found, before = 0, None
    for token in tokens:
        kind = token.token_type
        found += kind is TokenType.SELECT and before is TokenType.L_PAREN
        before = kind
    return found


def check_shape(tokens: list[Token]) -> None:
    """Reject texts that would be too expensive to parse."""
    if len(tokens) > TOKENS_MAX:
        raise too_complex(f"it has more than {TOKENS_MAX} tokens")
    if subqueries_in(tokens) > SUBQUERIES_MAX:
        raise too_many_subqueries()
    joins = 0
    items: list[int] = [0]  # of the select list at each depth; 0: there is none
    for token in tokens:
        kind = token.token_type
        if kind in _OPENING:
            items.append(0)
            if len(items) > NESTING_MAX + 1:
                raise too_deep()
        elif kind in _CLOSING:
            if len(items) > 1:
                items.pop()
        elif kind is TokenType.COMMA:
            items[-1] += items[-1] > 0
            if items[-1] > SELECT_ITEMS_MAX:
                raise too_complex(f"a select list has more than {SELECT_ITEMS_MAX} items")
        elif kind is TokenType.SELECT:
            items[-1] = 1
        elif kind is TokenType.JOIN:
            joins += 1
            if joins > JOINS_MAX:
                raise too_complex(f"it has more than {JOINS_MAX} joins")
        elif items[-1] and word_of(token) in _LIST_ENDS:
            items[-1] = 0


def check_command(tokens: list[Token]) -> None:
    """Commands are read on the event loop, whatever the length of their text."""
    if len(tokens) > COMMAND_TOKENS_MAX:
        raise too_complex(f"it has more than {COMMAND_TOKENS_MAX} tokens")


class TranslationBudget:
    """The steps that are left for one statement, with the queries of the views that it reads."""

    __slots__ = ("characters", "left", "view_subqueries", "view_tokens")

    def __init__(self, tokens: int) -> None:
        self.left = STEPS_MIN + tokens * STEPS_PER_TOKEN
        self.view_tokens = self.view_subqueries = 0
        self.characters = 0

    def spend(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise too_complex("it takes too many steps to read; joins without a condition are written CROSS JOIN")

    def write(self, characters: int, text: str) -> None:
        """Count what a part of the translation has beyond the parts that it was made of."""
        self.characters += max(0, characters)
        if self.characters > CHARACTERS_MIN + CHARACTERS_PER_CHARACTER * len(text):
            raise too_complex("its translation is too long; nested calls write their arguments more than once")

    def add_view(self, tokens: int, subqueries: int) -> None:
        self.view_tokens += tokens
        self.view_subqueries += 1 + subqueries
        if self.view_subqueries > SUBQUERIES_MAX:
            raise too_many_subqueries()
        if self.view_tokens > VIEW_TOKENS_MAX:
            raise too_complex(f"the queries of its views have more than {VIEW_TOKENS_MAX} tokens")
        self.left += tokens * STEPS_PER_TOKEN

    def cancel(self) -> None:
        """Called by another thread: the next step raises."""
        self.left = 0


_budget: ContextVar[TranslationBudget | None] = ContextVar("budget", default=None)


@contextmanager
def budget_of(tokens: int) -> Iterator[TranslationBudget]:
    """The budget of the statement that is being planned in this context, or a new one."""
    found = _budget.get()
    if found is not None:
        yield found
        return
    made = TranslationBudget(tokens)
    reset = _budget.set(made)
    try:
        yield made
    finally:
        _budget.reset(reset)


def current_budget() -> TranslationBudget:
    """The budget of this context; outside of a statement that is being planned, one for a single expression."""
    return _budget.get() or TranslationBudget(0)


class PlanningThread:
    """Runs the planning of long texts in a thread, one at a time."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def run(self, text: str, work: Callable[[], T]) -> T:
        """The result of `work`, called directly for a short text and by a thread for a long one."""
        if len(text) <= INLINE_CHARACTERS:
            return work()
        async with self._turn:
            return await _in_thread(work)


async def _in_thread(work: Callable[[], T]) -> T:
    """Ends the thread's budget when the task is cancelled."""
    budget = TranslationBudget(TOKENS_MAX)
    context = copy_context()
    context.run(_budget.set, budget)
    try:
        return await in_thread(lambda: context.run(work), "planning")
    finally:
        budget.cancel()
