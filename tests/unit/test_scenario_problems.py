"""Mistakes in scenarios: all of them at once, each at its line and column, with the offending text and a remedy."""

from __future__ import annotations

import pytest

from loadgen.errors import ScenarioInvalid
from loadgen.log import redact
from loadgen.scenario.read import parse_scenario
from tests.unit.scenario_builders import problems, problems_of

TWELVE_MISTAKES = """\
version: 1
name: twelve
descripton: a key that is mistyped
connection: embedded
target: {warehouse: "x; DROP", password: hunter2}
prepare:
  tables:
    - {name: T, type: hybrid, rows: many, columns: [{name: ID, type: NUMBER, primary_key: true}]}
workload:
  statements:
    - name: a
      sql: SELECT * FROM T WHERE ID = ? AND NOTE = '?'
    - name: b
      sql: DROP TABLE T
      weight: -3
    - name: c
      sql: SELECT ?
      params: [{pool: nowhere}]
load:
  duration: 5 parsecs
  rate: 500/s
  connections: 30
  workers: 4
  per_worker_connections: 8
thresholds:
  - p96 < 50ms
"""


def test_twelve_different_mistakes_give_twelve_messages_at_their_lines_and_columns():
    found = problems(TWELVE_MISTAKES)

    assert [problem.split(" ")[0] for problem in found] == [
        "f.yaml:3:1",
        "f.yaml:5:21",
        "f.yaml:5:32",
        "f.yaml:8:37",
        "f.yaml:12:7",
        "f.yaml:14:12",
        "f.yaml:15:15",
        "f.yaml:18:23",
        "f.yaml:20:13",
        "f.yaml:21:3",
        "f.yaml:24:27",
        "f.yaml:26:5",
    ]
    assert [problem.split(" ", 1)[1] for problem in found] == [
        "descripton: 'descripton' is not a known key; did you mean description?",
        "target.warehouse: is not the name of a Snowflake object, got 'x; DROP'; write a letter or _ and then letters, "
        'digits, _ or $; or put the name in double quotes, and a " in it twice',
        "target: the key 'password' looks like a secret, which a scenario must not contain; put it in connections.toml "
        "and name that connection; `loadgen connections list` shows the file",
        "prepare.tables.0.rows: is not a count, got 'many'; write a whole number, such as 250, 10k (thousand), 1m "
        "(million) or 2b (billion)",
        "workload.statements.0.sql: 1 ? is in the SQL, and 0 parameters are given; write one generator under params "
        "for each ? outside of texts and comments",
        "workload.statements.1.sql: DROP is not a statement of a workload, got 'DROP TABLE T'; put it under "
        "prepare.statements",
        "workload.statements.1.weight: must be from 0 to 1,000,000, got '-3'",
        "workload.statements.2.params.0.pool: is not a pool under values, got 'nowhere'; there are none",
        "load.duration: is not a duration, got '5 parsecs'; 'parsecs' is not a unit; write one number and one unit "
        "(ns us ms s m h d), such as 500ms, 30s or 1.5h",
        "load.rate: belongs to mode rate, and the mode is concurrency; remove it, or write mode: rate",
        "load.per_worker_connections: 4 workers × 8 connections are 32, not 30, got '8'; make them agree, or leave "
        "this one out",
        "thresholds.0: has an unknown metric, got 'p96 < 50ms'; did you mean p99 or p95 or p90?",
    ]


def test_the_error_carries_the_problems_and_ends_with_exit_code_2():
    with pytest.raises(ScenarioInvalid) as found:
        parse_scenario(TWELVE_MISTAKES, source="f.yaml", environ={})

    assert found.value.exit_code == 2
    assert str(found.value).startswith("f.yaml has 12 problems:\n  f.yaml:3:1 ")
    assert "hunter2" not in str(found.value)
    assert "which a scenario must not contain; put it in connections.toml" in redact(
        str(found.value)
    )  # reported, not masked


