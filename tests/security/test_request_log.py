"""Requests in the journal: their size is bounded, for any request before a login."""

from __future__ import annotations

from loadgen.embedded.admin import SQL_CHARACTERS_MAX, TEXT_CHARACTERS_MAX, RequestLog, RequestLogEntry

LONG = "x" * 60_000


def test_no_text_of_a_request_is_kept_whole():
    log = RequestLog()

    log.append(RequestLogEntry(1.0, LONG, LONG, 1, LONG, LONG, LONG, outcome=LONG))

    (line,) = log.lines()
    assert len(line) < 5 * TEXT_CHARACTERS_MAX + SQL_CHARACTERS_MAX + 300
