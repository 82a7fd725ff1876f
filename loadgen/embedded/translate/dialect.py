"""Reading Snowflake SQL: sqlglot's tokenizer and parser, configured to keep every function's name as written.

sqlglot translates functions while it parses (NOW() becomes CURRENT_TIMESTAMP, and so on). A server that must reject
what Snowflake rejects cannot use that, so the function table is emptied: each call arrives as a name with arguments
and is checked against the allow-list.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from itertools import islice, pairwise
from typing import Any, ClassVar

from sqlglot import exp
from sqlglot.dialects.snowflake import Snowflake
from sqlglot.errors import ParseError, TokenError
from sqlglot.parsers.snowflake import SnowflakeParser
from sqlglot.tokenizer_core import Token, TokenType

from loadgen.embedded.sql_errors import SqlError, statement_count, syntax_error, unsupported
from loadgen.embedded.translate.statement_limits import (
    INLINE_CHARACTERS,
    STATEMENT_BYTES_MAX,
    budget_of,
    check_shape,
    current_budget,
    too_deep,
)
from loadgen.embedded.translate.token_reader import word_of

SHOWN_NODES_MAX = 40  # sqlglot writes nested queries in cubic time, and longer names are useless
_SPECIAL_SYNTAX = ("CAST", "TRY_CAST", "EXTRACT", "POSITION")

logging.getLogger("sqlglot").setLevel(logging.ERROR)  # it would print users' SQL to stderr


class _Parser(SnowflakeParser):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.budget = current_budget()  # sqlglot makes parsers too, for types

    FUNCTIONS: ClassVar = {}
    ARRAY_CONSTRUCTORS: ClassVar = {}  # ARRAY[1] is PostgreSQL; "ARRAY"[1] is an element of a column
    FUNCTION_PARSERS: ClassVar = {name: SnowflakeParser.FUNCTION_PARSERS[name] for name in _SPECIAL_SYNTAX}
    # A `?` is a bind and nothing else.
    COLUMN_OPERATORS: ClassVar = {
        kind: parser for kind, parser in SnowflakeParser.COLUMN_OPERATORS.items() if kind is not TokenType.PLACEHOLDER
    }
    PLACEHOLDER_PARSERS: ClassVar = {
        **SnowflakeParser.PLACEHOLDER_PARSERS,
        # A `?` keeps its position: binds are numbered by the text, not by the order of emission.
        TokenType.PLACEHOLDER: lambda self: self.expression(exp.Placeholder(this=f"?{self._prev.start}")),
    }

    def _advance(self, times: int = 1) -> None:
        """Forward, or back to try something else: both are steps."""
        self.budget.spend()
        super()._advance(times)


class _Dialect(Snowflake):
    Parser = _Parser

    class Tokenizer(Snowflake.Tokenizer):
        # `?::` is a bind and a cast here, not another dialect's operator.
        KEYWORDS: ClassVar = {word: kind for word, kind in Snowflake.Tokenizer.KEYWORDS.items() if "?" not in word}
        # What follows EXECUTE is read here, too, not kept as one text.
        COMMANDS: ClassVar = Snowflake.Tokenizer.COMMANDS - {TokenType.EXECUTE}


_dialect = _Dialect()

# sqlglot knows more operators than Snowflake has; quoted texts and names are not looked at.
_FOREIGN = re.compile(r"[~^&#`\\]|->|@>|<@|<=>|\*\*|:=|\?\?|\|/|\|\|/|\|>|^\|$|^(?:ISNULL|NOTNULL)$", re.IGNORECASE)
_QUOTED = (TokenType.STRING, TokenType.IDENTIFIER, TokenType.RAW_STRING, TokenType.HEREDOC_STRING)
# Where sqlglot accepts a missing list item or condition.
_BEFORE_ITEM = (
    TokenType.COMMA, TokenType.SELECT, TokenType.DISTINCT, TokenType.SET, TokenType.ON, TokenType.GROUP_BY,
    TokenType.ORDER_BY, TokenType.PARTITION_BY,
)  # fmt: skip
_NO_ITEM = (
    TokenType.COMMA, TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.WHERE, TokenType.GROUP_BY, TokenType.ORDER_BY,
    TokenType.HAVING, TokenType.QUALIFY, TokenType.UNION, TokenType.INTERSECT,
)  # fmt: skip
_OPENING = (TokenType.L_PAREN, TokenType.L_BRACKET)


def tokens_of(text: str) -> list[Token]:
    """The tokens of one statement, without a closing semicolon; several statements are rejected as by Snowflake."""
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
    """The number (from 1) of each `?`, by the mark its node carries."""
    marks = [token for token in tokens if token.token_type is TokenType.PLACEHOLDER]
    return {f"?{token.start}": number for number, token in enumerate(marks, 1)}


def position(text: str, name: str) -> tuple[int, int]:
    """Line and position of an identifier in the text, as Snowflake counts: lines from 1, positions from 0."""
    if len(text) > INLINE_CHARACTERS:  # too slow for the event loop
        return (1, 0)
    last = name.rsplit(".", 1)[-1].strip('"').upper()
    token = next((token for token in _dialect.tokenize(text) if token.text.upper() == last), None)
    return (token.line, max(0, token.col - len(token.text))) if token else (1, 0)


_LIST_ENDS = frozenset(
    {
        "FROM",
        "WHERE",
        "GROUP BY",
        "HAVING",
        "QUALIFY",
        "ORDER BY",
        "LIMIT",
        "UNION",
        "EXCEPT",
        "MINUS",
        "INTERSECT",
        "FOR",
    }
)


def select_list(text: str, tokens: list[Token]) -> list[str]:
    """The source texts of the first outermost select list; unnamed columns are called by them."""
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
    """An expression as Snowflake names an unnamed column: its text in upper case. Only its kind for a large one."""
    if sum(1 for _ in islice(node.walk(), SHOWN_NODES_MAX + 1)) > SHOWN_NODES_MAX:
        return f"{type(node).__name__.upper()}(…)"
    try:
        return node.sql(dialect=_dialect).upper()
    except Exception:  # sqlglot reads more than it can write, such as V:k[0.5]
        return f"{type(node).__name__.upper()}(…)"


def identifier(node: exp.Expr | None) -> str:
    """An identifier's real name: upper-cased unless quoted."""
    if not isinstance(node, exp.Identifier):
        return str(node.name).upper() if node is not None else ""
    return str(node.this) if node.args.get("quoted") else str(node.this).upper()
