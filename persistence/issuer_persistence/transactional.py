"""Base class of stores with transactions: a change reads the tag's record, changes it in Python, and writes it.

A store provides `transaction`. `TransactionalStore` uses it for the methods of the contract that change a tag. The
arithmetic is done in Python, because databases treat an integer overflow differently: SQLite turns the integer into a
float.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from functools import lru_cache
from typing import Any

from issuer_persistence.contract import Store
from issuer_persistence.errors import TagMissing
from issuer_persistence.ledger import LedgerEntry, Purpose, Reservation
from issuer_persistence.pruning import Ledger, Pruned, prune
from issuer_persistence.records import FLAGS, SETTINGS, Tag, TagChanges, TagSettings, check_argument, settings_of
from issuer_persistence.scheme_json import frozen, text


class Transaction(Ledger):
    """One transaction, used in a `with` block. If the block raises an error, nothing is changed."""

    @abstractmethod
    def read_store_id(self) -> str:
        """Return the id of the store. "" if the store has no id yet."""

    @abstractmethod
    def read(self, tag: str) -> Tag | None:
        """Return the record of a tag, or None if the tag was never created."""

    @abstractmethod
    def write(self, record: Tag) -> Tag:
        """Create or replace the record of a tag, and return it."""

    @abstractmethod
    def enter(self, entry: LedgerEntry) -> None:
        """Write a new ledger entry."""

    @abstractmethod
    def shorten(self, entry: str, high: int) -> None:
        """Lower the last number of a ledger entry to `high`. `entry`: id of the entry.

        If the last number is lower already, or if there is no such entry, do nothing.
        """

    def inspect(self, record: Tag) -> None:
        """Check the record of a tag before a reservation. Raise an error to reject the reservation."""

    def live(self, tag: str) -> Tag:
        """Return the record of a tag. If the tag was never created, or was deleted, raise TagMissing."""
        found = self.read(tag)
        if found is None:
            raise TagMissing(tag)
        return found.live()


class TransactionalStore(Store):
    """A store that makes each change in a transaction. A reservation and its ledger entry are in one transaction."""

    @abstractmethod
    def transaction(self, timeout: float, *, writes: bool = True) -> AbstractContextManager[Transaction]:
        """Begin a transaction. If the block ends normally, also by `return`, commit. If the block raises, roll back.

        Only one transaction that writes may be open at a time, in all processes together. A further transaction waits,
        but not longer than `timeout` seconds. `writes` is False if the block only reads.
        """

    def store_id(self, *, timeout: float) -> str:
        with self.transaction(timeout, writes=False) as transaction:
            return transaction.read_store_id()

    def create_many(self, settings: Mapping[str, TagSettings], *, timeout: float) -> list[Tag]:
        with self.transaction(timeout) as transaction:
            made = [Tag.made(tag, transaction.read(tag), each) for tag, each in settings.items()]
            return [transaction.write(each) for each in made]

    def get(self, tag: str, *, timeout: float) -> Tag | None:
        with self.transaction(timeout, writes=False) as transaction:
            return transaction.read(tag)

    def reserve_checked(
        self, tag: str, n: int | None, *, purpose: Purpose, at_least: int, exact: bool, timeout: float
    ) -> Reservation:
        with self.transaction(timeout) as transaction:
            before = transaction.live(tag)
            transaction.inspect(before)
            after = transaction.write(before.reserved(n, at_least=at_least, exact=exact))
            entry = purpose.entry(tag, before.max, after.max)
            transaction.enter(entry)
            store_id = transaction.read_store_id()
        return Reservation(after, entry.low, entry.high, entry.id, store_id)

    def hand_back_checked(
        self, held: Sequence[Reservation], highs: Mapping[str, int], rest: int, *, timeout: float
    ) -> bool:
        last = held[-1]
        with self.transaction(timeout) as transaction:
            for entry, high in highs.items():
                transaction.shorten(entry, high)
            now = transaction.read(last.tag.tag)
            if now is None or now.version != last.version or now.max != last.high:
                return False
            transaction.write(now.changed(max=rest))
        return True

    def configure(self, tag: str, changes: TagChanges, *, timeout: float) -> Tag:
        return self.change(tag, timeout, lambda found: found.configured(changes))

    def delete(self, tag: str, *, timeout: float) -> Tag:
        with self.transaction(timeout) as transaction:
            found = transaction.read(tag)
            if found is None:
                raise TagMissing(tag)
            return transaction.write(found.buried())

    def halt(self, tag: str, *, below: int | None = None, timeout: float) -> bool:
        if below is not None:
            check_argument("below", below)
        return self.change(tag, timeout, lambda found: found.stopped(below)).halted

    def recover(self, tag: str, *, at_least: int, timeout: float) -> Tag:
        check_argument("at_least", at_least)
        return self.change(tag, timeout, lambda found: found.recovered(at_least))

    def prune(self, *, before: int, timeout: float) -> Pruned:
        check_argument("before", before)
        with self.transaction(timeout) as transaction:
            return prune(transaction, before)

    def change(self, tag: str, timeout: float, change: Callable[[Tag], Tag]) -> Tag:
        """Replace the record of a tag by what the function `change` returns for it. Return the new record."""
        with self.transaction(timeout) as transaction:
            return transaction.write(change(transaction.live(tag)))


def row_of(columns: Sequence[str], record: Tag) -> list[Any]:
    """Return the values of a record for a row with these columns."""
    return [text(record.scheme) if each == "scheme" else getattr(record, each) for each in columns]


def record_of(columns: Sequence[str], row: Sequence[object]) -> Tag:
    """Return the record in a row with these columns. If it is damaged, raise Corrupt."""
    fields = dict(zip(columns, row, strict=True))
    for flag in FLAGS:
        if fields[flag] in (0, 1) and isinstance(fields[flag], int):
            fields[flag] = bool(fields[flag])
    tag = str(fields["tag"])
    return Tag.checked(tag, fields, _settings(tag, *(fields[name] for name in SETTINGS)))


@lru_cache(maxsize=256, typed=True)
def _settings(tag: str, *values: object) -> dict[str, Any]:
    """Return the checked settings with these values. They seldom change, and to check them takes 50 us."""
    fields = dict(zip(SETTINGS, values, strict=True))
    if isinstance(fields["scheme"], str):
        with suppress(ValueError, RecursionError):  # a scheme that stays a text is rejected by `settings_of`
            fields["scheme"] = json.loads(fields["scheme"])
    found = settings_of(tag, fields)
    return {**found, "scheme": frozen(found["scheme"])}
