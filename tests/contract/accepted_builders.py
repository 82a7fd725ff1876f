"""Tables and values that tests of accepted SQL share."""

from __future__ import annotations

import uuid
from datetime import datetime

from tests.contract.sql import Sql

PRIMARY_KEY = 200001
RUN_STATUS = """
CREATE HYBRID TABLE IF NOT EXISTS RUN_STATUS (
    RUN_ID           VARCHAR(36)   NOT NULL,
    STATUS           VARCHAR(20)   NOT NULL,
    PHASE            VARCHAR(20)   NOT NULL,
    SCENARIO_CONFIG  VARCHAR       NOT NULL,      -- JSON text
    WORKER_TARGETS   VARCHAR,                     -- JSON text, always rewritten whole
    FIND_MAX_STATE   VARCHAR,                     -- JSON text
    START_TIME       TIMESTAMP_NTZ,
    WARMUP_END_TIME  TIMESTAMP_NTZ,
    END_TIME         TIMESTAMP_NTZ,
    UPDATED_AT       TIMESTAMP_NTZ NOT NULL,
    PRIMARY KEY (RUN_ID)
);
"""
RUN_LEASES = """
CREATE HYBRID TABLE IF NOT EXISTS RUN_LEASES (    -- one row per epoch of a lease
    RUN_ID      VARCHAR(36)   NOT NULL,
    EPOCH       NUMBER(38,0)  NOT NULL,
    OWNER       VARCHAR(100)  NOT NULL,
    EXPIRES_AT  TIMESTAMP_NTZ NOT NULL,
    PRIMARY KEY (RUN_ID, EPOCH)
);
"""
RUN_CONTROL_EVENTS = """
CREATE HYBRID TABLE IF NOT EXISTS RUN_CONTROL_EVENTS (
    RUN_ID       VARCHAR(36)   NOT NULL,
    SEQUENCE_ID  NUMBER(38,0)  NOT NULL,
    EVENT_ID     VARCHAR(36)   NOT NULL,
    EVENT_TYPE   VARCHAR(50)   NOT NULL,
    EVENT_DATA   VARCHAR       NOT NULL,          -- JSON text
    CREATED_AT   TIMESTAMP_NTZ NOT NULL,
    PRIMARY KEY (RUN_ID, SEQUENCE_ID),            -- the poll's access path; needs no CREATE INDEX
    UNIQUE (EVENT_ID)                             -- makes a blind resend harmless
);
"""
WORKER_HEARTBEATS = """
CREATE HYBRID TABLE IF NOT EXISTS WORKER_HEARTBEATS (
    RUN_ID              VARCHAR(36)   NOT NULL,
    WORKER_ID           VARCHAR(100)  NOT NULL,
    WORKER_GROUP_ID     NUMBER(38,0)  NOT NULL,
    STATUS              VARCHAR(20)   NOT NULL,
    PHASE               VARCHAR(20),
    LAST_HEARTBEAT      TIMESTAMP_NTZ NOT NULL,
    HEARTBEAT_COUNT     NUMBER(38,0)  NOT NULL,
    ACTIVE_CONNECTIONS  NUMBER(38,0)  NOT NULL,
    TARGET_CONNECTIONS  NUMBER(38,0)  NOT NULL,
    LAST_ERROR          VARCHAR,
    ERROR_COUNT         NUMBER(38,0)  NOT NULL,
    PRIMARY KEY (RUN_ID, WORKER_ID)
);
"""
CONTROL_TABLES = {
    "RUN_STATUS": RUN_STATUS,
    "RUN_LEASES": RUN_LEASES,
    "RUN_CONTROL_EVENTS": RUN_CONTROL_EVENTS,
    "WORKER_HEARTBEATS": WORKER_HEARTBEATS,
}


def make_numbers(sql: Sql) -> None:
    """A table N of the numbers 1 to 10, each with its word and a group."""
    words = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
    sql("CREATE OR REPLACE TABLE N (I NUMBER, WORD VARCHAR, G VARCHAR)")
    sql.many("INSERT INTO N VALUES (?, ?, ?)", [(i, w, "odd" if i % 2 else "even") for i, w in enumerate(words, 1)])


def ntz(text: str) -> datetime:
    """A TIMESTAMP_NTZ: wall time without a zone."""
    return datetime.fromisoformat(text)


def an_id() -> str:
    return str(uuid.uuid4())


DOCUMENT = {
    "name": "Ann", "address": {"city": "Bern", "zip code": 3000}, "tags": ["a", "b"], "price": 1.5, "flag": True,
    "big": 12345678901234567890123456789, "at": "2026-01-02T03:04:05", "nothing": None,
}  # fmt: skip
