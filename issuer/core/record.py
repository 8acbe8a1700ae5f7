"""Reads a tag's record from the store, or creates it at the first use of the tag."""

from __future__ import annotations

from issuer.core.steps import Steps, ask
from issuer.errors import UnknownTag
from issuer_persistence.errors import TagPresent
from issuer_persistence.records import Tag, TagSettings


def read_record(tag: str, *, make: bool = False, deleted: bool = False) -> Steps[Tag]:
    """Return the tag's record. Raise UnknownTag if there is none.

    Args:
        tag: Name of the tag.
        make: Create the tag if it never existed. A deleted tag stays deleted.
        deleted: Return the record of a deleted tag, and never that of a live one.
    """
    record = yield from ask(lambda store, timeout: store.get(tag, timeout=timeout))
    if record is None and make:
        record = yield from _made(tag)
    if record is None or record.deleted is not deleted:
        raise UnknownTag(tag)
    return record


def _made(tag: str) -> Steps[Tag | None]:
    try:
        return (
            yield from ask(
                lambda store, timeout: store.create(tag, TagSettings(step_mode="auto", order="trend"), timeout=timeout)
            )
        )
    except TagPresent:  # another process was faster
        return (yield from ask(lambda store, timeout: store.get(tag, timeout=timeout)))
