"""A tag's scheme as the protocol knows it: it makes the numbers that users see of the counter that is drawn."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

from issuer.core.periods import PERIOD_BITS, SEQ_MOST, Periods
from issuer.errors import IssuerError
from issuer_persistence.records import HIGHEST, Tag, fresh_version

#: The strategy whose numbers come of the counter; every other one makes its own.
SEGMENT = "segment"

#: Settings that give a tag parts, each a tag with a counter of its own; with the argument that names the part.
PARTS = {"shards": "shard_key", "keyed": "restart_key"}


class Numbering(Protocol):
    """A way of making values of counters. A counter's value never changes, whatever the scheme becomes."""

    def value(self, counter: int) -> int:
        """Return the number that users see. Raises LimitReached."""


class OtherStrategyError(IssuerError):
    """The tag's numbers aren't made of a counter: the caller turns to its strategy. Users never see this."""


#: Under this name a part's scheme says which tag it is a part of: by its own name alone it may be any tag's.
PART_OF = "part_of"

#: And under this name which machine number it keeps the time of, in place of numbers.
MACHINE = "machine"


def last_value(scheme: Mapping[str, Any], limit: int) -> int:
    """Return the last number that users will see, as they have set it; `limit`: the last one of the counter."""
    return int(scheme.get("limit", HIGHEST if "stride" in scheme else limit))


def countable(scheme: Mapping[str, Any]) -> bool:
    """Whether the tag itself has a counter that is drawn from: no other strategy makes its numbers, and no parts do."""
    return strategy(scheme) == SEGMENT and not any(scheme.get(setting) for setting in PARTS)


#: The beginning of an id that `id_after` has made: how often the scheme had changed, and the way to the values.
_ID = re.compile(r"[0-9]+-([^-]+)")


def id_after(before: str, *, same_values: bool = False) -> str:
    """Return the id of a scheme that takes the place of the one whose id was `before`, "" for none.

    It begins with how often the tag's scheme has changed, which tells the later of a tag's two ids. Then comes what
    names the way from counter to value. `same_values`: that name stays, as each counter has the value that it had; by
    it Redis tells that what it holds can be drawn under the new id.
    """
    way = _ID.match(before) if same_values else None
    return f"{turn(before) + 1}-{f'{way[1]}-' if way else ''}{fresh_version()}"


def turn(scheme_id: str) -> int:
    """Return how often the scheme had changed when it got this id: 1.. for those of `id_after`, 0 for others."""
    times, dash, _ = scheme_id.partition("-")
    return int(times) if dash and times.isascii() and times.isdigit() else 0


def strategy(scheme: Mapping[str, Any]) -> str:
    """Return the name of the strategy that a tag with this scheme has."""
    return str(scheme.get("strategy", SEGMENT))


def in_true_order(record: Tag) -> Tag:
    """Return the record with the order that its numbers have: a strategy's rise within a process only.

    Records that were made before strict was refused there promise an order that no process keeps.
    """
    return record if strategy(record.scheme) == SEGMENT else replace(record, order="trend")


def periods(tag: Tag) -> Periods | None:
    """Return the periods in which the tag's numbers begin again, None if they never do. Raises ConfigurationError."""
    restart = tag.scheme.get("restart")
    return None if restart in (None, "never") else Periods(str(restart), str(tag.scheme.get("timezone", "UTC")))


def reserved(tag: Tag) -> tuple[int, int]:
    """Return how far the tag's counter is reserved, and how far it can be; with periods, in the one `max` lies in."""
    if periods(tag) is None:
        return tag.max, tag.limit
    return tag.max & SEQ_MOST, min(int(tag.scheme.get("limit", SEQ_MOST)), SEQ_MOST)


def in_period(counter: int, scheme: Mapping[str, Any]) -> str | None:
    """Return the number within its period and which one that is; None without periods, or before the first one."""
    if "restart" not in scheme or counter <= SEQ_MOST:
        return None
    named = Periods(str(scheme["restart"]), str(scheme.get("timezone", "UTC")))
    return f"{counter & SEQ_MOST} of {named.name(counter >> PERIOD_BITS)}"


def counted(counter: int, scheme: Mapping[str, Any]) -> str:
    """Return a counter as people read it: "17 of 2026-11-21" where there are periods."""
    return in_period(counter, scheme) or str(counter)


def spanned(low: int, high: int, scheme: Mapping[str, Any]) -> str:
    """Return the segment (low, high] as people read it: "1..1000 of 2026-11-21" where there are periods."""
    first, last = counted(low + 1, scheme), counted(high, scheme)
    number, _, period = first.partition(" of ")
    return f"{number}..{last}" if last.endswith(f" of {period}") else f"{first}..{last}"


def lost(issued: int, skipped: int, scheme: Mapping[str, Any]) -> int:
    """Return how many numbers lie in (issued, skipped]; with periods, in the one that `skipped` lies in."""
    begins = skipped >> PERIOD_BITS << PERIOD_BITS if "restart" in scheme and skipped > SEQ_MOST else 0
    return max(0, skipped - max(issued, begins))


def last_counter(tag: Tag) -> int | None:
    """Return the last counter of the period that the tag's `max` lies in; None if its scheme sets no limit to that."""
    if "limit" not in tag.scheme or periods(tag) is None:
        return None
    return tag.max >> PERIOD_BITS << PERIOD_BITS | reserved(tag)[1]


def without_raising(scheme: Mapping[str, Any], last: int) -> str:
    """Say what can be done at the end of a limit that can't be raised; "" if it can. `last`: as users see it."""
    restarts = scheme.get("restart", "never") != "never"
    if PART_OF in scheme:
        why = f"it cannot be changed for parts of tag {scheme[PART_OF]!r}"
    elif restarts and "scramble" in scheme:
        why = "with restart and scramble it cannot be changed"
    elif last >= HIGHEST:
        why = "64-bit numbers end there"
    elif restarts and last >= SEQ_MOST:
        why = "a period cannot have more numbers"
    else:
        return ""
    return f"{why}, so create another tag{' and use it until the next period' if restarts else ''}"


def until(tag: Tag) -> int:
    """Return until when a hash that is armed now may be drawn from: with periods that has yet to be found out."""
    return HIGHEST if periods(tag) is None else 0
