"""What only shows between keys. Runs on what is left when wrong keys and types are taken out: nothing is held back."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from loadgen.identifiers import canonical, is_name
from loadgen.scenario.build import load_of
from loadgen.scenario.check_data import check_data
from loadgen.scenario.check_load import check_load
from loadgen.scenario.check_workload import check_sessions, check_workload
from loadgen.scenario.document import KeyPath
from loadgen.scenario.file import ScenarioFile
from loadgen.scenario.keys import applies_to, is_section, values_of
from loadgen.scenario.load import workers_of
from loadgen.scenario.model import EMBEDDED, WORKERS_MAX, LoadMode, TableType
from loadgen.scenario.settings import SpawnerKind
from loadgen.scenario.types import InvalidValue, Label
from loadgen.scenario.validation import CheckedDocument
from loadgen.units import format_duration_s

LABELS_MAX = 50

_OWN_PARAMETERS = {
    "USE_CACHED_RESULT": "target.use_cached_result says it",
    "STATEMENT_TIMEOUT_IN_SECONDS": "target.statement_timeout says it",
    "QUERY_TAG": "loadgen tags its statements, so that they can be counted",
    "TIMEZONE": "sessions are in UTC",
    "AUTOCOMMIT": "transaction: says what belongs together",
    "ABORT_DETACHED_QUERY": "loadgen leaves nothing running",
    "CLIENT_TELEMETRY_ENABLED": "loadgen sends none",
    "MULTI_STATEMENT_COUNT": "a statement is one statement",
}


def check(checked: CheckedDocument, folder: Path | None) -> None:
    """All checks between keys; problems and warnings are noted in the document."""
    file = checked.file
    if file is None:
        return
    _check_applies(checked, file, ())
    check_load(checked, file.load)
    check_workload(checked, file)
    check_data(checked, file, folder)
    check_sessions(checked, file)
    _check_words(checked, file)
    _check_control(checked, file)
    _check_session(checked, file)
    _check_sharding(checked, file)
    _check_key_column(checked, file)
    _check_threshold_times(checked, file)
    _check_features(checked, file)
    _check_notify(checked, file)
    _check_timing(checked, file)


def _check_applies(checked: CheckedDocument, section: Any, path: KeyPath) -> None:
    """Keys without a meaning for the mode (or kind) beside them, in all sections."""
    for name, declared, value in values_of(section):
        place: KeyPath = (*path, name)
        applies = declared.applies
        ignored = not applies_to(section, declared) and checked.given(place)
        if applies is not None and ignored and checked.fine((*path, applies.selector)):
            chosen = f"and the {applies.selector} is {getattr(section, applies.selector)}"
            what = f"belongs to {applies.selector} {' and '.join(applies.values)}, {chosen}"
            checked.problem(place, what, f"remove it, or write {applies.selector}: {applies.values[0]}", at_key=True)
        inner: Iterable[tuple[KeyPath, Any]] = [(place, value)]
        if isinstance(value, (tuple, dict)):
            items = value.items() if isinstance(value, dict) else enumerate(value)
            inner = [((*place, part), one) for part, one in items]
        for below, one in inner:
            if is_section(type(one)):
                _check_applies(checked, one, below)


def _check_words(checked: CheckedDocument, file: ScenarioFile) -> None:
    """Keys that are the user's own."""
    for section, keys in (("labels", list(file.labels)), ("values", list(file.values))):
        for key in keys:
            try:
                Label().parse(key)
            except InvalidValue as wrong:
                checked.problem((section, key), f"as a key {wrong.what}", wrong.hint, at_key=True)
    if len(file.labels) > LABELS_MAX:
        checked.problem(("labels",), f"has more than {LABELS_MAX} labels", at_key=True)


def _check_control(checked: CheckedDocument, file: ScenarioFile) -> None:
    control, target = file.control, file.target
    place: KeyPath = ("control", "warehouse")
    if not checked.fine(place, ("target", "warehouse"), ("control", "connection"), ("control", "share_warehouse")):
        return
    elsewhere = control.connection not in (None, file.connection)
    if elsewhere or control.share_warehouse or target.warehouse is None:
        return
    if canonical(control.warehouse) == canonical(target.warehouse):
        hint = "name another warehouse, or write control: {share_warehouse: true}"
        what = "the control plane would use the warehouse that is measured"
        checked.problem(place if checked.given(place) else ("target", "warehouse"), what, hint)


def _check_session(checked: CheckedDocument, file: ScenarioFile) -> None:
    for key in file.target.session:
        path: KeyPath = ("target", "session", key)
        if not is_name(key) or key.startswith('"'):
            checked.problem(path, "is not the name of a session parameter", "write letters, digits and _", at_key=True)
        elif key.upper() in _OWN_PARAMETERS:
            what = "cannot be set here: results depend on it"
            checked.problem(path, what, _OWN_PARAMETERS[key.upper()], at_key=True)


