"""One call to a MongoStore, and the form of its documents.

The collection `issuer_tags` has one document per tag. `issuer_segments`, the ledger, has one document per reservation.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, fields
from typing import Any

import pymongo
from bson.int64 import Int64
from pymongo import ReturnDocument, UpdateOne
from pymongo.collection import Collection
from pymongo.errors import BulkWriteError
from pymongo.monitoring import CommandFailedEvent, CommandListener, CommandStartedEvent, CommandSucceededEvent
from pymongo.synchronous import client_session

from issuer_persistence.contract import CallDeadline
from issuer_persistence.errors import Corrupt, TagMissing, Unconfirmed
from issuer_persistence.ledger import LedgerEntry, Position
from issuer_persistence.mongodb.server import refuses
from issuer_persistence.pruning import Ledger, Walked
from issuer_persistence.records import HIGHEST, SETTINGS, Setting, Tag, fresh_version, is_number, now_ms

Document = dict[str, Any]

#: Filter condition for an integer in 0..2^63-1. The condition does not use `$type: long`, because an operator may have
#: stored the number as an int, with NumberInt.
INTEGER: Document = {"$gte": Int64(0), "$lte": Int64(HIGHEST), "$not": {"$type": ["double", "decimal"]}}

_TEXT, _FLAG = {"$type": "string"}, {"$type": "bool"}


def _shape(name: str, setting: Setting) -> Document:
    """Return the filter condition for a valid value of the setting `name`.

    If the setting is not required, documents without the setting match, too: older versions wrote them.
    """
    if setting.range is not None:
        lowest, highest = setting.range
        held = {**INTEGER, "$gte": Int64(lowest), "$lte": Int64(highest)}
    elif setting.share is not None:
        least, most = setting.share
        held = {"$type": "double", "$gte": least, "$lte": most}
    elif setting.words:
        held = {"$in": [*setting.words]}
    elif setting.flag:
        held = _FLAG
    else:
        held = {"$type": "object"} if name == "scheme" else _TEXT
    return {name: held} if setting.required else {"$or": [{name: None}, {name: held}]}


_OWN_NUMBERS = ("max", "created", "timestamp")
_NUMBERS = (*_OWN_NUMBERS, *(name for name, setting in SETTINGS.items() if setting.range is not None))

#: Filter condition for a document that has the issuer's form: all fields have the right types and ranges.
OURS: Document = {
    **dict.fromkeys(_OWN_NUMBERS, INTEGER),
    "version": _TEXT,
    **dict.fromkeys(("halted", "deleted"), _FLAG),
    "$and": [_shape(name, setting) for name, setting in SETTINGS.items()],
}


#: Filter condition for a document that had the issuer's form when it was read: the fields that an update needs. With
#: these conditions the server needs 0.25 ms less for an update than with those of `OURS`.
KNOWN: Document = {"max": INTEGER, "version": _TEXT}


def our_tag(tag: str, condition: Document, form: Document) -> Document:
    """Return the filter of an update: the given condition, plus `form`, a condition for the document's form.

    A document of another form never matches. So documents of other programs, and numbers stored as floats, are never
    changed. The content of a scheme is not checked here, but when the document is read.
    """
    return {"_id": tag, "bizTag": tag, "$and": [form, condition]}


def _int64s(value: Any) -> Any:
    match value:
        case Mapping():
            return {name: _int64s(each) for name, each in value.items()}
        case list() | tuple():
            return [_int64s(each) for each in value]
        case int() if not isinstance(value, bool):
            return Int64(value)
    return value


def stored(fields: Mapping[str, Any]) -> Document:
    """Return the fields in the form in which MongoDB stores them. Fields with the value None are left out."""
    return {name: _int64s(value) for name, value in fields.items() if value is not None}


def tag_document(tag: Tag) -> Document:
    """Return the document for the record of a tag."""
    fields = stored(asdict(tag))
    del fields["tag"]
    return {"_id": tag.tag, "bizTag": tag.tag, **fields}


def tag_record(found: Mapping[str, Any]) -> Tag:
    """Return the tag's record in a document. If the document does not have the issuer's form, raise Corrupt."""
    tag = str(found.get("_id"))
    if found.get("bizTag") != found.get("_id"):
        raise Corrupt(tag, f"bizTag must be {tag!r}, not {found.get('bizTag')!r}")
    try:
        return Tag.checked(tag, found)
    except Corrupt as error:
        # mongosh stores 1000 as a double. Above 2^53, the double may differ from the number that was meant.
        values = {name: found.get(name) for name in _NUMBERS}
        whole = {each: n for each, n in values.items() if isinstance(n, float) and n.is_integer() and 0 <= n <= 2**53}
        if not whole:
            raise
        repair = ", ".join(f'{name}: NumberLong("{value:.0f}")' for name, value in whole.items())
        raise Corrupt(tag, f"{error.problem}: in mongosh, use updateOne with {{$set: {{{repair}}}}}") from None


#: Sort order of the ledger, with the highest numbers first. The index needs all three fields. If it contained only
#: `tag` and `high`, MongoDB would sort all entries of a tag for each page.
DOWN = [("high", pymongo.DESCENDING), ("low", pymongo.DESCENDING), ("_id", pymongo.DESCENDING)]
_UP = [(name, pymongo.ASCENDING) for name, _ in DOWN]
INDEX = [("tag", pymongo.ASCENDING), *DOWN]

#: Filter condition for a ledger entry that may be changed or deleted: the entry has all fields, with the right types.
#: So documents of another program in the same collection are safe.
OUR_ENTRY: Document = {
    "_id": {"$type": "string", "$regex": "^[0-9a-f]{24}$"},
    "low": INTEGER,
    "high": INTEGER,
    "time": INTEGER,
    "pid": INTEGER,
    "reason": {"$type": "string"},
    "host": {"$type": "string"},
}


_ENTRY = [each.name for each in fields(LedgerEntry)]


def entry_document(entry: LedgerEntry) -> Document:
    """Return the document for a ledger entry."""
    document = {name: getattr(entry, name) for name in _ENTRY}  # `asdict` needs 30 us for its deep copies
    document["_id"] = document.pop("id")
    for name in ("low", "high", "time"):
        document[name] = Int64(document[name])
    return document


def rows(
    segments: Collection[Document], tag: str, count: int, *, beyond: Position | None = None, upward: bool = False
) -> list[Document]:
    """Return the documents of a page of the ledger. The arguments are those of `Store.segments`."""
    further = {} if beyond is None else following(beyond, upward=upward)
    found = segments.find({"tag": tag, **further})
    return [entry_row(each) for each in found.sort(_UP if upward else DOWN).limit(min(count, 2**31 - 1))]


def following(beyond: Position, *, upward: bool) -> Document:
    """Return the filter condition for the entries of a tag that follow a position."""
    than = "$gt" if upward else "$lt"
    high, low, entry = beyond
    if isinstance(high, bool) or not isinstance(high, int | float):
        # The last entry of the previous page is damaged: its `high` is, for example, a text. Such entries are sorted
        # before all numbers. `$lt` would find no numbers, because it does not compare a text with numbers. So the next
        # page begins with the entry that has the highest number.
        return {"high": {"$lte": Int64(HIGHEST)}}
    same = {"high": _exact(high), "low": _exact(low)}
    return {
        "high": {f"{than}e": _exact(high)},
        "$or": [
            {"high": {than: _exact(high)}},
            {"high": _exact(high), "low": {than: _exact(low)}},
            {**same, "_id": {than: entry}},
        ],
    }


def _exact(value: object) -> object:
    return Int64(value) if is_number(value, -HIGHEST) else value  # type: ignore[call-overload]  # an int by then


def by_id(segments: Collection[Document], tag: str, ids: Iterable[str]) -> list[LedgerEntry]:
    """Return the ledger entries of a tag that have the given ids."""
    return [LedgerEntry.checked(entry_row(each)) for each in segments.find({"_id": {"$in": [*ids]}, "tag": tag})]


def write_nothing(segments: Collection[Document]) -> None:
    """Send a write that changes nothing, to raise an error if the ledger cannot be written."""
    segments.update_one({"_id": "", "$and": [OUR_ENTRY]}, {"$min": {"high": Int64(0)}})


def shorten(segments: Collection[Document], tag: str, highs: Mapping[str, int]) -> None:
    """Lower the `high` of ledger entries. `highs`: the new values, by the ids of the entries."""
    segments.bulk_write(
        [
            UpdateOne({"_id": entry, "tag": tag, "$and": [OUR_ENTRY]}, {"$min": {"high": Int64(high)}})
            for entry, high in highs.items()
        ]
    )


def entry_row(found: Document) -> Document:
    """Return a document of the ledger with its id in the field `id`, as `LedgerEntry.checked` expects it."""
    return {**found, "id": found.get("_id")}


#: Newest schema (version of the layout) that this program supports. The program rejects a newer schema. A database
#: keeps schema 1 until one of its tags gets a scheme, which turns counter values into numbers: programs for schema 1
#: would ignore the scheme, and issue the counter values. Other settings, such as `lease`, need no new schema: older
#: programs keep unknown fields.
SCHEMA = 2

_random = random.SystemRandom()


@contextmanager
def unbound() -> Iterator[None]:
    """Run the block outside of a pymongo session that the caller may have bound.

    Since pymongo 4.17, the caller can bind a session with `ClientSession.bind`. Each later operation joins it. Then the
    caller could roll back our reservations together with its own transaction. If the session belongs to another client
    than the store's, the store's operations would fail.
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


