"""Makes the screen states of a run from its snapshots. Pure."""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

import numpy as np

from loadgen.metrics.connections import LoginCounts
from loadgen.metrics.histogram import HIGHEST_NS, LOWEST_NS
from loadgen.metrics.percentile import PERCENTILES
from loadgen.metrics.tally import ErrorKey, by_kind
from loadgen.metrics.window import MergedWindows, merge
from loadgen.model.run import Phase, RunStatus
from loadgen.report.experiment import ExperimentStatus
from loadgen.results.run_snapshot import RunSnapshot, WorkerDisplayState, WorkerSnapshot
from loadgen.rules.thresholds import Checked
from loadgen.scenario.model import LoadMode, Scenario
from loadgen.tui.draw import REASON_MAX, one_line
from loadgen.tui.history import LiveHistory, PeakThroughput, RecentFigures, least_seconds
from loadgen.tui.screen_state import (
    ErrorLine,
    FindMaxStatus,
    FindMaxStepLine,
    LatencyDistribution,
    LoadStatus,
    LogEntry,
    ScreenState,
    StatementLine,
    TableProgress,
    WarehouseLine,
    WindowFigures,
    WorkerLine,
)
from loadgen.units import NS_PER_MS, counted
from loadgen.workload.arrivals import rate_windows

# --- The event log: what changed from one snapshot to the next -------------------------------------------------------

_TOLD = (WorkerDisplayState.STALE, WorkerDisplayState.DEAD, WorkerDisplayState.DONE)


def new_log_entries(before: RunSnapshot | None, now: RunSnapshot) -> Iterator[LogEntry]:
    """Log entries for the changes between two snapshots; for the first snapshot, the state of the run."""
    yield from _run(before, now)
    yield from _workers(before, now)
    yield from _logins(before, now)
    known_steps = {step.step_number for step in before.steps} if before is not None else set()
    for step in now.steps:
        if step.step_number not in known_steps and before is not None:
            level = counted(step.target_connections, "connection")
            yield _line(now, f"step {step.step_number}: {level} {step.outcome}: {step.reason}")
    for warning in now.warnings:
        if before is None or warning not in before.warnings:
            yield _line(now, warning, bad=True)


def _run(before: RunSnapshot | None, now: RunSnapshot) -> Iterator[LogEntry]:
    run = now.run
    if before is None or (before.run.status, before.run.phase) != (run.status, run.phase):
        yield _line(now, f"{run.status} {run.phase}")
    if now.ending is not None and (before is None or before.ending != now.ending):
        yield _line(now, f"ending: {now.ending}")


def _workers(before: RunSnapshot | None, now: RunSnapshot) -> Iterator[LogEntry]:
    """One entry for all workers with the same change, so that many workers do not fill the log."""
    old = {worker.worker_id: worker.state for worker in before.workers} if before is not None else {}
    for state in WorkerDisplayState:
        changed = [worker for worker in now.workers if worker.state is state and old.get(worker.worker_id) is not state]
        if state in _TOLD and changed:
            bad = state is not WorkerDisplayState.DONE
            first = changed[0].why if state is WorkerDisplayState.DEAD else f"{changed[0].worker_id} is {state}"
            more = f" (and {len(changed) - 1} more)" if len(changed) > 1 else ""
            yield _line(now, f"{first}{more}", bad=bad)
        elif state is WorkerDisplayState.RUNNING:
            back = [worker.worker_id for worker in changed if old.get(worker.worker_id) is WorkerDisplayState.STALE]
            if back:
                yield _line(now, f"{back[0]} is back{f' (and {len(back) - 1} more)' if len(back) > 1 else ''}")


def _logins(before: RunSnapshot | None, now: RunSnapshot) -> Iterator[LogEntry]:
    """Entries for refused logins and lost connections: for the first one, and each time their number doubles."""
    for name, failures in (("login", "last_refused"), ("connection", "last_lost")):
        count = _failures(now, name)
        if count.bit_length() <= (0 if before is None else _failures(before, name).bit_length()):
            continue
        known = [(one, worker_id) for worker_id, own in _own_logins(now) for one in getattr(own, failures)]
        text = f"{counted(count, name)} {'refused' if name == 'login' else 'lost'}"
        if known:
            last, worker_id = max(known, key=lambda entry: entry[0].at)
            text += f", the last of {worker_id}: {'' if last.code is None else f'{last.code}: '}{last.text}"
        yield _line(now, text, bad=True)


