"""A scenario as the queue keeps it: the texts of its files, so that any host can run it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from loadgen.cli.allowed import default_connection
from loadgen.errors import ScenarioInvalid, UsageError
from loadgen.log import printable

if TYPE_CHECKING:
    from loadgen.cli.options import CommandTarget

CHARACTERS_MAX = 8_000_000  # of all texts together: a row of a hybrid table is not for more


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedScenario:
    name: str
    scenario: str  # its text, with variables filled in, but for secrets
    files: dict[str, str]  # the text of each value file, by the name that the scenario gives it
    connection: str | None  # instead of the scenario's
    target: str  # of two with the same target one runs at a time


def pack_scenario(file: Path, connection: str | None, aim: CommandTarget) -> PackedScenario:
    """The scenario that `aim` was made from, for a host that has other variables and another default connection."""
    from loadgen.scenario.model import FilePool
    from loadgen.scenario.read import portable_text

    assert aim.loaded is not None
    scenario, text = aim.loaded.scenario, portable_text(aim.loaded)
    if scenario.connection is None:
        connection = _default_connection()
    names = sorted({pool.file for pool in scenario.pools if isinstance(pool, FilePool)})
    files = {name: _text(file.parent, name) for name in names}
    size = len(text) + sum(len(content) for content in files.values())
    if size > CHARACTERS_MAX:
        raise ScenarioInvalid(
            f"{printable(str(file), 200)} and its value files have {size:,} characters;"
            f" the queue keeps {CHARACTERS_MAX:,}",
            remedy="Let the scenario take the values from a query.",
        )
    warehouse = scenario.target.warehouse or "its warehouse"
    target = f"{scenario.connection or connection}/{warehouse}"
    return PackedScenario(name=scenario.name, scenario=text, files=files, connection=connection, target=target)


def _default_connection() -> str:
    """By its name: the host that does the run may have another default one."""
    name = default_connection()
    if name is None:
        raise UsageError(
            "the scenario names no connection, and the host that does the run cannot know which one is meant",
            remedy="Name one that it has: -c NAME, or connection: in the scenario.",
        )
    return name


def _text(folder: Path, name: str) -> str:
    from loadgen.scenario.check_data import require_inside

    try:
        require_inside(folder, name)
        return (folder / name).read_text("utf-8-sig")
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ScenarioInvalid(
            f"the value file {printable(name, 200)} cannot be read: {why}",
            remedy="It is looked for beside the scenario.",
        ) from error
