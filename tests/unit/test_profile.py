"""Connections are found as the Snowflake CLI finds them, every field knows its origin, and no secret is ever shown."""

import os
import stat
import traceback
from pathlib import Path

import pytest

from loadgen.errors import ConfigurationError, LoadgenError
from loadgen.log import Secret
from loadgen.snowflake.configfile import config_folder
from loadgen.snowflake.credential import credentials
from loadgen.snowflake.lookup import find_profile, known_profiles
from loadgen.snowflake.profile import Profile, is_loopback

PASSWORD = "planted-Passw0rd-7193"
NOWHERE = Path("/nonexistent/token")


class Home:
    """A user's home folder with real files in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.folder = path / ".snowflake"
        self.folder.mkdir()
        self.environ = {"HOME": str(path)}

    def write(self, name: str, text: str, mode: int = 0o600) -> Path:
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        path.chmod(mode)
        return path

    def find(self, name: str | None = None, **variables: str) -> Profile:
        return find_profile(name, environ={**self.environ, **variables}, spcs_token_file=NOWHERE)


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path)


def section(name: str, **values: str) -> str:
    fields = {"account": "myorg-acct", "user": "ann", "password": PASSWORD} | values
    return "\n".join([f"[{name}]", *(f'{key} = "{value}"' for key, value in fields.items()), ""])


# --- which connection ------------------------------------------------------------------------------------------------


def test_the_name_given_beats_all_defaults(home):
    home.write("connections.toml", section("a") + section("b") + section("default"))
    home.write("config.toml", 'default_connection_name = "b"\n')

    assert home.find("a", SNOWFLAKE_DEFAULT_CONNECTION_NAME="b").name == "a"
    assert home.find(SNOWFLAKE_DEFAULT_CONNECTION_NAME="a").name == "a"
    assert home.find().name == "b"


def test_without_any_choice_the_section_default_is_taken(home):
    home.write("connections.toml", section("a") + section("default"))

    assert home.find().name == "default"


def test_connections_toml_replaces_the_connections_of_config_toml(home):
    home.write("config.toml", section("connections.old"))
    assert home.find("old").origin("account") == f"{home.folder / 'config.toml'} [connections.old]"

    home.write("connections.toml", section("new"))
    assert home.find("new").origin("account") == f"{home.folder / 'connections.toml'} [new]"
    with pytest.raises(ConfigurationError, match="there is no connection 'old'"):
        home.find("old")


def test_the_variable_snowflake_connections_replaces_both_files(home):
    home.write("connections.toml", section("filed"))

    profile = home.find("inline", SNOWFLAKE_CONNECTIONS=section("inline"))

    assert profile.origin("user") == "$SNOWFLAKE_CONNECTIONS [inline]"


def test_an_unknown_name_is_answered_with_the_known_ones_and_the_nearest(home):
    home.write("connections.toml", section("prod") + section("staging"))

    with pytest.raises(ConfigurationError) as caught:
        home.find("prd")

    assert "prod, staging, embedded" in str(caught.value)
    assert str(home.folder) in str(caught.value)
    assert caught.value.remedy == "Did you mean 'prod'?"


def test_a_default_that_does_not_exist_says_where_it_was_set(home):
    config = home.write("config.toml", 'default_connection_name = "gone"\n')

    with pytest.raises(ConfigurationError, match=f"'gone'.*from {config}"):
        home.find()


def test_no_connection_at_all_says_how_to_choose_one(home):
    with pytest.raises(ConfigurationError) as caught:
        home.find()

    assert "no connection was chosen" in str(caught.value)
    assert "-c" in caught.value.remedy


# --- which value -----------------------------------------------------------------------------------------------------


def test_each_field_comes_from_the_strongest_source_and_says_so(home):
    file = home.write("connections.toml", section("dev", role="FILE_ROLE", schema="FILE_SCHEMA"))
    variables = {
        "SNOWFLAKE_CONNECTIONS_DEV_ROLE": "SPECIFIC_ROLE",
        "SNOWFLAKE_ROLE": "GENERIC_ROLE",
        "SNOWFLAKE_SCHEMA": "GENERIC_SCHEMA",
        "SNOWFLAKE_WAREHOUSE": "GENERIC_WH",
    }

    profile = find_profile(
        "dev", environ={**home.environ, **variables}, overrides={"database": "OVERRIDDEN", "role": None}
    )

    assert {key: profile.text(key) for key in ("database", "role", "schema", "warehouse")} == {
        "database": "OVERRIDDEN",
        "role": "SPECIFIC_ROLE",
        "schema": "FILE_SCHEMA",
        "warehouse": "GENERIC_WH",
    }
    assert [profile.origin(key) for key in ("database", "role", "schema", "warehouse", "region")] == [
        "override",
        "$SNOWFLAKE_CONNECTIONS_DEV_ROLE",
        f"{file} [dev]",
        "$SNOWFLAKE_WAREHOUSE",
        None,
    ]


def test_a_variable_belongs_to_the_connection_with_the_longest_name(home):
    home.write("connections.toml", section("dev") + section("dev_eu"))

    short = home.find("dev", SNOWFLAKE_CONNECTIONS_DEV_EU_USER="eve")
    long = home.find("dev_eu", SNOWFLAKE_CONNECTIONS_DEV_EU_USER="eve")

    assert (short.text("user"), short.warnings) == ("ann", ())
    assert long.text("user") == "eve"


def test_variables_alone_make_a_named_connection(home):
    profile = home.find(
        "ci",
        SNOWFLAKE_CONNECTIONS_CI_ACCOUNT="acct",
        SNOWFLAKE_CONNECTIONS_CI_USER="robot",
        SNOWFLAKE_CONNECTIONS_CI_PASSWORD=PASSWORD,
        SNOWFLAKE_CONNECTIONS_CI_PORT="8443",
    )

    assert (profile.text("user"), profile.fields["port"].value) == ("robot", 8443)


def test_generic_variables_alone_are_the_connection_environment(home):
    variables = {"SNOWFLAKE_ACCOUNT": "acct", "SNOWFLAKE_USER": "robot", "SNOWFLAKE_PASSWORD": PASSWORD}

    assert home.find(**variables).name == "environment"
    assert home.find("environment", **variables).text("user") == "robot"


def test_snowflake_host_of_a_container_is_not_mixed_into_other_connections(home):
    home.write("connections.toml", section("elsewhere"))

    assert home.find("elsewhere", SNOWFLAKE_HOST="inside.example").host == "myorg-acct.snowflakecomputing.com"


def test_empty_variables_and_values_count_as_unset(home):
    home.write("connections.toml", section("dev", role=""))

    assert home.find("dev", SNOWFLAKE_ROLE="", SNOWFLAKE_CONNECTIONS_DEV_USER="").text("user") == "ann"


def test_keys_may_be_written_in_any_case_and_under_the_names_others_use(home):
    home.write("connections.toml", '[dev]\nACCOUNT = "a"\nUserName = "ann"\nprivate_key_path = "~/k.p8"\n')

    profile = home.find("dev")

    assert profile.text("user") == "ann"
    assert profile.text("private_key_file") == str(home.path / "k.p8")
    assert (profile.authenticator, profile.origin("authenticator")) == (
        "SNOWFLAKE_JWT",
        "follows from private_key_file",
    )


def test_unknown_keys_are_warned_about_and_keys_loadgen_decides_are_set_aside(home):
    home.write("connections.toml", section("dev", warehous="W", login_timeout="9"))

    profile = home.find("dev")

    assert len(profile.warnings) == 1
    assert "warehous" in profile.warnings[0]
    assert "did you mean warehouse?" in profile.warnings[0]
    assert profile.unused == (f"login_timeout ({home.folder / 'connections.toml'} [dev])",)


def test_session_parameters_of_a_section_are_kept(home):
    home.write("connections.toml", section("dev") + "[dev.session_parameters]\nweek_start = 1\n")

    assert dict(home.find("dev").session_parameters) == {"WEEK_START": 1}


@pytest.mark.parametrize(("variable", "value"), [("PORT", "eighty"), ("OAUTH_DISABLE_PKCE", "maybe")])
def test_a_variable_of_the_wrong_kind_is_named(home, variable, value):
    home.write("connections.toml", section("dev"))

    with pytest.raises(ConfigurationError, match=f"SNOWFLAKE_CONNECTIONS_DEV_{variable}"):
        home.find("dev", **{f"SNOWFLAKE_CONNECTIONS_DEV_{variable}": value})


# --- where the files are ---------------------------------------------------------------------------------------------


def test_snowflake_home_moves_the_folder(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / ".snowflake").mkdir()

    environ = {"HOME": str(tmp_path), "SNOWFLAKE_HOME": str(tmp_path / "elsewhere")}

    assert config_folder(environ) == tmp_path / "elsewhere"
    assert config_folder({**environ, "SNOWFLAKE_HOME": "~/elsewhere"}) == tmp_path / "elsewhere"
    assert config_folder({"HOME": str(tmp_path)}) == tmp_path / ".snowflake"


@pytest.mark.parametrize(
    ("platform", "environ", "expected"),
    [
        ("linux", {}, ".config/snowflake"),
        ("linux", {"XDG_CONFIG_HOME": "{home}/xdg"}, "xdg/snowflake"),
        ("linux", {"SNOWFLAKE_HOME": "{home}/missing"}, ".config/snowflake"),
        ("darwin", {}, "Library/Application Support/snowflake"),
        ("win32", {"LOCALAPPDATA": "{home}/Local"}, "Local/snowflake"),
        ("win32", {}, "AppData/Local/snowflake"),
    ],
)
def test_without_the_folder_it_is_the_platforms_place(tmp_path, platform, environ, expected):
    filled = {key: value.format(home=tmp_path) for key, value in environ.items()}

    assert config_folder({"HOME": str(tmp_path), **filled}, platform=platform) == tmp_path / expected


def test_the_driver_agrees_about_the_folder(tmp_path):
    """The places are the driver's; asked in a process of its own, because it decides at import."""
    import subprocess
    import sys

    code = "from snowflake.connector.config_manager import CONFIG_MANAGER as m; print(m.file_path)"
    for folder, variables in ((".snowflake", {}), (".config/snowflake", {}), ("other", {"SNOWFLAKE_HOME": "other"})):
        home = tmp_path / folder.replace("/", "-").strip(".")
        (home / folder).mkdir(parents=True)
        environ = {"HOME": str(home), "PATH": os.environ["PATH"]}
        environ |= {key: str(home / value) for key, value in variables.items()}
        said = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
        assert Path(said.stdout.strip()).parent == config_folder(environ)