def _failures(snapshot: RunSnapshot, name: str) -> int:
    return sum(own.refused if name == "login" else own.lost for _, own in _own_logins(snapshot))


def _own_logins(snapshot: RunSnapshot) -> Iterator[tuple[str, LoginCounts]]:
    return ((worker.worker_id, worker.live.logins) for worker in snapshot.workers if worker.live is not None)


def _line(snapshot: RunSnapshot, text: str, *, bad: bool = False) -> LogEntry:
    return LogEntry(moment=snapshot.moment, text=one_line(text, REASON_MAX), bad=bad)


LOG_KEPT = 200

_FINISHING = "running statements may finish"
_DOING = {
    RunStatus.PREPARED: "waiting for its leader",
    RunStatus.STARTING: "workers connect",
    RunStatus.STOPPING: _FINISHING,
    RunStatus.CANCELLING: _FINISHING,
}
_PHASES = {Phase.PREPARING: "preparation", Phase.WARMUP: "warm-up", Phase.MEASUREMENT: "measurement"}


class ScreenPresenter:
    """The states of one run. Call doing() before the first snapshot and after the end, update() for each snapshot."""

    def __init__(self, scenario: Scenario, *, quits: bool = False, experiment: ExperimentStatus | None = None) -> None:
        self._scenario, self._quits, self._experiment = scenario, quits, experiment
        self._history = LiveHistory()
        self._last: RunSnapshot | None = None
        self._view: ScreenState | None = None  # of the last snapshot
        self._zero_s: float | None = None  # when the plan began
        self._phase_s = 0.0  # when this status and phase were first seen
        self._interrupts, self._interrupted_s = 0, 0.0  # requests of the user to end the run, and when the first came
        self._log: deque[LogEntry] = deque(maxlen=LOG_KEPT)
        self._doing_s: tuple[str, float] = ("", 0.0)
        self._window_seen: str | None = None  # the name of the window of the last snapshot
        self._checked = tuple(
            Checked(check=threshold.check.text, value=None, passed=False) for threshold in scenario.judged_thresholds
        )
        weighty = sorted(scenario.workload.statements, key=lambda statement: -statement.weight)
        self._order = {statement.name: place for place, statement in enumerate(weighty)}  # a fixed order of rows

    def say(self, moment: datetime, text: str, *, bad: bool = False) -> None:
        """Add a line to the event log."""
        self._log.append(LogEntry(moment=moment, text=one_line(text, REASON_MAX), bad=bad))

    @property
    def log(self) -> tuple[LogEntry, ...]:
        return tuple(self._log)

    def interrupt(self, at_s: float) -> None:
        """Note a request of the user to end the run."""
        self._interrupts += 1
        if self._interrupts == 1:
            self._interrupted_s = at_s

    def interrupted(self, view: ScreenState) -> ScreenState:
        """The state with the requests of the user, which the run itself shows only some seconds later."""
        if not self._interrupts:
            return view
        if view.status == RunStatus.RUNNING and not view.stopping:
            view = replace(view, since_s=self._interrupted_s, until_s=None, doing=_FINISHING)
        return replace(view, stopping=True, interrupts=self._interrupts)

    def doing(
        self, what: str, seen_s: float, *, run_id: str | None = None, filling: TableProgress | None = None
    ) -> ScreenState:
        """The state without a new snapshot: before the first one, or after the last one, whose values stay."""
        if self._doing_s[0] != what:
            self._doing_s = (what, seen_s)
        if self._view is not None:
            return replace(
                self._view,
                doing=what,
                seen_s=seen_s,
                since_s=self._doing_s[1],
                until_s=None,
                recent=_without_rate(self._view.recent),
                log=self.log,
                stopping=self._view.stopping or self._interrupts > 0,
                interrupts=self._interrupts,
            )
        return ScreenState(
            scenario=self._scenario.name,
            place=self._place,
            doing=what,
            seen_s=seen_s,
            run_id=run_id,
            since_s=self._doing_s[1],
            filling=filling,
            log=self.log,
            checked=self._checked,
            experiment=self._experiment,
            quits=self._quits,
            stopping=self._interrupts > 0,
            interrupts=self._interrupts,
        )

    def update(self, snapshot: RunSnapshot) -> ScreenState:
        before, self._last = self._last, snapshot
        self._log.extend(new_log_entries(before, snapshot))
        self._history.note(snapshot)
        if before is None or _stage(before) != _stage(snapshot):
            self._phase_s = snapshot.seen_s
        if snapshot.elapsed_s is not None:  # snapshots come with a delay, so the smallest value is the most exact
            zero_s = snapshot.seen_s - snapshot.elapsed_s
            self._zero_s = zero_s if self._zero_s is None else min(zero_s, self._zero_s)
        self._checked = snapshot.checked or self._checked
        since_s, until_s = self._span(snapshot)
        lives = [worker.live for worker in snapshot.workers if worker.live is not None]
        recent, window = self._history.recent, self._window(snapshot)
        self._note_stage(snapshot, window)
        view = ScreenState(
            scenario=self._scenario.name,
            place=self._place,
            doing=self._doing(snapshot),
            seen_s=snapshot.seen_s,
            run_id=snapshot.run.run_id,
            status=snapshot.run.status.value,
            phase=snapshot.run.phase,
            since_s=since_s,
            until_s=until_s,
            offered=self._offered(snapshot),
            window=window,
            recent=recent if snapshot.run.status is RunStatus.RUNNING else _without_rate(recent),
            peak=_peak(self._history.peak, window),
            history=self._history.seconds,
            plan_s=snapshot.ends_s,
            tried=sum(live.measured.queries for live in lives),
            failed=sum(live.measured.errors for live in lives),
            workers=tuple(_cell(worker, snapshot.seen_s) for worker in snapshot.workers),
            warehouse=self._warehouse(snapshot),
            checked=self._checked,
            find_max=self._find_max(snapshot),
            errors=self._errors,
            warnings=snapshot.warnings,
            log=self.log,
            experiment=self._experiment,
            quits=self._quits,
            waits=not self._quits and _is_over(snapshot),
            stopping=_is_stopping(snapshot),
        )
        self._view = self.interrupted(view)
        return self._view

    # --- facts of the scenario ---------------------------------------------------------------------------------------

    @property
    def _place(self) -> str:
        names = (self._scenario.connection or "default connection", self._scenario.target.warehouse)
        return ", ".join(one_line(name, 60) for name in names if name)

    # --- parts of a view ---------------------------------------------------------------------------------------------

    def _span(self, snapshot: RunSnapshot) -> tuple[float | None, float | None]:
        """The beginning and the planned end of this phase."""
        if self._zero_s is not None and snapshot.run.status is RunStatus.RUNNING and snapshot.ending is None:
            measures_s = self._zero_s + snapshot.measures_s
            if snapshot.run.phase is Phase.WARMUP:
                return self._zero_s, measures_s
            if snapshot.run.phase is Phase.MEASUREMENT:
                return measures_s, None if snapshot.ends_s is None else self._zero_s + snapshot.ends_s
        return self._phase_s, None

    def _doing(self, snapshot: RunSnapshot) -> str:
        if snapshot.run.status.is_terminal:
            return f"{snapshot.run.status}: {one_line(snapshot.run.reason or '')}"
        if _is_over(snapshot):
            return "computing results"
        if snapshot.ending is not None:
            return f"ending: {one_line(snapshot.ending)}"
        if snapshot.run.status is RunStatus.RUNNING and snapshot.elapsed_s is not None and snapshot.elapsed_s < 0:
            return f"begins in {math.ceil(-snapshot.elapsed_s)} s"
        if snapshot.ends_s is None and snapshot.run.phase is Phase.MEASUREMENT:
            return "until the maximum is known"
        return _DOING.get(snapshot.run.status, "")

    def _offered(self, snapshot: RunSnapshot) -> LoadStatus:
        beats = [worker.row.beat for worker in snapshot.workers if worker.row is not None and not worker.state.is_over]
        lost = [
            worker.row.beat
            for worker in snapshot.workers
            if worker.row is not None and worker.state is WorkerDisplayState.DEAD
        ]
        before = LoadStatus() if self._view is None else self._view.offered
        return LoadStatus(
            target=sum(beat.target_connections for beat in (*beats, *lost)),
            open=sum(beat.open_connections for beat in beats),
            busy=sum(beat.active_connections for beat in beats),
            rate_per_s=self._planned_rate(snapshot),
            lost=max(before.lost, _failures(snapshot, "connection")),  # a worker that was replaced counts from 0
            refused=max(before.refused, _failures(snapshot, "login")),
        )

    def _planned_rate(self, snapshot: RunSnapshot) -> float | None:
        """The rate of an open loop at this moment of the plan."""
        load = self._scenario.load
        if load.mode is not LoadMode.RATE or snapshot.elapsed_s is None:
            return None
        left_s = snapshot.elapsed_s
        for stage in (stage for window in rate_windows(load) for stage in window):
            if left_s <= stage.duration_s:
                done = max(0.0, left_s) / stage.duration_s
                first = stage.first_rate_per_second
                return first + (stage.rate_per_second - first) * done
            left_s -= stage.duration_s
        return 0.0

    def _window(self, snapshot: RunSnapshot) -> WindowFigures | None:
        windows = self._history.newest_windows
        if not windows:
            return None
        newest = windows[0][-1]
        merged = merge(windows, live=True)
        working = sum(not worker.state.is_over for worker in snapshot.workers)
        return WindowFigures(
            name=self._window_name(newest.phase, newest.step_id),
            seconds=least_seconds(windows)
            if len(windows) >= working
            else 0.0,  # only if every active worker has a window
            qps=merged.qps,
            succeeded=merged.counts.succeeded,
            failed=merged.counts.failed,
            skipped=merged.counts.skipped,
            statements=_statements(merged, self._order),
            spread=_spread(merged),
        )

    def _note_stage(self, snapshot: RunSnapshot, window: WindowFigures | None) -> None:
        """Add a line to the event log when a stage begins."""
        before, self._window_seen = self._window_seen, None if window is None else window.name
        is_stage = bool(self._scenario.load.stages) and snapshot.run.phase is Phase.MEASUREMENT
        if is_stage and before is not None and self._window_seen not in (None, before):
            self.say(snapshot.moment, f"{self._window_seen} begins")

    def _window_name(self, phase: Phase, step_id: int | None) -> str:
        if step_id is None or phase is not Phase.MEASUREMENT:
            return _PHASES.get(phase, phase.value.lower())
        stages = self._scenario.load.stages
        if not stages:
            return f"step {step_id}"
        name = stages[step_id - 1].name if step_id <= len(stages) else None
        place = f"stage {step_id} of {len(stages)}"
        return place if name is None else f"{name}, {place}"

    @property
    def _errors(self) -> tuple[ErrorLine, ...]:
        statements: dict[ErrorKey, set[str | None]] = {}
        for key in self._history.errors:
            statements.setdefault(key._replace(statement=None), set()).add(key.statement)
        groups = (
            ErrorLine(
                category=key.category.value,
                code=key.code,
                count=errors.count,
                example=errors.example,
                statement=next(iter(statements[key])) if len(statements[key]) == 1 else None,
            )
            for key, errors in by_kind(self._history.errors).items()
        )
        return tuple(sorted(groups, key=lambda group: (-group.count, group.category, group.code or 0)))

    def _warehouse(self, snapshot: RunSnapshot) -> WarehouseLine | None:
        if not snapshot.polls:
            return None
        last = snapshot.polls[-1]
        return WarehouseLine(
            name=self._scenario.target.warehouse or "",
            size=last.size,
            running=last.running,
            queue=last.queued,
            clusters=last.started_clusters,
            polled_at=last.timestamp,
            queued=tuple(poll.queued or 0 for poll in snapshot.polls),
        )

    def _find_max(self, snapshot: RunSnapshot) -> FindMaxStatus | None:
        config = self._scenario.load.find_max
        if config is None or not snapshot.run.phase.is_measured:
            return None
        state = _state(snapshot.run.find_max_state)
        target, stage = _whole(state, "target"), str(state.get("next", ""))
        climbs = stage == "climb" and target is not None and target < config.maximum
        return FindMaxStatus(
            step=_whole(state, "step") or len(snapshot.steps) + 1,
            target=target,
            stage=stage,
            best=_whole(state, "best"),
            failed=_whole(state, "failed"),
            step_s=config.step_s,
            next_if_held=min((target or 0) + config.increment, config.maximum) if climbs else None,
            steps=tuple(
                FindMaxStepLine(
                    number=step.step_number,
                    target=step.target_connections,
                    held=step.outcome == "STABLE",
                    outcome=step.outcome,
                    qps=step.qps,
                    p95_ms=step.p95_latency_ms,
                    reason=step.reason,
                )
                for step in snapshot.steps
            ),
        )


