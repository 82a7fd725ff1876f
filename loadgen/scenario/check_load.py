"""What must fit together in `load`."""

from __future__ import annotations

from loadgen.model.workload import ARRIVALS_MAX
from loadgen.scenario.document import KeyPath
from loadgen.scenario.file import LoadSection
from loadgen.scenario.keys import applies_to, declared_keys
from loadgen.scenario.model import SEARCHING_PROCESSES_MAX, LoadMode, WorkerProfile, stage_name
from loadgen.scenario.validation import CheckedDocument

_LOAD: KeyPath = ("load",)
CEILING_KEY = {LoadMode.CONCURRENCY: "connections", LoadMode.RATE: "max_connections", LoadMode.FIND_MAX: "find_max"}


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
    if load.mode is LoadMode.RATE and checked.given(think_time) and checked.fine(think_time):
        what = "belongs to closed loops, and mode rate sends on schedule"
        checked.problem(think_time, what, "remove it; the rate determines the schedule", at_key=True)


def _check_stages(checked: CheckedDocument, load: LoadSection) -> None:
    if not load.stages or load.mode is LoadMode.FIND_MAX:
        return
    for key in ("connections", "duration", "rate"):
        if checked.given((*_LOAD, key)) and applies_to(load, declared_keys(LoadSection)[key]):
            checked.problem((*_LOAD, key), "is said by the stages", "remove it, or the stages", at_key=True)
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
            what = "the first level is reached in the warm-up" if load.warmup_s else "load.ramp says it"
            checked.problem((*path, "ramp"), what, "write load.ramp instead", at_key=True)
        elif stage.ramp_s > stage.duration_s and checked.fine((*path, "ramp"), (*path, "duration")):
            checked.problem((*path, "ramp"), "is longer than the stage", "shorten it")


def _check_ramp(checked: CheckedDocument, load: LoadSection) -> None:
    parts = [(*_LOAD, key) for key in ("ramp", "warmup", "duration", "stages")]
    if load.mode is LoadMode.FIND_MAX or not checked.fine(*parts):
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
    if not checked.fine(*((*_LOAD, key) for key in keys)):
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
