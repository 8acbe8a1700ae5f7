"""A store in MongoDB: a replica set, a sharded cluster, a standalone server, or a service that speaks its protocol.

Collections: `issuer_tags`, one document per tag (`_id` and `bizTag` the tag; Int64 `max`, `step`, `limit`, `created`,
`timestamp`, `ahead` and, if the tag has one, `lease`; a text `step_mode`; a document `scheme`), `issuer_segments` (the
ledger), `issuer_meta` (the store's id); another prefix can be given. Written with majority and journal and read from
the primary, whatever the URL says: with less, a rollback of the primary hands the same range out twice. Every change
carries the shape of the issuer's own documents in its filter, so that no other program's document is touched.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pymongo
from bson.int64 import Int64
from pymongo import MongoClient, ReturnDocument
from pymongo.errors import DuplicateKeyError
from pymongo.synchronous import client_session

from issuer_persistence import mongoledger, mongometa, mongotags
from issuer_persistence.contract import CallDeadline, Store
from issuer_persistence.errors import Corrupt, Misconfigured, StoreError, TagMissing, Unconfirmed
from issuer_persistence.mongo_server import Attempts, facts, translated
from issuer_persistence.records import (
    LedgerEntry,
    LedgerPage,
    Position,
    Purpose,
    Reservation,
    StoreFacts,
    Tag,
    TagChanges,
    TagSettings,
    Upgrade,
    check_argument,
    fresh_version,
    now_ms,
)
from issuer_persistence.urls import mask

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from pymongo.database import Database

log = logging.getLogger("issuer.store")

Document = dict[str, Any]

#: The database if the URL names none.
DATABASE = "issuer"

#: Options, unless the URL sets them. pymongo's own 30 s and 20 s would make callers wait for a server that is away.
#: `connect` false: its threads start at the first request, not while `_connected` holds its lock, which in a forked
#: child may be Python's own while gevent has patched the rest: that would stop all greenlets for ever.
DEFAULTS: dict[str, Any] = {
    "serverselectiontimeoutms": 3000,
    "connecttimeoutms": 3000,
    "appname": "segment-issuer",
    "connect": False,
}

#: Version of what is written here; a database that holds a newer one is refused. It is 1 until a tag is given a scheme:
#: `lease`, `ahead` and `step_mode` didn't make it 2, as an older program leaves the fields as it finds them, at every
#: change, and so may run beside this one. It would issue the counters of a tag with a scheme as they are, though.
SCHEMA = 2

#: Seconds that `close` takes to tell the server that sessions end, which it notices in half an hour by itself: a server
#: that hangs kept a program's end waiting for 12 s.
_LEAVING = 0.5

#: Seconds after which a process gives up the index of the ledger: a server that builds it stops then.
_INDEX_PATIENCE = 3600

_random = random.SystemRandom()


@contextmanager
def _unbound() -> Iterator[None]:
    """Leave out the session that the caller may have bound, and with it the transaction that may be rolled back.

    Since 4.17 `ClientSession.bind` makes each operation of its client join it, and those of other clients fail.
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


class _Replaced(Unconfirmed):
    """The `meta` document isn't the one that was read."""


