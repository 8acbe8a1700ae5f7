"""The scheme of a tag in a store: a JSON object with the settings that turn counter values into users' numbers.

Stores do not interpret the scheme, with one exception: when a deleted tag is created again, see `continued`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn

#: Maximum size of a scheme, in bytes of compact ASCII JSON. A journal line with such a scheme is still written in one
#: call.
SCHEME_MOST = 16 * 1024

#: Maximum depth of nested objects and lists. MongoDB allows 100 levels, Python's JSON about 1000.
DEPTH_MOST = 20

#: Range of integers that every store keeps exactly: signed 64-bit integers.
_LOWEST, _HIGHEST = -(2**63), 2**63 - 1

#: The fields of a scheme that decide into which value a counter is turned, with the defaults of the fields. If two
#: schemes are equal in these fields, they turn each counter into the same value.
_VALUE_MAKING: dict[str, object] = {
    "strategy": "segment",
    "options": {},
    "restart": "never",
    "scramble": [],
    "stride": [],
    "shards": None,
}


def _refused(*_: object, **__: object) -> NoReturn:
    raise TypeError("a scheme cannot be changed in place: create another, as in {**scheme, 'format': ...}")


class FrozenObject(dict[str, Any]):
    """A dict that cannot be changed."""

    __setitem__ = __delitem__ = __ior__ = _refused
    clear = pop = popitem = setdefault = update = _refused

    def __reduce__(self) -> tuple[Any, ...]:
        """Support copy and pickle. By default they call `__setitem__`, which is not allowed."""
        return FrozenObject, (dict(self),)


class FrozenList(list[Any]):
    """A list that cannot be changed."""

    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refused
    append = clear = extend = insert = pop = remove = reverse = sort = _refused

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenList, (list(self),)


#: The plain scheme: the numbers are the counter values.
PLAIN = FrozenObject()


def frozen(value: Any) -> Any:
    """Return an immutable copy of a JSON value. If the value is immutable already, return it without a copy."""
    match value:
        case FrozenObject() | FrozenList() | bool():
            return value
        case Mapping():
            return FrozenObject((name, frozen(each)) for name, each in value.items())
        case list() | tuple():
            return FrozenList(frozen(each) for each in value)
        case int():
            return int(value)  # Int64 of MongoDB is a subclass of int
    return value


def text(scheme: Mapping[str, object]) -> str:
    """Return the scheme as compact JSON, in ASCII."""
    return json.dumps(scheme, separators=(",", ":"))


def problem(scheme: object) -> str:
    """Return the reason why stores cannot keep this scheme, or "" if the scheme is valid."""
    if not isinstance(scheme, Mapping):
        return f"must be an object, not {scheme!r} ({type(scheme).__name__})"
    found = _problem(scheme, "", DEPTH_MOST)
    if found:
        return found
    size = len(text(frozen(scheme)))
    return f"is {size} bytes long as JSON; at most {SCHEME_MOST} are kept" if size > SCHEME_MOST else ""


def _problem(value: object, where: str, depth: int) -> str:  # noqa: PLR0911 - one line per case
    at = f"at {where.removeprefix('.')!r} " if where else ""
    match value:
        case None | bool():
            return ""
        case int():
            return "" if _LOWEST <= value <= _HIGHEST else f"{at}holds {value}, which is not a 64-bit integer"
        case str():
            return _text_problem(value, at)
        case Mapping() | list() | tuple() if not depth:
            return f"{at}goes deeper than {DEPTH_MOST} levels"
        case Mapping():
            found = (
                _key_problem(key, at) or _problem(each, f"{where}.{key}", depth - 1) for key, each in value.items()
            )
            return next(filter(None, found), "")
        case list() | tuple():
            found = (_problem(each, f"{where}[{index}]", depth - 1) for index, each in enumerate(value))
            return next(filter(None, found), "")
    return (
        f"{at}holds {value!r} ({type(value).__name__}), which is not a text, integer, true, false, null, list or object"
    )


def _text_problem(value: str, at: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        return f"{at}holds half of a surrogate pair: {value!r}"
    return ""


def _key_problem(key: object, at: str) -> str:
    if not isinstance(key, str):
        return f"{at}has a key that is not a text: {key!r}"
    # In MongoDB such a key is a path or an operator. Some versions of MongoDB reject it.
    if not key or key.startswith("$") or "." in key or "\0" in key:
        return f"{at}has the key {key!r}: a key is not empty, has no '.' and no NUL in it, and no '$' before it"
    return _text_problem(key, at)


def continued(old: Mapping[str, Any], new: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the scheme for a deleted tag that is created again. None if numbers could be issued twice.

    The counter of the new tag continues that of the deleted tag. If the old and the new scheme turn each counter into
    the same value, no number is issued twice. A scheme's `id` stands for the values that it makes of the counters. As
    they are the same, the result keeps the `id` of the old scheme.
    """
    for name, missing in _VALUE_MAKING.items():
        if (old.get(name) or missing) != (new.get(name) or missing):
            return None
    rest = {name: value for name, value in new.items() if name != "id"}
    return {**rest, "id": old["id"]} if old.get("id") else rest
