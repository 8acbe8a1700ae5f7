"""A store in the memory of the process, for tests. The contract tests compare the other stores with this one."""

from __future__ import annotations

import os
import threading
from bisect import bisect_right, insort
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import islice

from issuer_persistence.errors import Misconfigured, Unconfirmed
from issuer_persistence.facts import StoreFacts
from issuer_persistence.ledger import LedgerEntry, LedgerPage, Position
from issuer_persistence.pruning import Walked
from issuer_persistence.records import Tag, check_argument, fresh_version
from issuer_persistence.transactional import Transaction, TransactionalStore
from issuer_persistence.urls import mask


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A backup of a MemoryStore."""

    tags: Mapping[str, Tag]
    ledger: Mapping[str, LedgerEntry]


class MemoryStore(TransactionalStore, Transaction):
    """A store with its records in a dict. Each method holds the store's lock. When the process ends, all is lost.

    The store object is also the transaction. Writes to a dict cannot fail half way, so there is no rollback.

    In a forked child every method raises Misconfigured, because the child's copy would reserve the parent's ranges
    again.
    """

    shared = False

    def __init__(self, name: str = "") -> None:
        self._name = name
        self._id = fresh_version()
        self._lock = threading.Lock()
        self._process: int | None = os.getpid()
        self._tags: dict[str, Tag] = {}
        #: The names of all tags, also of the deleted ones, sorted.
        self._names: list[str] = []
        self._ledger: dict[str, LedgerEntry] = {}
        self._progress = ""

    @classmethod
    def open(cls, url: str) -> MemoryStore:
        """Return a new store for `memory://`. For `memory://name`, return the store `name` of this process."""
        if mask(url) != url:
            raise Misconfigured(f"{mask(url)}: the name of a store in memory must consist of letters, digits, . and -")
        name = url.partition("://")[2]
        return cls.named(name) if name else cls()

    @classmethod
    def named(cls, name: str) -> MemoryStore:
        """Return the store `name` of this process. The first call creates it."""
        with _naming:
            return _named.setdefault(name, cls(name))

    @contextmanager
    def transaction(self, timeout: float, *, writes: bool = True) -> Iterator[Transaction]:  # noqa: ARG002 - alike
        """See `TransactionalStore.transaction`. The block holds the lock of the store."""
        if self._process != os.getpid():
            raise Misconfigured(
                "a memory store cannot be used in a forked child, because the copy would issue its parent's numbers "
                "again: create it after the fork, or use a store that processes can share"
            )
        if timeout <= 0 or not self._lock.acquire(timeout=timeout):
            raise Unconfirmed(f"the store was busy for {timeout:g} s")
        try:
            yield self
        finally:
            self._lock.release()

    @property
    def url(self) -> str:
        """`memory://`, followed by the name of the store, if any."""
        return f"memory://{self._name}"

    def read_store_id(self) -> str:
        return self._id

    def read(self, tag: str) -> Tag | None:
        return self._tags.get(tag)

    def write(self, record: Tag) -> Tag:
        if record.tag not in self._tags:
            insort(self._names, record.tag)
        self._tags[record.tag] = record
        return record

    def enter(self, entry: LedgerEntry) -> None:
        if entry.id in self._ledger:
            raise Unconfirmed(f"there is a ledger entry with the id {entry.id}")
        self._ledger[entry.id] = entry

    def shorten(self, entry: str, high: int) -> None:
        found = self._ledger.get(entry)
        if found is not None:
            self._ledger[entry] = replace(found, high=min(found.high, high))

    def progress(self) -> str:
        return self._progress

    def note_progress(self, progress: str) -> None:
        self._progress = progress

    def oldest(self, tag: str, beyond: Position | None, count: int) -> list[Walked]:
        every = (Walked(each.tag, each.high, each.low, each.id, each.time) for each in self._ledger.values())
        if beyond is None:
            found = [each for each in every if each.tag > tag]
        else:
            found = [each for each in every if each.tag == tag and each[1:4] > tuple(beyond)]
        return sorted(found)[:count]

    def drop(self, ids: Sequence[str]) -> None:
        for each in ids:
            del self._ledger[each]

    def tags(self, *, after: str | None = None, count: int, timeout: float) -> list[Tag]:
        check_argument("count", count, 1)
        with self.transaction(timeout):
            begin = 0 if after is None else bisect_right(self._names, after)
            following = map(self._tags.__getitem__, islice(self._names, begin, None))
            return list(islice((each for each in following if not each.deleted), count))

    def ledger(self, tag: str, *, newest: int, timeout: float) -> list[LedgerEntry]:
        check_argument("newest", newest)
        with self.transaction(timeout):
            return self._entries(tag)[:newest]

    def segments(
        self, tag: str, *, beyond: Position | None = None, upward: bool = False, count: int, timeout: float
    ) -> LedgerPage:
        check_argument("count", count, 1)
        with self.transaction(timeout):
            found = self._entries(tag)
        if upward:
            found.reverse()
        if beyond is not None:
            found = [each for each in found if (_position(each) > beyond if upward else _position(each) < beyond)]
        return LedgerPage.of([asdict(each) for each in found[:count]], count)

    def entries(self, tag: str, ids: Collection[str], *, timeout: float) -> list[LedgerEntry]:
        with self.transaction(timeout):
            return [self._ledger[each] for each in ids if each in self._ledger and self._ledger[each].tag == tag]

    def latest(self, *, before: int, timeout: float) -> int:  # noqa: ARG002 - only this process writes entries
        return before

    def examine(self, *, timeout: float) -> StoreFacts:
        with self.transaction(timeout):
            return StoreFacts(kind="memory", own_clock=False, lasting=False)

    def _entries(self, tag: str) -> list[LedgerEntry]:
        mine = (each for each in self._ledger.values() if each.tag == tag)
        return sorted(mine, key=_position, reverse=True)

    def after_fork(self) -> None:
        """Make all calls in the child fail: its copy of the records must not be used."""
        self._lock = threading.Lock()
        self._process = None

    def close(self) -> None:
        """Do nothing."""

    def snapshot(self) -> Snapshot:
        """Return a backup of all tags and the ledger."""
        with self._lock:
            return Snapshot(dict(self._tags), dict(self._ledger))

    def restore(self, backup: Snapshot, *, ledger: bool = True) -> None:
        """Restore a backup. With `ledger=False`, only the tags are restored, not the ledger."""
        with self._lock:
            self._tags, self._names = dict(backup.tags), sorted(backup.tags)
            if ledger:
                self._ledger = dict(backup.ledger)


def _position(entry: LedgerEntry) -> Position:
    return entry.high, entry.low, entry.id


_naming = threading.Lock()
_named: dict[str, MemoryStore] = {}
