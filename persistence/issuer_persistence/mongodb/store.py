"""A store in MongoDB: a replica set, a sharded cluster, a standalone server, or a service with the protocol of MongoDB.

There are three collections. `issuer_tags` has one document per tag: `_id` and `bizTag` are the tag's name,
`refill_at` is a double, `step_mode` is a text, `drain` is a bool, `scheme` is a document, and numbers such as `step`
and `lease` are Int64. `issuer_segments` is the ledger. `issuer_meta` contains the id of the store. The prefix `issuer_`
can be changed.

Writes use majority and journal, and reads go to the primary, whatever the URL requests. Otherwise, after a rollback of
the primary, the same range would be reserved twice. The filter of every change matches only documents that have the
issuer's form, so that documents of other programs are never changed.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import takewhile
from typing import Any

import pymongo
from bson.int64 import Int64
from pymongo.database import Database
from pymongo.errors import OperationFailure

from issuer_persistence.contract import CallDeadline, Store, T, in_turn
from issuer_persistence.credentials import Credentials
from issuer_persistence.errors import Corrupt, Misconfigured, StoreError, TagMissing, Unconfirmed
from issuer_persistence.facts import StoreFacts, Upgrade
from issuer_persistence.ledger import LedgerEntry, LedgerPage, Position, Purpose, Reservation
from issuer_persistence.mongodb import server
from issuer_persistence.mongodb.call import (
    INDEX,
    KNOWN,
    SCHEMA,
    Attempts,
    MongoCall,
    MongoLedger,
    Replaced,
    by_id,
    entry_document,
    rows,
    shorten,
    stored,
    tag_record,
    unbound,
)
from issuer_persistence.mongodb.clients import Clients, LoginRefused, renewing
from issuer_persistence.mongodb.pages import answered
from issuer_persistence.mongodb.server import facts, translated
from issuer_persistence.newest import Newest
from issuer_persistence.pruning import Pruned, prune
from issuer_persistence.reads import Read, alike
from issuer_persistence.records import Tag, TagChanges, TagSettings, check_argument, tried
from issuer_persistence.urls import mask

log = logging.getLogger("issuer.store")

Document = dict[str, Any]

#: Options of the client. The URL can override them. With pymongo's timeouts of 30 s and 20 s, callers would wait too
#: long for a server that is down. With `connect` False, pymongo starts its threads at the first request. Otherwise it
#: would start them while `_connected` holds its lock. In a forked child under gevent, this can be a lock that gevent
#: has not patched. Then all greenlets would hang. After an error of a server that shuts down, pymongo uses the server
#: again at its next heartbeat: with pymongo's 10 s, calls failed for 10 s, although the server answered all the time.
#: A heartbeat of 1 s takes 0.2 % of one processor core, for a replica set of three servers.
DEFAULTS: dict[str, Any] = {
    "heartbeatfrequencyms": 1000,
    "serverselectiontimeoutms": 3000,
    "connecttimeoutms": 3000,
    "appname": "segment-issuer",
    "connect": False,
}

#: Time limit for creating the index of the ledger, in seconds. After this time the server stops building it.
_INDEX_PATIENCE = 3600

#: How many tags' records are remembered at most, see `_hints`. Each record takes 0.6 KB. If the record of a tag is not
#: remembered, a reservation needs one more round trip.
HINTS_MOST = 10_000


class MongoStore(Store):
    """A store with its tags and ledger in a MongoDB database.

    A reservation is one findOneAndUpdate, followed by the insert of its ledger entry. A store that was opened by a URL
    creates one pymongo client per process, at the first call.

    Args:
        database: Database object of the caller. The store never closes its client.
        prefix: Prefix of the collections' names. Each prefix is a separate store. None means `issuer_`, or no prefix if
            the first versions of the issuer have created the store.
        address: URL of the store. It is used if `database` is None.
        credentials: Where the passwords come from. None: the URL has the password.
    """

    def __init__(
        self,
        database: Database[Document] | None = None,
        *,
        prefix: str | None = None,
        address: str = "",
        credentials: Credentials | None = None,
    ) -> None:
        if database is not None and not database.write_concern.acknowledged:
            raise Misconfigured("w=0 is not reliable: remove it; majority is used in any case")
        self._given = database
        self._shown = mask(address)
        plain, named = server.without_prefix(address)
        own = server.options(plain)
        self._attempts = Attempts()
        options = {name: value for name, value in DEFAULTS.items() if name not in own}
        self._clients = Clients(database, plain, {**options, "event_listeners": [self._attempts]}, credentials)
        prefix = named if prefix is None else prefix
        self._prefix = None if prefix is None else server.checked(prefix)
        # Id and collections of the store. Both are read once per process, because each reservation needs them.
        self._store_id = ""
        self._collections: server.Collections | None = None
        self._indexed = False
        # Id of the store to which this process has announced the newest schema, see `_announce`.
        self._announced = ""
        # True after a failed call. Then the next reservation first checks that writes reach a majority.
        self._doubtful = False
        # Last known records of the tags with the newest reservations. The next reservation of such a tag uses the step
        # and limit of this record, and need not read the record first. The filter of the update contains both values.
        # If one is outdated, the filter matches nothing, and the record is read after all.
        self._hints: Newest[Tag] = Newest(HINTS_MOST)

    @classmethod
    def open(cls, url: str) -> MongoStore:
        """Return the store for a URL, without I/O. If the URL is invalid, raise Misconfigured, see `check_url`."""
        server.check_url(url)
        return cls(address=url)

    @classmethod
    def open_with(cls, url: str, credentials: Credentials) -> MongoStore:
        server.check_url(url, credentials)
        return cls(address=url, credentials=credentials)

    @property
    def url(self) -> str:
        """The URL without secrets. For a database object of the caller: its name, and the servers known so far."""
        if self._given is None:
            return self._shown
        nodes = ",".join(sorted(f"{host}:{port}" for host, port in self._given.client.nodes)) or "?"
        return f"mongodb://{nodes}/{self._given.name}"

    @renewing
    def store_id(self, *, timeout: float) -> str:
        with self._call(timeout, writes=False):
            return self._store_id

    @renewing
    def create_many(self, settings: Mapping[str, TagSettings], *, timeout: float) -> list[Tag]:
        """See `Store.create_many`. If the process ends during the call, some of the tags may have been created.

        There is no transaction, because only a replica set or a sharded cluster has transactions. All records are
        checked before the first write. If another process has created one of the tags in the meantime, this call undoes
        its own writes. If a new tag is in use by then, the tag remains, and the call raises Unconfirmed.
        """
        with self._call(timeout) as call:
            # A single tag is mostly new, such as a series: then the insert suffices. TagPresent comes before LimitHit.
            look = len(settings) > 1 or any(each.above >= each.limit for each in settings.values())
            while True:
                found = call.read_many(settings) if look else {}
                made = [Tag.made(tag, found.get(tag), each) for tag, each in settings.items()]
                self._announce(call, *(each.scheme for each in made))
                done = call.create(made, found)
                if done is not None:
                    return done
                look = True
                call.pause()

    def _announce(self, call: MongoCall, *schemes: Mapping[str, object] | None) -> None:
        """Before tags get schemes: announce the schema.

        A restored `meta` document can have the old schema and the same id. So a tag's own scheme is announced each
        time. Parts, such as series, are announced once for each store. The parent of a part was read from the store
        just before, and has a scheme, so its database has the new schema.
        """
        given = [each for each in schemes if each]
        own = any("part_of" not in each or "machine" in each for each in given)  # a machine number has no parent tag
        if own or (given and self._announced != call.store_id):
            call.announce()
            self._announced = call.store_id

    @renewing
    def get(self, tag: str, *, timeout: float) -> Tag | None:
        with self._call(timeout, writes=False) as call:
            return call.read(tag)

    @renewing
    def tags(self, *, after: str | None = None, count: int, timeout: float) -> list[Tag | Corrupt]:
        check_argument("count", count, 1)
        following: Document = {} if after is None else {"_id": {"$gt": after}}
        with self._call(timeout, writes=False) as call:
            found = call.tags.find({**following, "deleted": {"$ne": True}}).sort("_id").limit(min(count, 2**31 - 1))
            return [tried(tag_record, each) for each in found]

    @renewing
    def reserve_checked(
        self, tag: str, n: int | None, *, purpose: Purpose, at_least: int, exact: bool, timeout: float
    ) -> Reservation:
        """See `Store.reserve_checked`. If the ledger entry cannot be written, raise Unconfirmed and use no numbers."""
        with self._call(timeout) as call:
            if self._doubtful:
                call.confirm()
                self._doubtful = False
            after, size = self._advance(call, tag, n, at_least=at_least, exact=exact)
            self._hints[tag] = after
            # Use the size that was sent to the server. The record's step may have changed in the meantime.
            entry = purpose.entry(tag, after.max - size, after.max)
            call.segments.insert_one(entry_document(entry))
        return Reservation(after, entry.low, entry.high, entry.id, call.store_id)

    def _advance(self, call: MongoCall, tag: str, n: int | None, *, at_least: int, exact: bool) -> tuple[Tag, int]:
        """Raise `max` for a reservation. Return the new record, and how many numbers were reserved."""
        hint = self._hints.get(tag)
        while True:
            if hint is not None:
                size = hint.segment if n is None else n
                try:
                    after = self._increment(call, hint, size, at_least=at_least, step_matters=n is None)
                except Unconfirmed:
                    # Since the record was read, somebody may have written an invalid value that the filter does not
                    # check. So remove the remembered record. The next attempt reads the record first, so an invalid
                    # value wastes only one segment.
                    self._hints.pop(tag, None)
                    raise
                if after is not None:
                    return after, size
                self._hints.pop(tag, None)
                call.pause()
            before = call.live(tag)
            wanted = before.reserved(n, at_least=at_least, exact=exact)
            size = wanted.max - before.max
            # If fewer numbers than a full segment are left up to the limit, reserve these numbers.
            if size < (before.segment if n is None else n):
                after = call.swap(before, wanted)
                if after is not None:
                    return after, size
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
        return call.change(hint.tag, condition, {"$inc": {"max": Int64(size)}}, form=KNOWN)

    @renewing
    def hand_back_checked(
        self, held: Sequence[Reservation], highs: Mapping[str, int], rest: int, *, timeout: float
    ) -> bool:
        last = held[-1]
        with self._call(timeout) as call:
            with call.write():
                shorten(call.segments, last.tag.tag, highs)
            condition = {"version": last.version, "max": Int64(last.high)}
            return call.change(last.tag.tag, condition, {"$set": {"max": Int64(rest)}}) is not None

    @renewing
    def configure(self, tag: str, changes: TagChanges, *, timeout: float) -> Tag:
        update = {"$set": stored(changes.settings)}
        if changes.raise_to is not None:
            update["$max"] = {"max": Int64(changes.raise_to)}
        with self._call(timeout) as call:
            while True:
                found = call.live(tag)
                wanted = found.configured(changes)
                # The order is checked because a strict tag must not get a lease. In the meantime, the tag may have been
                # deleted and created again as a strict tag.
                condition: Document = {"deleted": False, "order": found.order}
                if changes.seen is not None:
                    condition["version"] = found.version
                if {"min_step", "max_step"} & changes.settings.keys():
                    # Check that the bounds have not changed since the record was read. Otherwise two changes at the
                    # same time could set a `min_step` above `max_step`.
                    bounds = {"min_step": found.min_step, "max_step": found.max_step}
                    condition |= {name: {"$in": [None, Int64(bound)]} for name, bound in bounds.items()}
                self._announce(call, changes.settings.get("scheme"))
                if "limit" in changes.settings or changes.raise_to is not None:
                    # Check the limit and `max`, and not the version: each reservation changes the version, so with many
                    # reservations this change would fail again and again.
                    condition |= {"limit": Int64(found.limit), "max": {"$lte": Int64(wanted.limit)}}
                after = call.change(tag, condition, update)
                if after is not None:
                    return after
                call.pause()

    @renewing
    def delete(self, tag: str, *, timeout: float) -> Tag:
        with self._call(timeout) as call:
            while True:
                found = call.read(tag)
                if found is None:
                    raise TagMissing(tag)
                if found.deleted:
                    return found
                # The time of creation is checked: if the tag was deleted and created again in the meantime, this
                # delayed request must not delete the new tag.
                this_one = {"deleted": False, "created": Int64(found.created)}
                after = call.change(tag, this_one, {"$set": {"deleted": True}})
                if after is not None:
                    return after
                call.pause()

    @renewing
    def halt(self, tag: str, *, below: int | None = None, timeout: float) -> bool:
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

    @renewing
    def recover(self, tag: str, *, at_least: int, timeout: float) -> Tag:
        check_argument("at_least", at_least)
        update: dict[str, Document] = {"$max": {"max": Int64(at_least)}, "$set": {"halted": False}}
        with self._call(timeout) as call:
            while True:
                after = call.change(tag, {"deleted": False}, update)
                if after is not None:
                    return after
                call.live(tag)
                call.pause()

    @renewing
    def ledger(self, tag: str, *, newest: int, timeout: float) -> list[LedgerEntry]:
        check_argument("newest", newest)
        if newest == 0:
            return []  # in MongoDB, a limit of 0 means no limit
        with self._call(timeout, writes=False) as call:
            return [LedgerEntry.checked(each) for each in rows(call.segments, tag, newest)]

    @renewing
    def segments(
        self, tag: str, *, beyond: Position | None = None, upward: bool = False, count: int, timeout: float
    ) -> LedgerPage:
        check_argument("count", count, 1)
        with self._call(timeout, writes=False) as call:
            found = rows(call.segments, tag, count, beyond=beyond, upward=upward)
            return LedgerPage.of(found, count)

    @renewing
    def entries(self, tag: str, ids: Collection[str], *, timeout: float) -> list[LedgerEntry]:
        with self._call(timeout, writes=False) as call:
            return by_id(call.segments, tag, ids)

    @renewing
    def prune(self, *, before: int, timeout: float) -> Pruned:
        check_argument("before", before)
        with self._call(timeout) as call:
            return prune(MongoLedger(call), before)

    def batch(self, calls: Sequence[Callable[[Store, float], T]], *, timeout: float) -> list[T | StoreError]:
        """See `Store.batch`. If the first calls read the same of different tags, this is one request."""
        deadline, reads = CallDeadline(timeout), alike(calls)
        if len(reads) > 1:
            with self._call(deadline.left(), writes=False) as call, suppress(OperationFailure):
                if answers := answered(call, reads):
                    return answers
        others = [*takewhile(lambda each: not isinstance(each, Read), calls)]
        return in_turn(self, others or calls[: len(reads)], deadline.left())

    @renewing
    def examine(self, *, timeout: float) -> StoreFacts:
        with self._call(timeout, writes=False) as call:
            return facts(server.Collections(call.tags, call.segments, call.meta), call.pause)

    @renewing
    def upgrade(self, *, timeout: float) -> Upgrade:
        """See `Store.upgrade`. This only creates a missing `meta` document. The schema changes later, see `SCHEMA`."""
        with self._call(timeout):
            return Upgrade(1, 1)

    def after_fork(self) -> None:
        """Discard the parent's client. The next call creates a new one, or raises an error if the caller gave it."""
        self._clients.forget()
        self._store_id = ""
        self._collections = None

    def close(self) -> None:
        """Close the client if the store created it. Later calls raise Misconfigured."""
        self._clients.close()

    @contextmanager
    def _call(self, timeout: float, *, writes: bool = True) -> Iterator[MongoCall]:
        deadline = CallDeadline(timeout)
        call = MongoCall(deadline)
        database = None
        try:
            with unbound(), pymongo.timeout(deadline.left()):
                database = self._clients.enter(deadline.left())
                collections, call.store_id = self._entered(database, call.pause, writes=writes)
                call.tags, call.segments, call.meta = collections
                yield call
        except Unconfirmed as error:
            self._doubtful = True
            if isinstance(error, Replaced):
                self._collections = None  # the next call searches the collections again
                self._announced = ""
            raise
        except (StoreError, ValueError):
            raise
        except Exception as error:
            # `PyMongoError` is not enough: bson and dnspython raise other errors.
            meaning = translated(error, self.url, in_doubt=call.wrote or self._unanswered(call))
            self._doubtful = self._doubtful or isinstance(meaning, Unconfirmed)
            refused = database is not None and server.refuses_login(error) and self._clients.refused(database)
            if refused and isinstance(meaning, Misconfigured):
                meaning = LoginRefused(str(meaning))
            raise meaning from error
        finally:
            if database is not None:
                self._clients.leave(database)

    def _unanswered(self, call: MongoCall) -> bool:
        """Return True if the server may have done a write that it has not confirmed."""
        if self._given is None:
            return self._attempts.unanswered > 0
        # The caller's own client does not count its attempts. If it retries writes, the error is that of the last
        # attempt, and an earlier one may have changed something. If it does not, the error is that of the only attempt.
        return call.writing and self._given.client.options.retry_writes

    def _entered(
        self, database: Database[Document], pause: Callable[[], None], *, writes: bool
    ) -> tuple[server.Collections, str]:
        """Return the store's collections and id. If the store does not exist and `writes` is True, create the store."""
        collections, made = self._collections, False
        if collections is None or collections.meta.database is not database:
            collections, meta, made = server.find_or_make(database, self._prefix, pause, make=writes)
            if meta is None:
                return collections, ""
            if meta["schema"] > SCHEMA:
                newer = f"schema {meta['schema']}; this one supports {SCHEMA}"
                raise Misconfigured(f"the store was written by a newer version ({newer}): upgrade this program")
            self._store_id = meta["id"]
            self._collections, self._indexed = collections, False
        if writes and not self._indexed:
            self._indexed = True
            arguments = (collections, os.getpid())
            if made:
                self._make_index(*arguments)
            else:
                # The ledger may be large. Then it takes longer to create the index than a call may take. At the timeout
                # the client disconnects, and the server stops. So a thread creates the index.
                threading.Thread(target=self._make_index, args=arguments, name="issuer-index", daemon=True).start()
        return collections, self._store_id

    def _make_index(self, collections: server.Collections, process: int) -> None:
        """Create the index of the ledger if it is missing. Without the index, reading the ledger is only slow."""
        try:
            with unbound(), pymongo.timeout(_INDEX_PATIENCE):
                indexes = collections.segments.index_information().values()
                if not any(each["key"] == INDEX for each in indexes):  # the user may lack the right to create it
                    collections.segments.create_index(INDEX)
        except Exception as error:  # noqa: BLE001 - no number depends on it
            if self._clients.serves(collections.meta.database) and process == os.getpid():
                log.warning(
                    "%s: the index of the ledger could not be created, so `verify`, `who` and pruning take longer: %s",
                    self.url,
                    translated(error, collections.segments.name, in_doubt=False),
                )
