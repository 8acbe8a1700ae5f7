"""The contract of a store. A store reserves ranges of numbers durably, and keeps one record for each tag.

These rules hold for every method of every store:

- A call that exceeds `timeout` raises `Unconfirmed`, but can still take effect later. Numbers may be used only if the
  call that reserved them returned without an error.
- An argument out of its range raises ValueError before the call uses the store. `Store` itself checks the arguments of
  `reserve` and `hand_back`, then calls `reserve_checked` and `hand_back_checked` of the subclass. `TagSettings` and
  `TagChanges` check their values when they are created.
- Methods can be called by several threads at once, and by several processes on the same store.
- A store raises only the errors of `issuer_persistence.errors`. The driver's own error is chained to the store's error.
- A call that raises an error other than `Unconfirmed` has changed nothing.
- Every change of a record writes a new random `version` and the current time as `timestamp`.
- Numbers are exact integers in 0..2^63-1. A store checks this range when it reads numbers.
- The record of a created tag is never removed. In the record of a deleted tag, `deleted` is True. Such a record is
  called a tombstone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar

from issuer_persistence.clock import monotonic
from issuer_persistence.credentials import Credentials
from issuer_persistence.errors import Corrupt, Misconfigured, StoreError, Unconfirmed
from issuer_persistence.facts import StoreFacts, Upgrade
from issuer_persistence.ledger import LedgerEntry, LedgerPage, Position, Purpose, Reservation, shortened
from issuer_persistence.pruning import Pruned
from issuer_persistence.records import Tag, TagChanges, TagSettings, check_argument
from issuer_persistence.urls import mask

T = TypeVar("T")

#: After this many seconds, a batch begins no further call, because other processes wait for the store during a batch.
BATCH_TIME = 0.1


class CallDeadline:
    """Time limit of one call to a store: `timeout` seconds from now. After this time the call raises Unconfirmed."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._end = monotonic() + timeout

    def left(self) -> float:
        """Return the seconds left, above 0. After the deadline, raise Unconfirmed."""
        left = self._end - monotonic()
        if left <= 0:
            raise Unconfirmed(f"not done within {self._timeout:g} s")
        return left


