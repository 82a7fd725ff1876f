"""Login: reads the request, checks the password, and keeps the password file."""

from __future__ import annotations

import base64
import binascii
import hmac
import os
import secrets
import stat
from dataclasses import field
from pathlib import Path
from typing import Any

from loadgen.embedded import session
from loadgen.embedded.datadir import PASSWORD_FILE, no_link
from loadgen.embedded.sql_errors import SqlError
from loadgen.embedded.translate.dialect import tokens_of
from loadgen.embedded.translate.token_reader import TokenReader
from loadgen.errors import EmbeddedServerError
from loadgen.log import Secret
from loadgen.values import dataclass


def read_private(path: Path, what: str, bytes_max: int, remedy: str) -> bytes:
    """The first `bytes_max` bytes. Raises EmbeddedServerError, FileNotFoundError when there is none."""
    try:
        with open(path, "rb", opener=no_link) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
                who = f"owner {status.st_uid}, mode {status.st_mode & 0o777:04o}"
                raise EmbeddedServerError(f"the {what} {path} is not yours alone ({who})", remedy=remedy)
            return file.read(bytes_max)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise EmbeddedServerError(f"cannot read the {what} {path}: {error.strerror}", remedy=remedy) from error


def write_private(path: Path, content: bytes) -> None:
    """Readers see the old content or the new one, also after a power loss. Raises OSError."""
    draft = path.with_name(f".{path.name}.tmp")  # the data directory has one owner: no other process writes this
    draft.unlink(missing_ok=True)
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(fd, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(fd)
        draft.replace(path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise


PASSWORD_BYTES = 32  # random ones; hexadecimal in the file


class Authenticator:
    """Checks passwords; without one every login is accepted."""

    def __init__(self, password: Secret | None = None) -> None:
        self._password = password.reveal().encode() if password is not None else None

    def accepts(self, *credentials: object) -> bool:
        """Whether one of the credentials of a login is right."""
        given = [text for text in credentials if isinstance(text, str)]
        return self._password is None or any(self._is_password(text) for text in given)

    def admits(self, token: str) -> bool:
        """Whether a request for `/__loadgen/…` is authorized: `token` is what follows `Basic`."""
        if self._password is None:
            return True
        try:
            pair = base64.b64decode(token, validate=True).decode()
        except (binascii.Error, ValueError):
            return False
        return self._is_password(pair.partition(":")[2])

    @property
    def checks(self) -> bool:
        return self._password is not None

    def _is_password(self, text: str) -> bool:
        assert self._password is not None
        return hmac.compare_digest(text.encode("utf-8", "replace"), self._password)


def load_or_create_password(folder: Path) -> Secret:
    """The password in the folder's file, made when there is none. This process owns the folder."""
    path = folder / PASSWORD_FILE
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except FileExistsError:
        return _read(path)
    with open(fd, "w", encoding="ascii") as file:
        file.write(secrets.token_hex(PASSWORD_BYTES) + "\n")
    return _read(path)


def _read(path: Path) -> Secret:
    remedy = f"Remove {path}: the next start makes another one."
    text = read_private(path, "password file", 1_000, remedy).strip()
    if len(text) != 2 * PASSWORD_BYTES or not text.isalnum():
        raise EmbeddedServerError(f"the password file {path} holds no password of this server", remedy=remedy)
    return Secret(text.decode("ascii"))


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
    session_parameters: dict[str, session.Value] = field(default_factory=dict)
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
        role=_name(query, "roleName") or DEFAULT_ROLE,
        database=_name(query, "databaseName"),
        schema=_name(query, "schemaName"),
        warehouse=_name(query, "warehouse"),
        session_parameters=_known(given),
        client={"app": data.get("CLIENT_APP_ID"), "version": data.get("CLIENT_APP_VERSION")},
    )


def _known(given: dict[str, Any]) -> dict[str, session.Value]:
    """Parameters the server knows, checked; other settings that drivers send are ignored."""
    found: dict[str, session.Value] = {}
    for key, value in given.items():
        name = str(key).upper()
        if name in session.PARAMETERS and value is not None:
            found[name] = session.checked(name, value)
    return found


def _name(query: dict[str, list[str]], parameter: str) -> str | None:
    values = query.get(parameter)
    return stored_name(values[0]) if values and values[0] else None


def stored_name(text: str) -> str:
    """An identifier of a login or of a model: upper-cased unless quoted. Raises SqlError."""
    if not (text.startswith('"') or text.replace("_", "a").replace("$", "a").isalnum()):
        return text  # a name that needs quotes is taken literally
    return TokenReader(text, tokens_of(text)).name()
