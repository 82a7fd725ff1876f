"""The sessions of a few users: who has one, since when it was not used, and how many there have been.

    prepare   the session that a statement of this user would belong to: the one he has, or the next one, not yet begun
    begin     it is used from now on; the first time it is created
    end       the statement is over; a session's time to live counts from here
    sweep     sessions that were not used for their time to live expire
    lose      all expire: their connection is gone

What the next session remembers is drawn when it is prepared, before the statement's time is taken. Between prepare and
begin a session may expire; begin then says no, and another has to be prepared. Pure: told what time it is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from loadgen.model.sessions import UserSessionCounts
from loadgen.workload.generator import Value


@dataclass(slots=True, kw_only=True)
class UserSession:
    """One session of a user. Which number it is of his, from 0, makes it another than those before it."""

    user: int  # in this book
    incarnation: int
    values: tuple[Value, ...]  # what it remembers
    tag: str  # what it adds to QUERY_TAG
    used_ns: int = 0


class UserSessionTable:
    """sweep() and counts: any thread. Everything else: whoever executes the statements, one at a time."""

    def __init__(self, users: int, ttl_ns: int, make: Callable[[int, int], UserSession]) -> None:
        """`make` draws a session of a user (from 0), its number among his as the second argument."""
        self._ttl_ns, self._make = ttl_ns, make
        self._lock = threading.Lock()  # guards everything below
        self._next = [0] * users  # number of the session that each user has next
        self._living: dict[int, UserSession] = {}  # by user
        self._busy: UserSession | None = None  # a statement of it is being executed
        self._created = 0

    def prepare(self, user: int, now_ns: int) -> UserSession:
        with self._lock:
            living = self._living.get(user)
            if living is not None and not self._is_over(living, now_ns):
                return living
            # One that is over, and that nobody has swept, still stands in the book: then this is the one after it.
            number = self._next[user]
        return self._make(user, number)

    def begin(self, session: UserSession, now_ns: int) -> bool:
        """False: it has expired since it was prepared."""
        with self._lock:
            living = self._living.get(session.user)
            if living is not None and self._is_over(living, now_ns):
                del self._living[session.user]
                living = None
            if living is None:
                if session.incarnation != self._next[session.user]:
                    return False
                self._living[session.user] = session
                self._next[session.user] += 1
                self._created += 1
            elif living is not session:
                return False
            session.used_ns = now_ns
            self._busy = session
            return True

    def end(self, now_ns: int) -> None:
        with self._lock:
            if self._busy is not None:
                self._busy.used_ns = now_ns
                self._busy = None

    def lose(self) -> None:
        with self._lock:
            self._living.clear()

    def sweep(self, now_ns: int) -> None:
        with self._lock:
            for session in [one for one in self._living.values() if self._is_over(one, now_ns)]:
                del self._living[session.user]

    @property
    def counts(self) -> UserSessionCounts:
        with self._lock:
            return UserSessionCounts(created=self._created, expired=self._created - len(self._living))

    def _is_over(self, session: UserSession, now_ns: int) -> bool:
        """One that is being used is not, however long its statement takes."""
        return session is not self._busy and now_ns - session.used_ns >= self._ttl_ns
