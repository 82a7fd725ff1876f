"""Mode replay: a capture is read once, before the run, and dealt to the workers as value pools."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import zlib
from collections.abc import Iterator
from pathlib import Path
from threading import Event

from loadgen.model.capture import (
    MANIFEST_FILE,
    STATEMENTS_FILE,
    CaptureManifest,
    InvalidCapture,
    RecordedStatement,
    Replay,
    check_header,
)
from loadgen.prepare.prepare import PreparationStopped
from loadgen.scenario.check_replay import read_manifest
from loadgen.scenario.model import Scenario
from loadgen.workload.pools import Pool
from loadgen.workload.replay import CaptureUnusable, UserStatement, as_recorded, replay_pools


def deal_replay(scenario: Scenario, folder: Path, stop: Event | None = None) -> tuple[Scenario, dict[str, Pool]]:
    """Mode replay: the scenario with the plan of each worker, and what each is to send. The number of workers must be
    settled."""
    replay = scenario.load.replay
    if replay is None:
        return scenario, {}
    try:
        manifest = read_manifest(folder, replay.folder)
    except (OSError, ValueError) as error:
        raise CaptureUnusable(f"{replay.folder} is no capture: {error}") from error
    if manifest.statements_sha256 != replay.capture:
        raise CaptureUnusable(f"{replay.folder} has changed since the scenario was read", remedy="Run it again.")
    _require_described(folder / replay.folder, manifest)
    dealt = replay_pools(
        _until(stop, read_statements(folder / replay.folder)),
        manifest,
        scenario.workload.statements,
        scenario.load,
        own_database=scenario.target.database is not None,
        of_user=_fresh_values(replay) if replay.users > 1 and replay.pseudonyms else as_recorded,
    )
    load = dataclasses.replace(
        scenario.load, replay=dataclasses.replace(replay, planned=dealt.planned, recorded=dealt.recorded)
    )
    return dataclasses.replace(scenario, load=load), {pool.name: pool for pool in dealt.pools}


def _fresh_values(replay: Replay) -> UserStatement:
    """Values of each user in place of the recorded pseudonyms. The parser is slow to import, and seldom needed."""
    try:
        from loadgen.capture.statement_text import FreshValues
    except ModuleNotFoundError as error:
        raise CaptureUnusable(
            f"load.users needs a package that is not installed: {error.name}",
            remedy="Install loadgen with its extra `capture`: pip install 'loadgen[capture]'.",
        ) from error
    return FreshValues(replay.capture, replay.users).of_user


def _until(stop: Event | None, statements: Iterator[RecordedStatement]) -> Iterator[RecordedStatement]:
    for one in statements:
        if stop is not None and stop.is_set():
            raise PreparationStopped("stopped while the capture was read")
        yield one


def _require_described(folder: Path, manifest: CaptureManifest) -> None:
    path = folder / STATEMENTS_FILE
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise CaptureUnusable(f"{path} cannot be read: {error.strerror}") from error
    if found != manifest.statements_sha256:
        raise CaptureUnusable(f"{path} is damaged or was changed: {MANIFEST_FILE} describes another file")


def read_statements(folder: Path) -> Iterator[RecordedStatement]:
    """The statements of a capture, in order."""
    path = folder / STATEMENTS_FILE
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            check_header(file.readline())
            for line in file:
                yield RecordedStatement.of_line(line)
    except (OSError, EOFError, zlib.error, UnicodeDecodeError, InvalidCapture) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise CaptureUnusable(f"{path} cannot be read: {reason}") from error
