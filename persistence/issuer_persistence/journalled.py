"""A store that also writes each reservation to a journal, a file outside the store."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from issuer_persistence.contract import CallDeadline, Store, T
from issuer_persistence.errors import Full, MaxBehind, StoreError, Unconfirmed
from issuer_persistence.journal import ROTATE_AT, Journal, about
from issuer_persistence.ledger import Purpose, Reservation
from issuer_persistence.reads import alike
from issuer_persistence.records import Tag, TagChanges, TagSettings

log = logging.getLogger("issuer.journal")

#: If the store's `max` is lower than the journal's number, `max` is read again after this pause, in seconds.
_SECOND_LOOK = 0.2

#: How many tags are read at once when a journal is begun.
_PAGE = 1000


def _inner(name: str) -> Any:
    """Return a method that calls the method `name` of the inner store."""

    def call(self: Journalled, *args: Any, **options: Any) -> Any:
        return getattr(self._store, name)(*args, **options)

    return call


class Journalled(Store):
    """A store that appends to a journal each reservation, each return of numbers, and each change of a tag.

    If the line of a reservation cannot be written, the call raises Unconfirmed, and no caller gets the numbers. If the
    journal cannot be written at all, or belongs to another store, calls raise Misconfigured before they use the store.

    Args:
        store: Store that keeps the tags. `close` closes this store, too.
        path: Path of the journal.
        rotate_at: Size in bytes after which a new journal file is begun.
    """

    def __init__(self, store: Store, path: str | os.PathLike[str], *, rotate_at: int = ROTATE_AT) -> None:
        self._store = store
        self._journal = Journal(path, rotate_at=rotate_at)
        self.shared = store.shared
        #: Tags that this process has compared with the journal.
        self._compared: set[str] = set()

    @property
    def url(self) -> str:
        """URL of the inner store."""
        return self._store.url

    store_id = _inner("store_id")
    get = _inner("get")
    tags = _inner("tags")
    halt = _inner("halt")
    ledger = _inner("ledger")
    segments = _inner("segments")
    entries = _inner("entries")
    own = _inner("own")
    prune = _inner("prune")
    latest = _inner("latest")
    examine = _inner("examine")
    upgrade = _inner("upgrade")
    definitions = _inner("definitions")
    shared_with = _inner("shared_with")
    adopt = _inner("adopt")
    after_fork = _inner("after_fork")
    close = _inner("close")

    def create_many(self, settings: Mapping[str, TagSettings], *, timeout: float) -> list[Tag]:
        deadline = CallDeadline(timeout)
        store_id = self._checked(deadline)
        for tag, each in settings.items():
            self._compare(tag, store_id, deadline, above=each.above)
        made = self._store.create_many(settings, timeout=deadline.left())
        self._append(store_id, [_floored(each, each.max) for each in made], deadline)
        return made

    def reserve_checked(
        self, tag: str, n: int | None, *, purpose: Purpose, at_least: int, exact: bool, timeout: float
    ) -> Reservation:
        """See `Store.reserve_checked`. The call returns after the journal's line is on the disk."""
        deadline = CallDeadline(timeout)
        store_id = self._checked(deadline)
        self._compare(tag, store_id, deadline)
        got = self._store.reserve(tag, n, purpose=purpose, at_least=at_least, exact=exact, timeout=deadline.left())
        line = about(got.tag, "reserve", low=got.low, high=got.high, id=got.entry, application=purpose.application)
        self._append(store_id, [line], deadline)
        return got

    def hand_back_checked(
        self, held: Sequence[Reservation], highs: Mapping[str, int], rest: int, *, timeout: float
    ) -> bool:
        """See `Store.hand_back_checked`. This call changes the store first, and then appends a line to the journal.

        If the line is lost, the tag's highest number in the journal is too high. The cost is a gap. In the other order,
        this number could be too low, and numbers could be issued twice.
        """
        deadline = CallDeadline(timeout)
        store_id = self._store.store_id(timeout=deadline.left())
        taken_back = self._store.hand_back(held, rest, timeout=deadline.left())
        if taken_back:
            line = about(held[-1].tag, "hand back", segments=dict.fromkeys(highs, rest))
            try:
                self._append(store_id, [line], deadline)
            except Unconfirmed as error:
                log.warning("%s", error)
        return taken_back

    def configure(self, tag: str, changes: TagChanges, *, timeout: float) -> Tag:
        deadline = CallDeadline(timeout)
        store_id = self._checked(deadline)
        changed = self._store.configure(tag, changes, timeout=deadline.left())
        return self._changed(store_id, changed, changes.raise_to or 0, deadline)

    def delete(self, tag: str, *, timeout: float) -> Tag:
        deadline = CallDeadline(timeout)
        store_id = self._checked(deadline)
        tombstone = self._store.delete(tag, timeout=deadline.left())
        return self._changed(store_id, tombstone, tombstone.max, deadline)

    def recover(self, tag: str, *, at_least: int, timeout: float) -> Tag:
        deadline = CallDeadline(timeout)
        store_id = self._checked(deadline)
        recovered = self._store.recover(tag, at_least=at_least, timeout=deadline.left())
        return self._changed(store_id, recovered, at_least, deadline)

    def batch(self, calls: Sequence[Callable[[Store, float], T]], *, timeout: float) -> list[T | StoreError]:
        """See `Store.batch`. Calls that only read need no journal."""
        reads = alike(calls)
        return self._store.batch(reads, timeout=timeout) if reads else super().batch(calls, timeout=timeout)

    def _compare(self, tag: str, store_id: str, deadline: CallDeadline, *, above: int = 0) -> None:
        """Compare a tag with the journal, once per process. If the store has lost reservations, raise MaxBehind.

        If Redis lost its data in the same incident, only the journal still has the lost reservations. If the store's
        `max` is lower than the journal's highest number, `max` is read again after 0.2 s: perhaps another process has
        just returned numbers, and has not yet written the journal's line.

        `above`: number after which the caller creates the tag, 0 if it creates none. If the tag is missing in the
        store, `above` must be at least the journal's highest number of the tag.
        """
        if tag in self._compared:
            return
        for last in (False, True):
            top = self._journal.tops(store_id).get(tag, 0)
            found = self._store.get(tag, timeout=deadline.left()) if top else None
            stands_at = above if found is None else max(above, found.max)
            if not top or stands_at >= top:
                self._compared.add(tag)
                return
            if last:
                raise MaxBehind(tag, stands_at, top, certain=True)
            time.sleep(min(_SECOND_LOOK, deadline.left()))

    def witnessed(self, *, timeout: float) -> Mapping[str, int]:
        return self._journal.tops(self._store.store_id(timeout=timeout))

    def _checked(self, deadline: CallDeadline) -> str:
        """Check that the journal belongs to this store and can be written. Return the store's id."""
        store_id = self._store.made_id(timeout=deadline.left())  # a journal begins with the store's id
        if not self._journal.prepare(store_id, timeout=deadline.left()):
            self._begin(store_id, deadline)
        return store_id

    def _begin(self, store_id: str, deadline: CallDeadline) -> None:
        """Create the journal with a line for each tag of the store. Later, only tags in use get lines."""
        lines: list[dict[str, object]] = []
        after = None
        while page := self._store.tags(after=after, count=_PAGE, timeout=deadline.left()):
            lines += [_floored(record, record.max) for record in page if isinstance(record, Tag)]
            after = page[-1].tag
        self._journal.begin(store_id, lines, timeout=deadline.left())

    def _changed(self, store_id: str, record: Tag, floor: int, deadline: CallDeadline) -> Tag:
        self._append(store_id, [_floored(record, floor)], deadline)
        return record

    def _append(self, store_id: str, lines: Sequence[dict[str, object]], deadline: CallDeadline) -> None:
        """Append the lines. If this fails, raise Unconfirmed, because the store is already changed."""
        try:
            while not self._journal.append(store_id, lines, timeout=deadline.left()):
                self._begin(store_id, deadline)
        except StoreError as error:
            lost = f"a {lines[0]['kind']} of tag {lines[0]['tag']!r} is not journalled"
            lost += f", and {len(lines) - 1} more" if len(lines) > 1 else ""
            if isinstance(error, Full):
                raise Full(error.path, lost) from error
            raise Unconfirmed(f"{error}; {lost}") from error


def _floored(record: Tag, floor: int) -> dict[str, object]:
    """Return a journal line with the tag's settings and `floor`, a number that the tag's `max` is never below.

    For a change that does not set `max`, such as a new step, `floor` is 0. The record's `max` would be wrong, because
    returned numbers can still lower it.
    """
    return about(record, "tag", floor=floor, segments={})