@pytest.mark.parametrize(
    ("load", "words"),
    [
        ("connections: 0", "load.connections: must be from 1 to 10,000, got '0'"),
        ("connections: -1", "must be from 1 to 10,000"),
        ("connections: 1e9", "must be a whole number"),
        ("connections: 1000000000", "must be from 1 to 10,000"),
        ("connections: 64.5", "must be a whole number"),
        ("connections: true", "must be a whole number"),
        ("connections: [8]", "must be a whole number"),
        ("duration: 0s", "must be from 100ms to 7d"),
        ("duration: -5s", "is not a duration"),
        ("duration: 5", "the unit is missing"),
        ("mode: fast", "must be concurrency, rate, find_max or replay, got 'fast'"),
        ("mode: rate", "load.rate: is missing"),
        ("mode: rate, rate: 500", "is not a rate"),
        ("mode: rate, rate: 0/s", "must be above 0"),
        ("mode: rate, rate: 10/s, connections: 5", "load.connections: belongs to mode concurrency"),
        ("mode: rate, rate: 10/s, min_connections: 5", "belongs to mode concurrency and find_max"),
        ("mode: rate, rate: 1/h, duration: 1m", "no statement is due"),
        ("mode: rate, rate: 1000000/s, duration: 1d", "more than 1,000,000,000 statements"),
        ("arrival: uniform", "load.arrival: belongs to mode rate"),
        ("max_connections: 64", "load.max_connections: belongs to mode rate"),
        ("max_lag: 5s", "load.max_lag: belongs to mode rate"),
        ("find_max: {start: 5}", "load.find_max: belongs to mode find_max"),
        ("mode: find_max, duration: 60s", "load.duration: belongs to mode concurrency and rate"),
        ("mode: find_max, connections: 60", "load.connections: belongs to mode concurrency"),
        ("mode: find_max, find_max: {start: 50, maximum: 20}", "load.find_max.start: is above maximum, 20"),
        ("mode: find_max, find_max: {start: 3}, min_connections: 4", "is below load.min_connections, 4"),
        ("mode: find_max, find_max: {increment: 0}", "must be from 1 to 10,000"),
        ("min_connections: 40", "load.connections: is below min_connections, 40"),
        ("ramp: 5m", "load.ramp: is longer than the whole run"),
        ("connections: 10, per_worker_connections: 3", "10 connections cannot be split into workers of 3"),
        ("workers: many", "write auto or a number from 1 to 1000"),
        ("workers: 0", "must be from 1 to 1,000"),
        ("profile: process, workers: 2", "one worker per connection, that is 32"),
        ("profile: process, connections: 5000", "would start 5,000 processes"),
        ("mode: find_max, profile: process", "process with mode find_max would start 500 processes at once"),
        ("mode: find_max, profile: process, find_max: {maximum: 65}", "set load.find_max.maximum to 64 or less"),
        ("stages: [{duration: 1m}]", "load.stages.0.connections: is missing"),
        ("stages: [{duration: 1m, rate: 5/s, connections: 1}]", "load.stages.0.rate: does not belong to mode"),
        ("stages: [{duration: 1m, connections: 5}], duration: 5m", "load.duration: is set by the stages"),
        ("stages: [{duration: 1m, connections: 5}], connections: 5", "load.connections: is set by the stages"),
        ("stages: [{duration: 1m, connections: 5, ramp: 10s}]", "the first level is reached in the warm-up"),
        ("stages: [{duration: 1m, connections: 5}, {duration: 1s, connections: 9, ramp: 2s}]", "longer than the stage"),
        ("mode: rate, rate: 10/s, max_connections: 3, workers: 4", "some could not send their part of the rate"),
        ("mode: find_max, per_worker_connections: 3, workers: 4", "belongs to mode concurrency and rate"),
        ("stages: {duration: 1m}", "must be a list"),
        ("stages: [5]", "load.stages.0: must be a mapping, got '5'"),
    ],
)
def test_loads_that_cannot_be(load, words):
    found = problems_of(load=load)

    assert len(found) == 1, found
    assert words in found[0]