class _Session:
    """The collections, with the guarantees that they need, and the deadline of one call."""

    def __init__(self, deadline: CallDeadline) -> None:
        self._deadline = deadline
        self._longest = 0.001
        #: A write of this call has taken effect; the last one that was sent has not come back yet.
        self.wrote = self.writing = False

    def take(self, collections: mongometa.Collections, store_id: str) -> None:
        """Use these."""
        self.tags, self.segments, self.meta = collections
        self._store = {"_id": "store", "id": store_id}

    @contextmanager
    def write(self) -> Iterator[None]:
        """Take note of a write: even if it fails later, the call has changed something."""
        self.writing = True
        yield
        self.wrote, self.writing = True, False

    def pause(self) -> None:
        """Before the next attempt: longer each time, so that losers of a race don't all come back at once."""
        time.sleep(min(self._deadline.left(), _random.uniform(0, self._longest)))
        self._longest = min(0.05, 2 * self._longest)

    def read(self, tag: str) -> Tag | None:
        found = self.tags.find_one({"_id": tag})
        return None if found is None else mongotags.record(found)

    def live(self, tag: str) -> Tag:
        found = self.read(tag)
        if found is None:
            raise TagMissing(tag)
        return found.live()

    def change(self, tag: str, condition: Document, update: Mapping[str, Document]) -> Tag | None:
        """Change the document if it is ours and meets the condition, in one step. None: it didn't, nothing changed."""
        fresh = {"version": fresh_version(), "timestamp": Int64(now_ms())}
        self.writing = True
        after = self.tags.find_one_and_update(
            mongotags.ours(tag, condition),
            {**update, "$set": {**update.get("$set", {}), **fresh}},
            return_document=ReturnDocument.AFTER,
        )
        self.writing = False
        if after is None:
            return None
        self.wrote = True
        try:
            return mongotags.record(after)
        except Corrupt as error:
            # It has changed, which Corrupt would deny.
            raise Unconfirmed(str(error)) from error

    def announce(self, scheme: Mapping[str, Any]) -> None:
        """Before a tag is given that scheme: see that no program that knows of none opens this database any more."""
        if scheme:
            self._tell({"$max": {"schema": SCHEMA}})

    def confirm(self) -> None:
        """See that writes reach a majority, and the ledger, by two that move nothing; else raise as they do."""
        self._tell({"$set": {"confirmed": Int64(now_ms())}})
        mongoledger.write_nothing(self.segments)

    def _tell(self, update: Document) -> None:
        if self.meta.update_one(self._store, update).matched_count == 0:
            raise _Replaced(
                f"the store's document in {self.meta.name} is missing, or belongs to another store: check whether a "
                "backup was restored"
            )

    def swap(self, before: Tag, after: Tag) -> Tag | None:
        """Put `after` in the place of `before`, if that is still what lies there. None: something else does."""
        update = {"$set": {name: value for name, value in mongotags.document(after).items() if name != "_id"}}
        if after.lease is None:
            update["$unset"] = {"lease": ""}
        return self.change(before.tag, {"version": before.version, "max": Int64(before.max)}, update)


