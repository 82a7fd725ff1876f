"""Planted secrets must not come out of any handler, in any wrapping; foreign text must not reach the terminal raw."""

import io
import json
import logging
import pickle
import stat
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import loadgen.log
from loadgen.errors import ConfigurationError
from loadgen.log import (
    MASK,
    RedactionFilter,
    Secret,
    configure,
    event,
    is_secret_name,
    logged_to,
    printable,
    redact,
    register_secret,
)

PASSWORD = "correct-horse/battery&staple"
PAT = "eyJraWQiOiIxMjM0NTY3ODkwIn0.eyJwIjoiMTIzNDU2Nzg5MCJ9.c2lnbmF0dXJlLXNpZ25hdHVyZQ"
SESSION_TOKEN = "ver:3-hint:92019683-ETMsDgAAAZ2xyzABCDEF0123456789+/=="
PEM_BODY = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7"
PEM = f"-----BEGIN PRIVATE KEY-----\n{PEM_BODY}\n{PEM_BODY}\n-----END PRIVATE KEY-----"
log = logging.getLogger("loadgen.test_log")


@pytest.fixture(autouse=True)
def _forgotten_secrets(monkeypatch):
    """What a test registers must not be masked in the next one."""
    monkeypatch.setattr(loadgen.log, "_known_secrets", loadgen.log._KnownSecrets())


@pytest.fixture(params=["human", "file"])
def read_log(request, restored_logging, tmp_path):
    """Configures one kind of handler and returns a function that reads what it wrote."""
    stream, path = io.StringIO(), tmp_path / "loadgen.log"
    configure(
        level=logging.DEBUG,
        stream=stream,
        file=path if request.param == "file" else None,
        tracebacks=True,
    )
    return path.read_text if request.param == "file" else stream.getvalue


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        (f"connecting with password={PASSWORD} to prod", "correct-horse"),
        (f'{{"password": "{PASSWORD}", "user": "me"}}', "correct-horse"),
        (f'{{\\"password\\": \\"{PASSWORD}\\"}}', "correct-horse"),
        (f"{{'private_key_passphrase': '{PASSWORD}'}}", "correct-horse"),
        (f"ALTER USER x SET PASSWORD = 'don''t-tell-{PASSWORD}'", "tell-correct-horse"),
        ("pwd: hunter22", "hunter22"),
        ("SNOWFLAKE_TOKEN=hunter22 loadgen run", "hunter22"),
        ('{"data":{"masterToken":"hunter22"}}', "hunter22"),
        ("https://example.com/hook?token=hunter22&x=1", "hunter22"),
        ("proxy https://someone:hunter22@proxy.example:8080 refused", "hunter22"),
        (f"Authorization: Bearer {PAT}", "eyJwIjoi"),
        ("authorization: Bearer abcdefghij0123456789", "abcdefghij"),
        (f'"Authorization": "Snowflake Token=\\"{SESSION_TOKEN}\\""', "ETMs"),
        (f'Authorization: Snowflake Token="{SESSION_TOKEN}"', "ETMs"),
        ('headers Snowflake Token="abcdef0123456789"', "abcdef"),
        (f"the server said {PAT} was no good", "eyJwIjoi"),
        (f"session {SESSION_TOKEN} expired", "ETMs"),
        (f"could not read {PEM} as a key", PEM_BODY),
        (repr(PEM), PEM_BODY),
        (PEM[:60], PEM_BODY[:20]),
        ('password="cut off in the mid', "cut off"),
    ],
)
def test_secrets_are_masked_in_any_wrapping(text, secret):
    assert secret in text

    redacted = redact(text)

    assert secret not in redacted
    assert MASK in redacted
    assert redact(redacted) == redacted


@pytest.mark.parametrize(
    "text",
    [
        "private_key_file=/etc/keys/rsa_key.p8 password_path: secrets/here",
        "SELECT * FROM ORDERS WHERE ID = ?",
        "role LOADGEN_RUN lacks USAGE on WAREHOUSE BENCH_WH",
        "the token has expired",
        "{'password': None}",
        "http://127.0.0.1:8085/queries?id=01b2-03",
        "user=me account=ab12345.eu-central-1 warehouse=BENCH_WH",
    ],
)
def test_harmless_text_stays_as_it_is(text):
    assert redact(text) == text


def test_text_around_a_secret_stays_readable():
    assert redact("user=me, password=hunter22, role=R") == f"user=me, password={MASK}, role=R"
    assert redact('{"password": "hunter22", "role": "R"}') == f'{{"password": "{MASK}", "role": "R"}}'


