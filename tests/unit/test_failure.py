"""Every failure that was seen or is documented, and what it is counted as. One row per event and driver version."""

import errno
import http.client
import importlib
import sys
import types

import pytest

from loadgen.errors import ConfigurationError, ConnectFailed, LoadgenError, PrivilegeMissing
from loadgen.log import Secret
from loadgen.model.counts import ErrorCategory
from loadgen.snowflake.connect import diagnose
from loadgen.snowflake.failure import TEXT_MAX, NotRetried, causes, classify, describe
from loadgen.snowflake.profile_lookup import find_profile

QUERY_ID = "01b2-0000"
FLAGS = ("retryable", "unknown_outcome", "is_duplicate_key", "is_lock_conflict", "session_lost", "cancelled", "cut_off")


class Error(Exception):
    """The part of the base class of both drivers that loadgen reads."""

    def __init__(self, msg="", errno=-1, sqlstate=None, sfqid=None):
        super().__init__(msg)
        self.errno, self.sqlstate, self.sfqid, self.raw_msg = errno, sqlstate, sfqid, msg


Error.__module__ = "snowflake.connector.errors"


class ProgrammingError(Error):
    """Raised for errors of the server; the module of the base class is inspected, not its own."""


class RetryRequest(Exception):
    """4.x: carries the failure as its first argument."""


class ChunkedEncodingError(OSError):
    """4.x lets this one of its HTTP library through."""


ChunkedEncodingError.__module__ = "snowflake.connector.vendored.requests.exceptions"


class ProtocolError(Exception):
    """urllib3's errors are no OSErrors."""


ProtocolError.__module__ = "urllib3.exceptions"


def server(number: int, sqlstate: str, text: str = "") -> Error:
    return ProgrammingError(text, number, sqlstate, QUERY_ID)


def not_retried(failure: Exception) -> NotRetried:
    """As driver 4.x raises it through the policy of measured connections."""
    try:
        try:
            raise RetryRequest(failure)
        except RetryRequest:
            raise NotRetried  # noqa: B904 - the driver does not chain it either
    except NotRetried as error:
        return error


