"""Many cases in one test: a separate test for each case would cost more than the check itself."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

Test = Callable[..., None]
NAMED_BY_MAX = 500  # characters


def in_one_test(names: str | Sequence[str], cases: Iterable[Any]) -> Callable[[Test], Test]:
    """Like pytest.mark.parametrize, but one test runs all cases with the same fixtures, and names every case that
    fails.

    Only for cases that do not depend on what earlier cases left. With several decorators, the one nearest to the test
    varies
    fastest.
    """
    arguments = [names] if isinstance(names, str) else list(names)
    rows = [(case,) if isinstance(names, str) else tuple(case) for case in cases]

    def decorate(test: Test) -> Test:
        def run_all(**fixtures: Any) -> None:
            failures: list[BaseException] = []
            for row in rows:
                case = dict(zip(arguments, row, strict=True))
                try:
                    test(**fixtures, **case)
                except (Exception, pytest.fail.Exception) as error:
                    error.add_note(f"case: {str(case)[:NAMED_BY_MAX]}")
                    failures.append(error)
            if failures:
                raise BaseExceptionGroup(f"{len(failures)} of {len(rows)} cases failed", failures)

        signature = inspect.signature(test)
        kept = [one for one in signature.parameters.values() if one.name not in arguments]
        run_all.__name__, run_all.__qualname__, run_all.__doc__ = test.__name__, test.__qualname__, test.__doc__
        run_all.__module__ = test.__module__
        run_all.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
        return run_all

    return decorate