class Store(ABC):
    """A durable store that keeps tags and reserves ranges. Its methods follow the rules at the top of this module.

    Attributes:
        shared: True if several processes can use the store at the same time. False for `memory://`.
        in_file: True if the store keeps its data in one file, and its URL is `scheme:///path`. If a settings file has
            such a URL, a relative path starts at the directory of the settings file.
    """

    shared: bool = True
    in_file: bool = False

    @classmethod
    def open(cls, url: str) -> Store:
        """Return the store at a URL. The URL's scheme was registered as an entry point of the group `issuer.stores`.

        Args:
            url: URL of the store, with its scheme.

        Raises:
            Misconfigured: The URL is not valid.
        """
        raise Misconfigured(f"{mask(url)}: {cls.__name__} cannot be opened by a URL; pass a store object")

    @classmethod
    def open_with(cls, url: str, credentials: Credentials) -> Store:
        """Return the store at a URL without a password.

        Args:
            url: URL of the store, with its scheme.
            credentials: Where the user and the password of each new connection come from.

        Raises:
            Misconfigured: The URL is not valid or has a password, or the store has no login.
        """
        raise Misconfigured(f"{mask(url)}: this store takes no password: remove {credentials.name}")

    @property
    @abstractmethod
    def url(self) -> str:
        """Address of the store without secrets, for messages and `issuer config`."""

    @abstractmethod
    def store_id(self, *, timeout: float) -> str:
        """Return the random id of the store, or "" if nothing was written to the store yet.

        A store creates the id at its first write. It must use `records.fresh_version`: each tag's hash in Redis has a
        copy of the id, and a hash with an id of another form counts as damaged.

        Args:
            timeout: Longest duration of the call in seconds, above 0.

        Raises:
            Misconfigured: A newer version of this program wrote the store.
        """

    def made_id(self, *, timeout: float) -> str:
        """Return the id of the store. If the store has no id yet, create one.

        Args:
            timeout: Longest duration of the call in seconds, above 0.
        """
        deadline = CallDeadline(timeout)
        found = self.store_id(timeout=deadline.left())
        if not found:
            self.upgrade(timeout=deadline.left())
            found = self.store_id(timeout=deadline.left())
        return found

    def create(self, tag: str, settings: TagSettings, *, timeout: float) -> Tag:
        """Create a tag. Its first number is `settings.above` + 1.

        If two processes create the same tag at the same time, one of the calls raises TagPresent.

        If a tag of this name was deleted earlier, the new tag starts after the old `max` or after `settings.above`,
        whichever is higher. If the old tag was halted, the new tag is halted too. The new tag's scheme (the settings
        that turn counter values into numbers) gets the id of the old scheme. All other settings are those given.

        Args:
            tag: Name of the tag.
            settings: Settings of the tag.
            timeout: Longest duration of the call in seconds, above 0.

        Raises:
            TagPresent: The tag exists.
            LeaseOnStrict: The order is strict and `lease` is above 0.
            StepsCrossed: `min_step` is above `max_step`.
            LimitHit: A deleted tag of this name has used all numbers up to the new limit.
            SchemeMismatch: The scheme of the deleted tag had another strategy, options, restart, scramble, stride or
                shards.
        """
        [made] = self.create_many({tag: settings}, timeout=timeout)
        return made

    @abstractmethod
    def create_many(self, settings: Mapping[str, TagSettings], *, timeout: float) -> list[Tag]:
        """Create several tags: all or none of them. Return their records in the order of `settings`.

        The rules for each tag are those of `create`. If one tag cannot be created, no tag is created. The error's
        attribute `tag` is the name of this tag. After Unconfirmed, some of the tags may have been created.

        Args:
            settings: Settings of each tag, by name.
            timeout: Longest duration of the call in seconds, above 0.

        Raises:
            StoreError: The errors of `create`.
        """

    @abstractmethod
    def get(self, tag: str, *, timeout: float) -> Tag | None:
        """Return the record of a tag, even if the tag was deleted. None if the tag was never created.

        Args:
            tag: Name of the tag.
            timeout: Longest duration of the call in seconds, above 0.
        """

    @abstractmethod
    def tags(self, *, after: str | None = None, count: int, timeout: float) -> Sequence[Tag | Corrupt]:
        """Return a page of the tags that are not deleted, sorted by the UTF-8 bytes of their names.

        The store must find the page by an index, so that every page takes the same time. A tag that exists while all
        pages are read is on exactly one page. A page with fewer than `count` tags is the last one. In place of a
        damaged record, the page has its error, which is not raised.

        Args:
            after: Name after which the page begins. There need not be such a tag. None means the first page.
            count: Tags per page, 1..2^63-1.
            timeout: Longest duration of the call in seconds, above 0.
        """

    def reserve(
        self, tag: str, n: int | None, *, purpose: Purpose, at_least: int = 0, exact: bool = False, timeout: float
    ) -> Reservation:
        """Reserve the next n numbers: raise `max` by n and write a ledger entry, in one atomic step.

        Args:
            tag: Name of the tag.
            n: How many numbers to reserve, 1..2^63-1. None means the tag's current `step` x `ahead`.
            purpose: Purpose of the reservation, for the ledger entry.
            at_least: Highest number that the caller knows to be reserved, 0..2^63-1. If `max` is lower, raise
                MaxBehind.
            exact: What to do if fewer than n numbers are left. True: raise LimitHit. False: reserve the
                numbers that are left.
            timeout: Longest duration of the call in seconds, above 0.

        Returns:
            The reserved numbers. No other caller gets them.

        Raises:
            TagMissing: The tag was never created, or was deleted.
            Halted: Reservations of the tag are stopped.
            LimitHit: No number is left, or fewer than n are left and `exact` is True.
            MaxBehind: `max` is lower than `at_least`.
            Corrupt: The record is damaged.
        """
        if n is not None:
            check_argument("n", n, 1)
        check_argument("at_least", at_least)
        return self.reserve_checked(tag, n, purpose=purpose, at_least=at_least, exact=exact, timeout=timeout)

    @abstractmethod
    def reserve_checked(
        self, tag: str, n: int | None, *, purpose: Purpose, at_least: int, exact: bool, timeout: float
    ) -> Reservation:
        """Reserve numbers. `reserve` checks the arguments and calls this method. See `reserve` for the rules.

        Args:
            tag: Name of the tag.
            n: How many numbers to reserve, 1..2^63-1. None means the tag's current `step` x `ahead`.
            purpose: Purpose of the reservation, for the ledger entry.
            at_least: Highest number that the caller knows to be reserved, 0..2^63-1.
            exact: If True, raise LimitHit if fewer than n numbers are left.
            timeout: Longest duration of the call in seconds, above 0.
        """

    def hand_back(self, held: Sequence[Reservation], used: int, *, timeout: float) -> bool:
        """Return unused numbers to the store: all numbers after `used`, up to the end of the last reservation.

        The caller must not have issued any of these numbers, and must have discarded them before the call.

        First the store shortens the ledger entry of each reservation. If the record's `max` and `version` are still
        those of the last reservation, the store then lowers `max` to `used`. If `used` is lower than the `low` of the
        first reservation, this `low` is used instead.

        Args:
            held: Contiguous reservations of one tag, the oldest first.
            used: Last number used, 0 up to the end of the first reservation.
            timeout: Longest duration of the call in seconds, above 0.

        Returns:
            True if the numbers were returned. False if another caller has reserved higher numbers in the meantime.
            Then nobody ever gets the unused numbers.

        Raises:
            Unconfirmed: The store did not answer in time. Do not use the numbers, because they may have been returned.
            ValueError: The reservations are not contiguous, or `used` is higher than the end of the first one.
        """
        rest, highs = shortened(held, used)
        return self.hand_back_checked(held, highs, rest, timeout=timeout)

    @abstractmethod
    def hand_back_checked(
        self, held: Sequence[Reservation], highs: Mapping[str, int], rest: int, *, timeout: float
    ) -> bool:
        """Return numbers to the store. `hand_back` calls this method after it has checked the arguments.

        Args:
            held: The reservations. If `max` and `version` of the record are no longer those of the last reservation,
                `max` must not be lowered.
            highs: New `high` (last number) of each ledger entry, by the id of the entry. The store never raises the
                `high` of an entry.
            rest: New `max` of the tag.
            timeout: Longest duration of the call in seconds, above 0.
        """

    @abstractmethod
    def configure(self, tag: str, changes: TagChanges, *, timeout: float) -> Tag:
        """Change settings of a tag. None leaves a setting unchanged.

        If a caller derives the new scheme from the old scheme, it must set `changes.seen` to the version of the record
        that it has read. Otherwise a change that another process makes in between would be lost. A `lease` can be
        changed to 0, but not back to None.

        Args:
            tag: Name of the tag.
            changes: New settings, see `TagChanges`.
            timeout: Longest duration of the call in seconds, above 0.

        Raises:
            TagMissing: The tag was never created, or was deleted.
            LeaseOnStrict: The tag is strict and `lease` is above 0.
            StepsCrossed: With these changes, `min_step` would be above `max_step`.
            LimitTooLow: With these changes, the limit would be lower than `max`.
            VersionMoved: The record has changed: its version is not `changes.seen`.
        """

    @abstractmethod
    def delete(self, tag: str, *, timeout: float) -> Tag:
        """Mark a tag as deleted, and return its record. If the tag is deleted already, nothing is changed.

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
            below: Number that is known to be reserved. If the store's `max` is lower, the store has lost reservations,
                and the tag is halted. If not, nothing is changed. None means that the tag is halted in any case.
            timeout: Longest duration of the call in seconds, above 0.

        Returns:
            True if the tag is halted now.

        Raises:
            TagMissing: The tag was never created, or was deleted.
        """

    @abstractmethod
    def recover(self, tag: str, *, at_least: int, timeout: float) -> Tag:
        """Raise `max` to at least `at_least`, write a new version and end a halt, in one atomic step.

        Args:
            tag: Name of the tag.
            at_least: Highest number known to be reserved. If it is higher than the limit, the limit does not change,
                and no number is left.
            timeout: Longest duration of the call in seconds, above 0.

        Raises:
            TagMissing: The tag was never created, or was deleted.
        """

    @abstractmethod
    def ledger(self, tag: str, *, newest: int, timeout: float) -> list[LedgerEntry]:
        """Return the newest ledger entries of a tag. Entries with higher numbers come first.

        Args:
            tag: Name of the tag.
            newest: Maximum number of entries to return.
            timeout: Longest duration of the call in seconds, above 0.
        """

    @abstractmethod
    def segments(
        self, tag: str, *, beyond: Position | None = None, upward: bool = False, count: int, timeout: float
    ) -> LedgerPage:
        """Return a page of a tag's ledger, sorted by high, low and id.

        The store must find the page by an index, so that every page takes the same time. An entry that does not change
        while the pages are read is on exactly one page. If numbers are returned in the meantime, the `high` of their
        entry is lowered, and its position changes. If an entry is damaged, the others must still be returned.

        Args:
            tag: Name of the tag.
            beyond: Position after which the page begins. None means the first page.
            upward: If True, the entries with the lowest numbers come first. If False, those with the highest.
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

    def own(self, tag: str, ids: Collection[str], *, timeout: float) -> list[LedgerEntry]:
        """Return the current ledger entries of reservations that this program has made with these ids, in any order.

        The id of a reservation is `Purpose.id`. A remote store has other ids in its ledger. The entries that this
        method returns have the given ids.

        Args:
            tag: Name of the tag.
            ids: Ids of the reservations.
            timeout: Longest duration of the call in seconds, above 0.

        Raises:
            Corrupt: One of the entries is damaged.
        """
        return self.entries(tag, ids, timeout=timeout)

    @abstractmethod
    def prune(self, *, before: int, timeout: float) -> Pruned:
        """Delete some of the old ledger entries, but keep the newest entry of each tag.

        A call must not keep other calls waiting, so it deletes few entries. The store keeps how far the deletion has
        come, and the next call goes on there, in any process. At the end, the store deletes nothing for a day. If
        another process is deleting entries, the call does nothing.

        Args:
            before: Time in ms since 1970. Entries from before this time are deleted.
            timeout: Longest duration of the call in seconds, above 0. The server must end its statements, too.
        """

    def latest(self, *, before: int, timeout: float) -> int:  # noqa: ARG002 - nothing is asked here
        """Return the time of the last ledger entry from before `before`, in ms since 1970. `before` if there is none.

        It is called only if `examine` returns no `time`. 0, the default, means unknown: then no entries are pruned.

        Args:
            before: Time in ms since 1970. Entries from this time or later are ignored, wherever they are.
            timeout: Longest duration of the call in seconds, above 0.
        """
        return 0

    def batch(self, calls: Sequence[Callable[[Store, float], T]], *, timeout: float) -> list[T | StoreError]:
        """Make several calls to the store, about different tags. The calls may share one transaction.

        Each call is a function. Its arguments are a store and a time limit in seconds. The function may use the
        store's methods about one tag, and `store_id`, `witnessed` and `tags`.

        A call can be a `reads.Read`. The store may then answer several of them, about different tags, by one request.

        After 0.1 s no further call is begun. The caller must pass the calls that were not made to another `batch`.

        Args:
            calls: The calls.
            timeout: Longest duration of the batch in seconds, above 0.

        Returns:
            One item for each call that was made, in the order of `calls`: its result or its StoreError. The first call
            is always made. If 0.1 s was too short, the calls at the end of `calls` are missing. A call with a
            StoreError other than `Unconfirmed` has changed nothing.

        Raises:
            Unconfirmed: The store did not answer in time. Each call may or may not have taken effect.
            StoreError: No call has changed anything.
        """
        return in_turn(self, calls, timeout)

    def witnessed(self, *, timeout: float) -> Mapping[str, int]:  # noqa: ARG002 - nothing is asked here
        """Return for each tag the highest number that the store's journal has recorded. {} if there is no journal.

        The journal is a file outside the store that lists all reservations.

        Args:
            timeout: Longest duration of the call in seconds, above 0.
        """
        return {}

    def examine(self, *, timeout: float) -> StoreFacts:  # noqa: ARG002 - nothing is asked here
        """Return facts about the configuration of the store. Nothing is changed.

        The default implementation reports only the kind of the store.

        Args:
            timeout: Longest duration of the call in seconds, above 0.
        """
        return StoreFacts(kind=self.url.partition("://")[0])

    def upgrade(self, *, timeout: float) -> Upgrade:  # noqa: ARG002 - a layout that never changes is up to date
        """Upgrade the schema of the store to the newest version. If the store does not exist, create it.

        The first write also upgrades the schema. Methods that only read never upgrade it. After an upgrade, programs of
        older versions may reject the store.

        Args:
            timeout: Longest duration of the call in seconds, above 0.
        """
        return Upgrade(1, 1)

    def definitions(self) -> list[str]:
        """Return the SQL statements that create the store's tables, for a database administrator. No I/O is done.

        [] if the store is not in an SQL database.
        """
        return []

    def shared_with(self, *, timeout: float) -> str:  # noqa: ARG002 - nothing is asked here
        """Return the name of the program that draws from the store's table, too. "" if there is none.

        Args:
            timeout: Longest duration of the call in seconds, above 0.
        """
        return ""

    def adopt(self, *, timeout: float) -> int:  # noqa: ARG002 - nothing is asked here
        """End the sharing of a table with another program, which must have been stopped. Return how many tags it has.

        From then on, if another program moves a tag's number, the store refuses reservations of the tag until
        `recover`.

        Args:
            timeout: Longest duration of the call in seconds, above 0.

        Raises:
            Misconfigured: The store's tables are its own.
        """
        raise Misconfigured(f"{self.url} is not on the table of another program")

    @abstractmethod
    def after_fork(self) -> None:
        """Forget the parent's connections in a forked child. Do not close them: the parent still uses them."""

    @abstractmethod
    def close(self) -> None:
        """Close connections and files that the store opened itself. A second call does nothing."""


def in_turn(store: Store, calls: Sequence[Callable[[Store, float], T]], timeout: float) -> list[T | StoreError]:
    """Make the calls one after the other. Arguments and result are those of `Store.batch`."""
    deadline, end = CallDeadline(timeout), monotonic() + BATCH_TIME
    answers: list[T | StoreError] = []
    for call in calls:
        try:
            answers.append(call(store, deadline.left()))
        except StoreError as error:
            answers.append(error)
        if monotonic() >= end:
            break
    return answers
