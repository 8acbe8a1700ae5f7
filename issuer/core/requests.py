"""Arguments of users, checked."""

from __future__ import annotations

import operator

from issuer.core.scheme_record import SEGMENT, countable, strategy
from issuer.errors import InvalidArgument, brief
from issuer_persistence.records import Tag

#: Most numbers that one `take` returns: they come as a list, 8 MB of it.
TAKE_MOST = 1_000_000

#: Seconds that the number of a caller's key is kept, unless the call names others.
TTL = 86_400.0


def only_one(key: object) -> None:
    """Raise InvalidArgument if a call for one number was given a number as key: `take` gives n, `timeout` is named."""
    if isinstance(key, int | float):
        problem = f"key must be a string, not {brief(key)}: take(tag, n) returns n numbers, and timeout= must be named"
        raise InvalidArgument(problem, value=key)


def whole(value: int, name: str, lowest: int, highest: int) -> int:
    """Return a whole number in lowest..highest; InvalidArgument for anything else, a bool included."""
    try:
        if isinstance(value, bool):
            raise TypeError  # noqa: TRY301 - handled like every other wrong type, below
        number = operator.index(value)
    except TypeError as error:
        raise InvalidArgument(f"must be a whole number, not {brief(value)}", value=value, argument=name) from error
    if not lowest <= number <= highest:
        raise InvalidArgument(f"must be {lowest}..{highest}, not {brief(number)}", value=value, argument=name)
    return number


def above_of(tag: str, start: int | None, above: int | None, limit: int) -> int | None:
    """Return the number below the first one, whichever way it was given."""
    if start is not None and above is not None:
        raise InvalidArgument("give start or above, not both", tag=tag, value=(start, above))
    if start is not None:
        return whole(start, "start", 1, limit) - 1
    return None if above is None else whole(above, "above", 0, limit - 1)


def check_reserving(record: Tag, n: int) -> None:
    """InvalidArgument if n contiguous numbers can't be reserved of that tag."""
    tag = record.tag
    _check_countable(record, n)
    if record.order == "strict":
        raise InvalidArgument(
            f"tag {tag!r} is strict, and ranges can be reserved only for trend tags: use `take`", tag=tag, value=n
        )
    _check_side_by_side(record, n)


def check_contiguous(record: Tag, n: int) -> None:
    """InvalidArgument if no n numbers of that tag lie side by side: its counter isn't what its users see."""
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
