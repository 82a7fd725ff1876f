"""A scenario derived from a capture: frequent reads with weights, rates over time, and parameters
fitted to the recorded values.

Each parameter gets the first generator that fits what was recorded, with a comment that says how well. The measure is
the largest distance between the recorded and the fitted cumulative distribution (Kolmogorov-Smirnov, limit at 5 %).
Memory stays bounded, however many statements there are. Pure: what is returned is text.
"""

from __future__ import annotations

import csv
import io
import json
import math
import random
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import field
from pathlib import Path

from loadgen.capture.pseudonyms import KEY_BYTES, Pseudonyms, Scalar
from loadgen.capture.statement_text import StatementCleaner
from loadgen.errors import UsageError, cannot_write
from loadgen.log import printable
from loadgen.model.capture import (
    MANIFEST_FILE,
    CapturedTemplate,
    CaptureManifest,
    RecordedStatement,
    StatementRole,
)
from loadgen.values import dataclass

STATEMENTS_MAX = 30
VALUES_MAX, VALUE_CHARACTERS_MAX = 10_000, 2_000_000  # of recorded values read per template
SESSIONS_MAX = 100_000  # whose last statement time is kept; the least recently used is dropped
PAUSES_MAX = 10_000  # random sample
CHOICES_MAX = 20
SAMPLES_MIN = 30  # fewer samples do not support a distribution
SEQUENCE_MIN = 0.95  # of all numbers between the lowest and the highest
STAGES_MAX, STAGE_MIN_S = 12, 10.0
THINK_MAX_MS = 3_600_000.0  # of workload.think_time
THETAS = tuple(round(0.3 + 0.05 * step, 2) for step in range(14))  # up to 0.95
RATE_MIN = 0.01  # for a stage in which nothing was recorded
SCENARIO, SESSIONS = "scenario.yaml", "sessions.yaml"
DISTANCE_LIMIT = 1.36  # divided by the square root of the number of samples: Kolmogorov-Smirnov at 5 %


@dataclass(frozen=True, slots=True, kw_only=True)
class DerivedScenario:
    """The text of scenario.yaml, and further files by their names: value files, and sessions.yaml."""

    text: str
    files: dict[str, str]


@dataclass(frozen=True, slots=True)
class _Fit:
    generator: str  # as YAML
    comment: str
    pool: tuple[str, list[Scalar]] | None = None  # its name and values


@dataclass(slots=True)
class _Seen:
    """What was recorded of one template."""

    template: CapturedTemplate
    sql: str = ""
    rows: list[list[Scalar]] = field(default_factory=list)
    sessions: list[int] = field(default_factory=list)  # of each row
    characters: int = 0

    def add(self, one: RecordedStatement, cleaner: StatementCleaner) -> None:
        if len(self.rows) >= VALUES_MAX or self.characters >= VALUE_CHARACTERS_MAX:
            return
        self.sql = self.sql or cleaner.clean(one.sql).template
        self.rows.append(cleaner.values(one.sql, [value for _, value in one.binds]))
        self.sessions.append(one.session)
        self.characters += sum(len(value) for value in self.rows[-1] if isinstance(value, str))


