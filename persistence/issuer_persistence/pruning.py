"""Deletes old ledger entries, page by page.

A walk goes through the ledger in the order of its index, and deletes entries by their ids. So it needs no index of its
own, and locks no entry that it keeps. The store keeps how far the walk has come, for all processes: one process at a
time goes on, and another one goes on where the first has stopped.
"""

from __future__ import annotations

import json
import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import NamedTuple

from issuer_persistence.ledger import Position
from issuer_persistence.records import now_ms

#: Entries per page. SQLite locks its file for the time of a page, and other processes wait.
PAGE = 200

#: How long a walk belongs to the process that has done its last page, in ms.
TURN = 10_000

#: How much later than the last walk the next one begins, in ms: a day.
EVERY = 24 * 3600 * 1000


class Pruned(NamedTuple):
    """The result of a call of `Store.prune`.

    Attributes:
        deleted: How many entries were deleted.
        wait: Seconds until the next call. 0 if old entries may be left.
    """

    deleted: int
    wait: float


class Walked(NamedTuple):
    """A ledger entry that a walk looks at."""

    tag: str
    high: int
    low: int
    id: str
    time: int


class Ledger(ABC):
    """The calls of a store that a walk needs."""

    @abstractmethod
    def progress(self) -> str:
        """Return the text that the store keeps about the walk. "" if there is none."""

    @abstractmethod
    def note_progress(self, progress: str) -> None:
        """Keep this text in place of the last one."""

    @abstractmethod
    def oldest(self, tag: str, beyond: Position | None, count: int) -> list[Walked]:
        """Return a page of valid entries: the lowest ones of each tag first, the tags in the order of the index.

        Args:
            tag: Name of a tag. "" stands before all tags.
            beyond: Position in the ledger of the tag after which the page begins. Then the page may end with the tag.
                None means that the page begins with the tags that follow this tag.
            count: Maximum number of entries.
        """

    @abstractmethod
    def drop(self, ids: Sequence[str]) -> None:
        """Delete the entries with these ids."""


@dataclass(frozen=True, slots=True)
class Walk:
    """The progress of a walk.

    Attributes:
        before: The walk has begun with the deletion of entries from before this time, in ms since 1970.
        worker: Host name and id of the process that has done the last page.
        at: When it has done so, by its clock, in ms since 1970.
        tag: The next page begins in the ledger of this tag. None if the walk has ended.
        beyond: Position there after which the page begins. None if it begins with the tags that follow this tag.
    """

    before: int = -EVERY
    worker: str = ""
    at: int = 0
    tag: str | None = None
    beyond: Position | None = None

    @classmethod
    def read(cls, text: str) -> Walk:
        """Return the walk in the text that the store keeps. If it cannot be read, the next walk begins."""
        try:
            return cls(**json.loads(text))
        except (ValueError, TypeError):
            return cls()


def prune(ledger: Ledger, before: int) -> Pruned:
    """Do a page of the walk, unless another process does it, or a walk of this day has ended. See `Store.prune`.

    An entry is deleted only if the page has a higher one of the same tag. So the newest entry of each tag stays.
    """
    now, worker, walk = now_ms(), f"{socket.gethostname()}:{os.getpid()}", Walk.read(ledger.progress())
    if walk.worker != worker and abs(now - walk.at) < TURN:
        return Pruned(0, TURN / 1000)
    tag, beyond, began = walk.tag, walk.beyond, walk.before
    if tag is None:
        if abs(before - began) < EVERY:
            return Pruned(0, (began + EVERY - before) / 1000)
        tag, beyond, began = "", None, before
    rows = ledger.oldest(tag, beyond, PAGE) if beyond is not None else []
    rows += ledger.oldest(rows[-1].tag if rows else tag, None, PAGE - len(rows)) if len(rows) < PAGE else []
    old = [each.id for each, following in pairwise(rows) if each.tag == following.tag and each.time < before]
    if old:
        ledger.drop(old)
    end, place = (rows[-1].tag, rows[-2]) if len(rows) == PAGE else (None, None)
    if place is not None and (old or rows[0].tag != end):
        # The next page begins with the last entry of this one, because it may not be the newest entry of its tag.
        end, beyond = place.tag, (place.high, place.low, place.id)
    else:
        beyond = None  # entries above young ones are young, too
    ledger.note_progress(json.dumps(asdict(Walk(began, worker, now, end, beyond))))
    return Pruned(len(old), 0.0)