@pytest.mark.parametrize(
    "name",
    [
        *("password", "PRIVATE_KEY", "oauth_client_secret", "token", "masterToken", "pwd"),
        *("PAT", "MY_PAT", "PAT_TOKEN", "SNOWFLAKE_PAT_2", "OPENAI_API_KEY", "apikey", "AWS_CREDENTIAL", "CREDENTIALS"),
    ],
)
def test_names_that_hold_secrets_are_known(name):
    assert is_secret_name(name)
    assert not is_secret_name(f"{name}_file")
    assert not is_secret_name(f"{name}_path")


@pytest.mark.parametrize("name", ["PATH", "PATTERN", "compat", "dispatch", "LD_LIBRARY_PATH", "path_2", "key", "api"])
def test_names_that_only_contain_such_a_word_are_not(name):
    assert not is_secret_name(name)
    assert redact(f"{name}=shown") == f"{name}=shown"


@pytest.mark.parametrize("name", ["MY_PAT", "OPENAI_API_KEY", "api-key", "AWS_CREDENTIALS"])
def test_values_of_such_names_are_masked(name):
    assert redact(f"{name}=hunter22 x") == f"{name}={MASK} x"


@pytest.mark.parametrize("value", ["plain-value", 'with "quotes" and \\', "ünï/cödé & more", "two\nlines"])
def test_a_registered_value_is_masked_wherever_and_however_it_appears(value):
    register_secret(value)

    for text in (f"x{value}y", json.dumps({"x": value}), repr(value)):
        shown = redact(text)
        assert MASK in shown
        assert value not in shown


def test_a_registered_value_too_short_to_find_does_not_blot_out_the_log():
    register_secret("a")
    register_secret("")

    assert redact("banana") == "banana"


def test_a_secret_shows_as_stars_and_gives_itself_away_only_on_demand():
    secret = Secret("swordfish-77")

    assert {str(secret), repr(secret), f"{secret}", f"{secret!r}", "%s" % secret} == {MASK}  # noqa: UP031
    assert "swordfish-77" not in repr({"key": [secret]})
    assert secret.reveal() == "swordfish-77"
    assert redact("got swordfish-77") == f"got {MASK}"


def test_secrets_compare_and_travel_like_their_values():
    assert Secret("one-value") == Secret("one-value") != Secret("another")
    assert Secret("one-value") != "one-value"
    assert not Secret("")
    assert pickle.loads(pickle.dumps(Secret("one-value"))).reveal() == "one-value"


def test_no_handler_lets_planted_secrets_through(read_log):
    register_secret("webhook-registered-4711")

    log.warning("login with password=%s failed", PASSWORD)
    log.info("hook %s", "https://example.com/webhook-registered-4711")
    event(log, logging.INFO, "connected", password=PASSWORD, key=PEM, headers={"Authorization": f"Bearer {PAT}"})
    event(log, logging.INFO, "retried", options=[{"token": SESSION_TOKEN}], secret=Secret(PASSWORD), pwd=12345678)
    try:
        raise ValueError(f"bad login: password='{PASSWORD}'") from RuntimeError(f"cause {PAT}")
    except ValueError:
        log.exception("it failed with token=%s", SESSION_TOKEN)
    logging.getLogger("third.party").error("Token=%r", SESSION_TOKEN)

    written = read_log()
    for secret in ("correct-horse", "webhook-registered", PEM_BODY, "eyJwIjoi", "ETMs", "12345678"):
        assert secret not in written
    assert written.count(MASK) >= 8
    assert "bad login" in written  # the traceback is there, without its secret
    assert "third.party" in written


def test_an_event_is_a_line_for_people_and_fields_for_machines(restored_logging, tmp_path):
    human, machine = io.StringIO(), tmp_path / "loadgen.log"
    facts = {"run_id": "r1", "epoch": 3, "trust_left_s": 2.1, "gap": float("nan"), "why": None}

    configure(level=logging.INFO, stream=human, file=machine)
    event(log, logging.WARNING, "lease_renew_failed", **facts)

    line = " warning loadgen.test_log: lease_renew_failed run_id=r1 epoch=3 trust_left_s=2.1 gap=nan why=None\n"
    assert human.getvalue().endswith(line)
    entry = json.loads(machine.read_text(), parse_constant=pytest.fail)
    assert (entry["event"], entry["level"], entry["logger"]) == ("lease_renew_failed", "warning", "loadgen.test_log")
    assert entry["facts"] == {"run_id": "r1", "epoch": 3, "trust_left_s": 2.1, "gap": "nan", "why": None}


def test_an_event_below_the_level_costs_nothing(restored_logging):
    class Explosive:
        def __str__(self):
            pytest.fail("formatted although no handler listens")

    configure(level=logging.WARNING, stream=io.StringIO())

    event(log, logging.DEBUG, "polled", row=Explosive())


def test_foreign_text_cannot_forge_a_log_line_or_steer_the_terminal(restored_logging):
    stream = io.StringIO()
    configure(stream=stream)

    log.error("server said: %s", "boom\x1b[2J\r\n2026-01-01T00:00:00Z info loadgen: all is well")

    assert "\x1b" not in stream.getvalue()
    assert [line for line in stream.getvalue().splitlines() if not line.startswith("  ")] == [
        stream.getvalue().splitlines()[0]
    ]


