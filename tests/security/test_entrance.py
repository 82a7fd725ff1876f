"""Who may log in to the embedded server, and which data of one user another user gets."""

from __future__ import annotations

import asyncio
import gzip
import http.client
import json
import os
import stat
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loadgen.embedded import wire as protocol
from loadgen.embedded.app import GONE_GRACE_S, TOO_MANY_SESSIONS, App
from loadgen.embedded.client import embedded_server
from loadgen.embedded.datadir import DATA_DIR_VARIABLE, PASSWORD_FILE
from loadgen.embedded.session import Authenticator, ServerSessions, load_or_create_password
from loadgen.embedded.sql_errors import SqlError
from loadgen.errors import EmbeddedServerError
from loadgen.log import Secret
from loadgen.snowflake.profile_lookup import EMBEDDED_ADDRESS, EMBEDDED_PASSWORD_FILE, find_profile
from tests.embedded_server import EmbeddedServer
from tests.process.served import Refused, Server, Wire, copied_data, serving
from tests.processes import PATIENCE_S, reachable_directory, wait_until

LOGIN, QUERY = "/session/v1/login-request", "/queries/v1/query-request"
WHO = {"LOGIN_NAME": "A", "PASSWORD": "any"}


@pytest.fixture(scope="module")
def guarded() -> Iterator[Server]:
    """A server that checks its password."""
    with reachable_directory() as path, serving(copied_data(path / "data"), "--auth") as server:
        server.read_password(server.data_dir)
        yield server