class MongoStore(Store):
    """Tags and ledger in a MongoDB database. `MongoStore(database)` uses a database of yours and never closes it.

    `MongoStore.open(url)` makes a client of its own at the first call, one per process. A reservation is one
    findOneAndUpdate, then the insert of its ledger entry.

    `prefix` begins the collections' names; another prefix is another store. None: `issuer_`, or none at all in a
    database in which an issuer has collections without.
    """

    def __init__(
        self, database: Database[Document] | None = None, *, prefix: str | None = None, address: str = ""
    ) -> None:
        if database is not None and not database.write_concern.acknowledged:
            raise Misconfigured("w=0 is not reliable: remove it; majority is used in any case")
        self._given = database
        self._shown = mask(address)
        self._address, named = mongometa.without_prefix(address)
        prefix = named if prefix is None else prefix
        self._prefix = None if prefix is None else mongometa.checked(prefix)
        self._lock = threading.Lock()
        self._client: MongoClient[Document] | None = None
        self._database = database
        self._process = os.getpid()
        self._closed = False
        # Read once in a process: every extension asks for it.
        self._store_id = ""
        self._collections: mongometa.Collections | None = None
        self._indexed = False
        self._attempts = Attempts()
        # A call has failed: perhaps writes reach no majority, and a reservation would be one more gap.
        self._doubtful = False
        # The last record seen of each tag: its step and limit go into the filter of the next reservation, so that a
        # reservation needs no read before it, and one that was sent with an old step matches nothing.
        self._hints: dict[str, Tag] = {}

    @classmethod
    def open(cls, url: str) -> MongoStore:
        """Return the store at that URL; no I/O. Misconfigured if it isn't valid, has w=0 or names a system database."""
        mongometa.check_url(url)
        return cls(address=url)

    @property
    def url(self) -> str:
        """The URL without its secrets; for a database of yours its name and the servers known so far."""
        if self._given is None:
            return self._shown
        nodes = ",".join(sorted(f"{host}:{port}" for host, port in self._given.client.nodes)) or "?"
        return f"mongodb://{nodes}/{self._given.name}"

    def store_id(self, *, timeout: float) -> str:
        """See `Store.store_id`."""
        with self._session(timeout, writes=False):
            return self._store_id

    def create(self, tag: str, settings: TagSettings, *, timeout: float) -> Tag:
        """See `Store.create`."""
        with self._session(timeout) as session:
            while True:
                found = session.read(tag)
                made = Tag.made(tag, found, settings)
                session.announce(made.scheme)
                if found is not None:
                    if (revived := session.swap(found, made)) is not None:
                        return revived
                else:
                    try:
                        with session.write():
                            session.tags.insert_one(mongotags.document(made))
                    except DuplicateKeyError:
                        pass  # made by another process meanwhile: look again
                    else:
                        return made
                session.pause()

    def get(self, tag: str, *, timeout: float) -> Tag | None:
        """See `Store.get`."""
        with self._session(timeout, writes=False) as session:
            return session.read(tag)

    def tags(self, *, timeout: float) -> list[Tag]:
        """See `Store.tags`."""
        with self._session(timeout, writes=False) as session:
            found = [mongotags.record(each) for each in session.tags.find({"deleted": {"$ne": True}})]
        return sorted(found, key=lambda each: each.tag)

    def reserve_checked(
        self, tag: str, n: int | None, *, purpose: Purpose, at_least: int, exact: bool, timeout: float
    ) -> Reservation:
        """See `Store.reserve_checked`. If only the ledger entry could not be written, it raises Unconfirmed: a gap."""
        with self._session(timeout) as session:
            if self._doubtful:
                session.confirm()
                self._doubtful = False
            after, size = self._advance(session, tag, n, at_least=at_least, exact=exact)
            self._hints[tag] = after
            # By what was sent, never by a step read again: that may have changed since.
            entry = purpose.entry(tag, after.max - size, after.max)
            session.segments.insert_one(mongoledger.document(entry))
        return Reservation(after, entry.low, entry.high, entry.id)

    def _advance(self, session: _Session, tag: str, n: int | None, *, at_least: int, exact: bool) -> tuple[Tag, int]:
        """Move `max` up; the record after it, and by how much."""
        hint = self._hints.get(tag)
        while True:
            if hint is not None:
                size = hint.segment if n is None else n
                try:
                    after = self._increment(session, hint, size, at_least=at_least, step_matters=n is None)
                except Unconfirmed:
                    # Perhaps for a scheme that is none, which the filter can't tell: read it before the next attempt,
                    # so that it costs one segment and no more.
                    self._hints.pop(tag, None)
                    raise
                if after is not None:
                    return after, size
            self._hints.pop(tag, None)
            before = session.live(tag)
            wanted = before.reserved(n, at_least=at_least, exact=exact)
            size = wanted.max - before.max
            # The last, shorter segment.
            if size < (before.segment if n is None else n):
                after = session.swap(before, wanted)
                if after is not None:
                    return after, size
            session.pause()
            hint = before

    @staticmethod
    def _increment(session: _Session, hint: Tag, size: int, *, at_least: int, step_matters: bool) -> Tag | None:
        if hint.limit - size < at_least:
            return None
        condition: Document = {
            "deleted": False,
            "halted": False,
            "limit": Int64(hint.limit),
            "max": {"$gte": Int64(at_least), "$lte": Int64(hint.limit - size)},
        }
        if step_matters:
            condition |= {"step": Int64(hint.step), "ahead": {"$in": [None, 1]} if hint.ahead == 1 else hint.ahead}
        return session.change(hint.tag, condition, {"$inc": {"max": Int64(size)}})

    def hand_back_checked(
        self, held: Sequence[Reservation], highs: Mapping[str, int], rest: int, *, timeout: float
    ) -> bool:
        """See `Store.hand_back_checked`."""
        last = held[-1]
        with self._session(timeout) as session:
            with session.write():
                mongoledger.shorten(session.segments, last.tag.tag, highs)
            condition = {"version": last.version, "max": Int64(last.high)}
            return session.change(last.tag.tag, condition, {"$set": {"max": Int64(rest)}}) is not None

    def configure(self, tag: str, changes: TagChanges, *, timeout: float) -> Tag:
        """See `Store.configure`."""
        update = {"$set": mongotags.stored(changes.kept())}
        if changes.raise_to is not None:
            update["$max"] = {"max": Int64(changes.raise_to)}
        with self._session(timeout) as session:
            while True:
                found = session.live(tag)
                wanted = found.configured(changes)
                # The order, as the tag may be deleted and made again meanwhile: a strict one must not get a lease.
                condition: Document = {"deleted": False, "order": found.order}
                if changes.seen is not None:
                    condition["version"] = found.version
                session.announce(changes.scheme or {})
                if changes.limit is not None or changes.raise_to is not None:
                    # Not `version`: reservations, which move it all the time, may go on beside this.
                    condition |= {"limit": Int64(found.limit), "max": {"$lte": Int64(wanted.limit)}}
                after = session.change(tag, condition, update)
                if after is not None:
                    return after
                session.pause()

    def delete(self, tag: str, *, timeout: float) -> Tag:
        """See `Store.delete`."""
        with self._session(timeout) as session:
            while True:
                found = session.read(tag)
                if found is None:
                    raise TagMissing(tag)
                if found.deleted:
                    return found
                # By when it was made: a request that comes late must not bury a tag that was made again since.
                this_one = {"deleted": False, "created": Int64(found.created)}
                after = session.change(tag, this_one, {"$set": {"deleted": True}})
                if after is not None:
                    return after
                session.pause()

    def halt(self, tag: str, *, below: int | None = None, timeout: float) -> bool:
        """See `Store.halt`."""
        if below is not None:
            check_argument("below", below)
        condition: Document = {"deleted": False, "halted": False}
        if below is not None:
            condition["max"] = {"$lt": Int64(below)}
        with self._session(timeout) as session:
            while True:
                if session.change(tag, condition, {"$set": {"halted": True}}) is not None:
                    return True
                found = session.live(tag)
                if found.halted or (below is not None and found.max >= below):
                    return found.halted
                session.pause()

    def recover(self, tag: str, *, at_least: int, timeout: float) -> Tag:
        """See `Store.recover`."""
        check_argument("at_least", at_least)
        update: dict[str, Document] = {"$max": {"max": Int64(at_least)}, "$set": {"halted": False}}
        with self._session(timeout) as session:
            while True:
                after = session.change(tag, {"deleted": False}, update)
                if after is not None:
                    return after
                session.live(tag)
                session.pause()

    def ledger(self, tag: str, *, newest: int, timeout: float) -> list[LedgerEntry]:
        """See `Store.ledger`."""
        check_argument("newest", newest)
        if newest == 0:
            return []  # to MongoDB a limit of 0 is none
        with self._session(timeout, writes=False) as session:
            return [LedgerEntry.checked(each) for each in mongoledger.rows(session.segments, tag, newest)]

    def segments(
        self, tag: str, *, beyond: Position | None = None, upward: bool = False, count: int, timeout: float
    ) -> LedgerPage:
        """See `Store.segments`."""
        check_argument("count", count, 1)
        with self._session(timeout, writes=False) as session:
            found = mongoledger.rows(session.segments, tag, count, beyond=beyond, upward=upward)
            return LedgerPage.of(found, count)

    def entries(self, tag: str, ids: Collection[str], *, timeout: float) -> list[LedgerEntry]:
        """See `Store.entries`."""
        with self._session(timeout, writes=False) as session:
            return mongoledger.by_id(session.segments, tag, ids)

    def prune(self, *, before: int, timeout: float) -> int:
        """See `Store.prune`."""
        check_argument("before", before)
        with self._session(timeout) as session, session.write():
            return mongoledger.prune(session.segments, before)

    def examine(self, *, timeout: float) -> StoreFacts:
        """See `Store.examine`."""
        with self._session(timeout, writes=False) as session:
            return facts(session.tags)

    def upgrade(self, *, timeout: float) -> Upgrade:
        """See `Store.upgrade`. Of a database only the store's document is made; see `SCHEMA`."""
        with self._session(timeout):
            return Upgrade(1, 1)

    def after_fork(self) -> None:
        """Forget the parent's client; the next call makes another. With a database of yours, every call refuses.

        A call in a forked child does the same by itself. The client is kept, unused: its end would close the parent's
        connections.
        """
        if self._client is not None:
            _abandoned.append(self._client)
        self._lock = threading.Lock()
        self._client = None
        self._database = None
        self._store_id = ""
        self._collections = None
        self._process = os.getpid()

    def close(self) -> None:
        """Close the client, if it was made here; later calls raise Misconfigured."""
        if self._process != os.getpid():
            self.after_fork()
        with self._lock:
            self._closed = True
            client, self._client = self._client, None
        if client is not None:
            with pymongo.timeout(_LEAVING):
                client.close()

    @contextmanager
    def _session(self, timeout: float, *, writes: bool = True) -> Iterator[_Session]:
        deadline = CallDeadline(timeout)
        session = _Session(deadline)
        self._attempts.begin()
        try:
            with _unbound(), pymongo.timeout(deadline.left()):
                self._enter(session, self._connected(), writes=writes)
                yield session
        except Unconfirmed as error:
            self._doubtful = True
            if isinstance(error, _Replaced):
                self._collections = None  # the next call looks at what is there
            raise
        except (StoreError, ValueError):
            raise
        except Exception as error:
            # Not only PyMongoError: bson and dnspython have roots of their own, and the lot means the same here.
            meaning = translated(error, self.url, in_doubt=session.wrote or self._unanswered(session))
            self._doubtful = self._doubtful or isinstance(meaning, Unconfirmed)
            raise meaning from error

    def _unanswered(self, session: _Session) -> bool:
        """Whether a write may have been done that the server has not confirmed."""
        if self._given is None:
            return self._attempts.unanswered > 0
        # No listener counts what another's client sends; without its retries each error is the answer to one attempt.
        return session.writing and self._given.client.options.retry_writes

    def _enter(self, session: _Session, database: Database[Document], *, writes: bool) -> None:
        """Give the session its collections: this store's, or none are used. `writes`: make them if there are none."""
        collections, made = self._collections, False
        if collections is None:
            collections, meta, made = mongometa.find_or_make(database, self._prefix, session.pause, make=writes)
            if meta is None:
                session.take(collections, "")
                return
            if meta["schema"] > SCHEMA:
                newer = f"schema {meta['schema']}; this one supports {SCHEMA}"
                raise Misconfigured(f"the store was written by a newer version ({newer}): upgrade this program")
            self._store_id = meta["id"]
            self._collections, self._indexed = collections, False
        if writes and not self._indexed:
            self._indexed = True
            self._index(collections, empty=made)
        session.take(collections, self._store_id)

    def _index(self, collections: mongometa.Collections, *, empty: bool) -> None:
        """Make the index of the ledger, if it is missing: once in a process, and never at the cost of a call.

        In a ledger of many entries it takes longer than any call may, and a server gives up a build whose client has
        left: so that goes on in a thread. Without the index all is as right, and pages of the ledger come slowly.
        """
        if empty:
            self._make_index(collections, os.getpid())
        else:
            arguments = (collections, os.getpid())
            threading.Thread(target=self._make_index, args=arguments, name="issuer-index", daemon=True).start()

    def _make_index(self, collections: mongometa.Collections, process: int) -> None:
        try:
            with _unbound(), pymongo.timeout(_INDEX_PATIENCE):
                collections.segments.create_index(mongoledger.INDEX)
        except Exception as error:  # noqa: BLE001 - no number depends on it
            if not self._closed and process == os.getpid():
                log.warning(
                    "%s: the index of the ledger could not be created, so `verify`, `who` and pruning take longer: %s",
                    self.url,
                    translated(error, collections.segments.name, in_doubt=False),
                )

    def _connected(self) -> Database[Document]:
        if self._process != os.getpid():
            self.after_fork()
        with self._lock:
            if self._closed:
                raise Misconfigured(f"{self.url}: the store was closed")
            if self._given is not None and self._database is None:
                raise Misconfigured(
                    "a pymongo Database cannot be used in a forked child: create the store after the fork"
                )
            if self._database is None:
                named = mongometa.options(self._address)
                self._client = MongoClient(
                    self._address,
                    event_listeners=[self._attempts],
                    **{name: value for name, value in DEFAULTS.items() if name not in named},
                )
                self._database = self._client.get_default_database(default=DATABASE)
            return self._database


_abandoned: list[MongoClient[Document]] = []
