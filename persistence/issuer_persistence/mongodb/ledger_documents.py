"""Documents of the collection `issuer_segments`, the ledger: one for each reservation."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pymongo
from bson.int64 import Int64
from pymongo import UpdateOne

from issuer_persistence.ledger import LedgerEntry
from issuer_persistence.mongodb.tag_documents import INTEGER
from issuer_persistence.records import HIGHEST, is_number

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pymongo.collection import Collection

    from issuer_persistence.ledger import Position

Document = dict[str, Any]

#: Order of the ledger, the highest numbers first. The index has all three fields. With only `tag` and `high`, MongoDB
#: would sort all entries of a tag for each page.
_DOWN = [("high", pymongo.DESCENDING), ("low", pymongo.DESCENDING), ("_id", pymongo.DESCENDING)]
_UP = [(name, pymongo.ASCENDING) for name, _ in _DOWN]
INDEX = [("tag", pymongo.ASCENDING), *_DOWN]

#: Condition for a document that may be changed or deleted: each field of an entry, with its type. Another program may
#: have documents in the collection that also have a tag and a time.
OURS: Document = {
    "_id": {"$type": "string", "$regex": "^[0-9a-f]{24}$"},
    "low": INTEGER,
    "high": INTEGER,
    "time": INTEGER,
    "pid": INTEGER,
    "reason": {"$type": "string"},
    "host": {"$type": "string"},
}


def document(entry: LedgerEntry) -> Document:
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
    segments.update_one({"_id": "", "$and": [OURS]}, {"$min": {"high": Int64(0)}})


def shorten(segments: Collection[Document], tag: str, highs: Mapping[str, int]) -> None:
    """Lower the `high` of entries. `highs` has the new values by id."""
    segments.bulk_write(
        [
            UpdateOne({"_id": entry, "tag": tag, "$and": [OURS]}, {"$min": {"high": Int64(high)}})
            for entry, high in highs.items()
        ]
    )


def prune(segments: Collection[Document], before: int) -> int:
    """Delete entries older than `before`, except the newest of each tag. Return how many were deleted."""
    dropped = 0
    for tag in segments.distinct("tag"):
        newest = segments.find_one({"tag": tag, "$and": [OURS]}, sort=_DOWN) if isinstance(tag, str) else None
        if newest is not None:
            old = {"tag": tag, "time": {"$lt": Int64(before)}, "$and": [OURS, {"_id": {"$ne": newest["_id"]}}]}
            dropped += segments.delete_many(old).deleted_count
    return dropped


def _named(found: Document) -> Document:
    return {**found, "id": found.get("_id")}
