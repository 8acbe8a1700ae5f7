"""The ledger in MongoDB: the collection `segments`, one document per reservation."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pymongo
from bson.int64 import Int64

from persistence.records import HIGHEST, LedgerEntry, is_number

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pymongo.collection import Collection

    from persistence.records import Position

Document = dict[str, Any]

#: The order of the ledger, the highest numbers first. All of it is in the index: with `tag` and `high` alone MongoDB
#: would sort all of a tag's entries for each page of them.
_DOWN = [("high", pymongo.DESCENDING), ("low", pymongo.DESCENDING), ("_id", pymongo.DESCENDING)]
_UP = [(name, pymongo.ASCENDING) for name, _ in _DOWN]
INDEX = [("tag", pymongo.ASCENDING), *_DOWN]


def document(entry: LedgerEntry) -> Document:
    """Return the entry as it is stored."""
    fields = asdict(entry)
    fields["_id"] = fields.pop("id")
    for name in ("low", "high", "time"):
        fields[name] = Int64(fields[name])
    return fields


def rows(
    segments: Collection[Document],
    tag: str,
    count: int,
    *,
    beyond: Position | None = None,
    upward: bool = False,
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
        # Texts and the like come before all numbers, in an order that `$lt` doesn't know.
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
    """Return the tag's entries that have one of these ids."""
    return [LedgerEntry.checked(_named(each)) for each in segments.find({"_id": {"$in": [*ids]}, "tag": tag})]


def prune(segments: Collection[Document], before: int) -> int:
    """Drop entries older than that, but for each tag's newest; return how many."""
    dropped = 0
    for tag in segments.distinct("tag"):
        kept = [each["id"] for each in rows(segments, tag, 1)]
        old = {"tag": tag, "time": {"$lt": Int64(before)}, "_id": {"$nin": kept}}
        dropped += segments.delete_many(old).deleted_count
    return dropped


def _named(found: Document) -> Document:
    return {**found, "id": found.get("_id")}
