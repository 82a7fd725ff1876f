"""Rules between the keys of `spawner`."""

from __future__ import annotations

import re

from loadgen.scenario.document import KeyPath
from loadgen.scenario.spawner import (
    OWN_LABELS,
    SpawnerKind,
    SpawnerSettings,
    TaintEffect,
    Toleration,
    TolerationOperator,
    is_label_key,
)
from loadgen.scenario.validation import CheckedDocument


def check_spawner(checked: CheckedDocument, spawner: SpawnerSettings) -> None:
    """What a kind needs, and names that the user chooses."""
    needed = {SpawnerKind.SPCS: ("compute_pool", "image"), SpawnerKind.KUBERNETES: ("image",)}
    for name in needed.get(spawner.kind, ()):
        path: KeyPath = ("spawner", name)
        if checked.fine(path, ("spawner", "kind")) and not checked.given(path):
            checked.problem(path, f"is missing: kind {spawner.kind} needs it", f"add {name}: …")
    if spawner.kind is SpawnerKind.KUBERNETES and checked.fine(("spawner", "kind")):
        _check_kubernetes(checked, spawner)


def _check_kubernetes(checked: CheckedDocument, spawner: SpawnerSettings) -> None:
    image: KeyPath = ("spawner", "image")
    if spawner.image is not None and checked.fine(image) and re.search(r"\s", spawner.image):
        checked.problem(image, "is not the name of an image", "write registry/repository/loadgen:tag, without spaces")
    credentials = ("secret", "service_account")
    if checked.fine(*(("spawner", name) for name in credentials)) and not (spawner.secret or spawner.service_account):
        what = "is missing: pods have no login without it"
        hint = "name a Secret with SNOWFLAKE_ACCOUNT and others, or a service_account whose identity is the login"
        checked.problem(("spawner", "secret"), what, hint)
    for name in ("labels", "node_selector"):
        for label in getattr(spawner, name):
            _check_label(checked, ("spawner", name, label), label)
    for part in ("requests", "limits"):
        for resource in getattr(spawner.resources, part):
            if not is_label_key(resource):
                place: KeyPath = ("spawner", "resources", part, resource)
                checked.problem(place, "is not the name of a resource", "write cpu or memory", at_key=True)
    if "cpu" in spawner.resources.limits:
        what = "pauses workers that use more, and the pauses are measured as latency"
        checked.warn(("spawner", "resources", "limits", "cpu"), what)
    for number, one in enumerate(spawner.tolerations):
        _check_toleration(checked, ("spawner", "tolerations", number), one)


def _check_toleration(checked: CheckedDocument, path: KeyPath, one: Toleration) -> None:
    if not checked.fine(path):
        return
    if one.key is not None and not is_label_key(one.key):
        checked.problem((*path, "key"), "is not the key of a taint", "write it like dedicated or example.com/dedicated")
    if one.operator is TolerationOperator.EQUAL and one.key is None:
        checked.problem(path, "has no key", "write key: …, or operator: Exists for every taint")
    if one.operator is TolerationOperator.EXISTS and one.value is not None:
        checked.problem((*path, "value"), "belongs to operator Equal", "remove it, or write operator: Equal")
    if one.seconds is not None and one.effect is not TaintEffect.NO_EXECUTE:
        checked.problem((*path, "seconds"), "belongs to effect NoExecute", "remove it, or write effect: NoExecute")


def _check_label(checked: CheckedDocument, path: KeyPath, label: str) -> None:
    if not is_label_key(label):
        checked.problem(
            path, "is not the key of a Kubernetes label", "write it like team or example.com/team", at_key=True
        )
    elif path[1] == "labels" and label.startswith(OWN_LABELS):
        what = "cannot be set here: loadgen finds its pods by labels that begin so"
        checked.problem(path, what, "choose another name", at_key=True)
