"""JSON schemas of the replies. Most schemas are derived from the dataclasses that the replies show."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from typing import Any, Final

from msgspec.json import schema_components

from issuer.care.inspection import Inspection, RedisState, StoreState
from issuer.care.recovery import Recovery
from issuer.care.verification import Provenance
from issuer.doors.web.replies import NUMBERS
from issuer.numbers.codec import Decoded
from issuer.views import OF_COUNTERS
from issuer_persistence.ledger import LedgerEntry
from issuer_persistence.records import HIGHEST, Tag

Schema = dict[str, Any]

#: A number of a tag. With `as=string` it is a string of digits.
NUMBER: Final[Schema] = {"type": ["integer", "string"], "minimum": -1, "maximum": HIGHEST, "pattern": "^[0-9]+$"}
_TEXT: Final[Schema] = {"type": "string"}
_WHOLE: Final[Schema] = {"type": "integer"}
_FLAG: Final[Schema] = {"type": "boolean"}

_REF: Final = "#/components/schemas/{name}"
_KINDS: Final = (Decoded, Inspection, LedgerEntry, Provenance, Recovery, RedisState, StoreState, Tag)
#: The schemas of the dataclasses, by name, without defaults. A reply calls an entry of the ledger a segment.
_DESCRIBED: Final = json.loads(
    json.dumps(schema_components(_KINDS, ref_template=_REF)[1]).replace("LedgerEntry", "Segment"),
    object_hook=lambda found: {name: each for name, each in found.items() if name != "default"},
)


def _ref(name: str) -> Schema:
    return {"$ref": _REF.format(name=name)}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _with_numbers(schema: Schema) -> Schema:
    if schema == _WHOLE:
        return NUMBER
    inner = {"anyOf": [*map(_with_numbers, schema["anyOf"])]} if "anyOf" in schema else {}
    return {**schema, **inner} | ({"items": _with_numbers(schema["items"])} if "items" in schema else {})


def _record(name: str, *, without: Sequence[str] = (), maybe: Collection[str] = (), **more: Schema) -> Schema:
    """Return the schema of a dataclass. `maybe`: its optional fields. `more`: additional members."""
    properties = {
        each: _with_numbers(schema) if each in NUMBERS else schema
        for each, schema in (_DESCRIBED[name]["properties"] | more).items()
        if each not in without
    }
    return _shape(properties, [each for each in properties if each not in maybe])


def _shape(properties: Mapping[str, Schema], required: Sequence[str] | None = None, *, closed: bool = True) -> Schema:
    wanted = [*(properties if required is None else required)]
    shape: Schema = {"type": "object", "properties": dict(properties), "required": wanted}
    return shape | {"additionalProperties": False} if closed else shape


def _list(name: str) -> Schema:
    return {"type": "array", "items": _ref(name)}


_CODE: Final = _or_null({"type": "string"}) | {
    "description": "Error code; `unknown` before the first check; null: it answers, or there is none"
}
_NEXT: Final = _or_null({"type": "string"}) | {"description": "`cursor` of the next page; null on the last page"}

SCHEMAS: Final[Mapping[str, Schema]] = {
    "Number": _shape(
        {
            "tag": _TEXT,
            "number": NUMBER,
            "text": {"type": "string", "description": "The number in the tag's format"},
            "period": {"type": "string", "description": "Such as 2026-11-21; only for tags with `restart`"},
            "shard": {"type": "integer", "description": "Only for tags with shards"},
        },
        ["tag", "number"],
    ),
    "Numbers": _shape({"tag": _TEXT, "numbers": {"type": "array", "items": NUMBER}}),
    "Range": _shape({"tag": _TEXT, "first": NUMBER, "last": NUMBER}),
    # A strategy, such as Snowflake, adds its own fields as members. It chooses their names.
    "Decoded": {
        **_record("Decoded", without=("fields",), maybe={each.name for each in fields(Decoded)} - {"tag", "value"}),
        "additionalProperties": {"type": "integer"},
    },
    "Tag": _record("Tag", maybe=OF_COUNTERS),
    "Tags": _shape({"tags": _list("Tag")}),
    "TagPage": _shape({"tags": _list("Tag"), "damaged": _list("DamagedTag"), "next": _NEXT}),
    "DamagedTag": _shape({"tag": _TEXT, "problem": _TEXT}),
    "StoreState": _record("StoreState", maybe=OF_COUNTERS),
    "RedisState": _record("RedisState"),
    "Waste": _shape({"numbers": _WHOLE, "of": _WHOLE, "since": _WHOLE}),
    "Inspection": _record(
        "Inspection",
        without=("waiting",),
        maybe=("redis_error", "scheme", "parts", "period", "shared_with", "layout", *OF_COUNTERS),
        layout={"type": "object"},
    ),
    "Segment": _record("Segment", without=("tag",), utc=_TEXT),
    "SegmentPage": _shape({"segments": _list("Segment"), "damaged": {"type": "array", "items": _TEXT}, "next": _NEXT}),
    "Provenance": _record("Provenance", maybe=("value",), state=_TEXT, value=NUMBER),
    "Recovery": _record(
        "Recovery",
        without=("sound",),
        maybe=("redis_error", "asked", "unasked", "unvouched", "old_in_period", "new_in_period"),
    ),
    "Recoveries": _shape({"dry_run": _FLAG, "recoveries": _list("Recovery")}),
    "Discrepancy": _shape(
        {
            "tag": _TEXT,
            "kind": _TEXT,
            "first": _or_null(NUMBER),
            "last": _or_null(NUMBER),
            "message": _TEXT,
            "remedy": _TEXT,
            "entries": _list("Segment"),
        }
    ),
    "Discrepancies": _shape({"discrepancies": _list("Discrepancy")}),
    "CheckedTag": _shape(
        {"tag": _TEXT, "done": _WHOLE, "of": _WHOLE}
        | {"discrepancies": _list("Discrepancy"), "error": _or_null(_ref("Problem"))}
    ),
    "Finding": _shape(
        {
            **dict.fromkeys(("check", "subject", "what", "why", "remedy"), _TEXT),
            "level": {"enum": ["weak", "advice", "unknown", "ok"]},
            "tag": _or_null(_TEXT),
            "error": _or_null(_TEXT) | {"description": "Class of the error, if the check could not be completed"},
        }
    ),
    "Findings": _shape({"findings": _list("Finding")}),
    "Relayed": _shape({"replies": {"description": "The reply of each command"}}),
    "Stored": _shape(
        {
            "result": {"description": "What the call returned"},
            "error": _shape({"kind": _TEXT, "message": _TEXT, "values": {"type": "object"}}),
        },
        [],
    ),
    "Health": _shape({"status": {"const": "ok"}}),
    "Readiness": _shape(
        {
            "ready": _FLAG,
            "store": _CODE,
            "redis": _CODE,
            "halted": {"type": "integer", "description": "Count of halted tags"},
            "halted_tags": {"type": "array", "items": _TEXT, "description": "Halted tags that the token may read"},
        }
    ),
    "Problem": {
        **_shape(
            {
                "type": {"const": "about:blank"},
                "title": _TEXT,
                "status": {"type": "integer", "minimum": 400, "maximum": 599},
                "code": {"type": "string", "description": "Identifies the problem; never changes"},
                "detail": {"type": "string", "description": "What is wrong, and what to do"},
                "tag": _or_null(_TEXT),
                "retry_after": {"type": "number", "description": "Seconds until a retry can succeed"},
            },
            ["type", "title", "status", "code", "detail"],
            closed=False,
        ),
        "description": "Problem details (RFC 9457), with the values of the error as further members.",
    },
}