#: Code of the error for a document with an `_id` that exists.
_DUPLICATE = 11000

_WRITES = {"findAndModify", "insert", "update", "delete"}

# A ContextVar has one value per thread or greenlet, even if gevent patches the process later.
_unanswered: ContextVar[int] = ContextVar("unanswered", default=0)


class Attempts(CommandListener):
    """Counts the writes of the current call that have no reply: the server may have made these writes.

    pymongo repeats a failed write, and raises only the error of the second attempt. So even if this error is "not
    authorized", the first attempt may have changed something.
    """

    @property
    def unanswered(self) -> int:
        """Number of writes of the call that the server may have done, but has not confirmed."""
        return _unanswered.get()

    def started(self, event: CommandStartedEvent) -> None:
        """Add 1 for a write that pymongo sends."""
        if event.command_name in _WRITES:
            _unanswered.set(_unanswered.get() + 1)

    def succeeded(self, event: CommandSucceededEvent) -> None:
        """Subtract 1 for a write that the server has confirmed."""
        if event.command_name in _WRITES:
            _unanswered.set(_unanswered.get() - 1)

    def failed(self, event: CommandFailedEvent) -> None:
        """Subtract 1 for a write that the server has rejected.

        After any other error, the server may have made the write, so it still counts.
        """
        failure = event.failure
        if event.command_name in _WRITES and refuses(failure.get("code"), str(failure.get("errmsg"))):
            _unanswered.set(_unanswered.get() - 1)


