"""Connections as loadgen opens them, to an embedded server."""

from __future__ import annotations

from typing import Any

from loadgen.snowflake import driver
from loadgen.snowflake.lookup import EMBEDDED_ADDRESS, find_profile
from loadgen.snowflake.profile import Profile
from loadgen.snowflake.settings import Settings, control_settings, load_settings

MAJOR = driver.major()


def profile_of(address: str, **overrides: str | None) -> Profile:
    return find_profile("embedded", environ={EMBEDDED_ADDRESS: address}, overrides=overrides)


def load_of(profile: Profile, **options: Any) -> Settings:
    return load_settings(profile, major=MAJOR, **{"statement_limit_s": 20, "tag": "load", **options})


def control_of(profile: Profile, **options: Any) -> Settings:
    return control_settings(profile, major=MAJOR, **{"tag": "control", **options})
