"""Names of runs: short, sortable, in UTC: 20261115-0200-orders-7f3a9c."""

from __future__ import annotations

import re
import secrets
from datetime import datetime

LENGTH_MAX = 36
_SLUG_MAX = 15


def new_run_id(scenario: str, utc_now: datetime) -> str:
    """A name that sorts by its beginning and says what ran; the end makes it unique."""
    slug = re.sub(r"[^a-z0-9]+", "-", scenario.lower()).strip("-")[:_SLUG_MAX].strip("-")
    parts = [utc_now.strftime("%Y%m%d-%H%M"), *([slug] if slug else []), secrets.token_hex(3)]
    return "-".join(parts)
