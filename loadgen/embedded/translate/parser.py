"""Parsing: the tokens and the syntax tree of a statement, the reader of commands, and the limits of both.

sqlglot's tokenizer and parser are configured to keep every function's name as written. By default sqlglot translates
functions while it parses (NOW() becomes CURRENT_TIMESTAMP, and so on). A server that must reject what Snowflake rejects
cannot use that, so the function table is emptied: each call becomes a name with arguments, and `calls` checks the name
against the allow-list.

Some limits are checked before a text is parsed:

    STATEMENT_BYTES_MAX   of the text, as in Snowflake
    TOKENS_MAX            longer lists of rows need array binds
    NESTING_MAX           parentheses and brackets inside each other
    JOINS_MAX             JOIN words of one statement
    SUBQUERIES_MAX        common table expressions and subqueries, those of views included: PostgreSQL plans a chain of
                          them in cubic time, and planning cannot be cancelled
    SELECT_ITEMS_MAX      items of one select list
    COMMAND_TOKENS_MAX    of statements that are not queries
    VIEW_TOKENS_MAX       of the queries of all views that one statement reads, counted once per reference

sqlglot's parser backtracks: twenty `JOIN t` without ON take it a million steps. Parsing and translating therefore have
a budget of steps, in proportion to the number of tokens; a statement that exceeds it is rejected. Translating also has
a budget of characters, in proportion to the text, because some calls write an argument twice and calls can be nested.

Short texts are planned on the event loop. Texts of more than INLINE_CHARACTERS are planned in a thread
(`PlanningThread`), one at a time; cancelling the statement ends its budget.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from itertools import islice, pairwise
from typing import Any, ClassVar, TypeVar

from sqlglot import exp
from sqlglot.dialects.snowflake import Snowflake
from sqlglot.errors import ParseError, TokenError
from sqlglot.parsers.snowflake import SnowflakeParser
from sqlglot.tokenizer_core import Token, TokenType

from loadgen.embedded.event_loop import in_thread
from loadgen.embedded.postgres_names import SNOWFLAKE_NAME_LENGTH, too_long
from loadgen.embedded.result import is_number
from loadgen.embedded.sql_errors import SqlError, compilation, statement_count, syntax_error, unsupported

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
CHARACTERS_MIN = 4 * STATEMENT_BYTES_MAX  # a view may contain a literal of any length, and a query is translated twice
CHARACTERS_PER_CHARACTER = 20

_OPENING = (TokenType.L_PAREN, TokenType.L_BRACKET)
_CLOSING = (TokenType.R_PAREN, TokenType.R_BRACKET)
_LIST_ENDS = frozenset(
    {
        "FROM", "WHERE", "GROUP BY", "HAVING", "QUALIFY", "ORDER BY", "LIMIT", "UNION", "EXCEPT", "MINUS", "INTERSECT",
        "FOR",
    }
)  # fmt: skip

T = TypeVar("T")

# --- tokens of commands -----------------------------------------------------------------------------------------------

_STRINGS = (TokenType.STRING, TokenType.RAW_STRING, TokenType.HEREDOC_STRING)
_QUOTED = (*_STRINGS, TokenType.IDENTIFIER)


def split_compound_tokens(text: str, tokens: list[Token]) -> list[Token]:
    """The tokens, where compound ones of the tokenizer such as `PRIMARY KEY` are split into words."""
    words: list[Token] = []
    for token in tokens:
        if token.token_type in _QUOTED or not any(map(str.isspace, token.text)):
            words.append(token)
            continue
        for match in re.finditer(r"\S+", text[token.start : token.end + 1]):
            start = token.start + match.start()
            end = token.start + match.end() - 1
            words.append(Token(TokenType.VAR, match.group(), token.line, token.col - (token.end - end), start, end))
    return words


def word_of(token: Token) -> str:
    """A token's text in upper case; empty for a string or a quoted identifier."""
    return "" if token.token_type in _QUOTED else token.text.upper()


