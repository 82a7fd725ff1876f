"""Settings of a warehouse, as CREATE and ALTER WAREHOUSE set them, and its queueing model."""

from __future__ import annotations

from collections import deque
from dataclasses import field
from typing import Self

from loadgen.embedded.performance_model import SIZES
from loadgen.service_time import ServiceTimeSpec, parse_service_time
from loadgen.values import dataclass

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
    """What CREATE and ALTER WAREHOUSE set, with Snowflake's defaults."""

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
    enable_query_acceleration: bool = True  # on for a new warehouse of generation 2
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
        require(self.scaling_policy in SCALING_POLICIES, f"scaling policy {self.scaling_policy!r} is not known")
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
    """How many statements run at once, and how long each takes. Equal when they do the same: 20ms and 0.02s."""

    slots: int = 0  # 0: as many as the warehouse's settings say
    spec: ServiceTimeSpec | None = None
    service_time: str | None = field(default=None, compare=False)  # the text of `spec`

    @classmethod
    def of(cls, slots: int, service_time: str | None) -> Self:
        """Raises ValueError with a message for the user."""
        require(0 <= slots <= CONCURRENCY_MAX, f"slots {slots} is not within 0 to {CONCURRENCY_MAX}")
        return cls(slots=slots, spec=parse_service_time(service_time), service_time=service_time)


def size_name(text: str) -> str:
    """XSMALL, 'x-small', XXLARGE, X4LARGE … as SHOW WAREHOUSES writes them."""
    size = _SIZE_OF.get(text.upper().replace("-", ""))
    require(size is not None, f"size {text!r} is not one of {', '.join(SIZES)}")
    return str(size)


def require(condition: bool, otherwise: str) -> None:
    """Raises ValueError with that text unless the condition holds."""
    if not condition:
        raise ValueError(otherwise)


# Credits of a warehouse, metered as Snowflake's documentation has it: by the second, at least a minute for each
# start.
#
# A start is whatever adds to the rate: a resume, a further cluster, the added part of a larger size. What stops
# within a minute of its start is billed for the minute. Credits are those of the performance model. They are kept in
# memory: a restart of the server forgets them.

HOUR_MS = 3_600_000.0
BILLED_MIN_MS = 60_000.0
KEPT_MS = 14 * 24 * HOUR_MS
COLUMNS = (
    ("START_TIME", "TIMESTAMP_LTZ"),
    ("END_TIME", "TIMESTAMP_LTZ"),
    ("WAREHOUSE_NAME", "VARCHAR"),
    ("CREDITS_USED", "FLOAT"),
    ("CREDITS_USED_COMPUTE", "FLOAT"),
    ("CREDITS_USED_CLOUD_SERVICES", "FLOAT"),
)


class WarehouseMeter:
    """change() whenever the rate may have changed."""

    def __init__(self, at_ms: float) -> None:
        self._rate = 0.0  # credits per hour
        self._since_ms = at_ms
        self._spans: deque[tuple[float, float, float]] = deque()  # from, to, credits per hour
        self._charges: deque[tuple[float, float]] = deque()  # when, credits: the rest of a first minute
        self._starts: list[tuple[float, float]] = []  # when, credits per hour; the newest last

    def change(self, at_ms: float, rate: float) -> None:
        """From this moment on it costs this many credits per hour."""
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
        """Those that started last stop first; the rest of their first minute is billed at once."""
        while rate > 1e-9 and self._starts:
            begun_ms, part = self._starts.pop()
            taken = min(part, rate)
            short_ms = max(0.0, BILLED_MIN_MS - (at_ms - begun_ms))
            self._charges.append((at_ms, taken * short_ms / HOUR_MS))
            if part > taken:
                self._starts.append((begun_ms, part - taken))
            rate -= taken

    def hours(self, begin_ms: float, end_ms: float, now_ms: float) -> list[tuple[float, float]]:
        """(begin of the hour, credits) of every hour of the range in which it cost something."""
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
