"""Discrepancies that `verify` reports: kind, numbers and values, and the processes and times involved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from issuer.advice import Words, filled
from issuer.times import utc
from issuer_persistence.errors import Corrupt
from issuer_persistence.ledger import LedgerEntry

#: Kinds of discrepancies. The command line and HTTP show these texts.
Kind = Literal[
    "overlap",
    "above store max",
    "below the journal",
    "Redis above store max",
    "not in the ledger",
    "damaged hash",
    "another store's hash",
    "two hashes in Redis",
    "damaged entry",
    "damaged record",
    "Redis not looked at",
]

#: The kind of a discrepancy that says that Redis was not available. All other kinds are problems of the tag.
UNSEEN: Final = "Redis not looked at"


@dataclass(frozen=True, slots=True)
class Meaning:
    """Meaning of a kind of discrepancy. `check`: its check in `doctor`. `why`: consequence. `advice`: see Finding."""

    check: str
    why: str
    advice: str


_BEHIND = Meaning(
    "tag-store-behind",
    "The store was restored from a backup, or lost writes. It would reserve these numbers again.",
    "Run {do:recover}.",
)
MEANINGS: Final[Mapping[Kind, Meaning]] = {
    "overlap": Meaning(
        "tag-overlap",
        "These numbers may have been issued twice: the store was restored or copied, or a program ignores its lock.",
        "Look for these numbers in your tables. Then run {do:recover at_least=N}, where N is the highest number there.",
    ),
    "above store max": _BEHIND,
    "below the journal": _BEHIND,
    "Redis above store max": _BEHIND,
    "not in the ledger": Meaning(
        "tag-not-in-ledger",
        "The store never reserved these numbers, so others could get them, too. Or entries of the ledger were deleted.",
        "Run {do:recover}, which skips these numbers. Then find out what writes to the hash or deletes the entries.",
    ),
    "damaged hash": Meaning(
        "tag-corrupt",
        "To be safe, every draw is rejected with CorruptState, and the hash is left as it is.",
        "Look at the hash with HGETALL, then run {do:recover}.",
    ),
    "another store's hash": Meaning(
        "tag-two-stores",
        "Two stores use the same prefix in this Redis, so both would reserve the same numbers. Draws with this store "
        "are rejected with ForeignHash, except in a process that started while its store was unavailable.",
        "Give each store its own prefix. If numbers were drawn from this hash for users of this store, or if this "
        "store replaces the other one, first run {do:prefix='NEW' recover at_least=N}. N is the highest number in the "
        "hash, or the max of the other store.",
    ),
    "two hashes in Redis": Meaning(
        "tag-two-hashes",
        "Services draw from two Redis servers, databases or prefixes, or from two masters after a network split. The "
        "numbers are unique, but a later call can get a lower number.",
        "Set the same Redis, database and prefix for all services. `issuer config` shows those settings.",
    ),
    "damaged entry": Meaning(
        "tag-damaged-entry",
        "The issuer never writes such an entry. Its numbers cannot be compared with those of other reservations.",
        "Correct or delete the entry in the store. A backup may show what it was.",
    ),
    "damaged record": Meaning(
        "tag-damaged-record",
        "The issuer never writes such a record. No number of the tag can be reserved.",
        "Correct the record in the store. A backup may show what it was. Then run {do:recover}.",
    ),
    UNSEEN: Meaning("redis-reachable", "Only the ledger and the store were compared.", "Start Redis, and check again."),
}


@dataclass(frozen=True, slots=True)
class Discrepancy:
    """A fault that a healthy issuer never causes, or a check that was not possible. `str()` describes it in full.

    Attributes:
        tag: Name of the tag.
        kind: Kind of discrepancy, for programs. "overlap": two ledger entries contain the same numbers, which may have
            been issued twice. "above store max": a segment ends above the store's `max`, so the store has lost changes
            and would reserve these numbers again. "below the journal": the store's journal has recorded higher numbers
            than `max`. "Redis above store max": a number in Redis is higher than `max`. "not in the ledger": Redis
            holds numbers that were never reserved. "damaged hash", "damaged entry", "damaged record": the Redis
            hash, a ledger entry or the tag's record contains something that the issuer never writes. "another store's
            hash": two stores share one prefix in Redis, and would issue duplicates. "two hashes in Redis": segments of
            a strict tag are loaded into two Redis hashes in turns, so that numbers are in order only within each hash.
            "Redis not looked at": Redis could not be reached, so only the ledger and the store were compared.
        problem: Description without the name of the tag.
        numbers: First and last number concerned. None if no numbers are concerned.
        entries: Ledger entries concerned, with process, host and time, the older one first.
        values: Values that prove the discrepancy, by name, such as the store's `max`, or the `key` of the Redis hash.
    """

    tag: str
    kind: Kind
    problem: str
    numbers: tuple[int, int] | None = None
    entries: tuple[LedgerEntry, ...] = ()
    values: Mapping[str, str | int] = field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        return f"tag {self.tag!r}: {self.problem}"

    def told(self, words: Words) -> str:
        """Return the recommended action in the words of one interface: Python, command line or HTTP."""
        return filled(MEANINGS[self.kind].advice, words, self.tag)


#: A ledger entry contains the id of the Redis hash for which its segment was reserved: `born`. If the id changes back
#: to an earlier one this many times, two hashes are in use. One or two such changes prove nothing: when a hash is
#: replaced, the last segment for the old hash may be reserved late.
AGAIN = 3


class Turns:
    """Detects from the ledger that the segments of a tag are loaded into two Redis hashes in turns.

    This happens if services use two Redis servers, databases or prefixes, or two masters after a network split.

    `found` must receive the ledger entries of the tag in increasing or decreasing order of their numbers.
    """

    def __init__(self) -> None:
        self._last: LedgerEntry | None = None
        self._again: dict[str, int] = {}

    def found(self, entry: LedgerEntry) -> tuple[LedgerEntry, LedgerEntry] | None:
        """Add the next entry. If the entries prove that two hashes are in use, return an entry of each hash.

        The entry with the lower numbers comes first.
        """
        last = self._last
        if not entry.born or (last is not None and last.born == entry.born):
            return None
        self._last = entry
        self._again[entry.born] = self._again.get(entry.born, -1) + 1
        if last is None or self._again[entry.born] < AGAIN:
            return None
        self._again.clear()
        return (entry, last) if entry.high <= last.low else (last, entry)


def described(entry: LedgerEntry) -> str:
    """Describe a ledger entry in a line of text: numbers, host, process, reason and time of the reservation."""
    by = f"{entry.host} pid {entry.pid}" if entry.host else "another program on this table"
    return f"{entry.low + 1}..{entry.high} by {by} ({entry.reason}) at {utc(entry.time)}"


def damaged(error: Corrupt) -> Discrepancy:
    return Discrepancy(error.tag, "damaged record", f"the record in the store: {error.problem}")
