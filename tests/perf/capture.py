"""How fast a capture is made, and in how much memory, however many statements there are.

    ./bin/bench capture                     5 million rows, 12 minutes of CPU time
    ./bin/bench capture --rows 200000       less, to see that it works

Rows of a query history come through a pipe into `loadgen capture import`; each has different literals.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil

from tests.perf._figures import Figure, report
from tests.processes import PROGRAM, ROOT

ROWS, SESSIONS = 5_000_000, 500
MEMORY_MB_MAX = 500.0
LOOK_S = 0.2
PARTS = 10  # after each of which the memory is noted


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench capture", description="Time and memory of a capture.")
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--format", choices=("text", "json"), default="text")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        return report(figures(Path(folder), options.rows), options.format)


def figures(folder: Path, rows: int) -> list[Figure]:
    pipe, out = folder / "history.csv", folder / "captured"
    os.mkfifo(pipe)
    rows_read = [0]
    threading.Thread(target=write, args=(pipe, rows, rows_read), name="rows", daemon=True).start()
    began_s, most_bytes, at_parts = time.monotonic(), 0, list[int]()
    process = subprocess.Popen(
        [*PROGRAM, "capture", "import", str(pipe), "--out", str(out), "--format", "json"],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    watched, cpu_s = psutil.Process(process.pid), 0.0
    while process.poll() is None:
        with contextlib.suppress(psutil.Error):  # it ends just now
            most_bytes = max(most_bytes, watched.memory_info().rss)
            cpu_s = sum(watched.cpu_times()[:2])
        if rows_read[0] >= rows * (len(at_parts) + 1) / PARTS:
            at_parts.append(most_bytes)
        time.sleep(LOOK_S)
    took_s = time.monotonic() - began_s
    assert process.stdout is not None
    said = json.loads(process.stdout.read())
    size_mb = sum(path.stat().st_size for path in out.iterdir()) / 1e6
    return [
        Figure(
            name=f"memory for {rows:,} rows",
            value=most_bytes / 1e6,
            unit="MB",
            aim=f"≤ {MEMORY_MB_MAX:g}",
            met=most_bytes / 1e6 <= MEMORY_MB_MAX,
            note=f"after each {1 / PARTS:.0%} of the rows: {', '.join(f'{used / 1e6:.0f}' for used in at_parts)}",
        ),
        Figure(
            name="rows per second",
            value=rows / took_s,
            unit="/s",
            note=f"{took_s:.0f} s, of them {cpu_s:.0f} s of CPU; {size_mb:.0f} MB on disk",
        ),
        Figure(
            name="captured of all", value=said["statements"] / rows, unit="", aim="1", met=said["statements"] == rows
        ),
    ]


def write(pipe: Path, rows: int, written: list[int]) -> None:
    with pipe.open("w", encoding="utf-8") as file:
        file.write("QUERY_TEXT,SESSION_ID,START_TIME,TOTAL_ELAPSED_TIME,USER_NAME\n")
        for number in range(rows):
            hour, rest = divmod(number // 100 % 86_400, 3600)
            moment = f"2026-11-15 {hour:02}:{rest // 60:02}:{rest % 60:02}.{number % 100 * 10:03} +0000"
            text = f"SELECT A, B FROM ORDERS WHERE ID = {number} AND CUSTOMER = 'customer {number % 9973}'"
            file.write(f'"{text}",{number % SESSIONS},{moment},{number % 50},USER_{number % 20}\n')
            written[0] = number + 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
