"""How many user sessions there were: counts that can be added, over the clients of a worker and over workers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class UserSessionCounts:
    """Whatever ended a session before the load did, it has expired."""

    created: int = 0
    expired: int = 0

    @property
    def current(self) -> int:
        return self.created - self.expired

    def __add__(self, other: UserSessionCounts) -> UserSessionCounts:
        return UserSessionCounts(created=self.created + other.created, expired=self.expired + other.expired)

    def document(self) -> dict[str, int]:
        """As results and reports write it."""
        return {"created": self.created, "expired": self.expired, "current": self.current}
