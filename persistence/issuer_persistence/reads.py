"""Calls that only read, each about one tag. A store can answer such calls about many tags by one request."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from issuer_persistence.contract import Store
from issuer_persistence.ledger import LedgerEntry, LedgerPage, Position
from issuer_persistence.records import Tag

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Read(ABC, Generic[T]):
    """A call for `Store.batch`. Its parameters are fields, so that a store can compare calls."""

    tag: str

    @abstractmethod
    def __call__(self, store: Store, timeout: float) -> T:
        """Make the call."""


@dataclass(frozen=True, slots=True)
class ReadTag(Read["Tag | None"]):
    """A call of `Store.get`."""

    def __call__(self, store: Store, timeout: float) -> Tag | None:
        return store.get(self.tag, timeout=timeout)


@dataclass(frozen=True, slots=True)
class ReadLedger(Read["list[LedgerEntry]"]):
    """A call of `Store.ledger`."""

    newest: int

    def __call__(self, store: Store, timeout: float) -> list[LedgerEntry]:
        return store.ledger(self.tag, newest=self.newest, timeout=timeout)


@dataclass(frozen=True, slots=True)
class ReadSegments(Read["LedgerPage"]):
    """A call of `Store.segments`, with the highest numbers first.

    In a batch, the page can have fewer than `count` entries and still have a `last`. Then there is a next page.
    """

    count: int
    beyond: Position | None = None

    def __call__(self, store: Store, timeout: float) -> LedgerPage:
        return store.segments(self.tag, beyond=self.beyond, count=self.count, timeout=timeout)


def alike(calls: Sequence[object]) -> list[Read[Any]]:
    """Return the first of the calls, as many as read the same of different tags, sorted by name of the tag.

    [] if the first call is not a `Read`.
    """
    found: list[Read[Any]] = []
    for call in calls:
        if not isinstance(call, Read):
            break
        if found and (call.tag <= found[-1].tag or replace(call, tag=found[0].tag) != found[0]):
            break
        found.append(call)
    return found
