"""Logging in: what the client asks for, and what it gets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from loadgen.embedded import session_parameters
from loadgen.embedded.authentication import Authenticator
from loadgen.embedded.sql_errors import SqlError
from loadgen.embedded.translate.dialect import tokens_of
from loadgen.embedded.translate.token_reader import TokenReader

DEFAULT_ROLE = "ACCOUNTADMIN"
DEFAULT_WAREHOUSE = "COMPUTE_WH"
REFUSED = SqlError(390100, "08001", "Incorrect username or password was specified.")
_CREDENTIALS = ("PASSWORD", "TOKEN", "RAW_SAML_RESPONSE", "PASSCODE")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginRequest:
    """A login request, read."""

    user: str
    role: str
    database: str | None
    schema: str | None
    warehouse: str | None
    session_parameters: dict[str, session_parameters.Value] = field(default_factory=dict)
    client: dict[str, Any] = field(default_factory=dict)


def read_login_request(message: dict[str, Any], query: dict[str, list[str]], entrance: Authenticator) -> LoginRequest:
    """What the client asks for. A login without any credential is refused even where passwords are not checked."""
    data = message.get("data") or {}
    if not isinstance(data, dict):
        raise REFUSED
    user = str(data.get("LOGIN_NAME") or "")
    oauth = str(data.get("AUTHENTICATOR") or "").upper() in ("OAUTH", "WORKLOAD_IDENTITY")
    if not any(data.get(name) for name in _CREDENTIALS) or not (user or oauth):
        raise REFUSED
    if not entrance.accepts(data.get("PASSWORD"), data.get("TOKEN")):
        raise REFUSED
    given = data.get("SESSION_PARAMETERS") or {}
    if not isinstance(given, dict):
        raise SqlError(390101, "08001", "SESSION_PARAMETERS is not an object.")
    return LoginRequest(
        user=(user or "SERVICE").upper(),
        role=_name(_first(query, "roleName")) or DEFAULT_ROLE,
        database=_name(_first(query, "databaseName")),
        schema=_name(_first(query, "schemaName")),
        warehouse=_name(_first(query, "warehouse")),
        session_parameters=_known(given),
        client={"app": data.get("CLIENT_APP_ID"), "version": data.get("CLIENT_APP_VERSION")},
    )


def _known(given: dict[str, Any]) -> dict[str, session_parameters.Value]:
    """Parameters the server knows, checked; drivers also send settings of their own, which are ignored."""
    found: dict[str, session_parameters.Value] = {}
    for key, value in given.items():
        name = str(key).upper()
        if name in session_parameters.PARAMETERS and value is not None:
            found[name] = session_parameters.checked(name, value)
    return found


def _first(query: dict[str, list[str]], name: str) -> str | None:
    values = query.get(name)
    return values[0] if values and values[0] else None


def _name(text: str | None) -> str | None:
    """An identifier from the login request: upper-cased unless quoted."""
    if text is None:
        return None
    if not (text.startswith('"') or text.replace("_", "a").replace("$", "a").isalnum()):
        return text  # a name that would need quotes is taken as it is
    return TokenReader(text, tokens_of(text)).name()