class TokenReader:
    """Reads the tokens of a command. Errors contain line and position, as in Snowflake."""

    def __init__(self, text: str, tokens: list[Token], index: int = 0) -> None:
        self.text = text
        self.tokens = tokens
        self.index = index

    @property
    def done(self) -> bool:
        return self.index >= len(self.tokens)

    def word(self, ahead: int = 0) -> str:
        """The text of the next token in upper case; empty at the end, for a string or a quoted identifier."""
        index = self.index + ahead
        return word_of(self.tokens[index]) if index < len(self.tokens) else ""

    def accept(self, *words: str) -> bool:
        """Consume the words if they are the next tokens."""
        if all(self.word(ahead) == word for ahead, word in enumerate(words)):
            self.index += len(words)
            return True
        return False

    def expect(self, *words: str) -> None:
        for word in words:
            if not self.accept(word):
                raise self.unexpected()

    def unexpected(self) -> SqlError:
        if self.done:
            last = self.tokens[-1]
            return syntax_error(last.line, last.col, "<EOF>")
        token = self.tokens[self.index]
        return syntax_error(token.line, max(0, token.col - len(token.text)), token.text)

    def end(self) -> None:
        if not self.done:
            raise self.unexpected()

    def take(self) -> Token:
        if self.done:
            raise self.unexpected()
        self.index += 1
        return self.tokens[self.index - 1]

    def name(self) -> str:
        """Consume an identifier, which is upper-cased unless quoted."""
        if self.done:
            raise self.unexpected()
        token = self.tokens[self.index]
        if token.token_type is TokenType.IDENTIFIER:
            if not token.text:
                raise compilation(904, "42601", 'an identifier may not be empty: ""')
            if len(token.text) > SNOWFLAKE_NAME_LENGTH:
                raise too_long(token.text)
            self.index += 1
            return token.text
        first = token.text[:1]
        plain = token.text.replace("_", "a").replace("$", "a")
        if token.token_type is TokenType.STRING or not plain.isalnum() or first.isdigit() or first == "$":
            raise self.unexpected()
        if len(token.text) > SNOWFLAKE_NAME_LENGTH:
            raise too_long(token.text)
        self.index += 1
        return token.text.upper()

    def path(self) -> list[str]:
        """Consume a name of one to three parts."""
        parts = [self.name()]
        while self.accept("."):
            parts.append(self.name())
        if len(parts) > 3:
            raise self.unexpected()
        return parts

    def names(self) -> tuple[str, ...]:
        """Consume a parenthesised list of identifiers."""
        self.expect("(")
        found = [self.name()]
        while self.accept(","):
            found.append(self.name())
        self.expect(")")
        return tuple(found)

    def string(self) -> str:
        token = self.take()
        if token.token_type not in _STRINGS:
            self.index -= 1
            raise self.unexpected()
        return token.text

    def integer(self) -> int:
        sign = -1 if self.accept("-") else 1
        token = self.take()
        if not is_number(token.text):
            self.index -= 1
            raise self.unexpected()
        return sign * int(token.text)

    def value(self) -> str:
        """Consume the value of a property: a string, a number or a word."""
        sign = "-" if self.accept("-") else ""
        return sign + self.take().text

    def source(self, first: int, last: int) -> str:
        """The text from one token to another, both included."""
        if first > last:
            raise self.unexpected()
        return self.text[self.tokens[first].start : self.tokens[last].end + 1]

    def skip_parentheses(self) -> None:
        """Consume a parenthesised expression."""
        self.expect("(")
        depth = 1
        while depth:
            word = self.take().text
            depth += (word == "(") - (word == ")")


# --- limits -----------------------------------------------------------------------------------------------------------


def too_deep() -> SqlError:
    return SqlError(1005, "42601", "SQL compilation error: statement is nested too deeply.")


def too_complex(why: str) -> SqlError:
    return SqlError(1005, "42601", f"SQL compilation error: statement is too complex: {why}.")


def too_many_subqueries() -> SqlError:
    return too_complex(f"it has more than {SUBQUERIES_MAX} common table expressions and subqueries")


