"""The probe and `loadgen connections test` against a real server."""

from __future__ import annotations

import json

from loadgen.snowflake import driver
from loadgen.snowflake.connect import probe
from loadgen.snowflake.failure import describe
from loadgen.snowflake.profile_lookup import EMBEDDED_ADDRESS

PASSWORD = "planted-Passw0rd-7193"


def test_a_probe_returns_the_user_and_round_trip_times(profile, database):
    found = probe(profile)

    assert (found.user, found.database, found.schema, found.warehouse) == ("LOADGEN", database, "PUBLIC", "COMPUTE_WH")
    assert found.server_version
    assert found.account
    assert len(found.round_trips_ms) == 5
    assert all(value > 0 for value in found.round_trips_ms)


def test_the_command_line_tests_the_embedded_connection(shell, server):
    done = shell.run("connections", "test", "-c", "embedded", **{EMBEDDED_ADDRESS: server.address})

    facts = dict(line.split("  ", 1) for line in done.stdout.splitlines())
    assert (done.returncode, done.stderr) == (0, "")
    assert facts["host"].strip() == server.address
    assert facts["user"].strip() == "LOADGEN"
    assert facts["driver version"].strip() == driver.version()
    assert facts["round trip"].strip().startswith("p50 ")


def test_the_command_line_answers_in_json(shell, server):
    done = shell.run("connections", "test", "-c", "embedded", "--format", "json", **{EMBEDDED_ADDRESS: server.address})

    facts = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    assert (facts["connection"], facts["host"], facts["account"]) == ("embedded", server.address, "EMBEDDED")
    assert len(facts["round_trip_ms"]["tries"]) == 5


def test_a_section_of_the_users_file_connects_and_its_password_stays_secret(shell, server, database):
    shell.write(
        f'[mine]\naccount = "acct"\nuser = "ann"\npassword = "{PASSWORD}"\nhost = "127.0.0.1"\nport = {server.port}\n'
        f'protocol = "http"\ndatabase = "{database}"\nschema = "PUBLIC"\nwarehouse = "BENCH_WH"\n'
    )

    good = shell.run("--debug", "connections", "test", "-c", "mine", "--format", "json")
    server.fault(match="/session/v1/login-request", kind="error", errno=390100, sqlstate="28000",
                 message=f"Incorrect username or password was specified: {PASSWORD}")  # fmt: skip
    bad = shell.run("--debug", "connections", "test", "-c", "mine")

    facts = json.loads(good.stdout)
    assert good.returncode == 0
    assert (facts["user"], facts["database"], facts["warehouse"]) == ("ANN", database, "BENCH_WH")
    assert bad.returncode == 3
    assert "or password is wrong" in bad.stderr
    for output in (good.stdout, good.stderr, bad.stdout, bad.stderr):
        assert PASSWORD not in output


def test_an_unreachable_server_ends_the_command_with_3(shell, closed_port):
    done = shell.run("connections", "test", "-c", "embedded", **{EMBEDDED_ADDRESS: f"127.0.0.1:{closed_port}"})

    assert done.returncode == 3
    assert done.stdout == ""
    assert done.stderr.startswith(f"error: no embedded server answers at 127.0.0.1:{closed_port}")
    assert done.stderr.splitlines()[-1].startswith(f"hint: Start the server, or unset {EMBEDDED_ADDRESS}")
    assert "Traceback" not in done.stderr


def test_a_failure_while_testing_is_reported_in_one_line(shell, server):
    server.fault(match="CURRENT_VERSION", kind="http_status", status=503)

    done = shell.run("connections", "test", "-c", "embedded", **{EMBEDDED_ADDRESS: server.address})

    assert done.returncode == 3
    assert "logged in, but the first statement failed" in done.stderr
    assert "503" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_log_of_a_session_shows_no_password_no_sql_and_no_binds(shell, server):
    """Below WARNING the driver 4.x writes statements and their values; loadgen does not let it."""
    code = """
import logging, sys
logging.basicConfig(level=logging.DEBUG, stream=sys.stderr)
from loadgen.snowflake import driver
from loadgen.snowflake.connect import close, connect
from loadgen.snowflake.profile_lookup import find_profile
from loadgen.snowflake.settings import load_settings
profile = find_profile("mine")
connection = connect(profile, load_settings(profile, major=driver.major(), statement_limit_s=20, tag="t"))
print(connection.cursor().execute("SELECT ? AS PLANTED_SQL", ("planted-bind",)).fetchall())
close(connection)
"""
    shell.write(
        f'[mine]\naccount = "acct"\nuser = "ann"\npassword = "{PASSWORD}"\nhost = "127.0.0.1"\nport = {server.port}\n'
        'protocol = "http"\n'
    )

    done = shell.python("-P", "-c", code)

    assert (done.returncode, done.stdout) == (0, "[('planted-bind',)]\n")
    for planted in (PASSWORD, "PLANTED_SQL", "planted-bind"):
        assert planted not in done.stderr


def test_no_description_of_a_failure_shows_a_secret(server, open_connection):
    from loadgen.log import Secret

    secret = Secret("planted-token-4711-abcdef")
    cursor = open_connection().cursor()

    try:
        cursor.execute(f'SELECT 1 / 0 AS "{secret.reveal()}" FROM NO_SUCH_TABLE_{secret.reveal().replace("-", "_")}')
    except Exception as error:
        text = describe(error)

    assert "planted-token" not in text
