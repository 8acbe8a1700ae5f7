"""A tag's scheme as a store keeps it: a JSON object that says how the numbers that users see are made of the counter.

Stores interpret nothing of it. Only what makes a tag again looks inside: see `continued`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn

#: The longest scheme, in bytes of compact ASCII JSON: with it a line of a journal still fits into one write.
SCHEME_MOST = 16 * 1024

#: Objects and lists within each other, at most: MongoDB takes 100, Python's JSON about 1000.
DEPTH_MOST = 20

#: The integers that every store keeps exactly: those of 64 bits with a sign.
_LOWEST, _HIGHEST = -(2**63), 2**63 - 1

#: The parts that say which value a counter comes to, each with what it is if it is missing. The rest may differ
#: between two schemes that never give a value twice.
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
    """A JSON object that can't be changed; a dict to all that reads it."""

    __setitem__ = __delitem__ = __ior__ = _refused
    clear = pop = popitem = setdefault = update = _refused

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what a copy is made of: by default that is one `__setitem__` after the other."""
        return FrozenObject, (dict(self),)


class FrozenList(list[Any]):
    """A JSON array that can't be changed; a list to all that reads it."""

    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refused
    append = clear = extend = insert = pop = remove = reverse = sort = _refused

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what a copy is made of."""
        return FrozenList, (list(self),)


#: The scheme of a tag whose numbers are the counter itself.
PLAIN = FrozenObject()


def frozen(value: Any) -> Any:
    """Return a copy of a JSON value that can't be changed, itself if it is one."""
    match value:
        case FrozenObject() | FrozenList() | bool():
            return value
        case Mapping():
            return FrozenObject((name, frozen(each)) for name, each in value.items())
        case list() | tuple():
            return FrozenList(frozen(each) for each in value)
        case int():
            return int(value)  # MongoDB's Int64 is a class of its own
    return value


def text(scheme: Mapping[str, object]) -> str:
    """Return it as compact JSON, in ASCII."""
    return json.dumps(scheme, separators=(",", ":"))


def problem(scheme: object) -> str:
    """Say what makes it a scheme that no store may keep; "" if nothing does."""
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
    # A path or an operator to MongoDB, some versions of which refuse them.
    if not key or key.startswith("$") or "." in key or "\0" in key:
        return f"{at}has the key {key!r}: a key is not empty, has no '.' and no NUL in it, and no '$' before it"
    return _text_problem(key, at)


def continued(old: Mapping[str, Any], new: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return `new` as the scheme of a tag that goes on above numbers made by `old`; None: it might repeat one.

    The counter goes on above, so no value comes again as long as each counter still comes to the same value. The `id`
    stays then, since it names that way.
    """
    for name, missing in _VALUE_MAKING.items():
        if (old.get(name) or missing) != (new.get(name) or missing):
            return None
    rest = {name: value for name, value in new.items() if name != "id"}
    return {**rest, "id": old["id"]} if old.get("id") else rest
