"""Members of bodies and parameters of queries. msgspec checks requests by their types, and describes the types."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, NotRequired, TypedDict, get_args

from msgspec import Meta, ValidationError, convert
from msgspec.json import schema_components

from issuer.doors.web.replies import Problem
from issuer.errors import InvalidArgument, brief
from issuer.numbers.limits import NAMES
from issuer_persistence.records import HIGHEST, LEASE_MOST

#: Pattern of a text that is read as an integer. Python can read up to 4300 digits; 100 are allowed here. The issuer
#: then rejects integers that are too large.
_DIGITS: Final = re.compile(r"-?[0-9]{1,100}", re.ASCII)
_SECONDS: Final = re.compile(r"[0-9]{1,12}(\.[0-9]{1,12})?", re.ASCII)
_FLAGS: Final = {"true": True, "false": False}

_PATTERN: Final = "^[0-9]{1,19}$"
_BITS: Final = {name: {"type": "integer"} for name in ("shard_bits", "app_bits", "app")}


def _narrow(kind: Any, **schema: Any) -> Any:
    """Return a type with additions to its schema. Only the issuer checks these, and reports its own error."""
    return Annotated[kind, Meta(extra_json_schema=schema)]


#: A number of a tag. Some clients cannot represent integers above 2^53, so a string is accepted too.
NUMBER: Any = (
    _narrow(int, minimum=0, maximum=HIGHEST)
    | Annotated[
        # The end of a pattern differs: in JSON schemas `$` is the end, in Python it may be a line break before the end.
        str, Meta(pattern=r"^[0-9]{1,19}\Z", extra_json_schema={"pattern": _PATTERN})
    ]
)
#: The types of the settings of a tag, by the kind of the option.
KINDS: Final[Mapping[str, Any]] = {
    "whole": int,
    "share": float,
    "number": NUMBER,
    "text": str,
    "flag": bool,
    "step": _narrow(int, minimum=1, maximum=HIGHEST) | Literal["auto"],
    "lease": _narrow(int, minimum=0, maximum=LEASE_MOST) | Literal["auto", "process"],
    "limit": _narrow(int, minimum=1, maximum=HIGHEST)
    | _narrow(str, anyOf=[{"type": "string", "pattern": _PATTERN}, {"enum": [*NAMES]}]),
    "duration": _narrow(int, minimum=0) | _narrow(str, pattern="^[0-9]+[smhd]$"),
    "scramble": str | list[tuple[NUMBER, str]],
    "shards": bool | _narrow(dict[str, Any], properties=_BITS, additionalProperties=False),
    "options": dict[str, str | int | bool],
}


def member(kind: Any, about: str, lowest: float | None = None, highest: float | None = None) -> Any:
    """Return the type of a member or parameter. `about`: its description in the OpenAPI document."""
    bounds = {name: end for name, end in (("minimum", lowest), ("maximum", highest)) if end is not None}
    return Annotated[kind, Meta(description=about, extra_json_schema=bounds)]


class Members:
    """The members of an object in a body, or the parameters of a query. `schema`: its JSON schema."""

    def __init__(self, types: Mapping[str, Any], required: Sequence[str] = (), **lists: Members) -> None:
        """Define an object. `lists`: for members that are lists of objects, the members of each object."""
        typed: Any = TypedDict  # mypy does not accept computed names
        self._type = typed("_", {name: each if name in required else NotRequired[each] for name, each in types.items()})
        self._lists = lists
        self._numbers = {name for name, each in types.items() if get_args(each)[0] == NUMBER}
        described = schema_components([self._type])[1]["_"]["properties"]
        #: The schema of each member, by name, in the order of `types`.
        self.known = {name: described[name] for name in types}
        for name, each in lists.items():
            self.known[name]["items"] = each.schema
        self.schema: dict[str, Any] = {"type": "object", "properties": self.known, "additionalProperties": False}
        self.schema |= {"required": [*required]} if required else {}
        self._takes = f"this route takes {', '.join(types) or 'none'}"

    def of_body(self, found: Mapping[str, Any]) -> dict[str, Any]:
        """Return the members of a body that a client sent, as arguments for a call of the issuer.

        Raises Problem if a member is unknown, is missing, or has the wrong type.
        """
        if strange := self._strange(found):
            raise Problem(422, "unknown_member", f"unknown member {strange} in the body; {self._takes}")
        for name in self.schema.get("required", ()):
            if name not in found:
                raise Problem(422, "missing_member", f"the body lacks the member {name}", member=name)
        try:
            values: dict[str, Any] = convert(found, self._type)
        except ValidationError as error:
            name, must = self._wrong(error)
            raise Problem(422, "wrong_type", f"{name} {must}, not {brief(found[name])}", member=name) from None
        # Numbers that were sent as strings become integers.
        values |= {name: int(values[name]) for name in self._numbers & values.keys()}
        if isinstance(values.get("scramble"), list):
            values["scramble"] = [(int(first), key) for first, key in values["scramble"]]
        return values | {
            name: [*map(each.of_body, values[name])] for name, each in self._lists.items() if name in values
        }

    def of_query(self, found: Mapping[str, str]) -> dict[str, Any]:
        """Return the parameters of a query, which are texts, as values.

        Raises Problem if a parameter is unknown, and InvalidArgument if a parameter has the wrong type.
        """
        if strange := self._strange(found):
            raise Problem(422, "unknown_parameter", f"unknown parameter {strange} in the query; {self._takes}")
        try:
            values: dict[str, Any] = convert(
                {name: self._value(name, text) for name, text in found.items()}, self._type
            )
        except ValidationError as error:
            name, must = self._wrong(error)
            raise InvalidArgument(f"{must}, not {brief(found[name])}", value=found[name], argument=name) from None
        return values

    def _strange(self, found: Mapping[str, Any]) -> str:
        return ", ".join(map(brief, sorted(found.keys() - self.known.keys())[:5]))

    def _value(self, name: str, text: str) -> Any:
        """Return a text of a query as a value of the parameter's type, or unchanged if it is no such value."""
        match self.known[name].get("type"):
            case "integer" if _DIGITS.fullmatch(text):
                return int(text)
            case "number" if _SECONDS.fullmatch(text):
                return float(text)
            case "boolean":
                return _FLAGS.get(text, text)
        return text

    def _wrong(self, error: ValidationError) -> tuple[str, str]:
        """Return the name of the member that has the wrong type, and what it must be."""
        told, _, place = str(error).partition(" - at `$.")
        name = re.split(r"[.\[`]", place)[0]
        must, got, _ = told.partition(", got ")
        if must.startswith("Invalid enum value") or (got and place == f"{name}`"):
            kinds = self.known[name].get("anyOf", [self.known[name]])
            must = " or ".join(word for each in kinds for word in each.get("enum", [each.get("type")]))
        return name, f"must be {must.removeprefix('Expected ')}"
