"""Documents of the collection `issuer_tags`: one for each tag."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from bson.int64 import Int64

from issuer_persistence.errors import Corrupt
from issuer_persistence.records import HIGHEST, SETTINGS, Setting, Tag

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
