"""Contract of a store: the durable authority that reserves ranges of numbers.

These rules hold for every method of every store:

- A call that exceeds `timeout` raises `Unavailable`. It may still take effect later, so the numbers of a reservation
  may be used only if the call returned.
- An argument out of its range raises ValueError before anything is requested. `TagSettings` and `TagChanges` check
  their values when they are created.
- Methods can be called by several threads at once, and by several processes on the same store.
- A store raises only the errors of `issuer.persistence.errors`. The error of its driver is chained.
- A call that raises an error other than `Unavailable` has changed nothing.
- Every change writes a new random `version` and the `timestamp`.
- Numbers are exact integers in 0..2^63-1. A store checks that when it reads them.
- A tag is never removed. A deleted tag keeps its record with `deleted` set, which is called a tombstone.
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
    """Moment at which a call gives up.

    Args:
        timeout: Time from now in seconds.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._end = time.monotonic() + timeout

    def left(self) -> float:
        """Return the seconds left, above 0.

        Raises:
            Unavailable: The deadline has passed.
        """
        left = self._end - time.monotonic()
        if left <= 0:
            raise Unavailable(f"not done within {self._timeout:g} s")
        return left


class Store(ABC):
    """Keeps the tags durably and reserves ranges. The rules at the top of the module hold for every method.

    Attributes:
        shared: True: several processes can use it at the same time. False for `memory://`.
    """

    #: Whether several processes, on this machine or others, may share it. False: `memory://`.
    shared: bool = True

    @property
    @abstractmethod
    def url(self) -> str:
        """Address of the store without secrets, for messages and `issuer config`."""

    @abstractmethod
    def store_id(self, *, timeout: float) -> str:
        """Return the random id that the store received at its first write. "" if nothing was written yet.

        The id comes from `records.fresh_version`. An id of another form in Redis counts as damaged.

        Args:
            timeout: Longest duration of the call in seconds, above 0.

        Raises:
            Misconfigured: A newer version of this program wrote the store.
        """

    def made_id(self, *, timeout: float) -> str:
        """Return the id of the store. If nothing was written yet, the id is created.

        Args:
            timeout: Longest duration of the call in seconds, above 0.
        """
        deadline = Deadline(timeout)
        found = self.store_id(timeout=deadline.left())
        if not found:
            self.upgrade(timeout=deadline.left())
            found = self.store_id(timeout=deadline.left())
        return found

    @abstractmethod
    def create(self, tag: str, settings: TagSettings, *, timeout: float) -> Tag:
        """Create a tag whose first number is `above` + 1. If two processes try it at once, one gets TagPresent.

        If the tag was deleted before, it continues above the higher of `above` and its old `max`, with the new
        settings. It stays halted if it was. The id of its scheme is kept.

        Args:
            tag: Name of the tag.
            settings: Settings of the tag.
            timeout: Longest duration of the call in seconds, above 0.

        Raises:
            TagPresent: The tag exists.
            LeaseOnStrict: The order is strict and `lease` is above 0.
            LimitHit: A deleted tag has no numbers left below the new limit.
            SchemeMismatch: A deleted tag had another strategy, restart, scramble, stride, shards or cycle.
        """

    @abstractmethod
    def get(self, tag: str, *, timeout: float) -> Tag | None:
        """Return the record of a tag, also of a deleted one. None if the tag was never created.

        Args:
            tag: Name of the tag.
            timeout: Longest duration of the call in seconds, above 0.
        """

    @abstractmethod
    def tags(self, *, timeout: float) -> list[Tag]:
        """Return all tags that are not deleted, sorted by name.

        Args:
            timeout: Longest duration of the call in seconds, above 0.
        """

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
        """Reserve the next n numbers: raise `max` by n and write a ledger entry, in one atomic step.

        Args:
            tag: Name of the tag.
            n: How many numbers. None: the tag's current `step` x `ahead`.
            at_least: Highest number that the caller knows to be taken. A lower `max` raises MaxBehind.
            exact: True: raise LimitHit if fewer than n are left. False: reserve fewer near the limit.
            reason: Purpose of the reservation, for the ledger.
            application: Label of the service, for the ledger. The first 100 characters are kept.
            born: Id of the state in Redis that the segment is for. "": not for Redis.
            timeout: Longest duration of the call in seconds, above 0.

        Returns:
            The reserved numbers, which belong to the caller alone.

        Raises:
            TagMissing: The tag was never created, or was deleted.
            Halted: Reservations of the tag are stopped.
            LimitHit: Too few numbers are left.
            MaxBehind: `max` is below `at_least`.
            Corrupt: The record is damaged.
        """

    @abstractmethod
    def hand_back(self, held: Sequence[Reservation], used: int, *, timeout: float) -> bool:
        """Return the unused numbers above `used` to the store, up to the end of the last reservation.

        The caller must have discarded these numbers before the call, and must not have issued any of them. First each
        ledger entry is shortened. Then `max` is lowered to `used`, if `max` and `version` are still those of the last
        reservation. A `used` below the first reservation counts as its low.

        Args:
            held: Contiguous reservations of one tag, the oldest first.
            used: Last number used, 0 up to the end of the first reservation.
            timeout: Longest duration of the call in seconds, above 0.

        Returns:
            True if the numbers were returned. False if another caller has reserved meanwhile, so that they are a gap.

        Raises:
            Unavailable: The store did not answer in time. The numbers may have been returned, so do not use them.
        """

    @abstractmethod
    def configure(self, tag: str, changes: TagChanges, *, timeout: float) -> Tag:
        """Change settings of a tag. None leaves a setting unchanged.

        `raise_to` raises `max` to at least that number. `scheme` replaces the whole scheme. If `seen` is given, the
        record must still have that version; a caller that derives a new scheme from the old one must pass it. A `lease`
        can be changed to 0, but not back to None.

        Args:
            tag: Name of the tag.
            changes: New settings.
            timeout: Longest duration of the call in seconds, above 0.

        Raises:
            TagMissing: The tag was never created, or was deleted.
            LeaseOnStrict: The tag is strict and `lease` is above 0.
            LimitTooLow: The resulting limit is below the resulting `max`.
            VersionMoved: The record has another version than `seen`.
        """

    @abstractmethod
    def delete(self, tag: str, *, timeout: float) -> Tag:
        """Mark a tag as deleted, and return its record. A tag that is deleted already stays unchanged.

        Args:
            tag: Name of the tag.
            timeout: Longest duration of the call in seconds, above 0.

        Raises:
            TagMissing: The tag was never created.
        """

    @abstractmethod
    def halt(self, tag: str, *, below: int | None = None, timeout: float) -> bool:
        """Stop reservations of a tag until `recover`.

        Args:
            tag: Name of the tag.
            below: Halt only if `max` is below this number. None: always.
            timeout: Longest duration of the call in seconds, above 0.

        Returns:
            True if the tag is halted now.

        Raises:
            TagMissing: The tag was never created, or was deleted.
        """

    @abstractmethod
    def recover(self, tag: str, *, at_least: int, timeout: float) -> Tag:
        """Raise `max` to at least a number, write a new version and end a halt, in one atomic step.

        Args:
            tag: Name of the tag.
            at_least: Highest number known to be taken. It can be above the limit: the limit stays, and no number is
                left.
            timeout: Longest duration of the call in seconds, above 0.

        Raises:
            TagMissing: The tag was never created, or was deleted.
        """

    @abstractmethod
    def ledger(self, tag: str, *, newest: int, timeout: float) -> list[LedgerEntry]:
        """Return the newest ledger entries of a tag, those with the highest numbers first.

        Args:
            tag: Name of the tag.
            newest: How many entries at most.
            timeout: Longest duration of the call in seconds, above 0.
        """

    @abstractmethod
    def segments(
        self, tag: str, *, beyond: Position | None = None, upward: bool = False, count: int, timeout: float
    ) -> LedgerPage:
        """Return a page of a tag's ledger, sorted by high, low and id.

        The store finds the page by an index, so every page takes the same time. An entry that does not change meanwhile
        is on exactly one page. When numbers are returned, an entry moves down. Damaged entries do not hide others.

        Args:
            tag: Name of the tag.
            beyond: Position after which the page begins. None: the start.
            upward: False: highest numbers first. True: lowest first.
            count: Entries per page, 1..2^63-1.
            timeout: Longest duration of the call in seconds, above 0.
        """

    @abstractmethod
    def entries(self, tag: str, ids: Collection[str], *, timeout: float) -> list[LedgerEntry]:
        """Return the current ledger entries with the given ids, in any order.

        Args:
            tag: Name of the tag.
            ids: Ids of the entries.
            timeout: Longest duration of the call in seconds, above 0.

        Raises:
            Corrupt: One of the entries is damaged.
        """

    @abstractmethod
    def prune(self, *, before: int, timeout: float) -> int:
        """Delete old ledger entries, except the newest of each tag, and return how many.

        Args:
            before: Time in ms since 1970. Older entries are deleted.
            timeout: Longest duration of the call in seconds, above 0.
        """

    def witnessed(self, *, timeout: float) -> Mapping[str, int]:  # noqa: ARG002 - nothing is asked here
        """Return for each tag the highest number that a journal beside the store has recorded. {} without a journal.

        Args:
            timeout: Longest duration of the call in seconds, above 0.
        """
        return {}

    def examine(self, *, timeout: float) -> StoreFacts:  # noqa: ARG002 - nothing is asked here
        """Return how the store is configured, as far as it can find out. Nothing is changed.

        A store without such facts need not override this method.

        Args:
            timeout: Longest duration of the call in seconds, above 0.
        """
        return StoreFacts(kind=self.url.partition("://")[0])

    def upgrade(self, *, timeout: float) -> Upgrade:  # noqa: ARG002 - a layout that never changes is up to date
        """Upgrade the schema to this version, as the first write does, and create the store if it is missing.

        After that, programs of older versions may reject the store. Methods that only read never upgrade it.

        Args:
            timeout: Longest duration of the call in seconds, above 0.
        """
        return Upgrade(1, 1)

    @abstractmethod
    def after_fork(self) -> None:
        """Forget the parent's connections in a forked child, without closing them."""

    @abstractmethod
    def close(self) -> None:
        """Close what the store opened itself. It can be repeated."""