def ask(server: EmbeddedServer, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, bytes]:
    """One request of a program that has no session."""
    connection = http.client.HTTPConnection(server.host, server.port, timeout=PATIENCE_S)
    try:
        connection.request(method, path, body if isinstance(body, bytes | None) else json.dumps(body), headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


# --- the password ----------------------------------------------------------------------------------------------------


def test_a_server_that_checks_passwords_prints_it_and_keeps_it_in_a_private_file(guarded: Server):
    assert guarded.process.stdout is not None
    path = guarded.data_dir / PASSWORD_FILE

    said = guarded.process.stdout.readline()

    assert said == f"passwords are checked; the password is in {path}\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert str(guarded.password) not in said + guarded.errors


@pytest.mark.parametrize("data", [{}, {"PASSWORD": ""}, {"TOKEN": "any"}, {"PASSWORD": ["any"]}, {"PASSCODE": "any"}])
def test_a_wrong_password_is_refused_as_snowflake_does(guarded: Server, data: dict[str, Any]):
    status, body = ask(guarded, "POST", LOGIN, {"data": WHO | data})

    assert status == 200
    assert json.loads(body)["code"] == "390100"


def test_the_password_opens_the_server_as_password_and_as_token(guarded: Server):
    with guarded.connect() as connection:
        assert connection.cursor().execute("SELECT 41 + 1").fetchone() == (42,)
    _, body = ask(guarded, "POST", LOGIN, {"data": WHO | {"TOKEN": guarded.password}})

    assert json.loads(body)["success"] is True


@pytest.mark.parametrize("path", ["stats", "history", "journal", "faults", "services", "hold", "nothing"])
def test_the_server_reveals_nothing_without_the_password(guarded: Server, path: str):
    refused = [
        ask(guarded, "GET", f"/__loadgen/{path}", **headers)[0]
        for headers in ({}, {"Authorization": "Basic dGVzdHM6YW55"}, {"Authorization": "Basic ?"})
    ]

    assert refused == [401, 401, 401]
    assert guarded.ask("/__loadgen/stats")["holders"] == 0


def test_a_session_does_not_open_the_servers_own_paths(guarded: Server):
    wire = Wire(guarded)

    assert wire.post("/__loadgen/faults", b"", "DELETE")[0] == 401


def test_a_command_finds_the_password_of_the_server_that_is_named(guarded: Server):
    environ = {EMBEDDED_ADDRESS: guarded.address, DATA_DIR_VARIABLE: str(guarded.data_dir)}

    with embedded_server(environ):
        profile = find_profile("embedded", environ=environ)
        assert profile.reveal("password") == guarded.password
        assert isinstance(profile.fields["password"].value, Secret)

    assert EMBEDDED_PASSWORD_FILE not in environ


def test_a_command_without_the_password_has_a_hint_what_to_set(guarded: Server, tmp_path: Path):
    environ = {EMBEDDED_ADDRESS: guarded.address, DATA_DIR_VARIABLE: str(tmp_path / "another")}

    with pytest.raises(EmbeddedServerError, match="checks passwords") as caught, embedded_server(environ):
        pass

    assert EMBEDDED_PASSWORD_FILE in str(caught.value.remedy)


def test_the_password_stays_the_same_over_restarts(tmp_path: Path):
    first, second = load_or_create_password(tmp_path), load_or_create_password(tmp_path)

    assert first.reveal() == second.reveal()
    assert first.reveal() not in repr(first)
    assert Authenticator(first).accepts(second.reveal())


def test_a_password_file_that_others_could_read_or_plant_is_refused(tmp_path: Path):
    path = tmp_path / PASSWORD_FILE
    password = load_or_create_password(tmp_path).reveal()
    path.chmod(0o644)
    with pytest.raises(EmbeddedServerError, match="is accessible to other users"):
        load_or_create_password(tmp_path)
    path.rename(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").chmod(0o600)
    path.symlink_to(tmp_path / "elsewhere")

    with pytest.raises(EmbeddedServerError, match="cannot read the password file"):
        load_or_create_password(tmp_path)
    environ = {EMBEDDED_ADDRESS: "127.0.0.1:1", EMBEDDED_PASSWORD_FILE: str(path)}
    with pytest.raises(Exception, match="cannot read the password file"):
        find_profile("embedded", environ=environ)
    path.unlink()
    path.write_text("known\n")
    path.chmod(0o600)
    with pytest.raises(EmbeddedServerError, match="contains no password"):
        load_or_create_password(tmp_path)
    assert password not in str(os.environ)


# --- web pages -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("site", "status"), [("cross-site", 403), ("same-site", 403), ("x", 403), ("none", 200)])
def test_a_request_that_a_web_page_made_is_refused(server: EmbeddedServer, site: str, status: int):
    got = [
        ask(server, "POST", LOGIN, {"data": WHO}, **{"Sec-Fetch-Site": site})[0],
        ask(server, "GET", "/__loadgen/stats", **{"Sec-Fetch-Site": site})[0],
    ]

    assert got == [status, status]


# --- limits ----------------------------------------------------------------------------------------------------------


def test_a_body_before_login_must_be_small(server: EmbeddedServer):
    large = json.dumps({"data": WHO | {"CLIENT_APP_ID": "x" * protocol.LOGIN_BODY_BYTES_MAX}}).encode()
    zipped = gzip.compress(large)

    assert ask(server, "POST", LOGIN, large)[0] == 413
    assert ask(server, "POST", QUERY, large, Authorization='Snowflake Token="guessed"')[0] == 413
    assert ask(server, "POST", LOGIN, zipped, **{"Content-Encoding": "gzip"})[0] == 400
    assert Wire(server).post(QUERY, {"sqlText": "SELECT 1", "more": "x" * len(large)})[0] == 200


def test_one_session_too_many_is_refused_and_idle_ones_go_first():
    class Executor:
        sessions = ServerSessions(limit=2)

        async def close(self, session: Any) -> None:
            self.sessions.close(session)

    app = App.__new__(App)
    app.executor = Executor()  # type: ignore[assignment]
    for _ in range(2):
        app.executor.sessions.open("A", "R", {}).executed = True

    with pytest.raises(SqlError) as caught:
        asyncio.run(app._enforce_session_limit())
    idle = next(iter(app.executor.sessions.by_number.values()))
    idle.used_s = time.monotonic() - protocol.MASTER_VALIDITY_S - 1
    asyncio.run(app._enforce_session_limit())

    assert caught.value.errno == TOO_MANY_SESSIONS
    assert len(app.executor.sessions) == 1
    assert idle.number not in app.executor.sessions.by_number


# --- one user and another --------------------------------------------------------------------------------------------


def query_id_of(wire: Wire, text: str, **more: Any) -> str:
    _, body = wire.post(f"{QUERY}?requestId={uuid.uuid4()}", {"sqlText": text} | more)
    return str(json.loads(body)["data"]["queryId"])


def test_a_result_belongs_to_the_user_who_ran_the_statement(server: EmbeddedServer):
    mine, again, foreign = Wire(server, "ANN"), Wire(server, "ANN"), Wire(server, "EVE")
    for query_id in (query_id_of(mine, "SELECT 'mine'"), query_id_of(mine, "SELECT 'mine'", asyncExec=True)):
        scan = f"SELECT * FROM TABLE(RESULT_SCAN('{query_id}'))"

        # First what waits for the end of the statement.
        assert json.loads(again.post(f"/queries/{query_id}/result", b"", "GET")[1])["data"]["rowset"] == [["mine"]]
        assert again.sql(scan) == [["mine"]]
        with pytest.raises(Refused, match=f"000709: Statement {query_id} not found"):
            foreign.sql(scan)
        assert json.loads(foreign.post(f"/queries/{query_id}/result", b"", "GET")[1])["code"] == "000709"
        assert json.loads(foreign.post(f"/monitoring/queries/{query_id}", b"", "GET")[1])["data"]["queries"] == []


def test_a_statement_is_cancelled_by_its_own_user_only(server: EmbeddedServer):
    mine, foreign = Wire(server, "ANN"), Wire(server, "EVE")
    number = mine.sql("SELECT CURRENT_SESSION()")[0][0]
    request_id = str(uuid.uuid4())
    _, body = mine.post(f"{QUERY}?requestId={request_id}", {"sqlText": "SELECT SYSTEM$WAIT(100)", "asyncExec": True})
    query_id = json.loads(body)["data"]["queryId"]

    foreign.post("/queries/v1/abort-request", {"requestId": request_id})
    aborted = json.loads(foreign.post(f"/queries/{query_id}/abort-request", b"")[1])
    for text, code in (
        (f"SELECT SYSTEM$CANCEL_QUERY('{query_id}')", "000707"),
        (f"SELECT SYSTEM$CANCEL_ALL_QUERIES({number})", "003001"),
        (f"SELECT SYSTEM$ABORT_SESSION({number})", "003001"),
    ):
        with pytest.raises(Refused, match=code):
            foreign.sql(text)

    assert aborted["code"] == "000605"
    assert "RUNNING" in mine.post(f"/monitoring/queries/{query_id}", b"", "GET")[1].decode()
    assert mine.sql(f"SELECT SYSTEM$CANCEL_QUERY('{query_id}')") == [[f"query [{query_id}] terminated."]]


def test_a_request_id_of_another_user_does_not_get_the_answer(server: EmbeddedServer):
    mine, foreign = Wire(server, "ANN"), Wire(server, "EVE")
    path = f"{QUERY}?requestId={uuid.uuid4()}"
    mine.post(path, {"sqlText": "SELECT SYSTEM$WAIT(100)", "asyncExec": True})

    _, body = foreign.post(path, {"sqlText": "SELECT 'my own'"})

    assert json.loads(body)["data"]["rowset"] == [["my own"]]
    mine.post("/queries/v1/abort-request", {"requestId": path.partition("=")[2]})


# --- a client that has disconnected ----------------------------------------------------------------------------------


def begin(wire: Wire, text: str, request_id: str, **more: Any) -> None:
    """Send a statement and do not wait for its answer."""
    headers = {"Authorization": f'Snowflake Token="{wire.token}"'}
    wire.http.request("POST", f"{QUERY}?requestId={request_id}", json.dumps({"sqlText": text} | more), headers)


def test_a_statement_of_a_lost_client_is_cancelled_unless_it_is_asked_for_again(server: EmbeddedServer, database: str):
    owner = Wire(server, databaseName=database)
    owner.sql("CREATE HYBRID TABLE T (ID NUMBER PRIMARY KEY, X NUMBER)")
    owner.sql("INSERT INTO T VALUES (1, 0)")
    owner.sql("BEGIN")
    owner.sql("UPDATE T SET X = 1")
    clients = {name: Wire(server, databaseName=database) for name in ("gone", "asking again", "asking later")}
    ids = {name: str(uuid.uuid4()) for name in clients}
    for name, wire in clients.items():
        wire.sql(f"ALTER SESSION SET QUERY_TAG = '{database} {name}'")
        text = "UPDATE T SET X = 2" if name == "gone" else f"SELECT SYSTEM$WAIT({GONE_GRACE_S + 3})"
        begin(wire, text, ids[name], asyncExec=name == "asking later")
    wait_until(lambda: server.ask("/__loadgen/stats")["under_way"] >= 3, "the statements under way")

    for wire in clients.values():
        wire.http.close()
    begin(clients["asking again"], "ignored", ids["asking again"])  # as a driver repeats a lost request

    again = json.loads(clients["asking again"].http.getresponse().read())
    assert again["data"]["rowset"] == [[f"waited {GONE_GRACE_S + 3} seconds"]]
    wait_until(lambda: len(ended(server, f"{database} asking later")) == 1, "the asynchronous statement over")
    assert ended(server, f"{database} asking later") == [0]
    assert ended(server, f"{database} gone") == [604]
    owner.sql("ROLLBACK")


def ended(server: EmbeddedServer, tag: str) -> list[int]:
    """The error codes of the waiting statements with that tag that have ended."""
    lines = [line for line in server.history(tag) if not line["sql_text"].startswith("ALTER")]
    return [int(line["error_code"]) for line in lines]
