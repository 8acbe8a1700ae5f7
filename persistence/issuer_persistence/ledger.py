"""Reservations, and the ledger: one entry for each reservation."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from issuer_persistence.errors import Corrupt
from issuer_persistence.records import check_argument, fresh_version, now_ms, number, typed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from issuer_persistence.records import Tag

#: Ledger entries are kept for 90 days, in ms. The newest entry of each tag is kept for ever.
LEDGER_KEPT = 90 * 24 * 3600 * 1000

#: Longest label of a service, in characters.
APPLICATION_MOST = 100


@dataclass(frozen=True, slots=True)
class Reservation:
    """A segment that the store reserved for one caller.

    Attributes:
        tag: Record of the tag right after the reservation.
        low: The number before the first one.
        high: Last number.
        entry: Id of the ledger entry.
    """

    tag: Tag
    low: int
    high: int
    entry: str

    @property
    def version(self) -> str:
        """Version of the record right after this reservation. `hand_back` checks that the record still has it."""
        return self.tag.version


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEntry:
    """A reservation of the numbers low + 1 .. high. If low == high, all of them were returned.

    Attributes:
        tag: Name of the tag.
        low: The number before the first one.
        high: Last number.
        reason: Purpose of the reservation, such as "load".
        id: Id of the entry.
        time: Time of the reservation, in ms since 1970.
        host: Host name of the process that reserved it.
        pid: Id of that process.
        application: Label of the service, from the settings of that process. "" in entries of older versions.
        born: Id of the tag's state in Redis for which the segment was reserved. "" if it was not reserved for Redis,
            and in entries of older versions.
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
        """Return the entry for the fields that a store holds.

        Raises:
            Corrupt: A field is missing, of another type or out of its range.
        """
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
    """Purpose of a reservation. The ledger entry of the reservation has these values.

    Attributes:
        reason: One word, such as "load".
        application: Label of the service. The first 100 characters are kept, and invalid characters are replaced.
        born: Id of the tag's state in Redis into which the segment will be loaded. "" if it will not be loaded into
            Redis.
    """

    reason: str
    application: str = ""
    born: str = ""

    def __post_init__(self) -> None:
        """Shorten the label."""
        label = self.application[:APPLICATION_MOST].encode(errors="replace").decode()
        object.__setattr__(self, "application", label)

    def entry(self, tag: str, low: int, high: int) -> LedgerEntry:
        """Return the ledger entry for a reservation of the numbers low + 1 .. high."""
        return LedgerEntry(
            tag=tag, low=low, high=high, reason=self.reason, application=self.application, born=self.born
        )


#: Position of an entry in the order of the ledger: its high, low and id.
Position = tuple[Any, Any, Any]


@dataclass(frozen=True, slots=True)
class LedgerPage:
    """One page of a tag's ledger.

    Attributes:
        entries: Entries in order.
        damaged: Errors for entries that cannot be read. Such entries are not in `entries`.
        last: Position to pass as `beyond` for the next page. None if this is the final page.
    """

    entries: list[LedgerEntry]
    damaged: list[Corrupt]
    last: Position | None

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, object]], count: int) -> LedgerPage:
        """Return the page for the rows that a store holds. `count` is the number of rows requested."""
        entries, damaged = [], []
        for row in rows:
            try:
                entries.append(LedgerEntry.checked(row))
            except Corrupt as error:
                damaged.append(error)
        end = rows[-1] if len(rows) == count else None
        return cls(entries, damaged, None if end is None else (end.get("high"), end.get("low"), end.get("id")))


def shortened(held: Sequence[Reservation], used: int) -> tuple[int, dict[str, int]]:
    """Return the new `max`, and the new high of each entry by id, after numbers above `used` are returned.

    Args:
        held: Contiguous reservations of one tag, the oldest first.
        used: Last number used. If it is lower than the `low` of the first reservation, this `low` is used instead.

    Raises:
        ValueError: The reservations are not contiguous, or `used` is higher than the first reservation.
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
