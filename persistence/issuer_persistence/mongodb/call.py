"""One call of a MongoStore: its collections, its deadline, and what it knows of its writes."""

from __future__ import annotations

import random
import time
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from bson.int64 import Int64
from pymongo import ReturnDocument
from pymongo.monitoring import CommandListener
from pymongo.synchronous import client_session

from issuer_persistence.errors import Corrupt, TagMissing, Unconfirmed
from issuer_persistence.mongodb import documents
from issuer_persistence.mongodb.server import refuses
from issuer_persistence.records import fresh_version, now_ms

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pymongo.monitoring import CommandFailedEvent, CommandStartedEvent, CommandSucceededEvent

    from issuer_persistence.contract import CallDeadline
    from issuer_persistence.mongodb.server import Collections
    from issuer_persistence.records import Tag

Document = dict[str, Any]

#: Newest version of the schema. A database with a newer one is rejected. It stays 1 until a tag gets a scheme, because
#: older programs would issue the counter values of such a tag. The fields `lease`, `ahead` and `step_mode` need no new
#: version: older programs keep fields that they do not know.
SCHEMA = 2

_random = random.SystemRandom()


@contextmanager
def unbound() -> Iterator[None]:
    """Leave the session that the caller may have bound, and its transaction, which may be rolled back.

    Since pymongo 4.17, after `ClientSession.bind` each operation of the client joins the session, and operations of
    other clients fail.
    """
    bound = getattr(client_session, "_SESSION", None)
    if bound is None or bound.get() is None:
        yield
        return
    token = bound.set(None)
    try:
        yield
    finally:
        bound.reset(token)


_WRITES = {"findAndModify", "insert", "update", "delete"}

# Per thread, or per greenlet, also in a process that gevent patches later.
_unanswered: ContextVar[int] = ContextVar("unanswered", default=0)


class Attempts(CommandListener):
    """Counts the writes of the current call that the server may have done without a reply.

    pymongo repeats a write, and raises the error of the second attempt. So after "not authorized", the first attempt
    may have changed something.
    """

    @property
    def unanswered(self) -> int:
        """How many writes since `begin` have no reply, or an error after which the write may have been done."""
        return _unanswered.get()

    def begin(self) -> None:
        """Reset the count."""
        _unanswered.set(0)

    def started(self, event: CommandStartedEvent) -> None:
        """Count a write that is sent."""
        if event.command_name in _WRITES:
            _unanswered.set(_unanswered.get() + 1)

    def succeeded(self, event: CommandSucceededEvent) -> None:
        """Count a reply."""
        if event.command_name in _WRITES:
            _unanswered.set(_unanswered.get() - 1)

    def failed(self, event: CommandFailedEvent) -> None:
        """Count a rejection. After any other error, the write may have been done."""
        failure = event.failure
        if event.command_name in _WRITES and refuses(failure.get("code"), str(failure.get("errmsg"))):
            _unanswered.set(_unanswered.get() - 1)


class Replaced(Unconfirmed):
    """The `meta` document is not the one that was read before."""


class MongoCall:
    """One call: the collections that it uses, and its deadline.

    Attributes:
        wrote: True if a write of this call has taken effect.
        writing: True if the result of the last write is not known yet.
    """

    def __init__(self, deadline: CallDeadline) -> None:
        self._deadline = deadline
        self._longest = 0.001
        self.wrote = self.writing = False

    def take(self, collections: Collections, store_id: str) -> None:
        """Use these collections, which belong to the store of that id."""
        self.tags, self.segments, self.meta = collections
        self._store = {"_id": "store", "id": store_id}

    @contextmanager
    def write(self) -> Iterator[None]:
        """Note a write: if the call fails later, it has changed something."""
        self.writing = True
        yield
        self.wrote, self.writing = True, False

    def pause(self) -> None:
        """Wait before the next attempt. The wait grows and is random, so that the losers of a race spread out."""
        time.sleep(min(self._deadline.left(), _random.uniform(0, self._longest)))
        self._longest = min(0.05, 2 * self._longest)

    def read(self, tag: str) -> Tag | None:
        """Return the record of a tag. None if there is none."""
        found = self.tags.find_one({"_id": tag})
        return None if found is None else documents.record(found)

    def live(self, tag: str) -> Tag:
        """Return the record of a tag that is not deleted. Otherwise raise TagMissing."""
        found = self.read(tag)
        if found is None:
            raise TagMissing(tag)
        return found.live()

    def change(self, tag: str, condition: Document, update: Mapping[str, Document]) -> Tag | None:
        """Change the tag's document in one step, and return the new record.

        None if the document does not meet the condition, or is not one of the issuer's. Then nothing was changed.
        """
        fresh = {"version": fresh_version(), "timestamp": Int64(now_ms())}
        self.writing = True
        after = self.tags.find_one_and_update(
            documents.ours(tag, condition),
            {**update, "$set": {**update.get("$set", {}), **fresh}},
            return_document=ReturnDocument.AFTER,
        )
        self.writing = False
        if after is None:
            return None
        self.wrote = True
        try:
            return documents.record(after)
        except Corrupt as error:
            # Not Corrupt: it would mean that nothing has changed.
            raise Unconfirmed(str(error)) from error

    def swap(self, before: Tag, after: Tag) -> Tag | None:
        """Replace the record `before` by `after`. None if the record is not `before` any more."""
        update = {"$set": {name: value for name, value in documents.document(after).items() if name != "_id"}}
        if after.lease is None:
            update["$unset"] = {"lease": ""}
        return self.change(before.tag, {"version": before.version, "max": Int64(before.max)}, update)

    def announce(self, scheme: Mapping[str, Any]) -> None:
        """Raise the schema before a tag gets a scheme: programs that know no schemes then reject this database."""
        if scheme:
            self._update_meta({"$max": {"schema": SCHEMA}})

    def confirm(self) -> None:
        """Check by two writes without effect that writes reach a majority. If they do not, raise as they do."""
        self._update_meta({"$set": {"confirmed": Int64(now_ms())}})
        documents.write_nothing(self.segments)

    def _update_meta(self, update: Document) -> None:
        if self.meta.update_one(self._store, update).matched_count == 0:
            raise Replaced(
                f"the store's document in {self.meta.name} is missing, or belongs to another store: check whether a "
                "backup was restored"
            )
