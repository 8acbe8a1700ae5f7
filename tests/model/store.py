"""What the store does to a tag's record, as persistence.contract says."""

from typing import Literal, NamedTuple

from tests.model.guards import Guards


class Store(NamedTuple):
    """The tag's record."""

    max: int = 0
    version: int = 1
    halted: bool = False
    deleted: bool = False


Reserved = tuple[Literal["ok", "deleted", "halted", "behind"], Store]


def reserve(store: Store, guards: Guards, n: int, at_least: int, version: int) -> Reserved:
    """Move max up by n. `version`: the fresh one."""
    if store.deleted:
        return "deleted", store
    if store.halted and guards.halts:
        return "halted", store
    if store.max < at_least and guards.at_least:
        return "behind", store
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


def make_again(store: Store, guards: Guards, version: int) -> Store:
    """Bring a tombstone back to life; its numbers go on above."""
    return Store(store.max if guards.tombstone else 0, version, store.halted)
