"""A measured connection never tries twice, no connection waits for ever, and the driver knows every option."""

import json
import logging
from types import MappingProxyType

import pytest

from loadgen.log import Secret
from loadgen.snowflake import driver
from loadgen.snowflake.driver import limit_driver_logging, prepare_environment, user_environment
from loadgen.snowflake.failure import NotRetried
from loadgen.snowflake.profile import (
    KNOWN_OPTIONS,
    PASSED_OPTIONS,
    SECRET_OPTIONS,
    ConnectionProfile,
    ProfileField,
    Value,
)
from loadgen.snowflake.settings import (
    QUERY_TAG_MAX,
    ConnectionSettings,
    control_settings,
    load_settings,
    probe_settings,
    query_tag,
)

MAJORS = pytest.mark.parametrize("major", [4, 5])


def profile(session_parameters: dict[str, Value] | None = None, **values: Value) -> ConnectionProfile:
    fields: dict[str, Value] = {"account": "acct", "user": "ann", "password": Secret("planted-Passw0rd-7193")}
    return ConnectionProfile(
        name="dev",
        fields=MappingProxyType({key: ProfileField(value, "test") for key, value in (fields | values).items()}),
        session_parameters=MappingProxyType(session_parameters or {}),
    )


def load(major: int, **options) -> ConnectionSettings:
    return load_settings(profile(), major=major, **{"statement_limit_s": 30, "tag": "t", **options})


def every_kind(major: int, of: ConnectionProfile) -> list[ConnectionSettings]:
    return [
        load_settings(of, major=major, statement_limit_s=30, tag="t"),
        control_settings(of, major=major, tag="t"),
        probe_settings(of, major=major),
    ]


# --- what every connection has ---------------------------------------------------------------------------------------


@MAJORS
def test_every_connection_binds_on_the_server_and_commits_each_statement(major):
    for settings in every_kind(major, profile()):
        assert settings.arguments["paramstyle"] == "qmark"
        assert settings.arguments["autocommit"] is True
        assert settings.arguments["login_timeout"] == 15
        assert settings.arguments["application"] == "loadgen"
        assert settings.arguments["client_session_keep_alive"] is False
        assert settings.arguments["client_store_temporary_credential"] is False


@MAJORS
def test_every_session_is_in_utc_silent_and_dies_with_its_client(major):
    for settings in every_kind(major, profile({"TIMEZONE": "Asia/Tokyo", "AUTOCOMMIT": False, "WEEK_START": 1})):
        session = settings.arguments["session_parameters"]
        assert {key: session[key] for key in ("TIMEZONE", "AUTOCOMMIT", "ABORT_DETACHED_QUERY")} == {
            "TIMEZONE": "UTC",
            "AUTOCOMMIT": True,
            "ABORT_DETACHED_QUERY": True,
        }
        assert session["CLIENT_TELEMETRY_ENABLED"] is False
        assert session["WEEK_START"] == 1


@MAJORS
def test_no_secret_is_among_the_settings(major):
    guarded = profile(token=Secret("planted-token-1"), proxy_password=Secret("planted-proxy"), proxy=Secret("planted"))

    for settings in every_kind(major, guarded):
        assert SECRET_OPTIONS.isdisjoint(settings.arguments)
        assert not any(isinstance(value, Secret) for value in settings.arguments.values())
        assert "planted" not in repr(settings)


@MAJORS
def test_credentials_are_stored_on_disk_only_when_the_profile_asks_for_it(major):
    settings = probe_settings(profile(client_store_temporary_credential=True), major=major)

    assert settings.arguments["client_store_temporary_credential"] is True


# --- load ------------------------------------------------------------------------------------------------------------


@MAJORS
def test_a_load_session_is_measured_without_the_result_cache_and_with_a_limit(major):
    session = load(major).arguments["session_parameters"]

    assert session["USE_CACHED_RESULT"] is False
    assert session["STATEMENT_TIMEOUT_IN_SECONDS"] == 30
    assert session["QUERY_TAG"] == "t"
    assert {"READ_LATEST_WRITES", "HYBRID_TABLE_LOCK_TIMEOUT"}.isdisjoint(session)


