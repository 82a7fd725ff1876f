"""What all sections of the file share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Section(BaseModel):
    """A mapping of the file: unknown keys are refused; a container key with nothing behind it counts as absent."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)
    containers: ClassVar[frozenset[str]] = frozenset()

    @model_validator(mode="before")
    @classmethod
    def _without_empty(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        return {key: value for key, value in data.items() if value is not None or key not in cls.containers}


def key(*, default: Any = ..., description: str | None = None, alias: str | None = None) -> Any:
    """A key of a section. The default is what one would write in the file, so that it can be shown: "60s"."""
    return Field(default=default, description=description, alias=alias)
