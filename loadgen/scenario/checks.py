"""Rules between keys. They run on the part of the file without wrong keys and types, so all problems are shown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from loadgen.identifiers import canonical, is_name
from loadgen.model.capture import CaptureManifest
from loadgen.model.workload import ARRIVALS_MAX, databases_of
from loadgen.scenario.build import load_of
from loadgen.scenario.check_data import check_data
from loadgen.scenario.check_spawner import check_spawner
from loadgen.scenario.check_workload import check_sessions, check_workload
from loadgen.scenario.document import KeyPath
from loadgen.scenario.file import LoadSection, ScenarioFile
from loadgen.scenario.keys import applies_to, declared_keys, is_section, values_of
from loadgen.scenario.load import workers_of
from loadgen.scenario.model import (
    EMBEDDED,
    SEARCHING_PROCESSES_MAX,
    WORKERS_MAX,
    LoadMode,
    TableType,
    WorkerProfile,
    stage_name,
)
from loadgen.scenario.replay import replay_s
from loadgen.scenario.types import InvalidValue, Label
from loadgen.scenario.validation import CheckedDocument
from loadgen.units import format_duration_s

_LOAD: KeyPath = ("load",)
CEILING_KEY = {
    LoadMode.CONCURRENCY: "connections",
    LoadMode.RATE: "max_connections",
    LoadMode.FIND_MAX: "find_max",
    LoadMode.REPLAY: "max_connections",
}


def check_load(checked: CheckedDocument, load: LoadSection) -> None:
    if not checked.fine((*_LOAD, "mode")):
        return
    _check_rate_is_given(checked, load)
    _check_stages(checked, load)
    _check_ramp(checked, load)
    _check_levels(checked, load)
    _check_workers(checked, load)


def _check_rate_is_given(checked: CheckedDocument, load: LoadSection) -> None:
    needs_rate = load.mode is LoadMode.RATE and not load.stages and checked.fine((*_LOAD, "stages"))
    if needs_rate and load.rate_per_second is None and checked.fine((*_LOAD, "rate")):
        checked.problem((*_LOAD, "rate"), "is missing: mode rate needs it", "add rate: 500/s")
    think_time: KeyPath = ("workload", "think_time")
    on_schedule = load.mode in (LoadMode.RATE, LoadMode.REPLAY)
    if on_schedule and checked.given(think_time) and checked.fine(think_time):
        what = f"belongs to closed loops, and mode {load.mode} sends on schedule"
        checked.problem(think_time, what, "remove it; the schedule says when", at_key=True)


def _check_stages(checked: CheckedDocument, load: LoadSection) -> None:
    if not load.stages or load.mode in (LoadMode.FIND_MAX, LoadMode.REPLAY):
        return
    for key in ("connections", "duration", "rate"):
        if checked.given((*_LOAD, key)) and applies_to(load, declared_keys(LoadSection)[key]):
            checked.problem((*_LOAD, key), "is set by the stages", "remove it, or remove the stages", at_key=True)
    wanted, foreign = ("connections", "rate") if load.mode is LoadMode.CONCURRENCY else ("rate", "connections")
    seen: set[str] = set()
    for number, stage in enumerate(load.stages):
        path: KeyPath = (*_LOAD, "stages", number)
        if not checked.given((*path, wanted)) and checked.fine((*path, wanted)):
            checked.problem((*path, wanted), f"is missing: each stage of mode {load.mode} needs it", f"add {wanted}: …")
        if checked.given((*path, foreign)):
            checked.problem((*path, foreign), f"does not belong to mode {load.mode}", "remove it", at_key=True)
        if stage.name in seen and checked.fine((*path, "name")):
            checked.problem((*path, "name"), "is the name of another stage too", "names tell them apart in results")
        seen.add(stage.name or stage_name(number + 1))
        if number == 0 and stage.ramp_s and (load.warmup_s or load.ramp_s) and checked.fine((*path, "ramp")):
            what = "the first level is reached in the warm-up" if load.warmup_s else "load.ramp sets it"
            checked.problem((*path, "ramp"), what, "write load.ramp instead", at_key=True)
        elif stage.ramp_s > stage.duration_s and checked.fine((*path, "ramp"), (*path, "duration")):
            checked.problem((*path, "ramp"), "is longer than the stage", "shorten it")


def _check_ramp(checked: CheckedDocument, load: LoadSection) -> None:
    parts = [(*_LOAD, key) for key in ("ramp", "warmup", "duration", "stages")]
    if load.mode in (LoadMode.FIND_MAX, LoadMode.REPLAY) or not checked.fine(*parts):
        return
    first_s = load.stages[0].duration_s if load.stages else load.measured_s
    if load.ramp_s > load.warmup_s + first_s:
        what = "is longer than the warm-up and the first stage" if load.stages else "is longer than the whole run"
        checked.problem((*_LOAD, "ramp"), what, "shorten it; best to the length of the warm-up")
    elif load.ramp_s > load.warmup_s:
        checked.warn((*_LOAD, "ramp"), "is longer than the warm-up, so the measurement begins below its level")
    if load.mode is LoadMode.RATE:
        _check_something_is_due(checked, load)


def _check_something_is_due(checked: CheckedDocument, load: LoadSection) -> None:
    if not checked.fine((*_LOAD, "rate")):
        return
    levels = [(stage.rate_per_second or 0.0, stage.duration_s) for stage in load.stages] or [
        (load.rate_per_second or 0.0, load.measured_s)
    ]
    due = sum(rate * lasting_s for rate, lasting_s in levels)
    place: KeyPath = (*_LOAD, "stages") if load.stages else (*_LOAD, "rate")
    if 0 < due < 1:
        checked.problem(place, "is so low that no statement is due in the measurement", "raise it")
    elif due + levels[0][0] * load.warmup_s > ARRIVALS_MAX:
        checked.problem(place, f"makes more than {ARRIVALS_MAX:,} statements", "lower it, or run for a shorter time")


def _check_levels(checked: CheckedDocument, load: LoadSection) -> None:
    if load.mode is LoadMode.FIND_MAX:
        _check_find_max(checked, load)
    if load.mode is not LoadMode.CONCURRENCY or not checked.fine((*_LOAD, "min_connections")):
        return
    levels: list[tuple[KeyPath, int]] = [
        ((*_LOAD, "stages", number, "connections"), stage.connections)
        for number, stage in enumerate(load.stages)
        if stage.connections is not None
    ]
    if not load.stages:
        levels = [((*_LOAD, "connections"), load.connections)]
    for path, connections in levels:
        if connections < load.min_connections and checked.fine(path):
            checked.problem(path, f"is below min_connections, {load.min_connections:,}", "raise it, or lower the other")


def _check_find_max(checked: CheckedDocument, load: LoadSection) -> None:
    path: KeyPath = (*_LOAD, "find_max")
    if not checked.fine((*path, "start"), (*path, "maximum")):
        return
    config = load.find_max
    if config.start > config.maximum:
        checked.problem((*path, "start"), f"is above maximum, {config.maximum:,}", "lower it, or raise maximum")
    if config.start < load.min_connections and checked.fine((*_LOAD, "min_connections")):
        what = f"is below load.min_connections, {load.min_connections:,}"
        checked.problem((*path, "start"), what, "raise it, or lower the other")


def _check_workers(checked: CheckedDocument, load: LoadSection) -> None:
    top_key = "stages" if load.stages else CEILING_KEY[load.mode]
    keys = ("workers", "per_worker_connections", "profile", top_key)
    if load.mode is LoadMode.REPLAY or not checked.fine(*((*_LOAD, key) for key in keys)):
        return
    top, workers = load.ceiling, load.workers
    each = None if load.mode is LoadMode.FIND_MAX else load.per_worker_connections  # refused there already
    each_path: KeyPath = (*_LOAD, "per_worker_connections")
    if load.profile is WorkerProfile.PROCESS:
        if each not in (None, 1):
            checked.problem(each_path, "profile process has one connection per worker", "remove it")
        if workers not in (None, top):
            what = f"profile process has one worker per connection, that is {top:,}"
            checked.problem((*_LOAD, "workers"), what, "write workers: auto")
        if load.mode is LoadMode.FIND_MAX and top > SEARCHING_PROCESSES_MAX:
            most = SEARCHING_PROCESSES_MAX
            what = f"process with mode find_max would start {top:,} processes at once, one per connection of maximum"
            hint = f"set load.find_max.maximum to {most} or less, or use profile: thread"
            checked.problem((*_LOAD, "profile"), what, hint)
        elif workers is None and top > 1_000:
            checked.problem((*_LOAD, "profile"), f"process would start {top:,} processes", "use profile: thread")
        return
    if each is not None and workers is not None and workers * each != top:
        total = f"{workers:,} workers × {each:,} connections are {workers * each:,}, not {top:,}"
        checked.problem(each_path, total, "make them agree, or leave this one out")
    elif each is not None and workers is None and top % each:
        checked.problem(each_path, f"{top:,} connections cannot be split into workers of {each:,}", "leave it out")
    elif each is not None and workers is None and top // each > 1_000:
        checked.problem(each_path, f"would start {top // each:,} workers", "raise it, or leave it out")
    elif workers is not None and workers > top and load.mode is LoadMode.RATE:
        what = f"{workers:,} workers share {top:,} connections: some could not send their part of the rate"
        checked.problem((*_LOAD, "workers"), what, "lower it, or raise max_connections")
    elif workers is not None and workers > top:
        checked.warn((*_LOAD, "workers"), f"{workers:,} workers share {top:,} connections: some will have none")


LABELS_MAX = 50

_OWN_PARAMETERS = {
    "USE_CACHED_RESULT": "set target.use_cached_result",
    "STATEMENT_TIMEOUT_IN_SECONDS": "set target.statement_timeout",
    "QUERY_TAG": "loadgen tags its statements, so that they can be counted",
    "TIMEZONE": "sessions are in UTC",
    "AUTOCOMMIT": "list the statements of a transaction under transaction:",
    "ABORT_DETACHED_QUERY": "loadgen sets it, so that no statement keeps running",
    "CLIENT_TELEMETRY_ENABLED": "loadgen turns telemetry off",
    "MULTI_STATEMENT_COUNT": "write one statement per entry",
}


def check(checked: CheckedDocument, folder: Path | None, capture: CaptureManifest | None = None) -> None:
    """All checks between keys; problems and warnings are noted in the document. `capture` is what mode replay sends."""
    file = checked.file
    if file is None:
        return
    _check_applies(checked, file, ())
    check_load(checked, file.load)
    check_workload(checked, file, capture)
    check_data(checked, file, folder)
    check_sessions(checked, file)
    _check_names_of_user(checked, file)
    _check_control(checked, file)
    _check_hybrid_quota(checked, file)
    _check_session(checked, file)
    _check_sharding(checked, file)
    _check_key_column(checked, file)
    _check_threshold_times(checked, file, capture)
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


def _check_names_of_user(checked: CheckedDocument, file: ScenarioFile) -> None:
    """Keys that the user chooses: labels and pools."""
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


def _check_hybrid_quota(checked: CheckedDocument, file: ScenarioFile) -> None:
    """Snowflake limits the operations on hybrid tables per database: a load there would throttle the control plane."""
    control, used = file.control, canonical(file.control.database)
    if not checked.fine(("control", "database"), ("control", "connection"), ("connection",)):
        return
    if control.connection not in (None, file.connection) or file.connection == EMBEDDED:
        return
    for place, databases in _databases(file):
        if checked.fine(place) and used in databases:
            verb = "is" if place == ("target", "database") else "uses"
            what = f"{verb} the database of the control plane, and hybrid tables of a database share one limit"
            checked.warn(place, f"{what} of operations: name another one here or in control.database")
            return


def _databases(file: ScenarioFile) -> Iterator[tuple[KeyPath, tuple[str, ...]]]:
    """Where databases are named, by themselves or in the names of tables."""
    if file.target.database is not None:
        yield ("target", "database"), (canonical(file.target.database),)
    for number, table in enumerate(file.prepare.tables):
        yield ("prepare", "tables", number, "name"), databases_of(table.name)
    for number, text in enumerate(file.prepare.statements):
        yield ("prepare", "statements", number), databases_of(text)
    for number, statement in enumerate(file.workload.statements):
        texts = [statement.sql or "", *(part.sql for part in statement.transaction or ())]
        yield ("workload", "statements", number), tuple(name for text in texts for name in databases_of(text))


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


def _check_threshold_times(checked: CheckedDocument, file: ScenarioFile, capture: CaptureManifest | None) -> None:
    if not checked.fine(("load", "mode"), ("load", "duration"), ("load", "stages")):
        return
    if file.load.mode is LoadMode.FIND_MAX:
        for number in range(len(file.thresholds)):
            _check_threshold_of_steps(checked, ("thresholds", number))
        return
    if file.load.mode is LoadMode.REPLAY and capture is None:
        return
    lasting_s = file.load.measured_s if capture is None else replay_s(capture, file.load.speed)
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
            what = "belongs to modes concurrency and rate: find_max judges each step as a whole, and continues"
            checked.problem((*path, key), what, "remove it", at_key=True)


def _check_features(checked: CheckedDocument, file: ScenarioFile) -> None:
    if file.connection not in (None, EMBEDDED) and checked.given(("embedded",)) and checked.fine(("connection",)):
        checked.warn(("embedded",), "is read for connection embedded only, and the connection is another")
    check_spawner(checked, file.spawner)


def _check_notify(checked: CheckedDocument, file: ScenarioFile) -> None:
    ways = ("webhook", "command", "ping")
    for number, one in enumerate(file.notify):
        path: KeyPath = ("notify", number)
        if not checked.fine(path):
            continue
        given = [way for way in ways if getattr(one, way)]
        if len(given) != 1:
            what = f"has {' and '.join(given)}" if given else "has no receiver"
            checked.problem(path, what, "write one of webhook, command and ping")
        if not one.on:
            checked.problem(
                (*path, "on"), "is empty, so the message would never be sent", "leave it out, or write [always]"
            )


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
            checked.problem(("timing", place), what, "change one of them")
