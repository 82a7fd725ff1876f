"""What only shows between keys. Runs on what is left when wrong keys and types are taken out: nothing is held back."""

from __future__ import annotations

from pathlib import Path

from loadgen.scenario.check_data import check_data
from loadgen.scenario.check_load import check_load, duration_s
from loadgen.scenario.check_workload import check_workload
from loadgen.scenario.field import Word, Wrong
from loadgen.scenario.file import ScenarioFile
from loadgen.scenario.name import canonical, is_name
from loadgen.scenario.problem import KeyPath
from loadgen.scenario.scenario import CONTROL_WAREHOUSE, LoadMode, QueryLogMode, SpawnerKind
from loadgen.scenario.validation import Checked
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


def check(checked: Checked, folder: Path | None) -> None:
    """All checks between keys; problems and warnings are noted in the document."""
    file = checked.file
    if file is None:
        return
    check_load(checked, file.load)
    check_workload(checked, file)
    check_data(checked, file, folder)
    _check_words(checked, file)
    _check_control(checked, file)
    _check_session(checked, file)
    _check_sharding(checked, file)
    _check_threshold_times(checked, file)
    _check_features(checked, file)
    _check_timing(checked, file)


def _check_words(checked: Checked, file: ScenarioFile) -> None:
    """Keys that are the user's own."""
    for section, keys in (("labels", list(file.labels)), ("values", list(file.values))):
        for key in keys:
            try:
                Word().parse(key)
            except Wrong as wrong:
                checked.problem((section, key), f"as a key {wrong.what}", wrong.hint, at_key=True)
    if len(file.labels) > LABELS_MAX:
        checked.problem(("labels",), f"has more than {LABELS_MAX} labels", at_key=True)


def _check_control(checked: Checked, file: ScenarioFile) -> None:
    control, target = file.control, file.target
    place: KeyPath = ("control", "warehouse")
    if not checked.fine(place, ("target", "warehouse"), ("control", "connection"), ("control", "share_warehouse")):
        return
    elsewhere = control.connection not in (None, file.connection)
    if elsewhere or control.share_warehouse or target.warehouse is None:
        return
    if canonical(control.warehouse or CONTROL_WAREHOUSE) == canonical(target.warehouse):
        hint = "name another warehouse, or write share_warehouse: true"
        what = "the control plane would use the warehouse that is measured"
        checked.problem(place if checked.given(place) else ("target", "warehouse"), what, hint)


def _check_session(checked: Checked, file: ScenarioFile) -> None:
    for key in file.target.session:
        path: KeyPath = ("target", "session", key)
        if not is_name(key) or key.startswith('"'):
            checked.problem(path, "is not the name of a session parameter", "write letters, digits and _", at_key=True)
        elif key.upper() in _OWN_PARAMETERS:
            what = "cannot be set here: results depend on it"
            checked.problem(path, what, _OWN_PARAMETERS[key.upper()], at_key=True)


def _check_sharding(checked: Checked, file: ScenarioFile) -> None:
    path: KeyPath = ("sharding", "key_range")
    if not checked.fine(path):
        return
    keys = file.sharding.key_range
    if len(keys) != 2 or keys[0] > keys[1]:
        checked.problem(path, "must be [first, last] with first ≤ last", "for example key_range: [1, 1000000]")
        return
    workers = file.load.workers if file.sharding.enabled and checked.fine(("load", "workers")) else None
    if workers is not None and keys[1] - keys[0] + 1 < workers:
        checked.problem(path, f"has fewer keys than the {workers:,} workers that share it", "widen it")


def _check_threshold_times(checked: Checked, file: ScenarioFile) -> None:
    if file.load.mode is LoadMode.FIND_MAX or not checked.fine(("load", "duration"), ("load", "stages")):
        return
    lasting_s = duration_s(file.load)
    for number, threshold in enumerate(file.thresholds):
        path: KeyPath = ("thresholds", number)
        for key, value_s in (("window", threshold.window or 0.0), ("after", threshold.after)):
            too_long = value_s > lasting_s or (key == "after" and value_s == lasting_s)
            if too_long and checked.fine((*path, key)):
                what = f"is not shorter than the measurement, {format_duration_s(lasting_s)}"
                checked.problem((*path, key), what, "the check would never be made; shorten it")


def _check_features(checked: Checked, file: ScenarioFile) -> None:
    if file.sessions.count and checked.fine(("sessions", "count")):
        checked.problem(("sessions", "count"), "logical sessions are not supported yet", "write count: 0")
    rate: KeyPath = ("query_log", "sample_rate")
    sampling = file.query_log.mode is QueryLogMode.SAMPLE
    if checked.fine(rate, ("query_log", "mode")) and not sampling and checked.given(rate):
        checked.problem(rate, "belongs to mode sample", f"the mode is {file.query_log.mode}; remove it", at_key=True)
    for key in ("compute_pool", "image"):
        path: KeyPath = ("spawner", key)
        if not checked.fine(path, ("spawner", "kind")):
            continue
        if file.spawner.kind is SpawnerKind.SPCS and not checked.given(path):
            checked.problem(path, "is missing: kind spcs needs it", f"add {key}: …")
        elif file.spawner.kind is not SpawnerKind.SPCS and checked.given(path):
            checked.problem(path, "belongs to kind spcs", f"the kind is {file.spawner.kind}; remove it", at_key=True)


def _check_timing(checked: Checked, file: ScenarioFile) -> None:
    timing = file.timing
    rules = (
        ("heartbeat", "stale", timing.heartbeat < timing.stale, "must be shorter than stale"),
        ("stale", "dead", timing.stale < timing.dead, "must be shorter than dead"),
        (
            "lease_renew",
            "lease_ttl",
            timing.lease_renew + timing.lease_margin < timing.lease_ttl,
            "with lease_margin must be shorter than lease_ttl",
        ),
    )
    for key, other, holds, what in rules:
        if not holds and checked.fine(("timing", key), ("timing", other), ("timing", "lease_margin")):
            place = key if checked.given(("timing", key)) else other
            what = what if place == key else f"is too short for {key}"
            checked.problem(("timing", place), what, "all are durations of the same machinery")
