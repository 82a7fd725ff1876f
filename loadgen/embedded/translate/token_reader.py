"""A reader over the tokens of a command: statements that are not queries have hand-written parsers."""

from __future__ import annotations

import re

from sqlglot.tokenizer_core import Token, TokenType

from loadgen.embedded.postgres_names import SNOWFLAKE_NAME_LENGTH, too_long
from loadgen.embedded.result import is_number
from loadgen.embedded.sql_errors import SqlError, compilation, syntax_error

_STRINGS = (TokenType.STRING, TokenType.RAW_STRING, TokenType.HEREDOC_STRING)


def split_compound_tokens(text: str, tokens: list[Token]) -> list[Token]:
    """The tokens, with those such as `PRIMARY KEY`, which the tokenizer reads as one, split."""
    words: list[Token] = []
    for token in tokens:
        if token.token_type in (*_STRINGS, TokenType.IDENTIFIER) or not any(map(str.isspace, token.text)):
            words.append(token)
            continue
        for match in re.finditer(r"\S+", text[token.start : token.end + 1]):
            start = token.start + match.start()
            end = token.start + match.end() - 1
            words.append(Token(TokenType.VAR, match.group(), token.line, token.col - (token.end - end), start, end))
    return words


def word_of(token: Token) -> str:
    """A token's text in upper case; empty for a string or a quoted name, which are no words of SQL."""
    return "" if token.token_type in (*_STRINGS, TokenType.IDENTIFIER) else token.text.upper()


class TokenReader:
    """Walks the tokens of one statement; every error names line and position as Snowflake's do."""

    def __init__(self, text: str, tokens: list[Token], index: int = 0) -> None:
        self.text = text
        self.tokens = tokens
        self.index = index

    @property
    def done(self) -> bool:
        return self.index >= len(self.tokens)

    def word(self, ahead: int = 0) -> str:
        """The next token's text in upper case; an empty string at the end, or for a quoted name or a string."""
        index = self.index + ahead
        return word_of(self.tokens[index]) if index < len(self.tokens) else ""

    def accept(self, *words: str) -> bool:
        """Consume the words if all of them come next."""
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
        """An identifier: upper-cased unless quoted."""
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
        """A name of one to three parts."""
        parts = [self.name()]
        while self.accept("."):
            parts.append(self.name())
        if len(parts) > 3:
            raise self.unexpected()
        return parts

    def names(self) -> tuple[str, ...]:
        """A parenthesised list of identifiers."""
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
        """A property's value: a string, a number, a word."""
        sign = "-" if self.accept("-") else ""
        return sign + self.take().text

    def source(self, first: int, last: int) -> str:
        """The text between two tokens, both included."""
        if first > last:
            raise self.unexpected()
        return self.text[self.tokens[first].start : self.tokens[last].end + 1]

    def skip_parentheses(self) -> None:
        """Skip to behind the parenthesis that matches the next one."""
        self.expect("(")
        depth = 1
        while depth:
            word = self.take().text
            depth += (word == "(") - (word == ")")
