"""Taking numbers out of circulation: recover, delete, raise. The store first, then Redis: the hash stays as a floor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from issuer import gateway
from issuer.core.extend import known
from issuer.core.outcomes import refused
from issuer.core.steps import Steps, ask, send
from issuer.errors import UnknownTag
from persistence.contract import Store
from persistence.records import Tag, fresh_version

#: Two segments can be in Redis at once, so the ledger's newest two are what a lost hash may have held.
BUFFERS = 2


@dataclass(frozen=True, slots=True)
class Recovery:
    """What `recover` did, or would do, to a tag.

    `old`: the store's max before; `new`: its max after, below which no number will be issued any more. `gap`: at most
    so many numbers are lost by it: reserved, not yet issued, and skipped now.
    """

    tag: str
    old: int
    new: int
    gap: int


def recover(tag: str, key: str | None, *, at_least: int, dry_run: bool) -> Steps[Recovery]:
    """Raise the store to the highest number that store, ledger, Redis and `at_least` know of; floor the hash there.

    Safe twice, from several machines, and under load: `max` only rises, and a load on its way finds another born. What
    was reserved before the store was raised is at or below the floor; what is reserved after lies above it.
    """
    record = yield from known(tag)
    ledger = yield from ask(lambda store, timeout: store.ledger(tag, newest=BUFFERS, timeout=timeout))
    highest = max(record.max, at_least, *(entry.high for entry in ledger))
    issued = record.max
    if key is not None:
        hash = yield from send(gateway.peek(key))
        # Every field that can be read: in a hash that is partly garbage the rest is still a witness.
        fields = (hash.cur, hash.max, hash.mark, hash.next_cur, hash.next_max)
        highest = max(highest, *(field or 0 for field in fields))
        issued = hash.cur if hash.cur is not None else min((entry.low for entry in ledger), default=record.max)
    if not dry_run:
        raised = yield from ask(lambda store, timeout: store.recover(tag, at_least=highest, timeout=timeout))
        highest = raised.max
        if key is not None:
            yield from floor(tag, key, highest, "repair")
    return Recovery(tag, record.max, highest, max(0, highest - issued))


def delete(tag: str, key: str | None) -> Steps[Tag]:
    """Leave a tombstone in the store, then floor the hash, so that nothing of the tag is issued any more.

    Sent again after Redis went away in between, it floors the hash and raises UnknownTag.
    """
    before = yield from ask(lambda store, timeout: store.get(tag, timeout=timeout))
    if before is None:
        raise UnknownTag(tag)
    if key is not None:
        # A key that is no hash, or a Redis that is away, shows before anything has changed.
        yield from send(gateway.peek(key))
    tombstone = yield from ask(lambda store, timeout: store.delete(tag, timeout=timeout))
    if key is not None:
        yield from floor(tag, key, tombstone.max, "repair")
    if before.deleted:
        raise UnknownTag(tag)
    return tombstone


def configure(tag: str, key: str | None, *, change: Callable[[Store, float], Tag], raise_to: int | None) -> Steps[Tag]:
    """Change a tag's settings in the store; `raise_to` leaves a floor in Redis too."""
    record = yield from ask(change)
    if key is not None and raise_to is not None:
        yield from floor(tag, key, raise_to, "keep")
    return record


def floor(tag: str, key: str, at: int, manner: Literal["keep", "repair"]) -> Steps[None]:
    """Floor the hash: never again a number up to `at`. What lies above stays. "repair" replaces a corrupt hash."""
    store_id = yield from ask(lambda store, timeout: store.store_id(timeout=timeout))
    floored = yield from send(gateway.floor(key, at, fresh_version(), store_id, manner))
    if floored.status != "floored":
        raise refused(floored, tag, key, store_id)