# Events as drivers 4.8 and 5.2 raise them. No flags: the server rejected the statement.
TABLE = [
    # event, exception, category, flags
    ("syntax error", server(1003, "42000"), "CONFIGURATION", ""),
    ("invalid identifier", server(904, "42000"), "CONFIGURATION", ""),
    ("missing object or privilege", server(2003, "02000"), "CONFIGURATION", ""),
    ("missing object, other form", server(2043, "02000"), "CONFIGURATION", ""),
    ("expression refused in VALUES", server(2014, "22000"), "CONFIGURATION", ""),
    ("insufficient privileges", server(3001, "42501"), "CONFIGURATION", ""),
    ("no active warehouse", server(606, "57P03"), "CONFIGURATION", ""),
    ("no current database", server(90105, "22000"), "CONFIGURATION", ""),
    ("statement count, a number as small as 5.x's own", server(8, "0A000"), "CONFIGURATION", ""),
    ("any server error", server(100038, "22018"), "SNOWFLAKE_ERROR", ""),
    ("division by zero", server(100051, "22012"), "SNOWFLAKE_ERROR", ""),
    ("NULL into NOT NULL", server(100072, "22000"), "SNOWFLAKE_ERROR", ""),
    ("foreign key", server(200009, "22000"), "SNOWFLAKE_ERROR", ""),
    ("internal error", server(603, "XX000"), "SNOWFLAKE_ERROR", "retryable unknown_outcome"),
    ("primary key exists", server(200001, "22000"), "SNOWFLAKE_ERROR", "is_duplicate_key"),
    ("unique constraint, number not published", server(200999, "22000", "Duplicate key value violates unique constraint"
     ' "U"'), "SNOWFLAKE_ERROR", "is_duplicate_key"),
    ("statement timeout", server(630, "57014"), "QUERY_TIMEOUT", "retryable cut_off"),
    ("ended at a limit, number unknown", server(639, "57014"), "QUERY_TIMEOUT", "retryable cut_off"),
    ("cancelled by a user", server(604, "57014", "SQL execution canceled"), "SNOWFLAKE_ERROR",
     "cancelled cut_off"),
    ("cancelled by 4.x's own timer", server(604, "57014", "SQL execution was cancelled by the client due to a timeout"),
     "QUERY_TIMEOUT", "retryable cancelled cut_off"),
    ("lock timeout", server(625, "57014", "aborted because a lock it needs was not released in time."),
     "SNOWFLAKE_ERROR", "retryable is_lock_conflict cut_off"),
    ("victim of a deadlock", server(625, "57014", "the victim of a deadlock"), "SNOWFLAKE_ERROR",
     "retryable is_lock_conflict cut_off"),
    ("too many waiters for a lock", server(625, "57014", "Statement 'x' has locked table 'T'.\nYour statement 'y' was"
     " aborted because the number of waiters for this lock exceeds the 20 statements limit."), "SNOWFLAKE_ERROR",
     "retryable is_lock_conflict"),
    ("deadlock, number not published", server(200998, "22000", "Deadlock detected"), "SNOWFLAKE_ERROR",
     "retryable is_lock_conflict cut_off"),
    ("serialisation failure", server(200997, "40001"), "SNOWFLAKE_ERROR", "retryable is_lock_conflict"),
    ("concurrent DDL", server(200996, "22000", "DML was unaware of concurrent DDL. Please retry this query."),
     "SNOWFLAKE_ERROR", "retryable is_lock_conflict"),
    ("session gone", server(390111, "08003"), "CONNECTION", "retryable session_lost"),
    ("session expired", server(390112, "08001"), "CONNECTION", "retryable session_lost"),
    ("master token expired", server(390114, "08001"), "CONNECTION", "retryable session_lost"),
    ("bad credentials", Error("", 390100, "28000"), "CONFIGURATION", ""),
    ("bad key", Error("", 390144, "28000"), "CONFIGURATION", ""),
    ("bad key, in detail", Error("", 394304, "28000"), "CONFIGURATION", ""),
    ("network policy", Error("", 390422, "08001"), "CONFIGURATION", ""),
    ("authorisation, number unknown", Error("", 999999, "28000"), "CONFIGURATION", ""),
    ("connection, number unknown", Error("", 999999, "08006"), "CONNECTION",
     "retryable unknown_outcome session_lost"),
    ("connection refused at login", Error("", 250001, "08001"), "CONNECTION", "retryable session_lost"),
    ("closed connection", Error("", 250002, "08003"), "CONNECTION", "retryable session_lost"),
    ("closed cursor", Error("", 252006), "CONNECTION", "retryable session_lost"),
    ("truncated result", Error("", 252013), "SNOWFLAKE_ERROR", "retryable"),
    ("chunk download failed", Error("", 252010), "CONNECTION", "retryable unknown_outcome"),
    ("fetch before execute", Error("", 252009), "FATAL", ""),
    ("bind of an unknown type", Error("", 255001), "CONFIGURATION", ""),
    ("unknown authenticator", Error("", 251007), "CONFIGURATION", ""),
    ("nothing known", Error("", -1), "SNOWFLAKE_ERROR", ""),
    # 5.x, its own numbers
    ("5: HTTP 503, 429, reset, refused", Error("", 4), "CONNECTION", "retryable unknown_outcome"),
    ("5: HTTP 403, body cut, HTML", Error("", 6), "CONNECTION", "retryable unknown_outcome"),
    ("5: nothing within query_timeout", Error("Query timed out after 4s", 14, "HYT00"), "CONNECTION",
     "retryable unknown_outcome"),
    ("5: cancelled", Error("", 5), "SNOWFLAKE_ERROR", "cancelled cut_off"),
    ("5: missing parameter", Error("", 7), "CONFIGURATION", ""),
    ("5: session could not be renewed", Error("", 250001, "08001"), "CONNECTION", "retryable session_lost"),
    # 4.x
    ("4: HTTP 503", Error("", 290503, "n/a"), "CONNECTION", "retryable unknown_outcome"),
    ("4: HTTP 503, number added twice", Error("", 580503, "n/a"), "CONNECTION", "retryable unknown_outcome"),
    ("4: HTTP 429, refused at the door", Error("", 290429, "n/a"), "CONNECTION", "retryable"),
    ("4: HTTP 403", Error("", 290403, "n/a"), "CONNECTION", "retryable"),
    ("4: HTTP 403 at login", Error("", 540001, "08001"), "CONNECTION", "retryable session_lost"),
    ("4: request failed", Error("", 250003, "n/a"), "CONNECTION", "retryable unknown_outcome"),
    ("4: no connection at login", Error("", 251011, "n/a"), "CONNECTION", "retryable"),
    ("4: body cut", ChunkedEncodingError("Connection broken"), "CONNECTION", "retryable unknown_outcome"),
    ("4: urllib3's own", ProtocolError("x"), "CONNECTION", "retryable unknown_outcome"),
    ("4: http.client's own", http.client.IncompleteRead(b"x"), "CONNECTION", "retryable unknown_outcome"),
    ("4: not retried, HTTP 503", not_retried(Error("", 290503)), "CONNECTION", "retryable unknown_outcome"),
    ("4: not retried, reset", not_retried(ConnectionResetError(104, "reset")), "CONNECTION",
     "retryable unknown_outcome"),
    ("4: not retried, HTML", not_retried(ValueError("Expecting value")), "CONNECTION", "retryable unknown_outcome"),
    # neither
    ("reset", ConnectionResetError(errno.ECONNRESET, "x"), "CONNECTION", "retryable unknown_outcome"),
    ("timeout", TimeoutError("x"), "CONNECTION", "retryable unknown_outcome"),
    ("out of memory", MemoryError(), "FATAL", ""),
    ("a bug", KeyError("success"), "FATAL", ""),
    ("interrupt", KeyboardInterrupt(), "FATAL", ""),
]  # fmt: skip