# --- who may touch the files -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [0o666, 0o620, 0o602, 0o660])
@pytest.mark.parametrize("name", ["connections.toml", "config.toml"])
def test_a_file_that_others_can_change_is_refused_with_the_command_that_helps(home, name, mode):
    home.write("connections.toml", section("dev"))
    path = home.write(name, "" if name == "config.toml" else section("dev"), mode)

    with pytest.raises(ConfigurationError) as caught:
        home.find("dev")

    assert str(path) in str(caught.value)
    assert f"{mode:04o}" in str(caught.value)
    assert caught.value.remedy == f"Run: chmod 600 {path}"


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604])
def test_a_file_that_others_can_read_is_warned_about(home, mode):
    path = home.write("connections.toml", section("dev"), mode)

    assert home.find("dev").warnings == (
        f"the connections file {path} can be read by others (mode {mode:04o}); run: chmod 600 {path}",
    )
    assert home.find("dev", SF_SKIP_TOKEN_FILE_PERMISSIONS_VERIFICATION="true").warnings == ()


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_a_private_file_is_taken_without_a_word(home, mode):
    home.write("connections.toml", section("dev"), mode)

    assert home.find("dev").warnings == ()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_file_of_another_user_is_refused(home):
    path = home.write("connections.toml", section("dev"))
    os.chown(path, 12345, 12345)

    with pytest.raises(ConfigurationError, match="belongs to another user"):
        home.find("dev")


