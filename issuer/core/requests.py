"""What users ask of an issuer, checked, as steps for a driver to run."""

from __future__ import annotations

import operator
import os
from collections.abc import Mapping, Sequence
from typing import Literal

from issuer.core import recovery
from issuer.core.record import DEFAULT_STEP
from issuer.core.scheme_record import SEGMENT, countable, strategy
from issuer.core.steps import Steps, ask
from issuer.errors import ConfigurationError, InvalidArgument, brief
from issuer.gateway.keys import check_description, check_found, check_tag
from issuer.persistence import journal
from issuer.persistence.journal import Journals
from issuer.persistence.records import AHEAD_MOST, HIGHEST, LEASE_MOST, Order, Tag

#: Most numbers that one `take` returns: they come as a list, 8 MB of it.
TAKE_MOST = 1_000_000

#: How journals are named: by paths, or as what was read from them.
Named = Sequence[str | os.PathLike[str]] | Journals


def only_one(key: object) -> None:
    """Raise InvalidArgument if a call for one number was given a number as key: `take` gives n, `timeout` is named."""
    if isinstance(key, int | float):
        problem = f"next gives one number, so {brief(key)} can't be meant: take(tag, n) gives n, timeout= is by name"
        raise InvalidArgument(problem, value=key)


def whole(value: int, name: str, lowest: int, highest: int) -> int:
    """Return a whole number in lowest..highest; InvalidArgument for anything else, a bool included."""
    try:
        if isinstance(value, bool):
            raise TypeError  # noqa: TRY301 - handled like every other wrong type, below
        number = operator.index(value)
    except TypeError as error:
        raise InvalidArgument(f"{name} must be a whole number, not {brief(value)}", value=value) from error
    if not lowest <= number <= highest:
        raise InvalidArgument(f"{name} must be {lowest}..{highest}, not {brief(number)}", value=value)
    return number


def above_of(tag: str, start: int | None, above: int | None, limit: int) -> int | None:
    """Return the number below the first one, whichever way it was given."""
    if start is not None and above is not None:
        raise InvalidArgument("give start or above, not both", tag=tag, value=(start, above))
    if start is not None:
        return whole(start, "start", 1, limit) - 1
    return None if above is None else whole(above, "above", 0, limit - 1)


def _lease(tag: str, lease: int | None, order: Order | None) -> int | None:
    if lease is None:
        return None
    size = whole(lease, "lease", 0, LEASE_MOST)
    if size and order == "strict":
        raise InvalidArgument(
            f"tag {tag!r} is strict: its numbers can't be drawn ahead; leases are for order='trend'",
            tag=tag,
            value=lease,
        )
    return size


def create(
    tag: str,
    *,
    start: int | None,
    above: int | None,
    step: int | Literal["auto"] | None,
    limit: int,
    order: Order | None,
    lease: int | None,
    ahead: int,
    description: str,
    redis: bool,
    scheme: Mapping[str, object] | None = None,
) -> Steps[Tag]:
    """Make a tag; see Issuer.create. `redis`: whether there is one. `scheme`: checked already."""
    check_tag(tag)
    last = whole(limit, "limit", 1, HIGHEST)
    first = above_of(tag, start, above, last) or 0
    size = DEFAULT_STEP if step is None or step == "auto" else whole(step, "step", 1, HIGHEST)
    chosen: Order = order if order is not None else ("strict" if redis else "trend")
    if chosen not in ("strict", "trend"):
        raise InvalidArgument(f"order is 'strict' or 'trend', not {brief(order)}", tag=tag, value=order)
    if chosen == "strict" and not redis:
        raise ConfigurationError(f"tag {tag!r}: strict order needs Redis, and none is set; use order='trend'", tag=tag)
    leased = _lease(tag, lease, chosen)
    times = whole(ahead, "ahead", 1, AHEAD_MOST)
    text = check_description(description)
    return ask(
        lambda store, left: store.create(
            tag,
            above=first,
            step=size,
            limit=last,
            order=chosen,
            lease=leased,
            ahead=times,
            description=text,
            scheme=scheme,
            timeout=left,
        )
    )


def configure(
    tag: str,
    key: str | None,
    *,
    step: int | Literal["auto"] | None,
    limit: int | None,
    raise_to: int | None,
    lease: int | None,
    ahead: int | None,
    description: str | None,
    scheme: Mapping[str, object] | None = None,
    seen: str | None = None,
) -> Steps[Tag]:
    """Change what is given; see Issuer.configure. `key` is the tag's hash in Redis, None if there is none.

    `limit`, `raise_to`: the last counter, and the one to go on above. `scheme`: checked already, and made of the record
    whose version was `seen`. Raises VersionMoved.
    """
    check_tag(tag)
    if all(value is None for value in (step, limit, raise_to, lease, ahead, description, scheme)):
        raise InvalidArgument(
            "nothing to change: give step, limit, start, above, lease, ahead or description; or of how its numbers are "
            "made format, timezone, scramble with scramble_strict, stride with offset and stride_above",
            tag=tag,
        )
    size = DEFAULT_STEP if step == "auto" else step if step is None else whole(step, "step", 1, HIGHEST)
    last = None if limit is None else whole(limit, "limit", 1, HIGHEST)
    leased = _lease(tag, lease, None)
    times = None if ahead is None else whole(ahead, "ahead", 1, AHEAD_MOST)
    if description is not None:
        check_description(description)
    return recovery.configure(
        tag,
        key,
        change=lambda store, left: store.configure(
            tag,
            step=size,
            limit=last,
            lease=leased,
            ahead=times,
            description=description,
            raise_to=raise_to,
            scheme=scheme,
            seen=seen,
            timeout=left,
        ),
        raise_to=raise_to,
    )


def check_reserving(record: Tag, n: int) -> None:
    """InvalidArgument if n contiguous numbers can't be reserved of that tag."""
    tag = record.tag
    if not countable(record.scheme):
        why = "its numbers are in parts" if strategy(record.scheme) == SEGMENT else "its strategy makes its numbers"
        raise InvalidArgument(f"tag {tag!r} has no counter of its own to reserve from: {why}", tag=tag, value=n)
    if record.order == "strict":
        raise InvalidArgument(f"tag {tag!r} is strict; ranges are reserved of trend tags only", tag=tag, value=n)
    if record.scheme_id:
        raise InvalidArgument(
            f"tag {tag!r} makes numbers of its counter that don't lie side by side; `take` gives n of them",
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
        raise InvalidArgument(f"from_journal is a list of paths, not {brief(named)}", value=named)
    # The driver's way of calling what blocks.
    return (yield from ask(lambda _store, _timeout: journal.read(named)))


def checked_at_least(tag: str | None, at_least: int) -> int:
    """Check what `recover` is to count as taken, 0..2^63-1, and the tag; None: all of them, and then only 0."""
    lowest = whole(at_least, "at_least", 0, HIGHEST)
    if tag is not None:
        check_found(tag)
    elif lowest:
        raise InvalidArgument("at_least needs a tag: each has numbers of its own", value=at_least)
    return lowest


def check_whole(tag: str, names: Sequence[str], at_least: int) -> None:
    """InvalidArgument if one number is to hold for all parts of a tag; `names`: the tag and its parts."""
    if at_least and len(names) > 1:
        raise InvalidArgument(
            f"at_least needs one part of tag {tag!r}, as {names[1]!r}: each has numbers of its own",
            tag=tag,
            value=at_least,
        )
