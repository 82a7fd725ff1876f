"""Every error carries an exit code, a remedy and a sentence."""

import inspect
import pickle
import re

import pytest

import loadgen.errors as errors
from loadgen.errors import Busy, LoadgenError, ScenarioInvalid

CLASSES = [value for value in vars(errors).values() if inspect.isclass(value) and issubclass(value, LoadgenError)]
DOCUMENTED_CODES = {0, 1, 2, 3, 4, 5, 10, 11, 12, 75, 129, 130, 131, 141, 143}


@pytest.mark.parametrize("cls", CLASSES)
def test_each_class_has_a_documented_code_a_remedy_and_a_sentence(cls):
    error = cls("the thing broke")

    assert error.exit_code in DOCUMENTED_CODES - {0}
    assert error.remedy.endswith(".")
    assert (cls.__doc__ or "").strip()
    assert str(error) == "the thing broke"


def test_the_docstring_draws_every_class_with_its_code():
    drawn = dict(re.findall(r"^ +(?:[├└]── )?(\w+) +(\d+)(?: |$)", errors.__doc__ or "", re.MULTILINE))

    assert drawn == {cls.__name__: str(cls.exit_code) for cls in CLASSES}


def test_the_docstring_lists_every_exit_code():
    listed = {int(code) for code in re.findall(r"^ +(\d+)  ", errors.__doc__ or "", re.MULTILINE)}

    assert listed == DOCUMENTED_CODES


def test_the_hint_of_an_error_replaces_the_one_of_its_class():
    assert ScenarioInvalid("bad", remedy="Quote the cron line.").remedy == "Quote the cron line."
    assert ScenarioInvalid("bad").remedy == ScenarioInvalid.remedy


def test_an_error_crosses_a_process_boundary_whole():
    error = pickle.loads(pickle.dumps(Busy("run r1 has it", remedy="Wait for r1.")))

    assert (type(error), str(error), error.remedy) == (Busy, "run r1 has it", "Wait for r1.")
