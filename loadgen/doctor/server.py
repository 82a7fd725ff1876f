"""The other end: log-in, distance, clock, and whether it has hybrid tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from loadgen.clock import Clock
from loadgen.control.setup.installer import NO_HYBRID
from loadgen.doctor.finding import Finding, failed, ok, warning
from loadgen.snowflake.probe import ConnectionProbe
from loadgen.snowflake.profile import ConnectionProfile

FAR_MS = 50.0
OFFSET_S = 2.0
TRIES = 5
ADMINISTRATORS = ("ACCOUNTADMIN", "SECURITYADMIN", "ORGADMIN", "GLOBALORGADMIN")


def log_in(probe: ConnectionProbe) -> Finding:
    where = f"{probe.account or '-'} ({probe.region or 'unknown region'}), version {probe.server_version or '-'}"
    return ok(f"user {probe.user or '-'}, role {probe.role or '-'}, account {where}")


def round_trip(probe: ConnectionProbe) -> Finding:
    said = f"p50 {probe.round_trip_ms_p50:.1f} ms of {len(probe.round_trips_ms)} tries"
    if probe.round_trip_ms_p50 > FAR_MS:
        return warning(
            f"{said}: every measured time includes it", "Run loadgen in the account's own region for true numbers."
        )
    return ok(said)


def role(probe: ConnectionProbe, profile: ConnectionProfile) -> Finding:
    name = probe.role or "PUBLIC"
    if name in ADMINISTRATORS and not profile.is_embedded:
        return warning(
            f"{name} may do everything, and so may every statement of a scenario",
            "Use a role made for it: `loadgen grants` prints one.",
        )
    return ok(name)


def hybrid_tables(region: str | None, *, is_embedded: bool, hybrid_here: int) -> Finding:
    """Can hybrid tables be created, for the control plane or the scenario? A trial account needs an attempt."""
    text = (region or "").upper().rpartition(".")[2]  # with an organisation's region groups: PUBLIC.AWS_US_WEST_2
    if is_embedded:
        return ok("the embedded server has them")
    if hybrid_here:
        return ok(f"{hybrid_here} of the control plane's are there")
    if text.startswith("GCP") or "GOV" in text:
        return failed(f"region {text} has no hybrid tables", NO_HYBRID)
    return ok(f"region {text or 'unknown'} has them, but for trial accounts; `loadgen setup` will tell")


# --- the clock -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockOffset:
    """How far the server's clock is ahead of ours, and by how much that may be wrong."""

    seconds: float
    error_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockReading:
    before: datetime
    server: datetime
    trip_s: float


def offset(readings: Sequence[ClockReading]) -> ClockOffset:
    """From the fastest reading: the server read its clock at some time during the round trip."""
    best = min(readings, key=lambda reading: reading.trip_s)
    ahead_s = (best.server - best.before).total_seconds()
    return ClockOffset(seconds=ahead_s - best.trip_s / 2, error_s=best.trip_s / 2)


def clock_offset(found: ClockOffset) -> Finding:
    direction = "ahead of" if found.seconds >= 0 else "behind"
    said = f"the server's clock is {abs(found.seconds):.3f} s {direction} ours, to within {found.error_s:.3f} s"
    if abs(found.seconds) - found.error_s > OFFSET_S:
        return warning(
            said,
            "Set this machine's clock (NTP). Runs are timed by the server, but log lines would not fit, and a key"
            " pair's log-in fails when it is a minute off.",
        )
    return ok(said)


def read_clock(ask: Clock, server_time: datetime, before: datetime, began_ns: int) -> ClockReading:
    """One reading; SYSDATE() is UTC without saying so."""
    return ClockReading(
        before=before,
        server=server_time.replace(tzinfo=UTC),
        trip_s=(ask.monotonic_ns() - began_ns) / 1e9,
    )