@MAJORS
def test_a_scenario_may_add_session_parameters_but_not_bend_the_measurement(major):
    wanted: dict[str, Value] = {"week_start": 1, "timezone": "Asia/Tokyo", "USE_CACHED_RESULT": True, "QUERY_TAG": "x"}

    session = load(major, session=wanted).arguments["session_parameters"]

    assert session["WEEK_START"] == 1
    assert (session["TIMEZONE"], session["USE_CACHED_RESULT"], session["QUERY_TAG"]) == ("UTC", False, "t")
    assert load(major, use_cached_result=True).arguments["session_parameters"]["USE_CACHED_RESULT"] is True


def test_load_on_5_has_one_attempt_and_finite_limits():
    arguments = load(5).arguments

    assert {key: arguments[key] for key in arguments if "timeout" in key or "attempts" in key} == {
        "login_timeout": 15,
        "connect_timeout": 5,
        "query_timeout": 35,
        "request_timeout": 10,
        "retry_max_attempts": 1,
        "logout_total_timeout_seconds": 2,
        "logout_max_attempts": 1,
    }
    assert arguments["enable_server_session_keep_alive_auto_detection"] is False
    assert load(5).socket_timeout_s is None


def test_load_on_4_is_limited_by_the_socket_and_not_by_a_thread_per_statement():
    settings = load(4)

    assert "network_timeout" not in settings.arguments
    assert settings.arguments["socket_timeout"] == 15  # while logging in
    assert settings.socket_timeout_s == 35  # afterwards
    assert settings.arguments["platform_detection_timeout_seconds"] == 0


def test_the_policy_of_4_ends_the_retrying_before_the_second_attempt():
    pauses = load(4).arguments["backoff_policy"]()

    assert next(pauses) == 0  # taken when a request begins
    with pytest.raises(NotRetried):
        next(pauses)  # taken before it would be sent again


# --- control ---------------------------------------------------------------------------------------------------------


@MAJORS
def test_a_control_session_sees_the_newest_rows_and_does_not_wait_for_locks(major):
    session = control_settings(profile(), major=major, tag="c").arguments["session_parameters"]

    assert session["READ_LATEST_WRITES"] is True
    assert session["HYBRID_TABLE_LOCK_TIMEOUT"] == 5
    assert session["STATEMENT_TIMEOUT_IN_SECONDS"] == 8
    assert "USE_CACHED_RESULT" not in session


def test_a_control_session_lets_the_driver_repeat_nothing():
    """A write whose response was lost must be looked up, not repeated by a layer that does not know the statement."""
    on_5 = control_settings(profile(), major=5, tag="c")
    on_4 = control_settings(profile(), major=4, tag="c")

    assert (on_5.arguments["retry_max_attempts"], on_5.arguments["query_timeout"]) == (1, 10)
    assert (on_4.socket_timeout_s, "network_timeout" in on_4.arguments) == (10, False)
    policy = on_4.arguments["backoff_policy"]()
    next(policy)
    with pytest.raises(NotRetried):
        next(policy)


@MAJORS
def test_a_longer_control_statement_gets_longer_limits(major):
    settings = control_settings(profile(), major=major, tag="c", statement_limit_s=600)

    assert settings.arguments["session_parameters"]["STATEMENT_TIMEOUT_IN_SECONDS"] == 600
    assert 602 in (settings.arguments.get("query_timeout"), settings.socket_timeout_s)


# --- from the profile ------------------------------------------------------------------------------------------------


@MAJORS
def test_identity_goes_through_with_the_types_the_driver_wants(major):
    arguments = probe_settings(
        profile(host="h.example", port="8443", warehouse="W", role="R", authenticator="oauth"), major=major
    ).arguments

    assert (arguments["host"], arguments["port"]) == ("h.example", 8443)
    assert (arguments["warehouse"], arguments["role"], arguments["authenticator"]) == ("W", "R", "OAUTH")
    assert "database" not in arguments


