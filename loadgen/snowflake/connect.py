"""Open and close a connection. Never on a main thread: inside the driver 5.x a Ctrl-C is lost."""

import logging
import os
from collections.abc import Mapping
from typing import Any

from loadgen.errors import LoadgenError
from loadgen.log import event
from loadgen.snowflake import driver
from loadgen.snowflake.credential import credentials
from loadgen.snowflake.diagnosis import diagnose
from loadgen.snowflake.driver import Connection
from loadgen.snowflake.failure import classify
from loadgen.snowflake.profile import ConnectionProfile
from loadgen.snowflake.settings import LOGOUT_S, ConnectionSettings

log = logging.getLogger(__name__)


def connect(
    profile: ConnectionProfile, settings: ConnectionSettings, *, environ: Mapping[str, str] = os.environ
) -> Connection:
    """A new session, or ConnectFailed (PrivilegeMissing, ConfigurationError) with what to do about it."""
    module = driver.load()
    arguments = {**settings.arguments, **credentials(profile, major=driver.major(), environ=environ)}
    try:
        connection: Connection = module.connect(**arguments)
    except Exception as error:  # the driver leaks exceptions of its libraries
        translated = diagnose(error, profile, environ)
        event(log, logging.DEBUG, "connect_failed", connection=profile.name, code=classify(error).code)
        raise translated from error
    if settings.socket_timeout_s is not None:
        _set_socket_timeout(connection, settings.socket_timeout_s)
    return connection


def close(connection: Connection) -> None:
    """Log out and let go, in bounded time; a server that is gone is no error."""
    if driver.major() < 5:
        _set_socket_timeout(connection, LOGOUT_S)
    try:
        connection.close()
    except Exception as error:  # whatever it is, the connection is not used any more
        event(log, logging.DEBUG, "close_failed", code=classify(error).code)


def _set_socket_timeout(connection: Any, seconds: int) -> None:
    """Driver 4.x reads it at every request, but lets nobody set it after connecting."""
    connection._socket_timeout = seconds
    if connection.socket_timeout != seconds:
        raise LoadgenError(
            f"the Snowflake driver {driver.version()} does not let its socket timeout be changed",
            remedy="Install snowflake-connector-python 5, or 4.8.",
        )
