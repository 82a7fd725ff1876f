"""Date and time units: every spelling Snowflake takes, and the one name our SQL knows."""

from __future__ import annotations

_SPELLINGS = {
    "year": "y yy yyy yyyy yr years yrs",
    "quarter": "q qtr qtrs quarters",
    "month": "mm mon mons months",
    "week": "w wk weekofyear woy wy weeks",
    "weekiso": "week_iso weekofyeariso weekofyear_iso",
    "day": "d dd days dayofmonth",
    "dayofweek": "weekday dow dw",
    "dayofweekiso": "weekday_iso dow_iso dw_iso dayofweek_iso",
    "dayofyear": "yearday doy dy",
    "yearofweek": "",
    "yearofweekiso": "",
    "hour": "h hh hr hours hrs",
    "minute": "m mi min minutes mins",
    "second": "s sec seconds secs",
    "millisecond": "ms msec milliseconds",
    "microsecond": "us usec microseconds",
    "nanosecond": "ns nsec nanosec nsecond nanoseconds nanosecs nseconds",
    "epoch_second": "epoch epoch_seconds",
    "epoch_millisecond": "epoch_milliseconds",
    "epoch_microsecond": "epoch_microseconds",
    "epoch_nanosecond": "epoch_nanoseconds",
    "timezone_hour": "tzh",
    "timezone_minute": "tzm",
}
_UNITS = {word: unit for unit, words in _SPELLINGS.items() for word in (unit, *words.split())}

# Added to a DATE these keep it a DATE; the smaller ones make a timestamp of it.
DAY_UNITS = frozenset({"year", "quarter", "month", "week", "day"})


def normal_unit(text: str) -> str | None:
    """The full name of a date or time unit, in lower case; None when it is no unit."""
    return _UNITS.get(text.strip().lower())
