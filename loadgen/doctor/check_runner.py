"""Checks in order: each in bounded time, and none that rests on a failed one."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Generic, Protocol, TypeVar

from loadgen.doctor.finding import Finding, FindingLevel, failed, skipped
from loadgen.doctor.subject import DoctorSessions
from loadgen.errors import LoadgenError
from loadgen.log import printable, redact


class Closable(Protocol):
    def close(self) -> None: ...


Resources = TypeVar("Resources", bound=Closable)
Result = TypeVar("Result")


class CheckTimeout(Exception):
    """Not done in time, and not waited for any longer."""


@dataclass(frozen=True, slots=True)
class _Hand(Generic[Resources]):
    """The thread that works at present, and what it is to do; None is the end."""

    thread: threading.Thread
    jobs: SimpleQueue[Callable[[Resources], None] | None]


class BoundedExecutor(Generic[Resources]):
    """`do` and `close` are called by one thread, the main one."""

    def __init__(self, make: Callable[[], Resources], *, name: str) -> None:
        self._make = make
        self._name = name
        self._hand: _Hand[Resources] | None = None

    def do(self, action: Callable[[Resources], Result], *, limit_s: float) -> Result:
        """The action's result; raises what it raises, and TookTooLong."""
        done = threading.Event()
        results: list[Result] = []
        errors: list[BaseException] = []

        def run(belongings: Resources) -> None:
            try:
                results.append(action(belongings))
            except BaseException as error:  # handed to the thread that waits
                errors.append(error)
            finally:
                done.set()

        hand = self._hand = self._hand or self._start()
        hand.jobs.put(run)
        if not done.wait(limit_s):
            self.close(limit_s=0)
            raise CheckTimeout
        try:
            if errors:
                raise errors[0]
            return results[0]
        finally:
            errors.clear()  # else error, traceback, frame and list would keep one another and the sessions alive

    def close(self, *, limit_s: float) -> None:
        """Let the thread close what it owns, and wait for it so long at most. Safe to call twice."""
        hand, self._hand = self._hand, None
        if hand is not None:
            hand.jobs.put(None)
            hand.thread.join(limit_s)

    def _start(self) -> _Hand[Resources]:
        jobs: SimpleQueue[Callable[[Resources], None] | None] = SimpleQueue()

        def work() -> None:
            belongings = self._make()
            while (job := jobs.get()) is not None:
                job(belongings)
            belongings.close()

        # A daemon: the program must not wait for a driver's call that does not return.
        thread = threading.Thread(target=work, name=self._name, daemon=True)
        thread.start()
        return _Hand(thread, jobs)


LIMIT_S = 20.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorCheck:
    """One check. `needs` names the checks that must have succeeded before it."""

    section: str
    name: str
    look: Callable[[DoctorSessions], Sequence[Finding]]
    needs: tuple[str, ...] = ()
    exit_code: int = 3  # when it fails


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedFinding:
    check: DoctorCheck
    finding: Finding


def run_checks(
    checks: Iterable[DoctorCheck], lane: BoundedExecutor[DoctorSessions], *, limit_s: float = LIMIT_S
) -> Iterator[CheckedFinding]:
    """What each check found, as soon as it is known."""
    broken: dict[str, str] = {}  # a check that failed or was skipped, and the failed one behind it
    for check in checks:
        obstacle = next((broken[name] for name in check.needs if name in broken), None)
        if obstacle is not None:
            broken[check.name] = obstacle
            yield CheckedFinding(check=check, finding=skipped(f"not looked at, since {obstacle!r} failed"))
            continue
        for finding in _found(check, lane, limit_s):
            if finding.mark is FindingLevel.FAILED:
                broken[check.name] = check.name
            yield CheckedFinding(check=check, finding=finding)


def exit_code(examined: Iterable[CheckedFinding]) -> int:
    """0 when nothing failed; 2 when a configuration did, else 3."""
    codes = {each.check.exit_code for each in examined if each.finding.mark is FindingLevel.FAILED}
    return min(codes, default=0)


def _found(check: DoctorCheck, lane: BoundedExecutor[DoctorSessions], limit_s: float) -> Sequence[Finding]:
    try:
        return lane.do(check.look, limit_s=limit_s)
    except CheckTimeout:
        return [failed(f"took too long: no answer within {limit_s:g} s", "Check the network, and try again.")]
    except LoadgenError as error:
        return [failed(printable(" ".join(str(error).split())), printable(error.remedy))]
    except Exception as error:  # a bug in one check must not hide what the others find
        log.exception("check_failed check=%s", check.name)
        what = printable(redact(f"unexpected {type(error).__name__}: {error}"))
        return [failed(what, "This is a bug or an unforeseen situation. Add --debug to see where it happened.")]
