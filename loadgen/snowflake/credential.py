"""What proves who we are, read at the moment of connecting.

Files are read anew for every connection: Snowflake replaces a container's token every few minutes, and keys are
rotated under running programs. Everything read here is registered for redaction before the driver sees it.
"""

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loadgen.errors import ConfigurationError
from loadgen.log import Secret, event
from loadgen.snowflake import connection_options
from loadgen.snowflake.config_files import read_private_file
from loadgen.snowflake.profile import ConnectionProfile

log = logging.getLogger(__name__)

_KEY_PAIR = "SNOWFLAKE_JWT"
_TOKEN_USERS = ("OAUTH", "PROGRAMMATIC_ACCESS_TOKEN", "WORKLOAD_IDENTITY")
_FILES_AND_KEYS = frozenset(
    {"token", "token_file_path", "private_key", "private_key_raw", "private_key_file", "private_key_passphrase"}
)


def credentials(profile: ConnectionProfile, *, major: int, environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Arguments for connect() that hold secrets, for this authenticator and this driver. Never log them."""
    arguments: dict[str, Any] = {}
    proxies = connection_options.SECRET & connection_options.PASSED[major]
    for key in connection_options.CREDENTIAL - _FILES_AND_KEYS - {"client_store_temporary_credential"} | proxies:
        if key in profile.fields:
            value = profile.fields[key].value
            arguments[key] = value.reveal() if isinstance(value, Secret) else value
    if profile.authenticator not in ("SNOWFLAKE", "USERNAME_PASSWORD_MFA", "OKTA"):
        arguments.pop("password", None)
    if isinstance(path := arguments.get("workload_identity_impersonation_path"), tuple):
        arguments["workload_identity_impersonation_path"] = list(path)
    if major >= 5 and "workload_identity_host" in arguments:
        arguments["wif_host"] = arguments.pop("workload_identity_host")
    if major < 5:
        arguments.pop("okta_username", None)
    if profile.authenticator == _KEY_PAIR:
        arguments |= _private_key(profile, environ)
    elif profile.authenticator in _TOKEN_USERS:
        arguments |= _token(profile, environ)
    return arguments


def _token(profile: ConnectionProfile, environ: Mapping[str, str]) -> dict[str, Any]:
    path = profile.text("token_file_path")
    if path is None:
        token = profile.reveal("token")
        return {} if token is None else {"token": token}
    content = _read(Path(path), "the token file", environ)
    token = content.decode("utf-8", errors="replace").strip()
    if not token:
        raise ConfigurationError(f"the token file {path} is empty", remedy="Write the token into it, and nothing else.")
    return {"token": Secret(token).reveal()}


def _private_key(profile: ConnectionProfile, environ: Mapping[str, str]) -> dict[str, Any]:
    path = profile.text("private_key_file")
    if path is not None:
        pem, where = _read(Path(path), "the private key", environ), f"the private key {path}"
    elif raw := profile.reveal("private_key_raw"):
        pem, where = raw.replace("\\n", "\n").encode(), f"private_key_raw ({profile.origin('private_key_raw')})"
    else:
        return {"private_key": profile.reveal("private_key")}  # base64 of DER, as both drivers take it
    Secret(pem.decode("utf-8", errors="replace"))
    if b"-----BEGIN" not in pem or b"PRIVATE KEY-----" not in pem:
        raise ConfigurationError(f"{where} is not a private key in PEM form", remedy="Is it the public key, or DER?")
    # A passphrase for a key that has none is an error in the driver; it may be meant for another connection.
    passphrase = profile.reveal("private_key_passphrase") if b"ENCRYPTED" in pem else None
    if b"ENCRYPTED" in pem and passphrase is None:
        raise ConfigurationError(
            f"{where} is encrypted, and there is no passphrase",
            remedy="Set the variable PRIVATE_KEY_PASSPHRASE, or private_key_passphrase in the section.",
        )
    # As an object: both drivers take one, and only so do both read encrypted PEM the same way.
    return {"private_key": _key_object(pem, passphrase, where)}


def _key_object(pem: bytes, passphrase: str | None, where: str) -> object:
    from cryptography.hazmat.primitives.serialization import load_pem_private_key  # comes with the driver

    try:
        return load_pem_private_key(pem, passphrase.encode() if passphrase is not None else None)
    except (ValueError, TypeError):
        pass  # not chained: the exception could quote the key
    raise ConfigurationError(f"{where} cannot be read", remedy="Check its passphrase, and that the file is complete.")


def _read(path: Path, what: str, environ: Mapping[str, str]) -> bytes:
    warnings: list[str] = []
    content = read_private_file(path, what, environ, warnings)
    for warning in warnings:
        event(log, logging.WARNING, "file_too_open", path=path, what=warning)
    return content
