"""Compares tags of another issuer with the tags here, and raises existing tags. New tags are made by `create_many`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from issuer.care.importing.layouts import ImportedTag
from issuer.core import floor, parts, scheme_record
from issuer.core.steps import Steps, ask, send
from issuer.core.supply.peek import upcoming
from issuer.errors import InvalidArgument
from issuer.gateway import tag_scripts
from issuer.gateway.keys import check_tag
from issuer.numbers.codec import strides
from issuer.operations.config import IssuerConfig
from issuer.operations.tag_options import TagOptions
from issuer.operations.tags import compare, configure
from issuer_persistence.errors import LimitHit
from issuer_persistence.reads import ReadTag
from issuer_persistence.records import HIGHEST, Tag, TagChanges, TagSettings

#: Settings of a scheme whose numbers are not those of an imported tag.
_STRANGE = {"scramble", "restart", "keyed", "strategy", scheme_record.PART_OF}


@dataclass(frozen=True, slots=True)
class ImportPlan:
    """The changes that the import makes for one tag. `first`, `limit`: the first and the last number here.

    `options`: arguments of `create`, or None if the tag exists. `changes`: new limit of an existing tag. `raises`:
    False if an existing tag already issues only higher numbers, and keeps its limit. `settings`: those of a new tag.
    """

    source: ImportedTag
    first: int
    limit: int
    options: dict[str, Any] | None = None
    changes: int | None = None
    raises: bool = True
    settings: TagSettings | None = None


def plan(
    source: ImportedTag, config: IssuerConfig, *, split: int | None, given: Mapping[str, Any]
) -> Steps[ImportPlan]:
    """Return what the import does to a tag. Nothing is changed. Raises InvalidArgument if it cannot be imported.

    `split`: how many numbers the source gives away. `given`: settings of a new tag in place of the source's.
    """
    tag, last, deleted = check_tag(source.tag), source.last, 0
    record = yield from ask(ReadTag(tag))
    limit = before = source.limit
    if record is not None:
        _check_scheme(source, record)
        if record.deleted:
            deleted, record = record.max, None
        elif source.app is None:
            before = scheme_record.last_value(record.scheme, record.limit)
            # A limit that the source has passed is the limit of an earlier split.
            limit = before if before > last else limit
    if split is not None:
        limit = min(limit, last + source.span(split))
    used = max(last, deleted)
    if source.following(used) > limit:
        raise InvalidArgument(f"no number above {used} is left up to the limit {limit}", tag=tag, value=limit)
    if record is None:
        asked = TagOptions.of(options := {**source.options(limit), **given})
        yield from compare(tag, asked, config)
        settings = asked.settings(tag, limit=HIGHEST, redis=config.redis is not None)
        return ImportPlan(source, source.shown(source.following(used)), limit, options, settings=settings)
    if split is not None:
        yield from _check_split(source, record, config)
    changes = None if limit == before else limit
    following = yield from _next(record, config)
    first = source.following(max(last, following - 1))
    # The store must be above the source by itself, because Redis may lose its data.
    taken = _number(record, record.max)
    below = source.following(min(taken, following - 1)) <= last
    return ImportPlan(source, source.shown(first), limit, None, changes, below or changes is not None)


def raise_existing(found: ImportPlan, config: IssuerConfig) -> Steps[None]:
    """Make an existing tag, and Redis, skip all numbers that the source may have given. Nothing is lowered."""
    source = found.source
    record = yield from ask(ReadTag(source.tag))
    if record is not None and source.app is not None:
        for part in (yield from parts.of(record)):
            yield from floor.configure(part, config.hash_key(part), TagChanges(raise_to=source.last))
        return
    yield from configure(source.tag, TagOptions.of({"above": source.last, "limit": found.changes}), config)


def _check_scheme(source: ImportedTag, record: Tag) -> None:
    """Raise InvalidArgument if the tag here makes other numbers of its counter than the source does."""
    scheme = record.scheme
    if source.app is not None:
        same = dict(scheme.get("shards", {})) == source.options(source.limit)["shards"]
    elif "stride" in scheme:
        piece = strides(scheme).pieces[-1]
        same = piece.stride == source.stride and (piece.first - source.offset) % piece.stride == 0
    else:
        same = source.stride == 1 and "shards" not in scheme
    if not same or _STRANGE & scheme.keys() or (record.deleted and scheme):
        was = "was deleted here and had" if record.deleted else "exists here and has"
        problem = f"the tag {was} another stride, other shards or another scheme than in the source"
        raise InvalidArgument(f"{problem}: use another store, or rename it in the source", tag=record.tag)


def _check_split(source: ImportedTag, record: Tag, config: IssuerConfig) -> Steps[None]:
    """Raise InvalidArgument if the store or Redis has numbers above the source's: the source will give them, too."""
    key, top = config.hash_key(record.tag), record.max
    if key is not None:  # after a restore of the store, Redis has higher numbers
        top = max(top, (yield from send(tag_scripts.read_hash(key))).top)
    if (reserved := _number(record, top)) > source.last:
        problem = f"numbers up to {reserved} are reserved here already, above {source.last} in the source"
        raise InvalidArgument(f"{problem}: stop the source and import without --split", tag=record.tag, value=reserved)


def _number(record: Tag, counter: int) -> int:
    return strides(record.scheme).value(counter) if "stride" in record.scheme else counter


def _next(record: Tag, config: IssuerConfig) -> Steps[int]:
    """Return the next number of a tag, or 0 if the tag has shards."""
    if "shards" in record.scheme:
        return 0
    try:
        return _number(record, (yield from upcoming(record, config.hash_key(record.tag))))
    except LimitHit as error:
        return _number(record, error.max + 1)
