"""All sub-commands of `loadgen`. The module of a command is imported when the command is called."""

from loadgen.values import dataclass


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """A sub-command: where its code is, and what `loadgen --help` shows without importing it."""

    target: str
    summary: str
    example: str


COMMANDS = {
    "doctor": CommandEntry(
        "loadgen.cli.doctor:doctor",
        "Check the machine, the connection, the privileges and the tables.",
        "loadgen doctor -c prod my-benchmark/scenario.yaml",
    ),
    "setup": CommandEntry(
        "loadgen.cli.setup:setup",
        "Create or update the tables that store runs.",
        "loadgen setup -c prod",
    ),
    "grants": CommandEntry(
        "loadgen.cli.setup:grants",
        "Print the GRANT statements for loadgen's roles, offline.",
        "loadgen grants my-benchmark/scenario.yaml --user NIGHTLY > grants.sql",
    ),
    "connections": CommandEntry(
        "loadgen.cli.doctor:connections",
        "List the available Snowflake connections, and test one.",
        "loadgen connections test -c prod",
    ),
    "init": CommandEntry(
        "loadgen.cli.validate:init",
        "Write a commented scenario to start with, and its schema for editors.",
        "loadgen init my-benchmark",
    ),
    "validate": CommandEntry(
        "loadgen.cli.validate:validate",
        "Check scenario and experiment files, and show their plan, offline.",
        "loadgen validate examples/quickstart.yaml --plan",
    ),
    "prepare": CommandEntry(
        "loadgen.cli.prepare:prepare",
        "Create and fill the tables of a scenario; can be resumed.",
        "loadgen prepare examples/quickstart.yaml",
    ),
    "run": CommandEntry(
        "loadgen.cli.run:run",
        "Run a scenario: prepare, warm up, measure, report.",
        "loadgen run examples/quickstart.yaml",
    ),
    "capture": CommandEntry(
        "loadgen.cli.capture:capture",
        "Record the statements of a warehouse, pseudonymized, to replay them.",
        "loadgen capture -c prod --warehouse WH --from 2h --out captured",
    ),
    "watch": CommandEntry(
        "loadgen.cli.watch:watch",
        "Show a run live, on any machine, until it ends.",
        "loadgen watch latest",
    ),
    "status": CommandEntry(
        "loadgen.cli.runs:status",
        "Show the state of a run.",
        "loadgen status latest",
    ),
    "stop": CommandEntry(
        "loadgen.cli.watch:stop",
        "Ask a run to end gracefully, from any machine.",
        "loadgen stop 20261115-0200-orders-7f3a",
    ),
    "runs": CommandEntry(
        "loadgen.cli.runs:runs",
        "List runs, show one, print its log, recover lost runs.",
        "loadgen runs show latest",
    ),
    "compare": CommandEntry(
        "loadgen.cli.report:compare",
        "Compare two runs: changes with confidence intervals, and a verdict.",
        "loadgen compare latest~1 latest --html compare.html",
    ),
    "trend": CommandEntry(
        "loadgen.cli.report:trend",
        "Show the runs of a scenario over time: is the newest worse?",
        "loadgen trend orders-mix --html trend.html",
    ),
    "experiment": CommandEntry(
        "loadgen.cli.experiment:experiment",
        "Compare arms of a scenario in randomized blocks: which is better?",
        "loadgen experiment examples/experiments/two_queries.yaml --dry-run",
    ),
    "experiments": CommandEntry(
        "loadgen.cli.experiment:experiments",
        "List experiments, and show the result of one.",
        "loadgen experiments show latest",
    ),
    "report": CommandEntry(
        "loadgen.cli.report:report",
        "Make a report of a run from its tables.",
        "loadgen report latest --out report.html",
    ),
    "queue": CommandEntry(
        "loadgen.cli.queue:queue",
        "Queue runs: add, list, show, cancel and retry them.",
        "loadgen queue add nightly.yaml --priority 5",
    ),
    "pool": CommandEntry(
        "loadgen.cli.pool:pool",
        "Execute queued runs on this machine.",
        "loadgen pool run -c prod --max 4 --labels zone=eu",
    ),
    "workers": CommandEntry(
        "loadgen.cli.pool:workers",
        "List the runners of all pools; drain one, or mark it as offline.",
        "loadgen workers list -c prod --status ONLINE",
    ),
    "schedule": CommandEntry(
        "loadgen.cli.schedule:schedule",
        "Queue scenarios by cron expressions.",
        'loadgen schedule add nightly nightly.yaml --cron "0 2 * * *"',
    ),
    "schema": CommandEntry(
        "loadgen.cli.validate:schema",
        "Print the JSON Schema of scenario or experiment files.",
        "loadgen schema > scenario.schema.json",
    ),
    "completion": CommandEntry(
        "loadgen.cli.validate:completion",
        "Print the completion script for a shell.",
        "loadgen completion bash",
    ),
    "worker": CommandEntry(
        "loadgen.cli.worker:worker",
        "Run one worker process of a run; spawners start it.",
        "loadgen worker --run-id RUN --worker-group-id 0 --worker-group-count 1",
    ),
    "upload": CommandEntry(
        "loadgen.cli.enrich:upload",
        "Store results that workers could not store.",
        "loadgen upload 20261115-0200-orders-7f3a",
    ),
    "enrich": CommandEntry(
        "loadgen.cli.enrich:enrich",
        "Add server-side times from the query history to logged statements.",
        "loadgen enrich latest -c prod",
    ),
    "embedded": CommandEntry(
        "loadgen.cli.embedded:embedded",
        "Run the local Snowflake-compatible server; no account is needed.",
        "loadgen embedded serve --port 8085",
    ),
}

SECTIONS = {
    "Scenarios and runs": ("init", "validate", "prepare", "run", "watch", "status", "stop", "schema", "completion"),
    "Results": ("runs", "report", "compare", "experiment", "experiments", "trend", "enrich", "upload"),
    "Snowflake account": ("connections", "doctor", "grants", "setup", "capture", "embedded"),
    "Nightly benchmarks": ("schedule", "queue", "pool", "workers"),
    "Started by loadgen": ("worker",),
}
FIRST_STEPS = ("run", "init", "validate", "runs", "doctor")  # `loadgen --help` shows their examples

COMMAND_HINTS = {  # words that users may type, and the command that they mean
    "plan": "validate --plan",
    "list": "runs list",
    "ls": "runs list",
    "show": "runs show",
    "logs": "runs logs",
    "log": "runs logs",
    "recover": "runs recover",
    "prune": "runs prune",
    "serve": "embedded serve",
    "server": "embedded serve",
    "test": "connections test",
    "cancel": "stop",
    "help": "--help",
}
