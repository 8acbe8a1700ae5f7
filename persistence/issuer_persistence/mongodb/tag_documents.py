"""Tags in MongoDB: the collection `issuer_tags`, one document each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from bson.int64 import Int64

from issuer_persistence.errors import Corrupt
from issuer_persistence.records import HIGHEST, SETTINGS, Setting, Tag

Document = dict[str, Any]

#: An integer that this program writes. Not by `$type: long`: mongoeco shrinks a small long to an int, and finds no long
#: at all by its type.
INTEGER: Document = {"$gte": Int64(0), "$lte": Int64(HIGHEST), "$not": {"$type": ["double", "decimal"]}}

_TEXT, _FLAG = {"$type": "string"}, {"$type": "bool"}


def _shape(name: str, setting: Setting) -> Document:
    """Return what a document must meet to hold the setting; one of before may lack it."""
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
    """Return what a document must meet to be changed: the shape of a tag's record, `bizTag` included, and that.

    A document of another shape never matches, so a foreign one is never changed, nor a float counted up. What a scheme
    holds is checked when it is read, and not before.
    """
    return {"_id": tag, "bizTag": tag, "$and": [_OURS, condition]}


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
    tag = str(found.get("_id"))
    if found.get("bizTag") != found.get("_id"):
        raise Corrupt(tag, f"bizTag must be {tag!r}, not {found.get('bizTag')!r}")
    return Tag.checked(tag, found)
