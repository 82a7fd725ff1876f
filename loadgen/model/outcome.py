"""How a statement can fail, as counted in results."""

from enum import StrEnum


class ErrorCategory(StrEnum):
    """The kind of a failure. The names are stored in QUERY_EXECUTIONS.ERROR_CATEGORY and in summary.json."""

    CONNECTION = "CONNECTION"  # no usable answer: network, HTTP, session gone
    QUERY_TIMEOUT = "QUERY_TIMEOUT"  # no success within the statement's time limit: the server or the client ended it
    SNOWFLAKE_ERROR = "SNOWFLAKE_ERROR"  # the server refused or failed to execute the statement
    CHECK = "CHECK"  # it succeeded, but the result is not what the scenario expects
    CONFIGURATION = "CONFIGURATION"  # it can never work like this: bad SQL, missing object, privilege or credential
    FATAL = "FATAL"  # a bug of ours, or the process cannot go on
