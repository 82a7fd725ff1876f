"""One named connection: its options, and the source of each.

`profile_lookup` finds a profile, this module checks it, `settings` and `connect` turn it into arguments. Secrets are of
type `Secret`: a printed profile, its JSON and error messages show ****.
"""

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from difflib import get_close_matches
from types import MappingProxyType
from typing import Self

from loadgen.errors import ConfigurationError
from loadgen.log import MASK, Secret, printable
from loadgen.values import dataclass

# --- The options of a connection, and which component sets them ------------------------------------------------------
#
# A section of connections.toml may contain any option of the driver. Each option belongs to one group:
#
#     IDENTITY     account, host, user, role, …         from the profile
#     CREDENTIAL   what authenticates the user          from the profile, read when connecting
#     PASSED       network, proxy, TLS, …               from the profile, if the installed driver knows the option
#     OWNED        timeouts, retries, binds, sessions   set by loadgen only: they decide whether a measured time is
#                                                       correct, and each connection must be a separate session
#     INSECURE     options that switch TLS checks off   rejected
#
# The lists are those of driver versions 4.8 and 5.2.


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


IDENTITY_OPTIONS = (
    "account",
    "user",
    "host",
    "port",
    "protocol",
    "region",
    "database",
    "schema",
    "warehouse",
    "role",
    "authenticator",
)

CREDENTIAL_OPTIONS = _words(
    """
    password passcode passcode_in_password token token_file_path private_key private_key_raw private_key_file
    private_key_passphrase okta_username
    workload_identity_provider workload_identity_entra_resource workload_identity_impersonation_path
    workload_identity_aws_use_outbound_token workload_identity_host
    oauth_client_id oauth_client_secret oauth_authorization_url oauth_token_request_url oauth_redirect_uri oauth_scope
    oauth_credentials_in_body oauth_disable_pkce oauth_enable_single_use_refresh_tokens
    client_store_temporary_credential
    """
)

_PASSED_BOTH = _words(
    """
    secondary_roles service_name no_proxy proxy_host proxy_port proxy_user proxy_password
    client_prefetch_threads disable_query_context_cache disable_saml_url_check
    cert_revocation_check_mode allow_certificates_without_crl_url enable_crl_file_cache crl_cache_dir
    crl_cache_start_cleanup crl_cache_validity_hours crl_cache_removal_delay_days crl_cache_cleanup_interval_hours
    crl_connection_timeout_ms crl_read_timeout_ms crl_download_max_size
    """
)
PASSED_OPTIONS = {
    4: _PASSED_BOTH
    | _words(
        """
        disable_ocsp_checks ocsp_fail_open ocsp_response_cache_filename ocsp_root_certs_dict_lock_timeout
        enable_crl_cache oauth_enable_refresh_tokens oauth_socket_uri external_browser_timeout disable_console_login
        enable_stage_s3_privatelink_for_us_east_1
        """
    ),
    5: _PASSED_BOTH
    | _words(
        """
        proxy proxy_scheme use_proxy_env allow_empty_proxy custom_root_store_path min_tls_version max_tls_version
        jwt_timeout authentication_timeout oauth_enable_dpop preserve_underscores_in_hostname use_s3_regional_url
        client_memory_limit disable_parallel_user_prompt crl_check_mode crl_allow_certificates_without_crl_url
        crl_cache_cleanup_interval crl_connection_timeout crl_enable_disk_caching crl_enable_memory_caching
        crl_http_timeout crl_max_download_size crl_on_disk_cache_removal_delay crl_validity_time
        enable_crl_memory_cache
        """
    ),
}

OWNED_OPTIONS = _words(
    """
    application autocommit paramstyle timezone query_tag numpy converter_class auth_class connection_name
    connections_file_path client_session_keep_alive client_session_keep_alive_heartbeat_frequency auto_cleanup
    login_timeout network_timeout socket_timeout query_timeout request_timeout connect_timeout backoff_policy
    retry_max_attempts retry_timeout retry_backoff_base_ms retry_backoff_cap_ms retry_backoff_factor
    retry_backoff_jitter retry_extra_status_codes include_retry_reason enable_retry_reason_in_query_response
    put_get_max_attempts logout_error_strategy logout_max_attempts logout_request_timeout_seconds
    logout_total_timeout_seconds server_session_keep_alive enable_server_session_keep_alive_auto_detection
    platform_detection_timeout_seconds validate_default_parameters serialize_session_operations
    session_id session_token master_token master_validity_in_seconds external_session_id
    log_max_query_length log_query_text log_query_parameters log_imported_packages_in_telemetry
    enable_connection_diag connection_diag_log_path connection_diag_allowlist_path connection_diag_whitelist_path
    internal_application_name internal_application_version client_app_id client_app_version
    arrow_number_to_decimal force_microsecond_precision use_core_arrow interpolate_empty_sequences reuse_results
    client_timestamp_type_mapping client_metadata_request_use_connection_ctx client_out_of_band_telemetry_enabled
    client_fetch_threads client_fetch_use_mp json_result_force_utf8_decoding support_negative_year
    check_arrow_conversion_error_on_every_column debug_arrow_chunk disable_request_pooling use_current_catalog
    gcs_use_downscoped_credential unsafe_file_write unsafe_skip_file_permissions_check consent_cache_id_token
    unsafe_skip_config_file_permissions_check crl_unsafe_skip_file_permissions_check probe_connection dsn
    inject_client_pause iobound_tpe_limit mfa_callback password_callback use_openssl_only
    snowflake_server_dop_cap_for_file_transfer reraise_error_in_file_transfer_work_function
    """
)

