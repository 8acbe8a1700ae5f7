"""Checks of arguments that users pass."""

from __future__ import annotations

import operator

from issuer.core.scheme_record import SEGMENT, countable, evenly_spaced, strategy
from issuer.errors import InvalidArgument, brief
from issuer_persistence.records import Tag

#: Maximum count of numbers that one `take` returns. A list of 1 000 000 numbers takes 8 MB.
TAKE_MOST = 1_000_000

#: Default of `ttl`: for how many seconds an idempotency key gets the same number.
TTL = 86_400.0


def only_one(key: object) -> None:
    """Raise InvalidArgument if `key` is a number. Then the user probably meant `take(tag, n)` or `timeout=`."""
    if isinstance(key, int | float):
        problem = f"key must be a string, not {brief(key)}: take(tag, n) returns n numbers, and timeout= must be named"
        raise InvalidArgument(problem, value=key)


def whole(value: int, name: str, lowest: int, highest: int) -> int:
    """Return the value if it is a whole number in lowest..highest. Otherwise, or for a bool, raise InvalidArgument."""
    try:
        if isinstance(value, bool):
            raise TypeError  # noqa: TRY301 - handled like every other wrong type, below
        number = operator.index(value)
    except TypeError as error:
        raise InvalidArgument(f"must be a whole number, not {brief(value)}", value=value, argument=name) from error
    if not lowest <= number <= highest:
        raise InvalidArgument(f"must be {lowest}..{highest}, not {brief(number)}", value=value, argument=name)
    return number


def share(value: object, name: str, lowest: float, highest: float) -> float:
    """Return a share, such as 0.2 for 20 %, rounded to 0.001. Raise InvalidArgument if it is not in lowest..highest."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not lowest <= value <= highest:
        raise InvalidArgument(f"must be {lowest}..{highest}, not {brief(value)}", value=value, argument=name)
    return round(float(value), 3)


def flag(value: object, name: str) -> bool:
    """Return the value if it is True or False. Otherwise raise InvalidArgument."""
    if not isinstance(value, bool):
        raise InvalidArgument(f"must be True or False, not {brief(value)}", value=value, argument=name)
    return value


_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def seconds(text: str, name: str) -> int:
    """Return the duration in a text such as "90s", "10m", "2h" or "1d", in seconds. `name`: argument, for errors."""
    count, unit = text[:-1], text[-1:]
    if not (count.isascii() and count.isdigit() and unit in _UNITS):
        problem = f"must be whole seconds, or a text such as 90s, 10m, 2h or 1d, not {brief(text)}"
        raise InvalidArgument(problem, value=text, argument=name)
    return int(count[:20]) * _UNITS[unit]


def above_of(tag: str, start: int | None, above: int | None, limit: int) -> int | None:
    """Return the number just below a new tag's first one: `start` - 1, or `above`. Users pass at most one of both."""
    if start is not None and above is not None:
        raise InvalidArgument("give start or above, not both", tag=tag, value=(start, above))
    if start is not None:
        return whole(start, "start", 1, limit) - 1
    return None if above is None else whole(above, "above", 0, limit - 1)


def check_reserving(record: Tag, n: int, *, spaced: bool = False) -> None:
    """Raise InvalidArgument if a range of n contiguous numbers cannot be reserved for the tag.

    `spaced`: whether the numbers may have a stride.
    """
    tag = record.tag
    _check_countable(record, n)
    if record.order == "strict":
        raise InvalidArgument(
            f"tag {tag!r} is strict, and ranges can be reserved only for trend tags: use `take`", tag=tag, value=n
        )
    if not (spaced and evenly_spaced(record.scheme)):
        _check_side_by_side(record, n)


def check_contiguous(record: Tag, n: int) -> None:
    """Raise InvalidArgument if the tag cannot issue n contiguous numbers, for example because of its scheme."""
    _check_countable(record, n)
    _check_side_by_side(record, n)


def _check_countable(record: Tag, n: int) -> None:
    if not countable(record.scheme):
        why = (
            "it has shards or is keyed" if strategy(record.scheme) == SEGMENT else "its numbers come from its strategy"
        )
        problem = f"tag {record.tag!r} has no counter of its own to reserve from: {why}"
        raise InvalidArgument(problem, tag=record.tag, value=n)


def _check_side_by_side(record: Tag, n: int) -> None:
    tag = record.tag
    if record.scheme_id:
        raise InvalidArgument(
            f"the numbers of tag {tag!r} are not contiguous, because of its scheme: use `take`",
            tag=tag,
            value=n,
        )
    if n > record.limit:
        raise InvalidArgument(f"n is {brief(n)}, above the limit {record.limit} of tag {tag!r}", tag=tag, value=n)
