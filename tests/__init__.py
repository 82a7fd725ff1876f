"""unit/ needs no server, contract/ the embedded server, process/ real processes, live/ an account; perf/ has
benchmarks."""

from pathlib import Path

# Scenarios with a load section. Experiments are other files, and a replay has neither warm-up nor duration.
SCENARIO_EXAMPLES = [
    path
    for path in sorted((Path(__file__).resolve().parent.parent / "examples").rglob("*.yaml"))
    if path.parent.name not in ("experiments", "replay")
]
