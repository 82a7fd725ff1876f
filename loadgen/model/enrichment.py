"""How far the times of Snowflake's own query history have been joined to what was logged."""

from enum import StrEnum


class RowEnrichment(StrEnum):
    """One logged statement. The names are stored in QUERY_EXECUTIONS.ENRICHMENT_STATUS."""

    PENDING = "PENDING"  # not looked for yet, or too fresh to be missed
    ENRICHED = "ENRICHED"  # has the server's times; never changes again
    NOT_FOUND = "NOT_FOUND"  # the history had time enough, and does not show it
    SKIPPED = "SKIPPED"  # not looked for, because the history cannot tell
    FAILED = "FAILED"  # the history shows it without times


class RunEnrichment(StrEnum):
    """A run. The names are stored in RUN_STATUS.ENRICHMENT_STATUS and in summary.json."""

    PENDING = "PENDING"  # some statements may still appear in the history
    ENRICHED = "ENRICHED"  # everything that was looked for was found
    PARTIAL = "PARTIAL"  # nothing is open any more, and some were not found
    SKIPPED = "SKIPPED"  # nothing was looked for
    FAILED = "FAILED"  # the history could not be read
