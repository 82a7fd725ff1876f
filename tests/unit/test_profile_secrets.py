"""Impossible settings are reported, and no secret of a connection is ever shown."""

from __future__ import annotations

import stat
import traceback

import pytest

from loadgen.errors import ConfigurationError, LoadgenError
from loadgen.log import Secret
from loadgen.snowflake.connect import credentials
from loadgen.snowflake.profile import is_loopback
from loadgen.snowflake.profile_lookup import find_profile, known_profiles
from tests.unit.profile_builders import NOWHERE, PASSWORD, section

# --- what cannot work ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ({"account": ""}, "account is missing"),
        ({"account": "https://a.snowflakecomputing.com"}, "is a URL"),
        ({"account": "a.snowflakecomputing.com"}, "is a URL"),
        ({"host": "https://a.example"}, "is not a host name"),
        ({"host": "a b"}, "is not a host name"),
        ({"host": "db.example", "protocol": "http"}, "would send credentials unencrypted"),
        ({"host": "127.0.0.1.example", "protocol": "http"}, "would send credentials unencrypted"),
        ({"protocol": "ftp"}, "protocol 'ftp' is unknown"),
        ({"port": "99999"}, "is not a port"),
        ({"user": ""}, "user is missing"),
        ({"password": ""}, "password is missing"),
        ({"authenticator": "SNOWFLAKE_JWT"}, "private_key_file or private_key_raw or private_key is missing"),
        ({"authenticator": "oauth"}, "token or token_file_path is missing"),
        ({"authenticator": "WORKLOAD_IDENTITY"}, "workload_identity_provider is missing"),
        ({"authenticator": "WORKLOAD_IDENTITY", "workload_identity_provider": "oidc"}, "token or token_file_path"),
        ({"authenticator": "SNOWFLAKE_JTW"}, "is not supported"),
        ({"authenticator": "https://x.okta.com", "password": ""}, "password is missing"),
    ],
)
def test_impossible_settings_are_rejected_before_connecting(home, values, what):
    home.write("connections.toml", section("dev", **values))

    with pytest.raises(ConfigurationError, match=what) as caught:
        home.find("dev")

    assert caught.value.remedy
    assert PASSWORD not in str(caught.value) + caught.value.remedy


@pytest.mark.parametrize("line", ["tls_skip_verify = true", "verify_certificates = false", "verify_hostname = false"])
def test_switching_the_certificate_check_off_is_refused(home, line):
    home.write("connections.toml", section("dev") + line + "\n")

    with pytest.raises(ConfigurationError, match="certificate"):
        home.find("dev")


def test_every_problem_is_named_at_once(home):
    home.write("connections.toml", section("dev", account="", user="", protocol="ftp"))

    with pytest.raises(ConfigurationError, match=r"account is missing; protocol .* user is missing"):
        home.find("dev")


def test_a_token_without_authenticator_asks_which_kind(home):
    home.write("connections.toml", section("dev", password="", token="tok-planted-1"))

    with pytest.raises(ConfigurationError) as caught:
        home.find("dev")

    assert "PROGRAMMATIC_ACCESS_TOKEN" in caught.value.remedy


def test_an_authenticator_that_asks_a_person_is_warned_about(home):
    home.write("connections.toml", section("dev", authenticator="externalbrowser"))

    assert "may prompt" in home.find("dev").warnings[0]


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("::1", True),
        ("[::1]", True),
        ("localhost", True),
        ("LOCALHOST", True),
        ("0.0.0.0", False),
        ("10.0.0.1", False),
        ("localhost.example", False),
        ("", False),
    ],
)
def test_loopback_is_decided_by_the_text_alone(host, expected):
    assert is_loopback(host) is expected


# --- the embedded server and the container ---------------------------------------------------------------------------


def test_the_embedded_server_is_found_by_its_address_with_any_files(home):
    home.write("connections.toml", "not toml at all", 0o666)

    found = "127.0.0.1:8086"
    own = home.find("embedded", LOADGEN_EMBEDDED_ADDRESS=found, LOADGEN_EMBEDDED_FOUND=found)
    assert own.origin("host") == "the embedded server"

    profile = home.find("embedded", LOADGEN_EMBEDDED_ADDRESS="127.0.0.1:8085")

    assert {key: profile.text(key) for key in ("host", "port", "protocol", "account", "user")} == {
        "host": "127.0.0.1",
        "port": "8085",
        "protocol": "http",
        "account": "embedded",
        "user": "loadgen",
    }
    assert profile.reveal("password") == "embedded"
    assert profile.is_embedded


