"""One call of a MongoStore: its collections, its deadline, its writes, and the documents that it reads and writes.

The collection `issuer_tags` has one document per tag. `issuer_segments`, the ledger, has one per reservation.
"""

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
from issuer_persistence.mongodb.server import refuses
from issuer_persistence.records import fresh_version, now_ms

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pymongo.monitoring import CommandFailedEvent, CommandStartedEvent, CommandSucceededEvent

    from issuer_persistence.contract import CallDeadline
    from issuer_persistence.mongodb.server import Collections
    from issuer_persistence.records import Tag


from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

import pymongo
from pymongo import UpdateOne

from issuer_persistence.ledger import LedgerEntry
from issuer_persistence.records import HIGHEST, SETTINGS, Setting, Tag, is_number

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pymongo.collection import Collection

    from issuer_persistence.ledger import Position


Document = dict[str, Any]

#: Condition for an integer that this program writes. It does not use `$type: long`, because mongoeco stores small
#: integers as int, and finds no long by its type.
INTEGER: Document = {"$gte": Int64(0), "$lte": Int64(HIGHEST), "$not": {"$type": ["double", "decimal"]}}

_TEXT, _FLAG = {"$type": "string"}, {"$type": "bool"}


def _shape(name: str, setting: Setting) -> Document:
    """Return the condition for a valid setting. Documents of older versions may lack it."""
    if setting.range is not None:
        lowest, highest = setting.range
        held = {**INTEGER, "$gte": Int64(lowest), "$lte": Int64(highest)}
    elif setting.words:
        held = {"$in": [*setting.words]}
    else:
        held = {"$type": "object"} if name == "scheme" else _TEXT
    return {name: held} if setting.required else {"$or": [{name: None}, {name: held}]}


_OURS: Document = {
    **dict.fromkeys(("max", "created", "timestamp"), INTEGER),
    "version": _TEXT,
    **dict.fromkeys(("halted", "deleted"), _FLAG),
    "$and": [_shape(name, setting) for name, setting in SETTINGS.items()],
}


def our_tag(tag: str, condition: Document) -> Document:
    """Return the filter of an update: the condition, and the fields and types that a tag's document has.

    A document of another form never matches. So no document of another program is changed, and no float is counted up.
    The contents of a scheme are checked only when it is read.
    """
    return {"_id": tag, "bizTag": tag, "$and": [_OURS, condition]}


def _int64s(value: Any) -> Any:
    """Return the value with all its integers, on every level, as Int64."""
    match value:
        case Mapping():
            return {name: _int64s(each) for name, each in value.items()}
        case list() | tuple():
            return [_int64s(each) for each in value]
        case int() if not isinstance(value, bool):
            return Int64(value)
    return value


def stored(fields: Mapping[str, Any]) -> Document:
    """Return the fields that are set, as they are stored."""
    return {name: _int64s(value) for name, value in fields.items() if value is not None}


def tag_document(tag: Tag) -> Document:
    """Return the record as it is stored."""
    fields = stored(asdict(tag))
    del fields["tag"]
    return {"_id": tag.tag, "bizTag": tag.tag, **fields}


def tag_record(found: Mapping[str, Any]) -> Tag:
    """Return the record of a document. Raise Corrupt if the document is not one of the issuer's."""
    tag = str(found.get("_id"))
    if found.get("bizTag") != found.get("_id"):
        raise Corrupt(tag, f"bizTag must be {tag!r}, not {found.get('bizTag')!r}")
    return Tag.checked(tag, found)


#: Order of the ledger, the highest numbers first. The index has all three fields. With only `tag` and `high`, MongoDB
#: would sort all entries of a tag for each page.
_DOWN = [("high", pymongo.DESCENDING), ("low", pymongo.DESCENDING), ("_id", pymongo.DESCENDING)]
_UP = [(name, pymongo.ASCENDING) for name, _ in _DOWN]
INDEX = [("tag", pymongo.ASCENDING), *_DOWN]

#: Condition for a document that may be changed or deleted: each field of an entry, with its type. Another program may
#: have documents in the collection that also have a tag and a time.
OUR_ENTRY: Document = {
    "_id": {"$type": "string", "$regex": "^[0-9a-f]{24}$"},
    "low": INTEGER,
    "high": INTEGER,
    "time": INTEGER,
    "pid": INTEGER,
    "reason": {"$type": "string"},
    "host": {"$type": "string"},
}


def entry_document(entry: LedgerEntry) -> Document:
    """Return the entry as it is stored."""
    fields = asdict(entry)
    fields["_id"] = fields.pop("id")
    for name in ("low", "high", "time"):
        fields[name] = Int64(fields[name])
    return fields


def rows(
    segments: Collection[Document], tag: str, count: int, *, beyond: Position | None = None, upward: bool = False
) -> list[Document]:
    """Return `count` entries as they are stored; see `Store.segments`."""
    found = segments.find({"tag": tag, **_following(beyond, upward=upward)})
    return [_named(each) for each in found.sort(_UP if upward else _DOWN).limit(min(count, 2**31 - 1))]


def _following(beyond: Position | None, *, upward: bool) -> Document:
    if beyond is None:
        return {}
    than = "$gt" if upward else "$lt"
    high, low, entry = beyond
    if isinstance(high, bool) or not isinstance(high, int | float):
        # Texts and other types come first. `$lt` does not compare them with numbers.
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
    """Return the entries of a tag with the given ids."""
    return [LedgerEntry.checked(_named(each)) for each in segments.find({"_id": {"$in": [*ids]}, "tag": tag})]


def write_nothing(segments: Collection[Document]) -> None:
    """Send a write that changes nothing. It fails if the ledger cannot be written."""
    segments.update_one({"_id": "", "$and": [OUR_ENTRY]}, {"$min": {"high": Int64(0)}})


def shorten(segments: Collection[Document], tag: str, highs: Mapping[str, int]) -> None:
    """Lower the `high` of entries. `highs` has the new values by id."""
    segments.bulk_write(
        [
            UpdateOne({"_id": entry, "tag": tag, "$and": [OUR_ENTRY]}, {"$min": {"high": Int64(high)}})
            for entry, high in highs.items()
        ]
    )


def prune(segments: Collection[Document], before: int) -> int:
    """Delete entries older than `before`, except the newest of each tag. Return how many were deleted."""
    dropped = 0
    for tag in segments.distinct("tag"):
        newest = segments.find_one({"tag": tag, "$and": [OUR_ENTRY]}, sort=_DOWN) if isinstance(tag, str) else None
        if newest is not None:
            old = {"tag": tag, "time": {"$lt": Int64(before)}, "$and": [OUR_ENTRY, {"_id": {"$ne": newest["_id"]}}]}
            dropped += segments.delete_many(old).deleted_count
    return dropped


def _named(found: Document) -> Document:
    return {**found, "id": found.get("_id")}


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
        return None if found is None else tag_record(found)

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
            our_tag(tag, condition),
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
            # Not Corrupt: it would mean that nothing has changed.
            raise Unconfirmed(str(error)) from error

    def swap(self, before: Tag, after: Tag) -> Tag | None:
        """Replace the record `before` by `after`. None if the record is not `before` any more."""
        update = {"$set": {name: value for name, value in tag_document(after).items() if name != "_id"}}
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
        write_nothing(self.segments)

    def _update_meta(self, update: Document) -> None:
        if self.meta.update_one(self._store, update).matched_count == 0:
            raise Replaced(
                f"the store's document in {self.meta.name} is missing, or belongs to another store: check whether a "
                "backup was restored"
            )
