"""The connections, field by field: what was found, and where. Secrets show as ****."""

from __future__ import annotations

from collections.abc import Sequence

from loadgen.doctor.finding import Finding, ok, warning
from loadgen.doctor.subject import DoctorTarget
from loadgen.log import printable
from loadgen.snowflake.ident import Identifier, InvalidIdentifier
from loadgen.snowflake.profile import ConnectionProfile


def connection(profile: ConnectionProfile) -> Sequence[Finding]:
    """One connection, and everything that its files and variables gave cause to say."""
    found = [ok(f"{printable(profile.name, 80)}: {printable(profile.address, 120)}", *_fields(profile))]
    remedy = "Correct it there; `loadgen connections list` shows which files are read."
    found += [warning(printable(text), remedy) for text in profile.warnings]
    if profile.unused:
        found.append(
            warning(
                f"not used, since loadgen decides it: {printable(', '.join(profile.unused), 500)}",
                "Nothing has to be done; remove them if they are for loadgen alone.",
            )
        )
    return found


def _fields(profile: ConnectionProfile) -> list[str]:
    rows = [
        (key, printable(profile.text(key) or "", 120), printable(profile.origin(key) or "", 300))
        for key in sorted(profile.fields)
    ]
    widths = [max(map(len, column)) for column in list(zip(*rows, strict=True))[:2]] if rows else [0, 0]
    return [f"{key.ljust(widths[0])}  {value.ljust(widths[1])}  {origin}".rstrip() for key, value, origin in rows]


def scenario(subject: DoctorTarget) -> Sequence[Finding]:
    """What the scenario's reader had to say, and whether load and control plane keep out of each other's way."""
    assert subject.loaded is not None
    found = [
        warning(printable(str(each)), "`loadgen validate FILE --plan` shows what it means.")
        for each in subject.loaded.warnings
    ]
    control = subject.loaded.scenario.control
    if not subject.is_apart and not control.share_warehouse and _same(subject.warehouse(), control.warehouse):
        found.append(
            warning(
                f"the control plane uses the target's own warehouse, {printable(control.warehouse, 80)}",
                "Set control.warehouse to another one: heartbeats would queue behind the load and add to it.",
            )
        )
    return found or [ok(printable(subject.loaded.scenario.name, 80))]


def _same(first: str | None, second: str) -> bool:
    try:
        return first is not None and Identifier.parse(first) == Identifier.parse(second)
    except InvalidIdentifier:
        return False