def subqueries_in(tokens: list[Token]) -> int:
    """The number of SELECT tokens after an opening parenthesis."""
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
    items: list[int] = [0]  # items of the select list at each depth; 0: no select list
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
    """Limit the length of commands, which are parsed on the event loop."""
    if len(tokens) > COMMAND_TOKENS_MAX:
        raise too_complex(f"it has more than {COMMAND_TOKENS_MAX} tokens")


class TranslationBudget:
    """The budget of steps and characters for one statement, including the queries of its views."""

    __slots__ = ("characters", "steps_left", "view_subqueries", "view_tokens")

    def __init__(self, tokens: int) -> None:
        self.steps_left = STEPS_MIN + tokens * STEPS_PER_TOKEN
        self.view_tokens = self.view_subqueries = 0
        self.characters = 0

    def spend(self) -> None:
        self.steps_left -= 1
        if self.steps_left < 0:
            raise too_complex("it takes too many steps to read; write joins without a condition as CROSS JOIN")

    def add_characters(self, characters: int, text: str) -> None:
        """Count the characters of a translated part that its own parts do not contain."""
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
        self.steps_left += tokens * STEPS_PER_TOKEN

    def cancel(self) -> None:
        """Called by another thread: the next step raises an error."""
        self.steps_left = 0


_budget: ContextVar[TranslationBudget | None] = ContextVar("budget", default=None)


@contextmanager
def budget_of(tokens: int) -> Iterator[TranslationBudget]:
    """The budget of the statement that is planned in this context, or a new one."""
    found = _budget.get()
    if found is not None:
        yield found
        return
    budget = TranslationBudget(tokens)
    reset = _budget.set(budget)
    try:
        yield budget
    finally:
        _budget.reset(reset)


def current_budget() -> TranslationBudget:
    """The budget of this context, or a small one for a single expression."""
    return _budget.get() or TranslationBudget(0)


class PlanningThread:
    """Runs the planning of long texts in a thread, one at a time."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def run(self, text: str, work: Callable[[], T]) -> T:
        """Run `work`: directly for a short text, in a thread for a long one."""
        if len(text) <= INLINE_CHARACTERS:
            return work()
        async with self._lock:
            return await _plan_in_thread(work)


async def _plan_in_thread(work: Callable[[], T]) -> T:
    """Run `work` in a thread. The cancellation of the task ends the thread's budget."""
    budget = TranslationBudget(TOKENS_MAX)
    context = copy_context()
    context.run(_budget.set, budget)
    try:
        return await in_thread(lambda: context.run(work), "planning")
    finally:
        budget.cancel()


# --- sqlglot's tokenizer and parser -----------------------------------------------------------------------------------

SHOWN_NODES_MAX = 40  # sqlglot writes nested queries in cubic time
_SPECIAL_SYNTAX = ("CAST", "TRY_CAST", "EXTRACT", "POSITION")

logging.getLogger("sqlglot").setLevel(logging.ERROR)  # otherwise it prints users' SQL to stderr


class _Parser(SnowflakeParser):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.budget = current_budget()  # sqlglot itself creates parsers, for types

    FUNCTIONS: ClassVar = {}
    ARRAY_CONSTRUCTORS: ClassVar = {}  # ARRAY[1] is PostgreSQL's syntax; "ARRAY"[1] is an element of a column
    FUNCTION_PARSERS: ClassVar = {name: SnowflakeParser.FUNCTION_PARSERS[name] for name in _SPECIAL_SYNTAX}
    # A `?` is always a bind.
    COLUMN_OPERATORS: ClassVar = {
        kind: parser for kind, parser in SnowflakeParser.COLUMN_OPERATORS.items() if kind is not TokenType.PLACEHOLDER
    }
    PLACEHOLDER_PARSERS: ClassVar = {
        **SnowflakeParser.PLACEHOLDER_PARSERS,
        # The node of a `?` has its position: binds are numbered in the order of the text, not of the translation.
        TokenType.PLACEHOLDER: lambda self: self.expression(exp.Placeholder(this=f"?{self._prev.start}")),
    }

    def _advance(self, times: int = 1) -> None:
        """Moves forward, or back to another alternative; both are steps."""
        self.budget.spend()
        super()._advance(times)


