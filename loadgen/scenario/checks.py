"""Rules between keys. They run on the part of the file without wrong keys and types, so all problems are shown at once.

Here are the rules of `load`, tables, value pools, captures and small sections; the others are in `check_workload`.
"""

from __future__ import annotations

import csv
import re
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from loadgen.identifiers import canonical
from loadgen.model.capture import (
    CaptureManifest,
    InvalidCapture,
    SessionReplay,
    StatementRole,
    replay_s,
    replayed_roles,
)
from loadgen.model.workload import ARRIVALS_MAX, malformed_reason, preparation_refusal, shape_of
from loadgen.scenario.check_workload import (
    check_column_generator,
    check_databases,
    check_sessions,
    check_sharding,
    check_threshold_times,
    check_workload,
)
from loadgen.scenario.document import KeyPath
from loadgen.scenario.file import (
    CheckedScenario,
    LoadSection,
    PoolSection,
    ScenarioFile,
    TableSection,
    is_outside,
    read_manifest,
    require_inside,
)
from loadgen.scenario.generators import SequenceGenerator, UuidGenerator
from loadgen.scenario.key_reader import applies_to, declared_keys, is_section, values_of
from loadgen.scenario.model import (
    CONNECTIONS_MAX,
    EMBEDDED,
    SEARCHING_PROCESSES_MAX,
    WORKERS_MAX,
    LoadMode,
    TableType,
    WorkerProfile,
)
from loadgen.scenario.settings import SpawnerKind, SpawnerSettings, TolerationOperator
from loadgen.scenario.value_types import DURATION_S_MAX
from loadgen.units import format_duration_s

HEADER_BYTES_MAX = 65_536
LABELS_MAX = 50
_TABLES: KeyPath = ("prepare", "tables")


def _check_load(checked: CheckedScenario, load: LoadSection) -> None:
    if not checked.fine("load.mode"):
        return
    _check_rate_is_given(checked, load)
    _check_stages(checked, load)
    _check_ramp(checked, load)
    _check_levels(checked, load)
    _check_workers(checked, load)


def _check_rate_is_given(checked: CheckedScenario, load: LoadSection) -> None:
    has_rate = load.mode is not LoadMode.RATE or bool(load.stages) or load.rate_per_second is not None
    checked.require(has_rate, "load.rate", "is missing: mode rate needs it", "add rate: 500/s", "load.stages")
    think_time = "workload.think_time"
    if load.is_open_loop and checked.given(think_time) and checked.fine(think_time):
        what = f"belongs to closed loops, and mode {load.mode} sends on schedule"
        checked.key_problem(think_time, what, "remove it; the schedule sets the times")


def _check_stages(checked: CheckedScenario, load: LoadSection) -> None:
    if not load.stages or load.mode in (LoadMode.FIND_MAX, LoadMode.REPLAY):
        return
    for key in ("connections", "duration", "rate"):
        if checked.given(f"load.{key}") and applies_to(load, declared_keys(LoadSection)[key]):
            checked.key_problem(f"load.{key}", "is set by the stages", "remove it, or remove the stages")
    wanted, foreign = ("connections", "rate") if load.mode is LoadMode.CONCURRENCY else ("rate", "connections")
    for number, stage in enumerate(load.stages):
        path: KeyPath = ("load", "stages", number)
        what = f"is missing: each stage of mode {load.mode} needs it"
        checked.require(checked.given((*path, wanted)), (*path, wanted), what, f"add {wanted}: …")
        checked.require_absent((*path, foreign), f"does not belong to mode {load.mode}", "remove it")
        is_new, what = stage.name not in load.stage_names[:number], "is the name of another stage too"
        checked.require(is_new, (*path, "name"), what, "rename one: results are listed by name")
        if number == 0 and stage.ramp_s and (load.warmup_s or load.ramp_s) and checked.fine((*path, "ramp")):
            what = "the first level is reached in the warm-up" if load.warmup_s else "load.ramp sets it"
            checked.key_problem((*path, "ramp"), what, "write load.ramp instead")
        else:
            fits = stage.ramp_s <= stage.duration_s
            checked.require(fits, (*path, "ramp"), "is longer than the stage", "shorten it", (*path, "duration"))


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
        what = f"is below min_connections, {load.min_connections:,}"
        checked.require(connections >= load.min_connections, path, what, "raise it, or lower the other")


def _check_find_max(checked: CheckedScenario, load: LoadSection) -> None:
    search, lowest = load.find_max, load.min_connections
    path, maximum = "load.find_max.start", "load.find_max.maximum"
    what = f"is above maximum, {search.maximum:,}"
    checked.require(search.start <= search.maximum, path, what, "lower it, or raise maximum", maximum)
    what, others = f"is below load.min_connections, {lowest:,}", (maximum, "load.min_connections")
    checked.require(search.start >= lowest, path, what, "raise it, or lower the other", *others)


