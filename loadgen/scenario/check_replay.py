"""What must fit between mode replay and its capture."""

from __future__ import annotations

from pathlib import Path, PurePosixPath, PureWindowsPath

from loadgen.model.capture import (
    MANIFEST_FILE,
    CaptureManifest,
    InvalidCapture,
    SessionReplay,
    StatementRole,
)
from loadgen.scenario.check_data import require_inside
from loadgen.scenario.document import KeyPath
from loadgen.scenario.file import LoadSection
from loadgen.scenario.model import CONNECTIONS_MAX, LoadMode
from loadgen.scenario.replay import replay_s, replayed_roles
from loadgen.scenario.validation import CheckedDocument
from loadgen.units import format_duration_s

_CAPTURE: KeyPath = ("load", "capture")
LONGEST_S = 7 * 86_400.0  # as load.duration


def read_manifest(folder: Path, capture: str) -> CaptureManifest:
    """Raises OSError, or InvalidCapture."""
    require_inside(folder, capture)
    return CaptureManifest.of_text((folder / capture / MANIFEST_FILE).read_text("utf-8"))


def check_replay(checked: CheckedDocument, folder: Path | None) -> CaptureManifest | None:
    """The capture of mode replay; None in other modes, and where it has a problem, which is noted."""
    file = checked.file
    if file is None or file.load.mode is not LoadMode.REPLAY or not checked.fine(_CAPTURE, ("load", "mode")):
        return None
    name = file.load.capture
    if name is None:
        checked.problem(_CAPTURE, "is missing: mode replay needs it", "add capture: DIR, made by `loadgen capture`")
        return None
    path = PurePosixPath(name)
    if path.is_absolute() or PureWindowsPath(name).drive or ".." in path.parts or "\\" in name or folder is None:
        what = "is outside of the scenario's folder"
        checked.problem(_CAPTURE, what, "move the capture into the scenario's folder, and write its name")
        return None
    try:
        capture = read_manifest(folder, name)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        what = f"is no capture: {reason}" if isinstance(error, InvalidCapture) else f"cannot be read: {reason}"
        checked.problem(_CAPTURE, what, "name a folder that `loadgen capture` has written, beside the scenario")
        return None
    return capture if _fits(checked, capture, file.load) else None


def _fits(checked: CheckedDocument, capture: CaptureManifest, load: LoadSection) -> bool:
    keeps = load.sessions is SessionReplay.KEEP
    if capture.names_hidden:
        what = "has hidden names (--hide-names), so it cannot be executed"
        checked.problem(_CAPTURE, what, "capture again without --hide-names")
    elif not any(capture.roles.get(role.value) for role in replayed_roles(load.writes)):
        hint = "write writes: replay" if capture.roles.get(StatementRole.WRITE.value) else "capture another span"
        checked.problem(_CAPTURE, "has no statement to send", hint)
    elif keeps and capture.sessions > CONNECTIONS_MAX:
        what = f"has {capture.sessions:,} sessions, and a run has at most {CONNECTIONS_MAX:,} connections"
        checked.problem(_CAPTURE, what, "write sessions: spread, or capture a shorter span")
    elif replay_s(capture, load.speed) > LONGEST_S:
        what = f"takes {format_duration_s(replay_s(capture, load.speed))}, and a run takes at most 7d"
        checked.problem(_CAPTURE, what, "raise load.speed, or capture a shorter span")
    elif keeps and capture.sessions * load.users > CONNECTIONS_MAX:
        asked = f"{capture.sessions:,} recorded sessions × {load.users:,} users"
        most = CONNECTIONS_MAX // capture.sessions
        checked.problem(
            ("load", "users"),
            f"needs {capture.sessions * load.users:,} connections ({asked}), and a run has at most {CONNECTIONS_MAX:,}",
            f"write at most {most:,}, or sessions: spread",
        )
    else:
        if keeps and checked.given(("load", "max_connections")):
            what = "belongs to sessions: spread; here every recorded session has a connection"
            checked.problem(("load", "max_connections"), what, "remove it", at_key=True)
        return True
    return False
