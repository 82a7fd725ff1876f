"""How long commands take that do little: `--help`, `validate`, and `runs list` with a separate embedded server.

    ./bin/bench startup                           medians, about a minute
    ./bin/bench startup --against ../before       beside another checkout, in turn: aims are ratios of the medians

Each command is `bin/loadgen` as a user starts it, with the environment of the caller. Time is wall-clock from start to
end, CPU is of all its processes, the server and its database included. Every command is called once before, so that
environments, compiled modules and tables are there. After `runs list` no process may be left of those it started.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from loadgen.embedded.postgres import postgres_processes_in
from tests.perf._cleanup import cleaned_up
from tests.perf._figures import Figure, report

ROOT = Path(__file__).resolve().parents[2]
RATIO_MAX = 0.5  # of the other checkout's median
COMMANDS = {
    "--help": ("--help",),
    "validate": ("validate", "examples/quickstart.yaml"),
    "runs list": ("runs", "list", "-c", "embedded"),
}
ONCE = ("setup", "-c", "embedded")  # before `runs list`


@dataclass(slots=True)
class Checkout:
    """A tree of loadgen with a separate data directory, and the times of its commands."""

    root: Path
    data_dir: Path
    wall_s: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in COMMANDS})
    cpu_s: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in COMMANDS})

    def call(self, *words: str) -> tuple[float, float]:
        """Wall-clock and CPU seconds."""
        environ = {**os.environ, "LOADGEN_EMBEDDED_DATA_DIR": str(self.data_dir)}
        environ.pop("LOADGEN_EMBEDDED_ADDRESS", None)
        began_s, used_s = time.perf_counter(), _children_cpu_s()
        subprocess.run(
            [self.root / "bin" / "loadgen", *words], cwd=self.root, env=environ, check=True, stdout=subprocess.DEVNULL
        )
        return time.perf_counter() - began_s, _children_cpu_s() - used_s

    def measure(self, name: str) -> None:
        wall_s, cpu_s = self.call(*COMMANDS[name])
        self.wall_s[name].append(wall_s)
        self.cpu_s[name].append(cpu_s)
        left = [process.pid for process in postgres_processes_in(self.data_dir)]
        if left:
            raise RuntimeError(f"{name} left processes behind: {left}")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench startup", description="How long small commands take.")
    parser.add_argument("--against", type=Path, metavar="DIR", help="another checkout, measured in turn with this one")
    parser.add_argument("--times", type=int, default=15, metavar="N", help="calls of each command  [default: 15]")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    options = parser.parse_args(arguments)
    roots = [ROOT, *([options.against.resolve()] if options.against else [])]
    with cleaned_up():
        checkouts = [
            Checkout(root, Path(tempfile.mkdtemp(prefix=f"data-{number}-"))) for number, root in enumerate(roots)
        ]
        for checkout in checkouts:
            checkout.data_dir.chmod(0o755)
            checkout.call(*ONCE)
            for name in COMMANDS:
                checkout.call(*COMMANDS[name])
        for _ in range(options.times):
            for name in COMMANDS:
                for checkout in checkouts:
                    checkout.measure(name)
        figures = [figure for name in COMMANDS for figure in _figures(name, checkouts)]
    return report(figures, options.format)


def _figures(name: str, checkouts: list[Checkout]) -> Iterator[Figure]:
    wall_ms = [1e3 * statistics.median(one.wall_s[name]) for one in checkouts]
    cpu_ms = [1e3 * statistics.median(one.cpu_s[name]) for one in checkouts]
    yield Figure(name=name, value=wall_ms[0], unit="ms", note=f"{cpu_ms[0]:.0f} of CPU")
    for other_ms, other_cpu_ms in zip(wall_ms[1:], cpu_ms[1:], strict=True):
        ratio = wall_ms[0] / other_ms
        aimed = name != "--help"  # where there is little to save
        yield Figure(
            name=f"{name}, ÷ the other checkout",
            value=ratio,
            unit="",
            aim=f"≤ {RATIO_MAX}" if aimed else "",
            met=not aimed or ratio <= RATIO_MAX,
            note=f"{other_ms:.0f} ms there; CPU {cpu_ms[0] / other_cpu_ms:.2f}",
        )


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
