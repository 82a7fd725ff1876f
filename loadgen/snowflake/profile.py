"""One named connection: its fields, and where each of them came from.

A profile is found by `profile_lookup`, checked here, and turned into arguments by `settings` and `connect`. Secrets are
`Secret`s throughout: printing a profile, an error about it, or its JSON shows ****.
"""

import ipaddress
from collections.abc import Mapping
from dataclasses import field, replace
from types import MappingProxyType
from typing import Self

from loadgen.errors import ConfigurationError
from loadgen.log import MASK, Secret, printable
from loadgen.snowflake import connection_options
from loadgen.values import dataclass

Value = str | int | float | bool | tuple[str, ...] | Secret

EMBEDDED = "embedded"  # reserved: the embedded server
ENVIRONMENT = "environment"  # reserved: a connection made of SNOWFLAKE_* variables alone
DOMAIN = "snowflakecomputing.com"

# What each authenticator needs; one of the alternatives in a group is enough.
_NEEDS: dict[str, tuple[tuple[str, ...], ...]] = {
    "SNOWFLAKE": (("user",), ("password",)),
    "SNOWFLAKE_JWT": (("user",), ("private_key_file", "private_key_raw", "private_key")),
    "OAUTH": (("token", "token_file_path"),),
    "PROGRAMMATIC_ACCESS_TOKEN": (("token", "token_file_path"),),
    "WORKLOAD_IDENTITY": (("workload_identity_provider",),),
    "OAUTH_CLIENT_CREDENTIALS": (("oauth_client_id",), ("oauth_client_secret",), ("oauth_token_request_url",)),
    "OAUTH_AUTHORIZATION_CODE": (),
    "EXTERNALBROWSER": (("user",),),
    "USERNAME_PASSWORD_MFA": (("user",), ("password",)),
    "OKTA": (("user",), ("password",)),
}
INTERACTIVE = frozenset({"OAUTH_AUTHORIZATION_CODE", "EXTERNALBROWSER", "USERNAME_PASSWORD_MFA"})
_UNATTENDED = "a key pair (private_key_file), a programmatic access token or workload identity"


@dataclass(frozen=True, slots=True)
class ProfileField:
    """One setting of a connection."""

    value: Value
    origin: str  # "/home/me/.snowflake/connections.toml [prod]", "$SNOWFLAKE_USER", "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionProfile:
    """A connection by name. `fields` has canonical keys only (see `connection_options`)."""

    name: str
    fields: Mapping[str, ProfileField]
    session_parameters: Mapping[str, Value] = field(default_factory=lambda: MappingProxyType({}))
    warnings: tuple[str, ...] = ()  # sentences for the user
    unused: tuple[str, ...] = ()  # options of the section that loadgen decides itself

    def text(self, key: str) -> str | None:
        """A field that is no secret, as text."""
        found = self.fields.get(key)
        if found is None:
            return None
        return MASK if isinstance(found.value, Secret) or key in connection_options.SECRET else str(found.value)

    def reveal(self, key: str) -> str | None:
        """A secret in clear, for the driver only."""
        found = self.fields.get(key)
        if found is None:
            return None
        return found.value.reveal() if isinstance(found.value, Secret) else str(found.value)

    @property
    def authenticator(self) -> str:
        """In upper case; `OKTA` for an identity provider's address."""
        text = (self.text("authenticator") or "SNOWFLAKE").upper()
        return "OKTA" if text.startswith("HTTPS://") else text

    @property
    def host(self) -> str:
        """The configured host, or the one that follows from the account."""
        account, region = self.text("account") or "", self.text("region")
        derived = f"{account}.{region}" if region and "." not in account else account
        return self.text("host") or f"{derived}.{DOMAIN}"

    @property
    def address(self) -> str:
        """Host and port for people; the port only where it is unusual."""
        port = self.text("port")
        return self.host if port in (None, "443") else f"{self.host}:{port}"

    @property
    def is_embedded(self) -> bool:
        return self.name == EMBEDDED

    @property
    def is_local(self) -> bool:
        """Does it stay on this machine?"""
        return is_loopback(self.host)

    def origin(self, key: str) -> str | None:
        """Where a field came from."""
        found = self.fields.get(key)
        return found.origin if found else None

    def with_fields(self, origin: str, **values: str | None) -> Self:
        """The same connection with some fields of IDENTITY replaced; None leaves a field as it is."""
        foreign = values.keys() - set(connection_options.IDENTITY)
        assert not foreign, f"not replaceable: {sorted(foreign)}"
        changed = {key: ProfileField(value, origin) for key, value in values.items() if value is not None}
        return replace(self, fields=MappingProxyType({**self.fields, **changed}))

    def check(self) -> Self:
        """Raise if it cannot work, naming everything that is wrong."""
        problems = [*_where_problems(self), *_who_problems(self)]
        if problems:
            raise ConfigurationError(
                f"connection {printable(self.name, 80)!r}: {'; '.join(what for what, _ in problems)}",
                remedy=" ".join(dict.fromkeys(remedy for _, remedy in problems)),
            )
        return self


