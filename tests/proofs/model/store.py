"""What the store does to a tag's record, as issuer_persistence.contract says."""

from typing import Literal, NamedTuple

from tests.proofs.model.guards import Guards
from tests.proofs.model.scripts import Scheme
from tests.proofs.model.values import quick

#: The limit of a tag that has none.
NO_LIMIT = 2**63 - 1


@quick
class Store(NamedTuple):
    """The tag's record."""

    max: int = 0
    version: int = 1
    halted: bool = False
    deleted: bool = False
    scheme: Scheme = ()
    limit: int = NO_LIMIT


Reserved = tuple[Literal["ok", "deleted", "halted", "behind", "full"], Store]


def reserve(store: Store, guards: Guards, n: int, at_least: int, version: int, *, exact: bool = False) -> Reserved:
    """Move max up by n, or by less near the limit, unless `exact`. `version`: the fresh one."""
    if store.deleted:
        return "deleted", store
    if store.halted and guards.halts:
        return "halted", store
    if store.max < at_least and guards.at_least:
        return "behind", store
    if guards.limit:
        left = store.limit - store.max
        if left <= 0 or (exact and guards.exact and left < n):
            return "full", store
        n = min(n, left)
    return "ok", store._replace(max=store.max + n, version=version)


def hand_back(store: Store, guards: Guards, used: int, high: int, *, seen: int, version: int) -> tuple[bool, Store]:
    """Lower max from `high` to `used`, if the version is still `seen`, the one that the reservation left."""
    if store.max != high or (store.version != seen and guards.version):
        return False, store
    return True, store._replace(max=used, version=version)


def halt(store: Store, below: int, version: int) -> Store:
    """Stop reservations if max is lower than `below`."""
    if store.halted or store.max >= below:
        return store
    return store._replace(halted=True, version=version)


def recover(store: Store, at_least: int, version: int) -> Store:
    """Lift max to `at_least`, and end a halt."""
    return store._replace(max=max(store.max, at_least), halted=False, version=version)


def bury(store: Store, version: int) -> Store:
    """Leave a tombstone."""
    return store if store.deleted else store._replace(deleted=True, version=version)


def raise_to(store: Store, at: int, version: int) -> Store:
    """Lift max to `at`, as for a period that begins; also of a halted tag."""
    return store._replace(max=max(store.max, at), version=version)


def set_limit(store: Store, guards: Guards, limit: int, version: int) -> tuple[bool, Store]:
    """Set the limit, unless max is above it."""
    if limit < store.max and guards.limit_kept:
        return False, store
    return True, store._replace(limit=limit, version=version)


def change_scheme(store: Store, guards: Guards, seen: Store, version: int) -> tuple[bool, Store]:
    """Make other numbers of the counters above those that were reserved when the record was `seen`."""
    if store.version != seen.version and guards.change_seen:
        return False, store
    return True, store._replace(scheme=(*seen.scheme, seen.max), version=version)


def make_again(store: Store, guards: Guards, version: int) -> Store:
    """Bring a tombstone back to life, with the scheme that it had; its numbers go on above."""
    return store._replace(max=store.max if guards.tombstone else 0, version=version, deleted=False)
