"""Values: what may be written, and what becomes of it."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

import pytest

from loadgen.model.threshold import Operator, ThresholdMetric, parse_threshold
from loadgen.model.workload import (
    Choice,
    Hotspot,
    KeyRange,
    Latest,
    Literal,
    Normal,
    PoolOrder,
    PoolValue,
    Previous,
    Query,
    Sequence,
    Shard,
    Sharding,
    Statement,
    StatementKind,
    Text,
    Timestamp,
    Uniform,
    UniformFloat,
    Uuid,
    Zipfian,
)
from loadgen.scenario.frozen import freeze, template_id, thaw
from loadgen.scenario.model import (
    ColumnSpec,
    EnrichmentMode,
    FilePool,
    FindMaxSettings,
    Load,
    LoadMode,
    LoadStage,
    QueryPool,
    TableSpec,
    TableType,
)
from loadgen.scenario.settings import ControlPlaneSettings, EmbeddedSettings, TimingSettings
from tests.unit.scenario_builders import MINIMAL, read

EVERY_GENERATOR = """\
version: 1
name: x
values:
  ids: {query: SELECT 1}
  regions: {file: r.csv, column: NAME}
sharding: {enabled: true, total_partitions: 4, key_column: K, key_range: [1, 100]}
workload:
  statements:
    - name: flat
      sql: SELECT ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?
      params:
        - {literal: null}
        - {choice: [PAID, 1, true]}
        - {choice: {NEW: 70, PAID: 20}}
        - {uniform: {min: 1, max: 10k}}
        - {uniform: {min: 0, max: 1.5}}
        - {uniform: {sharded: true}}
        - {normal: {mean: 5, stddev: 2, min: 0, max: 9, whole: true}}
        - {zipfian: {min: 1, max: 5, scrambled: true}}
        - {hotspot: {min: 1, max: 5, hot_share: 0.9}}
        - {latest: {min: 1, max: 5, follows: tx}}
        - {sequence: {start: 1000001}}
        - {sequence: {sharded: true}}
        - {text: {length: 4, max_length: 8, alphabet: ab}}
        - {uuid: {}}
        - {timestamp: {min: "2025-01-01", max: "2026-01-01T02:00:00+02:00"}}
        - {pool: ids}
        - {pool: regions, distribution: zipfian}
        - {shard: {}}
        - {literal: "${SECRET_WORD}"}
    - name: tx
      weight: 3
      transaction:
        - {sql: "INSERT INTO T VALUES (?)", params: [{sequence: {}}]}
        - {sql: "SELECT ?", params: [{previous: 0}]}
"""
EVERY_DEFAULT = """\
control: {connection: null, database: LOADGEN, schema: CONTROL, warehouse: null, share_warehouse: false}
target: {warehouse: null, database: null, schema: null, use_cached_result: false, statement_timeout: 30s, session: {}}
prepare: {tables: [], statements: []}
values: {}
sharding: {enabled: false, total_partitions: 100, key_column: ID, key_range: [1, 1000000]}
sessions: {count: 0, affinity: hint, ttl: 1h, max: 10000, metadata: {}}
seed: 1
load:
  mode: concurrency
  connections: 32
  min_connections: 1
  profile: thread
  pin: auto
  workers: auto
  per_worker_connections: null
  warmup: 10s
  duration: 60s
  ramp: 0s
  stages: []
  rate: null
  max_lag: null
