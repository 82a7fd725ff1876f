"""Warehouses: settings, credits, slots and queues.

The slots of a warehouse are those of its model, or MAX_CONCURRENCY_LEVEL × started clusters (MIN_CLUSTER_COUNT, unless
the performance model starts more). A statement takes a slot, is executed, sleeps for its service time and releases the
slot. Without a free slot it waits in a FIFO queue. `admin` sets the models of warehouses.

    slot = warehouse.try_admit() or await warehouse.admit(queued_timeout_s=session_limit_s)
    try:
        ...                                  # execution; slot.release() early if it waits for a lock
        await slot.serve(warehouse.service_s())
    finally:
        slot.release()

Wake-up delays do not accumulate. A sleeper wakes slightly after its deadline, and the next statement of the queue
starts after that. Uncorrected, a slot would complete fewer statements than 1 / service time. So a slot is considered
free from the *deadline* on, the next statement gets it as of that time (or of its arrival, if later), and its own
deadline counts from there: the delay of one statement shortens the sleep of the next, by at most one service time. The
queued time ends where the execution time begins, so their sum is exact.

Owner: the event loop.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import field, replace
from functools import partial
from typing import Any, Self

from loadgen.embedded.event_loop import Sleeper
from loadgen.embedded.performance_model import SIZES, PerformanceModel, ServiceTimeSampler
from loadgen.service_time import ServiceTimeSpec, parse_service_time
from loadgen.values import dataclass

# --- settings --------------------------------------------------------------------------------------------------------

TYPES = ("STANDARD", "SNOWPARK-OPTIMIZED", "INTERACTIVE", "ADAPTIVE")
SCALING_POLICIES = ("STANDARD", "ECONOMY")
CLUSTERS_MAX = 300
CONCURRENCY_MAX = 10_000
_SIZE_OF = {size.upper().replace("-", ""): size for size in SIZES} | {
    "XXLARGE": "2X-Large",
    "XXXLARGE": "3X-Large",
    "X2LARGE": "2X-Large",
    "X3LARGE": "3X-Large",
    "X4LARGE": "4X-Large",
    "X5LARGE": "5X-Large",
    "X6LARGE": "6X-Large",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WarehouseSettings:
    """The properties of CREATE and ALTER WAREHOUSE, with Snowflake's defaults."""

    name: str
    size: str = "X-Small"
    type: str = "STANDARD"
    generation: str = "2"
    min_cluster_count: int = 1
    max_cluster_count: int = 1
    scaling_policy: str = "STANDARD"
    auto_suspend_s: int = 600  # 0: never
    auto_resume: bool = True
    max_concurrency_level: int = 8
    statement_timeout_s: int = 172_800
    statement_queued_timeout_s: int = 0  # 0: no limit
    enable_query_acceleration: bool = True  # the default of generation 2
    query_acceleration_max_scale_factor: int = 2
    enable_use_stable_path: bool = False
    resource_monitor: str | None = None
    comment: str = ""
    owner: str = "ACCOUNTADMIN"
    created_on_ms: float = 0.0
    updated_on_ms: float = 0.0

    def __post_init__(self) -> None:
        require(bool(self.name), "a warehouse needs a name")
        require(self.size in SIZES, f"size {self.size!r} is not one of {', '.join(SIZES)}")
        require(self.type in TYPES, f"type {self.type!r} is not one of {', '.join(TYPES)}")
        require(self.generation in ("1", "2"), f"generation {self.generation!r} is neither '1' nor '2'")
        require(self.scaling_policy in SCALING_POLICIES, f"unknown scaling policy {self.scaling_policy!r}")
        require(
            1 <= self.min_cluster_count <= self.max_cluster_count <= CLUSTERS_MAX,
            f"cluster counts {self.min_cluster_count} to {self.max_cluster_count} are not within 1 to {CLUSTERS_MAX}",
        )
        require(
            1 <= self.max_concurrency_level <= CONCURRENCY_MAX,
            f"MAX_CONCURRENCY_LEVEL {self.max_concurrency_level} is not within 1 to {CONCURRENCY_MAX}",
        )
        for seconds in (self.auto_suspend_s, self.statement_timeout_s, self.statement_queued_timeout_s):
            require(seconds >= 0, f"{seconds} s is below 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class WarehouseModel:
    """Slots and service time of a warehouse. Models with `20ms` and `0.02s` are equal."""

    slots: int = 0  # 0: those of the warehouse's settings
    spec: ServiceTimeSpec | None = None
    service_time: str | None = field(default=None, compare=False)  # the text of `spec`

    @classmethod
    def of(cls, slots: int, service_time: str | None) -> Self:
        """Raises ValueError with a message for the user."""
        require(0 <= slots <= CONCURRENCY_MAX, f"slots {slots} is not within 0 to {CONCURRENCY_MAX}")
        return cls(slots=slots, spec=parse_service_time(service_time), service_time=service_time)


def size_name(text: str) -> str:
    """The name in SHOW WAREHOUSES of XSMALL, 'x-small', XXLARGE, X4LARGE …"""
    size = _SIZE_OF.get(text.upper().replace("-", ""))
    require(size is not None, f"size {text!r} is not one of {', '.join(SIZES)}")
    return str(size)


def require(condition: bool, message: str) -> None:
    """Raises ValueError unless the condition holds."""
    if not condition:
        raise ValueError(message)


# --- credits ---------------------------------------------------------------------------------------------------------
#
# Credits are metered as Snowflake documents it: by the second, with a minimum of one minute for each start. A start is
# everything that increases the rate: a resume, another cluster, the added part of a larger size. The rates are those of
# the performance model. Credits are stored in memory: a restart of the server deletes them.

HOUR_MS = 3_600_000.0
BILLED_MIN_MS = 60_000.0
KEPT_MS = 14 * 24 * HOUR_MS
METERING_COLUMNS = (
    ("START_TIME", "TIMESTAMP_LTZ"),
    ("END_TIME", "TIMESTAMP_LTZ"),
    ("WAREHOUSE_NAME", "VARCHAR"),
    ("CREDITS_USED", "FLOAT"),
    ("CREDITS_USED_COMPUTE", "FLOAT"),
    ("CREDITS_USED_CLOUD_SERVICES", "FLOAT"),
)


class WarehouseMeter:
    """Credits of one warehouse. Call change() whenever the rate may have changed."""

    def __init__(self, at_ms: float) -> None:
        self._rate = 0.0  # credits per hour
        self._since_ms = at_ms
        self._spans: deque[tuple[float, float, float]] = deque()  # begin, end, credits per hour
        self._charges: deque[tuple[float, float]] = deque()  # time, credits: the rest of a first minute
        self._starts: list[tuple[float, float]] = []  # time, credits per hour; the newest last

    def change(self, at_ms: float, rate: float) -> None:
        """Set the rate in credits per hour from this time on."""
        if rate == self._rate:
            return
        self._spans.append((self._since_ms, at_ms, self._rate))
        if rate > self._rate:
            self._starts.append((at_ms, rate - self._rate))
        else:
            self._stop(at_ms, self._rate - rate)
        self._rate, self._since_ms = rate, at_ms
        while self._spans and self._spans[0][1] < at_ms - KEPT_MS:
            self._spans.popleft()
        while self._charges and self._charges[0][0] < at_ms - KEPT_MS:
            self._charges.popleft()

    def _stop(self, at_ms: float, rate: float) -> None:
        """The newest starts stop first; the rest of their first minute is charged."""
        while rate > 1e-9 and self._starts:
            begun_ms, part = self._starts.pop()
            taken = min(part, rate)
            short_ms = max(0.0, BILLED_MIN_MS - (at_ms - begun_ms))
            self._charges.append((at_ms, taken * short_ms / HOUR_MS))
            if part > taken:
                self._starts.append((begun_ms, part - taken))
            rate -= taken

    def hours(self, begin_ms: float, end_ms: float, now_ms: float) -> list[tuple[float, float]]:
        """(begin of the hour, credits) of the hours of the range that have credits."""
        found: dict[float, float] = {}
        for first_ms, last_ms, rate in (*self._spans, (self._since_ms, now_ms, self._rate)):
            hour_ms = first_ms - first_ms % HOUR_MS
            while rate and hour_ms < last_ms:
                spent_ms = min(last_ms, hour_ms + HOUR_MS) - max(first_ms, hour_ms)
                found[hour_ms] = found.get(hour_ms, 0.0) + rate * spent_ms / HOUR_MS
                hour_ms += HOUR_MS
        for at_ms, credits in self._charges:
            hour_ms = at_ms - at_ms % HOUR_MS
            found[hour_ms] = found.get(hour_ms, 0.0) + credits
        return [
            (hour_ms, credits)
            for hour_ms, credits in sorted(found.items())
            if credits > 0 and hour_ms + HOUR_MS > begin_ms and hour_ms < end_ms
        ]


# --- slots and queues ------------------------------------------------------------------------------------------------

CONTROL_WAREHOUSE = "LOADGEN_CONTROL_WH"  # of the control plane; no measured statements run on it


class QueuedTooLong(Exception):
    """The statement waited for a slot longer than STATEMENT_QUEUED_TIMEOUT_IN_SECONDS."""

    def __init__(self, timeout_s: float) -> None:
        super().__init__(f"queued for more than {timeout_s:g} s")
        self.timeout_s = timeout_s


class WarehouseSuspended(Exception):
    """The warehouse is suspended and AUTO_RESUME is off."""


class WarehouseDropped(Exception):
    """The warehouse was dropped while the statement was queued for it."""


def shortest_s(*limits_s: float) -> float:
    """The lowest of several time limits; 0 means no limit."""
    return min((limit_s for limit_s in limits_s if limit_s > 0), default=0.0)


class WarehouseSlot:
    """The slot of one statement, created by its warehouse. Owner: the task that runs the statement."""

    __slots__ = ("_carried_s", "_held", "_late_s", "_turn", "_warehouse", "queued_s")

    def __init__(self, warehouse: VirtualWarehouse) -> None:
        self.queued_s = 0.0
        self._warehouse = warehouse
        self._held = True
        self._late_s = 0.0  # delay of the start after the ideal time
        self._carried_s = 0.0  # delay of the end of the service time after the ideal time
        self._turn: asyncio.Future[float] | None = None  # while queued; its result is the ideal start

    async def serve(self, service_s: float) -> None:
        """Sleep for the service time; to be called after the execution."""
        monotonic_s = self._warehouse._monotonic_s
        now_s = monotonic_s()
        deadline_s = now_s + service_s - self._late_s
        if deadline_s > now_s:
            await self._warehouse._sleeper.sleep_until(deadline_s)
            now_s = monotonic_s()
        self._late_s = 0.0
        self._carried_s = min(now_s - deadline_s, service_s)

    def release(self) -> None:
        """Release the slot. Safe to call twice; serve() can be called afterwards and sleeps without a slot."""
        if self._held:
            self._held = False
            self._warehouse._slot_released(self._carried_s)


class VirtualWarehouse:
    """Settings, state and the slots of one warehouse."""

    def __init__(
        self,
        settings: WarehouseSettings,
        *,
        monotonic_s: Callable[[], float],
        now_ms: Callable[[], float],
        sleeper: Sleeper,
        seed: int = 1,
        suspended: bool = False,
        performance: PerformanceModel | None = None,
    ) -> None:
        self.settings = settings
        self.performance = performance or PerformanceModel()
        self.model = WarehouseModel()
        self.service_time: ServiceTimeSampler | None = None
        self.running = 0  # statements with a slot
        self.resumed_on_ms = now_ms()
        self._monotonic_s = monotonic_s
        self._now_ms = now_ms
        self._sleeper = sleeper
        self._seed = seed
        self._suspended = suspended
        self._idle_since_s = monotonic_s()
        self._waiters: OrderedDict[WarehouseSlot, float] = OrderedDict()  # slot → time of arrival
        self._cold_since_s = -math.inf  # time of the last resume or change; -inf: warm since the start of the server
        self._provisioning: asyncio.TimerHandle | None = None  # until the end of a resume
        self._scaling: asyncio.TimerHandle | None = None  # until another cluster is started
        self._clusters = settings.min_cluster_count
        self.meter = WarehouseMeter(now_ms())
        self._meter(now_ms())
        self.limit = self._slots_now()

    @property
    def queued(self) -> int:
        return len(self._waiters)

    @property
    def state(self) -> str:
        return "SUSPENDED" if self._check_suspended(self._monotonic_s()) else "STARTED"

    @property
    def started_clusters(self) -> int:
        return 0 if self.state == "SUSPENDED" else self._clusters

    def service_s(self) -> float:
        """The service time of the next statement; 0.0 without a model of it."""
        if self.service_time is None:
            return 0.0
        warm_s = self._monotonic_s() - self._cold_since_s
        settings = self.settings
        return self.service_time.sample_s() * self.performance.time_factor(settings.size, settings.generation, warm_s)

    def stats(self) -> dict[str, Any]:
        """The entry in `GET /__loadgen/stats`."""
        load = {"running": self.running, "queued": self.queued}
        return load | {"slots": self.limit, "service_time": self.model.service_time}

    def try_admit(self) -> WarehouseSlot | None:
        """A slot if one is free, else None."""
        if self.running >= self.limit:  # true while others wait: a freed slot goes to the first of them
            return None
        if not self.running or self._suspended:
            self._ensure_resumed()
            if not self.limit:  # the warehouse is resuming
                return None
        self.running += 1
        return WarehouseSlot(self)

    async def admit(self, queued_timeout_s: float = 0.0) -> WarehouseSlot:
        """Wait for a slot, in order of arrival. The lower limit of session and warehouse applies; 0 is no limit."""
        slot = self.try_admit()
        if slot is not None:
            return slot
        if self._suspended:
            self._ensure_resumed()
        slot = WarehouseSlot(self)
        slot._held = False
        timeout_s = shortest_s(queued_timeout_s, self.settings.statement_queued_timeout_s)
        await self._queue(slot, timeout_s)
        return slot

    def alter(self, **changes: Any) -> None:
        """Change settings while statements run. Raises ValueError for invalid settings, which changes nothing."""
        before = self.settings
        self.settings = replace(self.settings, **changes, updated_on_ms=self._now_ms())
        if (before.size, before.generation) != (self.settings.size, self.settings.generation):
            self._cold_since_s = self._monotonic_s()  # new nodes have an empty cache
        self._clusters = min(max(self._clusters, self.settings.min_cluster_count), self.settings.max_cluster_count)
        if self.performance.scale_out_s is None:
            self._clusters = self.settings.min_cluster_count
        self._meter(self._now_ms())
        self.limit = self._slots_now()
        self._grant_slots()

    def set_model(self, model: WarehouseModel) -> None:
        """Use this model from now on; the sequence of service times restarts."""
        self.model = model
        self.service_time = None if model.spec is None else ServiceTimeSampler(model.spec, self._seed)
        self.limit = self._slots_now()
        self._grant_slots()

    def suspend(self) -> None:
        """New statements resume the warehouse or are rejected. Running and queued statements are completed."""
        self._suspended = True
        self._meter(self._now_ms())

    def resume(self) -> None:
        if self._check_suspended(self._monotonic_s()):
            self._suspended = False
            self._idle_since_s = self._cold_since_s = self._monotonic_s()
            self.resumed_on_ms = self._now_ms()
            self._clusters = self.settings.min_cluster_count
            if self.performance.resume_s:
                loop = asyncio.get_running_loop()
                self._provisioning = loop.call_later(self.performance.resume_s, self._provisioned)
            self.limit = self._slots_now()
            self._meter(self._now_ms())

    def _meter(self, at_ms: float) -> None:
        """Set the rate of credits from this time on."""
        rate = self.performance.credits_per_hour(self.settings.size, self.settings.generation)
        self.meter.change(at_ms, 0.0 if self._suspended else rate * self._clusters)

    def credits_by_hour(self, begin_ms: float, end_ms: float) -> list[tuple[float, float]]:
        """(begin of the hour, credits) of the hours that have credits."""
        self._check_suspended(self._monotonic_s())  # AUTO_SUSPEND may have passed
        return self.meter.hours(begin_ms, end_ms, self._now_ms())

    def _provisioned(self) -> None:
        """The resume has ended."""
        self._provisioning = None
        self._idle_since_s = self._monotonic_s()
        self.limit = self._slots_now()
        self._grant_slots()

    def _scale_out(self) -> None:
        """Statements have queued for `scale_out_s`: start a cluster, and check again after the same time."""
        self._scaling = None
        if self._waiters and not self._suspended:
            self._clusters = min(self._clusters + 1, self.settings.max_cluster_count)
            self._meter(self._now_ms())
            self.limit = self._slots_now()
            self._grant_slots()
            self._watch_queue()

    def _watch_queue(self) -> None:
        may_grow = self._clusters < self.settings.max_cluster_count and self._provisioning is None
        if self.performance.scale_out_s is not None and self._waiters and may_grow and self._scaling is None:
            loop = asyncio.get_running_loop()
            self._scaling = loop.call_later(self.performance.scale_out_s, self._scale_out)

    def drop(self) -> None:
        """Reject queued statements. Running ones keep their slots until they end."""
        while self._waiters:
            slot, _ = self._waiters.popitem(last=False)
            if slot._turn is not None and not slot._turn.done():
                slot._turn.set_exception(WarehouseDropped(self.settings.name))

    async def _queue(self, slot: WarehouseSlot, timeout_s: float) -> None:
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[float] = loop.create_future()
        slot._turn = turn
        arrived_s = self._monotonic_s()
        self._waiters[slot] = arrived_s
        self._watch_queue()
        timer = loop.call_later(timeout_s, self._expire, slot, timeout_s) if timeout_s else None
        try:
            granted_s = await turn
        except BaseException:
            self._waiters.pop(slot, None)
            slot.release()  # cancelled just after the slot was granted, which goes to the next statement
            raise
        finally:
            slot._turn = None
            if timer is not None:
                timer.cancel()
        slot.queued_s = granted_s - arrived_s
        slot._late_s = self._monotonic_s() - granted_s

    def _expire(self, slot: WarehouseSlot, timeout_s: float) -> None:
        if slot._turn is not None and not slot._turn.done():
            slot._turn.set_exception(QueuedTooLong(timeout_s))

    def _slot_released(self, carried_s: float) -> None:
        """A slot has been free for `carried_s`. Grant it to the next statement, if any."""
        self.running -= 1
        if self._waiters:
            self._grant_slots(carried_s)
        if not self.running:
            self._idle_since_s = self._monotonic_s()

    def _grant_slots(self, carried_s: float = 0.0) -> None:
        freed_s = self._monotonic_s() - carried_s
        while self._waiters and self.running < self.limit:
            slot, arrived_s = self._waiters.popitem(last=False)
            turn = slot._turn
            if turn is None or turn.done():  # cancelled; its task has not run yet
                continue
            self.running += 1
            slot._held = True
            turn.set_result(max(freed_s, arrived_s))

    def _slots_now(self) -> int:
        if self._provisioning is not None:
            return 0
        return self.model.slots or self.settings.max_concurrency_level * self._clusters

    def _check_suspended(self, now_s: float) -> bool:
        """Whether it is suspended, by a statement or after AUTO_SUSPEND seconds without statements."""
        if not self._suspended and not self.running and not self._waiters and self.settings.auto_suspend_s:
            self._suspended = now_s - self._idle_since_s >= self.settings.auto_suspend_s
            if self._suspended:  # it is noticed late, at the next access
                late_s = now_s - self._idle_since_s - self.settings.auto_suspend_s
                self._meter(self._now_ms() - late_s * 1000)
        return self._suspended

    def _ensure_resumed(self) -> None:
        if self._check_suspended(self._monotonic_s()):
            if not self.settings.auto_resume:
                raise WarehouseSuspended(self.settings.name)
            self.resume()


class VirtualWarehouses:
    """All warehouses and their models, by name as identifiers are stored (upper case unless quoted).

    `default` is the model of warehouses without another model, except for the control plane's.
    """

    def __init__(
        self,
        *,
        monotonic_s: Callable[[], float],
        now_ms: Callable[[], float],
        sleeper: Sleeper,
        default: WarehouseModel,
        seed: int = 1,
        performance: PerformanceModel | None = None,
    ) -> None:
        """`performance` applies to all warehouses except the control plane's."""
        self._create = partial(VirtualWarehouse, monotonic_s=monotonic_s, now_ms=now_ms, sleeper=sleeper, seed=seed)
        self._performance = performance
        self._by_name: dict[str, VirtualWarehouse] = {}
        self._default = default
        self._models: dict[str, WarehouseModel] = {}

    def __iter__(self) -> Iterator[VirtualWarehouse]:
        return iter(sorted(self._by_name.values(), key=lambda warehouse: warehouse.settings.name))

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def get(self, name: str) -> VirtualWarehouse | None:
        return self._by_name.get(name)

    def add(self, settings: WarehouseSettings, *, suspended: bool = False) -> VirtualWarehouse:
        """Raises ValueError if the name exists."""
        require(settings.name not in self._by_name, f"warehouse {settings.name} exists already")
        performance = None if settings.name == CONTROL_WAREHOUSE else self._performance
        warehouse = self._create(settings, suspended=suspended, performance=performance)
        self._by_name[settings.name] = warehouse
        warehouse.set_model(self.model_of(settings.name))
        return warehouse

    def model_of(self, name: str) -> WarehouseModel:
        default = WarehouseModel() if name == CONTROL_WAREHOUSE else self._default
        return self._models.get(name, default)

    def set_model(self, name: str, model: WarehouseModel | None) -> None:
        """Set the model of a warehouse, which may be created later; None: the default model."""
        if model is None:
            self._models.pop(name, None)
        else:
            self._models[name] = model
        if name in self._by_name:
            self._by_name[name].set_model(self.model_of(name))

    def drop(self, name: str) -> None:
        self._by_name.pop(name).drop()
