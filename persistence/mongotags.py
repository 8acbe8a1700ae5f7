"""Tags in MongoDB: the collection `tags`, one document each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from bson.int64 import Int64

from persistence.records import AHEAD_MOST, HIGHEST, LEASE_MOST, Tag

Document = dict[str, Any]

# A document of another shape never matches, so a foreign one is never changed, nor a float counted up. Not by
# `$type: long`: mongoeco shrinks a small long to an int, and finds no long at all by its type.
_INTEGER: Document = {"$gte": Int64(0), "$lte": Int64(HIGHEST), "$not": {"$type": ["double", "decimal"]}}
#: What a document must meet to be changed. What a scheme holds is checked when it is read, and not before.
OURS: Document = {
    "max": _INTEGER,
    "step": _INTEGER,
    "limit": _INTEGER,
    "version": {"$type": "string"},
    "$and": [
        {"$or": [{name: None}, {name: {**_INTEGER, "$gte": Int64(least), "$lte": Int64(most)}}]}
        for name, least, most in (("lease", 0, LEASE_MOST), ("ahead", 1, AHEAD_MOST))
    ]
    + [{"$or": [{"scheme": None}, {"scheme": {"$type": "object"}}]}],
}


def _int64s(value: Any) -> Any:
    """Return it with every integer in it, however deep, as one of 64 bits."""
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
    """Return the record that a document holds. Corrupt if it is none of ours."""
    return Tag.checked(str(found.get("_id")), found)
