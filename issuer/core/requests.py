"""Requests of users, checked, as steps for a driver to run."""

from __future__ import annotations

import operator
import os
from collections.abc import Sequence

from issuer.core.scheme_record import SEGMENT, countable, strategy
from issuer.core.steps import Steps, ask
from issuer.errors import InvalidArgument, brief
from issuer.gateway.keys import check_found
from issuer_persistence import journal
from issuer_persistence.journal import Journals
from issuer_persistence.records import HIGHEST, Tag

#: Most numbers that one `take` returns: they come as a list, 8 MB of it.
TAKE_MOST = 1_000_000

#: Seconds that the number of a caller's key is kept, unless the call names others.
TTL = 86_400.0

#: Journals as callers name them: by paths, or as what was read from them.
Named = Sequence[str | os.PathLike[str]] | Journals


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


def journals(named: Named) -> Steps[Journals]:
    """Read the journals, if they aren't read yet. InvalidArgument if one path was given in place of several."""
    if isinstance(named, Journals):
        return named
    if isinstance(named, (str, bytes, os.PathLike)):
        raise InvalidArgument(f"must be a list of paths, not {brief(named)}", value=named, argument="from_journal")
    # The driver's way of calling what blocks.
    return (yield from ask(lambda _store, _timeout: journal.read(named)))


def checked_at_least(tag: str | None, at_least: int) -> int:
    """Check what `recover` is to count as taken, 0..2^63-1, and the tag; None: all of them, and then only 0."""
    lowest = whole(at_least, "at_least", 0, HIGHEST)
    if tag is not None:
        check_found(tag)
    elif lowest:
        raise InvalidArgument(
            "requires a tag, because each tag has its own numbers", value=at_least, argument="at_least"
        )
    return lowest


def check_whole(tag: str, names: Sequence[str], at_least: int) -> None:
    """InvalidArgument if one number is to hold for all parts of a tag; `names`: the tag and its parts."""
    if len(names) > 1:
        problem = f"requires a single part of tag {tag!r}, such as {names[1]!r}, because each part has its own numbers"
        raise InvalidArgument(problem, tag=tag, value=at_least, argument="at_least")