def _check_workers(checked: CheckedScenario, load: LoadSection) -> None:
    keys = ("workers", "per_worker_connections", "profile", load.ceiling_key)
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


def check(checked: CheckedScenario, folder: Path | None, capture: CaptureManifest | None = None) -> None:
    """All checks between keys; problems and warnings are noted in the document. `capture` is what mode replay sends."""
    file = checked.file
    if file is None:
        return
    _check_applies(checked, file, ())
    _check_load(checked, file.load)
    check_workload(checked, file, capture)
    _check_data(checked, file, folder)
    check_sharding(checked, file)
    check_threshold_times(checked, file, capture)
    check_sessions(checked, file)
    if len(file.labels) > LABELS_MAX:
        checked.key_problem("labels", f"has more than {LABELS_MAX} labels")
    _check_control(checked, file)
    check_databases(checked, file)
    if file.connection not in (None, EMBEDDED) and checked.given("embedded") and checked.fine("connection"):
        checked.warn("embedded", "is read for connection embedded only, and the connection is another")
    _check_spawner(checked, file.spawner)
    _check_notify(checked, file)
    _check_timing(checked, file)


def _check_applies(checked: CheckedScenario, section: Any, path: KeyPath) -> None:
    """Note keys that do not apply to the mode (or kind) of their section, in all sections."""
    for name, declared, value in values_of(section):
        place: KeyPath = (*path, name)
        applies = declared.applies
        ignored = not applies_to(section, declared) and checked.given(place)
        if applies is not None and ignored and checked.fine((*path, applies.selector)):
            chosen = f"and the {applies.selector} is {getattr(section, applies.selector) or 'null'}"
            what = f"belongs to {applies.selector} {' and '.join(applies.values)}, {chosen}"
            checked.key_problem(place, what, f"remove it, or write {applies.selector}: {applies.values[0]}")
        inner: Iterable[tuple[KeyPath, Any]] = [(place, value)]
        if isinstance(value, (tuple, dict)):
            items = value.items() if isinstance(value, dict) else enumerate(value)
            inner = [((*place, part), one) for part, one in items]
        for below, one in inner:
            if is_section(type(one)):
                _check_applies(checked, one, below)


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
        what = "is empty, so the message would never be sent"
        checked.require(bool(one.on), (*path, "on"), what, "leave it out, or write [always]")


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
    """Keys that a kind needs."""
    needed = {SpawnerKind.SPCS: ("compute_pool", "image"), SpawnerKind.KUBERNETES: ("image",)}
    for name in needed.get(spawner.kind, ()):
        path = f"spawner.{name}"
        what = f"is missing: kind {spawner.kind} needs it"
        checked.require(checked.given(path), path, what, f"add {name}: …", "spawner.kind")
    if spawner.kind is SpawnerKind.KUBERNETES and checked.fine("spawner.kind"):
        _check_kubernetes(checked, spawner)


def _check_kubernetes(checked: CheckedScenario, spawner: SpawnerSettings) -> None:
    is_image = not re.search(r"\s", spawner.image or "")
    hint = "write registry/repository/loadgen:tag, without spaces"
    checked.require(is_image, "spawner.image", "is not the name of an image", hint)
    has_login = spawner.secret is not None or spawner.service_account is not None
    hint = "name a Secret with SNOWFLAKE_ACCOUNT and others, or a service_account whose identity is the login"
    what = "is missing: pods have no login without it"
    checked.require(has_login, "spawner.secret", what, hint, "spawner.service_account")
    if "cpu" in spawner.resources.limits:
        what = "pauses workers that use more, and the pauses are measured as latency"
        checked.warn("spawner.resources.limits.cpu", what)
    for number, one in enumerate(spawner.tolerations):
        has_key = one.key is not None or one.operator is TolerationOperator.EXISTS
        hint = "write key: …, or operator: Exists for every taint"
        checked.require(has_key, ("spawner", "tolerations", number), "has no key", hint)


# --- tables and value pools ------------------------------------------------------------------------------------------


