"""What a replay is compared with: `replay` of summary.json, and its section of report.html."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loadgen.metrics.window import MergedWindows
from loadgen.model.capture import RecordedTimes, Replay, SessionReplay, WriteReplay
from loadgen.report import formatting
from loadgen.report.page import named, note, number, table

_TIMES = ("avg", "p50", "p95")


def replay_document(
    replay: Replay, names: list[str], merged: MergedWindows, service_ms: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Recorded times on the server beside service times of the replay, the largest differences of averages first."""
    found = zip(names, replay.recorded, strict=False)
    compared = [_compared(name, times, merged, service_ms.get(name, {})) for name, times in found]
    return {
        "capture": replay.capture,
        "speed": replay.speed,
        "users": replay.users,
        "kept_sessions": replay.sessions is SessionReplay.KEEP,
        "writes": replay.writes is WriteReplay.REPLAY,
        "pseudonyms": replay.pseudonyms,
        "compared": sorted(compared, key=lambda one: -abs(one["slower_ms"] or 0.0)),
    }


def _compared(name: str, times: RecordedTimes, merged: MergedWindows, service: Mapping[str, Any]) -> dict[str, Any]:
    tally, avg_ms = merged.tally.statements.get(name), service.get("avg")
    return {
        "statement": name,
        "recorded": {"count": times.count, "avg": times.avg_ms, "p50": times.p50_ms, "p95": times.p95_ms},
        "replayed": {
            "count": 0 if tally is None else tally.ended.succeeded,
            **{time: service.get(time) for time in _TIMES},
        },
        "slower_ms": None if avg_ms is None else round(avg_ms - times.avg_ms, 3),
    }


def replayed(replay: Mapping[str, Any]) -> str:
    """Statement by statement, the largest differences first."""
    columns = ("count", *_TIMES)
    rows = (
        (
            named(one["statement"]),
            *(
                number(part[key], formatting.count(part[key]) if key == "count" else formatting.ms(part[key]))
                for part in (one["recorded"], one["replayed"])
                for key in columns
            ),
            number(one["slower_ms"], formatting.ms(one["slower_ms"])),
        )
        for one in replay["compared"]
    )
    head = ("statement", *(f"{when} {key}" for when in ("recorded", "replayed") for key in columns), "slower by")
    said = table("Milliseconds: recorded on the server, and service times of the replay", head, rows)
    if replay.get("users", 1) > 1:
        said += note(f"Each statement was sent once for each of {formatting.count(replay['users'])} users.")
    if replay["pseudonyms"]:
        said += note("Values were pseudonyms: rows, and with them times, may differ from those of the recording.")
    return said + note("Statements that failed in the recording are not in a capture: every error here is a new one.")
