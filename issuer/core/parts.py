"""Parts: a shard, or a series by a key of the caller's, is a tag with a counter of its own: `orders#17` of `orders`."""

from __future__ import annotations

from collections.abc import Iterable

from issuer.core.scheme_record import MACHINE, PART_OF, PARTS
from issuer.core.steps import Steps, ask
from issuer.errors import ConfigurationError, InvalidArgument
from issuer_persistence.records import Tag

#: The description of a machine number's tag begins with it, for people.
TIMESTAMPS = "timestamps, in ms since 1970, that the machine number may have used"


def has_parts(record: Tag) -> bool:
    """Whether the tag's numbers are in parts, and it has none of its own."""
    return any(map(record.scheme.get, PARTS))


def parents(records: Iterable[Tag]) -> dict[str, str]:
    """Return the tag that each part belongs to, by the part's name; a tag that is no part isn't in it."""
    return {record.tag: str(record.scheme[PART_OF]) for record in records if PART_OF in record.scheme}


def of(record: Tag) -> Steps[list[str]]:
    """Return the names of the tag's parts that the store knows; none if it isn't in parts."""
    if not has_parts(record):
        return []
    every = yield from ask(lambda store, timeout: store.tags(timeout=timeout))
    return [each.tag for each in every if is_part(each, record.tag)]


def is_part(record: Tag, of_tag: str) -> bool:
    """Whether it was made as a part of that tag. `orders#17` may be a tag of a user's own, or a machine number's."""
    return bool(record.scheme.get(PART_OF) == of_tag) and not is_machine(record)


def is_machine(record: Tag) -> bool:
    """Whether it keeps a machine number's time, and no numbers.

    `orders#machine-7` is also what a keyed tag `orders` calls the part of the restart key machine-7. Records that were
    made before they had a mark are known by their description.
    """
    return MACHINE in record.scheme or (PART_OF in record.scheme and record.description.startswith(TIMESTAMPS))


def check_whole(record: Tag) -> Steps[None]:
    """InvalidArgument if the tag is a part of one that is there: it is made, changed and deleted with that."""
    whole = record.scheme.get(PART_OF)
    found = (yield from ask(lambda store, timeout: store.get(str(whole), timeout=timeout))) if whole else None
    if found is not None and not found.deleted and has_parts(found):
        problem = (
            f"tag {record.tag!r} is a part of {whole!r} and cannot be changed or deleted alone: use {whole!r} instead"
        )
        raise InvalidArgument(problem, tag=record.tag, value=whole)


def stranger(record: Tag, of_tag: str) -> ConfigurationError:
    """Return the error for a tag that has the name of a part, and is none."""
    name = record.tag
    if is_machine(record):
        problem = (
            f"tag {name!r} stores the time of a machine number for snowflake tags with the namespace {of_tag!r}: use "
            f"another restart key, or another name than {of_tag!r}"
        )
        return ConfigurationError(problem, tag=name)
    problem = f"tag {name!r} exists and is not a part of {of_tag!r}: delete it, or use another name than {of_tag!r}"
    return ConfigurationError(problem, tag=name)