def _check_data(checked: CheckedScenario, file: ScenarioFile, folder: Path | None) -> None:
    """`folder` is the scenario's; None: files are not checked."""
    tables = file.prepare.tables
    checked.require_different_names(
        _TABLES, [canonical(table.name) for table in tables], "table", "list each table once"
    )
    for number, table in enumerate(tables):
        _check_table(checked, (*_TABLES, number), table)
    for number, sql in enumerate(file.prepare.statements):
        place: KeyPath = ("prepare", "statements", number)
        wrong = preparation_refusal(shape_of(sql)) if checked.fine(place) else None
        if wrong is not None:
            checked.problem(place, *wrong)
    for name, pool in file.values.items():
        if checked.fine(("values", name)):
            _check_pool(checked, ("values", name), pool, folder)


def _check_table(checked: CheckedScenario, path: KeyPath, table: TableSection) -> None:
    if not checked.fine((*path, "type")):
        return
    if table.type is TableType.EXISTING:
        for key in ("rows", "columns", "indexes"):
            what, hint = "an existing table is never created or filled", "remove it, or write type: hybrid or standard"
            checked.require_absent((*path, key), what, hint)
        return
    what = f"is missing: a {table.type} table needs columns"
    hint = "list them, or write type: existing for a table that exists"
    checked.require(bool(table.columns), (*path, "columns"), what, hint)
    _check_columns(checked, path, table)
    _check_indexes(checked, path, table)


def _check_columns(checked: CheckedScenario, path: KeyPath, table: TableSection) -> None:
    names = [canonical(column.name) for column in table.columns]
    checked.require_different_names((*path, "columns"), names, "column", "rename one")
    for number, column in enumerate(table.columns):
        if column.generate is not None:
            check_column_generator(checked, (*path, "columns", number, "generate"), column.generate)
    if not checked.fine((*path, "columns"), (*path, "rows")) or not table.columns:
        return
    keys = [(number, column) for number, column in enumerate(table.columns) if column.primary_key]
    if table.type is TableType.HYBRID and not keys:
        checked.key_problem((*path, "columns"), "a hybrid table needs a primary key", "add primary_key: true")
    if table.rows == 0 or not keys:
        return
    for number, column in keys:
        if column.generate is None:
            place = (*path, "columns", number, "generate")
            checked.problem(place, "is missing: a primary key is never NULL", "add generate: {sequence: {start: 1}}")
            return
    unique = (SequenceGenerator, UuidGenerator)
    if not any(isinstance(column.generate, unique) for _, column in keys):
        place = (*path, "columns", keys[0][0], "generate")
        what = "can generate duplicate primary keys"
        checked.key_problem(place, what, "write {sequence: {start: 1}} or {uuid: {}}")


def _check_indexes(checked: CheckedScenario, path: KeyPath, table: TableSection) -> None:
    if table.indexes and table.type is not TableType.HYBRID:
        what = f"a {table.type} table has no indexes"
        checked.key_problem((*path, "indexes"), what, "remove them, or write type: hybrid")
        return
    known = {canonical(column.name) for column in table.columns}
    for number, index in enumerate(table.indexes):
        place: KeyPath = (*path, "indexes", number, "columns")
        if not index.columns:
            checked.key_problem(place, "is empty", "name at least one column")
        for position, name in enumerate(index.columns):
            if not checked.fine((*path, "columns"), (*place, position)):
                continue
            if canonical(name) not in known:
                checked.problem((*place, position), "is not a column of the table", "name one of its columns")
            elif canonical(name) in map(canonical, index.columns[:position]):
                checked.problem((*place, position), "is in this index twice", "name each column once")


def _check_pool(checked: CheckedScenario, path: KeyPath, pool: PoolSection, folder: Path | None) -> None:
    if (pool.query is None) == (pool.file is None):
        what = "has both query and file" if pool.query is not None else "has neither query nor file"
        checked.key_problem(path, what, "write {query: SELECT …}, or {file: regions.csv, column: NAME}")
        return
    if pool.query is not None:
        if pool.column is not None:
            checked.key_problem((*path, "column"), "belongs to a file", "a query gives its first column")
        _check_query(checked, (*path, "query"), pool.query)
    elif pool.file is not None:
        _check_file(checked, path, pool.file, pool.column, folder)


def _check_query(checked: CheckedScenario, path: KeyPath, sql: str) -> None:
    shape = shape_of(sql)
    wrong = malformed_reason(shape)
    if wrong is None and not shape.reads:
        wrong = ("a pool is filled by a query", "begin with SELECT or WITH")
    if wrong is None and shape.binds:
        wrong = ("a pool's query cannot have parameters; it contains a ?", "write the value into the text")
    if wrong is not None:
        checked.problem(path, *wrong)


