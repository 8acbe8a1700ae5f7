"""Parts: each shard or keyed series is a tag with its own counter. For example, `orders#17` is a part of `orders`."""

from __future__ import annotations

from collections.abc import Iterable

from issuer.core.record import listed
from issuer.core.scheme_record import MACHINE, PART_OF, PARTS
from issuer.core.steps import Steps, ask
from issuer.errors import ConfigurationError, InvalidArgument
from issuer.gateway.keys import PART
from issuer_persistence.errors import Corrupt
from issuer_persistence.records import Tag

#: A tag can store the last timestamp of a machine number. The description of such a tag begins with this text.
TIMESTAMPS = "timestamps, in ms since 1970, that the machine number may have used"


def has_parts(record: Tag) -> bool:
    """Whether the tag has parts. Such a tag has no counter of its own."""
    return any(map(record.scheme.get, PARTS))


def parents(records: Iterable[Tag]) -> dict[str, str]:
    """Return a dict: the name of each part, and the name of its parent tag. Records of other tags are ignored."""
    return {record.tag: str(record.scheme[PART_OF]) for record in records if PART_OF in record.scheme}


def of(record: Tag) -> Steps[list[str]]:
    """Return the names of the tag's parts in the store. Empty if the tag has no parts.

    Damaged records that have the name of a part are the last ones, so that a loop meets their errors after all else.
    """
    found = (yield from listed(f"{record.tag}{PART}")) if has_parts(record) else []
    damaged = [each.tag for each in found if isinstance(each, Corrupt)]
    return [each.tag for each in found if isinstance(each, Tag) and is_part(each, record.tag)] + damaged


def is_part(record: Tag, of_tag: str) -> bool:
    """Whether the record was created as a part of `of_tag`. Its name proves nothing: users may create such names."""
    return bool(record.scheme.get(PART_OF) == of_tag) and not is_machine(record)


def is_machine(record: Tag) -> bool:
    """Whether the tag issues no numbers, but stores the last timestamp of a machine number.

    The name of such a tag, such as `orders#machine-7`, proves nothing: a part of a keyed tag can have the same name. If
    an old record has no setting MACHINE, its description shows that it is such a tag.
    """
    return MACHINE in record.scheme or (PART_OF in record.scheme and record.description.startswith(TIMESTAMPS))


def check_whole(record: Tag) -> Steps[None]:
    """Raise InvalidArgument if the tag is a part of an existing tag: parts are changed and deleted only with it."""
    whole = record.scheme.get(PART_OF)
    found = (yield from ask(lambda store, timeout: store.get(str(whole), timeout=timeout))) if whole else None
    if found is not None and not found.deleted and has_parts(found):
        problem = (
            f"tag {record.tag!r} is a part of {whole!r} and cannot be changed or deleted alone: use {whole!r} instead"
        )
        raise InvalidArgument(problem, tag=record.tag, value=whole)


def not_a_part(record: Tag, of_tag: str) -> ConfigurationError:
    """Return the error for a tag that has the name of a part of `of_tag`, but is not a part."""
    name = record.tag
    if is_machine(record):
        problem = (
            f"tag {name!r} belongs to a machine number of snowflake tags with the namespace {of_tag!r}: use "
            f"another restart key, or another name than {of_tag!r}"
        )
        return ConfigurationError(problem, tag=name)
    problem = f"tag {name!r} exists and is not a part of {of_tag!r}: delete it, or use another name than {of_tag!r}"
    return ConfigurationError(problem, tag=name)
