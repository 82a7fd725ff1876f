"""Which settings of a connection there are, and who decides them.

A section of connections.toml may hold any option of the driver. loadgen sorts them once, here:

    IDENTITY     who and where                        from the profile
    CREDENTIAL   what proves it                       from the profile, read when connecting
    PASSED       how to reach it (proxy, TLS, roles)  from the profile, where the installed driver knows the option
    OWNED        timeouts, retries, binds, sessions   from loadgen alone: they decide whether a measurement is true,
                                                      and each connection must be a separate session
    INSECURE     options that switch TLS checks off   refused

The lists are those of driver versions 4.8 and 5.2.
"""

from collections.abc import Iterable
from difflib import get_close_matches


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


IDENTITY = (
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

CREDENTIAL = _words(
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
PASSED = {
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

OWNED = _words(
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

# The value with which the option takes a protection away.
INSECURE = {"tls_skip_verify": True, "verify_certificates": False, "verify_hostname": False}

ALIASES = {
    "username": "user",
    "private_key_path": "private_key_file",
    "private_key_file_pwd": "private_key_passphrase",
    "private_key_password": "private_key_passphrase",
    "client_request_mfa_token": "client_store_temporary_credential",
    "insecure_mode": "disable_ocsp_checks",
    "wif_host": "workload_identity_host",
    "passcodeinpassword": "passcode_in_password",
}

SECRET = _words(
    """
    password passcode token private_key private_key_raw private_key_passphrase oauth_client_secret proxy proxy_password
    """
)

# Environment variables are text; these options are not.
INTEGER = _words(
    """
    port proxy_port client_prefetch_threads jwt_timeout authentication_timeout
    client_memory_limit external_browser_timeout crl_connection_timeout_ms crl_read_timeout_ms crl_download_max_size
    crl_cache_removal_delay_days crl_cache_cleanup_interval_hours ocsp_root_certs_dict_lock_timeout
    crl_cache_cleanup_interval crl_connection_timeout crl_http_timeout crl_max_download_size
    crl_on_disk_cache_removal_delay crl_validity_time
    """
)
BOOLEAN = _words(
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

# What a variable SNOWFLAKE_<KEY> may supply when no section does: the Snowflake CLI's list, and the token itself.
# host, port and protocol are not among them: in a container Snowflake sets SNOWFLAKE_HOST for its own connection.
GENERIC = (
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

KEPT = frozenset(IDENTITY) | CREDENTIAL | PASSED[4] | PASSED[5] | frozenset(INSECURE) | {"session_parameters"}
KNOWN = KEPT | OWNED | frozenset(ALIASES)


def canonical(key: str) -> str:
    """The one name loadgen uses for an option: lower case, aliases resolved."""
    lowered = key.strip().lower()
    return ALIASES.get(lowered, lowered)


def nearest(word: str, candidates: Iterable[str]) -> str | None:
    """The candidate that was probably meant, if one is close."""
    by_lower = {candidate.lower(): candidate for candidate in sorted(candidates)}
    found = get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[found[0]] if found else None