class Replaced(Unconfirmed):
    """The store's `meta` document was replaced or removed since it was last read."""


class MongoCall:
    """One call to the store: the collections that it uses, and its deadline.

    Attributes:
        tags: Collection of the tags.
        segments: Collection of the ledger.
        meta: Collection with the document of the store.
        store_id: Id of the store that the collections belong to. "" if there is no store yet.
        wrote: True if a write of this call has taken effect.
        writing: True if the result of the last write is not known yet.
    """

    tags: Collection[Document]
    segments: Collection[Document]
    meta: Collection[Document]
    store_id: str

    def __init__(self, deadline: CallDeadline) -> None:
        _unanswered.set(0)
        self._deadline = deadline
        self._longest = 0.001
        self.wrote = self.writing = False

    @contextmanager
    def write(self) -> Iterator[None]:
        """Record that the block writes, so that a later error of the call is known to come after a change."""
        self.writing = True
        yield
        self.wrote, self.writing = True, False

    def pause(self) -> None:
        """Wait before the next attempt. The wait grows and is random, so that processes do not retry all at once."""
        time.sleep(min(self._deadline.left(), _random.uniform(0, self._longest)))
        self._longest = min(0.05, 2 * self._longest)

    def read(self, tag: str) -> Tag | None:
        """Return the record of a tag, also of a deleted tag. None if the tag was never created."""
        found = self.tags.find_one({"_id": tag})
        return None if found is None else tag_record(found)

    def read_many(self, tags: Iterable[str]) -> dict[str, Tag]:
        """Return the records of these tags, by name. Tags that were never created are left out."""
        return {each["_id"]: tag_record(each) for each in self.tags.find({"_id": {"$in": [*tags]}})}

    def live(self, tag: str) -> Tag:
        """Return the record of a tag. If the tag was never created, or was deleted, raise TagMissing."""
        found = self.read(tag)
        if found is None:
            raise TagMissing(tag)
        return found.live()

    def change(
        self, tag: str, condition: Document, update: Mapping[str, Document], *, form: Document = OURS
    ) -> Tag | None:
        """Change the tag's document in one atomic step, and return the new record.

        If the document does not meet the condition, or does not have the form `form`, change nothing and return None.
        """
        fresh = {"version": fresh_version(), "timestamp": Int64(now_ms())}
        self.writing = True
        after = self.tags.find_one_and_update(
            our_tag(tag, condition, form),
            {**update, "$set": {**update.get("$set", {}), **fresh}},
            return_document=ReturnDocument.AFTER,
        )
        self.writing = False
        if after is None:
            return None
        self.wrote = True
        try:
            return tag_record(after)
        except Corrupt as error:
            # `Corrupt` would mean that nothing was changed, but the update was done.
            raise Unconfirmed(str(error)) from error

    def swap(self, before: Tag, after: Tag) -> Tag | None:
        """Replace the record `before` by `after`. If the record has changed in the meantime, return None."""
        update = {"$set": {name: value for name, value in tag_document(after).items() if name != "_id"}}
        if after.lease is None:
            update["$unset"] = {"lease": ""}
        return self.change(before.tag, {"version": before.version, "max": Int64(before.max)}, update)

    def create(self, made: Sequence[Tag], found: Mapping[str, Tag]) -> list[Tag] | None:
        """Write the records of new tags, and return them. `found`: records of deleted tags with the same names.

        If another process has written one of the records in the meantime, undo all writes and return None.
        """
        new = [each for each in made if each.tag not in found]
        inserted = self._insert(new) if new else 0
        done = {each.tag: each for each in new[:inserted]}
        for each in made if inserted == len(new) else ():
            if each.tag in found:
                revived = self.swap(found[each.tag], each)
                if revived is None:
                    break
                done[each.tag] = revived
        if len(done) == len(made):
            return [done[each.tag] for each in made]
        self._undo(done, found)
        return None

    def _insert(self, records: Sequence[Tag]) -> int:
        """Insert the records in their order, up to the first one that exists. Return how many were inserted."""
        self.writing = True
        try:
            self.tags.insert_many([tag_document(each) for each in records])
        except BulkWriteError as error:
            if error.details["writeConcernErrors"] or error.details["writeErrors"][0]["code"] != _DUPLICATE:
                raise
            inserted = int(error.details["nInserted"])
        else:
            inserted = len(records)
        self.wrote, self.writing = self.wrote or inserted > 0, False
        return inserted

    def _undo(self, done: Mapping[str, Tag], found: Mapping[str, Tag]) -> None:
        """Undo the writes of `create`: delete new records, and mark the tags in `found` as deleted again.

        If the version of a record has changed, the tag is in use by now, and numbers may have been reserved. Then the
        record stays, and this method raises Unconfirmed. `found`: records of deleted tags, as they were before.
        """
        new = [each for each in done.values() if each.tag not in found]
        these = {"_id": {"$in": [each.tag for each in new]}, "version": {"$in": [each.version for each in new]}}
        gone = self.tags.delete_many(these).deleted_count if new else 0
        put_back = [self.swap(done[tag], before) for tag, before in found.items() if tag in done]
        if gone < len(new) or None in put_back:
            raise Unconfirmed("another process created one of the tags, and the others are in use already")

    def announce(self) -> None:
        """Set the store's schema to SCHEMA. This call comes before a tag gets a scheme.

        Older programs would ignore the scheme. With the new schema, they reject the store.
        """
        self._update_meta({"$max": {"schema": SCHEMA}})

    def confirm(self) -> None:
        """Make a harmless write to `meta` and to the ledger. Raise an error if one does not reach a majority."""
        self._update_meta({"$set": {"confirmed": Int64(now_ms())}})
        write_nothing(self.segments)

    def _update_meta(self, update: Document) -> None:
        if self.meta.update_one({"_id": "store", "id": self.store_id}, update).matched_count == 0:
            raise Replaced(
                f"the store's document in {self.meta.name} is missing, or belongs to another store: check whether a "
                "backup was restored"
            )


