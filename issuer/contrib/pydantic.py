"""For pydantic: a type for 64-bit numbers that JavaScript reads exactly."""

from __future__ import annotations

import re
from typing import Annotated, Final

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema

from issuer_persistence.records import HIGHEST

_DIGITS: Final = "0|[1-9][0-9]{0,18}"


def _from_text(value: object) -> object:
    if isinstance(value, str) and re.fullmatch(_DIGITS, value):
        return int(value)
    if type(value) is not int:
        raise ValueError("expected an integer, or a string of 1 to 19 digits without a leading zero")
    return value


#: Type of a number of a tag: an int in Python, a string of digits in JSON. JavaScript's numbers are exact only up to
#: 2^53-1. It accepts an int or a string, 0..2^63-1.
Number = Annotated[
    int,
    BeforeValidator(_from_text),
    Field(ge=0, le=HIGHEST),
    PlainSerializer(str, return_type=str, when_used="json"),
    WithJsonSchema({"type": "string", "pattern": f"^({_DIGITS})$"}),
]
