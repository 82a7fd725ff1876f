"""A scenario derived from a capture: frequent reads with weights, rates over time, and parameters as they were drawn.

Each parameter gets the first generator that fits what was recorded, with a comment that says how well. The measure is
the largest distance between the recorded and the fitted cumulative distribution (Kolmogorov-Smirnov, limit at 5 %).
Pure: what is returned is text.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from loadgen.capture.pseudonyms import KEY_BYTES, Pseudonyms, Scalar
from loadgen.capture.statement_text import StatementCleaner
from loadgen.model.capture import CapturedTemplate, CaptureManifest, RecordedStatement, StatementRole

STATEMENTS_MAX = 30
VALUES_MAX = 10_000  # maximum number of recorded values read per template
CHOICES_MAX = 20
SAMPLES_MIN = 30  # fewer samples do not support a distribution
STAGES_MAX, STAGE_MIN_S = 12, 10.0
THETAS = tuple(round(0.3 + 0.05 * step, 2) for step in range(14))  # up to 0.95
RATE_MIN = 0.01  # for a stage in which nothing was recorded
DISTANCE_LIMIT = 1.36  # divided by the square root of the number of samples: Kolmogorov-Smirnov at 5 %


@dataclass(frozen=True, slots=True, kw_only=True)
class DerivedScenario:
    """The text of scenario.yaml, and value files by their names."""

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


def derive(manifest: CaptureManifest, recorded: Iterable[RecordedStatement], name: str) -> DerivedScenario:
    """From the statements of a capture, in order."""
    # Values of a capture are kept as they are there; the key is never used.
    cleaner = StatementCleaner(Pseudonyms(bytes(KEY_BYTES)), keep_values=True)
    reads = [one for one in manifest.templates if one.role is StatementRole.READ][:STATEMENTS_MAX]
    seen = {one.id: _Seen(one) for one in reads}
    moments_ms: list[float] = []
    last_ms: dict[int, float] = {}
    pauses_ms: list[float] = []
    for one in recorded:
        if one.session in last_ms:
            pauses_ms.append(max(0.0, one.at_ms - last_ms[one.session]))
        last_ms[one.session] = one.at_ms + one.ms
        found = seen.get(one.template)
        if found is not None:
            moments_ms.append(one.at_ms)
            if len(found.rows) < VALUES_MAX:
                found.sql = found.sql or cleaner.clean(one.sql).template
                found.rows.append(cleaner.values(one.sql, [value for _, value in one.binds]))
    used = [one for one in seen.values() if one.rows and ":1" not in one.sql]
    files: dict[str, str] = {}
    values: list[str] = []
    statements = [line for one in used for line in _statement(one, files, values)]
    left = manifest.statements - sum(one.template.count for one in used)
    lines = [
        *_head(manifest, name, left, pauses_ms),
        *(["values:", *values] if values else []),
        "workload:",
        "  statements:",
        *statements,
        *_load(manifest, moments_ms),
        "",
    ]
    return DerivedScenario(text="\n".join(lines), files=files)


def _head(manifest: CaptureManifest, name: str, left: int, pauses_ms: Sequence[float]) -> list[str]:
    pause = f"{sorted(pauses_ms)[len(pauses_ms) // 2]:,.0f} ms" if pauses_ms else "not known"
    kind = "pseudonyms" if manifest.pseudonyms else "real values"
    return [
        f"# Derived by loadgen from a capture of {manifest.statements:,} statements, {manifest.span_from} to"
        f" {manifest.span_to}, with {kind}.",
        f"# {left:,} statements are not part of it: writes, session statements and rare ones.",
        f"# Think time: the median pause of a session between statements was {pause}; rates below include it.",
        "version: 1",
        f"name: {json.dumps(name)}",
        "target: {}  # the warehouse, database and schema to test",
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
        fit = fitted(list(column), f"{template.name}_{position}")
        lines.append(f"        - {fit.generator}  # {fit.comment}")
        if fit.pool is not None:
            pool, ranked = fit.pool
            files[f"{pool}.csv"] = _csv(ranked)
            values.append(f"  {pool}: {{file: {pool}.csv}}")
    return lines


def fitted(column: list[Scalar], name: str) -> _Fit:
    """The first generator that fits these values, in the order in which they were recorded."""
    counts = Counter(column)
    if len(counts) == 1:
        return _Fit(f"{{literal: {json.dumps(column[0])}}}", "always this value")
    whole = [value for value in column if isinstance(value, int) and not isinstance(value, bool)]
    if len(whole) == len(column) and all(after == before + 1 for before, after in pairwise(whole)):
        return _Fit(
            f"{{sequence: {{start: {whole[0]}}}}}", f"each was one more than the one before: {len(whole):,} of them"
        )
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
        tried += f"; zipfian neither: {distance:.3f} with theta {theta}"
    return _Fit(f"{{pool: {pool}}}", f"recorded values in their order; {tried}", (pool, column))


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
    """Of the frequencies, the highest first, from those of a zipfian distribution."""
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


def _load(manifest: CaptureManifest, moments_ms: Sequence[float]) -> list[str]:
    span_s = max(1.0, manifest.span_ms / 1000)
    stages = max(1, min(STAGES_MAX, int(span_s // STAGE_MIN_S)))
    length_s = round(span_s / stages, 3)
    counts = Counter(min(stages - 1, int(moment_ms / 1000 / length_s)) for moment_ms in moments_ms)
    lines = [
        "load:",
        "  mode: rate",
        f"  max_connections: {max(4, min(10_000, manifest.session_overlap))}  # the most sessions at one moment",
        "  stages:",
    ]
    for stage in range(stages):
        rate = max(RATE_MIN, counts[stage] / length_s)
        lines.append(f"    - {{duration: {length_s:g}s, rate: {rate:.6g}/s}}  # {counts[stage]:,} recorded")
    return lines
