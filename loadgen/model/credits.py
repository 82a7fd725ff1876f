"""What a warehouse costs: credits per hour of one cluster, by size and kind, in a dated table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

SIZES = ("X-Small", "Small", "Medium", "Large", "X-Large", *(f"{number}X-Large" for number in range(2, 7)))
IDLE_POLL_S = 600.0  # between looks of a pool that has no work
LOOK_AWAKE_S = 60.0  # of the warehouse for one look: AUTO_SUSPEND of `loadgen setup`, and the least that is billed
DAY_S = 86_400.0
_SHORT = {"XS": "X-Small", "S": "Small", "M": "Medium", "L": "Large", "XL": "X-Large", "XXLARGE": "2X-Large"}
_NAMES = {size.upper().replace("-", ""): size for size in SIZES} | _SHORT | {"XXXLARGE": "3X-Large"}
_NAMES |= {f"X{number}LARGE": f"{number}X-Large" for number in range(2, 7)}


class WarehouseKind(StrEnum):
    """What the rate of a size depends on; keys of a rate table."""

    GEN1 = "gen1"
    GEN2 = "gen2"
    SNOWPARK_OPTIMIZED = "snowpark_optimized"


class Cloud(StrEnum):
    AWS = "aws"
    AZURE = "azure"
    GCP = "gcp"


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditRates:
    """Credits per hour and cluster."""

    date: str  # of what it was taken from
    per_hour: Mapping[WarehouseKind, Mapping[str, float]]  # by size

    def of(self, size: str | None, kind: WarehouseKind) -> float | None:
        """None for a size or kind that the table does not have."""
        return self.per_hour.get(kind, {}).get(size_name(size or "") or "")


def size_name(text: str) -> str | None:
    """X-Small for XSMALL, X-Small, XS; None: no such size."""
    return _NAMES.get(text.strip().upper().replace("-", "").replace(" ", ""))


# Generation 1 as documented, 2 as quoted from the consumption tables of that date; Snowpark-optimized with MEMORY_16X.
RATES_DATE = "2026-09-16"
_GEN2_FACTOR = {Cloud.AWS: 1.35, Cloud.GCP: 1.35, Cloud.AZURE: 1.25}


def snowflake_rates(cloud: Cloud) -> CreditRates:
    """The table of RATES_DATE."""
    gen1 = {size: float(2**step) for step, size in enumerate(SIZES)}
    return CreditRates(
        date=RATES_DATE,
        per_hour={
            WarehouseKind.GEN1: gen1,
            WarehouseKind.GEN2: {size: gen1[size] * _GEN2_FACTOR[cloud] for size in SIZES[:8]},
            WarehouseKind.SNOWPARK_OPTIMIZED: {size: gen1[size] * 1.5 for size in SIZES[2:]},
        },
    )


def credits_per_hour(size: str) -> float | None:
    """Of a standard warehouse, generation 1. None for a size that is not known."""
    return float(2 ** SIZES.index(size)) if size in SIZES else None


def look_credits_per_day(every_s: float) -> float:
    """Of an X-Small that a look at its tables starts this often."""
    return DAY_S / max(every_s, LOOK_AWAKE_S) * LOOK_AWAKE_S / 3600