connections: {open_parallel: 16, max_age: null, max_statements: null}
thresholds: []
guardrails: {max_cpu_percent: 90, max_memory_percent: 85, action: warn, max_credits: null}
query_log: {mode: sample, sample_rate: 0.01, max_rows: 1m}
enrichment: {enabled: auto}
spawner: {kind: local}
on_worker_loss: fail
notify: []
timing: {}
embedded: {service_time: null, slots: 0, engine: postgres}
"""


# --- the typed result ------------------------------------------------------------------------------------------------


def test_every_generator_becomes_what_the_workload_draws_from():
    scenario = read(EVERY_GENERATOR, {"SECRET_WORD": "s3cret"})

    assert scenario.workload.statements[0].queries[0].parameters == (
        Literal(value=None),
        Choice(values=("PAID", 1, True)),
        Choice(values=("NEW", "PAID"), weights=(70, 20)),
        Uniform(keys=KeyRange(low=1, high=10_001)),
        UniformFloat(low=0.0, high=1.5),
        Uniform(keys=None, sharded=True),
        Normal(mean=5.0, stddev=2.0, low=0.0, high=10.0, whole=True),
        Zipfian(keys=KeyRange(low=1, high=6), scrambled=True),
        Hotspot(keys=KeyRange(low=1, high=6), hot_share=0.9),
        Latest(keys=KeyRange(low=1, high=6), follows="tx"),
        Sequence(start=1_000_001),
        Sequence(sharded=True),
        Text(length=4, length_max=8, alphabet="ab"),
        Uuid(),
        Timestamp(low=datetime(2025, 1, 1), high=datetime(2026, 1, 1)),  # noqa: DTZ001 - naive UTC by design
        PoolValue(pool="ids"),
        PoolValue(pool="regions", order=PoolOrder.ZIPFIAN),
        Shard(),
        Literal(value="s3cret"),
    )
    assert scenario.workload.statements[1] == Statement(
        name="tx",
        kind=StatementKind.WRITE,
        weight=3,
        transaction=True,
        queries=(
            Query(sql="INSERT INTO T VALUES (?)", parameters=(Sequence(),)),
            Query(sql="SELECT ?", parameters=(Previous(index=0),)),
        ),
    )
    assert scenario.workload.sharding == Sharding(total_partitions=4, key_column="K", keys=KeyRange(low=1, high=101))
    assert scenario.pools == (
        QueryPool(name="ids", query="SELECT 1"),
        FilePool(name="regions", file="r.csv", column="NAME"),
    )


@pytest.mark.parametrize(
    ("written", "parameter"),
    [
        ("{uniform: {min: -1.5k, max: 2_000}}", Uniform(keys=KeyRange(low=-1_500, high=2_001))),
        ("{uniform: {min: '-3', max: 1.5k}}", Uniform(keys=KeyRange(low=-3, high=1_501))),
        ("{uniform: {min: '-0.5', max: 1e3}}", UniformFloat(low=-0.5, high=1_000.0)),
        ("{sequence: {start: -2k}}", Sequence(start=-2_000)),
        ("{uuid: }", Uuid()),
        ("{uuid: {}}", Uuid()),
    ],
)
def test_counts_may_be_negative_or_have_a_fraction_and_bare_generators_need_no_braces(written, parameter):
    text = f"version: 1\nname: x\nworkload: {{statements: [{{name: a, sql: SELECT ?, params: [{written}]}}]}}\n"

    assert read(text).workload.statements[0].queries[0].parameters == (parameter,)


def test_sections_become_typed_values():
    scenario = read(
        MINIMAL
        + "prepare: {tables: [{name: T, rows: 100k, columns: [{name: ID, type: INT, primary_key: true, "
        + "generate: {sequence: {}}}], indexes: [{columns: [ID]}]}]}\n"
        + "load: {stages: [{duration: 1m, connections: 16}, {duration: 2m, connections: 64, ramp: 10s}]}\n"
        + "enrichment: {enabled: false}\ncontrol: {connection: embedded}\nembedded: {slots: 4}\n"
    )

    assert scenario.prepare.tables == (
        TableSpec(
            name="T",
            type=TableType.HYBRID,
            rows=100_000,
            columns=(ColumnSpec(name="ID", type="INT", primary_key=True, generate=Sequence()),),
            indexes=(("ID",),),
        ),
    )
    assert scenario.load == Load(
        connections=64,
        duration_s=180.0,
        stages=(LoadStage(duration_s=60.0, connections=16), LoadStage(duration_s=120.0, connections=64, ramp_s=10.0)),
    )
    assert scenario.enrichment is EnrichmentMode.OFF
    assert scenario.control == ControlPlaneSettings(connection="embedded")
    assert scenario.embedded == EmbeddedSettings(slots=4)


def test_writing_every_default_out_changes_nothing():
    assert read(MINIMAL + EVERY_DEFAULT) == read(MINIMAL)


def test_each_mode_has_its_ceiling_and_levels():
    rate = read(MINIMAL + "load: {mode: rate, rate: 90/m, max_connections: 12, duration: 10s}\n").load
    search = read(MINIMAL + "load: {mode: find_max, find_max: {maximum: 40, step: 5s}}\n").load

    assert (rate.connections, rate.rate_per_second) == (12, 1.5)
    assert rate.levels == (LoadStage(duration_s=10.0, rate_per_second=1.5),)
    assert (search.mode, search.connections, search.duration_s) == (LoadMode.FIND_MAX, 40, None)
    assert search.find_max == FindMaxSettings(maximum=40, step_s=5.0)
    assert search.levels == ()


def test_slow_spawners_have_longer_times():
    local = read(MINIMAL).timing
    spcs = read(MINIMAL + "spawner: {kind: spcs, compute_pool: P, image: /d/s/r/i:1}\n").timing

    assert (local.registration_s, local.start_s) == (60.0, 120.0)
    assert (spcs.registration_s, spcs.start_s) == (600.0, 900.0)
    kubernetes = read(MINIMAL + "spawner: {kind: kubernetes, image: i, service_account: a}\n").timing
    assert (kubernetes.registration_s, kubernetes.start_s) == (600.0, 900.0)
    assert read(MINIMAL + "spawner: {kind: external}\ntiming: {start: 5s}\n").timing.start_s == 5.0


@pytest.mark.parametrize("key", ["labels", "load", "prepare", "thresholds", "timing", "notify", "values"])
def test_a_section_with_nothing_below_it_counts_as_absent(key):
    assert read(f"{MINIMAL}{key}:\n") == read(MINIMAL)


def test_the_kind_of_a_statement_is_read_from_its_sql():
    text = MINIMAL.replace("SELECT 1", "MERGE INTO T USING S ON 1=1 WHEN MATCHED THEN DELETE")

    assert read(text).workload.statements[0].kind is StatementKind.WRITE
    assert read(MINIMAL).workload.statements[0].kind is StatementKind.READ


# --- thresholds ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "statement", "metric", "operator", "limit"),
    [
        ("p95 < 50ms", None, ThresholdMetric.P95, Operator.LT, 50.0),
        ("p999<=1.5s", None, ThresholdMetric.P999, Operator.LE, 1500.0),
        ("pay.p99 > 100us", "pay", ThresholdMetric.P99, Operator.GT, 0.1),
        ("a.b.c.max >= 1m", "a.b.c", ThresholdMetric.MAX, Operator.GE, 60_000.0),
        ("</script><b>x.p50 < 1ms", "</script><b>x", ThresholdMetric.P50, Operator.LT, 1.0),
        ("error_rate < 0.5%", None, ThresholdMetric.ERROR_RATE, Operator.LT, 0.005),
        ("qps > 1.5k", None, ThresholdMetric.QPS, Operator.GT, 1500.0),
        ("qps > 90/m", None, ThresholdMetric.QPS, Operator.GT, 1.5),
        ("errors == 0", None, ThresholdMetric.ERRORS, Operator.EQ, 0.0),
        ("queries >= 10k", None, ThresholdMetric.QUERIES, Operator.GE, 10_000.0),
        ("lag_p99 < 5ms", None, ThresholdMetric.LAG_P99, Operator.LT, 5.0),
        ("service_p95 < 5ms", None, ThresholdMetric.SERVICE_P95, Operator.LT, 5.0),
    ],
)
def test_thresholds_are_read(text, statement, metric, operator, limit):
    check = parse_threshold(text)

    assert (check.statement, check.metric, check.operator, check.limit) == (statement, metric, operator, limit)
    assert check.text == text


@pytest.mark.parametrize(
    "text",
    [
        *("", "p95", "p95 <", "< 5ms", "p95 ! 5ms", ".p95 < 5ms", "p95 < 5", "errors < 1.5", "error_rate < 101%"),
        *("p95 < 5ms < 6", "p95 < nan", "qps > -1", "p95 <" + "9" * 600),
    ],
)
def test_what_is_no_threshold_is_refused(text):
    with pytest.raises(ValueError):
        parse_threshold(text)


@pytest.mark.parametrize(
    ("workers", "heartbeat_s", "events_s", "announce_s", "tick_s", "stale_s", "dead_s"),
    [
        (1, 1, 5, 2, 1, 30, 60),
        (100, 1, 5, 2, 1, 30, 60),
        (500, 5, 10, 2.5, 2.5, 30, 60),
        (1_000, 10, 20, 5, 5, 60, 120),
    ],
)
def test_intervals_grow_with_the_number_of_workers(workers, heartbeat_s, events_s, announce_s, tick_s, stale_s, dead_s):
    timing = TimingSettings().for_workers(workers)

    assert (timing.heartbeat_s, timing.status_poll_s, timing.events_poll_s) == (heartbeat_s, heartbeat_s, events_s)
    assert (timing.announce_s, timing.tick_s) == (announce_s, tick_s)
    assert (timing.stale_s, timing.dead_s) == (stale_s, dead_s)
    assert timing.stale_s >= 6 * timing.heartbeat_s
    assert timing.dead_s > timing.stale_s


def test_longer_intervals_of_the_scenario_stay():
    timing = replace(TimingSettings(), heartbeat_s=15.0, stale_s=300.0, dead_s=900.0).for_workers(1_000)

    assert (timing.heartbeat_s, timing.status_poll_s, timing.stale_s, timing.dead_s) == (15.0, 10.0, 300.0, 900.0)


def test_the_stored_scenario_is_as_written_and_all_who_read_it_use_the_same_intervals():
    scenario = read(MINIMAL + "load: {connections: 2000, workers: 1000}\n")

    stored = freeze(scenario)

    assert scenario.timing.heartbeat_s == 1.0
    assert thaw(stored, {}).timing.heartbeat_s == 10.0
    assert template_id(scenario) == template_id(replace(thaw(stored, {}), timing=scenario.timing))
