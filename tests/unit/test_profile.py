"""Connections are found as the Snowflake CLI finds them, and every field knows its origin."""

from __future__ import annotations

import os
import traceback
from pathlib import Path

import pytest

from loadgen.errors import ConfigurationError
from loadgen.snowflake.profile_lookup import config_folder, find_profile
from tests.unit.profile_builders import PASSWORD, Home, section

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


def test_without_any_configuration_only_the_embedded_server_is_named(home):
    with pytest.raises(ConfigurationError, match=r"no connections are configured in .*; built in: embedded$"):
        home.find("prod")


def test_an_unknown_name_is_answered_with_the_known_ones_and_the_nearest(home):
    home.write("connections.toml", section("prod") + section("staging"))

    with pytest.raises(ConfigurationError) as caught:
        home.find("prd")

    assert "prod, staging; built in: embedded" in str(caught.value)
    assert str(home.folder) in str(caught.value)
    assert caught.value.remedy == "Did you mean 'prod'?"


def test_the_hint_for_an_unknown_name_names_the_file_to_create(home):
    with pytest.raises(ConfigurationError) as caught:
        home.find("prod")

    path = home.folder / "connections.toml"
    assert caught.value.remedy == f"Create {path} with a section [prod], readable only by you (chmod 600)."


def test_the_hint_for_an_unknown_name_names_the_file_that_is_read(home):
    config = home.write("config.toml", section("connections.staging"))
    with pytest.raises(ConfigurationError) as in_config:
        home.find("other")

    file = home.write("connections.toml", section("staging"))
    with pytest.raises(ConfigurationError) as in_connections:
        home.find("other")

    with pytest.raises(ConfigurationError) as in_variable:
        home.find("other", SNOWFLAKE_CONNECTIONS=section("inline"))

    assert in_config.value.remedy == f"Add [connections.other] to {config}."
    assert in_connections.value.remedy == f"Add [other] to {file}."
    assert "SNOWFLAKE_CONNECTIONS" in in_variable.value.remedy


def test_a_default_that_does_not_exist_is_reported_with_its_source(home):
    config = home.write("config.toml", 'default_connection_name = "gone"\n')

    with pytest.raises(ConfigurationError, match=f"'gone'.*from {config}"):
        home.find()


def test_without_any_connection_there_is_a_hint_how_to_choose_one(home):
    with pytest.raises(ConfigurationError) as caught:
        home.find()

    assert "no connection was chosen" in str(caught.value)
    assert "-c" in caught.value.remedy


def test_without_a_default_the_hint_names_the_embedded_server_too(home):
    """The runs of the examples are there, and a file of connections does not change that."""
    home.write("connections.toml", section("prod"))

    with pytest.raises(ConfigurationError) as caught:
        home.find()

    assert "no connection was chosen" in str(caught.value)
    assert "-c embedded" in caught.value.remedy


# --- which value -----------------------------------------------------------------------------------------------------


def test_each_field_comes_from_the_strongest_source_and_names_it(home):
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
        "derived from private_key_file",
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
    """The paths are the driver's; a separate process is asked, because the driver decides at import."""
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
        f"the connections file {path} is readable by other users (mode {mode:04o}); run: chmod 600 {path}",
    )
    assert home.find("dev", SF_SKIP_TOKEN_FILE_PERMISSIONS_VERIFICATION="true").warnings == ()


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_a_private_file_is_used_without_a_warning(home, mode):
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


# --- the content of the files ----------------------------------------------------------------------------------------


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

    assert "default_connection_name is outside of a section" in home.find("dev").warnings[0]


def test_a_byte_order_mark_is_no_problem(home):
    home.write("connections.toml", "\ufeff" + section("dev"))

    assert home.find("dev").text("user") == "ann"
