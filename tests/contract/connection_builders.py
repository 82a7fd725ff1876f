"""Connections as loadgen opens them, to an embedded server."""

from __future__ import annotations

from typing import Any

from loadgen.snowflake import driver
from loadgen.snowflake.profile import ConnectionProfile
from loadgen.snowflake.profile_lookup import EMBEDDED_ADDRESS, find_profile
from loadgen.snowflake.settings import ConnectionSettings, control_settings, load_settings

MAJOR = driver.major()


def profile_of(address: str, **overrides: str | None) -> ConnectionProfile:
    return find_profile("embedded", environ={EMBEDDED_ADDRESS: address}, overrides=overrides)


def load_of(profile: ConnectionProfile, **options: Any) -> ConnectionSettings:
    return load_settings(profile, major=MAJOR, **{"statement_limit_s": 20, "tag": "load", **options})


def control_of(profile: ConnectionProfile, **options: Any) -> ConnectionSettings:
    return control_settings(profile, major=MAJOR, **{"tag": "control", **options})