def _check_file(checked: CheckedScenario, path: KeyPath, file: str, column: str | None, folder: Path | None) -> None:
    place: KeyPath = (*path, "file")
    if is_outside(file):
        what = "is outside of the scenario's folder"
        checked.problem(place, what, "move the file into the scenario's folder, and write its name")
        return
    if folder is None:
        return
    try:
        require_inside(folder, file)
        if not stat.S_ISREG((folder / file).stat().st_mode):  # opening a pipe would block
            checked.problem(place, "is not a file", "name a CSV file in the scenario's folder")
            return
        with (folder / file).open("rb") as stream:
            start = stream.read(HEADER_BYTES_MAX)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "a bad name"
        checked.problem(place, f"cannot be read: {reason}", "the name is relative to the scenario's folder")
        return
    _check_header(checked, path, _header(start), column)


def _check_header(checked: CheckedScenario, path: KeyPath, header: list[str] | None, column: str | None) -> None:
    place: KeyPath = (*path, "file")
    if header is None:
        checked.problem(place, "is not a CSV file with a header in UTF-8", "its first line must name the columns")
    elif column is None and len(header) != 1:
        checked.problem(place, f"has {len(header)} columns", "name one of them: column: NAME")
    elif column is not None and column not in header:
        checked.problem((*path, "column"), "is not a column of the file", f"it has {', '.join(header[:10])[:200]}")
    elif column is not None and header.count(column) > 1:
        checked.problem((*path, "column"), "is the name of several columns of the file", "rename one in its first line")


def _header(start: bytes) -> list[str] | None:
    try:
        line = start.partition(b"\n")[0].decode("utf-8-sig").rstrip("\r")
        header = next(csv.reader([line], strict=True), None)
    except (UnicodeDecodeError, csv.Error):
        return None
    names = [name.strip() for name in header or []]  # as loadgen.workload.pools reads them
    return names if names and all(names) else None


# --- the capture of a replay -----------------------------------------------------------------------------------------

_CAPTURE = "load.capture"


def check_replay(checked: CheckedScenario, folder: Path | None) -> CaptureManifest | None:
    """The capture of mode replay; None in other modes, and after a problem, which is noted."""
    file = checked.file
    if file is None or file.load.mode is not LoadMode.REPLAY or not checked.fine(_CAPTURE, "load.mode"):
        return None
    name = file.load.capture
    if name is None:
        checked.problem(_CAPTURE, "is missing: mode replay needs it", "add capture: DIR, made by `loadgen capture`")
        return None
    if folder is None or is_outside(name):
        what = "is outside of the scenario's folder"
        checked.problem(_CAPTURE, what, "move the capture into the scenario's folder, and write its name")
        return None
    try:
        capture = read_manifest(folder, name)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        what = f"is not a capture: {reason}" if isinstance(error, InvalidCapture) else f"cannot be read: {reason}"
        checked.problem(_CAPTURE, what, "name a folder in the scenario's folder that `loadgen capture` has written")
        return None
    return capture if _fits(checked, capture, file.load) else None


def _fits(checked: CheckedScenario, capture: CaptureManifest, load: LoadSection) -> bool:
    keeps = load.sessions is SessionReplay.KEEP
    if capture.names_hidden:
        what = "has hidden names (--hide-names), so it cannot be executed"
        checked.problem(_CAPTURE, what, "capture again without --hide-names")
    elif not any(capture.roles.get(role.value) for role in replayed_roles(load.writes)):
        hint = "write writes: replay" if capture.roles.get(StatementRole.WRITE.value) else "capture another span"
        checked.problem(_CAPTURE, "has no statement to send", hint)
    elif keeps and capture.sessions > CONNECTIONS_MAX:
        what = f"has {capture.sessions:,} sessions, and a run has at most {CONNECTIONS_MAX:,} connections"
        checked.problem(_CAPTURE, what, "write sessions: spread, or capture a shorter span")
    elif replay_s(capture, load.speed) > DURATION_S_MAX:
        duration, longest = format_duration_s(replay_s(capture, load.speed)), format_duration_s(DURATION_S_MAX)
        what = f"takes {duration}, and a run takes at most {longest}"
        checked.problem(_CAPTURE, what, "raise load.speed, or capture a shorter span")
    elif keeps and capture.sessions * load.users > CONNECTIONS_MAX:
        asked = f"{capture.sessions:,} recorded sessions × {load.users:,} users"
        most = CONNECTIONS_MAX // capture.sessions
        checked.problem(
            "load.users",
            f"needs {capture.sessions * load.users:,} connections ({asked}), and a run has at most {CONNECTIONS_MAX:,}",
            f"write at most {most:,}, or sessions: spread",
        )
    else:
        if keeps and checked.given("load.max_connections"):
            what = "belongs to sessions: spread; here every recorded session has a connection"
            checked.key_problem("load.max_connections", what, "remove it")
        return True
    return False