def _peak(known: PeakThroughput | None, window: WindowFigures | None) -> PeakThroughput | None:
    """The peak, which is at least the average: seconds that are known in part count for the average only."""
    if known is None or window is None or window.seconds < 1.0 or window.qps <= known.qps:
        return known
    return PeakThroughput(qps=window.qps, at_least=True)


def _without_rate(recent: RecentFigures | None) -> RecentFigures | None:
    """The figures without a rate, because no statements are sent any more."""
    return None if recent is None else replace(recent, qps=None)


def _is_over(snapshot: RunSnapshot) -> bool:
    """Whether the load has ended."""
    ended = bool(snapshot.workers) and all(worker.state.is_over for worker in snapshot.workers)
    return ended or snapshot.run.phase is Phase.PROCESSING


def _is_stopping(snapshot: RunSnapshot) -> bool:
    """Whether the run has a reason to end, which its leader knows before the status of the run says so."""
    status = snapshot.run.status
    return not status.is_terminal and (
        snapshot.ending is not None or status in (RunStatus.STOPPING, RunStatus.CANCELLING)
    )


def _stage(snapshot: RunSnapshot) -> tuple[RunStatus, Phase, bool]:
    return snapshot.run.status, snapshot.run.phase, _is_stopping(snapshot)


def _cell(worker: WorkerSnapshot, seen_s: float) -> WorkerLine:
    beat = None if worker.row is None else worker.row.beat
    return WorkerLine(
        worker_id=worker.worker_id,
        state=worker.state,
        open=0 if beat is None else beat.open_connections,
        target=0 if beat is None else beat.target_connections,
        busy=0 if beat is None else beat.active_connections,
        cpu_percent=None if beat is None else beat.cpu_percent,
        heard_s=None if worker.row is None else seen_s - worker.row.age_ms / 1000,
        said=worker.why if worker.state is WorkerDisplayState.DEAD else worker.last_error or "",
    )