class _Dialect(Snowflake):
    Parser = _Parser

    class Tokenizer(Snowflake.Tokenizer):
        # `?::` is a bind and a cast, not the operator of another dialect.
        KEYWORDS: ClassVar = {word: kind for word, kind in Snowflake.Tokenizer.KEYWORDS.items() if "?" not in word}
        # EXECUTE is tokenized like other statements, not as one text.
        COMMANDS: ClassVar = Snowflake.Tokenizer.COMMANDS - {TokenType.EXECUTE}


_dialect = _Dialect()

# Operators of sqlglot that Snowflake does not have. Quoted tokens are not checked.
_FOREIGN = re.compile(r"[~^&#`\\]|->|@>|<@|<=>|\*\*|:=|\?\?|\|/|\|\|/|\|>|^\|$|^(?:ISNULL|NOTNULL)$", re.IGNORECASE)
# Tokens between which sqlglot accepts a missing list item or condition.
_BEFORE_ITEM = (
    TokenType.COMMA, TokenType.SELECT, TokenType.DISTINCT, TokenType.SET, TokenType.ON, TokenType.GROUP_BY,
    TokenType.ORDER_BY, TokenType.PARTITION_BY,
)  # fmt: skip
_NO_ITEM = (
    TokenType.COMMA, TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.WHERE, TokenType.GROUP_BY, TokenType.ORDER_BY,
    TokenType.HAVING, TokenType.QUALIFY, TokenType.UNION, TokenType.INTERSECT,
)  # fmt: skip


def tokens_of(text: str) -> list[Token]:
    """The tokens of a statement, without final semicolons. Several statements are rejected, as in Snowflake."""
    if "\0" in text:
        raise unsupported("NUL character in a statement")
    if len(text) > STATEMENT_BYTES_MAX:
        raise SqlError(102, "54000", "SQL compilation error: statement text exceeds the maximum of 1 MB.")
    try:
        tokens = _dialect.tokenize(text)
    except TokenError:
        raise syntax_error(1, 0, text.strip()[:20] or "<EOF>") from None
    while tokens and tokens[-1].token_type is TokenType.SEMICOLON:
        tokens.pop()
    if not tokens:
        raise SqlError(900, "42601", "SQL compilation error:\nEmpty SQL statement.")
    check_shape(tokens)
    _require_one_statement(tokens)
    return tokens


def _require_one_statement(tokens: list[Token]) -> None:
    statements = sum(token.token_type is TokenType.SEMICOLON for token in tokens)
    if not statements:
        return
    first, second = word_of(tokens[0]), word_of(tokens[1]) if len(tokens) > 1 else ""
    if first == "DECLARE" or (first == "BEGIN" and second not in (";", "TRANSACTION", "WORK", "NAME")):
        raise unsupported("Snowflake Scripting block")
    raise statement_count(statements + 1, 1)


def parse(text: str, tokens: list[Token]) -> exp.Expr:
    """The syntax tree of one statement."""
    for token in tokens:
        if token.token_type not in _QUOTED and _FOREIGN.search(token.text):
            raise syntax_error(token.line, max(0, token.col - len(token.text)), token.text)
    for token, following in pairwise(tokens):
        if word_of(token) == "ARRAY" and following.token_type is TokenType.L_BRACKET:  # PostgreSQL's own literal
            raise syntax_error(token.line, max(0, token.col - len(token.text)), token.text)
        missing = token.token_type in _BEFORE_ITEM and following.token_type in _NO_ITEM
        if missing or (token.token_type in _OPENING and following.token_type is TokenType.COMMA):
            raise syntax_error(following.line, max(0, following.col - len(following.text)), following.text)
    if tokens[-1].token_type in (TokenType.ALIAS, *_BEFORE_ITEM):
        raise syntax_error(tokens[-1].line, tokens[-1].col, "<EOF>")
    try:
        with budget_of(len(tokens)):
            trees = _dialect.parser().parse(tokens, text)
    except ParseError as error:
        raise _refusal(error, tokens) from None
    except RecursionError:
        raise too_deep() from None
    tree = trees[0] if trees else None
    if tree is None:
        raise SqlError(900, "42601", "SQL compilation error:\nEmpty SQL statement.")
    if isinstance(tree, exp.Command):
        raise unsupported(str(tree.this).upper())
    return tree