class _Arrivals:
    """When the statements of a scenario were sent, and the pauses of sessions between them."""

    def __init__(self, span_ms: float) -> None:
        span_s = max(1.0, span_ms / 1000)
        self.stages = max(1, min(STAGES_MAX, int(span_s // STAGE_MIN_S)))
        self.stage_s = round(span_s / self.stages, 3)
        self.counts: Counter[int] = Counter()  # by stage
        self.pauses = 0
        self.pauses_total_ms = self.busy_ms = 0.0
        self._sample: list[float] = []
        self._draw = random.Random(1)
        self._ended_ms: dict[int, float] = {}  # by session, in the order of their last statements

    def add(self, one: RecordedStatement) -> None:
        self.counts[min(self.stages - 1, int(one.at_ms / 1000 / self.stage_s))] += 1
        self.busy_ms += one.ms
        before_ms = self._ended_ms.pop(one.session, None)
        self._ended_ms[one.session] = one.at_ms + one.ms
        if before_ms is not None:
            self._pause(max(0.0, one.at_ms - before_ms))
        elif len(self._ended_ms) > SESSIONS_MAX:
            del self._ended_ms[next(iter(self._ended_ms))]

    def _pause(self, pause_ms: float) -> None:
        self.pauses += 1
        self.pauses_total_ms += pause_ms
        if len(self._sample) < PAUSES_MAX:
            self._sample.append(pause_ms)
        elif (place := self._draw.randrange(self.pauses)) < PAUSES_MAX:
            self._sample[place] = pause_ms

    def pause_ms(self, part: float) -> float:
        """A quantile of the pauses."""
        ranked = sorted(self._sample)
        return ranked[min(len(ranked) - 1, int(part * len(ranked)))]


def derive(manifest: CaptureManifest, recorded: Iterable[RecordedStatement], name: str) -> DerivedScenario:
    """From the statements of a capture, in order."""
    # Values of a capture are kept as they are there; the key is never used.
    cleaner = StatementCleaner(Pseudonyms(bytes(KEY_BYTES)), keep_values=True)
    reads = [one for one in manifest.templates if one.role is StatementRole.READ][:STATEMENTS_MAX]
    seen = {one.id: _Seen(one) for one in reads}
    arrivals = _Arrivals(manifest.span_ms)
    for one in recorded:
        found = seen.get(one.template)
        if found is not None:
            arrivals.add(one)
            found.add(one, cleaner)
    used = [one for one in seen.values() if one.rows and ":1" not in one.sql]
    files: dict[str, str] = {}
    values: list[str] = []
    statements = [line for one in used for line in _statement(one, files, values)]
    left = manifest.statements - sum(one.template.count for one in used)
    head = [*_head(manifest, name, left), *(["values:", *values] if values else [])]
    body = ["  statements:", *statements]
    if arrivals.pauses:
        files[SESSIONS] = "\n".join(
            [*head, "workload:", *_think_time(arrivals), *body, *_closed_load(manifest, arrivals), ""]
        )
    lines = [*head, "workload:", *body, *_load(manifest, arrivals), ""]
    return DerivedScenario(text="\n".join(lines), files=files)


def read_manifest(capture: Path) -> CaptureManifest:
    """The manifest of a capture."""
    try:
        return CaptureManifest.of_text((capture / MANIFEST_FILE).read_text("utf-8"))
    except (OSError, ValueError) as error:
        why = f"is not a capture: {error}"
        if isinstance(error, OSError):
            place = f"is not a capture: {MANIFEST_FILE} " if capture.is_dir() else ""
            why = f"{place}cannot be read: {error.strerror}"
        raise UsageError(
            f"{printable(str(capture), 200)} {why}",
            remedy="Name a folder that `loadgen capture` wrote.",
        ) from error


def write_scenario(derived: DerivedScenario, folder: Path) -> Path:
    """Write the files of a scenario to a folder without one. Returns the path of the scenario."""
    path = folder / SCENARIO
    if path.exists():
        raise UsageError(f"{printable(str(path), 200)} already exists", remedy="Name another folder with --out.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in (*derived.files.items(), (path.name, derived.text)):
            (folder / name).write_text(text, "utf-8")
    except OSError as error:
        raise cannot_write(printable(str(folder), 200), error, "Name another folder with --out.") from error
    return path


def _head(manifest: CaptureManifest, name: str, left: int) -> list[str]:
    kind = "pseudonyms, and so are the fitted values below" if manifest.pseudonyms else "real values"
    return [
        f"# Derived by loadgen from a capture of {manifest.statements:,} statements, {manifest.span_from} to"
        f" {manifest.span_to}, with {kind}.",
        f"# {left:,} statements are not part of it: writes, session statements and rare ones.",
        "version: 1",
        f"name: {json.dumps(name)}",
        "target: {}  # the warehouse, database and schema to test",
    ]


def _think_time(arrivals: _Arrivals) -> list[str]:
    quantiles = ", ".join(f"p{part:.0%}".rstrip("%") + f" {arrivals.pause_ms(part):,.0f}" for part in (0.5, 0.9, 0.99))
    return [
        f"  # The mean of {arrivals.pauses:,} pauses of sessions between statements; in ms: {quantiles}.",
        f"  think_time: {_mean_pause_ms(arrivals):.0f}ms",
    ]


def _mean_pause_ms(arrivals: _Arrivals) -> float:
    return min(THINK_MAX_MS, arrivals.pauses_total_ms / arrivals.pauses)


def _closed_load(manifest: CaptureManifest, arrivals: _Arrivals) -> list[str]:
    """The number of clients that produces the recorded rate with this think time (Little's law)."""
    sent = arrivals.counts.total()
    clients = sent * (_mean_pause_ms(arrivals) + arrivals.busy_ms / sent) / max(1.0, manifest.span_ms)
    return [
        "load:",
        "  mode: concurrency",
        f"  connections: {max(1, min(10_000, round(clients)))}  # recorded rate × (think time + time on the server)",
        f"  duration: {arrivals.stage_s * arrivals.stages:g}s",
    ]


def _statement(seen: _Seen, files: dict[str, str], values: list[str]) -> list[str]:
    template = seen.template
    lines = [
        f"    - name: {template.name}",
        f"      weight: {min(template.count, 1_000_000)}",
        f"      sql: {json.dumps(seen.sql)}",
    ]
    if seen.rows[0]:
        lines.append("      params:")
    for position, column in enumerate(zip(*seen.rows, strict=True)):
        fit = fitted(list(column), f"{template.name}_{position}", seen.sessions)
        lines.append(f"        - {fit.generator}  # {fit.comment}")
        if fit.pool is not None:
            pool, ranked = fit.pool
            files[f"{pool}.csv"] = _csv(ranked)
            values.append(f"  {pool}: {{file: {pool}.csv}}")
    return lines


def fitted(column: list[Scalar], name: str, sessions: Sequence[int] = ()) -> _Fit:
    """The first generator that fits these values, in the order in which they were recorded. `sessions`: the session of
    each value; empty: all values belong to one session."""
    counts = Counter(column)
    if len(counts) == 1:
        return _Fit(f"{{literal: {json.dumps(column[0])}}}", "always this value")
    whole = [value for value in column if isinstance(value, int) and not isinstance(value, bool)]
    if len(whole) == len(column) == len(counts) >= SAMPLES_MIN:
        sequence = _sequence(whole, sessions or [0] * len(whole))
        if sequence is not None:
            return sequence
    if len(counts) <= CHOICES_MAX and all(isinstance(value, (str, int)) for value in counts):
        weights = ", ".join(f"{json.dumps(value)}: {count}" for value, count in counts.most_common())
        return _Fit(f"{{choice: {{{weights}}}}}", "all recorded values with their frequencies")
    limit = DISTANCE_LIMIT / math.sqrt(len(column))
    tried = "too few samples for a distribution"
    if len(whole) == len(column) >= SAMPLES_MIN:
        distance = _uniform_distance(whole)
        if distance <= limit:
            generator = f"{{uniform: {{min: {min(whole)}, max: {max(whole)}}}}}"
            return _Fit(generator, f"uniform fits: distance {distance:.3f}, limit {limit:.3f}")
        tried = f"uniform does not fit: distance {distance:.3f}, limit {limit:.3f}"
    pool = re.sub(r"\W", "_", name)
    ranked = [value for value, _ in counts.most_common()]
    if len(column) >= SAMPLES_MIN:
        distance, theta = min((_zipfian_distance(list(counts.values()), theta), theta) for theta in THETAS)
        if distance <= limit:
            generator = f"{{pool: {pool}, distribution: zipfian, theta: {theta}}}"
            return _Fit(generator, f"zipfian fits: distance {distance:.3f}, limit {limit:.3f}", (pool, ranked))
        tried += f"; zipfian does not fit either: distance {distance:.3f} with theta {theta}"
    return _Fit(f"{{pool: {pool}}}", f"recorded values in their order; {tried}", (pool, column))


def _sequence(values: list[int], sessions: Sequence[int]) -> _Fit | None:
    """A sequence, if the values are distinct, have few gaps and increase within each session; else None."""
    low, span = min(values), max(values) - min(values) + 1
    if len(values) < SEQUENCE_MIN * span:
        return None
    last: dict[int, int] = {}
    for session, value in zip(sessions, values, strict=True):
        if value <= last.get(session, value - 1):
            return None
        last[session] = value
    share = f"{len(values):,} of the {span:,} numbers from {low} on"
    return _Fit(f"{{sequence: {{start: {low}}}}}", f"a sequence fits: {share}, each once, increasing in each session")


def _uniform_distance(values: Sequence[int]) -> float:
    ranked, low = sorted(values), min(values)
    span = max(values) - low + 1
    return max(
        max(
            abs((number + 1) / len(ranked) - (value - low + 1) / span), abs(number / len(ranked) - (value - low) / span)
        )
        for number, value in enumerate(ranked)
    )


def _zipfian_distance(counts: list[int], theta: float) -> float:
    """The largest distance between the recorded frequencies, in descending order, and a zipfian distribution."""
    weights = [1.0 / rank**theta for rank in range(1, len(counts) + 1)]
    total, whole = sum(counts), sum(weights)
    recorded = expected = worst = 0.0
    for count, weight in zip(sorted(counts, reverse=True), weights, strict=True):
        recorded, expected = recorded + count / total, expected + weight / whole
        worst = max(worst, abs(recorded - expected))
    return worst


def _csv(values: Iterable[Scalar]) -> str:
    file = io.StringIO()
    csv.writer(file).writerows([["VALUE"], *([("" if value is None else value)] for value in values)])
    return file.getvalue()


def _load(manifest: CaptureManifest, arrivals: _Arrivals) -> list[str]:
    counts, length_s = arrivals.counts, arrivals.stage_s
    lines = [
        "load:",
        "  mode: rate",
        f"  max_connections: {max(4, min(10_000, manifest.session_overlap))}  # most simultaneous sessions",
        "  stages:",
    ]
    for stage in range(arrivals.stages):
        rate = max(RATE_MIN, counts[stage] / length_s)
        lines.append(f"    - {{duration: {length_s:g}s, rate: {rate:.6g}/s}}  # {counts[stage]:,} recorded")
    return lines
