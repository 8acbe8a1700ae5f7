"""Discrepancies that `verify` can find: each kind of harm with the values that prove it, the process and the time."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar

from issuer.persistence.records import LedgerEntry
from issuer.times import utc


@dataclass(frozen=True, slots=True)
class Discrepancy:
    """A fault of a tag that a healthy issuer never causes, or a part of it that could not be looked at.

    `kind` names it in a few words; str() tells it all.
    """

    kind: ClassVar[str] = "discrepancy"

    tag: str

    @property
    def numbers(self) -> tuple[int, int] | None:
        """The first and the last number concerned, None where it isn't about numbers."""
        return None

    @property
    def entries(self) -> tuple[LedgerEntry, ...]:
        """The ledger entries concerned, with process, host and time."""
        held = (getattr(self, each.name) for each in fields(self))
        return tuple(each for each in held if isinstance(each, LedgerEntry))


@dataclass(frozen=True, slots=True)
class Overlap(Discrepancy):
    """The same numbers were reserved twice: they may have been issued twice. `one` was written first, by its time."""

    kind: ClassVar[str] = "overlap"

    one: LedgerEntry
    other: LedgerEntry

    @property
    def numbers(self) -> tuple[int, int]:
        """The numbers that both hold."""
        return max(self.one.low, self.other.low) + 1, min(self.one.high, self.other.high)

    def __str__(self) -> str:
        first, last = self.numbers
        return f"tag {self.tag!r}: {first}..{last} were reserved twice: {told(self.one)}; {told(self.other)}"


@dataclass(frozen=True, slots=True)
class AboveMax(Discrepancy):
    """A segment above the store's `max`: the store went back in time, and will hand those numbers out again."""

    kind: ClassVar[str] = "above store max"

    entry: LedgerEntry
    max: int

    @property
    def numbers(self) -> tuple[int, int]:
        """Those above `max`."""
        return max(self.entry.low, self.max) + 1, self.entry.high

    def __str__(self) -> str:
        first, last = self.numbers
        return f"tag {self.tag!r}: {first}..{last} are reserved, but the store's max is {self.max}: {told(self.entry)}"


@dataclass(frozen=True, slots=True)
class BelowJournal(Discrepancy):
    """A store whose `max` is below what its journal knows to be reserved: it went back in time."""

    kind: ClassVar[str] = "below the journal"

    max: int
    taken: int

    @property
    def numbers(self) -> tuple[int, int]:
        """Those above `max`."""
        return self.max + 1, self.taken

    def __str__(self) -> str:
        return (
            f"tag {self.tag!r}: the store's max is {self.max}, and its journal knows that all up to {self.taken} are "
            "taken: the store went back in time"
        )


@dataclass(frozen=True, slots=True)
class RedisAboveMax(Discrepancy):
    """A field of the hash above the store's `max`: the store went back in time, or the hash was tampered with."""

    kind: ClassVar[str] = "Redis above store max"

    key: str
    field: str
    value: int
    max: int

    @property
    def numbers(self) -> tuple[int, int]:
        """Those above `max`."""
        return self.max + 1, self.value

    def __str__(self) -> str:
        return f"tag {self.tag!r}: Redis key {self.key}: {self.field} is {self.value}, above the store's max {self.max}"


@dataclass(frozen=True, slots=True)
class OutsideLedger(Discrepancy):
    """Numbers that Redis is about to issue, and that were never reserved: low+1 .. high of buffer 1 or 2."""

    kind: ClassVar[str] = "not in the ledger"

    key: str
    buffer: int
    low: int
    high: int

    @property
    def numbers(self) -> tuple[int, int]:
        """Those of the buffer."""
        return self.low + 1, self.high

    def __str__(self) -> str:
        return (
            f"tag {self.tag!r}: Redis key {self.key}: buffer {self.buffer} holds {self.low + 1}..{self.high}, and the "
            "ledger knows of no reservation of them all"
        )


@dataclass(frozen=True, slots=True)
class DamagedHash(Discrepancy):
    """The hash holds what no script writes."""

    kind: ClassVar[str] = "damaged hash"

    key: str
    problem: str

    def __str__(self) -> str:
        return f"tag {self.tag!r}: Redis key {self.key}: {self.problem}"


@dataclass(frozen=True, slots=True)
class OtherStore(Discrepancy):
    """The hash was armed for another store: two stores on one prefix repeat numbers. `store`, `expected`: their ids."""

    kind: ClassVar[str] = "another store's hash"

    key: str
    store: str
    expected: str

    def __str__(self) -> str:
        return f"tag {self.tag!r}: Redis key {self.key} belongs to store {self.store}, this one is {self.expected}"


@dataclass(frozen=True, slots=True)
class TwoHashes(Discrepancy):
    """A strict tag's segments went to two hashes in turns: its order holds on each, not across them. `one`, `other`."""

    kind: ClassVar[str] = "two hashes in Redis"

    one: LedgerEntry
    other: LedgerEntry

    def __str__(self) -> str:
        return (
            f"tag {self.tag!r} is strict, and its segments go to two hashes in Redis in turns: {told(self.one)}; "
            f"{told(self.other)}. Numbers are unique, but not in order: have all services name the same Redis, "
            "database and prefix"
        )


#: How often a hash must have got segments again, after another one did, to count as one of two in use: one that was
#: armed again may get a last one that was on its way.
AGAIN = 3


class Turns:
    """Finds two hashes that get a tag's segments in turns, in entries that come in order, either way."""

    def __init__(self) -> None:
        self._last: LedgerEntry | None = None
        self._again: dict[str, int] = {}

    def found(self, entry: LedgerEntry) -> tuple[LedgerEntry, LedgerEntry] | None:
        """Look at the next entry: return one of each hash, in order, once it is sure."""
        last = self._last
        if not entry.born or (last is not None and last.born == entry.born):
            return None
        self._last = entry
        self._again[entry.born] = self._again.get(entry.born, -1) + 1
        if last is None or self._again[entry.born] < AGAIN:
            return None
        self._again.clear()
        return (entry, last) if entry.high <= last.low else (last, entry)


@dataclass(frozen=True, slots=True)
class RedisUnseen(Discrepancy):
    """Redis was away: ledger and store were compared without it, which is no proof. `why`: it could not be asked."""

    kind: ClassVar[str] = "Redis not looked at"

    key: str
    why: str

    def __str__(self) -> str:
        return f"tag {self.tag!r}: Redis key {self.key} was not looked at: {self.why}"


@dataclass(frozen=True, slots=True)
class DamagedEntry(Discrepancy):
    """A ledger entry that no store writes, as one whose low lies above its high."""

    kind: ClassVar[str] = "damaged entry"

    problem: str

    def __str__(self) -> str:
        return f"tag {self.tag!r}: the ledger: {self.problem}"


def told(entry: LedgerEntry) -> str:
    """Return the entry in a line: the numbers, the host and process that reserved them, and the reason."""
    return f"{entry.low + 1}..{entry.high} by {entry.host} pid {entry.pid} ({entry.reason}) at {utc(entry.time)}"
