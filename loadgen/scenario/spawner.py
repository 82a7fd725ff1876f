"""Where workers run: the section `spawner`, and the types of what Kubernetes is told."""

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated

from loadgen.scenario.keys import AppliesWhen, key, section
from loadgen.scenario.types import (
    FreeText,
    Integer,
    InvalidValue,
    JsonSchema,
    Label,
    OneOf,
    SqlName,
    ValueType,
)

OWN_LABELS = "loadgen-"  # how the labels begin by which loadgen finds its Jobs and pods
_NAME = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?")
_DOTTED_NAME = re.compile(rf"{_NAME.pattern}(?:\.{_NAME.pattern})*")
_WORD = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?")
_QUANTITY = re.compile(r"[0-9]+(?:\.[0-9]+)?(?:[mkMGTPE]|[KMGTPE]i)?")
_WORD_MAX, _DOTTED_NAME_MAX = 63, 253


def is_label_key(text: str) -> bool:
    """`name`, or `prefix/name` where the prefix is the name of a domain."""
    prefix, slash, name = text.rpartition("/")
    domain_fits = not slash or (len(prefix) <= _DOTTED_NAME_MAX and _DOTTED_NAME.fullmatch(prefix) is not None)
    return domain_fits and len(name) <= _WORD_MAX and _WORD.fullmatch(name) is not None


class KubernetesName(ValueType):
    """The name of a namespace, Secret or service account."""

    def parse(self, value: object) -> str:
        if not isinstance(value, str) or len(value) > _DOTTED_NAME_MAX or not _DOTTED_NAME.fullmatch(value):
            how = "write lower-case letters, digits and dashes, beginning and ending with a letter or digit"
            raise InvalidValue("is not the name of a Kubernetes object", how)
        return str(value)

    def schema(self) -> JsonSchema:
        return {"type": "string", "minLength": 1}


class KubernetesLabel(ValueType):
    """The value of a label or of a node selector."""

    def parse(self, value: object) -> str:
        text = str(value).lower() if isinstance(value, bool) else str(value) if isinstance(value, int) else value
        if not isinstance(text, str) or len(text) > _WORD_MAX or (text and not _WORD.fullmatch(text)):
            how = f"write at most {_WORD_MAX} letters, digits, dashes, underscores and dots"
            raise InvalidValue("is not the value of a Kubernetes label", how)
        return str(text)

    def schema(self) -> JsonSchema:
        return {"anyOf": [{"type": "string"}, {"type": "integer"}, {"type": "boolean"}]}


class ResourceQuantity(ValueType):
    """An amount of CPU or memory, as Kubernetes writes it."""

    def parse(self, value: object) -> str:
        text = str(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else value
        if not isinstance(text, str) or not _QUANTITY.fullmatch(text) or not float(re.sub("[A-Za-z]+", "", text)):
            raise InvalidValue("is not a quantity", "write it like 2, 500m or 2Gi")
        return str(text)

    def schema(self) -> JsonSchema:
        return {"anyOf": [{"type": "string", "pattern": rf"^{_QUANTITY.pattern}$|\$\{{"}, {"type": "number"}]}


class SpawnerKind(StrEnum):
    LOCAL = "local"
    SUBPROCESS = "subprocess"
    SPCS = "spcs"
    KUBERNETES = "kubernetes"
    EXTERNAL = "external"


class TolerationOperator(StrEnum):
    EQUAL = "Equal"
    EXISTS = "Exists"


class TaintEffect(StrEnum):
    NO_SCHEDULE = "NoSchedule"
    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    NO_EXECUTE = "NoExecute"


OptionalText = Annotated[str | None, Label(nullable=True)]
OptionalKubernetesName = Annotated[str | None, KubernetesName(nullable=True)]
LabelValue = Annotated[str, KubernetesLabel()]
Quantity = Annotated[str, ResourceQuantity()]


@section
class Toleration:
    """A taint of nodes that pods accept, as in a pod's specification."""

    operator: Annotated[TolerationOperator, OneOf(words=TolerationOperator)] = key(default="Equal")
    value: Annotated[str | None, KubernetesLabel(nullable=True)] = key(default=None)
    effect: Annotated[TaintEffect | None, OneOf(words=TaintEffect, nullable=True)] = key(
        default=None, description="null: every effect."
    )
    seconds: Annotated[int | None, Integer(high=10**9, nullable=True)] = key(
        default=None, description="With NoExecute: how long a pod stays on such a node; null: for ever."
    )
    key: OptionalText = key(default=None, description="null, with operator Exists: every taint.")


@section
class ContainerResources:
    """CPU and memory of each worker's container."""

    requests: Mapping[str, Quantity] = key(
        default={},
        description="What a node must have free: {cpu: 500m, memory: 4Gi}. cpu is 1 and memory 2Gi unless given.",
    )
    limits: Mapping[str, Quantity] = key(
        default={}, description="What a worker is kept to. A limit of cpu pauses workers, which is measured as latency."
    )


_SPCS_ONLY = AppliesWhen("kind", (SpawnerKind.SPCS,))
_KUBERNETES_ONLY = AppliesWhen("kind", (SpawnerKind.KUBERNETES,))
_CONTAINERS_ONLY = AppliesWhen("kind", (SpawnerKind.SPCS, SpawnerKind.KUBERNETES))


@section
class SpawnerSettings:
    """Where workers run."""

    kind: Annotated[SpawnerKind, OneOf(words=SpawnerKind)] = key(
        default="local", description="Where workers run. external: you start them, with `loadgen worker`."
    )
    compute_pool: Annotated[str | None, SqlName(nullable=True)] = key(
        default=None, description="With spcs: where the containers run.", applies=_SPCS_ONLY
    )
    image: Annotated[str | None, FreeText(length_max=1_000, nullable=True)] = key(
        default=None,
        description="With spcs: the path of the image in its repository. With kubernetes: the image of the workers.",
        applies=_CONTAINERS_ONLY,
    )
    namespace: OptionalKubernetesName = key(
        default=None,
        description="With kubernetes: where the Job is made; null: the namespace of the context, or of this pod.",
        applies=_KUBERNETES_ONLY,
    )
    context: OptionalText = key(
        default=None,
        description="With kubernetes: the context of the kubeconfig file; null: in a pod its own cluster, elsewhere the"
        " current context.",
        applies=_KUBERNETES_ONLY,
    )
    service_account: OptionalKubernetesName = key(
        default=None,
        description="With kubernetes: the service account of the pods, whose identity may be their login.",
        applies=_KUBERNETES_ONLY,
    )
    secret: OptionalKubernetesName = key(
        default=None,
        description="With kubernetes: a Secret with the environment of the pods: SNOWFLAKE_ACCOUNT, SNOWFLAKE_USER,"
        " SNOWFLAKE_PRIVATE_KEY_RAW and others.",
        applies=_KUBERNETES_ONLY,
    )
    resources: ContainerResources = key(default=ContainerResources(), applies=_KUBERNETES_ONLY)
    node_selector: Mapping[str, LabelValue] = key(
        default={}, description="With kubernetes: labels that a node must have.", applies=_KUBERNETES_ONLY
    )
    tolerations: tuple[Toleration, ...] = key(
        default=[], description="With kubernetes: taints of nodes that pods accept.", applies=_KUBERNETES_ONLY
    )
    labels: Mapping[str, LabelValue] = key(
        default={}, description="With kubernetes: further labels of the Job and its pods.", applies=_KUBERNETES_ONLY
    )