def is_loopback(host: str) -> bool:
    """Is this this very machine? Decided by the text alone; names other than localhost are not looked up."""
    bare = host.strip("[]").lower()
    try:
        return ipaddress.ip_address(bare).is_loopback
    except ValueError:
        return bare == "localhost"


def _where_problems(profile: ConnectionProfile) -> list[tuple[str, str]]:
    problems = []
    account, host = profile.text("account"), profile.text("host")
    protocol, port = (profile.text("protocol") or "https").lower(), profile.text("port")
    if not account:
        problems.append(("account is missing", f'Set account = "myorg-myaccount" for [{printable(profile.name, 80)}].'))
    elif "://" in account or DOMAIN in account.lower():
        problems.append((f"account {printable(account, 80)!r} is an address", f"Write only the part before .{DOMAIN}."))
    if host and not _is_host(host):
        problems.append((f"host {printable(host, 80)!r} is not a host name", "Write host without https:// and path."))
    if protocol not in ("http", "https"):
        problems.append((f"protocol {printable(protocol, 20)!r} is unknown", "Remove protocol; https is the default."))
    elif protocol == "http" and not is_loopback(profile.host):
        problems.append(
            (
                f"protocol http to {printable(profile.host, 80)} would send the credentials in clear",
                "Remove protocol; plain http is for this machine only.",
            )
        )
    if port is not None and not (port.isdigit() and 0 < int(port) < 65536):
        problems.append(
            (f"port {printable(port, 20)!r} is not a port", "Write a number from 1 to 65535, or remove it.")
        )
    for key, dangerous in connection_options.INSECURE.items():
        if key in profile.fields and profile.fields[key].value is dangerous:
            problems.append((f"{key} switches the check of the server's certificate off", f"Remove {key}."))
    return problems


def _who_problems(profile: ConnectionProfile) -> list[tuple[str, str]]:
    name = profile.authenticator
    if name not in _NEEDS:
        known = connection_options.nearest(name, _NEEDS)
        guess = f"Did you mean {known}? " if known else ""
        return [(f"authenticator {printable(name, 60)!r} is not supported", f"{guess}Unattended: {_UNATTENDED}.")]
    problems = []
    for alternatives in _NEEDS[name]:
        if not any(key in profile.fields for key in alternatives):
            problems.append((f"{' or '.join(alternatives)} is missing", _how_to_supply(profile, alternatives)))
    tokenless = not {"token", "token_file_path"} & profile.fields.keys()
    if (
        name == "WORKLOAD_IDENTITY"
        and (profile.text("workload_identity_provider") or "").upper() == "OIDC"
        and tokenless
    ):
        problems.append(("token or token_file_path is missing", "Workload identity of kind OIDC needs the token."))
    return problems


def _how_to_supply(profile: ConnectionProfile, alternatives: tuple[str, ...]) -> str:
    if "password" in alternatives and {"token", "token_file_path"} & profile.fields.keys():
        return 'There is a token: set authenticator = "PROGRAMMATIC_ACCESS_TOKEN", or "OAUTH".'
    variable = "_".join(["SNOWFLAKE_CONNECTIONS", printable(profile.name, 80).upper(), alternatives[0].upper()])
    return f"Set {alternatives[0]} in the section, or the variable {variable}."


def _is_host(text: str) -> bool:
    return "/" not in text and "@" not in text and not any(character.isspace() for character in text)
