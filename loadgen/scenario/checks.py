"""Rules between keys. They run on the part of the file without wrong keys and types, so all problems are shown.

This module has the rules of `load` and of small sections; `check_workload` and `check_data` have the others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from loadgen.identifiers import canonical, is_name
from loadgen.model.capture import CaptureManifest
from loadgen.model.workload import ARRIVALS_MAX, databases_of
from loadgen.scenario.check_data import check_data
from loadgen.scenario.check_workload import check_sessions, check_sharding, check_threshold_times, check_workload
from loadgen.scenario.document import KeyPath
from loadgen.scenario.file import CheckedScenario, LoadSection, ScenarioFile
from loadgen.scenario.keys import applies_to, declared_keys, is_section, values_of
from loadgen.scenario.model import EMBEDDED, SEARCHING_PROCESSES_MAX, WORKERS_MAX, LoadMode, WorkerProfile, stage_name
from loadgen.scenario.settings import (
    OWN_LABELS,
    SpawnerKind,
    SpawnerSettings,
    TaintEffect,
    Toleration,
    TolerationOperator,
    is_label_key,
)
from loadgen.scenario.value_types import InvalidValue, Label

CEILING_KEY = {
    LoadMode.CONCURRENCY: "connections",
    LoadMode.RATE: "max_connections",
    LoadMode.FIND_MAX: "find_max",
    LoadMode.REPLAY: "max_connections",
}


def _check_load(checked: CheckedScenario, load: LoadSection) -> None:
    if not checked.fine("load.mode"):
        return
    _check_rate_is_given(checked, load)
    _check_stages(checked, load)
    _check_ramp(checked, load)
    _check_levels(checked, load)
    _check_workers(checked, load)


def _check_rate_is_given(checked: CheckedScenario, load: LoadSection) -> None:
    needs_rate = load.mode is LoadMode.RATE and not load.stages and checked.fine("load.stages")
    if needs_rate and load.rate_per_second is None and checked.fine("load.rate"):
        checked.problem("load.rate", "is missing: mode rate needs it", "add rate: 500/s")
    think_time = "workload.think_time"
    if load.is_open_loop and checked.given(think_time) and checked.fine(think_time):
        what = f"belongs to closed loops, and mode {load.mode} sends on schedule"
        checked.key_problem(think_time, what, "remove it; the schedule says when")


def _check_stages(checked: CheckedScenario, load: LoadSection) -> None:
    if not load.stages or load.mode in (LoadMode.FIND_MAX, LoadMode.REPLAY):
        return
    for key in ("connections", "duration", "rate"):
        if checked.given(f"load.{key}") and applies_to(load, declared_keys(LoadSection)[key]):
            checked.key_problem(f"load.{key}", "is set by the stages", "remove it, or remove the stages")
    wanted, foreign = ("connections", "rate") if load.mode is LoadMode.CONCURRENCY else ("rate", "connections")
    seen: set[str] = set()
    for number, stage in enumerate(load.stages):
        path: KeyPath = ("load", "stages", number)
        if not checked.given((*path, wanted)) and checked.fine((*path, wanted)):
            checked.problem((*path, wanted), f"is missing: each stage of mode {load.mode} needs it", f"add {wanted}: …")
        if checked.given((*path, foreign)):
            checked.key_problem((*path, foreign), f"does not belong to mode {load.mode}", "remove it")
        if stage.name in seen and checked.fine((*path, "name")):
            checked.problem(
                (*path, "name"), "is the name of another stage too", "rename one: results are listed by name"
            )
        seen.add(stage.name or stage_name(number + 1))
        if number == 0 and stage.ramp_s and (load.warmup_s or load.ramp_s) and checked.fine((*path, "ramp")):
            what = "the first level is reached in the warm-up" if load.warmup_s else "load.ramp sets it"
            checked.key_problem((*path, "ramp"), what, "write load.ramp instead")
        elif stage.ramp_s > stage.duration_s and checked.fine((*path, "ramp"), (*path, "duration")):
            checked.problem((*path, "ramp"), "is longer than the stage", "shorten it")


def _check_ramp(checked: CheckedScenario, load: LoadSection) -> None:
    parts = ("load.ramp", "load.warmup", "load.duration", "load.stages")
    if load.mode in (LoadMode.FIND_MAX, LoadMode.REPLAY) or not checked.fine(*parts):
        return
    first_s = load.stages[0].duration_s if load.stages else load.measured_s
    if load.ramp_s > load.warmup_s + first_s:
        what = "is longer than the warm-up and the first stage" if load.stages else "is longer than the whole run"
        checked.problem("load.ramp", what, "shorten it; best to the length of the warm-up")
    elif load.ramp_s > load.warmup_s:
        checked.warn("load.ramp", "is longer than the warm-up, so the measurement begins below its level")
    if load.mode is LoadMode.RATE:
        _check_something_is_due(checked, load)


def _check_something_is_due(checked: CheckedScenario, load: LoadSection) -> None:
    if not checked.fine("load.rate"):
        return
    levels = [(stage.rate_per_second or 0.0, stage.duration_s) for stage in load.stages] or [
        (load.rate_per_second or 0.0, load.measured_s)
    ]
    due = sum(rate * lasting_s for rate, lasting_s in levels)
    place = "load.stages" if load.stages else "load.rate"
    if 0 < due < 1:
        checked.problem(place, "is so low that no statement is due in the measurement", "raise it")
    elif due + levels[0][0] * load.warmup_s > ARRIVALS_MAX:
        checked.problem(place, f"makes more than {ARRIVALS_MAX:,} statements", "lower it, or run for a shorter time")


def _check_levels(checked: CheckedScenario, load: LoadSection) -> None:
    if load.mode is LoadMode.FIND_MAX:
        _check_find_max(checked, load)
    if load.mode is not LoadMode.CONCURRENCY or not checked.fine("load.min_connections"):
        return
    levels: list[tuple[KeyPath | str, int]] = [
        (("load", "stages", number, "connections"), stage.connections)
        for number, stage in enumerate(load.stages)
        if stage.connections is not None
    ]
    if not load.stages:
        levels = [("load.connections", load.connections)]
    for path, connections in levels:
        if connections < load.min_connections and checked.fine(path):
            checked.problem(path, f"is below min_connections, {load.min_connections:,}", "raise it, or lower the other")


def _check_find_max(checked: CheckedScenario, load: LoadSection) -> None:
    if not checked.fine("load.find_max.start", "load.find_max.maximum"):
        return
    config = load.find_max
    if config.start > config.maximum:
        checked.problem("load.find_max.start", f"is above maximum, {config.maximum:,}", "lower it, or raise maximum")
    if config.start < load.min_connections and checked.fine("load.min_connections"):
        what = f"is below load.min_connections, {load.min_connections:,}"
        checked.problem("load.find_max.start", what, "raise it, or lower the other")


def _check_workers(checked: CheckedScenario, load: LoadSection) -> None:
    top_key = "stages" if load.stages else CEILING_KEY[load.mode]
    keys = ("workers", "per_worker_connections", "profile", top_key)
    if load.mode is LoadMode.REPLAY or not checked.fine(*(f"load.{key}" for key in keys)):
        return
    top, workers = load.ceiling, load.workers
    each = None if load.mode is LoadMode.FIND_MAX else load.per_worker_connections  # rejected there already
    each_path = "load.per_worker_connections"
    if load.profile is WorkerProfile.PROCESS:
        if each not in (None, 1):
            checked.problem(each_path, "profile process has one connection per worker", "remove it")
        if workers not in (None, top):
            what = f"profile process has one worker per connection, that is {top:,}"
            checked.problem("load.workers", what, "write workers: auto")
        if load.mode is LoadMode.FIND_MAX and top > SEARCHING_PROCESSES_MAX:
            most = SEARCHING_PROCESSES_MAX
            what = f"process with mode find_max would start {top:,} processes at once, one per connection of maximum"
            hint = f"set load.find_max.maximum to {most} or less, or use profile: thread"
            checked.problem("load.profile", what, hint)
        elif workers is None and top > WORKERS_MAX:
            checked.problem("load.profile", f"process would start {top:,} processes", "use profile: thread")
        return
    if each is not None and workers is not None and workers * each != top:
        total = f"{workers:,} workers × {each:,} connections are {workers * each:,}, not {top:,}"
        checked.problem(each_path, total, "make them agree, or leave this one out")
    elif each is not None and workers is None and top % each:
        checked.problem(each_path, f"{top:,} connections cannot be split into workers of {each:,}", "leave it out")
    elif each is not None and workers is None and top // each > WORKERS_MAX:
        checked.problem(each_path, f"would start {top // each:,} workers", "raise it, or leave it out")
    elif workers is not None and workers > top and load.mode is LoadMode.RATE:
        what = f"{workers:,} workers share {top:,} connections: some could not send their part of the rate"
        checked.problem("load.workers", what, "lower it, or raise max_connections")
    elif workers is not None and workers > top:
        checked.warn("load.workers", f"{workers:,} workers share {top:,} connections: some will have none")


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


def check(checked: CheckedScenario, folder: Path | None, capture: CaptureManifest | None = None) -> None:
    """All checks between keys; problems and warnings are noted in the document. `capture` is what mode replay sends."""
    file = checked.file
    if file is None:
        return
    _check_applies(checked, file, ())
    _check_load(checked, file.load)
    check_workload(checked, file, capture)
    check_data(checked, file, folder)
    check_sharding(checked, file)
    check_threshold_times(checked, file, capture)
    check_sessions(checked, file)
    _check_chosen_keys(checked, file)
    _check_control(checked, file)
    _check_hybrid_quota(checked, file)
    _check_session(checked, file)
    if file.connection not in (None, EMBEDDED) and checked.given("embedded") and checked.fine("connection"):
        checked.warn("embedded", "is read for connection embedded only, and the connection is another")
    _check_spawner(checked, file.spawner)
    _check_notify(checked, file)
    _check_timing(checked, file)


def _check_applies(checked: CheckedScenario, section: Any, path: KeyPath) -> None:
    """Keys without a meaning for the mode (or kind) beside them, in all sections."""
    for name, declared, value in values_of(section):
        place: KeyPath = (*path, name)
        applies = declared.applies
        ignored = not applies_to(section, declared) and checked.given(place)
        if applies is not None and ignored and checked.fine((*path, applies.selector)):
            chosen = f"and the {applies.selector} is {getattr(section, applies.selector)}"
            what = f"belongs to {applies.selector} {' and '.join(applies.values)}, {chosen}"
            checked.key_problem(place, what, f"remove it, or write {applies.selector}: {applies.values[0]}")
        inner: Iterable[tuple[KeyPath, Any]] = [(place, value)]
        if isinstance(value, (tuple, dict)):
            items = value.items() if isinstance(value, dict) else enumerate(value)
            inner = [((*place, part), one) for part, one in items]
        for below, one in inner:
            if is_section(type(one)):
                _check_applies(checked, one, below)


def _check_chosen_keys(checked: CheckedScenario, file: ScenarioFile) -> None:
    """Keys that the user chooses."""
    chosen = {"labels": file.labels, "values": file.values, "sessions.metadata": file.sessions.metadata}
    for section, keys in chosen.items():
        for key in keys:
            try:
                Label().parse(key)
            except InvalidValue as wrong:
                checked.key_problem((*section.split("."), key), f"as a key {wrong.what}", wrong.hint)
    if len(file.labels) > LABELS_MAX:
        checked.key_problem("labels", f"has more than {LABELS_MAX} labels")


def _check_control(checked: CheckedScenario, file: ScenarioFile) -> None:
    control, target = file.control, file.target
    place = "control.warehouse"
    if not checked.fine(place, "target.warehouse", "control.connection", "control.share_warehouse"):
        return
    elsewhere = control.connection not in (None, file.connection)
    if elsewhere or control.share_warehouse or target.warehouse is None:
        return
    if canonical(control.warehouse) == canonical(target.warehouse):
        hint = "name another warehouse, or write control: {share_warehouse: true}"
        what = "the control plane would use the warehouse that is measured"
        checked.problem(place if checked.given(place) else "target.warehouse", what, hint)


def _check_hybrid_quota(checked: CheckedScenario, file: ScenarioFile) -> None:
    """Snowflake limits the operations on hybrid tables per database: a load there would throttle the control plane."""
    control, used = file.control, canonical(file.control.database)
    if not checked.fine("control.database", "control.connection", "connection"):
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
    """Paths that name databases, directly or in the names of tables."""
    if file.target.database is not None:
        yield ("target", "database"), (canonical(file.target.database),)
    for number, table in enumerate(file.prepare.tables):
        yield ("prepare", "tables", number, "name"), databases_of(table.name)
    for number, text in enumerate(file.prepare.statements):
        yield ("prepare", "statements", number), databases_of(text)
    for number, statement in enumerate(file.workload.statements):
        texts = [statement.sql or "", *(part.sql for part in statement.transaction or ())]
        yield ("workload", "statements", number), tuple(name for text in texts for name in databases_of(text))


def _check_session(checked: CheckedScenario, file: ScenarioFile) -> None:
    for key in file.target.session:
        path: KeyPath = ("target", "session", key)
        if not is_name(key) or key.startswith('"'):
            checked.key_problem(path, "is not the name of a session parameter", "write letters, digits and _")
        elif key.upper() in _OWN_PARAMETERS:
            what = "cannot be set here: results depend on it"
            checked.key_problem(path, what, _OWN_PARAMETERS[key.upper()])


def _check_notify(checked: CheckedScenario, file: ScenarioFile) -> None:
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


def _check_timing(checked: CheckedScenario, file: ScenarioFile) -> None:
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
        if not holds and checked.fine(("timing", key), ("timing", other), "timing.lease_margin"):
            place = key if checked.given(("timing", key)) else other
            what = what if place == key else f"is too short for {key}"
            checked.problem(("timing", place), what, "change one of them")


def _check_spawner(checked: CheckedScenario, spawner: SpawnerSettings) -> None:
    """What a kind needs, and names that the user chooses."""
    needed = {SpawnerKind.SPCS: ("compute_pool", "image"), SpawnerKind.KUBERNETES: ("image",)}
    for name in needed.get(spawner.kind, ()):
        path = f"spawner.{name}"
        if checked.fine(path, "spawner.kind") and not checked.given(path):
            checked.problem(path, f"is missing: kind {spawner.kind} needs it", f"add {name}: …")
    if spawner.kind is SpawnerKind.KUBERNETES and checked.fine("spawner.kind"):
        _check_kubernetes(checked, spawner)


def _check_kubernetes(checked: CheckedScenario, spawner: SpawnerSettings) -> None:
    if spawner.image is not None and checked.fine("spawner.image") and re.search(r"\s", spawner.image):
        checked.problem(
            "spawner.image", "is not the name of an image", "write registry/repository/loadgen:tag, without spaces"
        )
    credentials = ("secret", "service_account")
    if checked.fine(*(("spawner", name) for name in credentials)) and not (spawner.secret or spawner.service_account):
        what = "is missing: pods have no login without it"
        hint = "name a Secret with SNOWFLAKE_ACCOUNT and others, or a service_account whose identity is the login"
        checked.problem("spawner.secret", what, hint)
    for name in ("labels", "node_selector"):
        for label in getattr(spawner, name):
            _check_label(checked, ("spawner", name, label), label)
    for part in ("requests", "limits"):
        for resource in getattr(spawner.resources, part):
            if not is_label_key(resource):
                place: KeyPath = ("spawner", "resources", part, resource)
                checked.key_problem(place, "is not the name of a resource", "write cpu or memory")
    if "cpu" in spawner.resources.limits:
        what = "pauses workers that use more, and the pauses are measured as latency"
        checked.warn("spawner.resources.limits.cpu", what)
    for number, one in enumerate(spawner.tolerations):
        _check_toleration(checked, ("spawner", "tolerations", number), one)


def _check_toleration(checked: CheckedScenario, path: KeyPath, one: Toleration) -> None:
    if not checked.fine(path):
        return
    if one.key is not None and not is_label_key(one.key):
        checked.problem((*path, "key"), "is not the key of a taint", "write it like dedicated or example.com/dedicated")
    if one.operator is TolerationOperator.EQUAL and one.key is None:
        checked.problem(path, "has no key", "write key: …, or operator: Exists for every taint")
    if one.operator is TolerationOperator.EXISTS and one.value is not None:
        checked.problem((*path, "value"), "belongs to operator Equal", "remove it, or write operator: Equal")
    if one.seconds is not None and one.effect is not TaintEffect.NO_EXECUTE:
        checked.problem((*path, "seconds"), "belongs to effect NoExecute", "remove it, or write effect: NoExecute")


def _check_label(checked: CheckedScenario, path: KeyPath, label: str) -> None:
    if not is_label_key(label):
        checked.key_problem(path, "is not the key of a Kubernetes label", "write it like team or example.com/team")
    elif path[1] == "labels" and label.startswith(OWN_LABELS):
        what = "cannot be set here: loadgen finds its pods by labels that begin so"
        checked.key_problem(path, what, "choose another name")
