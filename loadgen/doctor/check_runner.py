"""Checks in order: each in bounded time, and none that rests on a failed one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from loadgen.doctor.bounded_executor import BoundedExecutor, CheckTimeout
from loadgen.doctor.finding import Finding, FindingLevel, failed, skipped
from loadgen.doctor.subject import DoctorSessions
from loadgen.errors import LoadgenError
from loadgen.log import printable, redact

LIMIT_S = 20.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorCheck:
    """One thing to look at. `needs` are the names of checks without whose success it makes no sense."""

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