@pytest.mark.parametrize(
    ("param", "words"),
    [
        ("5", "params.0: must name a generator, got '5'; for a fixed value write {literal: …}"),
        ("{}", "names no generator"),
        ("{unifrom: {min: 1, max: 2}}", "'unifrom' is not a generator; did you mean uniform?"),
        ("{uniform: {min: 1, max: 2}, literal: 1}", "names 2 generators: uniform, literal"),
        ("{uniform: {min: 1}}", "uniform: needs max"),
        ("{uniform: {min: 5, max: 1}}", "max: is below min, got '1'"),
        ("{uniform: {mn: 5, max: 1, min: 0}}", "'mn' is not a known key; did you mean min?"),
        ("{uniform: 5}", "must be a mapping, got '5'"),
        ("{uniform: {sharded: true}}", "sharded: needs sharding"),
        ("{shard: {}}", "shard: needs sharding"),
        ("{normal: {mean: 0, stddev: 0}}", "must be above 0"),
        ("{normal: {mean: 0, stddev: 1, min: 50}}", "would draw again forever"),
        ("{normal: {mean: 0, stddev: 1, min: 0.2, max: 0.8, whole: true}}", "no whole number between"),
        (
            "{normal: {mean: 0.45, stddev: 0.01, min: 0.4, max: 1.4, whole: true}}",  # all are rounded to 0
            "would draw again forever",
        ),
        ("{uniform: {min: 1.0, max: 1}}", "max: equals min"),
        ("{uniform: {min: 1, max: 1.0}}", "max: equals min"),
        ("{uniform: {min: 1, max: -1k}}", "max: is below min, got '-1k'"),
        ("{text: {length: 9, alphabet: ' '}}", "alphabet: must not be spaces only"),
        ("{zipfian: {min: 1, max: 9, theta: 1}}", "theta: must be above 0 and at most 0.9999"),
        ("{hotspot: {min: 1, max: 9, hot_share: 1.5}}", "hot_share: must be above 0 and at most 1"),
        (
            "{latest: {min: 1, max: 9, follows: z}}",
            "follows: is not a statement of the workload, got 'z'; statements are a",
        ),
        ("{latest: {min: 1, max: 9, follows: a}}", "follows: is a statement that inserts no new keys"),
        ("{text: {length: 9, max_length: 5}}", "max_length: is below length"),
        ("{text: {}}", "length: is missing"),
        ('{timestamp: {min: "2026-01-01", max: "2025-01-01"}}', "max: is not after min"),
        ('{timestamp: {min: "yesterday", max: "2025-01-01"}}', "is not a date or timestamp, got 'yesterday'"),
        ("{timestamp: {min: 2026-01-01, max: 2027-01-01}}", "a date must be quoted"),
        ("{choice: []}", "must have 1 to 10,000 values"),
        ("{choice: {a: 0, b: 0}}", "weights that are all 0"),
        ("{choice: {a: x}}", "choice.a: is not a count, got 'x'"),
        ("{choice: [[1]]}", "choice.0: must be one value"),
        ("{pool: ids}", "is not a pool under values"),
        ("{previous: 0}", "previous: is only possible inside a transaction"),
        ("{literal: [1]}", "must be one value"),
        ("{literal: 1, extra: 2}", "'extra' is not a known key"),
    ],
)
def test_parameters_that_cannot_be(param, words):
    found = problems_of(param=param)

    assert any(words in problem for problem in found), found


