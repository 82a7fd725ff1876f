"""Who may enter: the password of a server that checks one, and the file of the data directory that keeps it.

Without a password any user with any credential may enter; the server listens on loopback only. With one, logins need it
as password or token, and `/__loadgen/…` needs it as HTTP Basic (any user name). It is random, made when the file is
missing, and stays the same over restarts, so that clients of a restarted server can go on.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import os
import secrets
from pathlib import Path

from loadgen.embedded.private_file import read_private
from loadgen.errors import EmbeddedServerError
from loadgen.log import Secret

PASSWORD_FILE = "password"
PASSWORD_BYTES = 32  # random ones; hexadecimal in the file


class Authenticator:
    """The check of passwords; without one everybody may enter."""

    def __init__(self, password: Secret | None = None) -> None:
        self._password = password.reveal().encode() if password is not None else None

    def accepts(self, *credentials: object) -> bool:
        """Whether one of the credentials of a login will do."""
        given = [text for text in credentials if isinstance(text, str)]
        return self._password is None or any(self._is_password(text) for text in given)

    def admits(self, token: str) -> bool:
        """Whether a request for `/__loadgen/…` may pass: `token` is what follows `Basic`."""
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
    """The password in the folder's file, made when there is none. The folder belongs to this process."""
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
