"""Is a connection usable, who are we there, and how far away is it?"""

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from loadgen.clock import Clock, SystemClock
from loadgen.errors import ConnectFailed
from loadgen.log import printable
from loadgen.model.counts import ErrorCategory
from loadgen.snowflake import driver
from loadgen.snowflake.connect import close, connect
from loadgen.snowflake.driver import Connection
from loadgen.snowflake.failure import classify, describe
from loadgen.snowflake.profile import ConnectionProfile
from loadgen.snowflake.settings import probe_settings

ROUND_TRIPS = 5

# None of these needs a warehouse, a database or a schema.
_WHO = (
    "SELECT CURRENT_VERSION(), CURRENT_ACCOUNT(), CURRENT_REGION(), CURRENT_USER(), CURRENT_ROLE(),"
    " CURRENT_WAREHOUSE(), CURRENT_DATABASE(), CURRENT_SCHEMA()"
)
_NOTHING = "SELECT 1"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionProbe:
    """What a session says about itself. None: it has none."""

    server_version: str | None
    account: str | None
    region: str | None
    user: str | None
    role: str | None
    warehouse: str | None
    database: str | None
    schema: str | None
    round_trips_ms: tuple[float, ...]

    @property
    def round_trip_ms_p50(self) -> float:
        return statistics.median(self.round_trips_ms)


def probe(profile: ConnectionProfile, *, clock: Clock | None = None) -> ConnectionProbe:
    """Connect once, ask, time a few empty statements, and log out. Never on a main thread."""
    connection = connect(profile, probe_settings(profile, major=driver.major()))
    try:
        return _ask(connection, clock or SystemClock())
    except Exception as error:
        if classify(error).category is ErrorCategory.FATAL:
            raise
        raise ConnectFailed(
            f"connection {printable(profile.name, 80)!r}: logged in, but the first statement failed: {describe(error)}",
            remedy="Check the role of the connection, and that the host is a Snowflake server.",
        ) from error
    finally:
        close(connection)


def _ask(connection: Connection, clock: Clock) -> ConnectionProbe:
    cursor = connection.cursor()
    cursor.execute(_WHO)
    row = cursor.fetchone() or ()
    # The embedded server's null engine answers everything with one value: reachable, and nothing more to say.
    said = [_text(value) for value in row] if len(row) == 8 else [None] * 8
    version, account, region, user, role, warehouse, database, schema = said
    return ConnectionProbe(
        server_version=version,
        account=account,
        region=region,
        user=user,
        role=role,
        warehouse=warehouse,
        database=database,
        schema=schema,
        round_trips_ms=tuple(_timed_ms(clock, lambda: cursor.execute(_NOTHING).fetchall()) for _ in range(ROUND_TRIPS)),
    )


def _timed_ms(clock: Clock, action: Callable[[], object]) -> float:
    began_ns = clock.monotonic_ns()
    action()
    return (clock.monotonic_ns() - began_ns) / 1e6


def _text(value: Any) -> str | None:
    return None if value is None else printable(str(value), 200)