@pytest.mark.parametrize(
    ("top", "words"),
    [
        ("name2: x", "'name2' is not a known key; did you mean name?"),
        ("duration: 5s", "'duration' is not a known key; it belongs under load"),
        ("target: {schema: a.b}", "target.schema: is not the name of a Snowflake object"),
        ("target: {statement_timeout: 500ms}", "must be from 1s to 7d"),
        ("target: {statement_timeout: 1500ms}", "must be whole seconds"),
        ("target: {session: {QUERY_TAG: x}}", "session.QUERY_TAG: the key cannot be set here"),
        ('target: {session: {"A; B": x}}', "is not the name of a session parameter"),
        ("target: {warehouse: W}\ncontrol: {warehouse: w}", "control.warehouse: the control plane would use"),
        ("target: {warehouse: loadgen_control_wh}", "target.warehouse: the control plane would use"),
        ("labels: {a: 1}", "labels.a: must be a text"),
        ("labels: [a]", "labels: must be a mapping"),
        ("labels: {api_token: x}", "labels: the key 'api_token' looks like a secret"),
        ("sessions: {affinity: strict}", "sessions.affinity: has no effect: there are no sessions"),
        ("sessions: {metadata: {a: 1}}", "sessions.metadata.a: must be a text"),
        ("notify: [{webhook: x}]", "notify.0.webhook: must come from the environment"),
        ("notify: [{on: [always]}]", "notify.0: has no receiver"),
        ('notify: [{command: [a], ping: "${HOOK:-x}"}]', "notify.0.ping: must come from the environment"),
        ("notify: [{command: [a], on: []}]", "notify.0.on: is empty, so the message would never be sent"),
        ("notify: [{command: [a], on: [failure]}]", "must be failed, invalid, regression or always"),
        ("notify: [{command: a}]", "notify.0.command: must be a list"),
        ("sharding: {enabled: true}", "sharding.enabled: sharding is enabled, and no parameter uses it"),
        ("sharding: {key_range: [5, 1]}", "sharding.key_range: must be [first, last]"),
        ("sharding: {key_range: [5]}", "sharding.key_range: must be [first, last]"),
        ("query_log: {mode: all, sample_rate: 0.5}", "query_log.sample_rate: belongs to mode sample"),
        ("query_log: {mode: none, max_rows: 5}", "query_log.max_rows: belongs to mode all and sample and errors"),
        ("query_log: {sample_rate: 5}", "must be above 0 and at most 1"),
        ("spawner: {kind: spcs, image: x}", "spawner.compute_pool: is missing"),
        ("spawner: {image: x}", "spawner.image: belongs to kind spcs"),
        ("spawner: {kind: kubernetes, secret: s}", "spawner.image: is missing: kind kubernetes needs it"),
        ("spawner: {kind: kubernetes, image: a b, secret: s}", "spawner.image: is not the name of an image"),
        ("spawner: {kind: kubernetes, image: x}", "spawner.secret: is missing: pods have no login without it"),
        ("spawner: {kind: kubernetes, image: x, secret: S}", "spawner.secret: is not the name of a Kubernetes object"),
        ("spawner: {namespace: x}", "spawner.namespace: belongs to kind kubernetes"),
        (
            "spawner: {kind: kubernetes, image: x, secret: s, labels: {a b: c}}",
            "spawner.labels.a b: the key is not the name of a Kubernetes label",
        ),
        (
            "spawner: {kind: kubernetes, image: x, secret: s, labels: {loadgen-run: c}}",
            "spawner.labels.loadgen-run: the key cannot be set here",
        ),
        (
            "spawner: {kind: kubernetes, image: x, secret: s, node_selector: {pool: a/b}}",
            "spawner.node_selector.pool: is not the value of a Kubernetes label",
        ),
        (
            "spawner: {kind: kubernetes, image: x, secret: s, resources: {limits: {memory: 4 GB}}}",
            "spawner.resources.limits.memory: is not a quantity",
        ),
        (
            "spawner: {kind: kubernetes, image: x, secret: s, tolerations: [{value: a}]}",
            "spawner.tolerations.0: has no key",
        ),
        (
            "spawner: {kind: kubernetes, image: x, secret: s, tolerations: [{operator: Exists, value: a}]}",
            "spawner.tolerations.0.value: belongs to operator Equal",
        ),
        (
            "spawner: {kind: kubernetes, image: x, secret: s, tolerations: [{key: a, seconds: 5}]}",
            "spawner.tolerations.0.seconds: belongs to effect NoExecute",
        ),
        ("timing: {stale: 90s}", "timing.stale: must be shorter than dead"),
        ("timing: {lease_ttl: 9s}", "timing.lease_ttl: is too short for lease_renew"),
        ("timing: {hartbeat: 1s}", "did you mean heartbeat?"),
        ("embedded: {service_time: slow}", "is not a service time, got 'slow'"),
        ("enrichment: {enabled: perhaps}", "must be auto, true or false"),
        ("guardrails: {max_cpu_percent: 101}", "must be above 0 and at most 100"),
        ("thresholds: [p95 < 50]", "thresholds.0: has a limit that does not fit p95, got 'p95 < 50'"),
        ("thresholds: [error_rate < 1]", "write percent"),
        ("thresholds: [p95]", "it compares nothing"),
        ("thresholds: [b.p95 < 1ms]", "names a statement that does not exist"),
        ("thresholds: [lag_p99 < 1ms]", "lag exists in modes rate and replay only"),
        ("thresholds: [{check: qps > 5, window: 5m}]", "window: is longer than the measurement, 1m"),
        ("thresholds: [{check: qps > 5, after: 60s}]", "after: is not shorter than the measurement, 1m"),
        ("values: {p: {}}", "values.p: has neither query nor file"),
        ("values: {p: {query: SELECT 1, file: x.csv}}", "values.p: has both query and file"),
        ("values: {p: {query: SELECT ?}}", "cannot have parameters"),
        ("values: {p: {query: DELETE FROM T}}", "a pool is filled by a query"),
        ("values: {p: {file: ../x.csv}}", "is outside of the scenario's folder"),
        ("values: {p: {file: /etc/passwd}}", "is outside of the scenario's folder"),
        ("prepare: {statements: [USE ROLE X]}", "USE changes the session"),
        ("prepare: {tables: [{name: T, type: existing, rows: 5}]}", "rows: an existing table is never created"),
        ("prepare: {tables: [{name: T}]}", "columns: is missing: a hybrid table needs columns"),
        ("prepare: {tables: [{name: T, columns: [{name: A, type: INT}]}]}", "a hybrid table needs a primary key"),
        (
            "prepare: {tables: [{name: T, rows: 1, columns: [{name: A, type: INT, primary_key: true}]}]}",
            "a primary key is never NULL",
        ),
        (
            "prepare: {tables: [{name: T, rows: 1, columns: "
            "[{name: A, type: INT, primary_key: true, generate: {uniform: {min: 1, max: 5}}}]}]}",
            "can generate duplicate primary keys",
        ),
        (
            "prepare: {tables: [{name: T, type: standard, columns: "
            "[{name: A, type: INT}, {name: '\"A\"', type: INT}]}]}",
            "columns.1.name: is the name of another column too",
        ),
        (
            "prepare: {tables: [{name: T, type: standard, columns: [{name: A, type: INT}], "
            "indexes: [{columns: [A]}]}]}",
            "a standard table has no indexes",
        ),
        (
            "prepare: {tables: [{name: T, columns: [{name: A, type: INT, primary_key: true}], "
            "indexes: [{columns: [B]}]}]}",
            "indexes.0.columns.0: is not a column of the table, got 'B'",
        ),
        (
            "prepare: {tables: [{name: T, type: standard, columns: [{name: A, type: 'INT); DROP'}]}]}",
            "is not a data type that loadgen knows",
        ),
        (
            "prepare: {tables: [{name: T, type: standard, columns: [{name: A, type: INT, generate: {pool: p}}]}]}",
            "pool cannot fill a column",
        ),
    ],
)
def test_sections_that_cannot_be(top, words):
    found = problems_of(top=top)

    assert len(found) == 1, found
    assert words in found[0]
