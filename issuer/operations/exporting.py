"""Export of tags: for each tag, the arguments with which `create` makes the tag again in another store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from issuer.core import parts, record, scheme_record
from issuer.core.error_mapping import store_error
from issuer.core.steps import Steps
from issuer.errors import IssuerError
from issuer.gateway.keys import PART
from issuer.numbers.codec import strides
from issuer.operations.tag_options import AS_GIVEN, TAG_OPTIONS
from issuer_persistence.errors import Corrupt
from issuer_persistence.records import HIGHEST, Tag, TagSettings

_DEFAULTS = TagSettings()


@dataclass(frozen=True, slots=True)
class ExportPage:
    """A page of an export. `tags`: for each tag, the arguments of `create`, and the name of the tag as `tag`.

    `left_out`: tags that `create` cannot continue. `damaged`: errors of damaged records. `last`: name of the tag after
    which the next page begins, None after the last page.
    """

    tags: list[dict[str, Any]]
    left_out: list[str]
    damaged: list[IssuerError]
    last: str | None


def export_page(after: str | None) -> Steps[ExportPage]:
    """Return a page of tags, sorted by name.

    Parts, such as `orders#17`, are left out, because `create` makes the parts together with their tag. `after`: name
    after which the page begins. None means the first page.
    """
    found = yield from record.page_of_tags(after)
    page = ExportPage([], [], [], found[-1].tag if len(found) == record.PAGE else None)
    for each in found:
        if isinstance(each, Corrupt):
            page.damaged.append(store_error(each, each.tag))
        elif scheme_record.PART_OF in each.scheme:
            continue
        elif (said := arguments(each)) is None or (parts.has_parts(each) and (yield from _has_used_parts(each))):
            page.left_out.append(each.tag)
        else:
            page.tags.append({"tag": each.tag, **said})
    return page


def _has_used_parts(tag: Tag) -> Steps[bool]:
    used = yield from record.select(lambda each: parts.is_part(each, tag.tag) and each.max > 0, f"{tag.tag}{PART}")
    return bool(used)


def arguments(tag: Tag) -> dict[str, Any] | None:
    """Return the arguments with which `create` makes this tag again, by name. Default values are left out.

    The new tag begins after all reserved numbers of this tag. Return None if that is not possible: if this tag has
    reserved numbers with periods or scrambled numbers, the new tag would issue them again.
    """
    scheme = tag.scheme
    found = _position(tag)
    if found is None:
        return None
    if tag.step_mode == "fixed":
        found["step"] = tag.step
    if (last := scheme_record.last_value(scheme, tag.limit)) != HIGHEST:
        found["limit"] = last
    if scheme_record.strategy(scheme) == scheme_record.SEGMENT:
        found["order"] = tag.order
        if tag.order == "trend" and tag.lease_mode == "set":
            found["lease"] = "process" if tag.lease is None else tag.lease
    for name in AS_GIVEN:
        if (value := getattr(tag, name)) != getattr(_DEFAULTS, name):
            found[name] = value
    for name in ("format", "restart", "timezone", "keyed", "shards", "strategy", "options"):
        if name in scheme:
            found[name] = dict(sorted(scheme[name].items())) if name == "options" else scheme[name]
    found |= _scrambling(tag)
    return {name: found[name] for name in TAG_OPTIONS if name in found}


def _position(tag: Tag) -> dict[str, Any] | None:
    """Return the arguments with which the new tag continues after this tag: `start`, and those of the stride.

    Return None if the new tag would issue old numbers again.
    """
    scheme = tag.scheme
    if "stride" in scheme:
        pieces = strides(scheme)
        last, first = pieces.pieces[-1], pieces.value(tag.max + 1)
        if last.start > tag.max + 1 or first > HIGHEST:
            return None
        offset = (last.first - 1) % last.stride + 1
        found = {"stride": last.stride, "offset": offset}
        return {"start": first, **found} if first > offset else found
    used = tag.max >= scheme.get("start", 1) if "scramble" in scheme else tag.max > 0 and "restart" in scheme
    if used or tag.max >= HIGHEST:
        return None
    return {"start": tag.max + 1} if tag.max else {}


def _scrambling(tag: Tag) -> Mapping[str, Any]:
    pieces = tag.scheme.get("scramble", ())
    if not pieces:
        return {}
    alone = len(pieces) == 1 and pieces[0]["from"] == tag.max + 1
    keys = pieces[0]["key"] if alone else [[piece["from"], piece["key"]] for piece in pieces]
    return {"scramble": keys} | ({"scramble_strict": True} if tag.order == "strict" else {})