def test_the_chmod_line_survives_a_path_with_blanks(tmp_path):
    (tmp_path / "my home").mkdir()
    spaced = Home(tmp_path / "my home")
    spaced.write("connections.toml", section("dev"), 0o666)

    with pytest.raises(ConfigurationError) as caught:
        spaced.find("dev")

    assert caught.value.remedy.endswith(f"'{spaced.folder / 'connections.toml'}'")


# --- what the files say ----------------------------------------------------------------------------------------------


def test_broken_toml_is_located_without_showing_the_line(home):
    home.write("connections.toml", f"[dev]\npassword = {PASSWORD}\n")

    with pytest.raises(ConfigurationError) as caught:
        home.find("dev")

    assert "line 2, column 12" in str(caught.value)
    assert PASSWORD not in "".join(traceback.format_exception(caught.value))


def test_text_that_is_not_utf8_is_located(home):
    (home.folder / "connections.toml").write_bytes(b"[dev]\nuser = '\xff'\n")
    (home.folder / "connections.toml").chmod(0o600)

    with pytest.raises(ConfigurationError, match=r"not UTF-8 text \(line 2\)"):
        home.find("dev")


def test_a_value_outside_a_section_is_warned_about(home):
    home.write("connections.toml", 'default_connection_name = "dev"\n' + section("dev"))

    assert "default_connection_name stands outside a section" in home.find("dev").warnings[0]


def test_a_byte_order_mark_is_no_problem(home):
    home.write("connections.toml", "\ufeff" + section("dev"))

    assert home.find("dev").text("user") == "ann"


# --- what cannot work ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ({"account": ""}, "account is missing"),
        ({"account": "https://a.snowflakecomputing.com"}, "is an address"),
        ({"account": "a.snowflakecomputing.com"}, "is an address"),
        ({"host": "https://a.example"}, "is not a host name"),
        ({"host": "a b"}, "is not a host name"),
        ({"host": "db.example", "protocol": "http"}, "would send the credentials in clear"),
        ({"host": "127.0.0.1.example", "protocol": "http"}, "would send the credentials in clear"),
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
def test_what_cannot_work_is_refused_before_connecting(home, values, what):
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

    assert "ask a person" in home.find("dev").warnings[0]


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


def test_the_embedded_server_is_found_by_its_address_whatever_the_files_say(home):
    home.write("connections.toml", "not toml at all", 0o666)

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


def test_without_an_embedded_server_the_error_says_how_to_start_one(home):
    with pytest.raises(ConfigurationError) as caught:
        home.find("embedded")

    assert "loadgen embedded serve" in caught.value.remedy


@pytest.mark.parametrize("address", ["8085", "127.0.0.1", "127.0.0.1:", "example.com:80", "127.0.0.1:http"])
def test_an_embedded_address_must_be_of_this_machine(home, address):
    with pytest.raises(ConfigurationError, match="not an address of this machine"):
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

    with pytest.raises(ConfigurationError, match="can be changed by others") as caught:
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
def test_an_encrypted_key_without_the_right_passphrase_says_so(home, keys, passphrase):
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
