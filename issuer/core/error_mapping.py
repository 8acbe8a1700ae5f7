"""Maps replies of stores and scripts to the errors that users see."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from issuer.errors import (
    ConfigurationError,
    CorruptState,
    FenceError,
    ForeignHash,
    InvalidArgument,
    IssuerError,
    JournalDamaged,
    LimitReached,
    StoreBehind,
    StoreFull,
    StoreUnavailable,
    TagExists,
    UnknownTag,
    restored,
)
from issuer.gateway.tag_scripts import Drawn, DrawnOnce, Floored, GivenBack, Leased, Loaded, Opened
from issuer_persistence import errors as store_errors
from issuer_persistence.contract import Store


def store_error(error: store_errors.StoreError, tag: str | None, store: Store | None = None) -> IssuerError:  # noqa: C901, PLR0911, PLR0912 - one line per case
    """Return the public error for an error of the store. `store`: the store that raised it, if known."""
    match error:
        case store_errors.TagMissing():
            return UnknownTag(error.tag, store=None if store is None else store.url)
        case store_errors.TagPresent():
            return TagExists(error.tag)
        case store_errors.LimitHit():
            return LimitReached(error.tag, limit=error.limit, value=error.max)
        case store_errors.LimitTooLow():
            return InvalidArgument(str(error), tag=error.tag, value=error.limit)
        case store_errors.LeaseOnStrict():
            return InvalidArgument(str(error), tag=error.tag, value=error.lease)
        case store_errors.StepsCrossed():
            return InvalidArgument(str(error), tag=error.tag, value=error.min_step)
        case store_errors.SchemeMismatch():
            return ConfigurationError(str(error), tag=error.tag)
        case store_errors.VersionMoved():
            return StoreUnavailable(f"store: {error}: read the tag again and repeat the change", tag=error.tag)
        case store_errors.MaxBehind():
            return StoreBehind(error.tag, max=error.max, taken=error.at_least)
        case store_errors.Halted():
            return StoreBehind(error.tag, max=error.max)
        case store_errors.Corrupt():
            return CorruptState(
                f"the record of tag {error.tag!r} in the store is damaged: {error.problem}", tag=error.tag
            )
        case store_errors.Damaged():
            return JournalDamaged(str(error), tag=tag, path=error.path, line=error.line)
        case store_errors.NotAllowed():
            return restored("forbidden", str(error), {"tag": tag, "caller": error.caller, "scope": error.scope})
        case store_errors.Misconfigured(reply={"code": "unauthenticated"}):
            return restored("unauthenticated", str(error), {"tag": tag})
        case store_errors.Misconfigured():
            return ConfigurationError(f"store: {error}", tag=tag)
        case store_errors.Full():
            return StoreFull(f"store: {error}", tag=tag, path=error.path)
    return StoreUnavailable(f"store: {error}", tag=tag)


def refused(
    reply: Drawn | DrawnOnce | Leased | GivenBack | Opened | Loaded | Floored, tag: str, key: str, store: str = ""
) -> IssuerError:
    """Return the error for a script's reply notmaster, otherstore or corrupt: a retry would get the same reply.

    `key`: the tag's hash in Redis. `store`: id of this process's store.
    """
    if reply.status == "notmaster":
        return FenceError(
            "this Redis is not a master, so its numbers cannot be trusted: configure the address of the master", tag=tag
        )
    if reply.status == "otherstore" and isinstance(reply, (Opened, Floored)):
        return ForeignHash(tag, key=key, owner=reply.store, store=store)
    return corrupt(tag, key)


def corrupt(tag: str, key: str) -> CorruptState:
    """Return the error for a tag's hash in Redis that contains a field or value that no script writes."""
    return CorruptState(
        f"Redis key {key} has fields or values that the issuer never writes", tag=tag, advice="corrupt_state.hash"
    )


def other_store(key: str, theirs: str, ours: str) -> ConfigurationError:
    """Return the error for a hash of machine numbers that belongs to another store.

    For a tag's hash of another store, the error is ForeignHash.

    `theirs`: id of that store. `ours`: id of this process's store.
    """
    return ConfigurationError(
        f"Redis key {key} belongs to another store (id {theirs}, this one is {ours}): two stores on one "
        "prefix would issue the same numbers; configure another prefix for each store"
    )


@contextmanager
def named(tag: str) -> Iterator[None]:
    """If the `with` block raises an IssuerError that has no tag, add the tag to the error."""
    try:
        yield
    except IssuerError as error:
        error.tag = error.tag or tag
        raise