# The value with which an option switches a protection off.
INSECURE_OPTIONS = {"tls_skip_verify": True, "verify_certificates": False, "verify_hostname": False}

OPTION_ALIASES = {
    "username": "user",
    "private_key_path": "private_key_file",
    "private_key_file_pwd": "private_key_passphrase",
    "private_key_password": "private_key_passphrase",
    "client_request_mfa_token": "client_store_temporary_credential",
    "insecure_mode": "disable_ocsp_checks",
    "wif_host": "workload_identity_host",
    "passcodeinpassword": "passcode_in_password",
}

SECRET_OPTIONS = _words(
    """
    password passcode token private_key private_key_raw private_key_passphrase oauth_client_secret proxy proxy_password
    """
)

# Options of another type than text: values of environment variables are converted.
INTEGER_OPTIONS = _words(
    """
    port proxy_port client_prefetch_threads jwt_timeout authentication_timeout
    client_memory_limit external_browser_timeout crl_connection_timeout_ms crl_read_timeout_ms crl_download_max_size
    crl_cache_removal_delay_days crl_cache_cleanup_interval_hours ocsp_root_certs_dict_lock_timeout
    crl_cache_cleanup_interval crl_connection_timeout crl_http_timeout crl_max_download_size
    crl_on_disk_cache_removal_delay crl_validity_time
    """
)
BOOLEAN_OPTIONS = _words(
    """
    passcode_in_password client_store_temporary_credential workload_identity_aws_use_outbound_token
    oauth_credentials_in_body oauth_disable_pkce oauth_enable_single_use_refresh_tokens oauth_enable_dpop
    oauth_enable_refresh_tokens disable_query_context_cache disable_saml_url_check allow_certificates_without_crl_url
    enable_crl_file_cache enable_crl_cache crl_cache_start_cleanup disable_ocsp_checks ocsp_fail_open
    disable_console_login use_proxy_env allow_empty_proxy preserve_underscores_in_hostname use_s3_regional_url
    disable_parallel_user_prompt enable_stage_s3_privatelink_for_us_east_1
    crl_allow_certificates_without_crl_url crl_enable_disk_caching crl_enable_memory_caching enable_crl_memory_cache
    tls_skip_verify verify_certificates verify_hostname
    """
)

# Options that a variable SNOWFLAKE_<KEY> supplies when no section does: those of the Snowflake CLI, and `token`.
# host, port and protocol are not among them: in a container Snowflake sets SNOWFLAKE_HOST for its own connection.
VARIABLE_OPTIONS = (
    "account",
    "user",
    "password",
    "authenticator",
    "private_key_file",
    "private_key_path",
    "private_key_raw",
    "private_key_passphrase",
    "token",
    "token_file_path",
    "database",
    "schema",
    "role",
    "warehouse",
    "workload_identity_provider",
    "oauth_client_id",
    "oauth_client_secret",
    "oauth_authorization_url",
    "oauth_token_request_url",
    "oauth_redirect_uri",
    "oauth_scope",
)

KEPT_OPTIONS = (
    frozenset(IDENTITY_OPTIONS)
    | CREDENTIAL_OPTIONS
    | PASSED_OPTIONS[4]
    | PASSED_OPTIONS[5]
    | frozenset(INSECURE_OPTIONS)
    | {"session_parameters"}
)
KNOWN_OPTIONS = KEPT_OPTIONS | OWNED_OPTIONS | frozenset(OPTION_ALIASES)


def canonical_option(key: str) -> str:
    """The name of an option in loadgen: in lower case, with aliases resolved."""
    lowered = key.strip().lower()
    return OPTION_ALIASES.get(lowered, lowered)


def nearest_name(word: str, candidates: Iterable[str]) -> str | None:
    """The most similar candidate, if one is similar enough to be the intended name."""
    by_lower = {candidate.lower(): candidate for candidate in sorted(candidates)}
    found = get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[found[0]] if found else None


# --- A profile -------------------------------------------------------------------------------------------------------

Value = str | int | float | bool | tuple[str, ...] | Secret

EMBEDDED = "embedded"  # reserved: the embedded server
ENVIRONMENT = "environment"  # reserved: a connection from SNOWFLAKE_* variables only
DOMAIN = "snowflakecomputing.com"

