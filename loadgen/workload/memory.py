"""What user sessions remember, and whose turn it is: drawn by seed and number, as everything else is.

Both belong to the lane of a client, in an open loop too: users are those of a client, whichever arrivals it takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from loadgen.errors import ScenarioInvalid
from loadgen.model.workload import (
    ClientPosition,
    KeyRange,
    Parameter,
    Previous,
    Remembered,
    Statement,
    Uniform,
    Workload,
)
from loadgen.workload.draw import Row
from loadgen.workload.generator import DrawContext, Value
from loadgen.workload.generators import make_generator
from loadgen.workload.pools import Pool

# In place of a statement's number, and above all of them: no bits are shared with the parameters of statements.
_REMEMBERED, _TURNS = 1 << 20, (1 << 20) + 1


class RememberedValues:
    """The values and the turns of the users of one client. Any thread."""

    def __init__(self, workload: Workload, place: ClientPosition, pools: Mapping[str, Pool], users: int) -> None:
        source = DrawContext(
            seed=workload.seed, statement=_REMEMBERED, place=place, sharding=workload.sharding, pools=pools
        )
        remembered = remembered_values(workload.statements)
        self._users = users
        self._generators = []
        for position, (name, parameter) in enumerate(remembered.items()):
            try:
                self._generators.append(make_generator(parameter, replace(source, position=position)))
            except ValueError as error:
                raise ScenarioInvalid(f"remembered {name}: {error}") from error
        turns = DrawContext(seed=workload.seed, statement=_TURNS, place=place)
        self._turns = make_generator(Uniform(keys=KeyRange(low=0, high=users)), turns)

    def user(self, k: int) -> int:
        """Whose statement draw k is: all users alike."""
        return self._turns.take(k)  # type: ignore[return-value]  # a Uniform of whole numbers

    def values(self, user: int, incarnation: int) -> tuple[Value, ...]:
        """Of a user's session with this number."""
        number = incarnation * self._users + user
        return tuple(generator.take(number) for generator in self._generators)


def remembered_values(statements: tuple[Statement, ...]) -> dict[str, Parameter]:
    """Every name that is remembered, in the order of the scenario, and what it is drawn from."""
    return {
        parameter.name: parameter.of
        for statement in statements
        for query in statement.queries
        for parameter in query.parameters
        if isinstance(parameter, Remembered)
    }


class RememberedParameters:
    """Where in the parameters of a statement a session's values stand; `previous` may repeat one."""

    def __init__(self, statement: Statement, statements: tuple[Statement, ...]) -> None:
        numbers = {name: number for number, name in enumerate(remembered_values(statements))}
        meant: list[Parameter] = []
        self._queries: list[tuple[tuple[int, int], ...]] = []  # of each query: position, number of the value
        for query in statement.queries:
            first = len(meant)
            for parameter in query.parameters:
                meant.append(meant[parameter.index] if isinstance(parameter, Previous) else parameter)
            self._queries.append(
                tuple((at, numbers[one.name]) for at, one in enumerate(meant[first:]) if isinstance(one, Remembered))
            )

    def filled(self, row: Row, values: tuple[Value, ...]) -> Row:
        return tuple(
            _filled(parameters, blanks, values) if blanks else parameters
            for parameters, blanks in zip(row, self._queries, strict=True)
        )


def _filled(
    parameters: tuple[Value, ...], blanks: tuple[tuple[int, int], ...], values: tuple[Value, ...]
) -> tuple[Value, ...]:
    filled = list(parameters)
    for at, number in blanks:
        filled[at] = values[number]
    return tuple(filled)