def _check_sharding(checked: CheckedDocument, file: ScenarioFile) -> None:
    path: KeyPath = ("sharding", "key_range")
    if not checked.fine(path):
        return
    keys = file.sharding.key_range
    if len(keys) != 2 or keys[0] > keys[1]:
        checked.problem(path, "must be [first, last] with first ≤ last", "for example key_range: [1, 1000000]")
        return
    if not file.sharding.enabled or not checked.fine(("sharding", "enabled"), ("load",)):
        return
    workers = workers_of(load_of(file.load), cores=WORKERS_MAX)
    if keys[1] - keys[0] + 1 < workers:
        checked.problem(path, f"has fewer keys than the {workers:,} workers that may share it", "widen it")


def _check_key_column(checked: CheckedDocument, file: ScenarioFile) -> None:
    """The columns of a table of type existing are not known here."""
    path: KeyPath = ("sharding", "key_column")
    tables = file.prepare.tables
    if not file.sharding.enabled or not tables or not checked.fine(path, ("sharding", "enabled"), ("prepare",)):
        return
    if any(table.type is TableType.EXISTING for table in tables):
        return
    columns = dict.fromkeys(column.name for table in tables for column in table.columns)
    if canonical(file.sharding.key_column) not in map(canonical, columns):
        hint = f"name one of their columns: {', '.join(columns)}"
        checked.problem(path, "is a column of no table of prepare", hint)


def _check_threshold_times(checked: CheckedDocument, file: ScenarioFile) -> None:
    if not checked.fine(("load", "mode"), ("load", "duration"), ("load", "stages")):
        return
    if file.load.mode is LoadMode.FIND_MAX:
        for number in range(len(file.thresholds)):
            _check_threshold_of_steps(checked, ("thresholds", number))
        return
    lasting_s = file.load.measured_s
    for number, threshold in enumerate(file.thresholds):
        path: KeyPath = ("thresholds", number)
        rules = (
            ("window", (threshold.window_s or 0.0) <= lasting_s, "is longer than"),
            ("after", threshold.after_s < lasting_s, "is not shorter than"),
        )
        for key, holds, what in rules:
            if not holds and checked.fine((*path, key)):
                measurement = f"the measurement, {format_duration_s(lasting_s)}"
                checked.problem((*path, key), f"{what} {measurement}", "the check would never be made; shorten it")


def _check_threshold_of_steps(checked: CheckedDocument, path: KeyPath) -> None:
    for key in ("window", "after", "abort"):
        if checked.given((*path, key)):
            what = "belongs to modes concurrency and rate: find_max judges each step as a whole, and goes on"
            checked.problem((*path, key), what, "remove it", at_key=True)


def _check_features(checked: CheckedDocument, file: ScenarioFile) -> None:
    if file.connection not in (None, EMBEDDED) and checked.given(("embedded",)) and checked.fine(("connection",)):
        checked.warn(("embedded",), "is read for connection embedded only, and the connection is another")
    for key in ("compute_pool", "image"):
        path: KeyPath = ("spawner", key)
        if not checked.fine(path, ("spawner", "kind")):
            continue
        if file.spawner.kind is SpawnerKind.SPCS and not checked.given(path):
            checked.problem(path, "is missing: kind spcs needs it", f"add {key}: …")


def _check_notify(checked: CheckedDocument, file: ScenarioFile) -> None:
    ways = ("webhook", "command", "ping")
    for number, one in enumerate(file.notify):
        path: KeyPath = ("notify", number)
        if not checked.fine(path):
            continue
        given = [way for way in ways if getattr(one, way)]
        if len(given) != 1:
            what = f"has {' and '.join(given)}" if given else "has nobody to tell"
            checked.problem(path, what, "write one of webhook, command and ping")
        if not one.on:
            checked.problem((*path, "on"), "is empty: nobody would ever be told", "leave it out, or write [always]")


def _check_timing(checked: CheckedDocument, file: ScenarioFile) -> None:
    timing = file.timing
    rules = (
        ("heartbeat", "stale", timing.heartbeat_s < timing.stale_s, "must be shorter than stale"),
        ("stale", "dead", timing.stale_s < timing.dead_s, "must be shorter than dead"),
        (
            "lease_renew",
            "lease_ttl",
            timing.lease_renew_s + timing.lease_margin_s < timing.lease_ttl_s,
            "with lease_margin must be shorter than lease_ttl",
        ),
    )
    for key, other, holds, what in rules:
        if not holds and checked.fine(("timing", key), ("timing", other), ("timing", "lease_margin")):
            place = key if checked.given(("timing", key)) else other
            what = what if place == key else f"is too short for {key}"
            checked.problem(("timing", place), what, "all are durations of the same machinery")
