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
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pymongo
from bson.int64 import Int64
from pymongo import MongoClient
from pymongo.errors import DuplicateKeyError

from issuer_persistence.contract import CallDeadline, Store
from issuer_persistence.errors import Misconfigured, StoreError, TagMissing, Unconfirmed
from issuer_persistence.facts import StoreFacts, Upgrade
from issuer_persistence.ledger import LedgerEntry, LedgerPage, Position, Purpose, Reservation
from issuer_persistence.mongodb import ledger_documents, ownership, tag_documents
from issuer_persistence.mongodb.call import SCHEMA, MongoCall, Replaced, unbound
from issuer_persistence.mongodb.server import Attempts, facts, translated
from issuer_persistence.records import Tag, TagChanges, TagSettings, check_argument
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

#: Seconds that `close` takes to tell the server that sessions end, which it notices in half an hour by itself: a server
#: that hangs kept a program's end waiting for 12 s.
_LEAVING = 0.5

#: Seconds after which a process gives up the index of the ledger: a server that builds it stops then.
_INDEX_PATIENCE = 3600


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
        self._address, named = ownership.without_prefix(address)
        prefix = named if prefix is None else prefix
        self._prefix = None if prefix is None else ownership.checked(prefix)
        self._lock = threading.Lock()
        self._client: MongoClient[Document] | None = None
        self._database = database
        self._process = os.getpid()
        self._closed = False
        # Read once in a process: every extension asks for it.
        self._store_id = ""
        self._collections: ownership.Collections | None = None
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
        ownership.check_url(url)
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
        with self._call(timeout, writes=False):
            return self._store_id

    def create(self, tag: str, settings: TagSettings, *, timeout: float) -> Tag:
        """See `Store.create`."""
        with self._call(timeout) as call:
            while True:
                found = call.read(tag)
                made = Tag.made(tag, found, settings)
                call.announce(made.scheme)
                if found is not None:
                    if (revived := call.swap(found, made)) is not None:
                        return revived
                else:
                    try:
                        with call.write():
                            call.tags.insert_one(tag_documents.document(made))
                    except DuplicateKeyError:
                        pass  # made by another process meanwhile: look again
                    else:
                        return made
                call.pause()

    def get(self, tag: str, *, timeout: float) -> Tag | None:
        """See `Store.get`."""
        with self._call(timeout, writes=False) as call:
            return call.read(tag)

    def tags(self, *, timeout: float) -> list[Tag]:
        """See `Store.tags`."""
        with self._call(timeout, writes=False) as call:
            found = [tag_documents.record(each) for each in call.tags.find({"deleted": {"$ne": True}})]
        return sorted(found, key=lambda each: each.tag)

    def reserve_checked(
        self, tag: str, n: int | None, *, purpose: Purpose, at_least: int, exact: bool, timeout: float
    ) -> Reservation:
        """See `Store.reserve_checked`. If only the ledger entry could not be written, it raises Unconfirmed: a gap."""
        with self._call(timeout) as call:
            if self._doubtful:
                call.confirm()
                self._doubtful = False
            after, size = self._advance(call, tag, n, at_least=at_least, exact=exact)
            self._hints[tag] = after
            # By what was sent, never by a step read again: that may have changed since.
            entry = purpose.entry(tag, after.max - size, after.max)
            call.segments.insert_one(ledger_documents.document(entry))
        return Reservation(after, entry.low, entry.high, entry.id)

    def _advance(self, call: MongoCall, tag: str, n: int | None, *, at_least: int, exact: bool) -> tuple[Tag, int]:
        """Move `max` up; the record after it, and by how much."""
        hint = self._hints.get(tag)
        while True:
            if hint is not None:
                size = hint.segment if n is None else n
                try:
                    after = self._increment(call, hint, size, at_least=at_least, step_matters=n is None)
                except Unconfirmed:
                    # Perhaps for a scheme that is none, which the filter can't tell: read it before the next attempt,
                    # so that it costs one segment and no more.
                    self._hints.pop(tag, None)
                    raise
                if after is not None:
                    return after, size
            self._hints.pop(tag, None)
            before = call.live(tag)
            wanted = before.reserved(n, at_least=at_least, exact=exact)
            size = wanted.max - before.max
            # The last, shorter segment.
            if size < (before.segment if n is None else n):
                after = call.swap(before, wanted)
                if after is not None:
                    return after, size
            call.pause()
            hint = before

    @staticmethod
    def _increment(call: MongoCall, hint: Tag, size: int, *, at_least: int, step_matters: bool) -> Tag | None:
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
        return call.change(hint.tag, condition, {"$inc": {"max": Int64(size)}})

    def hand_back_checked(
        self, held: Sequence[Reservation], highs: Mapping[str, int], rest: int, *, timeout: float
    ) -> bool:
        """See `Store.hand_back_checked`."""
        last = held[-1]
        with self._call(timeout) as call:
            with call.write():
                ledger_documents.shorten(call.segments, last.tag.tag, highs)
            condition = {"version": last.version, "max": Int64(last.high)}
            return call.change(last.tag.tag, condition, {"$set": {"max": Int64(rest)}}) is not None

    def configure(self, tag: str, changes: TagChanges, *, timeout: float) -> Tag:
        """See `Store.configure`."""
        update = {"$set": tag_documents.stored(changes.kept())}
        if changes.raise_to is not None:
            update["$max"] = {"max": Int64(changes.raise_to)}
        with self._call(timeout) as call:
            while True:
                found = call.live(tag)
                wanted = found.configured(changes)
                # The order, as the tag may be deleted and made again meanwhile: a strict one must not get a lease.
                condition: Document = {"deleted": False, "order": found.order}
                if changes.seen is not None:
                    condition["version"] = found.version
                call.announce(changes.scheme or {})
                if changes.limit is not None or changes.raise_to is not None:
                    # Not `version`: reservations, which move it all the time, may go on beside this.
                    condition |= {"limit": Int64(found.limit), "max": {"$lte": Int64(wanted.limit)}}
                after = call.change(tag, condition, update)
                if after is not None:
                    return after
                call.pause()

    def delete(self, tag: str, *, timeout: float) -> Tag:
        """See `Store.delete`."""
        with self._call(timeout) as call:
            while True:
                found = call.read(tag)
                if found is None:
                    raise TagMissing(tag)
                if found.deleted:
                    return found
                # By when it was made: a request that comes late must not bury a tag that was made again since.
                this_one = {"deleted": False, "created": Int64(found.created)}
                after = call.change(tag, this_one, {"$set": {"deleted": True}})
                if after is not None:
                    return after
                call.pause()

    def halt(self, tag: str, *, below: int | None = None, timeout: float) -> bool:
        """See `Store.halt`."""
        if below is not None:
            check_argument("below", below)
        condition: Document = {"deleted": False, "halted": False}
        if below is not None:
            condition["max"] = {"$lt": Int64(below)}
        with self._call(timeout) as call:
            while True:
                if call.change(tag, condition, {"$set": {"halted": True}}) is not None:
                    return True
                found = call.live(tag)
                if found.halted or (below is not None and found.max >= below):
                    return found.halted
                call.pause()

    def recover(self, tag: str, *, at_least: int, timeout: float) -> Tag:
        """See `Store.recover`."""
        check_argument("at_least", at_least)
        update: dict[str, Document] = {"$max": {"max": Int64(at_least)}, "$set": {"halted": False}}
        with self._call(timeout) as call:
            while True:
                after = call.change(tag, {"deleted": False}, update)
                if after is not None:
                    return after
                call.live(tag)
                call.pause()

    def ledger(self, tag: str, *, newest: int, timeout: float) -> list[LedgerEntry]:
        """See `Store.ledger`."""
        check_argument("newest", newest)
        if newest == 0:
            return []  # to MongoDB a limit of 0 is none
        with self._call(timeout, writes=False) as call:
            return [LedgerEntry.checked(each) for each in ledger_documents.rows(call.segments, tag, newest)]

    def segments(
        self, tag: str, *, beyond: Position | None = None, upward: bool = False, count: int, timeout: float
    ) -> LedgerPage:
        """See `Store.segments`."""
        check_argument("count", count, 1)
        with self._call(timeout, writes=False) as call:
            found = ledger_documents.rows(call.segments, tag, count, beyond=beyond, upward=upward)
            return LedgerPage.of(found, count)

    def entries(self, tag: str, ids: Collection[str], *, timeout: float) -> list[LedgerEntry]:
        """See `Store.entries`."""
        with self._call(timeout, writes=False) as call:
            return ledger_documents.by_id(call.segments, tag, ids)

    def prune(self, *, before: int, timeout: float) -> int:
        """See `Store.prune`."""
        check_argument("before", before)
        with self._call(timeout) as call, call.write():
            return ledger_documents.prune(call.segments, before)

    def examine(self, *, timeout: float) -> StoreFacts:
        """See `Store.examine`."""
        with self._call(timeout, writes=False) as call:
            return facts(call.tags)

    def upgrade(self, *, timeout: float) -> Upgrade:
        """See `Store.upgrade`. Of a database only the store's document is made; see `SCHEMA`."""
        with self._call(timeout):
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
    def _call(self, timeout: float, *, writes: bool = True) -> Iterator[MongoCall]:
        deadline = CallDeadline(timeout)
        call = MongoCall(deadline)
        self._attempts.begin()
        try:
            with unbound(), pymongo.timeout(deadline.left()):
                self._enter(call, self._connected(), writes=writes)
                yield call
        except Unconfirmed as error:
            self._doubtful = True
            if isinstance(error, Replaced):
                self._collections = None  # the next call looks at what is there
            raise
        except (StoreError, ValueError):
            raise
        except Exception as error:
            # Not only PyMongoError: bson and dnspython have roots of their own, and the lot means the same here.
            meaning = translated(error, self.url, in_doubt=call.wrote or self._unanswered(call))
            self._doubtful = self._doubtful or isinstance(meaning, Unconfirmed)
            raise meaning from error

    def _unanswered(self, call: MongoCall) -> bool:
        """Whether a write may have been done that the server has not confirmed."""
        if self._given is None:
            return self._attempts.unanswered > 0
        # No listener counts what another's client sends; without its retries each error is the answer to one attempt.
        return call.writing and self._given.client.options.retry_writes

    def _enter(self, call: MongoCall, database: Database[Document], *, writes: bool) -> None:
        """Give the call its collections: this store's, or none are used. `writes`: make them if there are none."""
        collections, made = self._collections, False
        if collections is None:
            collections, meta, made = ownership.find_or_make(database, self._prefix, call.pause, make=writes)
            if meta is None:
                call.take(collections, "")
                return
            if meta["schema"] > SCHEMA:
                newer = f"schema {meta['schema']}; this one supports {SCHEMA}"
                raise Misconfigured(f"the store was written by a newer version ({newer}): upgrade this program")
            self._store_id = meta["id"]
            self._collections, self._indexed = collections, False
        if writes and not self._indexed:
            self._indexed = True
            self._index(collections, empty=made)
        call.take(collections, self._store_id)

    def _index(self, collections: ownership.Collections, *, empty: bool) -> None:
        """Make the index of the ledger, if it is missing: once in a process, and never at the cost of a call.

        In a ledger of many entries it takes longer than any call may, and a server gives up a build whose client has
        left: so that goes on in a thread. Without the index all is as right, and pages of the ledger come slowly.
        """
        if empty:
            self._make_index(collections, os.getpid())
        else:
            arguments = (collections, os.getpid())
            threading.Thread(target=self._make_index, args=arguments, name="issuer-index", daemon=True).start()

    def _make_index(self, collections: ownership.Collections, process: int) -> None:
        try:
            with unbound(), pymongo.timeout(_INDEX_PATIENCE):
                collections.segments.create_index(ledger_documents.INDEX)
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
                named = ownership.options(self._address)
                self._client = MongoClient(
                    self._address,
                    event_listeners=[self._attempts],
                    **{name: value for name, value in DEFAULTS.items() if name not in named},
                )
                self._database = self._client.get_default_database(default=DATABASE)
            return self._database


_abandoned: list[MongoClient[Document]] = []