def test_without_an_embedded_server_there_is_a_hint_how_to_start_one(home):
    with pytest.raises(ConfigurationError) as caught:
        home.find("embedded")

    assert "loadgen embedded serve" in caught.value.remedy


@pytest.mark.parametrize("address", ["8085", "127.0.0.1", "127.0.0.1:", "example.com:80", "127.0.0.1:http"])
def test_an_embedded_address_must_be_of_this_machine(home, address):
    with pytest.raises(ConfigurationError, match="not an address on this machine"):
        home.find("embedded", LOADGEN_EMBEDDED_ADDRESS=address)


def test_inside_a_container_the_token_file_is_used_and_read_at_every_connect(tmp_path):
    token_file = tmp_path / "token"
    token_file.write_text("first-planted-token\n")
    environ = {
        "HOME": str(tmp_path),
        "SNOWFLAKE_HOST": "inside.example",
        "SNOWFLAKE_ACCOUNT": "acct",
        "SNOWFLAKE_DATABASE": "DB",
    }

    profile = find_profile(None, environ=environ, spcs_token_file=token_file)
    first = credentials(profile, major=5, environ=environ)
    token_file.write_text("second-planted-token\n")
    second = credentials(profile, major=5, environ=environ)

    assert (profile.authenticator, profile.host, profile.text("database")) == ("OAUTH", "inside.example", "DB")
    assert (first["token"], second["token"]) == ("first-planted-token", "second-planted-token")
    assert "first-planted-token" not in repr(profile)


# --- secrets ---------------------------------------------------------------------------------------------------------


SECRETS = {
    "password": PASSWORD,
    "token": "planted-token-5521",
    "private_key_raw": "-----BEGIN PRIVATE KEY-----\nplanted-key-8842\n-----END PRIVATE KEY-----",
    "private_key_passphrase": "planted-phrase-3310",
    "oauth_client_secret": "planted-client-6627",
    "proxy_password": "planted-proxy-1190",
    "passcode": "planted-code-4471",
}


def test_no_secret_is_in_the_text_of_a_profile(home):
    values = {key: value.replace("\n", "\\n") for key, value in SECRETS.items()}
    home.write("connections.toml", section("dev", authenticator="SNOWFLAKE", **values))

    profile = home.find("dev")

    shown = f"{profile!r} {profile} {dict(profile.fields)} {[profile.text(key) for key in SECRETS]}"
    assert [secret for secret in SECRETS.values() if secret in shown or secret.split("\n")[-1] in shown] == []
    assert all(isinstance(profile.fields[key].value, Secret) for key in SECRETS)
    assert profile.reveal("password") == PASSWORD


@pytest.mark.parametrize("content", ["planted-not-a-key", SECRETS["private_key_raw"]])
def test_no_part_of_a_bad_key_is_in_the_error_about_it(home, content):
    key = home.path / "key.p8"
    key.write_text(content)
    key.chmod(0o600)
    home.write("connections.toml", section("dev", private_key_file=str(key), authenticator="SNOWFLAKE_JWT"))

    with pytest.raises(ConfigurationError) as caught:
        credentials(home.find("dev"), major=5, environ=home.environ)

    assert "planted" not in "".join(traceback.format_exception(caught.value))
    assert str(key) in str(caught.value)


def test_a_key_file_that_others_can_change_is_refused(home):
    key = home.path / "key.p8"
    key.write_text(SECRETS["private_key_raw"])
    key.chmod(0o666)
    home.write("connections.toml", section("dev", private_key_file=str(key), authenticator="SNOWFLAKE_JWT"))

    with pytest.raises(ConfigurationError, match="is writable by other users") as caught:
        credentials(home.find("dev"), major=5, environ=home.environ)

    assert caught.value.remedy == f"Run: chmod 600 {key}"