@pytest.mark.parametrize(("error", "category", "flags"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_a_failure_is_recognised(error, category, flags):
    failure = classify(error)

    assert failure.category is ErrorCategory[category]
    assert {flag for flag in FLAGS if getattr(failure, flag)} == set(flags.split())


@pytest.mark.parametrize(
    ("number", "sqlstate", "category"), [(1003, "42000", "CONFIGURATION"), (630, "57014", "QUERY_TIMEOUT")]
)
@pytest.mark.parametrize("name", ["Error", "ProgrammingError", "OperationalError", "IntegrityError", "InterfaceError"])
def test_the_installed_drivers_own_classes_are_recognised(name, number, sqlstate, category):
    errors = importlib.import_module("snowflake.connector.errors")

    failure = classify(getattr(errors, name)("text", errno=number, sqlstate=sqlstate, sfqid=QUERY_ID))

    assert (failure.category, failure.code, failure.query_id) == (ErrorCategory[category], number, QUERY_ID)


def test_number_sqlstate_and_query_id_are_kept():
    failure = classify(server(100038, "22018"))

    assert (failure.code, failure.sqlstate, failure.query_id) == (100038, "22018", QUERY_ID)


def test_an_operating_system_number_is_not_taken_for_the_drivers():
    failure = classify(FileNotFoundError(errno.ENOENT, "no such file"))

    assert failure.code is None


def test_an_exception_raised_inside_the_driver_is_no_bug_of_ours():
    inside: dict[str, object] = {"__name__": "snowflake.connector.network"}
    function = types.FunctionType(compile("raise AttributeError('get')", "network.py", "exec"), inside)

    with pytest.raises(AttributeError) as caught:
        function()

    assert classify(caught.value).category is ErrorCategory.CONNECTION


def test_classifying_does_not_import_the_driver():
    modules = {name for name in sys.modules if name.startswith("snowflake")}

    classify(server(1003, "42000"))

    assert {name for name in sys.modules if name.startswith("snowflake")} == modules


# --- texts -----------------------------------------------------------------------------------------------------------


def test_a_description_is_bounded_and_harmless():
    hostile = "\x1b[31m" + "x" * 1_000_000 + "\x00"

    text = describe(Error(hostile, 100038))

    assert len(text) == TEXT_MAX
    assert "\x1b" not in text


def test_a_description_holds_no_secret():
    Secret("planted-Passw0rd-7193")

    text = describe(Error("login with planted-Passw0rd-7193 and password='other-planted' failed", 390100))

    assert "planted" not in text


def test_a_failure_that_was_not_retried_is_described_by_its_cause():
    assert describe(not_retried(Error("HTTP 503: Service Unavailable", 290503))) == "HTTP 503: Service Unavailable"
    assert describe(not_retried(ConnectionResetError(104, "reset"))).startswith("ConnectionResetError: ")


def test_causes_end_even_when_they_form_a_ring():
    first, second = ValueError("a"), ValueError("b")
    first.__context__, second.__context__ = second, first

    assert list(causes(first)) == [first, second]


# --- why connecting failed -------------------------------------------------------------------------------------------

LOGIN = [
    (Error("Incorrect username or password was specified.", 390100, "28000"), ConnectFailed, "or password is wrong"),
    (Error("Your user account has been temporarily locked due to too many failed attempts.", 250001), ConnectFailed,
     "locked"),
    (Error("User access disabled. Contact your local system administrator.", 390101), ConnectFailed, "disabled"),
    (Error("Multi-factor authentication is required for this account.", 250001), ConnectFailed, "second factor"),
    (Error("Failed to authenticate: MFA with TOTP is required.", 394508), ConnectFailed, "second factor"),
    (Error("Incoming request with IP/Token 1.2.3.4 is not allowed to access Snowflake.", 390422), ConnectFailed,
     "network policies"),
    (Error("JWT token is invalid.", 390144, "28000"), ConnectFailed, "key of ann was rejected"),
    (Error("Programmatic access token is invalid.", 394400), ConnectFailed, "token was rejected"),
    (Error("OAuth access token expired.", 390318), ConnectFailed, "token was rejected"),
    (Error("Role 'R' specified in the connect string is not granted to this user.", 390186), PrivilegeMissing,
     "is not granted to ann"),
    (Error("login request. Connection refused (os error 111)", 250001), ConnectFailed, "nothing listens"),
    (Error("failed to lookup address information: Name or service not known", 250001), ConnectFailed, "be resolved"),
    (Error("Snowflake responded with error status: 403 Forbidden, message:", 250001), ConnectFailed,
     "does not know account"),
    (Error("Invalid Snowflake response. expected value at line 1 column 1", 250001), ConnectFailed, "a proxy or a web"),
    (Error("invalid peer certificate: UnknownIssuer", 250001), ConnectFailed, "no trusted TLS"),
    (Error("max attempts (1) reached; last status 503 Service Unavailable", 250001), ConnectFailed, "not available"),
    (Error("Login timed out after 15s", 250001), ConnectFailed, "no answer"),
    (Error("Unknown authenticator: nonsense", 251007), ConfigurationError, "connecting failed"),
    (Error("something new", 250001), ConnectFailed, "something new"),
    (not_retried(ConnectionRefusedError(111, "Connection refused")), ConnectFailed, "nothing listens"),
    (not_retried(ChunkedEncodingError("Connection broken")), ConnectFailed, "Connection broken"),
]  # fmt: skip


@pytest.mark.parametrize(("error", "kind", "what"), LOGIN, ids=[row[2] for row in LOGIN])
def test_a_failed_login_has_a_hint(tmp_path, error, kind, what):
    environ = {"HOME": str(tmp_path), "SNOWFLAKE_ACCOUNT": "acct", "SNOWFLAKE_USER": "ann"}
    profile = find_profile(None, environ={**environ, "SNOWFLAKE_PASSWORD": "planted-Passw0rd-7193"})

    translated = diagnose(error, profile, environ)

    assert type(translated) is kind
    assert isinstance(translated, LoadgenError)
    assert what in str(translated)
    assert translated.remedy
    assert "{" not in str(translated) + translated.remedy


def test_a_failed_login_repeats_no_secret_and_no_control_character(tmp_path):
    environ = {"HOME": str(tmp_path), "SNOWFLAKE_ACCOUNT": "acct", "SNOWFLAKE_USER": "ann"}
    profile = find_profile(None, environ={**environ, "SNOWFLAKE_PASSWORD": "planted-Passw0rd-7193"})

    translated = diagnose(Error("\x1b[2J user ann password planted-Passw0rd-7193 " + "x" * 100_000, 1), profile)

    assert "planted" not in str(translated)
    assert "\x1b" not in str(translated)
    assert len(str(translated)) < 1000


def test_an_unreachable_embedded_server_has_the_hint_to_start_it(tmp_path):
    environ = {"HOME": str(tmp_path), "LOADGEN_EMBEDDED_ADDRESS": "127.0.0.1:1"}

    translated = diagnose(Error("Connection refused", 250001), find_profile("embedded", environ=environ), environ)

    assert "nothing listens at 127.0.0.1:1" in str(translated)
    assert "loadgen embedded serve" in translated.remedy


def test_a_proxy_in_the_environment_is_mentioned_where_it_may_matter(tmp_path):
    environ = {"HOME": str(tmp_path), "SNOWFLAKE_ACCOUNT": "a", "SNOWFLAKE_USER": "ann", "SNOWFLAKE_PASSWORD": "secret"}
    profile = find_profile(None, environ=environ)

    translated = diagnose(Error("Connection refused", 250001), profile, {**environ, "HTTPS_PROXY": "http://u:p@x"})

    assert "HTTPS_PROXY" in translated.remedy
    assert "u:p" not in translated.remedy


@pytest.mark.parametrize(
    ("predicate", "numbers"),
    [
        ("is_missing_object", {2003, 2043, 90105, 90106}),
        ("has_no_current_database", {90105, 90106}),
        ("has_no_warehouse", {606}),
        ("is_existing_object", {2002}),
        ("is_missing_privilege", {3001, 3041}),
        ("is_disk_full", set()),
    ],
)
def test_predicates_know_their_numbers_and_no_other(predicate, numbers):
    every = {603, 604, 606, 625, 630, 1003, 2002, 2003, 2043, 3001, 3041, 90105, 90106, 200001, 390114}

    assert {number for number in every if getattr(classify(server(number, "02000")), predicate)} == numbers


def test_the_sqlstate_decides_what_the_number_does_not():
    assert classify(server(603, "53100")).is_disk_full
    assert classify(server(1234, "42501")).is_missing_privilege
