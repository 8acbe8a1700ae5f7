"""A tag's record in the store, the id of the store, and the check that the tag's hash in Redis belongs to it.

Each hash contains the id of the store that its numbers come from. Only processes with this store may draw from it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

from issuer.core.error_mapping import corrupt, store_error
from issuer.core.steps import Steps, ask
from issuer.errors import ForeignHash, UnknownTag
from issuer.gateway import tag_scripts
from issuer_persistence.errors import Corrupt, TagPresent
from issuer_persistence.reads import ReadTag
from issuer_persistence.records import Tag, TagSettings


def read_record(tag: str, *, make: bool = False, deleted: bool = False, within: float = inf) -> Steps[Tag]:
    """Return the tag's record. Raise UnknownTag if the store has no such record.

    Args:
        tag: Name of the tag.
        make: Create the tag if it never existed. A deleted tag stays deleted.
        deleted: If True, the tag must be deleted. If False, it must not be deleted.
        within: Longest duration of each call of the store, in seconds.
    """
    record = yield from ask(ReadTag(tag), within)
    if record is None and make:
        record = yield from _made(tag, within)
    if record is None or record.deleted is not deleted:
        raise UnknownTag(tag)
    return record


#: How many records are read at once, and how many tags are verified or recovered at once.
PAGE = 1000


def page_of_tags(after: str | None, count: int = PAGE) -> Steps[Sequence[Tag | Corrupt]]:
    """Return the records of the next `count` tags after the name `after`, sorted by name. None means the first tag."""
    return (yield from ask(lambda store, timeout: store.tags(after=after, count=count, timeout=timeout)))


def sound(record: Tag | Corrupt) -> Tag:
    """Return the record. If it is damaged, raise CorruptState."""
    if isinstance(record, Corrupt):
        raise store_error(record, record.tag)
    return record


def select(chosen: Callable[[Tag], bool] = lambda _: True, prefix: str = "") -> Steps[list[Tag]]:
    """Return the records of `listed` that `chosen` accepts. If one is damaged, raise CorruptState."""
    return list(filter(chosen, map(sound, (yield from listed(prefix)))))


def listed(prefix: str) -> Steps[list[Tag | Corrupt]]:
    """Return the records of the tags with names that are longer than `prefix` and begin with it, sorted by name."""
    found: list[Tag | Corrupt] = []
    after: str | None = prefix or None
    while True:
        page = yield from page_of_tags(after)
        found += [each for each in page if each.tag.startswith(prefix)]
        if len(page) < PAGE or not page[-1].tag.startswith(prefix):
            return found
        after = page[-1].tag


def _made(tag: str, within: float) -> Steps[Tag | None]:
    settings = TagSettings(step_mode="auto", order="trend", lease_mode="auto")
    try:
        return (yield from ask(lambda store, timeout: store.create(tag, settings, timeout=timeout), within))
    except TagPresent:  # another process has created the tag
        return (yield from ask(ReadTag(tag), within))


#: How long the first draw of a process waits for the store's id, in seconds. A first connection to MongoDB takes 20 ms
#: or more. Without the id, the draw cannot check that the tag's hash belongs to this store. If this process has no
#: scheduler that checks the hash later, the draw waits for PATIENCE_ALONE seconds.
PATIENCE = 0.1
PATIENCE_ALONE = 1.0

#: If a caller has waited for the id in vain, callers do not wait for it in the next ASK_AGAIN seconds. Meanwhile the
#: scheduler requests the id every second.
ASK_AGAIN = 5.0


@dataclass(slots=True)
class Identity:
    """The id of an issuer's store. It never changes and is read once, so that draws need not wait for the store.

    Attributes:
        id: The id. "" until the store has returned it.
        empty: True if the store is empty, and so has no id yet. Then each hash in Redis belongs to another store.
        missed_at: When a caller last waited for the id without success, on the monotonic clock.
    """

    id: str = ""
    empty: bool = False
    missed_at: float = -inf


def identity(within: float = inf) -> Steps[str]:
    """Return the id of the store, or "" if the store is empty. `within`: longest duration of the call in seconds."""
    return (yield from ask(lambda store, timeout: store.store_id(timeout=timeout), within))


def check_owner(tag: str, key: str, hash: tag_scripts.Hash, store_id: str) -> bool:
    """Return whether the tag's hash exists. Raises ForeignHash if the hash belongs to another store than `store_id`.

    Raises CorruptState if the hash's field `store` cannot be an id. Only `recover` can repair such a hash.
    """
    if hash.store is None:
        return False
    if hash.store != store_id:
        if not hash.names_store:
            raise corrupt(tag, key)
        raise ForeignHash(tag, key=key, owner=hash.store, store=store_id, taken=hash.top)
    return True
