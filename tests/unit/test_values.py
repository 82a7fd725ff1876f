"""Frozen classes behave as those of the standard library do."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import sys
from typing import Any

import pytest

from loadgen.values import dataclass

BODY = """
@dataclass(frozen=True, slots={slots}, kw_only={kw_only})
class Point:
    x: int
    y: int = 2
    tags: list[str] = field(default_factory=list, compare=False)
    note: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        if self.x < 0:
            raise ValueError("x")

@dataclass(frozen=True, slots={slots}, kw_only={kw_only})
class Named(Point):
    name: str = "origin"
"""
FORMS = [(slots, kw_only) for slots in (True, False) for kw_only in (True, False)]


def classes(made_by: Any, slots: bool, kw_only: bool) -> Any:
    module = type(sys)(f"points_of_{made_by.__module__.replace('.', '_')}_{slots}_{kw_only}")
    sys.modules[module.__name__] = module  # to be found by pickle
    module.__dict__.update(dataclass=made_by, field=dataclasses.field)
    exec(BODY.format(slots=slots, kw_only=kw_only), module.__dict__)
    return module


@pytest.mark.parametrize(("slots", "kw_only"), FORMS)
def test_a_frozen_class_is_as_the_standard_library_makes_it(slots: bool, kw_only: bool) -> None:
    ours, theirs = (classes(made_by, slots, kw_only) for made_by in (dataclass, dataclasses.dataclass))

    def seen(module: Any) -> list[Any]:
        first, same, other = module.Point(x=1), module.Point(x=1, tags=["compared not"]), module.Point(x=1, note="b")
        named = module.Named(x=1, name="n")
        return [
            repr(first),
            repr(named),
            first == same,
            hash(first) == hash(same),
            first == other,
            first == named,
            first == (1, 2, [], ""),
            first.tags is not module.Point(x=1).tags,
            dataclasses.asdict(named),
            dataclasses.replace(named, x=5) == module.Named(x=5, name="n"),
            pickle.loads(pickle.dumps(named)) == named,
            copy.deepcopy(named).tags == named.tags,
            [p.replace(annotation=inspect.Parameter.empty).kind for p in signature(module.Named)],
            [p.name for p in signature(module.Named)],
            module.Point.__match_args__,
            module.Named.__match_args__,
            hasattr(first, "__dict__"),
            [field.name for field in dataclasses.fields(named)],
        ]

    assert seen(ours) == seen(theirs)


def signature(cls: type) -> list[inspect.Parameter]:
    return list(inspect.signature(cls).parameters.values())


@pytest.mark.parametrize(("slots", "kw_only"), FORMS)
def test_a_frozen_value_cannot_be_changed_and_checks_itself(slots: bool, kw_only: bool) -> None:
    point = classes(dataclass, slots, kw_only).Point

    with pytest.raises(dataclasses.FrozenInstanceError, match="assign to field 'x'"):
        point(x=1).x = 2
    with pytest.raises(dataclasses.FrozenInstanceError, match="delete field 'x'"):
        del point(x=1).x
    with pytest.raises(ValueError, match="x"):
        point(x=-1)
    with pytest.raises(TypeError, match="missing 1 required"):
        point()
    with pytest.raises(TypeError, match="unexpected keyword argument 'z'"):
        point(x=1, z=2)


def test_what_a_class_defines_itself_is_kept() -> None:
    @dataclass(frozen=True, slots=True)
    class Parity:
        number: int

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Parity) and self.number % 2 == other.number % 2

        def __repr__(self) -> str:
            return "even" if self.number % 2 == 0 else "odd"

    @dataclass(frozen=True, eq=False)
    class Alone:
        number: int = 1

    assert Parity(1) == Parity(3)
    assert hash(Parity(1)) == hash(Parity(1))
    assert repr(Parity(2)) == "even"
    assert Alone() != Alone()
    assert len({Alone(), Alone()}) == 2


def test_values_of_a_class_without_fields_are_equal() -> None:
    @dataclass(frozen=True, slots=True)
    class Empty:
        pass

    assert Empty() == Empty()
    assert hash(Empty()) == hash(Empty())
