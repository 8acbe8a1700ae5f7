"""Reads a tag's scheme. A scheme is the settings that turn a tag's counter into the numbers that users see."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

from issuer.core.periods import PERIOD_BITS, SEQ_MOST, Periods
from issuer_persistence.records import HIGHEST, Tag, fresh_version

#: The default strategy: the tag's counter makes the numbers. All other strategies have no counter, and compute the
#: numbers themselves.
SEGMENT = "segment"
SNOWFLAKE = "snowflake"

#: For each setting that gives a tag parts: the argument that selects a part. Each part is a tag with its own counter.
PARTS = {"shards": "shard_key", "keyed": "restart_key"}


class Numbering(Protocol):
    """Converts a tag's counter to the numbers that users see. Equal counter values always give the same number."""

    def value(self, counter: int) -> int:
        """Return the number that users see. Raises LimitReached."""


def evenly_spaced(scheme: Mapping[str, Any]) -> bool:
    """Whether the numbers of contiguous counter values have equal distances: they are not scrambled, nor in periods."""
    return "scramble" not in scheme and scheme.get("restart", "never") == "never"


#: Setting in a part's scheme: the name of its parent tag. A name like `orders#17` alone does not make a tag a part.
PART_OF = "part_of"

#: This setting marks a tag that issues no numbers: the tag stores the last timestamp of a machine number.
#: The value of the setting is the machine number.
MACHINE = "machine"


def last_value(scheme: Mapping[str, Any], limit: int) -> int:
    """Return the tag's limit as users set it. `limit`: the last value that the counter may have."""
    return int(scheme.get("limit", HIGHEST if "stride" in scheme else limit))


def countable(scheme: Mapping[str, Any]) -> bool:
    """Whether the tag itself has a counter: it has no parts, and its strategy is `segment`."""
    return strategy(scheme) == SEGMENT and not any(scheme.get(setting) for setting in PARTS)


#: Matches the beginning of an id from `id_after`: count of changes, and name of the mapping from counters to values.
_ID = re.compile(r"[0-9]+-([^-]+)")


def id_after(before: str, *, same_values: bool = False) -> str:
    """Return the id of a scheme that replaces the scheme with id `before` ("" for none).

    The id begins with the count of changes of the tag's scheme: of two ids, the one with the higher count is later. The
    second part names the mapping from counters to values. If `same_values` is True, this part stays the same: each
    counter keeps its value, and Redis may continue the loaded segments under the new id.
    """
    way = _ID.match(before) if same_values else None
    return f"{turn(before) + 1}-{f'{way[1]}-' if way else ''}{fresh_version()}"


def turn(scheme_id: str) -> int:
    """Return how often the scheme was changed: the id begins with this count. 0 if `id_after` did not make the id."""
    times, dash, _ = scheme_id.partition("-")
    return int(times) if dash and times.isascii() and times.isdigit() else 0


def strategy(scheme: Mapping[str, Any]) -> str:
    """Return the name of the strategy in this scheme."""
    return str(scheme.get("strategy", SEGMENT))


def in_true_order(record: Tag) -> Tag:
    """Return the record with its real order: trend, if a strategy without a counter computes the numbers.

    Such numbers increase only within one process. Old records of such tags can have the order strict, because older
    versions did not reject it.
    """
    return record if strategy(record.scheme) == SEGMENT else replace(record, order="trend")


def periods(tag: Tag) -> Periods | None:
    """Return the tag's periods. None if its numbers never restart. Raises ConfigurationError."""
    restart = tag.scheme.get("restart")
    return None if restart in (None, "never") else Periods(str(restart), str(tag.scheme.get("timezone", "UTC")))


def reserved(tag: Tag) -> tuple[int, int]:
    """Return the highest reserved counter value, and the last one that the limit permits.

    If the tag has periods, both are numbers within the period of `max`, counted from 1.
    """
    if periods(tag) is None:
        return tag.max, tag.limit
    return tag.max & SEQ_MOST, min(int(tag.scheme.get("limit", SEQ_MOST)), SEQ_MOST)


def in_period(counter: int, scheme: Mapping[str, Any]) -> str | None:
    """Return a text such as "17 of 2026-11-21": number and period. None if the counter value has no period."""
    if "restart" not in scheme or counter <= SEQ_MOST:
        return None
    named = Periods(str(scheme["restart"]), str(scheme.get("timezone", "UTC")))
    return f"{counter & SEQ_MOST} of {named.name(counter >> PERIOD_BITS)}"


def counted(counter: int, scheme: Mapping[str, Any]) -> str:
    """Return a counter as text, with its period if there is one: "17 of 2026-11-21"."""
    return in_period(counter, scheme) or str(counter)


def spanned(low: int, high: int, scheme: Mapping[str, Any]) -> str:
    """Return the segment (low, high] as text: "1..1000", or if the tag has periods "1..1000 of 2026-11-21"."""
    first, last = counted(low + 1, scheme), counted(high, scheme)
    number, _, period = first.partition(" of ")
    return f"{number}..{last}" if last.endswith(f" of {period}") else f"{first}..{last}"


def lost(issued: int, skipped: int, scheme: Mapping[str, Any]) -> int:
    """Return how many numbers are in issued+1..skipped.

    If the tag has periods, only the numbers in the period of `skipped` count.
    """
    begins = skipped >> PERIOD_BITS << PERIOD_BITS if "restart" in scheme and skipped > SEQ_MOST else 0
    return max(0, skipped - max(issued, begins))


def last_counter(tag: Tag) -> int | None:
    """Return the last counter value that the limit permits in the period of `max`.

    None if the tag has no limit, or has no periods.
    """
    if "limit" not in tag.scheme or periods(tag) is None:
        return None
    return tag.max >> PERIOD_BITS << PERIOD_BITS | reserved(tag)[1]


def without_raising(scheme: Mapping[str, Any], last: int) -> str:
    """Return what to do if the tag's limit cannot be raised. "" if it can. `last`: the limit as users see it."""
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
    """Return the field `until` of a new hash: the end of its period. 2^63-1: the tag has no periods. 0: unknown yet."""
    return HIGHEST if periods(tag) is None else 0
