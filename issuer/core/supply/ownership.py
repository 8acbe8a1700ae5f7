"""Ownership of a hash: it carries the id of the store that armed it; only processes on that store may draw from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf

from issuer import gateway
from issuer.clock import monotonic
from issuer.core.error_mapping import corrupt
from issuer.core.floor import identity
from issuer.core.steps import Steps, send
from issuer.errors import ForeignHash, IssuerError

#: How long a process's first draw waits for the store's id, in seconds: a first connection to a MongoDB takes 20 ms or
#: more. Longer where no sweep looks later.
PATIENCE = 0.1
PATIENCE_ALONE = 1.0

#: After this many seconds another caller waits for it; in the background a sweep asks every second.
ASK_AGAIN = 5.0


class Identity:
    """The id of an issuer's store, once it is known: it never changes, and draws must not wait for the store."""

    __slots__ = ("_asked_at", "empty", "id")

    def __init__(self) -> None:
        #: "" as long as the store has not said it.
        self.id = ""
        #: Whether it has none, as nothing was written to it yet: then every hash is another one's.
        self.empty = False
        self._asked_at = -inf

    @property
    def wanted(self) -> bool:
        """Whether a caller should ask for it now."""
        return not self.id and monotonic() - self._asked_at > ASK_AGAIN

    def in_vain(self) -> None:
        """Take note that a caller has waited for it in vain."""
        self._asked_at = monotonic()
        self.empty = False


def check(tag: str, key: str, hash: gateway.Hash, store_id: str) -> bool:
    """Say whether the hash is there and this store's. Raises ForeignHash if it is another one's.

    Raises CorruptState if its `store` can't be the id of any store, so that only `recover` may write to it.
    """
    if hash.store is None:
        return False
    if hash.store != store_id:
        if not hash.names_store:
            raise corrupt(tag, key)
        raise ForeignHash(tag, key=key, owner=hash.store, store=store_id, taken=hash.top)
    return True


def refuse_foreign(tags: Iterable[str], key_of: Callable[[str], str]) -> Steps[None]:
    """Raise ForeignHash if the hash of one of the tags is another store's; change nothing. `key_of` names the hashes.

    A Redis that is away, or can't be used, is left to the first draw, which looks again.
    """
    store_id = yield from identity()
    for tag in tags:
        key = key_of(tag)
        try:
            hash = yield from send(gateway.read_hash(key), probe=False)
        except IssuerError:
            return
        check(tag, key, hash, store_id)
