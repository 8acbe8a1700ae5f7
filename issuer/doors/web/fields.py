"""Fields: members of bodies and parameters of queries, with their types.

The server checks requests with these fields. The OpenAPI document describes them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from issuer.doors.web.replies import Problem
from issuer.errors import InvalidArgument, brief
from issuer.numbers.limits import NAMES
from issuer_persistence.records import HIGHEST

#: Pattern of a text that is read as an integer. Python can read up to 4300 digits; 100 are allowed here. The issuer
#: then rejects integers that are too large.
_DIGITS: Final = re.compile(r"-?[0-9]{1,100}", re.ASCII)
_SECONDS: Final = re.compile(r"[0-9]{1,12}(\.[0-9]{1,12})?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Kind:
    """A type of a field.

    Attributes:
        schema: JSON schema of the type.
        fits: Function that returns whether a value has the type. The issuer checks the range later.
        said: Name of the type in error messages.
        read: Function that converts a text from a query to a value. It returns a text unchanged if it cannot convert
            the text.
        members: For a list of objects: the members of each object.
    """

    schema: Mapping[str, Any]
    fits: Callable[[Any], bool]
    said: str
    read: Callable[[str], Any] = str
    members: Sequence[Field] = ()


def is_whole(value: object) -> bool:
    """Return whether the value is an integer in JSON."""
    return isinstance(value, int) and not isinstance(value, bool)


def _is_digits(value: object) -> bool:
    return is_whole(value) or (isinstance(value, str) and re.fullmatch(r"[0-9]{1,19}", value, re.ASCII) is not None)


def _are_keys(value: object) -> bool:
    return isinstance(value, str) or (
        isinstance(value, list)
        and all(isinstance(each, list) and [*map(type, each)] in ([int, str], [str, str]) for each in value)
        and all(_is_digits(each[0]) for each in value)
    )


def _whole(text: str) -> int | str:
    return int(text) if _DIGITS.fullmatch(text) else text


def _seconds(text: str) -> float | str:
    return float(text) if _SECONDS.fullmatch(text) else text


def _flag(text: str) -> bool | str:
    return {"true": True, "false": False}.get(text, text)


_INTEGER: Final = {"type": "integer"}
_STRING: Final = {"type": "string"}
_BITS: Final = {
    "type": "object",
    "properties": {"shard_bits": _INTEGER, "app_bits": _INTEGER, "app": _INTEGER},
    "additionalProperties": False,
}
_NUMBER: Final = {"type": ["integer", "string"], "minimum": 0, "maximum": HIGHEST, "pattern": "^[0-9]{1,19}$"}
_PAIR: Final = {"type": "array", "prefixItems": [_NUMBER, _STRING], "minItems": 2, "maxItems": 2}

TEXT: Final = Kind(_STRING, lambda value: isinstance(value, str), "a string")
WHOLE: Final = Kind(_INTEGER, is_whole, "an integer", _whole)
SECONDS: Final = Kind(
    {"type": "number", "minimum": 0},
    lambda value: is_whole(value) or isinstance(value, float),
    "a number of seconds",
    _seconds,
)
SHARE: Final = Kind({"type": "number"}, lambda value: is_whole(value) or isinstance(value, float), "a share")
FLAG: Final = Kind({"type": "boolean"}, lambda value: isinstance(value, bool), "true or false", _flag)
#: A number of a tag. Some clients cannot represent integers above 2^53, so a string is accepted too.
NUMBER: Final = Kind(_NUMBER, _is_digits, "an integer, or a string of its digits")
LIMIT: Final = Kind(
    {"anyOf": [{**_NUMBER, "minimum": 1}, {"enum": [*NAMES]}]},
    lambda value: is_whole(value) or isinstance(value, str),
    f"an integer, or one of {', '.join(NAMES)}",
)
STEP: Final = Kind(
    {"anyOf": [{"type": "integer", "minimum": 1, "maximum": HIGHEST}, {"const": "auto"}]},
    lambda value: is_whole(value) or value == "auto",
    'an integer or "auto"',
)
DURATION: Final = Kind(
    {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": "^[0-9]+[smhd]$"}]},
    lambda value: is_whole(value) or isinstance(value, str),
    "an integer of seconds, or a text such as 10m",
)
SCRAMBLE: Final = Kind(
    {"anyOf": [_STRING, {"type": "array", "items": _PAIR}]},
    _are_keys,
    "the name of a key, or a list of [first number, name]",
)
SHARDS: Final = Kind(
    {"anyOf": [{"type": "boolean"}, _BITS]},
    lambda value: isinstance(value, bool | dict),
    "true, or an object of shard_bits, app_bits and app",
)
OPTIONS: Final = Kind(
    {"type": "object", "additionalProperties": {"type": ["string", "integer", "boolean"]}},
    lambda value: isinstance(value, dict) and all(isinstance(each, str | int) for each in value.values()),
    "an object of strings, integers, true and false",
)


def words(*each: str) -> Kind:
    """Return the type of a field that is one of these strings."""
    return Kind({"enum": list(each)}, lambda value: isinstance(value, str) and value in each, " or ".join(each))


def objects(members: Sequence[Field], most: int) -> Kind:
    """Return the type of a list of 1 to `most` objects with these members."""
    schema = {"type": "array", "items": object_schema(members), "minItems": 1, "maxItems": most}

    def fits(value: object) -> bool:
        return isinstance(value, list) and 1 <= len(value) <= most and all(isinstance(each, dict) for each in value)

    return Kind(schema, fits, f"a list of 1 to {most} objects", members=members)


def object_schema(fields: Sequence[Field]) -> dict[str, Any]:
    """Return the JSON schema of an object with these members."""
    properties = {field.name: field.described | {"description": field.about} for field in fields}
    required = [field.name for field in fields if field.required]
    schema: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
    return schema | {"required": required} if required else schema


@dataclass(frozen=True, slots=True)
class Field:
    """A member of a body, or a parameter of a query.

    Attributes:
        about: Description in the OpenAPI document.
        schema: Additions to the JSON schema of the type, such as a range.
    """

    name: str
    kind: Kind
    about: str
    required: bool = False
    schema: Mapping[str, Any] | None = None

    @property
    def described(self) -> dict[str, Any]:
        """The JSON schema of the field, for the OpenAPI document."""
        return {**self.kind.schema, **(self.schema or {})}


def read_body(found: Mapping[str, Any], fields: Sequence[Field]) -> dict[str, Any]:
    """Return the members of a body, by name, as arguments for a call of the issuer.

    `found`: the members that the client sent. `fields`: the allowed members. Raises Problem if a member is unknown, is
    missing, or has the wrong type.
    """
    known = {field.name: field for field in fields}
    strange = sorted(found.keys() - known.keys())
    if strange:
        named = ", ".join(map(brief, strange[:5]))
        raise Problem(
            422, "unknown_member", f"unknown member {named} in the body; this route takes {', '.join(known) or 'none'}"
        )
    for field in fields:
        if field.name not in found:
            if field.required:
                raise Problem(422, "missing_member", f"the body lacks the member {field.name}", member=field.name)
        elif not field.kind.fits(found[field.name]):
            problem = f"{field.name} must be {field.kind.said}, not {brief(found[field.name])}"
            raise Problem(422, "wrong_type", problem, member=field.name)
    return {name: _plain(value, known[name].kind) for name, value in found.items()}


def _plain(value: Any, kind: Kind) -> Any:
    """Return a value of a body. Clients may send numbers of a tag as strings: return these as integers."""
    if kind is NUMBER:
        return int(value)
    if kind.members:
        return [read_body(each, kind.members) for each in value]
    if kind is SCRAMBLE and isinstance(value, list):
        return [(int(first), name) for first, name in value]
    return value


def read_query(found: Mapping[str, str], fields: Sequence[Field]) -> dict[str, Any]:
    """Return the parameters of a query as values, by name.

    `found`: the parameters that the client sent, as texts. `fields`: the allowed parameters. Raises Problem if a
    parameter is unknown, and InvalidArgument if a parameter has the wrong type.
    """
    known = {field.name: field for field in fields}
    strange = sorted(found.keys() - known.keys())
    if strange:
        named = ", ".join(map(brief, strange[:5]))
        problem = f"unknown parameter {named} in the query; this route takes {', '.join(known) or 'none'}"
        raise Problem(422, "unknown_parameter", problem)
    values = {name: known[name].kind.read(text) for name, text in found.items()}
    for field in fields:
        if field.name in values and not field.kind.fits(values[field.name]):
            problem = f"must be {field.kind.said}, not {brief(found[field.name])}"
            raise InvalidArgument(problem, value=found[field.name], argument=field.name)
    return values
