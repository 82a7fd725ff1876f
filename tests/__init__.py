"""unit/ needs no server, contract/ the embedded server, process/ real processes, live/ an account; perf/ has
benchmarks."""

from pathlib import Path

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
EXPERIMENT_EXAMPLES = sorted((EXAMPLES / "experiments").glob("*.yaml"))
REPLAY_EXAMPLE = EXAMPLES / "replay" / "replay.yaml"  # it has neither warm-up nor duration
# All other files are scenarios with a load section.
SCENARIO_EXAMPLES = sorted({*EXAMPLES.rglob("*.yaml")} - {*EXPERIMENT_EXAMPLES, REPLAY_EXAMPLE})
