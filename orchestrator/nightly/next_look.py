"""When `loadgen schedule tick` must look at the tables again: noted in a file, so that a tick before that connects to
nothing, and the control plane's warehouse can suspend itself.

The file is a hint and not trusted: a tick looks when there is none, when it makes no sense, when it is of another
control plane, and at the latest after --idle-poll. So a schedule that was added elsewhere is found within that time.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import stat
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Self

from loadgen.control.location import ControlPlaneLocation, state_folder
from loadgen.log import event
from loadgen.model.nightly import UNCLAIMED_AFTER_S
from loadgen.values import dataclass

if TYPE_CHECKING:
    from orchestrator.nightly.scheduler import SchedulerPass

log = logging.getLogger(__name__)

FOLDER = "schedules"
SIZE_MAX = 1_000  # bytes; loadgen writes fewer than 300


@dataclass(frozen=True, slots=True, kw_only=True)
class NextLook:
    """Seconds since 1970 by this machine's clock."""

    place: str  # the control plane, as `place_key` names it
    looked_at: float
    look_at: float

    @classmethod
    def parse(cls, text: bytes) -> Self | None:
        """None: it makes no sense."""
        try:
            match json.loads(text):
                case {"place": str(place), "looked_at": float(looked_at), "look_at": float(look_at), **others}:
                    sound = not others and math.isfinite(looked_at) and math.isfinite(look_at)
                    return cls(place=place, looked_at=looked_at, look_at=look_at) if sound else None
        except (ValueError, RecursionError):
            pass
        return None

    def is_before(self, now: datetime, idle_poll_s: float) -> bool:
        """Nothing is due yet. A clock that was set back, and an interval that was made shorter, end that."""
        return self.looked_at <= now.timestamp() < self.look_at <= self.looked_at + idle_poll_s


def place_key(place: ControlPlaneLocation) -> str:
    """One name for one control plane, whichever connection leads there."""
    profile = place.profile()
    parts = (profile.address, profile.text("account") or "", place.schema_name.sql)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def after_tick(place: str, began: datetime, done: SchedulerPass, idle_poll_s: float) -> NextLook | None:
    """From what a tick has found; None: the next tick must look, because there is more to do or something failed.

    `began` is from before the tick, so that its statements do not delay the next look. After a fire one looks whether
    a runner takes its run.
    """
    if done.more or any(complaint.is_new for complaint in done.complaints):
        return None
    waits = [idle_poll_s]
    waits += [] if done.next_s is None else [done.next_s]
    waits += [float(UNCLAIMED_AFTER_S)] if done.fired else []
    began_s = began.timestamp()
    return NextLook(place=place, looked_at=began_s, look_at=began_s + max(0.0, min(waits)))


class NextLookFile:
    """Of one control plane. What fails is logged, and costs a look."""

    def __init__(self, place: str, folder: Path | None = None) -> None:
        self._place = place
        self._path = (folder or state_folder() / FOLDER) / f"{place[:32]}.json"

    def pending(self, now: datetime, idle_poll_s: float) -> datetime | None:
        """When the next look is; None: now."""
        found = self._read()
        if found is None or found.place != self._place or not found.is_before(now, idle_poll_s):
            return None
        return datetime.fromtimestamp(found.look_at, UTC)

    def note(self, began: datetime, done: SchedulerPass, idle_poll_s: float) -> None:
        """What a tick that began then has found."""
        next_look = after_tick(self._place, began, done, idle_poll_s)
        if next_look is None:
            self.forget()
            return
        draft = self._path.with_suffix(f".{os.getpid()}.tmp")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
            with open(os.open(draft, flags, 0o600), "w", encoding="utf-8") as file:
                json.dump(asdict(next_look), file)
            draft.replace(self._path)
        except OSError as error:
            event(log, logging.INFO, "next_look_not_written", path=self._path, why=str(error))
            self.forget()

    def forget(self) -> None:
        """The next tick looks: schedules have changed."""
        with suppress(OSError):
            self._path.unlink(missing_ok=True)

    def _read(self) -> NextLook | None:
        """Of a small regular file of this user's, which no other user may write."""
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            about = os.fstat(descriptor)
            private = about.st_uid == os.geteuid() and not about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
            if not stat.S_ISREG(about.st_mode) or not private or about.st_size > SIZE_MAX:
                return None
            return NextLook.parse(os.read(descriptor, SIZE_MAX))
        except OSError:
            return None
        finally:
            os.close(descriptor)
