"""Segment issuer: unique, increasing, short 64-bit numbers for named tags.

    import issuer
    issuer.next("orders")

`connect` creates an Issuer, the blocking interface. `aconnect` creates an AsyncIssuer, the asyncio interface. The
functions `next`, `take`, `issue`, `peek`, `decode`, `stream` and `reserve` use the default Issuer, which is created
from the settings.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any

if not hasattr(os, "register_at_fork"):
    raise ImportError(
        "issuer needs a POSIX system such as Linux or macOS: this Python has no os.register_at_fork. On Windows, run "
        "your program in WSL 2 or in a Linux container, or request numbers from an `issuer serve` on another machine"
    )
if not getattr(sys, "_is_gil_enabled", lambda: True)():
    warnings.warn(
        "issuer is not tested on a free-threaded Python whose GIL is disabled: set PYTHON_GIL=1 to enable the GIL",
        RuntimeWarning,
        stacklevel=2,
    )

from issuer.core import events
from issuer.core.issued import Issued
from issuer.core.requests import TTL
from issuer.errors import (
    CalledWithin,
    ClockBehind,
    ConfigurationError,
    CorruptState,
    FenceError,
    Forbidden,
    ForeignHash,
    FormatOverflow,
    InvalidArgument,
    IssuerError,
    JournalDamaged,
    LimitReached,
    NoMachineNumber,
    NotDecodable,
    RedisUnavailable,
    Refused,
    SchemeError,
    StoreBehind,
    StoreFull,
    StoreUnavailable,
    StrategyFailed,
    TagDiffers,
    TagExists,
    TooManyRequests,
    TransformFailed,
    Unauthenticated,
    Unavailable,
    UnknownTag,
)
from issuer.forks import no_fork, register
from issuer.numbers.codec import Decoded
from issuer.reentry import CallLock

if TYPE_CHECKING:
    from issuer import values as values
    from issuer.api.aio import AsyncIssuer
    from issuer.api.blocking import Issuer
    from issuer.wiring import aconnect, connect

# Without `next`, which would shadow the builtin in `from issuer import *`.
__all__ = [
    "AsyncIssuer",
    "CalledWithin",
    "ClockBehind",
    "ConfigurationError",
    "CorruptState",
    "FenceError",
    "Forbidden",
    "ForeignHash",
    "FormatOverflow",
    "InvalidArgument",
    "Issuer",
    "IssuerError",
    "JournalDamaged",
    "LimitReached",
    "NoMachineNumber",
    "NotDecodable",
    "RedisUnavailable",
    "Refused",
    "SchemeError",
    "StoreBehind",
    "StoreFull",
    "StoreUnavailable",
    "StrategyFailed",
    "TagDiffers",
    "TagExists",
    "TooManyRequests",
    "TransformFailed",
    "Unauthenticated",
    "Unavailable",
    "UnknownTag",
    "__version__",
    "aconnect",
    "connect",
    "decode",
    "default",
    "events",
    "issue",
    "peek",
    "reserve",
    "stream",
    "take",
]


__version__: str

#: Where what is imported at its first use is found. redis-py and APScheduler take two thirds of the time of an import.
_LATER = {
    "AsyncIssuer": "issuer.api.aio",
    "Issuer": "issuer.api.blocking",
    "aconnect": "issuer.wiring",
    "connect": "issuer.wiring",
}
_PACKAGES = ("plugins", "strategies", "values")


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version
    from pathlib import Path
    from runpy import run_path

    in_checkout = Path(__file__).resolve().parents[1] / "hatch_version.py"
    if in_checkout.is_file():  # the package may have been installed from an older commit of it, as editable
        return str(run_path(str(in_checkout))["version"]())
    try:
        return version("segment-issuer")
    except PackageNotFoundError:  # the folder alone was copied
        return "unknown"


def _later(name: str) -> Any:
    with no_fork():
        found = globals()[name] = getattr(import_module(_LATER[name]), name)
    return found


if not TYPE_CHECKING:  # a name that isn't there is an error for mypy too

    def __getattr__(name: str) -> object:
        if name in _LATER:
            return _later(name)
        if name in _PACKAGES:
            with no_fork():
                return import_module(f"issuer.{name}")
        if name == "__version__":
            return _version()
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_PACKAGES})


_default: Issuer | None = None
_default_lock = CallLock()


def default() -> Issuer:
    """Return the default issuer of this process.

    The functions of this module use this issuer. It is created from the settings at its first use, and closed when the
    program ends.
    """
    global _default  # noqa: PLW0603 - one per process is what it is for
    if _default is None or _default.closed:
        with _default_lock.thread, _default_lock.call():
            if _default is None or _default.closed:
                _default = _later("connect")()
    return _default


def _fresh_lock() -> None:
    global _default_lock  # noqa: PLW0603 - the parent's may be held by a thread that the child doesn't have
    _default_lock = CallLock()


register(in_child=_fresh_lock)


def next(
    tag: str,
    *,
    key: str | None = None,
    timeout: float | None = None,
    ttl: float = TTL,
    shard_key: str | bytes | None = None,
) -> int:
    """Return the next number of a tag.

    Uses the default issuer. Details and errors: see Issuer.next.

    Args:
        tag: Name of the tag.
        key: Idempotency key of 1 to 200 bytes. Calls with the same key return the same number, in every process. Needs
            Redis.
        timeout: Longest wait in seconds, 0 or more. None means the issuer's `timeout`.
        ttl: How long Redis keeps the number of `key`, in seconds, above 0. Default: one day.
        shard_key: Key that selects the shard. Required for a tag with shards, and not allowed for any other tag.
    """
    return default().next(tag, timeout=timeout, key=key, ttl=ttl, shard_key=shard_key)


def take(tag: str, n: int, *, timeout: float | None = None) -> list[int]:
    """Return a list of exactly n numbers of a tag, in increasing order.

    Uses the default issuer. Details and errors: see Issuer.take.

    Args:
        tag: Name of the tag.
        n: How many numbers, 1..1 000 000.
        timeout: Longest wait in seconds, 0 or more. None means the issuer's `timeout`.
    """
    return default().take(tag, n, timeout=timeout)


def issue(
    tag: str,
    *,
    key: str | None = None,
    ttl: float = TTL,
    shard_key: str | bytes | None = None,
    restart_key: str | None = None,
    timeout: float | None = None,
) -> Issued:
    """Draw one number as `next` does, and return it with its text, period and shard.

    Uses the default issuer. Details and errors: see Issuer.issue.

    Args:
        tag: Name of the tag.
        key: Idempotency key of 1 to 200 bytes. Calls with the same key return the same number, in every process. Needs
            Redis.
        ttl: How long Redis keeps the number of `key`, in seconds, above 0. Default: one day.
        shard_key: Key that selects the shard. Required for a tag with shards, and not allowed for any other tag.
        restart_key: Key that selects the series. Required for a keyed tag, and not allowed for any other tag.
        timeout: Longest wait in seconds, 0 or more. None means the issuer's `timeout`.
    """
    return default().issue(tag, key=key, ttl=ttl, shard_key=shard_key, restart_key=restart_key, timeout=timeout)


def peek(
    tag: str, *, shard_key: str | bytes | None = None, restart_key: str | None = None, timeout: float | None = None
) -> Issued:
    """Return what `issue` will return next if no other caller draws first. No number is consumed.

    Uses the default issuer. Details and errors: see Issuer.peek.

    Args:
        tag: Name of the tag.
        shard_key: Key that selects the shard. Required for a tag with shards, and not allowed for any other tag.
        restart_key: Key that selects the series. Required for a keyed tag, and not allowed for any other tag.
        timeout: Longest wait in seconds, 0 or more. None means the issuer's `timeout`.
    """
    return default().peek(tag, shard_key=shard_key, restart_key=restart_key, timeout=timeout)


def decode(tag: str, shown: int | str, *, holder: bool = False, timeout: float | None = None) -> Decoded:
    """Return the parts of a number or of its text: counter, period, shard, key and others.

    Uses the default issuer. Details and errors: see Issuer.decode.

    Args:
        tag: Name of the tag.
        shown: The number, or its text in the tag's format.
        holder: If True, also find the process that holds or held the machine number. Only for snowflake tags.
        timeout: Longest wait in seconds, 0 or more. None means the issuer's `timeout`.
    """
    return default().decode(tag, shown, holder=holder, timeout=timeout)


def reserve(tag: str, n: int, *, timeout: float | None = None) -> range:
    """Return n contiguous numbers of a trend tag. They are reserved in the store with one request.

    Uses the default issuer. Details and errors: see Issuer.reserve.

    Args:
        tag: Name of the tag.
        n: How many numbers, 1 up to the tag's limit.
        timeout: Longest wait in seconds, 0 or more. None means the issuer's `timeout`.
    """
    return default().reserve(tag, n, timeout=timeout)


def stream(tag: str, *, timeout: float | None = None) -> Iterator[int]:
    """Return an endless iterator over the tag's numbers. Use each iterator in one thread or task only.

    Uses the default issuer. Details and errors: see Issuer.stream.

    Args:
        tag: Name of the tag.
        timeout: Longest wait for each number in seconds, 0 or more. None means the issuer's `timeout`.
    """
    return default().stream(tag, timeout=timeout)