# The options that each authenticator needs; one of the alternatives in a group is enough.
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
    """A connection by name. The keys of `fields` are canonical (see canonical_option)."""

    name: str
    fields: Mapping[str, ProfileField]
    session_parameters: Mapping[str, Value] = field(default_factory=lambda: MappingProxyType({}))
    warnings: tuple[str, ...] = ()  # complete sentences
    unused: tuple[str, ...] = ()  # options of the section that only loadgen sets

    def text(self, key: str) -> str | None:
        """The text of a field; **** for a secret."""
        found = self.fields.get(key)
        if found is None:
            return None
        return MASK if isinstance(found.value, Secret) or key in SECRET_OPTIONS else str(found.value)

    def reveal(self, key: str) -> str | None:
        """A field in clear text, for the driver only."""
        found = self.fields.get(key)
        if found is None:
            return None
        return found.value.reveal() if isinstance(found.value, Secret) else str(found.value)

    @property
    def authenticator(self) -> str:
        """The authenticator in upper case; `OKTA` for the URL of an identity provider."""
        text = (self.text("authenticator") or "SNOWFLAKE").upper()
        return "OKTA" if text.startswith("HTTPS://") else text

    @property
    def host(self) -> str:
        """The configured host, or the host derived from the account."""
        account, region = self.text("account") or "", self.text("region")
        derived = f"{account}.{region}" if region and "." not in account else account
        return self.text("host") or f"{derived}.{DOMAIN}"

    @property
    def address(self) -> str:
        """The host, with the port unless it is 443."""
        port = self.text("port")
        return self.host if port in (None, "443") else f"{self.host}:{port}"

    @property
    def is_embedded(self) -> bool:
        return self.name == EMBEDDED

    @property
    def is_local(self) -> bool:
        """Whether the host is this machine."""
        return is_loopback(self.host)

    def origin(self, key: str) -> str | None:
        """The source of a field."""
        found = self.fields.get(key)
        return found.origin if found else None

    def with_fields(self, origin: str, **values: str | None) -> Self:
        """The same connection with other identity options; None leaves an option unchanged."""
        foreign = values.keys() - set(IDENTITY_OPTIONS)
        assert not foreign, f"not replaceable: {sorted(foreign)}"
        changed = {key: ProfileField(value, origin) for key, value in values.items() if value is not None}
        return replace(self, fields=MappingProxyType({**self.fields, **changed}))

    def check(self) -> Self:
        """Raise ConfigurationError with all problems of the profile; else return it."""
        problems = [*_where_problems(self), *_who_problems(self)]
        if problems:
            raise ConfigurationError(
                f"connection {printable(self.name, 80)!r}: {'; '.join(what for what, _ in problems)}",
                remedy=" ".join(dict.fromkeys(remedy for _, remedy in problems)),
            )
        return self


def is_loopback(host: str) -> bool:
    """Whether the host is this machine, decided by its text: names other than localhost are not resolved."""
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
        problems.append((f"account {printable(account, 80)!r} is a URL", f"Write only the part before .{DOMAIN}."))
    if host and not _is_host(host):
        problems.append(
            (f"host {printable(host, 80)!r} is not a host name", "Write the host without https:// and path.")
        )
    if protocol not in ("http", "https"):
        problems.append((f"protocol {printable(protocol, 20)!r} is unknown", "Remove protocol; https is the default."))
    elif protocol == "http" and not is_loopback(profile.host):
        problems.append(
            (
                f"protocol http to {printable(profile.host, 80)} would send credentials unencrypted",
                "Remove protocol; http is only allowed for servers on this machine.",
            )
        )
    if port is not None and not (port.isdigit() and 0 < int(port) < 65536):
        problems.append(
            (f"port {printable(port, 20)!r} is not a port", "Write a number from 1 to 65535, or remove it.")
        )
    for key, dangerous in INSECURE_OPTIONS.items():
        if key in profile.fields and profile.fields[key].value is dangerous:
            problems.append((f"{key} disables the check of the server certificate", f"Remove {key}."))
    return problems


def _who_problems(profile: ConnectionProfile) -> list[tuple[str, str]]:
    name = profile.authenticator
    if name not in _NEEDS:
        known = nearest_name(name, _NEEDS)
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
        problems.append(
            ("token or token_file_path is missing", "Workload identity with the provider OIDC needs a token.")
        )
    return problems


def _how_to_supply(profile: ConnectionProfile, alternatives: tuple[str, ...]) -> str:
    if "password" in alternatives and {"token", "token_file_path"} & profile.fields.keys():
        return 'A token is configured: set authenticator = "PROGRAMMATIC_ACCESS_TOKEN", or "OAUTH".'
    variable = "_".join(["SNOWFLAKE_CONNECTIONS", printable(profile.name, 80).upper(), alternatives[0].upper()])
    return f"Set {alternatives[0]} in the section, or the variable {variable}."


def _is_host(text: str) -> bool:
    return "/" not in text and "@" not in text and not any(character.isspace() for character in text)