@pytest.mark.parametrize("what", ["missing", "empty"])
def test_a_token_file_that_is_missing_or_empty_is_named(home, what):
    path = home.path / "token"
    if what == "empty":
        path.write_text("\n")
        path.chmod(0o600)
    home.write("connections.toml", section("dev", authenticator="OAUTH", token_file_path=str(path)))

    with pytest.raises(ConfigurationError, match=str(path)):
        credentials(home.find("dev"), major=5, environ=home.environ)


# --- key pairs -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def keys():
    """One key, in clear and encrypted."""
    from cryptography.hazmat.primitives import serialization as s
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    locks = {"clear": s.NoEncryption(), "encrypted": s.BestAvailableEncryption(b"open-sesame")}
    return {
        name: key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, lock).decode() for name, lock in locks.items()
    }


@pytest.mark.parametrize("kind", ["clear", "encrypted"])
@pytest.mark.parametrize("place", ["file", "variable"])
def test_a_private_key_is_read_from_a_file_or_a_variable(home, keys, kind, place):
    variables = {"PRIVATE_KEY_PASSPHRASE": "open-sesame"}
    if place == "file":
        path = home.path / "key.p8"
        path.write_text(keys[kind])
        path.chmod(stat.S_IRUSR)
        home.write("connections.toml", section("dev", password="", private_key_file=str(path)))
    else:
        home.write("connections.toml", section("dev", password=""))
        variables["SNOWFLAKE_CONNECTIONS_DEV_PRIVATE_KEY_RAW"] = keys[kind].replace("\n", "\\n")

    profile = home.find("dev", **variables)
    arguments = credentials(profile, major=5, environ=home.environ)

    assert profile.authenticator == "SNOWFLAKE_JWT"
    assert list(arguments) == ["private_key"]
    assert arguments["private_key"].key_size == 2048


@pytest.mark.parametrize("passphrase", [None, "wrong-planted-phrase"])
def test_an_encrypted_key_without_the_right_passphrase_is_reported(home, keys, passphrase):
    path = home.path / "key.p8"
    path.write_text(keys["encrypted"])
    path.chmod(0o600)
    home.write("connections.toml", section("dev", password="", private_key_file=str(path)))
    variables = {"PRIVATE_KEY_PASSPHRASE": passphrase} if passphrase else {}

    with pytest.raises(ConfigurationError) as caught:
        credentials(home.find("dev", **variables), major=5, environ=home.environ)

    assert "passphrase" in f"{caught.value} {caught.value.remedy}"
    assert "wrong-planted-phrase" not in "".join(traceback.format_exception(caught.value))


def test_only_the_credential_of_the_authenticator_is_handed_over(home):
    home.write("connections.toml", section("dev", authenticator="PROGRAMMATIC_ACCESS_TOKEN", token="tok-planted-2"))

    assert credentials(home.find("dev"), major=4, environ=home.environ) == {"token": "tok-planted-2"}


# --- lists -----------------------------------------------------------------------------------------------------------


def test_the_list_holds_every_connection_even_broken_ones(home):
    home.write("connections.toml", section("good") + section("no_user", user="") + '[bad]\naccount = "a"\nport = "x"\n')
    environ = {**home.environ, "SNOWFLAKE_CONNECTIONS_CI_ACCOUNT": "c", "SNOWFLAKE_DEFAULT_CONNECTION_NAME": "good"}

    profiles, default, warnings = known_profiles(environ, spcs_token_file=NOWHERE)

    assert [profile.name for profile in profiles] == ["good", "no_user", "bad", "ci", "embedded"]
    assert default == "good"
    assert warnings == ()
    assert "not a whole number" in profiles[2].warnings[0]


def test_a_default_that_does_not_exist_is_not_marked(home):
    home.write("connections.toml", section("good"))

    _, default, _ = known_profiles(home.environ, spcs_token_file=NOWHERE)

    assert default is None


def test_every_error_of_this_module_is_one_of_ours(home):
    """Hostile names and files end in an error with a remedy, not in a traceback."""
    home.write("connections.toml", '["a.b\\u001b[31m"]\naccount = "x"\n[t]\naccount = { a = 1 }\nuser = [1, 2]\n')

    for name in ("a.b\x1b[31m", "t", "\x00", "x" * 1000, "../../etc/passwd", "%s{0}"):
        with pytest.raises(LoadgenError) as caught:
            home.find(name)
        assert "\x1b" not in str(caught.value) + caught.value.remedy