#: The index sorts a tag's highest number first, so it is read backward, the last tag first.
_BACKWARD = [(name, -direction) for name, direction in INDEX]
_FIELDS = ["tag", "high", "low", "time"]


class MongoLedger(Ledger):
    """The ledger in one call to the store. pymongo tells the server the call's time limit in each request."""

    def __init__(self, call: MongoCall) -> None:
        self._call = call
        self._store = {"_id": "store", "id": call.store_id}

    def progress(self) -> str:
        return str((self._call.meta.find_one(self._store) or {}).get("pruning", ""))

    def note_progress(self, progress: str) -> None:
        """See `Ledger`. Other programs keep unknown fields of this document."""
        with self._call.write():
            self._call.meta.update_one(self._store, {"$set": {"pruning": progress}})

    def oldest(self, tag: str, beyond: Position | None, count: int) -> list[Walked]:
        """See `Ledger`. Documents of other programs are left out."""
        place: Document = {"tag": {"$lt": tag} if tag else {"$type": "string"}}
        if beyond is not None:
            place = {"tag": tag, **following(beyond, upward=True)}
        found = self._call.segments.find({**place, "$and": [OUR_ENTRY]}, _FIELDS).sort(_BACKWARD).limit(count)
        return [Walked(*(each[name] for name in ("tag", "high", "low", "_id", "time"))) for each in found]

    def drop(self, ids: Sequence[str]) -> None:
        with self._call.write():
            self._call.segments.delete_many({"_id": {"$in": [*ids]}})