def test_tracebacks_show_only_on_demand_but_always_reach_the_file(restored_logging, tmp_path):
    stream, path = io.StringIO(), tmp_path / "loadgen.log"
    configure(stream=stream, file=path)

    try:
        raise LookupError("nothing there")
    except LookupError:
        log.exception("lookup failed")

    assert "Traceback" not in stream.getvalue()
    assert "LookupError: nothing there" in json.loads(path.read_text())["traceback"]


def test_a_log_file_is_private_and_appended_to(restored_logging, tmp_path):
    path = tmp_path / "loadgen.log"
    for text in ("first", "second"):
        configure(stream=io.StringIO(), file=path)
        log.info(text)

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [json.loads(line)["message"] for line in path.read_text().splitlines()] == ["first", "second"]


def test_a_log_file_that_cannot_be_written_is_named(restored_logging, tmp_path):
    with pytest.raises(ConfigurationError, match=r"missing.loadgen\.log: No such file"):
        configure(file=tmp_path / "missing" / "loadgen.log")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_loses_log_lines_and_nothing_else(restored_logging, capsys):
    configure(stream=io.StringIO(), file=Path("/dev/full"))

    log.warning("password=%s", PASSWORD)

    assert capsys.readouterr() == ("", "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_lost_lines_of_a_file_are_counted_in_a_warning_at_its_end(restored_logging):
    stderr = io.StringIO()
    configure(stream=stderr)

    with logged_to(Path("/dev/full")):
        event(log, logging.INFO, "one")
        event(log, logging.INFO, "another")

    assert "log_lines_lost file=/dev/full lines=2" in stderr.getvalue()


def test_a_call_that_does_not_fit_its_format_is_logged_all_the_same():
    record = logging.LogRecord("x", logging.ERROR, __file__, 1, "two %s %s", ("only one",), None)

    assert RedactionFilter().filter(record)
    assert record.getMessage() == "two %s %s"


def test_the_driver_stays_quiet_even_when_all_else_is_logged(read_log):
    logging.getLogger("snowflake.connector.cursor").debug("binds: %s", ["4111-1111"])

    assert "4111-1111" not in read_log()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("naïve 表 [/dim]", "naïve 表 [/dim]"),
        ("one\r\ntwo\tthree", "one␍␊two␉three"),
        ("\x1b]0;title\x07\x7f\x9b", "␛]0;title␇␡\\u009b"),
        ("\u202a\u202e\u2066\u2069\u200e\u200f\u061c", "\\u202a\\u202e\\u2066\\u2069\\u200e\\u200f\\u061c"),
        ("a\u200bb\ufeff\u2028\u2029\u00ad", "a\\u200bb\\ufeff\\u2028\\u2029\\u00ad"),
        ("\U000e0041\ud800", "\\U000e0041\\ud800"),
    ],
)
def test_everything_in_foreign_text_is_visible(text, shown):
    assert printable(text) == shown


def test_a_block_keeps_its_newlines_and_tabs_only():
    assert printable("one\r\ntwo\tthree\x1b", multiline=True) == "one␍\ntwo\tthree␛"


@given(st.text(st.characters(), max_size=300), st.integers(min_value=0, max_value=100))
def test_printable_text_is_short_and_free_of_controls(text, limit):
    safe = printable(text, limit)

    assert len(safe) <= limit
    assert not any(unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") for c in safe)
    safe.encode("utf-8")


def test_a_cut_text_is_marked():
    assert printable("abcdef", 4) == "abc…"
    assert printable("abcd", 4) == "abcd"


@given(st.text(max_size=200))
def test_redaction_settles_at_once(text):
    once = redact(text)

    assert redact(once) == once


@pytest.mark.parametrize(
    "piece",
    ["a", "eyJ-", "password", "password=", "token = '", "-----BEGIN X-----", "://a:", "authorization: ", "\\\"'"],
)
def test_a_long_hostile_text_is_redacted_in_one_pass(piece):
    """A quadratic search would take longer than a test may."""
    text = piece * (400_000 // len(piece))

    assert redact(text)


def test_for_a_while_one_file_more_has_everything_from_info_up(tmp_path, capsys):
    configure()
    logger = logging.getLogger("loadgen.somewhere")
    with logged_to(tmp_path / "run.log"):
        event(logger, logging.INFO, "began", password="hunter22")
        logger.debug("too much")
    event(logger, logging.INFO, "went_on")

    (line,) = (tmp_path / "run.log").read_text("utf-8").splitlines()
    assert json.loads(line)["event"] == "began"
    assert "hunter22" not in line
    assert capsys.readouterr().err == ""
