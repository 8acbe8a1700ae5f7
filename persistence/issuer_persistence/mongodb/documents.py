"""Documents of the collections `issuer_tags`, one per tag, and `issuer_segments`, the ledger, one per reservation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pymongo
from bson.int64 import Int64
from pymongo import UpdateOne

from issuer_persistence.errors import Corrupt
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


def ours(tag: str, condition: Document) -> Document:
    """Return the filter for a change: the form of a tag's document, and the given condition.

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


def document(tag: Tag) -> Document:
    """Return the record as it is stored."""
    fields = stored(asdict(tag))
    del fields["tag"]
    return {"_id": tag.tag, "bizTag": tag.tag, **fields}


def record(found: Mapping[str, Any]) -> Tag:
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