def parse_expression(text: str) -> exp.Expr:
    """The tree of a scalar expression, such as a column's DEFAULT."""
    query = f"SELECT {text}"
    tree = parse(query, tokens_of(query))
    projections = tree.expressions
    if not isinstance(tree, exp.Select) or len(projections) != 1 or any(tree.args.get(k) for k in ("from_", "where")):
        raise syntax_error(1, 0, text[:20])
    result: exp.Expr = projections[0]
    return result


def _refusal(error: ParseError, tokens: list[Token]) -> SqlError:
    detail = error.errors[0] if error.errors else {}
    highlight = str(detail.get("highlight") or "")
    line, column = int(detail.get("line") or 1), int(detail.get("col") or 0)
    if not highlight and tokens:
        return syntax_error(tokens[-1].line, tokens[-1].col, "<EOF>")
    return syntax_error(line, max(0, column - len(highlight)), highlight)


def placeholders(tokens: list[Token]) -> dict[str, int]:
    """The number of each `?`, from 1, by the name of its node."""
    marks = [token for token in tokens if token.token_type is TokenType.PLACEHOLDER]
    return {f"?{token.start}": number for number, token in enumerate(marks, 1)}


def position(text: str, name: str) -> tuple[int, int]:
    """Line (from 1) and position (from 0) of an identifier in the text, as in Snowflake's errors."""
    if len(text) > INLINE_CHARACTERS:  # too slow for the event loop
        return (1, 0)
    last = name.rsplit(".", 1)[-1].strip('"').upper()
    token = next((token for token in _dialect.tokenize(text) if token.text.upper() == last), None)
    return (token.line, max(0, token.col - len(token.text))) if token else (1, 0)


def select_list(text: str, tokens: list[Token]) -> list[str]:
    """The source texts of the outermost select list, which are the names of unnamed columns."""
    index = next((i for i, token in _outermost(tokens) if token.token_type is TokenType.SELECT), None)
    if index is None or index + 1 >= len(tokens) or word_of(tokens[index + 1]) in ("DISTINCT", "ALL", "TOP"):
        index = index + 1 if index is not None else len(tokens)
    first, found = index + 1, []
    for i, token in _outermost(tokens):
        if i <= index:
            continue
        if token.token_type is TokenType.COMMA or word_of(token) in _LIST_ENDS:
            found.append((first, i - 1))
            first = i + 1
            if token.token_type is not TokenType.COMMA:
                break
    else:
        found.append((first, len(tokens) - 1))
    return [text[tokens[a].start : tokens[b].end + 1] for a, b in found if a <= b < len(tokens)]


def _outermost(tokens: list[Token]) -> Iterator[tuple[int, Token]]:
    depth = 0
    for index, token in enumerate(tokens):
        if token.token_type in (TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE):
            depth -= 1
        if depth == 0:
            yield index, token
        if token.token_type in (TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE):
            depth += 1


def shown(node: exp.Expr) -> str:
    """The name of an unnamed column: its text in upper case; for a large expression only its kind."""
    if sum(1 for _ in islice(node.walk(), SHOWN_NODES_MAX + 1)) > SHOWN_NODES_MAX:
        return f"{type(node).__name__.upper()}(…)"
    try:
        return node.sql(dialect=_dialect).upper()
    except Exception:  # sqlglot cannot write all that it parses, such as V:k[0.5]
        return f"{type(node).__name__.upper()}(…)"


def identifier(node: exp.Expr | None) -> str:
    """The name of an identifier, upper-cased unless quoted."""
    if not isinstance(node, exp.Identifier):
        return str(node.name).upper() if node is not None else ""
    return str(node.this) if node.args.get("quoted") else str(node.this).upper()
