"""Statements that are neither queries nor DML register by their first words, and are found by them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from sqlglot.tokenizer_core import Token

from loadgen.embedded.result import StatementResult, status
from loadgen.embedded.sql_errors import syntax_error, unsupported
from loadgen.embedded.translate.parser import TokenReader, word_of
from loadgen.values import dataclass

if TYPE_CHECKING:
    from loadgen.embedded.engine import Engine
    from loadgen.embedded.session import ServerSession
    from loadgen.embedded.transactions import QueryRequest, RunningStatement


@dataclass(slots=True)
class CommandCall:
    """A command and its context."""

    engine: Engine
    session: ServerSession
    tokens: list[Token]
    request: QueryRequest
    running: RunningStatement

    def cursor(self, index: int = 0) -> TokenReader:
        return TokenReader(self.request.text, self.tokens, index)


@dataclass(frozen=True, slots=True)
class Command:
    query_type: str
    run: Callable[[CommandCall], Awaitable[StatementResult]]

    def description(self) -> StatementResult:
        """The answer to a describe-only request; the command is not run."""
        described = status("")
        described.rows, described.count = [], 0
        return described


_QUERIES = frozenset({"SELECT", "WITH", "(", "INSERT", "UPDATE", "DELETE", "MERGE"})
COMMANDS: dict[tuple[str, ...], Command] = {}  # by first words; the longest match is used
# Statements of Snowflake that this server does not support.
_UNSUPPORTED = frozenset(
    {
        "GRANT",
        "REVOKE",
        "PUT",
        "GET",
        "LIST",
        "LS",
        "REMOVE",
        "RM",
        "COPY",
        "UNDROP",
        "SET",
        "UNSET",
        "EXPLAIN",
        "DECLARE",
    }
)
CommandFunction = Callable[["CommandCall"], Awaitable[StatementResult]]


def command(query_type: str, *phrases: str) -> Callable[[CommandFunction], CommandFunction]:
    """Registers the function that runs statements which begin with one of the phrases, such as `CREATE TABLE`."""

    def register(run: CommandFunction) -> CommandFunction:
        for phrase in phrases:
            COMMANDS[tuple(phrase.split())] = Command(query_type, run)
        return run

    return register


def find(tokens: list[Token]) -> Command | None:
    """The command of a statement; None for queries and DML. Raises SqlError for other texts."""
    words = tuple(word_of(token) for token in tokens[:3])
    if words == ("CREATE", "OR", "REPLACE"):
        words = ("CREATE", *(word_of(token) for token in tokens[3:5]))
    if words[0] == "SELECT" and len(words) > 1 and words[1].startswith("SYSTEM$"):
        return COMMANDS[("SELECT", "SYSTEM$")]
    if tuple(word_of(token) for token in tokens[1:7]) == ("*", "FROM", "TABLE", "(", "RESULT_SCAN", "("):
        return COMMANDS[("RESULT_SCAN",)]
    if _is_service_call(tokens):
        return COMMANDS[("!",)]
    if words[0] in _QUERIES:
        return None
    for length in (3, 2, 1):
        found = COMMANDS.get(words[:length])
        if found is not None:
            return found
    if words[0] in _UNSUPPORTED:
        raise unsupported(words[0])
    if words[0] in {key[0] for key in COMMANDS} and len(words) > 1:
        raise unsupported(" ".join(words[:2]))
    raise syntax_error(tokens[0].line, max(0, tokens[0].col - len(tokens[0].text)), tokens[0].text)


def _is_service_call(tokens: list[Token]) -> bool:
    """`name!SPCS_…()`: the exclamation mark occurs nowhere else before a name."""
    return any(
        token.text == "!" and index + 1 < len(tokens) and word_of(tokens[index + 1]).startswith("SPCS_")
        for index, token in enumerate(tokens[:12])
    )
