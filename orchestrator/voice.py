"""What a leader says to workers: events of its term, in order, each once; and the targets that RUN_STATUS repeats."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping, Sequence

from loadgen.control import run_control_events, run_status
from loadgen.control.retry import Patience
from loadgen.control.run_control_events import Event, NewEvent
from loadgen.control.run_status import Run, Target, read_targets
from loadgen.control.session import ControlSession
from loadgen.log import event
from loadgen.model.event import SetWorkerTarget
from orchestrator.commands import plan_events, target_events
from orchestrator.office import Office
from orchestrator.plan import PlannedTarget, RunPlan

log = logging.getLogger(__name__)


class Voice:
    """One thread."""

    def __init__(self, session: ControlSession, patience: Patience, office: Office, worker_ids: Sequence[str]) -> None:
        self._session, self._patience, self._office, self._worker_ids = session, patience, office, tuple(worker_ids)
        self._unsaid: deque[NewEvent] | None = None  # what is left to say of the plan; None: nothing was said yet
        self._targets: dict[str, Target] = {}
        self.next_sequence_id = 1

    @property
    def targets(self) -> Mapping[str, Target]:
        """What RUN_STATUS repeats, for workers that miss an event."""
        return dict(self._targets)

    def go_on_from(self, run: Run) -> list[Event]:
        """Another leader has spoken to these workers before. What he said."""
        self._targets = dict(read_targets(run.worker_targets))
        said: list[Event] = []
        while batch := run_control_events.poll(self._session, run.run_id, said[-1].sequence_id if said else 0):
            said += batch
        self.next_sequence_id = max(run.next_sequence_id, said[-1].sequence_id + 1 if said else 1)
        return said

    def say(self, new: NewEvent) -> None:
        number = run_control_events.emit(self._session, self._patience, self._office.term, new)
        self.next_sequence_id = number + 1
        command = new.command
        event(log, logging.INFO, "said", number=number, what=command, to=new.address.worker_id or "all")
        if isinstance(command, SetWorkerTarget) and new.address.worker_id is not None:
            self._targets[new.address.worker_id] = Target(
                target_connections=command.target_connections,
                sequence_id=number,
                step_id=command.step_id,
                ramp_s=command.ramp_s,
                effective_at=command.effective_at,
            )

    def announce(self, plan: RunPlan) -> None:
        """Every window and target of the plan, for their moments by the server's clock; goes on where it failed."""
        if self._unsaid is None:
            zero = run_status.server_time(self._session)
            self._unsaid = deque(plan_events(plan, self._worker_ids, zero))
        while self._unsaid:
            self.say(self._unsaid[0])
            self._unsaid.popleft()

    def go_to(self, step_id: int, connections: int, announce_s: float) -> None:
        """The next step of a search: every worker its part, all at the same moment."""
        zero = run_status.server_time(self._session)
        target = PlannedTarget(at_s=announce_s, connections=connections, ramp_s=0.0)
        for new in target_events(target, self._worker_ids, zero, step_id=step_id, reason="find_max"):
            self.say(new)
