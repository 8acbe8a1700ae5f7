"""The contract of a store: the only authority that hands out ranges.

Rules that hold for every method of every store:

* **timeout** is in seconds, > 0, and bounds the whole call; past it `Unavailable` is raised. What was asked may still
  take effect later, so a reservation is usable only if the call returned normally.
* An argument outside its range is a ValueError, before anything was asked; a setting outside its range can't even be
  put into a `TagSettings` or a `TagChanges`.
* Every method may be called from several threads at once, and from several processes on the same store.
* Only the errors of `issuer.persistence.errors` leave a store; the driver's own error is chained as the cause.
* A call that raises anything but `Unavailable` has changed nothing.
* Every change writes a fresh random `version` and the `timestamp`.
* Numbers are exact integers in 0..2^63-1, and are checked to be integers when they are read.
* A tag is never removed: deleting leaves a tombstone.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from issuer.persistence.errors import Unavailable
from issuer.persistence.records import StoreFacts, Upgrade

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from issuer.persistence.records import LedgerEntry, LedgerPage, Position, Reservation, Tag, TagChanges, TagSettings


class Deadline:
    """The moment, `timeout` seconds from now, at which a call gives up."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._end = time.monotonic() + timeout

    def left(self) -> float:
        """Seconds left, > 0. Unavailable if there are none."""
        left = self._end - time.monotonic()
        if left <= 0:
            raise Unavailable(f"not done within {self._timeout:g} s")
        return left


