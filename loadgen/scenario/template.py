"""Texts that came from the environment, how they are shown, and how they are stored.

They show as the template they were written as. They are stored as they were resolved, because other machines have other
variables; only secrets stay references, to be filled in where they are used. So in a stored scenario every text is a
template, too: `${NAME}` stands for a secret, `$${` for a literal `${`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from loadgen.errors import ConfigurationError
from loadgen.log import is_secret_name, register_secret

TEXT_MAX = 1_000_000  # characters of one text with its variables filled in


_STORED = re.compile(r"\$\$\{|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)\}")


class EnvironmentText(str):
    """A text with values of the environment in it. Its repr, and so every log of it, is the template.

    Version 4 of the driver binds by the exact type, so bind `str(value)`; texts that `frozen.thaw` gives are plain.
    """

    __slots__ = ("stored", "template")
    template: str  # with every variable as ${NAME}
    stored: str  # with secrets only

    def __new__(cls, value: str, template: str, stored: str) -> EnvironmentText:
        made = super().__new__(cls, value)
        made.template, made.stored = template, stored
        return made

    @property
    def secret(self) -> bool:
        """Is the value of a secret in it, judged by the name of its variable?"""
        return any(is_secret_name(match["name"] or "") for match in _STORED.finditer(self.template))

    def __repr__(self) -> str:
        return repr(self.template)

    def __reduce__(self) -> tuple[type[EnvironmentText], tuple[str, str, str]]:
        return EnvironmentText, (str(self), self.template, self.stored)


def template_of(text: str) -> str:
    """The text as it is stored."""
    return text.stored if isinstance(text, EnvironmentText) else escape(text)


def variables_in(stored: str) -> set[str]:
    """The variables that a stored text needs where it is used."""
    return {match["name"] for match in _STORED.finditer(stored) if match["name"]}


def escape(text: str) -> str:
    return text.replace("${", "$${")


def resolve_template(template: str, environ: Mapping[str, str] | None) -> str:
    """The text a template stands for. Without an environment the variables stay as they are, for showing."""

    def value(match: re.Match[str]) -> str:
        name = match["name"]
        if name is None:
            return "${"
        if environ is None:
            return match[0]
        if name not in environ:
            raise ConfigurationError(
                f"the scenario of this run needs the environment variable {name}, and it is not set here",
                remedy=f"Set {name} where the worker runs, to the value it had where the run was started.",
            )
        if is_secret_name(name):
            register_secret(environ[name])
        return environ[name]

    return _STORED.sub(value, template) if "${" in template else template
