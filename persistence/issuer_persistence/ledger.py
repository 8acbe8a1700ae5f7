"""Reservations, and the ledger: one entry for each reservation."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from issuer_persistence.errors import Corrupt
from issuer_persistence.records import Tag, check_argument, fresh_version, now_ms, number, typed

#: How long ledger entries are kept, in ms: 90 days. The newest entry of each tag is kept for ever.
LEDGER_KEPT = 90 * 24 * 3600 * 1000

#: Maximum length of `application`, the label of a service, in characters.
APPLICATION_MOST = 100


#: Reason of a ledger entry for numbers that another program has taken from a table that it shares with the store.
FOREIGN = "foreign"


@dataclass(frozen=True, slots=True)
class Reservation:
    """A segment that the store has reserved for one caller: the numbers low + 1 .. high.

    Attributes:
        tag: Record of the tag right after the reservation.
        low: The number before the first number of the segment.
        high: Last number of the segment.
        entry: Id of the ledger entry.
        store_id: Id of the store that made the reservation. It can differ from the id that the caller knows, if the
            store was replaced in the meantime.
    """

    tag: Tag
    low: int
    high: int
    entry: str
    store_id: str

    @property
    def version(self) -> str:
        """Version of the record right after this reservation. After a change of the record, its version differs."""
        return self.tag.version


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEntry:
    """A reservation of the numbers low + 1 .. high. If low == high, all numbers were returned.

    Attributes:
        tag: Name of the tag.
        low: The number before the first number reserved.
        high: Last number reserved.
        reason: Purpose of the reservation, such as "load".
        id: Id of the entry.
        time: Time of the reservation, in ms since 1970.
        host: Host name of the process that made the reservation.
        pid: Id of the process that made the reservation.
        application: Label of the service, from the settings of the process. "" in entries of older versions.
        born: Id of the tag's hash in Redis for which the segment was reserved. "" if the segment was not for Redis, and
            in entries of older versions.
    """

    tag: str
    low: int
    high: int
    reason: str
    id: str = field(default_factory=fresh_version)
    time: int = field(default_factory=now_ms)
    host: str = field(default_factory=socket.gethostname)
    pid: int = field(default_factory=os.getpid)
    application: str = ""
    born: str = ""

    @classmethod
    def checked(cls, fields: Mapping[str, object]) -> LedgerEntry:
        """Build an entry from the fields that a store has read. If a field is missing or invalid, raise Corrupt."""
        tag = str(fields.get("tag"))
        entry = cls(
            tag=typed(tag, fields, "tag", str),
            low=number(tag, fields, "low"),
            high=number(tag, fields, "high"),
            reason=typed(tag, fields, "reason", str),
            id=typed(tag, fields, "id", str),
            time=number(tag, fields, "time"),
            host=typed(tag, fields, "host", str),
            pid=number(tag, fields, "pid"),
            application="" if fields.get("application") is None else typed(tag, fields, "application", str),
            born="" if fields.get("born") is None else typed(tag, fields, "born", str),
        )
        if entry.high < entry.low:
            raise Corrupt(tag, f"ledger entry {entry.id}: high {entry.high} is below low {entry.low}")
        return entry

    def holds(self, number: int) -> bool:
        """Return True if the number is in this segment."""
        return self.low < number <= self.high


@dataclass(frozen=True, slots=True)
class Purpose:
    """Purpose of a reservation, for its ledger entry.

    Attributes:
        reason: One word, such as "load".
        application: Label of the service. Only the first 100 characters are kept, and invalid characters are replaced.
        born: Id of the tag's hash in Redis into which the segment will be loaded. "" if the segment is not for Redis.
        id: Id of the ledger entry. "" means a new one. If the ledger has an entry with this id, nobody gets numbers.
    """

    reason: str
    application: str = ""
    born: str = ""
    id: str = ""

    def __post_init__(self) -> None:
        label = self.application[:APPLICATION_MOST].encode(errors="replace").decode()
        object.__setattr__(self, "application", label)

    def entry(self, tag: str, low: int, high: int) -> LedgerEntry:
        """Return the ledger entry for a reservation of the numbers low + 1 .. high."""
        return LedgerEntry(
            tag=tag,
            low=low,
            high=high,
            reason=self.reason,
            id=self.id or fresh_version(),
            application=self.application,
            born=self.born,
        )


#: Position of an entry in the sorted ledger: high, low and id of the entry.
Position = tuple[Any, Any, Any]


@dataclass(frozen=True, slots=True)
class LedgerPage:
    """One page of a tag's ledger.

    Attributes:
        entries: Entries of the page, sorted.
        damaged: Errors of the entries that cannot be read. Such entries are not in `entries`.
        last: Position of the last entry, to pass as `beyond` for the next page. None if there is no next page.
    """

    entries: list[LedgerEntry]
    damaged: list[Corrupt]
    last: Position | None

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, object]], count: int) -> LedgerPage:
        """Build a page from the rows that a store has read.

        `count` is the number of rows requested. If there are fewer rows, the page is the last one.
        """
        entries, damaged = [], []
        for row in rows:
            try:
                entries.append(LedgerEntry.checked(row))
            except Corrupt as error:
                damaged.append(error)
        end = rows[-1] if len(rows) == count else None
        return cls(entries, damaged, None if end is None else (end.get("high"), end.get("low"), end.get("id")))


def shortened(held: Sequence[Reservation], used: int) -> tuple[int, dict[str, int]]:
    """Return the values that the store must set when the numbers after `used` are returned.

    The result is the new `max` of the tag, and the new `high` of each ledger entry, by the id of the entry.

    Args:
        held: Contiguous reservations of one tag, the oldest first.
        used: Last number used. If it is lower than the `low` of the first reservation, this `low` is used instead.

    Raises:
        ValueError: The reservations are not contiguous, or `used` is higher than the end of the first reservation.
    """
    if not held:
        raise ValueError("nothing to return")
    for older, newer in pairwise(held):
        if older.tag.tag != newer.tag.tag or older.high != newer.low:
            raise ValueError(f"({older.low}, {older.high}] and ({newer.low}, {newer.high}] are not contiguous")
    check_argument("used", used)
    if used > held[0].high:
        raise ValueError(f"used {used} is above the first reservation, ({held[0].low}, {held[0].high}]")
    rest = max(used, held[0].low)
    return rest, {each.entry: max(rest, each.low) for each in held}