@MAJORS
def test_a_region_becomes_part_of_the_account(major):
    arguments = probe_settings(profile(region="eu-west-1"), major=major).arguments

    assert arguments["account"] == "acct.eu-west-1"
    assert "region" not in arguments


@MAJORS
def test_an_identity_providers_address_keeps_its_spelling(major):
    arguments = probe_settings(profile(authenticator="https://Okta.example/x"), major=major).arguments

    assert arguments["authenticator"] == "https://Okta.example/x"


@pytest.mark.parametrize(("major", "port"), [(4, "3128"), (5, 3128)])
def test_options_pass_only_to_the_driver_that_knows_them(major, port):
    given = profile(
        secondary_roles="NONE", proxy_host="p", proxy_port=3128, ocsp_fail_open=True, custom_root_store_path="/r"
    )

    arguments = probe_settings(given, major=major).arguments

    assert (arguments["secondary_roles"], arguments["proxy_port"]) == ("NONE", port)
    assert ("ocsp_fail_open" in arguments) is (major == 4)
    assert ("custom_root_store_path" in arguments) is (major == 5)


def test_no_proxy_stands_between_us_and_this_machine():
    assert probe_settings(profile(host="127.0.0.1"), major=5).arguments["use_proxy_env"] is False
    assert "use_proxy_env" not in probe_settings(profile(), major=5).arguments


# --- tags ------------------------------------------------------------------------------------------------------------


def test_a_query_tag_is_json_of_bounded_length():
    tag = query_tag(run="20261115-0200-orders-7f3a", worker="worker-1", phase="MEASUREMENT", step=3)

    assert json.loads(tag) == {
        "app": "loadgen",
        "run": "20261115-0200-orders-7f3a",
        "worker": "worker-1",
        "phase": "MEASUREMENT",
        "step": 3,
    }
    assert len(tag) < QUERY_TAG_MAX
    assert " " not in tag


# --- against the installed driver ------------------------------------------------------------------------------------


def known_to_the_driver() -> set[str]:
    if driver.major() >= 5:
        from snowflake.connector.connection_config import ConnectionConfig  # type: ignore[import-not-found,unused-ignore]

        return {*ConnectionConfig._all_field_names(), *ConnectionConfig._LEGACY_REWRITES}
    from snowflake.connector.connection import DEFAULT_CONFIGURATION  # type: ignore[attr-defined,unused-ignore]

    return set(DEFAULT_CONFIGURATION)


def test_the_installed_driver_knows_every_option_that_is_set_or_passed():
    major = driver.major()
    set_by_us = {key for settings in every_kind(major, profile(host="127.0.0.1")) for key in settings.arguments}

    assert set_by_us | PASSED_OPTIONS[major] <= known_to_the_driver()


def test_every_option_of_the_installed_driver_has_a_place():
    second_spelling_of_the_host = {"ssl", "server_url"}  # warned about as unknown, and not used

    assert known_to_the_driver() - KNOWN_OPTIONS == second_spelling_of_the_host & known_to_the_driver()


# --- the door to the driver ------------------------------------------------------------------------------------------


def test_a_proxy_in_the_environment_does_not_catch_this_machine():
    environ = {"https_proxy": "http://proxy.example", "NO_PROXY": "intern.example,localhost"}

    prepare_environment(environ)

    assert environ["NO_PROXY"] == "intern.example,localhost,127.0.0.1,::1"
    assert set(environ["no_proxy"].split(",")) == {"intern.example", "localhost", "127.0.0.1", "::1"}


def test_without_a_proxy_the_environment_is_left_alone():
    environ = {"SNOWFLAKE_DISABLE_PLATFORM_DETECTION": "false", "PATH": "/usr/bin"}
    before = dict(environ)

    prepare_environment(environ)

    assert user_environment(environ) == before


def test_the_driver_logs_neither_statements_nor_binds_at_any_level():
    limit_driver_logging()

    for name in ("snowflake.connector", "snowflake.connector.cursor", "snowflake.connector._core.x"):
        assert not logging.getLogger(name).isEnabledFor(logging.INFO)
