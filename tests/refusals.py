"""Calls that have to be refused: of many values in one test, the message names the one that wasn't."""

import re
from collections.abc import Callable
from typing import TypeVar

import pytest

E = TypeVar("E", bound=BaseException)


def refused(error: type[E], said: str, call: Callable[..., object], /, *args: object, **options: object) -> E:
    """Make the call, and return the error that it has to raise. `said`: a pattern that is found in its text."""
    given = f"{args} {options}"
    try:
        answer = call(*args, **options)
    except error as found:
        if not re.search(said, str(found)):
            pytest.fail(f"{given} was refused with {found!r}, not with {said!r}")
        return found
    except Exception as other:  # noqa: BLE001 - named together with what was given
        pytest.fail(f"{given} raised {other!r}, not {error.__name__}")
    pytest.fail(f"{given} was not refused, and gave {answer!r}")
