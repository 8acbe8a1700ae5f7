"""Makes Redis and the store skip numbers for ever, to raise or delete a tag. The store is changed first, then Redis."""

from __future__ import annotations

from typing import Literal

from issuer.core.error_mapping import refused
from issuer.core.record import identity
from issuer.core.steps import Steps, ask, send
from issuer.errors import UnknownTag
from issuer.gateway import tag_scripts
from issuer_persistence.records import HIGHEST, Tag, TagChanges, fresh_version


def delete(tag: str, key: str | None) -> Steps[Tag]:
    """Mark the tag as deleted in the store, then have Redis skip all its numbers.

    `key`: key of the tag's hash in Redis. None if there is no Redis.

    If Redis was unavailable, call this again. The second call makes Redis skip the numbers, and then raises UnknownTag,
    because the tag is already deleted in the store.
    """
    before = yield from ask(lambda store, timeout: store.get(tag, timeout=timeout))
    if before is None:
        raise UnknownTag(tag)
    if key is not None:
        # Read the hash first: if its key has a wrong type, or Redis is down, this raises before anything is changed.
        yield from send(tag_scripts.read_hash(key))
    tombstone = yield from ask(lambda store, timeout: store.delete(tag, timeout=timeout))
    if key is not None:
        yield from floor(tag, key, tombstone.max, "repair", (yield from identity()))
    if before.deleted:
        raise UnknownTag(tag)
    return tombstone


def configure(tag: str, key: str | None, changes: TagChanges) -> Steps[Tag]:
    """Change a tag's settings in the store. If `changes.raise_to` is set, Redis also skips all numbers up to it.

    `key`: key of the tag's hash in Redis. None if there is no Redis.
    """
    record = yield from ask(lambda store, timeout: store.configure(tag, changes, timeout=timeout))
    if key is not None and changes.raise_to is not None:
        yield from floor(tag, key, changes.raise_to, "keep", (yield from identity()))
    return record


def floor(
    tag: str,
    key: str,
    at: int,
    manner: Literal["keep", "repair"],
    store_id: str,
    *,
    scheme: str | None = None,
    until: int = HIGHEST,
) -> Steps[None]:
    """Have Redis skip all numbers up to `at`, for ever. Higher numbers in the hash can still be drawn.

    `manner`: "keep" rejects a corrupt hash, "repair" replaces it. `store_id`: id of the store that the hash must belong
    to. `scheme`: the hash's scheme id from now on. "" removes the scheme, None does not change it. `until`: end of the
    tag's period in ms of Redis's clock. 2^63-1: the tag has no periods.
    """
    floored = yield from send(tag_scripts.floor(key, at, fresh_version(), store_id, manner, scheme=scheme, until=until))
    if floored.status != "floored":
        raise refused(floored, tag, key, store_id)
