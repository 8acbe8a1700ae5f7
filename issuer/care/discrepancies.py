"""Discrepancies that `verify` reports: the kind, the values that prove it, the processes and times involved."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar

from issuer.times import utc
from issuer_persistence.records import LedgerEntry


@dataclass(frozen=True, slots=True)
class Discrepancy:
    """A fault that a healthy issuer never causes, or a check that was not possible. `str()` describes it in full.

    Attributes:
        kind: Kind of discrepancy in a few words.
        tag: Name of the tag.
    """

    kind: ClassVar[str] = "discrepancy"

    tag: str

    @property
    def numbers(self) -> tuple[int, int] | None:
        """First and last number concerned. None if no numbers are concerned."""
        return None

    @property
    def entries(self) -> tuple[LedgerEntry, ...]:
        """Ledger entries concerned, with process, host and time."""
        held = (getattr(self, each.name) for each in fields(self))
        return tuple(each for each in held if isinstance(each, LedgerEntry))


@dataclass(frozen=True, slots=True)
class Overlap(Discrepancy):
    """Two ledger entries contain the same numbers. These may have been issued twice.

    Attributes:
        one: Older entry.
        other: Newer entry.
    """

    kind: ClassVar[str] = "overlap"

    one: LedgerEntry
    other: LedgerEntry

    @property
    def numbers(self) -> tuple[int, int]:
        """First and last number that both entries contain."""
        return max(self.one.low, self.other.low) + 1, min(self.one.high, self.other.high)

    def __str__(self) -> str:
        first, last = self.numbers
        return f"tag {self.tag!r}: {first}..{last} were reserved twice: {told(self.one)}; {told(self.other)}"


@dataclass(frozen=True, slots=True)
class AboveMax(Discrepancy):
    """A segment has numbers higher than the store's `max`. The store lost changes, and would reserve them again.

    Attributes:
        entry: Ledger entry of the segment.
        max: Highest number reserved according to the store.
    """

    kind: ClassVar[str] = "above store max"

    entry: LedgerEntry
    max: int

    @property
    def numbers(self) -> tuple[int, int]:
        """First and last number of the segment that are above `max`."""
        return max(self.entry.low, self.max) + 1, self.entry.high

    def __str__(self) -> str:
        first, last = self.numbers
        return f"tag {self.tag!r}: {first}..{last} are reserved, but the store's max is {self.max}: {told(self.entry)}"


@dataclass(frozen=True, slots=True)
class BelowJournal(Discrepancy):
    """The store's journal has recorded numbers higher than the store's `max`. The store lost changes.

    Attributes:
        max: Highest number reserved according to the store.
        taken: Highest number reserved according to the journal.
    """

    kind: ClassVar[str] = "below the journal"

    max: int
    taken: int

    @property
    def numbers(self) -> tuple[int, int]:
        """First and last number above `max`, up to `taken`."""
        return self.max + 1, self.taken

    def __str__(self) -> str:
        return (
            f"tag {self.tag!r}: the store's max is {self.max}, but its journal records numbers up to {self.taken} as "
            "reserved: the store has lost changes"
        )


@dataclass(frozen=True, slots=True)
class RedisAboveMax(Discrepancy):
    """A number in Redis is higher than the store's `max`. The store lost changes, or the Redis hash was modified.

    Attributes:
        key: Key of the hash.
        field: Field of the hash.
        value: Value of the field.
        max: Highest number reserved according to the store.
    """

    kind: ClassVar[str] = "Redis above store max"

    key: str
    field: str
    value: int
    max: int

    @property
    def numbers(self) -> tuple[int, int]:
        """First and last number above `max`, up to `value`."""
        return self.max + 1, self.value

    def __str__(self) -> str:
        return f"tag {self.tag!r}: Redis key {self.key}: {self.field} is {self.value}, above the store's max {self.max}"


@dataclass(frozen=True, slots=True)
class OutsideLedger(Discrepancy):
    """Redis holds numbers that were never reserved, according to the ledger.

    Attributes:
        key: Key of the hash.
        buffer: Segment in Redis that holds the numbers: 1 is the current segment, 2 the next one.
        low: Number just below the first one.
        high: Last number.
    """

    kind: ClassVar[str] = "not in the ledger"

    key: str
    buffer: int
    low: int
    high: int

    @property
    def numbers(self) -> tuple[int, int]:
        """First and last number that Redis holds in this segment."""
        return self.low + 1, self.high

    def __str__(self) -> str:
        return (
            f"tag {self.tag!r}: Redis key {self.key}: buffer {self.buffer} holds {self.low + 1}..{self.high}, but "
            "the ledger does not have reservations of all of them"
        )


@dataclass(frozen=True, slots=True)
class DamagedHash(Discrepancy):
    """The Redis hash has content that no script writes.

    Attributes:
        key: Key of the hash.
        problem: Description of the damage.
    """

    kind: ClassVar[str] = "damaged hash"

    key: str
    problem: str

    def __str__(self) -> str:
        return f"tag {self.tag!r}: Redis key {self.key}: {self.problem}"


@dataclass(frozen=True, slots=True)
class OtherStore(Discrepancy):
    """The Redis hash belongs to another store. Two stores that share one prefix would issue duplicates.

    Attributes:
        key: Key of the hash.
        store: Id of the store that the hash belongs to.
        expected: Id of this store.
    """

    kind: ClassVar[str] = "another store's hash"

    key: str
    store: str
    expected: str

    def __str__(self) -> str:
        return f"tag {self.tag!r}: Redis key {self.key} belongs to store {self.store}, this one is {self.expected}"


@dataclass(frozen=True, slots=True)
class TwoHashes(Discrepancy):
    """Segments of a strict tag are loaded into two Redis hashes in turns. Numbers are in order only within each hash.

    Attributes:
        one: Ledger entry of a segment for one hash.
        other: Ledger entry of a segment for the other hash.
    """

    kind: ClassVar[str] = "two hashes in Redis"

    one: LedgerEntry
    other: LedgerEntry

    def __str__(self) -> str:
        return (
            f"tag {self.tag!r} is strict, but its segments are loaded into two hashes in Redis in turns: "
            f"{told(self.one)}; {told(self.other)}. Numbers are unique, but not in order: configure the same Redis, "
            "database and prefix for all services"
        )


#: How often a hash must have got segments again, after another one did, to count as one of two in use: one that was
#: armed again may get a last one that was on its way.
AGAIN = 3


class Turns:
    """Search for two hashes into which a tag's segments are loaded in turns.

    The ledger entries must come in increasing or decreasing order.
    """

    def __init__(self) -> None:
        self._last: LedgerEntry | None = None
        self._again: dict[str, int] = {}

    def found(self, entry: LedgerEntry) -> tuple[LedgerEntry, LedgerEntry] | None:
        """Take the next entry. When two hashes are certain, return an entry of each, the lower one first."""
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
    """Redis could not be reached, so the ledger and the store were compared without it.

    Attributes:
        key: Key of the hash.
        why: Why Redis could not be queried, as text.
    """

    kind: ClassVar[str] = "Redis not looked at"

    key: str
    why: str

    def __str__(self) -> str:
        return f"tag {self.tag!r}: Redis key {self.key} could not be read: {self.why}"


@dataclass(frozen=True, slots=True)
class DamagedEntry(Discrepancy):
    """A ledger entry has content that no store writes, such as a low above its high.

    Attributes:
        problem: Description of the damage.
    """

    kind: ClassVar[str] = "damaged entry"

    problem: str

    def __str__(self) -> str:
        return f"tag {self.tag!r}: the ledger: {self.problem}"


def told(entry: LedgerEntry) -> str:
    """Return the entry as a line of text: the numbers, the host and process that reserved them, and the reason."""
    return f"{entry.low + 1}..{entry.high} by {entry.host} pid {entry.pid} ({entry.reason}) at {utc(entry.time)}"
