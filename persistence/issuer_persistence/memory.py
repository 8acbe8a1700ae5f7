"""A store in this process's memory: for tests, and as the model that the other stores are compared with."""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from issuer_persistence.contract import Store
from issuer_persistence.errors import Misconfigured, TagMissing, Unconfirmed
from issuer_persistence.facts import StoreFacts
from issuer_persistence.ledger import LedgerEntry, LedgerPage, Position, Purpose, Reservation
from issuer_persistence.records import Tag, TagChanges, TagSettings, check_argument, fresh_version
from issuer_persistence.urls import mask

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that a MemoryStore held at one moment: a backup."""

    tags: Mapping[str, Tag]
    ledger: Mapping[str, LedgerEntry]


class MemoryStore(Store):
    """Records in a dict, every method under one lock. Nothing survives the process.

    A forked child has a copy, which would hand out its parent's ranges again: there every method raises Misconfigured.
    """

    shared = False

    def __init__(self, name: str = "") -> None:
        self._name = name
        self._id = fresh_version()
        self._lock = threading.Lock()
        self._process: int | None = os.getpid()
        self._tags: dict[str, Tag] = {}
        self._ledger: dict[str, LedgerEntry] = {}

    @classmethod
    def open(cls, url: str) -> MemoryStore:
        """Return a new store for memory://, the same one for the whole process for memory://name."""
        if mask(url) != url:
            raise Misconfigured(f"{mask(url)}: the name of a store in memory must consist of letters, digits, . and -")
        name = url.partition("://")[2]
        return cls.named(name) if name else cls()

    @classmethod
    def named(cls, name: str) -> MemoryStore:
        """Return the store of that name, the same one for the whole process; made when first asked for."""
        with _naming:
            return _named.setdefault(name, cls(name))

    @contextmanager
    def _locked(self, timeout: float) -> Iterator[None]:
        if self._process != os.getpid():
            raise Misconfigured(
                "a memory store cannot be used in a forked child, because the copy would issue its parent's numbers "
                "again: create it after the fork, or use a store that processes can share"
            )
        if timeout <= 0 or not self._lock.acquire(timeout=timeout):
            raise Unconfirmed(f"the store was busy for {timeout:g} s")
        try:
            yield
        finally:
            self._lock.release()

    def _live(self, tag: str) -> Tag:
        found = self._tags.get(tag)
        if found is None:
            raise TagMissing(tag)
        return found.live()

    def _put(self, record: Tag) -> Tag:
        self._tags[record.tag] = record
        return record

    @property
    def url(self) -> str:
        """`memory://`, and the name if it has one."""
        return f"memory://{self._name}"

    def store_id(self, *, timeout: float) -> str:
        """See `Store.store_id`."""
        with self._locked(timeout):
            return self._id

    def create(self, tag: str, settings: TagSettings, *, timeout: float) -> Tag:
        """See `Store.create`."""
        with self._locked(timeout):
            found = self._tags.get(tag)
            return self._put(Tag.made(tag, found, settings))

    def get(self, tag: str, *, timeout: float) -> Tag | None:
        """See `Store.get`."""
        with self._locked(timeout):
            return self._tags.get(tag)

    def tags(self, *, timeout: float) -> list[Tag]:
        """See `Store.tags`."""
        with self._locked(timeout):
            return sorted((each for each in self._tags.values() if not each.deleted), key=lambda each: each.tag)

    def reserve_checked(
        self, tag: str, n: int | None, *, purpose: Purpose, at_least: int, exact: bool, timeout: float
    ) -> Reservation:
        """See `Store.reserve_checked`."""
        with self._locked(timeout):
            before = self._live(tag)
            after = self._put(before.reserved(n, at_least=at_least, exact=exact))
            entry = purpose.entry(tag, before.max, after.max)
            self._ledger[entry.id] = entry
            return Reservation(after, before.max, after.max, entry.id)

    def hand_back_checked(
        self, held: Sequence[Reservation], highs: Mapping[str, int], rest: int, *, timeout: float
    ) -> bool:
        """See `Store.hand_back_checked`."""
        last = held[-1]
        with self._locked(timeout):
            for entry, high in highs.items():
                if entry in self._ledger:
                    self._ledger[entry] = replace(self._ledger[entry], high=min(self._ledger[entry].high, high))
            now = self._tags.get(last.tag.tag)
            if now is None or now.version != last.version or now.max != last.high:
                return False
            self._put(now.changed(max=rest))
            return True

    def configure(self, tag: str, changes: TagChanges, *, timeout: float) -> Tag:
        """See `Store.configure`."""
        with self._locked(timeout):
            return self._put(self._live(tag).configured(changes))

    def delete(self, tag: str, *, timeout: float) -> Tag:
        """See `Store.delete`."""
        with self._locked(timeout):
            found = self._tags.get(tag)
            if found is None:
                raise TagMissing(tag)
            return self._put(found.buried())

    def halt(self, tag: str, *, below: int | None = None, timeout: float) -> bool:
        """See `Store.halt`."""
        if below is not None:
            check_argument("below", below)
        with self._locked(timeout):
            return self._put(self._live(tag).stopped(below)).halted

    def recover(self, tag: str, *, at_least: int, timeout: float) -> Tag:
        """See `Store.recover`."""
        check_argument("at_least", at_least)
        with self._locked(timeout):
            return self._put(self._live(tag).recovered(at_least))

    def ledger(self, tag: str, *, newest: int, timeout: float) -> list[LedgerEntry]:
        """See `Store.ledger`."""
        check_argument("newest", newest)
        with self._locked(timeout):
            return self._entries(tag)[:newest]

    def segments(
        self, tag: str, *, beyond: Position | None = None, upward: bool = False, count: int, timeout: float
    ) -> LedgerPage:
        """See `Store.segments`."""
        check_argument("count", count, 1)
        with self._locked(timeout):
            found = self._entries(tag)
        if upward:
            found.reverse()
        if beyond is not None:
            found = [each for each in found if (_position(each) > beyond if upward else _position(each) < beyond)]
        return LedgerPage.of([asdict(each) for each in found[:count]], count)

    def entries(self, tag: str, ids: Collection[str], *, timeout: float) -> list[LedgerEntry]:
        """See `Store.entries`."""
        with self._locked(timeout):
            return [self._ledger[each] for each in ids if each in self._ledger and self._ledger[each].tag == tag]

    def prune(self, *, before: int, timeout: float) -> int:
        """See `Store.prune`."""
        check_argument("before", before)
        with self._locked(timeout):
            kept = {self._entries(tag)[0].id for tag in {each.tag for each in self._ledger.values()}}
            old = [each.id for each in self._ledger.values() if each.time < before and each.id not in kept]
            for entry in old:
                del self._ledger[entry]
            return len(old)

    def examine(self, *, timeout: float) -> StoreFacts:
        """See `Store.examine`."""
        with self._locked(timeout):
            return StoreFacts(kind="memory", own_clock=False, lasting=False)

    def _entries(self, tag: str) -> list[LedgerEntry]:
        mine = (each for each in self._ledger.values() if each.tag == tag)
        return sorted(mine, key=_position, reverse=True)

    def after_fork(self) -> None:
        """Refuse from now on: a copy of the parent's records is no authority."""
        self._lock = threading.Lock()
        self._process = None

    def close(self) -> None:
        """Nothing was opened."""

    def snapshot(self) -> Snapshot:
        """Take a backup: all tags and the ledger as they stand."""
        with self._lock:
            return Snapshot(dict(self._tags), dict(self._ledger))

    def restore(self, backup: Snapshot, *, ledger: bool = True) -> None:
        """Go back in time, as a restored database does. With `ledger=False` the ledger stays as it is."""
        with self._lock:
            self._tags = dict(backup.tags)
            if ledger:
                self._ledger = dict(backup.ledger)


def _position(entry: LedgerEntry) -> Position:
    return entry.high, entry.low, entry.id


_naming = threading.Lock()
_named: dict[str, MemoryStore] = {}
