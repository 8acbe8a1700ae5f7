"""A store of many tags in virtual time: a reservation takes a while, and each write is counted."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from issuer_persistence.ledger import LedgerEntry, Reservation
from issuer_persistence.memory import MemoryStore, _position
from issuer_persistence.records import Tag, TagChanges
from tests.proofs.virtual.turns import Turns

#: The shortest and the longest duration of a reservation, in seconds.
TAKES = 0.005, 0.05

#: How many of a tag's newest entries are put in order. No caller reads more.
NEWEST = 64


class CountingStore(MemoryStore):
    """A memory store with an index of the ledger by tag: in a week, 1000 tags make a million entries."""

    def __init__(self, turns: Turns) -> None:
        super().__init__()
        self._turns = turns
        self._of_tag: dict[str, list[str]] = defaultdict(list)
        #: When each write of a tag began, in virtual seconds.
        self.writes: dict[str, list[float]] = defaultdict(list)
        #: When a tag's step was changed.
        self.steps: dict[str, list[float]] = defaultdict(list)

    def record(self, tag: str) -> Tag:
        """Return the record at once. This is no call of the issuer."""
        return self._tags[tag]

    def history(self, tag: str) -> list[LedgerEntry]:
        """Return the tag's whole ledger, oldest first."""
        return [self._ledger[each] for each in self._of_tag[tag]]

    def newest(self, tag: str) -> LedgerEntry | None:
        """Return the newest entry of the tag's ledger."""
        entries = self._of_tag[tag]
        return self._ledger[entries[-1]] if entries else None

    def enter(self, entry: LedgerEntry) -> None:
        super().enter(entry)
        self._of_tag[entry.tag].append(entry.id)

    def _entries(self, tag: str) -> list[LedgerEntry]:
        newest = map(self._ledger.__getitem__, self._of_tag[tag][-NEWEST:])
        return sorted(newest, key=_position, reverse=True)

    def reserve_checked(self, tag: str, n: int | None, **how: Any) -> Reservation:
        self.writes[tag].append(self._turns.now)
        self._turns.sleep(self._turns.chance.uniform(*TAKES))
        return super().reserve_checked(tag, n, **how)

    def hand_back_checked(
        self, held: Sequence[Reservation], highs: Mapping[str, int], rest: int, *, timeout: float
    ) -> bool:
        self.writes[held[0].tag.tag].append(self._turns.now)
        return super().hand_back_checked(held, highs, rest, timeout=timeout)

    def configure(self, tag: str, changes: TagChanges, *, timeout: float) -> Tag:
        self.writes[tag].append(self._turns.now)
        self.steps[tag].append(self._turns.now)
        return super().configure(tag, changes, timeout=timeout)