def _statements(merged: MergedWindows, order: Mapping[str, int]) -> tuple[StatementLine, ...]:
    lines = []
    for name in sorted(merged.tally.statements, key=lambda name: order.get(name, len(order))):
        tally = merged.tally.statements[name]
        p50, p95, p99 = (tally.response_at(per_mille) for per_mille in (500, 950, 990))
        lines.append(
            StatementLine(
                name=name,
                qps=merged.statement_qps.get(name, 0.0),
                p50=p50,
                p95=p95,
                p99=p99,
                succeeded=tally.ended.succeeded,
                failed=tally.ended.failed,
                cut_off=tally.responses[1].count,
            )
        )
    return tuple(lines)


def _spread(merged: MergedWindows) -> LatencyDistribution | None:
    """The distribution of response times. Neighbouring buckets are joined, because they are too many for a screen."""
    whole = merged.tally.whole
    times = whole.succeeded.response
    used = np.flatnonzero(times.counts)
    if not len(used):
        return None
    step = max(2, times.coarseness)
    first, last = int(used[0]), int(used[-1])
    starts = list(range(first, last + 1, step))
    edges_ns = [*LOWEST_NS[starts], HIGHEST_NS[min(starts[-1] + step - 1, len(HIGHEST_NS) - 2)]]
    found = {name: whole.response_at(PERCENTILES[name]) for name in ("p50", "p95", "p99")}
    return LatencyDistribution(
        edges_ms=tuple(float(edge_ns) / NS_PER_MS for edge_ns in edges_ns),
        counts=tuple(int(times.counts[start : start + step].sum()) for start in starts),
        percentiles=tuple((name, one) for name, one in found.items() if one is not None),
    )


def _state(written: str | None) -> dict[str, Any]:
    try:
        found = json.loads(written) if written else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _whole(state: dict[str, Any], key: str) -> int | None:
    value = state.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
