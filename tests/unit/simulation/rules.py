"""What must hold in every history, and what can be broken on purpose to see that it is noticed."""

from __future__ import annotations

from enum import StrEnum


class Rule(StrEnum):
    """What holds at every step, whatever happens."""

    STEPS = "a run takes only the steps that it may take, and ends once"
    TERMS = "there is one term at a time, and one that is over does not come back"
    FENCE = "nothing of a term is written once its successor has begun"
    NUMBERS = "events have numbers without gaps, and each is there once"
    RESULT = "the result of a run is there once, as far as readers see, and is what the run says"
    ONCE = "a leader that knows it was heard does not repeat itself"
    LOAD = "load begins after START, and not after the end of the run"
    OUTAGE = "an outage of the control plane kills no worker"
    LOSS = "a run that lost a worker before it began to stop is not completed"
    COLLEAGUE = "a run is recovered only when none of its workers is alive"
    END = "every run and every worker ends in time"
    SHORT = "a run is not VALID when less load was delivered than its plan asks for"
    WHOLE = "a run is VALID when its load was delivered, and nothing else is wrong"


class Broken(StrEnum):
    """What can be broken on purpose."""

    FENCING = "writes are taken from terms that are over"
    MARGIN = "a successor does not wait for statements under way"
    RENEWAL = "a term that is over can be renewed"
    PLACE = "a run is moved from wherever it is"
    NUMBERS = "neither the number nor the id of an event is a key"
    MEMORY = "a leader forgets what was carried out"
    LIVENESS = "time without an observation counts as silence"
    LOSS = "a leader misses that a worker was lost"
    ORPHANS = "workers do not notice that their run is not led"
    RECOVERY = "no orphan is ended"
    LOGINS = "refused logins count as delivered"
    PAUSES = "a pause of a worker's process is not noticed"
    ARRIVALS = "arrivals that were not sent are not counted"
    PLAN = "the plan is what workers lived to tell"
    STRICT = "no run is good enough"


class Violation(AssertionError):
    def __init__(self, rule: Rule, what: str) -> None:
        super().__init__(f"{rule}: {what}")
        self.rule = rule