class Store(ABC):
    """Keeps `max` and `step` of each tag durably, and hands out ranges. See the rules at the top of the module."""

    #: Whether several processes, on this machine or others, may share it. False: `memory://`.
    shared: bool = True

    @property
    @abstractmethod
    def url(self) -> str:
        """The store's address, without its secrets, for messages and `issuer config`."""

    @abstractmethod
    def store_id(self, *, timeout: float) -> str:
        """Return the random id that the store was given at its first write; "" if there was none.

        Made by `records.fresh_version`: what has another form in a tag's hash is taken for garbage, not for an id.

        Raises Misconfigured if a newer version of this program wrote the schema.
        """

    def made_id(self, *, timeout: float) -> str:
        """Return the id of the store, which is made if there was no write yet."""
        deadline = Deadline(timeout)
        found = self.store_id(timeout=deadline.left())
        if not found:
            self.upgrade(timeout=deadline.left())
            found = self.store_id(timeout=deadline.left())
        return found

    @abstractmethod
    def create(self, tag: str, settings: TagSettings, *, timeout: float) -> Tag:
        """Make a tag whose first number is `above` + 1. Twice at once gives one tag and one TagPresent.

        LeaseOnStrict if `lease` is above 0 and the order strict. A tombstone comes back to life with the higher of
        `above` and its own `max`, so that its numbers go on above, and with the settings given now; if it was halted it
        still is. LimitHit if that `max` leaves no number below `limit`.

        SchemeMismatch if `scheme` makes values in another way than the tombstone's: another strategy, restart,
        scramble, stride, shards or cycle (with its start and limit). Else it is kept with the tombstone's `id`.
        """

    @abstractmethod
    def get(self, tag: str, *, timeout: float) -> Tag | None:
        """Return the record, a tombstone included (`deleted`), or None if the tag was never made."""

    @abstractmethod
    def tags(self, *, timeout: float) -> list[Tag]:
        """All live tags, by name."""

    @abstractmethod
    def reserve(
        self,
        tag: str,
        n: int | None,
        *,
        at_least: int = 0,
        exact: bool = False,
        reason: str,
        application: str = "",
        born: str = "",
        timeout: float,
    ) -> Reservation:
        """Move `max` up by n, atomically, and write the ledger entry: the caller alone owns (low, high].

        `n` None: the tag's `step` x `ahead`, as both stand at the moment of the reservation. Near the limit the segment
        is shorter, unless `exact` (then LimitHit). Raises TagMissing, Halted, LimitHit, Corrupt, and MaxBehind if `max`
        is below `at_least`, a number that the caller knows to be taken. Checks and change are one atomic step.
        `application`: the label of the service, for the ledger; its first 100 characters are kept. `born`: of
        the hash in Redis that the segment is for, the same; "" if it is for none.
        """

    @abstractmethod
    def hand_back(self, held: Sequence[Reservation], used: int, *, timeout: float) -> bool:
        """Give back (used, held[-1].high]: contiguous reservations of one tag, oldest first, used in 0..held[0].high.

        Never more than was held: a `used` below held[0].low counts as held[0].low. The caller must have forgotten the
        numbers before the call, and must never have shown them to anyone. First the ledger entries are shortened, each
        by its id; then `max` goes down to `used` if both `max` and `version` are still what the last reservation left.
        False, and a gap, if another caller reserved since. `Unavailable`: in doubt, it counts as handed back.
        """

    @abstractmethod
    def configure(self, tag: str, changes: TagChanges, *, timeout: float) -> Tag:
        """Change what is not None. `raise_to` lifts `max` to at least that, never lowers it.

        `scheme` takes the place of the whole scheme. `seen`: VersionMoved unless that is the record's version still, at
        the moment of the change; every reservation moves it. A caller that makes a scheme of the one before must give
        it, else another caller's change in between is lost.

        Once a tag has a `lease` it can be changed, to 0 too, but not unsaid. LeaseOnStrict if it is above 0 and the tag
        strict. LimitTooLow if the limit that results lies below the `max` that results. TagMissing.
        """

    @abstractmethod
    def delete(self, tag: str, *, timeout: float) -> Tag:
        """Leave a tombstone and return it; the tombstone as it is if there was one. TagMissing if never made."""

    @abstractmethod
    def halt(self, tag: str, *, below: int | None = None, timeout: float) -> bool:
        """Stop reservations until `recover`, if `max` is still lower than `below`; None: in any case.

        Returns whether it is halted now. TagMissing.
        """

    @abstractmethod
    def recover(self, tag: str, *, at_least: int, timeout: float) -> Tag:
        """Lift `max` to at least that, write a fresh version, end a halt; all in one atomic step. TagMissing.

        `at_least` may lie above the limit (a restored, older limit): then the limit stays, and the tag is full.
        """

    @abstractmethod
    def ledger(self, tag: str, *, newest: int, timeout: float) -> list[LedgerEntry]:
        """At most `newest` entries of the tag, the highest numbers first."""

    @abstractmethod
    def segments(
        self, tag: str, *, beyond: Position | None = None, upward: bool = False, count: int, timeout: float
    ) -> LedgerPage:
        """Return the `count` entries (1..2^63-1) that follow the position `beyond`; None: from the start.

        In the order of high, low and id, the highest first; `upward`: the lowest first. Found by an index, so that
        every page costs the same. An entry of which nothing changes meanwhile is on exactly one page; a hand back
        moves its entry down. A damaged entry doesn't hide the others, and what no number compares with may be left out.
        """

    @abstractmethod
    def entries(self, tag: str, ids: Collection[str], *, timeout: float) -> list[LedgerEntry]:
        """Return those of the tag's entries that have one of these ids, as they stand now, in no order. Corrupt."""

    @abstractmethod
    def prune(self, *, before: int, timeout: float) -> int:
        """Drop ledger entries older than `before` (ms since 1970), but for each tag's newest. Returns how many."""

    def witnessed(self, *, timeout: float) -> Mapping[str, int]:  # noqa: ARG002 - nothing is asked here
        """Return, by tag, the highest number that a journal beside the store knows to be reserved; {} without one."""
        return {}

    def examine(self, *, timeout: float) -> StoreFacts:  # noqa: ARG002 - nothing is asked here
        """Return how the store is set up, as far as it can tell; changes no tag and no ledger entry.

        A store that has nothing to tell needs no such method of its own.
        """
        return StoreFacts(kind=self.url.partition("://")[0])

    def upgrade(self, *, timeout: float) -> Upgrade:  # noqa: ARG002 - a layout that never changes is up to date
        """Bring the layout of what is stored up to that of this version, as the first write does by itself.

        A store that isn't there is made. A program of an older version may refuse it from then on. No reading method
        does either.
        """
        return Upgrade(1, 1)

    @abstractmethod
    def after_fork(self) -> None:
        """In a forked child: forget every connection of the parent without closing it."""

    @abstractmethod
    def close(self) -> None:
        """Close what the store itself opened. Twice is harmless."""
